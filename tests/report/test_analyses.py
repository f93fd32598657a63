"""Findings that are more than a score, by hand."""

from pathlib import Path

import pandas as pd
import pytest
from made_up import TESTS, base_run, edit, make_up

from forever.files import write_lines
from forever.report.analyses import (
    analyses,
    findings,
    minutes_an_epoch,
    onset,
    pearson,
    rate_table,
    rates,
    slowing,
)
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep


def answer(directory: RunDirectory, matrix: list[list[float]]) -> None:
    """Write answers that are all alike for each score of a matrix."""
    for task, scores in enumerate(matrix):
        for stage, score in enumerate(scores):
            line = {"reference": "yes", "score": score / 100}
            lines = [{"id": str(number), **line} for number in range(TESTS)]
            write_lines(directory.predictions(stage, task), lines)


def test_model_days_by_hand(tmp_path: Path) -> None:
    """(1, 2), (2, 3), (4, 3): r = 12 / sqrt(42 * 6). Means over orders 1.5, 2.5, 3.5 and joint 90,
    80, 60."""
    days = {
        "1": {"colour": 1.0, "shape": 2.0, "weight": 4.0},
        "2": {"shape": 3.0, "colour": 2.0, "weight": 3.0},
    }
    final = {"colour": 90.0, "shape": 80.0, "weight": 60.0}
    orders = {name: {"data.order": list(tasks)} for name, tasks in days.items()}
    variants = {"forever": {}, "mtl": {"method.name": "mtl"}}
    sweep = Sweep("model_day", base_run(), variants, (0, 1), orders, reference="forever")
    make_up(tmp_path, sweep)
    for trial in sweep.trials():
        tasks, matrix = days[trial.order], [[0.0, 0.0, 9.0]] * 3
        if trial.variant == "mtl":
            matrix = [[final[task]] for task in tasks]
        # The mean over seeds is the day.
        notes = {task: {"tau_day": day + trial.seed - 0.5} for task, day in tasks.items()}
        edit(tmp_path / trial.key / "result.json", matrix=matrix, notes=notes)
        answer(RunDirectory(tmp_path / trial.key), matrix)
    (part,) = read_study(tmp_path).parts
    ours = analyses(part)["model_day"]
    other = {"r": pytest.approx(2 / 7**0.5), "p": pytest.approx(0.4544, abs=1e-3), "pairs": 3}
    assert ours["other order"] == other
    assert ours["joint training"]["r"] == pytest.approx(-30 / (2 * 1400 / 3) ** 0.5)
    # The last task of an order is not forgotten, and two pairs say nothing.
    assert "BWT" not in ours
    assert findings(part)[1] == (
        "correlation of tau_day with joint training", "r = −0.98, p = 0.1210",
        "r = −0.56, p = 0.0291", "3 tasks",
    )  # fmt: skip


def test_correlations_by_hand() -> None:
    """Anscombe's first set."""
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert pearson(pd.DataFrame({"x": x, "y": y})) == pytest.approx((0.816, 0.002), abs=5e-4)
    assert pearson(pd.DataFrame({"x": x, "y": 1.0})) is None


def test_minutes_an_epoch_by_hand(tmp_path: Path) -> None:
    """Four tasks of two epochs."""
    variants = {"base": {}, "+FIR": {"method.days": "fixed_interval"}}
    make_up(tmp_path, Sweep("training_time", base_run(), variants, (0, 1)))
    for path in tmp_path.glob("*/result.json"):
        edit(path, seconds={"task": 148.0, "replay": 44.0, "evaluation": 1000.0})
    (part,) = read_study(tmp_path).parts
    assert minutes_an_epoch(part) == {"tiny": {"forever": pytest.approx(0.4)}}
    # Of base and +FIR, two seeds each.
    assert findings(part) == [("forever, tiny: minutes an epoch", "0.4", "–", "4 runs")]
    edit(tmp_path / "sweep.json", name="time")
    assert "training_time" not in analyses(read_study(tmp_path).parts[0])  # was not asked for


