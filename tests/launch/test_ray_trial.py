"""A trial of Ray Tune, with Tune played by the test."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from forever.config.run import RunConfig
from forever.launch import cluster, tune
from forever.launch.resources import Allocation, Placement
from forever.runs.directory import RunDirectory


def test_a_trial_that_tune_wants_no_more_of_ends_there(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune says so by a SystemExit in the report; the process is for the next trial."""
    reports: list[dict[str, Any]] = []

    def report(content: dict[str, Any]) -> None:
        reports.append(content)
        raise SystemExit(0)

    monkeypatch.setattr(tune.tune, "report", report)
    monkeypatch.setattr(cluster, "prepare_process", lambda allocation: None)
    config = small_config.override({"data.order": ["colour", "shape"]})
    params = {"run": config.model_dump(mode="json"), "key": "run"}
    allocation = Allocation(1, 0, Placement("cpu"), {"CPU": 1}, threads=None)
    with pytest.raises(SystemExit):
        tune.train_trial(params, str(tmp_path), allocation)
    assert [content["stage"] for content in reports] == [1]
    directory = RunDirectory(tmp_path / "run")
    assert directory.steps.is_file()
    assert not directory.result.exists()
