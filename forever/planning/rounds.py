"""A sweep in rounds: seeds are added to the comparisons that are open, and to no other.

Decisions are computed from run directories alone, so the same command, interrupted and repeated,
comes to the same ones. They are kept beside the runs for the report.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from forever.errors import InputError
from forever.format import duration, plural
from forever.planning.sequential import ALPHA, Decision, decide
from forever.runs.directory import RunDirectory, read_json, write_text
from forever.sweeps.sweep import BOUNDS, Sweep

FILE = "rounds.json"
FIRST_SEEDS = 3  # at least: with fewer nothing can be decided, and a spread is a guess
# With seven comparisons the interval is then half a standard deviation wide on each side: who wants
# to know more has a question of weeks, and should say so with --seeds.
MOST_SEEDS = 64


@dataclass(frozen=True)
class Limits:
    """When a sweep in rounds ends; None: not for this reason."""

    points: float | None = None  # a difference that is shown to be no larger is decided, too
    budget_s: float | None = None


class Comparison(NamedTuple):
    """A variant that is judged, and what it is compared with."""

    benchmark: str
    variant: str
    reference: str


class Score(NamedTuple):
    """A variant with one seed: OP, the mean over orders, and seconds, their sum."""

    op: float
    seconds: float
    step: float  # what a single answer is worth in OP


Scores = Mapping[tuple[str, str], Mapping[int, Score]]  # by benchmark and variant, then by seed
Decisions = Mapping[Comparison, Decision]


def first_round(sweep: Sweep) -> Sweep:
    """The sweep with at least FIRST_SEEDS seeds.

    Raises:
        InputError: it compares nothing.
    """
    if not comparisons(sweep):
        rule = "no variant is judged against another one (bounds are not)"
        raise InputError(f"{sweep.name}: {rule}; without --until, --budget, --detect it can run")
    return replace(sweep, seeds=sweep.seeds + _next(sweep.seeds, FIRST_SEEDS - len(sweep.seeds)))


def comparisons(sweep: Sweep) -> list[Comparison]:
    """The variants to run now that are judged against another of them, benchmark by benchmark."""
    chosen = sweep.chosen()
    found: dict[Comparison, None] = {}
    for trial in replace(sweep, seeds=sweep.seeds[:1]).trials():
        reference = sweep.references.get(trial.variant, sweep.reference)
        is_bound = trial.config.method.name in BOUNDS
        if reference in chosen and reference != trial.variant and not is_bound:
            found[Comparison(trial.config.data.benchmark, trial.variant, reference)] = None
    return list(found)


def count_judged(sweep: Sweep) -> int:
    """How many comparisons share the error of a sweep: those of all its variants, so that it does
    not grow with the calls that choose a few each."""
    benchmarks = {comparison.benchmark for comparison in comparisons(sweep)}
    judged = 0
    for variant, changes in sweep.variants.items():
        is_bound = changes.get("method.name", sweep.base.method.name) in BOUNDS
        is_compared = sweep.references.get(variant, sweep.reference) != variant
        judged += is_compared and not is_bound
    return judged * len(benchmarks)


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
            op = fmean(run["op"] for run in finished)
            seconds = math.fsum(sum(run["seconds"].values()) for run in finished)
            tests = sum(task["test"] for run in finished for task in run["rows"].values())
            score = Score(op, seconds, 100 / tests)
            scores.setdefault((benchmark, variant), {})[seed] = score
    return scores


def differences(scores: Scores, comparison: Comparison) -> list[float]:
    """Variant less reference, in points, for each seed that both have; one that failed is left
    out."""
    benchmark, variant, reference = comparison
    base = scores.get((benchmark, reference), {})
    runs = scores.get((benchmark, variant), {})
    return [score.op - base[seed].op for seed, score in runs.items() if seed in base]


def step_of(scores: Scores, comparison: Comparison) -> float:
    """What a single answer is worth in the differences, in points."""
    base = scores.get((comparison.benchmark, comparison.reference), {})
    return max((score.step for score in base.values()), default=0.0)


def rounds(
    sweep: Sweep,
    folder: Path,
    limits: Limits,
    at_once: Callable[[int], int],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Sweep]:
    """Give what is to run next, until nothing is open, the budget is spent or seeds are used up.

    Args:
        sweep: from `first_round`; all of it is the first round, whatever time that takes.
        at_once: how many of a number of runs are trained at a time.
        say: told once a round what is decided and what is open.

    Yields:
        Sweeps, each of which is run in `folder` before the next one is asked for. Of a run that
        fails the pair is left out; a comparison that gains no pair in a round gets no more seeds.
    """
    began, seeds = clock(), sweep.seeds
    going, pairs = comparisons(sweep), dict.fromkeys(comparisons(sweep), 0)
    yield sweep
    while True:
        scores = read_scores(replace(sweep, seeds=seeds), folder)
        decisions = _decide(sweep, scores, limits.points)
        write_decisions(folder, sweep, decisions, limits.points)
        say(f"{plural(len(seeds), 'seed')}: {_summary(decisions, limits.points)}")
        going = [name for name in going if _goes_on(decisions[name], pairs[name])]
        pairs = {name: decision.seeds for name, decision in decisions.items()}
        more = _next(seeds, min(max(1, len(seeds) // 4), MOST_SEEDS - len(seeds)))
        if not going or not more:
            return
        parts = list(_parts(replace(sweep, seeds=more), going))
        left_s = math.inf if limits.budget_s is None else limits.budget_s - (clock() - began)
        expected_s = _expected_s(parts, scores, at_once)
        if expected_s > left_s:
            end = f"{duration(max(left_s, 0.0))} of the budget are left"
            say(f"the next round would take {duration(expected_s)}, {end}; the rest stays open")
            return
        yield from parts
        seeds += more


def _next(seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """The `count` whole numbers after the largest seed."""
    return tuple(range(max(seeds) + 1, max(seeds) + 1 + count))


def _goes_on(decision: Decision, pairs: int) -> bool:
    return decision.verdict == "open" and decision.seeds > pairs


def _decide(sweep: Sweep, scores: Scores, points: float | None) -> Decisions:
    alpha = ALPHA / count_judged(sweep)
    decisions: dict[Comparison, Decision] = {}
    for comparison in comparisons(sweep):
        values, step = differences(scores, comparison), step_of(scores, comparison)
        decisions[comparison] = decide(values, alpha, points, step)
    return decisions


def _summary(decisions: Decisions, points: float | None) -> str:
    several = len({comparison.benchmark for comparison in decisions}) > 1
    texts: list[str] = []
    for comparison, decision in decisions.items():
        place = f" on {comparison.benchmark}" if several else ""
        texts.append(f"{comparison.variant}{place} {decision.words(points)}")
    return "; ".join(texts)


def _parts(sweep: Sweep, going: Sequence[Comparison]) -> Iterator[Sweep]:
    """The runs of open comparisons and their references, a sweep a benchmark."""
    places = {trial.order: trial.config.data.benchmark for trial in sweep.trials()}
    for benchmark in dict.fromkeys(comparison.benchmark for comparison in going):
        names = [comparison.variant for comparison in going if comparison.benchmark == benchmark]
        orders = {name: place for name, place in sweep.orders.items() if places[name] == benchmark}
        yield replace(sweep.only(names), orders=orders)


def _expected_s(parts: Sequence[Sweep], scores: Scores, at_once: Callable[[int], int]) -> float:
    """The time of the runs to come: those before took so long on average."""
    expected_s = 0.0
    for part in parts:
        trials = part.trials()
        benchmark = trials[0].config.data.benchmark
        total_s = 0.0
        for variant in part.chosen():
            spent = [score.seconds for score in scores[benchmark, variant].values()]
            total_s += len(part.seeds) * fmean(spent)
        turns = math.ceil(len(trials) / at_once(len(trials)))
        expected_s += turns * total_s / len(trials)
    return expected_s


# ---- what the report reads


def write_decisions(folder: Path, sweep: Sweep, decisions: Decisions, points: float | None) -> None:
    """Keep decisions beside the runs; those of other variants, from earlier calls, stay."""
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (read_decisions(folder) or {"decisions": ()})["decisions"]:
        kept[row["benchmark"], row["variant"]] = row
    for comparison, decision in decisions.items():
        row = {**comparison._asdict(), "points": points, **asdict(decision)}
        kept[comparison.benchmark, comparison.variant] = row
    content = {"alpha": ALPHA, "comparisons": count_judged(sweep), "decisions": [*kept.values()]}
    write_text(folder / FILE, json.dumps(content, indent=1) + "\n")


def read_decisions(folder: Path) -> dict[str, Any] | None:
    """What `write_decisions` wrote; None for a sweep that was not run in rounds."""
    path = folder / FILE
    return read_json(path) if path.is_file() else None
