"""`forever plan`: what a run or a sweep will compute, how long it takes and what it costs, before
it starts."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.planning.costs import Plan, Speed
from forever.planning.places import (
    Measured,
    Place,
    by_model_clock,
    calibrated,
    course,
    find_place,
    group,
    tokenizer,
)
from forever.runs.directory import RunDirectory, read_lines
from forever.sweeps.files import sweep_or_none
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search

_COUNTS = ("task", "replay", "consolidation", "generator")
_MEASURED, _LEVEL = (
    "of the first task, measured here",
    "of updates that all move equally far (fewer if they shrink)",
)
# Methods whose training has a say in what they do next.
_ESTIMATED = {
    "aimmerging": "AIMMerging replays when its losses say so",
    "ssr": "SSR keeps what it manages to write",
}


@dataclass(frozen=True)
class Terms:
    """On what the estimate of time and cost rests.

    Attributes:
        calibrate: measure on this machine. tokens_per_second: or take this training throughput.
        price_per_hour: of what one run occupies: a GPU, or its share of a machine.
        only, trials, retry_failed, device, concurrent, workers, micro_batch: as for the sweep
        itself.
    """

    calibrate: bool = False
    tokens_per_second: float | None = None
    price_per_hour: float | None = None
    only: Sequence[str] = ()
    trials: int | None = None
    retry_failed: bool = False
    device: str = "auto"
    concurrent: int | None = None
    workers: int | None = None
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        if self.calibrate and self.tokens_per_second:
            raise InputError(
                "--calibrate measures the throughput that --tokens-per-second states; give one of them"
            )


@dataclass
class _Run:
    """A run of the plan. `label` is its row; `seconds` are recorded if it is done, estimated
    otherwise."""

    label: str
    config: RunConfig
    directory: RunDirectory
    result: dict[str, Any] | None
    seconds: float | None = None

    @property
    def failed(self) -> bool:
        """For good, in an earlier call."""
        ended = self.directory.end_without_result()
        return ended is not None and ended["state"] == "failed"

    def numbers(self, plan: Plan, price: float | None) -> dict[str, float]:
        """What is planned; of a finished run what it did, as far as it says."""
        hours = (self.seconds or 0.0) / 3600
        updates, train, kinds = plan.updates, plan.train_tokens, [plan.events]
        if self.result is not None:
            updates, train, kinds = (
                self.result["updates"],
                self.result["tokens"],
                self.result["events"].values(),
            )
        events = sum(found.get(kind, 0) for found in kinds for kind in ("replay", "consolidation"))
        tokens = {"train": train, "other": plan.other_tokens, "eval": plan.evaluation_tokens}
        return {
            "runs": 1,
            "done": self.result is not None,
            **{kind: updates.get(kind, 0) for kind in _COUNTS},
            "events": events,
            **{f"{name} MTok": count / 1e6 for name, count in tokens.items()},
            "hours": hours,
            "cost": hours * (price or 0.0),
        }


def plan_table(
    name: str,
    on: str,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None,
    out: Path,
    terms: Terms,
) -> Table:
    """One row a variant and order, and the sums of what is done and what is to do.

    Raises:
        InputError: unknown name, bad data, as for the run itself; a calibration for a device that
        is not here.
    """
    runs = _runs(name, on, changes, seeds, out, terms)
    failed = [run for run in runs if sweep_or_none(name) and run.failed and not terms.retry_failed]
    runs = [run for run in runs if run not in failed]
    todo = [run for run in runs if run.result is None]
    place = find_place(
        len(todo), sweep_or_none(name) is not None, terms.device, terms.concurrent, terms.workers
    )
    if not runs:
        raise InputError(f"all runs of {name} failed before; --retry-failed plans them again")
    measured = (
        calibrated([run.config for run in todo], place, terms.micro_batch)
        if terms.calibrate
        else Measured()
    )
    planner = _Planner(runs, measured)
    rows: defaultdict[str, dict[str, float]] = defaultdict(dict)
    done, left = {}, {}
    progress = Console(stderr=True)  # eight orders of fourteen methods take a minute and more
    for run in track(
        runs, "planning", console=progress, transient=True, disable=not progress.is_terminal
    ):
        plan = planner.plan(run)
        run.seconds = _seconds(run, plan, measured.speeds.get(group(run.config)), terms)
        numbers = run.numbers(plan, terms.price_per_hour)
        _add(rows[run.label], numbers)
        _add(left if run.result is None else done, numbers)
    timed = terms.calibrate or terms.tokens_per_second is not None
    table = _table(name, rows, done, left, timed, terms.price_per_hour is not None)
    wall = _wall([run.seconds or 0.0 for run in todo], place.concurrent) / 3600
    table.caption = _caption(planner, place, terms, len(todo), wall)
    if failed:
        table.caption += (
            f" {len(failed)} that failed before are left out; --retry-failed plans them, too."
        )
    if name == "search":
        table.caption += " A search ends runs that fall behind, and so needs less."
    return table


def _runs(
    name: str,
    on: str,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None,
    out: Path,
    terms: Terms,
) -> list[_Run]:
    file = sweep_or_none(name)
    if file is not None and file.is_search:
        # A search counts as so many runs of its base: its points are known only when it runs.
        search = find_search(file, load_run(on).override(changes), seeds)
        directory = RunDirectory(out / search.name / "base")
        found = [(name, search.base, directory)] * (terms.trials or search.trials)
    elif file is not None:
        sweep = file.expand(load_run(on), seeds, changes, terms.only)
        several = len(sweep.orders) > 1
        found = [
            (
                f"{t.variant} o{t.order}" if several else t.variant,
                t.config,
                RunDirectory(out / sweep.name / t.key),
            )
            for t in sweep.trials()
        ]
    else:
        configs = [
            load_run(name).override({**changes, **({"seed": seed} if seed is not None else {})})
            for seed in seeds or (None,)
        ]
        found = [(name, config, RunDirectory(out / config.key())) for config in configs]
    return [
        _Run(label, config, directory, directory.finished()) for label, config, directory in found
    ]


class _Planner:
    """Plans of many runs. Those that differ in the seed alone have the same counts, but for the
    rows that are kept."""

    def __init__(self, runs: Sequence[_Run], measured: Measured) -> None:
        self.finished = [run for run in runs if run.result is not None]
        self.methods = {run.config.method.name for run in runs}
        self.measured = measured
        # Whose paces the plans by the model clock followed, in words.
        self.paces: dict[str, None] = {}
        self._benchmarks: dict[str, Benchmark] = {}
        self._plans: dict[tuple[str, Path | None], Plan] = {}

    def plan(self, run: _Run) -> Plan:
        from forever.planning.counts import pace_of, plan

        config = run.config
        like = self._like(run) if by_model_clock(config) else None
        key = (config.model_copy(update={"seed": 0}).fingerprint(), like and like.directory.path)
        if key not in self._plans:
            pace = (
                pace_of(read_lines(like.directory.steps))
                if like
                else self.measured.paces.get(course(config))
            )
            if by_model_clock(config):
                self.paces["of finished runs" if like else _MEASURED if pace else _LEVEL] = None
            encoder = self.measured.encoders.get(tokenizer(config))
            self._plans[key] = plan(config, self._benchmark(config), encoder, pace)
        return self._plans[key]

    def _like(self, run: _Run) -> _Run | None:
        """The finished run whose pace a plan by the model clock follows: itself, or one of the same
        way of training."""
        own = course(run.config)
        alike = [
            other
            for other in self.finished
            if other.config.method.name != "mtl" and course(other.config) == own
        ]
        alike.sort(key=lambda other: (other is not run, other.label != run.label))
        return alike[0] if alike else None

    def _benchmark(self, config: RunConfig) -> Benchmark:
        key = config.data.model_dump_json()
        if key not in self._benchmarks:
            self._benchmarks[key] = load_benchmark(config.data)
        return self._benchmarks[key]


def _seconds(run: _Run, plan: Plan, speed: Speed | None, terms: Terms) -> float | None:
    if run.result is not None:
        return sum(run.result["seconds"].values())
    if terms.tokens_per_second is not None:
        return plan.seconds_at(terms.tokens_per_second)
    return speed.seconds(plan) if speed else None


def _wall(seconds: Sequence[float], concurrent: int) -> float:
    """From beginning to end if each run begins, in order, as soon as there is a place."""
    ends = [0.0] * concurrent
    for one in seconds:
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


# ---- the table


def _add(total: dict[str, float], numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        total[name] = total.get(name, 0.0) + number


def _table(
    name: str,
    rows: Mapping[str, Mapping[str, float]],
    done: Mapping[str, float],
    left: Mapping[str, float],
    timed: bool,
    priced: bool,
) -> Table:
    any_of = {column for row in rows.values() for column, number in row.items() if number}
    hidden = {column for column in ("done", "generator", "other MTok") if column not in any_of}
    columns = [c for c in next(iter(rows.values())) if c not in hidden and (c != "cost" or priced)]
    table = Table(
        title=f"plan of {name}", title_justify="left", caption_justify="left", box=box.SIMPLE
    )
    table.add_column("variant", no_wrap=True)
    for column in columns:
        table.add_column("consolid." if column == "consolidation" else column, justify="right")

    def texts(numbers: Mapping[str, float]) -> Iterator[str]:
        for column in columns:
            known = column not in ("hours", "cost") or timed
            yield _text(column, numbers.get(column, 0.0)) if known else "-"

    for label, numbers in rows.items():
        table.add_row(label, *texts(numbers))
    table.add_section()
    if done:
        table.add_row("done, skipped", *texts(done))
    table.add_row("to do", *texts(left))
    return table


def _text(column: str, number: float) -> str:
    """Counts whole, money in cents, hours and tokens with more digits if they are few: a small run
    takes minutes."""
    if column == "cost":
        return f"{number:,.2f}"
    if column == "hours" or "MTok" in column:
        return f"{number:,.{3 if number < 1 else 1 if number < 100 else 0}f}"
    return f"{number:,.0f}"


def _caption(planner: _Planner, place: Place, terms: Terms, runs: int, wall: float) -> str:
    found = [
        "Sums over the runs of a row. Exact: updates on the task, and replays that their number triggers."
    ]
    if planner.paces:
        found.append(
            f"By the model clock, replays are those at the pace {', or '.join(planner.paces)}."
        )
    if estimated := [why for name, why in _ESTIMATED.items() if name in planner.methods]:
        found.append(f"Estimates: {'; '.join(estimated)}.")
    found += [
        "Tokens by the runs' own tokenizer."
        if planner.measured.encoders
        else "Tokens at four characters each.",
        f"{runs} run{'s' * (runs != 1)} to do, {place.text}.",
    ]
    if terms.calibrate:
        found.append(
            f"Hours as measured here on {place.device}; runs side by side can slow each other down."
        )
    elif terms.tokens_per_second is not None:
        found.append(f"Hours at {terms.tokens_per_second:,.0f} training tokens a second.")
    else:
        return " ".join([*found, "Hours need --calibrate or --tokens-per-second."])
    if (terms.workers or 0) > 1:
        found.append(
            "They are of one worker: several share the batches of a run, which then ends sooner."
        )
    return " ".join([*found, f"From beginning to end: {_text('hours', wall)} hours."])
