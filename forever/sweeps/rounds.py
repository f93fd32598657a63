"""A sweep in rounds: seeds are added to the comparisons that are open, and to no other.

Decisions are computed from run directories alone, and a budget is charged only for runs without a
result (a failed run is one of them). So the same command, interrupted and repeated, comes to the
same decisions or to more. A file beside the runs holds the rule by which the report judges them.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from forever.config.overrides import flatten
from forever.errors import InputError
from forever.files import read_json, write_text
from forever.format import duration, plural
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.stats.sequential import ALPHA, Decision, Score, decide, paired, score_of, spread
from forever.stats.verdict import Replayed, dose_gap
from forever.storage.store import uploading
from forever.sweeps.sweep import BOUNDS, MANIFEST, Sweep, read_manifest
from forever.text import Cell, PlainTable

FILE = "rounds.json"
_NOTHING = "–"  # in a table
FIRST_SEEDS = 3  # at least: with fewer nothing can be decided, and a spread is a guess
# With seven comparisons the interval is then half a standard deviation wide on each side: who wants
# to know more has a question of weeks, and should say so with --seeds.
MOST_SEEDS = 64
_PATIENCE = 2  # rounds without a new pair, after which a comparison gets no more seeds


@dataclass(frozen=True)
class Limits:
    """When a sweep in rounds ends; None: not for this reason."""

    points: float | None = None  # a difference that is shown to be no larger is decided, too
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if self.points is not None and not 0 < self.points <= 100:
            raise InputError(f"until {self.points:g}: points are above 0, at most 100, e.g. 2")


class Comparison(NamedTuple):
    """A variant that is judged, and what it is compared with."""

    benchmark: str
    variant: str
    reference: str


Decisions = Mapping[Comparison, Decision]
Scores = Mapping[tuple[str, str], Mapping[int, Score]]  # by benchmark and variant, then by seed


def first_round(sweep: Sweep) -> Sweep:
    """Return the sweep with at least FIRST_SEEDS seeds.

    Raises:
        InputError: it compares nothing.
    """
    if not comparisons(sweep):
        rule = "no variant is judged against another one (bounds are not)"
        raise InputError(f"{sweep.name}: {rule}; without --until, --budget, --detect it can run")
    return replace(sweep, seeds=sweep.seeds + _next(sweep.seeds, FIRST_SEEDS - len(sweep.seeds)))


def comparisons(sweep: Sweep) -> list[Comparison]:
    """List the variants to run now that are judged against another, benchmark by benchmark."""
    chosen = sweep.chosen()
    found: dict[Comparison, None] = {}
    for trial in replace(sweep, seeds=sweep.seeds[:1]).trials():
        reference = sweep.references.get(trial.variant, sweep.reference)
        is_bound = trial.config.method.name in BOUNDS
        if reference in chosen and reference != trial.variant and not is_bound:
            found[Comparison(trial.config.data.benchmark, trial.variant, reference)] = None
    return list(found)


def count_judged(sweep: Sweep) -> int:
    """Count the comparisons that share the error of a sweep: those of all its variants, so that the
    error does not grow with calls that choose a few variants each."""
    benchmarks = {comparison.benchmark for comparison in comparisons(sweep)}
    return count_on_each(sweep) * len(benchmarks)


def count_on_each(sweep: Sweep) -> int:
    """Count the variants that a sweep judges on each benchmark."""
    judged = 0
    for variant, changes in sweep.variants.items():
        is_bound = changes.get("method.name", sweep.base.method.name) in BOUNDS
        is_compared = sweep.references.get(variant, sweep.reference) != variant
        judged += is_compared and not is_bound
    return judged


def rounds(
    sweep: Sweep,
    folder: Path,
    limits: Limits,
    at_once: Callable[[int], int],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Sweep]:
    """Yield what is to run next, until nothing is open, the budget is spent or seeds are used up.

    Args:
        sweep: from `first_round`; all of it is the first round, whatever time that takes.
        at_once: how many of a number of runs are trained at a time.
        say: called once a round with what is decided and what is open.

    Yields:
        Sweeps, each of which is run in `folder` before the next one is taken. Of a run that
        fails the pair is left out; a comparison that gains no pair in two rounds on end gets no
        more seeds.
    """
    began, seeds, going = clock(), sweep.seeds, comparisons(sweep)
    pairs: dict[Comparison, int] = {}
    waited: dict[Comparison, int] = {}  # rounds on end without a new pair
    # Under the lock, since another sweep in the folder has a rule of its own.
    with locked(folder, patience_s=0.0), uploading(folder, is_sweep=True):
        rule = {"alpha": ALPHA, "comparisons": count_judged(sweep), "points": limits.points}
        write_text(folder / FILE, json.dumps(rule, indent=1) + "\n")
    yield sweep
    while True:
        scores = read_scores(replace(sweep, seeds=seeds), folder)
        decisions = decide_all(sweep, scores, limits.points)
        texts = [f"{_name(of, decisions)} {decisions[of].words(limits.points)}" for of in decisions]
        say(f"{plural(len(seeds), 'seed')}: {'; '.join(texts)}")
        # Whatever is decided, or gains no pair any more, gets no more seeds.
        still_open = [comparison for comparison in going if decisions[comparison].verdict == "tie"]
        for comparison in still_open:
            gained = decisions[comparison].seeds > pairs.get(comparison, 0)
            waited[comparison] = 0 if gained else waited.get(comparison, 0) + 1
            pairs[comparison] = decisions[comparison].seeds
        going = [comparison for comparison in still_open if waited[comparison] < _PATIENCE]
        if dropped := [comparison for comparison in still_open if comparison not in going]:
            names = ", ".join(_name(comparison, decisions) for comparison in dropped)
            say(f"{names}: no new pair in {_PATIENCE} rounds, no more seeds; see --retry-failed")
        # A round grows the seeds by a quarter, if it fits into the budget.
        more = _next(seeds, min(max(1, len(seeds) // 4), MOST_SEEDS - len(seeds)))
        if not going or not more:
            return
        parts = list(_parts(replace(sweep, seeds=more), going))
        left_s = math.inf if limits.budget_s is None else limits.budget_s - (clock() - began)
        expected_s = _expected_s(parts, folder, scores, at_once)
        if expected_s > left_s:
            end = f"{duration(max(left_s, 0.0))} of the budget are left"
            say(f"the next round would take {duration(expected_s)}, {end}; the rest stays open")
            return
        yield from parts
        seeds += more


def _next(seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the `count` whole numbers after the largest seed."""
    return tuple(range(max(seeds) + 1, max(seeds) + 1 + count))


