"""The tasks of a run along the axis of its updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forever.report.figures.style import (
    INK,
    LARGE,
    MANY_STAGES,
    SLANTED,
    SMALL,
    new_figure,
    place_name,
)

Lines = Sequence[Mapping[str, Any]]  # of a journal

# Events on memory, with their markers and colours.
KINDS = (("replay", "o", "#EE7733"), ("consolidation", "D", "#009988"))


class Span(NamedTuple):
    """Updates in a row; their positions in the run count from 1."""

    name: str
    first: int
    last: int


def spans(steps: Lines, field: str) -> Iterator[Span]:
    """Updates in a row that have the same task or kind."""
    first = 1
    for name, lines in groupby(steps, key=lambda line: line[field]):
        last = first + len(list(lines)) - 1
        yield Span(name, first, last)
        first = last + 1


def run_figure(steps: Lines, heights: Sequence[float], title: str) -> tuple[Figure, list[Axes]]:
    """Panels over all updates of a run, every other task on a pale ground, with their names."""
    figure, axes = new_figure(11, heights)
    stages = list(spans(steps, "task"))
    for axis in axes:
        for stage in stages[1::2]:
            ends = stage.first - 0.5, stage.last + 0.5
            axis.axvspan(*ends, color="#F3F3F1", linewidth=0, zorder=0)
    style = {"ha": "left", **SLANTED} if len(stages) > MANY_STAGES else {"ha": "center"}
    for name, first, last in stages:
        place_name(axes[0], (first + last) / 2, name, fontsize=SMALL, **style)
    axes[-1].set(xlabel="update of the run, replay included", xlim=(0.5, max(len(steps), 1) + 0.5))
    axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    figure.suptitle(title, fontsize=LARGE, color=INK)
    return figure, axes
