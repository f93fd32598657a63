"""Figures show every number at its place, and nothing where nothing was measured."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_up import base_run, make_up
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forever.report.analyses import day_pairs, dose_areas, forgetting_rates, pearson
from forever.report.figures import FIGURES, Picture, png_of, runs, variants
from forever.report.figures.style import looks
from forever.report.study import Part, read_study
from forever.sweeps import parts
from forever.sweeps.sweep import Sweep


@pytest.fixture(scope="module")
def part(reported: Path) -> Part:
    """Five variants, bounds with them."""
    return read_study(reported).parts[0]


def draw(kind: str, part: Any) -> Figure:
    return drawn(kind, part).figure


def drawn(kind: str, part: Any) -> Picture:
    """The one picture of a kind."""
    (picture,) = FIGURES[kind](part)
    return picture


def lines_of(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines: their x and y."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for line in axis.lines:
        if not str(line.get_label()).startswith("_"):
            x, y = np.asarray(line.get_data()).tolist()
            lines[str(line.get_label())] = x, y
    return lines


def whiskers_of(axis: Axes) -> set[tuple[float, float]]:
    """The lower and upper ends of upright lines that have no name."""
    paths = [path for collection in axis.collections for path in collection.get_paths()]
    return {tuple(np.asarray(path.vertices)[:, 1]) for path in paths}


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def ticks_of(axis: Axes) -> list[str]:
    return [tick.get_text() for tick in axis.get_xticklabels()]


def result(tasks: int, method: str = "forever") -> dict[str, Any]:
    names = [f"task{i}" for i in range(tasks)]
    matrix = [[None if j < i else 50.0 + i - j for j in range(tasks)] for i in range(tasks)]
    scores = {"tasks": names, "stages": names, "matrix": matrix, "op": 48.0, "bwt": -3.21}
    return {"method": method, "seed": 0, **scores}


JOINT = {**result(3, "mtl"), "stages": ["joint"], "matrix": [[60.0], [0.0], [100.0]], "bwt": None}


@pytest.mark.parametrize("content", [result(1), result(15), JOINT])
def test_matrix_shows_every_measured_cell_and_no_other(content: dict) -> None:
    figure = runs.matrix_figure(content, "a run")
    numbers = [text.get_text() for text in figure.axes[0].texts]
    measured = [value for row in content["matrix"] for value in row if value is not None]
    assert numbers == [f"{value:.1f}" for value in measured]
    bwt = "–" if content is JOINT else "−3.2"
    assert figure.get_suptitle() == f"a run\nOP 48.0 · BWT {bwt}"


def run_of(tasks: int, updates: int) -> tuple[list[dict], list[dict]]:
    """In all tasks but the first a replay at update 10 and a consolidation; a day is 5 updates."""
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [{"kind": "look", "task": "task0", "step": 1}]  # is no replay
    for k in range(tasks):
        for t in range(1, updates + 1):
            place = {"task": f"task{k}", "step": t, "days": t / 5 if t >= 5 else 0.0}
            moved = {"update_norm": 0.1, "mu": 0.1, "next_day": 2.0}
            steps.append({**place, **moved, "kind": "task", "loss": 99.0, "penalty": 0.0})
            kind = {10: "replay", updates: "consolidation"}.get(t)
            if k and kind:
                losses = {"loss_before": 2.0 + k, "loss_after": 0.1 * k}
                events.append({**place, "kind": kind, **losses})
                for n in range(3):
                    steps.append({**place, "kind": kind, "loss": 1.0 + n, "penalty": 0.01})
    return steps, events


@pytest.mark.parametrize(("tasks", "updates"), [(3, 20), (15, 300)])
def test_events_stand_at_their_updates(tasks: int, updates: int) -> None:
    steps, events = run_of(tasks, updates)
    above, below = (lines_of(axis) for axis in runs.replay_loss_figure(steps, events).axes)
    moves, clock = (lines_of(axis) for axis in runs.timeline_figure(steps, events).axes)
    for kind in ("replay", "consolidation"):
        chosen = [event for event in events if event["kind"] == kind]
        x = [place for place, line in enumerate(steps, 1) if line["kind"] == kind]  # three an event
        assert above[f"before a {kind}"] == (x[::3], [event["loss_before"] for event in chosen])
        assert above[f"after a {kind}"] == (x[2::3], [event["loss_after"] for event in chosen])
        assert above[f"{kind} update"] == (x, [1.0, 2.0, 3.0] * len(chosen))
        assert below[f"{kind} update"] == (x, [0.01] * len(x))
        # On the timeline at the task's update that called it.
        days = [first - 1 for first in x[::3]], [event["days"] for event in chosen]
        assert clock[f"{kind}, at its day"] == days
    assert all(99.0 not in y for _, y in above.values())  # the task's own updates
    assert np.isfinite(moves["Δ"][1]).sum() == tasks * updates  # the clock does not count replays


@pytest.mark.parametrize("journal", [([], []), run_of(1, 4)])
def test_a_run_in_which_no_day_has_passed_has_no_clock(journal: Any) -> None:
    assert len(runs.timeline_figure(*journal).axes) == 1
    assert lines_of(runs.replay_loss_figure(*journal).axes[0])["before a replay"] == ([], [])


def test_intervals_are_written_beside_their_dots(part: Part) -> None:
    (axis,) = draw("intervals", part).axes
    numbers = [row.compared("op") for row in part.rows]
    assert [text.get_text() for text in axis.texts] == [
        f"{op.value:.1f} [{op.low:.1f}, {op.high:.1f}]" for op in numbers
    ]
    assert [y for _, (y,) in lines_of(axis).values()] == list(range(5))


def test_accuracy_is_the_mean_over_the_tasks_learned_so_far(part: Part) -> None:
    assert variants.seen(result(3)) == [50.0, 49.5, 49.0]
    figure = draw("accuracy", part)
    lines = lines_of(figure.axes[0])
    for row in part.rows:  # at the end it is OP
        assert lines[row.variant][1][-1] == pytest.approx(row.compared("op").value)
    assert lines["mtl"][0] == [4]
    assert legend_of(figure) == [row.variant for row in part.rows]


def test_what_is_kept_says_whom_it_leaves_out(part: Part) -> None:
    """One that ends as fine-tuning does."""
    picture = drawn("radar", part)
    assert legend_of(picture.figure) == ["base", "+FIR", "-IAR", "finetune"]
    joint = variants.final_scores(part.rows[-1])
    for row in part.rows[:-1]:
        x, y = lines_of(picture.figure.axes[0])[row.variant]
        assert x == pytest.approx([*variants.final_scores(row) / joint])
        assert y == [0, 1, 2, 3]
    rows = [replace(row, idle=row.variant == "+FIR") for row in part.rows]
    picture = drawn("radar", SimpleNamespace(measured=rows, rows=rows, reference="base"))
    assert legend_of(picture.figure) == ["base", "-IAR", "finetune"]
    assert "+FIR" in picture.caption


def test_pareto_shows_every_point_and_what_nothing_beats(part: Part) -> None:
    assert variants.front([(2, 50), (1, 40), (1, 30), (3, 50)]) == [(1, 40), (2, 50)]
    lines = lines_of(draw("pareto", part).axes[0])
    scores = {row.variant: row.compared("op").value for row in part.rows if not row.bound}
    assert max(lines.pop("front")[1]) == max(scores.values())
    assert {name: y for name, (_, y) in lines.items()} == {n: [op] for n, op in scores.items()}


def test_scores_stand_at_their_setting(tmp_path: Path) -> None:
    """Numbers by size, methods beside each other, OP above BWT."""
    changes: dict[str, dict[str, Any]] = {}
    for size in (50, 2, 10):
        changes[f"{size} %"] = {"memory.fraction": size / 100}
    changes["vbm"] = {"method.name": "vbm", "memory.fraction": 0.1}
    make_up(tmp_path, Sweep("memory_size", base_run(), changes, reference="2 %"))
    part = read_study(tmp_path).parts[0]
    above, below = draw("sensitivity", part).axes
    rows = {row.variant: row for row in part.rows}
    own = [rows[name] for name in ("2 %", "10 %", "50 %")]
    for axis, field in ((above, "op"), (below, "bwt")):
        lines = lines_of(axis)
        assert lines["forever"][1] == [row.compared(field).value for row in own]
        assert lines["vbm"][1] == [rows["vbm"].compared(field).value]
        numbers = [row.compared(field) for row in part.rows]
        assert whiskers_of(axis) == {(number.low, number.high) for number in numbers}
    assert ticks_of(below) == ["2", "10", "50"]
    # Names are not joined, and stand in the order in which they come.
    _, axis = draw("spacing", part).axes
    assert axis.lines[0].get_linestyle() == "None"
    assert ticks_of(axis) == [row.variant for row in part.rows]


@pytest.mark.parametrize(
    ("key", "other", "shown"),
    [
        ("method.gamma", {"method.gamma": 0.5}, ["0.5", "1"]),
        ("budget.examples", {"budget.examples": 8}, ["None", "8"]),
        ("method.days", {"method.days": "fixed_interval"}, ["ebbinghaus", "fixed_interval"]),
        ("method.views", {"method.gamma": 0.5}, None),
    ],
)
def test_a_setting_may_be_no_number_and_not_every_variant_has_it(
    key: str, other: dict[str, Any], shown: list[str] | None, tmp_path: Path
) -> None:
    """Who lacks the setting is left out; without anybody who has it there is no figure."""
    variants = {"base": {}, "other": other, "finetune": {"method.name": "finetune"}}
    make_up(tmp_path, Sweep("memory_size", base_run(), variants))
    part = read_study(tmp_path).parts[0]
    axis = parts.Figure(kind="sensitivity", key=key, label="what differs")
    assert part.file is not None
    part = replace(part, file=part.file.model_copy(update={"figures": (axis,)}))
    if shown is None:
        assert list(FIGURES["sensitivity"](part)) == []
    else:
        _, below = draw("sensitivity", part).axes
        assert ticks_of(below) == shown


def test_doses_have_a_curve_for_what_differs_in_nothing_else(tmp_path: Path) -> None:
    """Whatever the names are; and the area under it, by hand: log(2) and log(5) wide."""
    changes: dict[str, dict[str, Any]] = {"alone": {"method.beta": 0.5, "budget.examples": 8}}
    for dose in (40, 4, 8):
        amount = {"budget.examples": dose, "memory.fraction": dose / 100}
        changes[f"a {dose}"] = amount
        changes[f"b c {dose}"] = {**amount, "method.name": "mix_replay"}
        if dose != 4:
            changes[f"short {dose}"] = {**amount, "method.days": "end_only"}
    make_up(tmp_path, Sweep("mine", base_run(), changes, (0, 1), reference="a 8"))
    part = read_study(tmp_path).parts[0]
    rows = {row.variant: row for row in part.rows}
    above, below = draw("doses", part).axes
    for axis, field in ((above, "op"), (below, "bwt")):
        lines = lines_of(axis)
        assert {*lines} == {"a", "b c", "short"}
        for name in ("a", "b c"):
            scores = [rows[f"{name} {dose}"].compared(field).value for dose in (4, 8, 40)]
            assert lines[name][1] == scores
            near, far = (scores[0] + scores[1]) / 2, (scores[1] + scores[2]) / 2
            area = (near * math.log(2) + far * math.log(5)) / math.log(10)
            assert dose_areas(part)[name][field].value == pytest.approx(area)
    assert ticks_of(below) == ["4", "8", "40"]
    assert below.get_xticks() == pytest.approx([0, 1, math.log(10) / math.log(2)])
    assert [*dose_areas(part)] == ["a", "b c", "b c less a"]
    apart = dose_areas(part)["b c less a"]["op"].value
    both = [dose_areas(part)[name]["op"].value for name in ("b c", "a")]
    assert apart == pytest.approx(both[0] - both[1])


def test_a_runs_figure_is_a_png_for_mlflow(part: Part) -> None:
    for figure in ("matrix", "timeline"):
        assert png_of(figure, part.rows[0].runs[0]).startswith(b"\x89PNG")


def test_a_timeline_has_the_updates_and_of_many_the_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each eleventh, the first of each replay, and the update that called it."""
    steps = [{"task": "a", "step": n, "kind": "task"} for n in range(1, 101)]
    for place in (90, 40):
        steps[place:place] = [{**steps[place - 1], "kind": "replay"}] * 5
    monkeypatch.setattr(runs, "SHOWN", 10)
    thin = runs.moves(runs.table_of(steps))
    assert {1, 12, 23, 40, 41, 95, 96} <= {*thin["place"]}
    assert len(thin) <= 10 + 4


