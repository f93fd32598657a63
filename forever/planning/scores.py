"""The finished runs of a sweep as scores, and what a variant's are less its reference's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from forever.planning.verdicts import Footing, Replayed, footing, replayed
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep


class Comparison(NamedTuple):
    """A variant that is judged, and what it is compared with."""

    benchmark: str
    variant: str
    reference: str


class Score(NamedTuple):
    """A variant with one seed: OP, the mean over orders, and seconds, their sum."""

    op: float
    seconds: float
    step: float  # what a single answer can be worth in OP
    replayed: tuple[Replayed, ...] = ()  # one an order


Scores = Mapping[tuple[str, str], Mapping[int, Score]]  # by benchmark and variant, then by seed


def read_scores(sweep: Sweep, folder: Path) -> Scores:
    """The finished runs of a sweep. A seed counts where the runs on all orders are finished."""
    results: dict[tuple[str, str, int], list[dict[str, Any] | None]] = {}
    for trial in sweep.trials():
        place = trial.config.data.benchmark, trial.variant, trial.seed
        results.setdefault(place, []).append(RunDirectory(folder / trial.key).finished())
    scores: dict[tuple[str, str], dict[int, Score]] = {}
    for (benchmark, variant, seed), runs in results.items():
        finished = [run for run in runs if run is not None]
        if len(finished) == len(runs):
            scores.setdefault((benchmark, variant), {})[seed] = score_of(finished)
    return scores


def score_of(results: Sequence[Mapping[str, Any]]) -> Score:
    """The results of a variant with one seed, one an order, as one score.

    An answer counts most in the smallest task, as OP is the mean over tasks.
    """
    steps: list[float] = []
    for result in results:
        smallest = min(task["test"] for task in result["rows"].values())
        steps.append(100 / (len(result["rows"]) * smallest * len(results)))
    op = fmean(result["op"] for result in results)
    seconds = math.fsum(sum(result["seconds"].values()) for result in results)
    return Score(op, seconds, max(steps), tuple(map(replayed, results)))


def differences(runs: Mapping[int, Score], base: Mapping[int, Score]) -> tuple[list[float], float]:
    """Variant less reference, in points, for each seed that both have, in the order of seeds; and
    what a single answer is worth in them."""
    seeds = sorted(runs.keys() & base.keys())
    values = [runs[seed].op - base[seed].op for seed in seeds]
    return values, max((base[seed].step for seed in seeds), default=0.0)


def differences_of(comparison: Comparison, scores: Scores) -> tuple[list[float], float]:
    """`differences` of a comparison; the pair of a run that failed is left out."""
    benchmark, variant, reference = comparison
    return differences(scores.get((benchmark, variant), {}), scores.get((benchmark, reference), {}))


def footing_of(
    comparison: Comparison, scores: Scores, settings: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Footing:
    """On what a variant and its reference are compared, over the seeds that both have; settings are
    by benchmark and variant."""
    benchmark, variant, reference = comparison
    runs, base = scores.get((benchmark, variant), {}), scores.get((benchmark, reference), {})
    own: list[Replayed] = []
    theirs: list[Replayed] = []
    for seed in runs.keys() & base.keys():
        own += runs[seed].replayed
        theirs += base[seed].replayed
    return footing(settings[benchmark, variant], settings[benchmark, reference], own, theirs)
