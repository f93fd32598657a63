"""Every table and figure of the paper end to end at scale `mini`, two updates a task: the sweep, its runs, its page."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.report import write_report
from experiments.runs import SCALES, load_run
from experiments.study import read_study
from experiments.sweeps import SWEEPS, named_sweep
from forever.launch.local import Placement, run_local

SMALL = {
    "data.train_rows": 16, "data.test_rows": 2, "optim.epochs": 1, "memory.fraction": 0.25,
    "evaluation.max_new_tokens": 2, "method.warmup_steps": 1,
}  # fmt: skip
# What each experiment shows beside the table: the page's figures that others have not.
FIGURES = {
    "memory_size": {"sensitivity"}, "warmup_window": {"sensitivity"}, "memory_epochs": {"sensitivity"},
    "spacing": {"sensitivity"}, "backbones": {"backbones", "training-time"}, "training_time": {"training-time"},
    "model_day": {"model-day", "retention"}, "forgetting_rate": {"forgetting-rate"}, "replay_loss": {"replay-loss"},
    "main_results": {"retention", "pareto"}, "components": {"op", "accuracy", "pareto"},
}  # fmt: skip
# Findings that only these have.
ANALYSES = {"forgetting_rate": "forgetting_rate", "model_day": "model_day", "training_time": "training_time"}


@pytest.fixture(scope="module")
def finished() -> dict[str, Path]:
    """Folders of runs that several sweeps share, by fingerprint."""
    return {}


@pytest.mark.parametrize("name", SWEEPS)
def test_end_to_end(name: str, tmp_path: Path, finished: dict[str, Path]) -> None:
    sweep = named_sweep(name, load_run(SCALES["mini"]).override(SMALL), (0,))
    changes: dict[str, Any] = {"method.probe_every": 1}  # phases of two updates at most, not of 2.5 S
    for trial in sweep.trials():
        config = trial.config.override(changes) if name == "forgetting_rate" else trial.config
        path = tmp_path / trial.key
        if config.fingerprint() in finished:
            shutil.copytree(finished[config.fingerprint()], path)
        else:
            result = run_local(config, path, placement=Placement(device="cpu"))
            assert set(result["updates"]) >= {"task"}
            finished[config.fingerprint()] = path
    sweep.write_manifest(tmp_path)
    write_report(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (part,) = content["parts"]
    assert content["scale"] == "mini"
    assert [row["variant"] for row in part["rows"] if not row["bound"]] == [
        name for name in sweep.variants if name not in [row["variant"] for row in part["rows"] if row["bound"]]
    ]
    ops = {row.variant: row.results for row in read_study(tmp_path).rows}
    for row in part["rows"]:
        assert row["runs"] == row["planned"] == max(1, len(sweep.orders))
        assert row["op"]["value"] == pytest.approx(sum(r["op"] for r in ops[row["variant"]]) / row["runs"])
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    shown = {path.removesuffix(".png") for path in re.findall(r"\(figures/([^)]+)\)", text)}
    assert FIGURES.get(name, set()) <= shown
    assert all((tmp_path / "figures" / f"{figure}.png").stat().st_size > 5_000 for figure in shown)
    assert (ANALYSES.get(name) is None) or ANALYSES[name] in part["analyses"]
    assert r"\toprule" in (tmp_path / "report.tex").read_text(encoding="utf-8")
