"""How many seeds and hours each comparison of a sweep needs to show a difference:
`forever plan NAME --detect POINTS`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from forever.format import plural
from forever.stats.power import MOST_SEEDS, POWER, seeds_needed, spread_interval
from forever.stats.sequential import ALPHA, spread
from forever.sweeps.rounds import (
    FIRST_SEEDS,
    comparisons,
    count_on_each,
    differences_of,
    first_round,
    read_scores,
)
from forever.sweeps.sweep import MANIFEST, Sweep, read_manifest
from forever.text import Cell, PlainTable

NOTHING = "–"


def detection_table(sweep: Sweep, folder: Path, points: float, asked: str) -> PlainTable:
    """Tabulates the seeds and hours in which each comparison shows a difference of `points`.

    The level is the strictest of Holm's correction, by which reports judge each benchmark.

    Args:
        asked: how the sweep was named on the command line, for the command of a pilot.

    Raises:
        InputError: the sweep compares nothing.
    """
    table = PlainTable("variant less reference", title=f"{sweep.name}: to see {points:g} points")
    for column in ("finished", "sd", "seeds", "hours"):
        table.add_column(column, justify="right")
    # Seeds of earlier calls count, too.
    sweep = first_round(sweep)
    seeds = {*sweep.seeds}
    if (folder / MANIFEST).is_file():
        seeds |= {trial["seed"] for trial in read_manifest(folder)["trials"]}
    scores = read_scores(replace(sweep, seeds=tuple(sorted(seeds))), folder)
    judged, fewest = count_on_each(sweep), math.inf
    for comparison in comparisons(sweep):
        benchmark, variant, reference = comparison
        differences, step = differences_of(comparison, scores)
        fewest = min(fewest, len(differences))
        cells = [Cell(None, NOTHING)] * 3
        if len(differences) >= FIRST_SEEDS:
            deviation = spread(differences, step)
            spreads = (deviation, *spread_interval(deviation, len(differences)))
            # A seed takes a run of the variant and one of its reference.
            pair = scores[benchmark, variant], scores[benchmark, reference]
            seconds = math.fsum(fmean(score.seconds for score in runs.values()) for runs in pair)
            cells = _needed(spreads, seconds, points, ALPHA / judged)
        name = f"{variant} less {reference}, {benchmark}"
        table.add_row(name, len(differences), *cells)
    table.caption = (
        f"For {100 * POWER:g} % power of the paired two-sided t-test at {100 * ALPHA:g} % over "
        f"{plural(judged, 'comparison')} on a benchmark. Brackets: from the 95 % interval of the "
        "standard deviation (sd) of the differences. Hours are those of both runs of a seed, one "
        "by one."
    )
    if fewest < FIRST_SEEDS:
        command = f"forever sweep {asked} --seeds 0,1,2"
        table.caption += f" {NOTHING}: needs a pilot, `{command}` with the same options."
    return table


def _needed(spreads: Sequence[float], seconds: float, points: float, alpha: float) -> list[Cell]:
    """Gives standard deviation, seeds and hours, each with the ends of its interval."""
    seeds = [seeds_needed(points / value, alpha) for value in spreads]
    hours = [min(count, MOST_SEEDS) * seconds / 3600 for count in seeds]
    above = [">" if count > MOST_SEEDS else "" for count in seeds]
    shown = [min(count, MOST_SEEDS) for count in seeds]
    return [
        Cell([float(value) for value in spreads], _around("{:.1f}", spreads)),
        Cell(seeds, _around("{}{:,}", above, shown)),
        Cell(hours, _around("{}{:,.2f}", above, hours)),
    ]


def _around(form: str, *values: Sequence[float | str]) -> str:
    """Writes a number and the ends of its interval, each from one of all `values`."""
    middle, low, high = map(form.format, *values)
    return f"{middle} [{low}, {high}]"
