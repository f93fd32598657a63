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

from forever.report.analyses import analyses, day_pairs, dose_areas, forgetting_rates
from forever.report.figures import FIGURES, Picture, png_of, runs, variants
from forever.report.figures.style import line_styles
from forever.report.study import Part, read_study
from forever.sweeps import parts
from forever.sweeps.sweep import Sweep


@pytest.fixture(scope="module")
def part(reported: Path) -> Part:
    """Five variants, bounds with them."""
    return read_study(reported).parts[0]


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


def ticks_of(axis: Axes) -> list[str]:
    return [tick.get_text() for tick in axis.get_xticklabels()]


# ---- of single runs


def test_a_matrix_shows_every_measured_cell_and_no_other(part: Part) -> None:
    """Of tasks learned one after another, and of joint training."""
    for row in (part.rows[0], part.rows[-1]):
        figure = runs.matrix_figure(row.results[0], "a run")
        numbers = [text.get_text() for text in figure.axes[0].texts]
        scores = [score for line in row.results[0]["matrix"] for score in line]
        assert numbers == [f"{score:.1f}" for score in scores if score is not None]


def test_events_are_drawn_at_their_updates(part: Part) -> None:
    """In made-up runs each event has one update."""
    run = part.rows[0].runs[0]
    above, below = (lines_of(axis) for axis in runs.replay_loss_figure(run.steps, run.events).axes)
    moves, clock = (lines_of(axis) for axis in runs.timeline_figure(run.steps, run.events).axes)
    for kind in ("replay", "consolidation"):
        chosen = [event for event in run.events if event["kind"] == kind]
        updates = {n: line for n, line in enumerate(run.steps, 1) if line["kind"] == kind}
        assert above[f"before a {kind}"] == ([*updates], [e["loss_before"] for e in chosen])
        assert above[f"after a {kind}"] == ([*updates], [e["loss_after"] for e in chosen])
        assert above[f"{kind} update"] == ([*updates], [line["loss"] for line in updates.values()])
        assert below[f"{kind} update"] == ([*updates], [0.01] * len(updates))
        # On the timeline at the task's update that called it.
        called = [n - 1 for n in updates], [event["days"] for event in chosen]
        assert clock[f"{kind}, at its day"] == called
    tasks = [line["update_norm"] for line in run.steps if line["kind"] == "task"]
    assert moves["Δ"][1] == tasks


def test_a_run_in_which_no_day_has_passed_has_no_clock() -> None:
    assert len(runs.timeline_figure([], []).axes) == 1


def test_a_runs_figure_is_a_png_for_mlflow(part: Part) -> None:
    for figure in ("matrix", "timeline"):
        assert png_of(figure, part.rows[0].runs[0]).startswith(b"\x89PNG")


# ---- of variants


def test_figures_show_the_scores_of_variants(part: Part) -> None:
    """OP with its interval, accuracy up to OP, and OP against seconds."""
    numbers = {row.variant: row.compared("op") for row in part.rows}
    (axis,) = drawn("intervals", part).figure.axes
    assert [text.get_text() for text in axis.texts] == [
        f"{op.value:.1f} [{op.low:.1f}, {op.high:.1f}]" for op in numbers.values()
    ]
    lines = lines_of(drawn("accuracy", part).figure.axes[0])
    assert {name: y[-1] for name, (_, y) in lines.items()} == pytest.approx(
        {name: op.value for name, op in numbers.items()}
    )
    assert lines["base"][0] == [0, 1, 2, 3]
    assert lines["mtl"][0] == [3]
    lines = lines_of(drawn("pareto", part).figure.axes[0])
    scores = {row.variant: [numbers[row.variant].value] for row in part.rows if not row.bound}
    assert max(lines.pop("front")[1]) == max(scores.values())[0]
    assert {name: y for name, (_, y) in lines.items()} == scores


def test_means_and_the_front_by_hand() -> None:
    matrix = [[50.0, 49.0, 48.0], [None, 50.0, 49.0], [None, None, 50.0]]
    assert variants.seen({"matrix": matrix}) == [50.0, 49.5, 49.0]
    assert variants.front([(2, 50), (1, 40), (1, 30), (3, 50)]) == [(1, 40), (2, 50)]


def test_retention_leaves_out_what_ends_as_fine_tuning(part: Part) -> None:
    joint = variants.final_scores(part.rows[-1])
    rows = [replace(row, idle=row.variant == "+FIR") for row in part.rows]
    picture = drawn("radar", SimpleNamespace(measured=rows, rows=rows, reference="base"))
    lines = lines_of(picture.figure.axes[0])
    assert [*lines] == ["base", "-IAR", "finetune"]
    assert lines["base"][0] == pytest.approx([*variants.final_scores(part.rows[0]) / joint])
    assert "+FIR" in picture.caption


