"""Every table and figure of the paper end to end at scale `mini`, four tasks of two updates: the
sweep, its runs, its page."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forever.config.orders import ORDERS
from forever.launch.local import Placement, run_local
from forever.report.report import write_report
from forever.report.study import read_study
from forever.sweeps.files import load_sweep, shipped_sweeps
from forever.sweeps.named_runs import SCALES, load_run
from forever.sweeps.sweep import MANIFEST

SWEEPS = [name for name, sweep in shipped_sweeps().items() if not sweep.is_search]
SMALL = {
    "data.train_rows": 16, "data.test_rows": 2, "optim.epochs": 1, "optim.batch_size": 8,
    "memory.fraction": 0.25, "evaluation.max_new_tokens": 2, "method.day_steps": 1,
}  # fmt: skip
# Of many variants, each of which another test trains, too.
LONG = {
    "main_results", "doses", "baselines", "baseline_variants", "arena", "arena_seconds", "protocol",
    "spacing", "full_finetuning", "memory_size", "long_sequence", "language_model", "backbones",
    "memory_epochs", "tuned", "components",
}  # fmt: skip
# The rest of them are the arena's, at other doses.
SOME = {"doses": re.compile(r"(forever|interleaved|pad) \d.*|finetune|mtl")}
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
    "doses": {"doses"},
    "main_results": {"retention", "pareto"},
    "components": {"op", "accuracy", "pareto"},
}
ANALYSES = {"forgetting_rate", "model_day", "training_time", "doses"}


def figures(folder: Path) -> set[str]:
    """Names of the figures that were drawn."""
    return {path.stem for path in (folder / "figures").iterdir()}


@pytest.fixture(autouse=True, scope="module")
def four_tasks() -> Iterator[None]:
    """Half of the benchmark, since replay grows with the square of the number of tasks."""
    with pytest.MonkeyPatch.context() as patch:
        for order, tasks in ORDERS["mini"].items():
            patch.setitem(ORDERS["mini"], order, tasks[:4])
        yield


@pytest.fixture(scope="module")
def finished() -> dict[str, Path]:
    """Folders of runs that several sweeps share, by fingerprint."""
    return {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SWEEPS]
)
def test_end_to_end(name: str, tmp_path: Path, finished: dict[str, Path]) -> None:
    sweep = load_sweep(name).expand(load_run(SCALES["mini"]).override(SMALL), (0,))
    if name in SOME:
        sweep = sweep.only([*filter(SOME[name].match, sweep.variants)])
    keys: dict[str, str] = {}  # of the runs as they are trained here
    for trial in sweep.trials():
        changes: dict[str, Any] = {}
        if trial.config.method.name == "finetune" and name == "forgetting_rate":
            changes["method.probe_every"] = 1  # phases of two updates at most, not of 2.5 S
        if isinstance(trial.config.budget.examples, int):  # in proportion, so doses stay doses
            changes["budget.examples"] = max(trial.config.budget.examples // 26, 1)
        if trial.config.budget.seconds:
            changes["budget.seconds"] = 0.01
        config = trial.config.override(changes)
        keys[trial.key] = trial.key.replace(
            trial.config.fingerprint()[:8], config.fingerprint()[:8]
        )
        path = tmp_path / keys[trial.key]
        if config.fingerprint() in finished:
            shutil.copytree(finished[config.fingerprint()], path)
        else:
            run_local(config, path, placement=Placement(device="cpu"))
            finished[config.fingerprint()] = path
    sweep.write_manifest(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    for line in manifest["trials"]:
        line["key"] = keys[line["key"]]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    write_report(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (part,) = content["parts"]
    assert content["scale"] == "mini"
    assert sorted(row["variant"] for row in part["rows"]) == sorted(sweep.chosen())
    results = {row.variant: row.results for row in read_study(tmp_path).rows}
    for row in part["rows"]:
        assert row["runs"] == row["planned"] == max(1, len(sweep.orders))
        mean = sum(result["op"] for result in results[row["variant"]]) / row["runs"]
        assert row["op"]["value"] == pytest.approx(mean)
    shown = figures(tmp_path)
    assert FIGURES.get(name, set()) <= shown
    assert len(sweep.variants) == 1 or {"op", "accuracy"} <= shown
    assert name not in ANALYSES or name in part["analyses"]
