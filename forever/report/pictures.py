"""Which figures a report shows: some for every study, others where the runs were made for them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from matplotlib.figure import Figure

from forever.report import figures
from forever.report.analyses import day_pairs, forgetting_rates, minutes_an_epoch, model_days
from forever.report.comparisons import bars_figure, radar_figure, training_time_figure
from forever.report.curves import forgetting_rate_figure, replay_loss_figure
from forever.report.rows import Row, Run
from forever.report.scatters import model_day_figure, pareto_figure
from forever.report.sensitivity import Point, Setting, sensitivity_figure
from forever.report.study import Study
from forever.runs.directory import read_lines
from forever.sweeps.published import FORGETTING_RATE
from forever.sweeps.sweep import slug

NAMED = 16  # points; more names beside points, as of a search, cannot be read
TIME_AND_OP = ("seconds a run, training and evaluation", "OP (%)")


@dataclass(frozen=True)
class Picture:
    """A figure of the page. `group`: where it stands; `name`: its file, without suffix."""

    group: str
    name: str
    caption: str
    png: bytes
    width: int  # CSS pixels, 96 an inch

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


def pictures(study: Study) -> Iterator[Picture]:
    """All figures of a study, part by part."""
    for part in study.parts:
        rows = [row for row in part.rows if row.comparison]
        if not rows:
            continue
        suffix = f"-{slug(part.benchmark)}" if part.several else ""
        where = f" ({part.benchmark})" if part.several else ""
        for shown in (_overview, _special, _matrices, _timelines):
            for group, name, caption, figure in shown(part, rows):
                group = f"{group} {part.benchmark}" if group == "overview" else group
                width = round(96 * figure.get_size_inches()[0])
                yield Picture(group, name + suffix, caption + where, figures.png(figure), width)


Shown = Iterator[tuple[str, str, str, Figure]]  # group, name, caption, figure


def _overview(part: Study, rows: list[Row]) -> Shown:
    if len(rows) > 1:
        intervals = {row.variant: row.comparison.op for row in rows if row.comparison}
        figure = figures.interval_figure(intervals, "OP (%) with 95 % interval", part.reference)
        yield "overview", "op", "Overall performance (OP) of each variant.", figure
    if any(figures.seen(result) for row in rows for result in row.results):
        figure = figures.accuracy_figure({row.variant: row.results for row in rows}, part.reference)
        caption = "Mean score on the tasks learned so far, after each task; mean over runs."
        banded = len(rows) <= figures.BANDS and any(len(row.runs) > 1 for row in rows)
        yield "overview", "accuracy", caption + " Bands: lowest to highest run." * banded, figure
    retention = _retention(rows)
    if retention:
        figure = radar_figure(retention, part.reference)
        yield (
            "overview",
            "retention",
            "Final score on each task as a share of joint training's; mean over runs.",
            figure,
        )
    points = {
        row.variant: (row.seconds or 0.0, row.comparison.op)
        for row in rows
        if row.comparison and not row.bound
    }
    if len(points) > 2:
        figure = pareto_figure(
            points, part.reference, named=len(points) <= NAMED, labels=TIME_AND_OP
        )
        yield (
            "overview",
            "pareto",
            "OP against time. The line joins what nothing beats in both.",
            figure,
        )


def _retention(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Final score by variant and task, as a share of joint training's."""
    bound = next((row for row in rows if row.bound and row.results[0]["method"] == "mtl"), None)
    if bound is None:
        return {}

    def final(row: Row) -> dict[str, float]:
        scores: dict[str, list[float]] = {}
        for result in row.results:
            for task, line in zip(result["tasks"], result["matrix"], strict=True):
                scores.setdefault(task, []).append(line[-1])
        return {task: fmean(values) for task, values in scores.items()}

    best = final(bound)
    return {
        row.variant: {
            task: score / best[task] for task, score in final(row).items() if best.get(task)
        }
        for row in rows
        if row is not bound
    }


# ---- figures of single experiments

# By sweep: the key that varies, its label, its unit.
_SETTINGS: dict[str, tuple[str, str, float]] = {
    "memory_size": ("memory.fraction", "memory (% of a task's rows)", 100.0),
    "warmup_window": ("method.warmup_steps", "S, updates that make the first day", 1.0),
    "memory_epochs": ("method.memory_epochs", "passes over the memory at a replay", 1.0),
}