def test_scores_are_drawn_at_their_setting(tmp_path: Path) -> None:
    """Numbers by size, methods beside each other, OP above BWT."""
    changes: dict[str, dict[str, Any]] = {}
    for size in (50, 2, 10):
        changes[f"{size} %"] = {"memory.fraction": size / 100}
    changes["vbm"] = {"method.name": "vbm", "memory.fraction": 0.1}
    make_up(tmp_path, Sweep("memory_size", base_run(), changes, reference="2 %"))
    part = read_study(tmp_path).parts[0]
    above, below = drawn("sensitivity", part).figure.axes
    rows = {row.variant: row for row in part.rows}
    own = [rows[name] for name in ("2 %", "10 %", "50 %")]
    for axis, field in ((above, "op"), (below, "bwt")):
        lines = lines_of(axis)
        assert lines["forever"][1] == [row.compared(field).value for row in own]
        assert lines["vbm"][1] == [rows["vbm"].compared(field).value]
        numbers = [row.compared(field) for row in part.rows]
        assert whiskers_of(axis) == {(number.low, number.high) for number in numbers}
    assert ticks_of(below) == ["2", "10", "50"]
    # Names are not joined, and are in the order in which they come.
    _, axis = drawn("spacing", part).figure.axes
    assert axis.lines[0].get_linestyle() == "None"
    assert ticks_of(axis) == [row.variant for row in part.rows]
    # A setting that is not a number; variants without it are left out.
    for key, shown in (("method.days", ["ebbinghaus"]), ("method.views", ["2"])):
        figure = parts.Figure(kind="sensitivity", key=key, label="what differs")
        assert part.file is not None
        named = replace(part, file=part.file.model_copy(update={"figures": (figure,)}))
        assert ticks_of(drawn("sensitivity", named).figure.axes[1]) == shown


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
    rows, areas = {row.variant: row for row in part.rows}, dose_areas(part)
    above, below = drawn("doses", part).figure.axes
    for axis, field in ((above, "op"), (below, "bwt")):
        lines = lines_of(axis)
        assert {*lines} == {"a", "b c", "short"}
        for name in ("a", "b c"):
            scores = [rows[f"{name} {dose}"].compared(field).value for dose in (4, 8, 40)]
            assert lines[name][1] == scores
            near, far = (scores[0] + scores[1]) / 2, (scores[1] + scores[2]) / 2
            area = (near * math.log(2) + far * math.log(5)) / math.log(10)
            assert areas[name][field].value == pytest.approx(area)
    assert ticks_of(below) == ["4", "8", "40"]
    assert below.get_xticks() == pytest.approx([0, 1, math.log(10) / math.log(2)])
    apart = areas["b c"]["op"].value - areas["a"]["op"].value
    assert areas["b c less a"]["op"].value == pytest.approx(apart)


def test_analyses_are_drawn(tmp_path: Path) -> None:
    probing = {"finetune": {"method.name": "finetune", "method.probe_every": 3}}
    make_up(tmp_path / "rate", Sweep("forgetting_rate", base_run(), probing, (0, 1)))
    part = read_study(tmp_path / "rate").parts[0]
    (axis,) = drawn("forgetting_rate", part).figure.axes
    for whose, about in variants.DRAWN.items():
        rates = forgetting_rates(part, whose, fifths=True)["finetune"]
        x, y = lines_of(axis)[f"finetune, {about}"]
        assert x == pytest.approx([1.2, 3.6, 6.0, 8.4, 10.8])
        assert y == rates.mean().tolist()
    # The loss 1 + sqrt(step) is above a tenth of its rise from the first probe after the start.
    known = analyses(part)["forgetting_rate"]["finetune"]
    assert known["onset"].value == lines_of(axis)["finetune, onset"][0][0]
    assert known["days"] == {"steps": {"1": 24, "2": 48, "4": 96, "7": 168, "15": 360, "30": 720}}
    orders = {"7": {}, "8": {"data.order": ["shape", "colour", "taste", "weight"]}}
    days = {"forever": {}, "mtl": {"method.name": "mtl"}}
    make_up(tmp_path / "days", Sweep("model_day", base_run(), days, (0,), orders, "forever"))
    part = read_study(tmp_path / "days").parts[0]
    figure = drawn("model_day", part).figure
    for axis, table in zip(figure.axes, day_pairs(part).values(), strict=True):
        assert np.array_equal(axis.lines[0].get_xydata(), table)


def test_no_pyplot() -> None:
    """Its global state would leak between the runs of a sweep in one process."""
    code = "import sys, forever.report.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hundred_variants_can_be_distinguished() -> None:
    by_name = line_styles([*map(str, range(100))], "3")
    assert max(by_name, key=lambda name: by_name[name]["linewidth"]) == "3"
    assert len({(style["color"], style["marker"]) for style in by_name.values()}) == 100