def test_rates_by_hand() -> None:
    def probe(task: str, step: int, **losses: float) -> dict[str, object]:
        return {"kind": "look", "task": task, "step": step, "losses": losses}

    events = [
        probe("b", 0, a=1.0), probe("b", 10, a=9.0),
        probe("c", 0, a=1.0, b=3.0), probe("c", 10, a=2.0, b=4.0), probe("c", 20, a=2.0, b=3.0),
        {"kind": "replay", "task": "c", "step": 20},
    ]  # fmt: skip
    by_task = rates(["a", "b", "c"], events)
    assert by_task == {"b": [pytest.approx(0.8)], "c": [pytest.approx(0.1), pytest.approx(-0.05)]}
    # A third of six tasks is left out.
    assert rates(["a", "x", "y", "b", "c", "z"], events).keys() == {"b", "c"}
    assert rates(["a", "b", "x", "y", "z", "c"], events).keys() == {"c"}
    many = [probe("c", step, a=float(step)) for step in range(0, 80, 10)]
    assert rates(["a", "b", "c"], many) == {"c": [1.0] * 5}
    # The task just learned and older ones apart; the previous task needs no third before it.
    assert rates(["b", "c"], events[2:], "previous") == {"c": pytest.approx([0.1, -0.1])}
    assert rates(["a", "b", "c"], events, "older") == {"c": pytest.approx([0.1, 0.0])}
    # In fifths of 20 updates, probes are joined by straight lines: the third fifth has both halves.
    (curve,) = rates(["b", "c"], events[2:], "previous", fifths=True).values()
    assert curve == pytest.approx([0.1, 0.1, 0.0, -0.1, -0.1])


def test_forgetting_begins_when_the_loss_stays_above_a_tenth_of_its_rise() -> None:
    """From 1.0 to 2.0, so above 1.1. The single probe at 5 is smoothed away, and at 20 the loss is
    there for good."""
    losses = (1.0, 1.5, 1.0, 1.0, 1.6, 2.0, 2.0)
    assert onset([(5 * place, loss) for place, loss in enumerate(losses)]) == 20
    # After the dip at 20 the loss has to begin again.
    losses = (1.0, 1.0, 1.5, 1.5, 1.0, 1.0, 2.0, 2.0)
    assert onset([(5 * place, loss) for place, loss in enumerate(losses)]) == 30
    assert onset([(0, 1.0), (5, 0.9), (10, 0.8)]) is None


def test_forgetting_falls_by_more_than_chance_or_not() -> None:
    """Three tasks that fall by 1, 2 and 3: Student's interval with two degrees of freedom, 2 +-
    4.303 / sqrt(3)."""
    curves: dict[tuple[str, int], list[float]] = {}
    for task, fall in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        curves[task, 0] = [5.0, 3.0, 5.0 - fall]
    # Another run of a task makes it surer of that task, and of no other: it falls by 1 on average.
    curves |= {("a", 1): [5.0, 3.0, 5.0], ("a", 2): [5.0, 3.0, 3.0]}
    found = slowing(rate_table({**curves, ("short", 0): [9.0, 1.0]}))
    assert found["rates"] == pytest.approx([34 / 6, 16 / 6, 17 / 5])
    fall = found["fall"]
    assert (fall["value"], fall["runs"]) == (2.0, 3)
    assert (fall["low"], fall["high"]) == pytest.approx((2 - 2.484, 2 + 2.484), rel=0.15)
    # One task does not tell how much tasks differ, and one phase has nothing to fall to.
    assert slowing(rate_table({("a", 0): [2.0, 1.0]}))["fall"] is None
    alone = rate_table({("a", 0): [2.0], ("b", 0): [3.0]})
    assert slowing(alone) == {"rates": [2.5], "fall": None}
