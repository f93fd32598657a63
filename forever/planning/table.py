"""What planned runs compute, take and cost, as one table."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan, nan
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from forever.config.methods.replay import ForeverConfig
from forever.data.batching import batch_count
from forever.errors import InputError
from forever.launch.fleet import Fleet, divide
from forever.launch.local import Placement
from forever.planning.counts import AT_THE_END, ESTIMATES, UPDATES, Counts, plan
from forever.planning.speed import Kind, Speed, calibrate, kind_of
from forever.replay.times import day_seven, day_seven_of_updates
from forever.sweeps.asked import AskedRun
from forever.text import Cell, PlainTable
from forever.training.world import pick_device

# Of all rows: minutes of counting. The paper's main results have two million.
MOST_UPDATES_OF_ALL = 10_000_000
_EXACT = "Exact: updates on the task, and replays that their number triggers."
_BY_SECONDS = "Hours hold `budget.seconds`; updates and tokens of that replay are not known."
_BY_MODEL_CLOCK = "Replays by the model clock are an estimate: fewer come if updates shrink."


@dataclass(frozen=True)
class Terms:
    """What the estimate of time and cost rests on; the last six are as for the sweep itself."""

    calibrate: bool = False  # measure this machine
    tokens_per_second: float | None = None  # or take this training throughput
    price_per_hour: float | None = None  # of what one run occupies: a GPU, or its share of CPUs
    device: str = "auto"
    concurrent: int | None = None
    workers: int | None = None
    least: int | None = None  # workers with which a run goes on
    micro_batch: int | None = None
    gpus_per_run: float | None = None

    @property
    def fleet(self) -> Fleet:
        """How the runs are spread."""
        place = Placement(self.device)
        return Fleet(
            self.concurrent,
            self.workers,
            self.least,
            gpus_per_run=self.gpus_per_run,
            placement=place,
        )

    def __post_init__(self) -> None:
        if self.calibrate and self.tokens_per_second:
            raise InputError(
                "--calibrate measures the throughput that --tokens-per-second states; "
                "give one of them"
            )


def plan_table(name: str, runs: Sequence[AskedRun], terms: Terms) -> PlainTable:
    """One row a variant and order, and the sums of what is done and what is to do.

    Raises:
        InputError: as many runs at once as are asked for never fit, or the calibration would need
            a device that is not here.
    """
    todo = [(run.config, run.benchmark) for run in runs if not run.directory.finished()]
    concurrent, device, threads = find_place(len(runs), terms)
    concurrent = min(concurrent, len(todo) or 1)
    speeds: dict[Kind, Speed] = {}
    if terms.calibrate:
        speeds = calibrate(todo, device, threads, terms.micro_batch)
    counts = _count(runs, speeds)
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    sums = {"done, skipped": Counter[str](), "to do": Counter[str]()}
    longest = 0.0
    for run in runs:
        speed = speeds.get(kind_of(run.config))
        if terms.tokens_per_second:
            speed = Speed.stated(terms.tokens_per_second)
        numbers = _numbers(run, counts[run.label], speed, terms.price_per_hour)
        rows[run.label].update(numbers)
        if numbers["done"]:
            sums["done, skipped"].update(numbers)
        else:
            sums["to do"].update(numbers)
            longest = max(longest, numbers["hours"])
    table = _table(name, rows, sums)
    caption = [f"Sums over the runs of a row; {len(todo)} to do, {concurrent} at a time."]
    caption += _notes(runs, counts, terms)
    if days := _days_7(runs):
        caption.append(f"Update after which day 7 comes: {days}.")
    hours = float(sums["to do"]["hours"])
    if isnan(hours):
        caption.append("Hours need --calibrate, --tokens-per-second or a finished run.")
    else:
        wall = max(hours / concurrent, longest)
        caption.append(f"From beginning to end: {_text('hours', wall)} hours.")
    table.caption = " ".join(caption)
    return table


def _count(runs: Sequence[AskedRun], speeds: dict[Kind, Speed]) -> dict[str, Counts]:
    """Count what the runs of each row compute, and add the speed of finished runs to `speeds`."""
    counts: dict[str, Counts] = {}
    counted = 0
    stderr = Console(stderr=True)
    for run in track(
        runs, "planning", console=stderr, transient=True, disable=not stderr.is_terminal
    ):
        kind, result = kind_of(run.config), run.directory.finished()
        if run.label not in counts:  # the runs of a row differ in the seed alone
            encoder = speeds[kind].encoder if kind in speeds else None
            counts[run.label] = plan(run.config, run.benchmark, encoder)
            counted += counts[run.label].total(*UPDATES)[0]
            if counted > MOST_UPDATES_OF_ALL:
                raise InputError(
                    f"the first {len(counts)} rows have {counted:,} updates; a plan counts at most "
                    f"{MOST_UPDATES_OF_ALL:,}; plan a part of the variants (--only)"
                )
        if result:
            seconds = sum(result["seconds"].values())
            for note in result["notes"].values():
                seconds -= note.get("replay_seconds", 0.0)
            speeds.setdefault(kind, Speed.observed(counts[run.label], seconds))
    return counts


def find_place(runs: int, terms: Terms) -> tuple[int, str, int | None]:
    """How many of `runs` fit at a time into what Ray has, or would have on this machine, on which
    device, and with how many threads (None: torch's choice).

    Raises:
        InputError: as many as are asked for never fit.
    """
    if find_spec("ray") is None:
        return 1, str(pick_device(terms.device)), None
    from forever.launch.ray_cluster import capacity, cluster

    # What Ray would find here; to start it for that takes ten seconds.
    total = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    machines = 1
    if os.environ.get("RAY_ADDRESS"):
        with cluster(dashboard=False):
            total, machines = capacity()
    share = divide(total, machines, runs, terms.fleet)
    return share.concurrent, share.device, share.threads


def _numbers(
    run: AskedRun, counts: Counts, speed: Speed | None, price: float | None
) -> dict[str, Any]:
    """What is planned of a run, by column; of a finished one what it did, as far as it says."""
    updates, events, trained = counts.updates, counts.events, counts.total(*UPDATES)[1]
    replayed = counts.examples["replayed"]
    seconds = speed.seconds(counts) + counts.budget_s if speed else nan
    result = run.directory.finished()
    if result:
        updates, trained = result["updates"], result["tokens"]
        events = sum(map(Counter, result["events"].values()), Counter[str]())
        seconds = sum(result["seconds"].values())
        replayed = (result.get("examples") or counts.examples)["replayed"]
    numbers = {"runs": 1, "done": bool(result)}
    numbers |= {kind: updates.get(kind, 0) for kind in ("task", "replay", "consolidation")}
    numbers |= {
        "events": events["replay"] + events["consolidation"],
        "replayed": replayed,
        "train MTok": trained / 1e6,
        "other MTok": counts.total("probe", *AT_THE_END)[1] / 1e6,
        "eval MTok": counts.total("prompts", "answers")[1] / 1e6,
        "hours": seconds / 3600,
    }
    if price is not None:
        numbers["cost"] = seconds / 3600 * price
    return numbers


def _notes(runs: Sequence[AskedRun], counts: Mapping[str, Counts], terms: Terms) -> list[str]:
    """Sentences on what is exact, what is an estimate, and what the hours rest on."""
    notes = [_EXACT]
    if any(getattr(run.config.method, "clock", "") == "model" for run in runs):
        notes.append(_BY_MODEL_CLOCK)
    if any(count.budget_s for count in counts.values()):
        notes.append(_BY_SECONDS)
    if any(count.total(*AT_THE_END)[0] for count in counts.values()):
        notes.append("Estimate: what a method computes at the end of a task.")
    methods = {run.config.method.name for run in runs}
    notes += [f"Estimate: {why}." for name, why in ESTIMATES.items() if name in methods]
    if terms.calibrate:
        notes.append("Tokens and hours are measured here; runs side by side slow each other down.")
    else:
        notes.append("Tokens are four characters each.")
    if terms.tokens_per_second:
        notes.append(f"Hours are those of {terms.tokens_per_second:,.0f} trained tokens a second.")
    if (terms.workers or 0) > 1:
        notes.append("Hours are those of one worker; several share the batches of a run.")
    return notes


def _days_7(runs: Sequence[AskedRun]) -> str:
    """When day 7 comes in each row: exactly on a clock of updates, on the model's as in the
    finished runs of the row; without one nobody can tell."""
    rows: defaultdict[str, list[AskedRun]] = defaultdict(list)
    for run in runs:
        rows[run.label].append(run)
    told: list[str] = []
    for label, of_row in rows.items():
        method, optim = of_row[0].config.method, of_row[0].config.optim
        if isinstance(method, ForeverConfig) and method.clock == "steps":
            sizes = [len(task.train) for task in of_row[0].benchmark.tasks]
            planned = [batch_count(size, optim.epochs, optim.batch_size) for size in sizes]
            day_7 = day_seven_of_updates(method.warmup_steps, planned)
        else:
            finished = [run.directory.finished() for run in of_row]
            day_7 = day_seven(result for result in finished if result)
        if day_7:
            told.append(f"{label} {day_7}")
    return ", ".join(told)


def _table(
    name: str, rows: Mapping[str, Counter[str]], sums: Mapping[str, Counter[str]]
) -> PlainTable:
    """The rows and their sums; a column of zeros is not shown."""
    table = PlainTable(title=f"plan of {name}", collapse_padding=True)
    table.add_column("variant")
    everything = Counter[str]()
    for numbers in rows.values():
        everything.update(numbers)  # not +, which drops what is not known
    columns = [column for column, number in everything.items() if number]
    for column in columns:
        header = column.replace("consolidation", "consolid.")
        table.add_column(header, key=column, justify="right")
    for group in (rows, sums):
        for label, numbers in group.items():
            if numbers:
                table.add_row(
                    label,
                    *[Cell(numbers[column], _text(column, numbers[column])) for column in columns],
                )
        table.add_section()
    return table


def _text(column: str, number: float) -> str:
    """Hours and tokens have more digits if they are few, because a small run takes minutes."""
    if isnan(number):
        return "-"
    if column == "cost":
        return f"{number:,.2f}"
    if column == "hours" or "MTok" in column:
        digits = 3 if number < 1 else 1
        return f"{number:,.{digits}f}"
    return f"{number:,.0f}"
