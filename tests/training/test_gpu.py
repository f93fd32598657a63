"""On a GPU, too, a run repeats its bits, and goes on with them after it was interrupted."""

import gc
from pathlib import Path

import pytest
import torch
from faults.inject import Point, watched
from helpers import CONFIGS, KILLED_CLOSES_NO_FILES, canned_sample, outcome

from forever.config.run import RunConfig
from forever.evaluation import decoding
from forever.launch.local import Placement, run_local
from forever.training.world import compute_repeatably

pytestmark = KILLED_CLOSES_NO_FILES
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
GPU = Placement(device="cuda", checkpoint_s=0.0)


class Killed(BaseException):
    """Ends a run in the middle."""


def test_repeatable_kernels_are_chosen_for_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(False)
        compute_repeatably(torch.device("cpu"))
        assert not torch.are_deterministic_algorithms_enabled()
        compute_repeatably(torch.device("cuda"))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


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
