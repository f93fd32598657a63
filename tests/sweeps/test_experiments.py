"""Every table and figure of the paper end to end at scale `mini`, two updates a task: the sweep,
its runs, its page."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from forever.launch.local import Placement, run_local
from forever.report.report import write_report
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.sweeps.files import load_sweep, shipped_sweeps
from forever.sweeps.named_runs import SCALES, load_run
from forever.sweeps.search import find_search
from forever.sweeps.studies import Studies
from forever.sweeps.sweep import slug

SWEEPS = [name for name, sweep in shipped_sweeps().items() if not sweep.is_search]

SMALL = {
    "data.train_rows": 16, "data.test_rows": 2, "optim.epochs": 1, "optim.batch_size": 8,
    "memory.fraction": 0.25, "evaluation.max_new_tokens": 2, "method.warmup_steps": 1,
}  # fmt: skip
# What each experiment shows beside the table: the page's figures that others have not.
FIGURES = {
    "memory_size": {"sensitivity"},
    "warmup_window": {"sensitivity"},
    "memory_epochs": {"sensitivity"},
    "spacing": {"sensitivity"},
    "backbones": {"backbones", "training-time"},
    "training_time": {"training-time"},
    "model_day": {"model-day", "retention"},
    "forgetting_rate": {"forgetting-rate"},
    "replay_loss": {"replay-loss"},
    "main_results": {"retention", "pareto"},
    "components": {"op", "accuracy", "pareto"},
}
# Findings that only these have.
ANALYSES = {
    "forgetting_rate": "forgetting_rate",
    "model_day": "model_day",
    "training_time": "training_time",
}


def figures(folder: Path) -> set[str]:
    """Names of the figures that the page shows, none of which is empty."""
    text = (folder / "report.md").read_text(encoding="utf-8")
    shown = {path.removesuffix(".png") for path in re.findall(r"\(figures/([^)]+)\)", text)}
    assert all((folder / "figures" / f"{figure}.png").stat().st_size > 5_000 for figure in shown)
    return shown


@pytest.fixture(scope="module")
def finished() -> dict[str, Path]:
    """Folders of runs that several sweeps share, by fingerprint."""
    return {}


@pytest.mark.parametrize("name", SWEEPS)
def test_end_to_end(name: str, tmp_path: Path, finished: dict[str, Path]) -> None:
    sweep = load_sweep(name).expand(load_run(SCALES["mini"]).override(SMALL), (0,))
    # Phases of two updates at most, not of 2.5 S.
    changes: dict[str, Any] = {"method.probe_every": 1}
    for trial in sweep.trials():
        config = trial.config.override(changes) if name == "forgetting_rate" else trial.config
        path = tmp_path / trial.key
        if config.fingerprint() in finished:
            shutil.copytree(finished[config.fingerprint()], path)
        else:
            result = run_local(config, path, placement=Placement(device="cpu"))
            # And more where memory is mixed into the task's batches.
            steps = 2 * len(result["tasks"])
            mixed = config.method.name in ("mix_replay", "migu", "ssr")
            assert result["updates"]["task"] == steps or (
                mixed and result["updates"]["task"] > steps
            )
            finished[config.fingerprint()] = path
    sweep.write_manifest(tmp_path)
    write_report(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (part,) = content["parts"]
    assert content["scale"] == "mini"
    assert [row["variant"] for row in part["rows"] if not row["bound"]] == [
        name
        for name in sweep.variants
        if name not in [row["variant"] for row in part["rows"] if row["bound"]]
    ]
    ops = {row.variant: row.results for row in read_study(tmp_path).rows}
    for row in part["rows"]:
        assert row["runs"] == row["planned"] == max(1, len(sweep.orders))
        assert row["op"]["value"] == pytest.approx(
            sum(r["op"] for r in ops[row["variant"]]) / row["runs"]
        )
    shown = figures(tmp_path)
    assert FIGURES.get(name, set()) <= shown
    assert {f"matrix-{slug(variant)}" for variant in sweep.variants} <= shown
    lead = slug(sweep.reference)
    orders = [f"-o{slug(order)}" for order in sweep.orders] if len(sweep.orders) > 1 else [""]
    # Of the reference in every order.
    assert {f"timeline-{lead}{order}" for order in orders} <= shown
    assert {
        f"timeline-{slug(variant)}" for variant in sweep.variants if variant != sweep.reference
    } <= shown
    assert len(sweep.variants) == 1 or {"op", "accuracy"} <= shown
    assert (ANALYSES.get(name) is None) or ANALYSES[name] in part["analyses"]
    assert r"\toprule" in (tmp_path / "report.tex").read_text(encoding="utf-8")


def test_a_search_end_to_end(tmp_path: Path) -> None:
    """Its base and two points of its space, and one that was stopped, at scale `mini`; on Ray:
    tests/sweeps/test_search.py."""
    pytest.importorskip("optuna")
    what = find_search(load_sweep("search"), load_run(SCALES["mini"]).override(SMALL))
    studies = Studies(what, tmp_path)
    studies.begin([])
    for state in ("done", "done", "done", "stopped"):
        trial = studies.ask()
        assert trial is not None
        if state == "done":
            run_local(trial.config, tmp_path / trial.key, placement=Placement(device="cpu"))
        else:
            RunDirectory(tmp_path / trial.key).end("stopped", "after 2 of 5 tasks")
        studies.tell(trial.key, state)
    write_report(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    results = {run.trial.variant: run.result for run in Studies(what, tmp_path).known()}
    (part,) = content["parts"]
    assert [row["variant"] for row in part["rows"]] == list(results)
    assert [row["op"] and row["op"]["value"] for row in part["rows"]] == [
        pytest.approx(result["op"]) if result else None for result in results.values()
    ]
    assert "stopped early" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert {"op", "accuracy", "pareto", "timeline-base"} <= figures(tmp_path)
