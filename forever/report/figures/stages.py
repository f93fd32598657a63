"""The tasks of a run along the axis of its updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forever.report.figures.style import INK, LARGE, SMALL, label, new_figure

Lines = Sequence[Mapping[str, Any]]  # of a journal

PALE, REPLAY, CONSOLIDATION = "#F3F3F1", "#EE7733", "#009988"
KINDS = (("replay", "o", REPLAY), ("consolidation", "D", CONSOLIDATION))  # with their markers
WIDTH = 11  # inches


class Stage(NamedTuple):
    """The lines of one task: positions `first` to `last` on the axis of all updates, which counts
    from 1."""

    name: str
    first: int
    last: int


def stages_of(steps: Lines) -> Iterator[Stage]:
    first = 1
    for name, lines in groupby(steps, key=lambda line: line["task"]):
        last = first + sum(1 for _ in lines) - 1
        yield Stage(str(name), first, last)
        first = last + 1


def run_figure(
    steps: Lines, heights: Sequence[float], total: float, title: str
) -> tuple[Figure, list[Axes]]:
    """Panels over all updates of a run, every other task on a pale ground, with their names."""
    figure, axes = new_figure(WIDTH, heights, total)
    stages = list(stages_of(steps))
    for axis in axes:
        for stage in stages[1::2]:
            axis.axvspan(stage.first - 0.5, stage.last + 0.5, color=PALE, linewidth=0, zorder=0)
    _name_stages(axes[0], stages, len(steps))
    label(axes[-1], x="update of the run, replay included")
    axes[-1].set_xlim(0.5, max(len(steps), 1) + 0.5)
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if title:
        figure.suptitle(title, fontsize=LARGE, color=INK)
    return figure, axes


def _name_stages(axis: Axes, stages: Sequence[Stage], total: int) -> None:
    """Names above the bands, slanted if one does not fit its band (a letter is about 0.6 of its
    height wide)."""
    points_an_update = 0.9 * WIDTH * 72 / max(total, 1)
    fits = all(
        0.6 * SMALL * len(name) < (last - first + 1) * points_an_update - 4
        for name, first, last in stages
    )
    style: dict[str, Any] = {"ha": "center"}
    if not fits:
        style = {"ha": "left", "rotation": 35, "rotation_mode": "anchor"}
    for name, first, last in stages:
        axis.annotate(
            name,
            ((first + last) / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            va="bottom",
            fontsize=SMALL,
            color=INK,
            **style,
        )