def read_scores(sweep: Sweep, folder: Path) -> Scores:
    """Reads the finished runs. A seed counts where the runs on all orders are finished."""
    results: dict[tuple[str, str, int], list[dict[str, Any] | None]] = {}
    for trial in sweep.trials():
        key = trial.config.data.benchmark, trial.variant, trial.seed
        results.setdefault(key, []).append(RunDirectory(folder / trial.key).finished())
    scores: dict[tuple[str, str], dict[int, Score]] = {}
    for (benchmark, variant, seed), runs in results.items():
        finished = [run for run in runs if run is not None]
        if len(finished) == len(runs):
            scores.setdefault((benchmark, variant), {})[seed] = score_of(finished)
    return scores


def differences_of(comparison: Comparison, scores: Scores) -> tuple[list[float], float]:
    """Pairs the seeds of a comparison; the pair of a run that failed is left out."""
    benchmark, variant, reference = comparison
    return paired(scores.get((benchmark, variant), {}), scores.get((benchmark, reference), {}))


def decide_all(sweep: Sweep, scores: Scores, points: float | None) -> Decisions:
    """Decides each comparison of a sweep; see `decide`. Seeds cannot decide what is not
    comparable."""
    alpha = ALPHA / count_judged(sweep)
    settings: dict[tuple[str, str], Mapping[str, Any]] = {}
    for trial in replace(sweep, seeds=sweep.seeds[:1]).trials():
        values = flatten(trial.config.model_dump(mode="json"))
        settings[trial.config.data.benchmark, trial.variant] = values
    decisions: dict[Comparison, Decision] = {}
    for comparison in comparisons(sweep):
        differences, step = differences_of(comparison, scores)
        decision = decide(differences, alpha, points, step)
        # The doses are compared over the seeds that both have.
        variant, reference = comparison[:2], (comparison.benchmark, comparison.reference)
        runs, base = scores.get(variant, {}), scores.get(reference, {})
        doses: list[Replayed] = []
        others: list[Replayed] = []
        for seed in runs.keys() & base.keys():
            doses += runs[seed].replayed
            others += base[seed].replayed
        if not dose_gap(settings[variant], settings[reference], doses, others).comparable:
            decision = replace(decision, verdict="not comparable")
        decisions[comparison] = decision
    return decisions


def _name(comparison: Comparison, among: Collection[Comparison]) -> str:
    several = len({other.benchmark for other in among}) > 1
    place = f" on {comparison.benchmark}" if several else ""
    return f"{comparison.variant}{place}"


