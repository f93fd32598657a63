"""How many seeds show a difference, from the spread of finished runs."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy import stats

from forever.format import plural
from forever.planning.rounds import FIRST_SEEDS, comparisons, count_on_each, first_round
from forever.planning.scores import Comparison, Scores, differences_of, read_scores
from forever.planning.sequential import ALPHA, spread
from forever.sweeps.sweep import MANIFEST, Sweep, read_manifest
from forever.text import Cell, PlainTable

POWER = 0.8
NOTHING = "–"
_MOST = 1_000_000  # seeds


def power(seeds: int, effect: float, alpha: float) -> float:
    """The chance that the paired two-sided t-test at `alpha` shows a difference.

    Args:
        effect: the difference in standard deviations of the paired differences.
    """
    free, shift = seeds - 1, effect * np.sqrt(seeds)
    bound = stats.t.ppf(1 - alpha / 2, free)
    shown, opposite = stats.nct.sf(bound, free, shift), stats.nct.cdf(-bound, free, shift)
    return float(shown + np.nan_to_num(opposite))  # it is not a number where it is below 1e-15


def seeds_needed(effect: float, alpha: float) -> int:
    """The smallest number of seeds with a power of POWER, or one above _MOST; see `power`."""
    enough = 2
    while power(enough, effect, alpha) < POWER and enough <= _MOST:
        enough *= 2
    candidates = range(max(2, enough // 2), enough)
    return candidates.start + bisect_left(candidates, POWER, key=lambda n: power(n, effect, alpha))


def spread_interval(spread: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a standard deviation that `count` normal numbers have."""
    low, high = stats.chi2.ppf([0.975, 0.025], count - 1)
    return spread * np.sqrt((count - 1) / low), spread * np.sqrt((count - 1) / high)


def detection_table(sweep: Sweep, folder: Path, points: float, asked: str) -> PlainTable:
    """The seeds and hours in which each comparison shows a difference of so many points.

    The level is the strictest of Holm's correction, by which reports judge each benchmark.

    Args:
        asked: how the sweep was asked for: its name, or the path of its file.

    Raises:
        InputError: the sweep compares nothing.
    """
    table = PlainTable("variant less reference", title=f"{sweep.name}: to see {points:g} points")
    for column in ("finished", "sd", "seeds", "hours"):
        table.add_column(column, justify="right")
    sweep = first_round(sweep)
    seeds = {*sweep.seeds}
    if (folder / MANIFEST).is_file():
        seeds |= {trial["seed"] for trial in read_manifest(folder)["trials"]}
    scores = read_scores(replace(sweep, seeds=tuple(sorted(seeds))), folder)
    judged, counts = count_on_each(sweep), list[int]()
    for comparison in comparisons(sweep):
        values, step = differences_of(comparison, scores)
        counts.append(len(values))
        name = f"{comparison.variant} less {comparison.reference}, {comparison.benchmark}"
        needed = [Cell(None, NOTHING)] * 3
        if len(values) >= FIRST_SEEDS:
            deviation = spread(values, step)
            spreads = (deviation, *spread_interval(deviation, len(values)))
            needed = _needed(spreads, _seconds(comparison, scores), points, ALPHA / judged)
        table.add_row(name, len(values), *needed)
    table.caption = (
        f"For {100 * POWER:g} % power of the paired two-sided t-test at {100 * ALPHA:g} % over "
        f"{plural(judged, 'comparison')} on a benchmark. Brackets: from the 95 % interval of the "
        "standard deviation (sd) of the differences. Hours are those of both runs of a seed, one "
        "by one."
    )
    if min(counts) < FIRST_SEEDS:
        command = f"forever sweep {asked} --seeds 0,1,2"
        table.caption += f" {NOTHING}: needs a pilot, `{command}` with the same options."
    return table


def _needed(spreads: Sequence[float], seconds: float, points: float, alpha: float) -> list[Cell]:
    """The cells: standard deviation, seeds, hours, each with the ends of its interval."""
    seeds = [seeds_needed(points / value, alpha) for value in spreads]
    hours = [min(count, _MOST) * seconds / 3600 for count in seeds]
    above = [">" if count > _MOST else "" for count in seeds]
    shown = [min(count, _MOST) for count in seeds]
    return [
        Cell([float(value) for value in spreads], _around("{:.1f}", spreads)),
        Cell(seeds, _around("{}{:,}", above, shown)),
        Cell(hours, _around("{}{:,.2f}", above, hours)),
    ]


def _around(form: str, *values: Sequence[float | str]) -> str:
    """A number and the ends of its interval, each written from one of all `values`."""
    middle, low, high = map(form.format, *values)
    return f"{middle} [{low}, {high}]"


def _seconds(comparison: Comparison, scores: Scores) -> float:
    """What a seed takes: a run of the variant and one of its reference."""
    benchmark, *variants = comparison
    runs = [scores[benchmark, variant].values() for variant in variants]
    return math.fsum(fmean(score.seconds for score in of_variant) for of_variant in runs)
