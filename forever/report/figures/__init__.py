"""The figures of a report: a module a kind, and which kinds a report shows."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forever.report.figures.bars import backbones, training_time
from forever.report.figures.forgetting_rate import forgetting_rate
from forever.report.figures.intervals import accuracy, intervals
from forever.report.figures.matrices import matrices, matrix_figure
from forever.report.figures.model_day import model_day
from forever.report.figures.pareto import pareto
from forever.report.figures.radar import radar
from forever.report.figures.replay_loss import replay_loss
from forever.report.figures.sensitivity import sensitivity, spacing
from forever.report.figures.style import Drawing, png
from forever.report.figures.timelines import timeline_figure, timelines
from forever.report.study import Part, Study
from forever.sweeps.parts import USUAL_FIGURES
from forever.sweeps.sweep import slug

__all__ = ["FIGURES", "Picture", "matrix_figure", "pictures", "timeline_figure"]

_KINDS = (
    intervals, accuracy, radar, pareto, sensitivity, spacing, backbones, training_time, model_day,
    forgetting_rate, replay_loss, matrices, timelines,
)  # fmt: skip
# What can be drawn of a part of a study; each draws nothing where there is nothing to show.
FIGURES: dict[str, Callable[[Part], Iterator[Drawing]]] = {draw.__name__: draw for draw in _KINDS}


@dataclass(frozen=True)
class Picture:
    """A figure as a file.

    Attributes:
        name: the name of its file, without suffix.
        group: where it stands: "overview", "matrix" or "timeline".
        width: its width in CSS pixels, 96 an inch.
    """

    name: str
    group: str
    caption: str
    png: bytes
    width: int

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


def pictures(study: Study, part: Part) -> Iterator[Picture]:
    """All figures of a part of a study, in the order of the sweep's file, which may name none."""
    if not part.measured:
        return
    kinds: tuple[str, ...] = USUAL_FIGURES
    if study.file is not None and study.file.figures:
        kinds = tuple(figure.kind for figure in study.file.figures)
    suffix, where = "", ""
    if part.several:
        suffix, where = f"-{slug(part.benchmark)}", f" ({part.benchmark})"
    for kind in kinds:
        for drawing in FIGURES[kind](part):
            width = round(96 * drawing.figure.get_size_inches()[0])
            name, caption = drawing.name + suffix, drawing.caption + where
            yield Picture(name, drawing.group, caption, png(drawing.figure), width)
