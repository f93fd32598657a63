"""What a process is prepared with before a run."""

import os
from pathlib import Path

import pytest

from forever.config.run import RunConfig
from forever.launch.local import choose_kernels

VARIABLE = "ATEN_CPU_CAPABILITY"


@pytest.mark.parametrize(
    ("flags", "before", "dtypes", "expected"),
    [
        ("fpu avx2 avx512f amx", None, ["auto", "float32"], "avx2"),
        ("fpu avx2 avx512f amx", "avx512", ["auto"], "avx512"),  # the user's
        ("fpu avx2 avx512f amx", None, ["auto", "bfloat16"], None),
        ("fpu avx2", None, ["auto"], None),  # nothing to avoid
        (None, None, ["auto"], None),  # another system
    ],
)
def test_kernels_for_avx2_are_chosen_where_it_can_be(
    base_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: str | None,
    before: str | None,
    dtypes: list[str],
    expected: str | None,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    processor = tmp_path / "cpuinfo"
    if flags is not None:
        processor.write_text(f"model name\t: a chip\nflags\t\t: {flags} sse\n")
    runs = [base_config.override({"model.dtype": dtype}) for dtype in dtypes]
    choose_kernels(runs, processor)
    assert os.environ.get(VARIABLE) == expected
