"""The figures of a report, by kind, and which kinds a report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from forever.report.figures.analyses import forgetting_rate, model_day
from forever.report.figures.runs import matrices, png_of, replay_loss, timelines
from forever.report.figures.scores import backbones, doses, sensitivity, spacing, training_time
from forever.report.figures.style import Picture
from forever.report.figures.variants import accuracy, intervals, pareto, radar
from forever.report.study import Part, Study
from forever.sweeps.sweep import slug

__all__ = ["FIGURES", "Picture", "kinds_of", "pictures", "png_of"]

_KINDS = (
    intervals, accuracy, radar, pareto, sensitivity, spacing, backbones, training_time, model_day,
    forgetting_rate, doses, replay_loss, matrices, timelines,
)  # fmt: skip
# What a report shows if no sweep's file says more.
USUAL = ("intervals", "accuracy", "radar", "pareto", "replay_loss", "matrices", "timelines")
# What can be drawn of a part of a study; each draws nothing where there is nothing to show.
FIGURES: dict[str, Callable[[Part], Iterator[Picture]]] = {draw.__name__: draw for draw in _KINDS}


def kinds_of(study: Study) -> Sequence[str]:
    """The kinds of figures that a report of a study shows."""
    asked = study.file.figures if study.file else ()
    return [figure.kind for figure in asked] or USUAL


def pictures(study: Study, part: Part) -> Iterator[Picture]:
    """All figures of a part of a study, in the order of the sweep's file, which may name none."""
    if not part.measured:
        return
    names = Counter[str]()
    for kind in kinds_of(study):
        for picture in FIGURES[kind](part):
            if part.several:
                name = f"{picture.name}-{slug(part.benchmark)}"
                caption = f"{picture.caption} ({part.benchmark})"
                picture = replace(picture, name=name, caption=caption)
            names[picture.name] += 1
            if names[picture.name] > 1:  # of variants that differ in what no file's name may have
                picture = replace(picture, name=f"{picture.name}-{names[picture.name]}")
            yield picture
