"""The figures of a report, by the names that a sweep's file has for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from forever.report.figures import runs, variants
from forever.report.figures.runs import png_of
from forever.report.figures.style import Picture
from forever.report.study import Part, Study
from forever.sweeps.sweep import slug

__all__ = ["FIGURES", "OF_RUNS", "Picture", "pictures", "png_of"]

FIGURES: dict[str, Callable[[Part], Iterator[Picture]]] = {
    "intervals": variants.intervals,
    "accuracy": variants.accuracy,
    "radar": variants.retention,
    "pareto": variants.pareto,
    "sensitivity": variants.over_keys,
    "spacing": variants.over_spacing,
    "backbones": variants.over_backbones,
    "training_time": variants.training_time,
    "model_day": variants.model_day,
    "forgetting_rate": variants.forgetting_rate,
    "doses": variants.over_doses,
    "replay_loss": runs.replay_loss,
    "matrices": runs.matrices,
    "timelines": runs.timelines,
}
# Pictures of single runs, which take most of the time: only by `forever report --runs`.
OF_RUNS = ("matrices", "timelines")
# What a report shows if the sweep's file does not say.
USUAL = ("intervals", "accuracy", "radar", "pareto", "replay_loss", *OF_RUNS)


def pictures(study: Study, part: Part, of_runs: bool = False) -> Iterator[Picture]:
    """Draws the figures of a part of a study, in the order of the sweep's file.

    Args:
        of_runs: whether single runs are drawn, too.
    """
    if not part.measured:
        return
    names = Counter[str]()
    kinds = [figure.kind for figure in study.file.figures] if study.file else []
    for kind in kinds or USUAL:
        if kind in OF_RUNS and not of_runs:
            continue
        for picture in FIGURES[kind](part):
            if part.several:
                name = f"{picture.name}-{slug(part.benchmark)}"
                caption = f"{picture.caption} ({part.benchmark})"
                picture = replace(picture, name=name, caption=caption)
            # Names of variants may differ in characters that a file's name cannot have.
            names[picture.name] += 1
            if names[picture.name] > 1:
                picture = replace(picture, name=f"{picture.name}-{names[picture.name]}")
            yield picture