def _special(part: Study, rows: list[Row]) -> Shown:
    special: dict[str, Callable[[Study, list[Row]], Shown]] = {
        **dict.fromkeys(_SETTINGS, _sensitivity),
        "spacing": _spacing,
        "backbones": _backbones,
        "training_time": _training_time,
        "model_day": _model_day,
    }
    if part.name in special:
        yield from special[part.name](part, rows)
    found = {variant: list(curves.values()) for variant, curves in forgetting_rates(part).items()}
    if found:
        run = next(run for row in rows for run in row.runs if run.variant in found)
        figure = forgetting_rate_figure(
            found, int(run.settings["method.probe_every"]), FORGETTING_RATE, part.reference
        )
        caption = "Rise of the loss on earlier tasks while a task is learned, nothing replayed."
        yield "overview", "forgetting-rate", caption, figure
    run = part.example
    assert run is not None
    events = read_lines(run.directory.events)
    if any(event["kind"] == "replay" for event in events):
        figure = replay_loss_figure(read_lines(run.directory.steps), events, _title(run))
        yield (
            "overview",
            "replay-loss",
            "The loss on memory and the penalty at each replay of one run.",
            figure,
        )


def _sensitivity(part: Study, rows: list[Row]) -> Shown:
    key, label, unit = _SETTINGS[part.name]

    def setting(row: Row) -> float:
        return unit * float(row.runs[0].settings[key])

    points: list[Point] = []
    published: list[Point] = []
    for row in rows:
        assert row.comparison is not None
        method = str(row.results[0]["method"])
        points.append(Point(method, setting(row), row.comparison.op, row.comparison.bwt))
        if row.paper and row.same_setting:
            published.append(Point.published(method, setting(row), row.paper.op, row.paper.bwt))
    default = next((setting(row) for row in rows if row.variant == part.reference), None)
    yield from _curve(points, label, default, published)


def _spacing(part: Study, rows: list[Row]) -> Shown:
    points: list[Point] = []
    published: list[Point] = []
    for row in rows:
        assert row.comparison is not None
        points.append(Point("forever", row.variant, row.comparison.op, row.comparison.bwt))
        if row.paper and row.same_setting:
            published.append(Point.published("forever", row.variant, row.paper.op, row.paper.bwt))
    yield from _curve(points, "spacing of replays", part.reference, published)


def _curve(
    points: list[Point], label: str, default: Setting | None, published: list[Point]
) -> Shown:
    figure = sensitivity_figure(
        points, label, reference="forever", default=default, published=published
    )
    caption = (
        f"OP and BWT against {label}, with 95 % intervals."
        + " Hollow: the paper's numbers." * bool(published)
    )
    yield "overview", "sensitivity", caption, figure


def _backbones(part: Study, rows: list[Row]) -> Shown:
    op: dict[str, dict[str, object]] = {}
    bwt: dict[str, dict[str, object]] = {}
    for row in rows:
        assert row.comparison is not None
        backbone = str(row.runs[0].settings["model.name"]).rsplit("/", 1)[-1]
        method = str(row.results[0]["method"])
        op.setdefault(backbone, {})[method] = row.comparison.op
        bwt.setdefault(backbone, {})[method] = row.comparison.bwt
    figure = bars_figure({"OP (%)": op, "BWT (points)": bwt}, "forever")  # pyright: ignore[reportArgumentType]
    yield (
        "overview",
        "backbones",
        "OP and BWT of each method on each backbone, with 95 % intervals.",
        figure,
    )
    yield from _training_time(part, rows)


def _training_time(part: Study, rows: list[Row]) -> Shown:
    figure = training_time_figure(minutes_an_epoch(part), "forever")
    yield (
        "overview",
        "training-time",
        "Minutes of training an epoch and task, replay and merges included.",
        figure,
    )


def _model_day(part: Study, rows: list[Row]) -> Shown:
    figure = model_day_figure(day_pairs(part), list(model_days(part)[0]))
    yield (
        "overview",
        "model-day",
        "The length of a task's model day beside what it could go with.",
        figure,
    )


# ---- run by run


def _matrices(part: Study, rows: list[Row]) -> Shown:
    for row in rows:
        run = row.runs[0]
        yield (
            "matrix",
            f"matrix-{slug(row.variant)}",
            _title(run),
            figures.matrix_figure(row.results[0], _title(run)),
        )


def _timelines(part: Study, rows: list[Row]) -> Shown:
    """The example's first, on every order; of the others one run each."""
    assert part.example is not None
    first = part.example.variant
    for row in sorted(rows, key=lambda row: row.variant != first):
        by_order = {run.order: run for run in reversed(row.runs)}
        runs = [row.runs[0]] if row.variant != first else [*reversed(by_order.values())]
        for run in runs:
            lines = read_lines(run.directory.steps)
            figure = figures.timeline_figure(lines, read_lines(run.directory.events), _title(run))
            order = f"-o{slug(run.order)}" if len(runs) > 1 else ""
            yield "timeline", f"timeline-{slug(row.variant)}{order}", _title(run), figure


def _title(run: Run) -> str:
    return f"{run.variant}, order {run.order}, seed {run.seed}"