def test_findings_are_drawn_as_they_were_found(tmp_path: Path) -> None:
    probing = {"finetune": {"method.name": "finetune", "method.probe_every": 3}}
    make_up(tmp_path / "rate", Sweep("forgetting_rate", base_run(), probing, (0, 1)))
    part = read_study(tmp_path / "rate").parts[0]
    (axis,) = draw("forgetting_rate", part).axes
    rates = forgetting_rates(part)["finetune"]
    assert lines_of(axis)["finetune"][1] == rates.mean().tolist()
    assert ticks_of(axis) == ["0–3", "3–6", "6–9", "9–12"]
    orders = {"7": {}, "8": {"data.order": ["shape", "colour", "taste", "weight"]}}
    days = {"forever": {}, "mtl": {"method.name": "mtl"}}
    make_up(tmp_path / "days", Sweep("model_day", base_run(), days, (0,), orders, "forever"))
    part = read_study(tmp_path / "days").parts[0]
    figure = draw("model_day", part)
    for axis, table in zip(figure.axes, day_pairs(part).values(), strict=True):
        assert np.array_equal(axis.lines[0].get_xydata(), table)
    assert [axis.get_xlabel().split(", ")[1] for axis in figure.axes] == [
        "order 7", "mean over orders", "mean over orders",
    ]  # fmt: skip
    assert pearson(table.head(2)) is None


def test_no_pyplot() -> None:
    """Its global state would leak between the runs of a sweep in one process."""
    code = "import sys, forever.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hundred_variants_are_told_apart() -> None:
    names = [*map(str, range(100))]
    by_name = looks(names, "3")
    assert max(by_name, key=lambda name: by_name[name]["linewidth"]) == "3"
    assert len({(look["color"], look["marker"]) for look in by_name.values()}) == 100
