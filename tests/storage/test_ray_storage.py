"""A sweep whose folder lies in storage: trials work on machines that the driver never sees."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
from helpers import execute, outcome
from marks import ON_RAY
from safetensors.torch import load_file, save_file
from stores import BUCKET, Become, Server
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.launch.local import Placement
from forever.launch.resources import Resources
from forever.launch.start import run_sweep
from forever.runs.directory import RunDirectory
from forever.storage.address import SCRATCH, local_folder
from forever.sweeps.sweep import MANIFEST, Sweep

pytestmark = [*ON_RAY, pytest.mark.slow]
SWEEPS = f"s3://{BUCKET}/sweeps"


@pytest.fixture(scope="module")
def elsewhere(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Ray's processes have their scratch."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SCRATCH, str(folder))
        yield folder


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sweep_in_storage(
    s3: Server,
    elsewhere: Path,
    two_cores: None,
    machine: Become,
    small_config: RunConfig,
    tmp_path: Path,
    workers: int,
) -> None:
    """The driver knows what came of each trial, and the next call on another machine does, too."""
    broken = Path(shutil.copytree(small_config.model.name, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    large = {name: tensor * 1e30 for name, tensor in weights.items()}
    save_file(large, broken / "model.safetensors", {"format": "pt"})
    diverging = {"model.name": str(broken)}
    variants = {"base": {}, "slow": {"optim.lr": 1e-3}, "diverges": diverging}
    sweep = Sweep("toys", small_config, variants)
    out = f"{SWEEPS}/toys-{workers}"
    resources = Resources(workers=workers, retries=0, show=False, placement=Placement("cpu"))
    first = run_sweep(sweep, local_folder(out), resources)
    base, slow, diverges = (trial.key for trial in sweep.trials())
    assert sorted(first.finished) == sorted([base, slow])
    assert "diverged" in first.failed[diverges]
    assert (local_folder(out) / MANIFEST).is_file()
    assert not [*local_folder(out).glob("*/checkpoints")]
    for trial in sweep.trials()[:2]:
        execute(trial.config, tmp_path / trial.key)
        read = outcome(local_folder(out) / trial.key)
        assert outcome(tmp_path / trial.key).differences(read) == []
    assert os.environ[SCRATCH] != str(elsewhere)
    trained = elsewhere.rglob(f"toys-{workers}/*/steps.jsonl")
    assert {path.parent.name for path in trained} == {base, slow, diverges}
    machine(2)
    second = run_sweep(sweep, local_folder(out), resources)
    assert sorted(second.skipped) == sorted([base, slow])
    assert second.failed == first.failed
    ended = RunDirectory(local_folder(out) / diverges).end_without_result()
    assert ended is not None
    assert ended["state"] == "failed"
    machine(3)
    reported = CliRunner().invoke(app, ["report", out], catch_exceptions=False)
    assert f"report  {out}/report.html" in reported.output
    assert f"sweeps/toys-{workers}/report.html" in s3.keys(f"sweeps/toys-{workers}/report")