def _parts(sweep: Sweep, going: Sequence[Comparison]) -> Iterator[Sweep]:
    """Yield the runs of open comparisons and their references, a sweep a benchmark."""
    places = {trial.order: trial.config.data.benchmark for trial in sweep.trials()}
    for benchmark in dict.fromkeys(comparison.benchmark for comparison in going):
        names = [comparison.variant for comparison in going if comparison.benchmark == benchmark]
        orders = {name: place for name, place in sweep.orders.items() if places[name] == benchmark}
        yield replace(sweep.only(names), orders=orders)


def _expected_s(
    parts: Sequence[Sweep], folder: Path, scores: Scores, at_once: Callable[[int], int]
) -> float:
    """Estimate the time of runs that are not finished by the mean time of those that are."""
    expected_s = 0.0
    for part in parts:
        trials = part.trials()
        seconds: dict[str, float] = {}  # of a seed of each variant, all orders together
        for (benchmark, variant), runs in scores.items():
            if benchmark == trials[0].config.data.benchmark:
                seconds[variant] = fmean(score.seconds for score in runs.values())
        longest = max(seconds.values(), default=0.0)  # for one of which nothing is finished
        todo = [trial for trial in trials if RunDirectory(folder / trial.key).finished() is None]
        if todo:
            total_s = math.fsum(seconds.get(trial.variant, longest) for trial in todo)
            turns = math.ceil(len(todo) / at_once(len(todo)))
            expected_s += turns * total_s / len(todo) / max(1, len(part.orders))
    return expected_s


# ---- how many seeds a difference needs


def detection_table(sweep: Sweep, folder: Path, points: float, name: str) -> PlainTable:
    """Tabulates the seeds and hours in which each comparison shows a difference of `points`.

    The level is the strictest of Holm's correction, by which reports judge each benchmark.

    Args:
        name: how the sweep was named on the command line, for the command of a pilot.

    Raises:
        InputError: the sweep compares nothing.
        ModuleNotFoundError: SciPy is not installed.
    """
    from forever.stats import power

    table = PlainTable("variant less reference", title=f"{sweep.name}: to see {points:g} points")
    for column in ("finished", "sd", "seeds", "hours"):
        table.add_column(column, justify="right")
    # Seeds of earlier calls count, too.
    sweep = first_round(sweep)
    known = {*sweep.seeds}
    if (folder / MANIFEST).is_file():
        known |= {trial["seed"] for trial in read_manifest(folder)["trials"]}
    scores = read_scores(replace(sweep, seeds=tuple(sorted(known))), folder)
    judged, fewest = count_on_each(sweep), math.inf
    for comparison in comparisons(sweep):
        benchmark, variant, reference = comparison
        differences, step = differences_of(comparison, scores)
        fewest = min(fewest, len(differences))
        cells = [Cell(None, _NOTHING)] * 3
        if len(differences) >= FIRST_SEEDS:
            deviation = spread(differences, step)
            spreads = (deviation, *power.spread_interval(deviation, len(differences)))
            # A seed takes a run of the variant and one of its reference.
            pair = scores[benchmark, variant], scores[benchmark, reference]
            seconds = math.fsum(fmean(score.seconds for score in runs.values()) for runs in pair)
            seeds = [power.seeds_needed(points / value, ALPHA / judged) for value in spreads]
            most = [min(count, power.MOST_SEEDS) for count in seeds]
            above = [">" if count > power.MOST_SEEDS else "" for count in seeds]
            hours = [count * seconds / 3600 for count in most]
            # Each number has the ends of its interval in brackets.
            texts = ["{:.1f} [{:.1f}, {:.1f}]".format(*spreads)]
            for form, values in (("{}{:,}", most), ("{}{:,.2f}", hours)):
                texts.append("{} [{}, {}]".format(*map(form.format, above, values)))
            numbers = [float(value) for value in spreads], seeds, hours
            cells = [*map(Cell, numbers, texts)]
        label = f"{variant} less {reference}, {benchmark}"
        table.add_row(label, len(differences), *cells)
    table.caption = (
        f"For {100 * power.POWER:g} % power of the paired two-sided t-test at {100 * ALPHA:g} % "
        f"over {plural(judged, 'comparison')} on a benchmark. Brackets: from the 95 % interval of "
        "the standard deviation (sd) of the differences. Hours are those of both runs of a seed, "
        "one by one."
    )
    if fewest < FIRST_SEEDS:
        command = f"forever sweep {name} --seeds 0,1,2"
        table.caption += f" {_NOTHING}: needs a pilot, `{command}` with the same options."
    return table


def read_stopping(folder: Path) -> dict[str, Any] | None:
    """Return the level for all comparisons together ("alpha"), their number ("comparisons") and the
    difference that counts as none ("points"); None for a sweep that was not run in rounds."""
    path = folder / FILE
    if not path.is_file():
        return None
    return read_json(path)
