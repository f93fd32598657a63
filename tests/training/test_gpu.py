"""On a GPU, too, a run repeats its bits, and resumes with them after it was interrupted."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from faults.inject import Point, watched
from helpers import CONFIGS, KILLED_CLOSES_NO_FILES, canned_sample, outcome

from forever.config.run import RunConfig
from forever.evaluation import decoding
from forever.launch.local import Placement, run_local
from forever.models.device import compute_repeatably, fitting

pytestmark = KILLED_CLOSES_NO_FILES
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
GPU = Placement(device="cuda", checkpoint_s=0.0)


class Killed(BaseException):
    """Ends a run in the middle."""


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's switch is for the whole process."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    yield
    torch.set_deterministic_debug_mode(before)


def test_repeatable_kernels_are_chosen_for_a_gpu_alone(as_before: None) -> None:
    compute_repeatably(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
    compute_repeatably(torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()


def test_a_model_without_such_kernels_is_trained_and_it_is_said(
    as_before: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch refuses `put_` on a CPU, too."""
    compute_repeatably(torch.device("cuda"))
    tried: list[int] = []

    def work(size: int) -> float:
        tried.append(size)
        return torch.zeros(3).put_(torch.tensor([1]), torch.tensor([2.0])).sum().item()

    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        assert fitting(work, 3, None, "examples") == (2.0, None)
    assert tried == [3, 3]
    assert "this run will not repeat its bits: put_ does not" in capsys.readouterr().err


@needs_gpu
@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_repeats_its_bits(
    name: str, dtype: str, small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "sample", canned_sample)
    changed = small_config.override({"model.dtype": dtype}).model_dump(mode="json")
    config = RunConfig.parse(changed | {"method": CONFIGS[name]})

    def die(point: Point) -> None:
        if (point.phase, point.task, point.update) == ("journal", 1, 2):
            raise Killed

    for folder in ("one", "other"):
        run_local(config, tmp_path / folder, placement=GPU)
    if name != "mtl":  # it has one task
        with watched(die), pytest.raises(Killed):
            run_local(config, tmp_path / "killed", placement=GPU)
        gc.collect()
    run_local(config, tmp_path / "killed", resume=name != "mtl", placement=GPU)
    whole = outcome(tmp_path / "one")
    assert outcome(tmp_path / "other").differences(whole) == []
    assert outcome(tmp_path / "killed").differences(whole) == []
