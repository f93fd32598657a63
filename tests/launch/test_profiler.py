"""`forever run --profile`: every second is counted once, and some updates are traced."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import run_local
from forever.launch.profiler import TRACED, Profiler


def test_the_page_counts_every_second_once(base_config: RunConfig, tmp_path: Path) -> None:
    run_local(base_config, tmp_path / "run", trackers=[Profiler()])
    page = (tmp_path / "run/profile/profile.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    seconds = {phase: float(spent) for phase, spent, _ in rows[1:]}
    assert {"start", "task", "replay", "evaluation", "checkpoint", "tracking"} <= seconds.keys()
    assert min(seconds.values()) >= 0
    assert "aten::mm" in page
    with gzip.open(tmp_path / "run/profile/trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    updates = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert len(updates) == TRACED


def test_a_run_too_short_to_trace_has_its_page(base_config: RunConfig, tmp_path: Path) -> None:
    config = base_config.override({"optim.epochs": 1, "method.name": "finetune"})
    config = config.override({"data.train_rows": 4})
    run_local(config, tmp_path / "run", trackers=[Profiler()])
    assert "too short to trace" in (tmp_path / "run/profile/profile.md").read_text()


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("--workers=2", "leave out --workers"), ("--resume", "leave out --resume and --fork")],
)
def test_only_a_whole_run_in_this_process_is_profiled(
    option: str, remedy: str, tmp_path: Path
) -> None:
    command = ["run", "mini/finetune", "--profile", option, "--out", str(tmp_path)]
    outcome = CliRunner().invoke(app, command)
    assert isinstance(outcome.exception, InputError)
    assert remedy in str(outcome.exception)
