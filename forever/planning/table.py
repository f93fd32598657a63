"""What planned runs compute, take and cost, as one table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan, nan

import torch
from rich import box
from rich.table import Table

from forever.errors import InputError
from forever.planning.counts import AT_THE_END, ESTIMATES, UPDATES, Counts, pace_of, plan
from forever.planning.speed import Kind, Speed, calibrate, kind_of
from forever.runs.directory import read_lines
from forever.sweeps.asked import AskedRun
from forever.training.world import pick_device

_EXACT = "Exact: updates on the task, and replays that their number triggers."
_BY_MODEL_CLOCK = (
    "Replays by the model clock are an estimate: for updates of equal length, or at the pace of a "
    "finished run of the same row."
)


@dataclass(frozen=True)
class Terms:
    """What the estimate of time and cost rests on.

    Attributes:
        calibrate: whether to measure this machine.
        tokens_per_second: the training throughput to take instead.
        price_per_hour: the price of what one run occupies: a GPU, or its share of a machine.
        device, concurrent, workers, micro_batch: as for the sweep itself.
    """

    calibrate: bool = False
    tokens_per_second: float | None = None
    price_per_hour: float | None = None
    device: str = "auto"
    concurrent: int | None = None
    workers: int | None = None
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        if self.calibrate and self.tokens_per_second:
            raise InputError(
                "--calibrate measures the throughput that --tokens-per-second states; "
                "give one of them"
            )


Row = tuple[str, dict[str, float]]  # a label, and numbers by column: NaN is not known


def plan_table(name: str, runs: Sequence[AskedRun], terms: Terms) -> Table:
    """One row a variant and order, and the sums of what is done and what is to do.

    Raises:
        InputError: as many runs at once as are asked for never fit, or the calibration would need
            a device that is not here.
    """
    todo = [(run.config, run.benchmark) for run in runs if not run.directory.finished()]
    concurrent, device, threads = find_place(len(todo), terms)
    speeds: dict[Kind, Speed] = {}
    if terms.calibrate:
        speeds = calibrate(todo, device, threads, terms.micro_batch)
    counts = _count(runs, speeds)
    rows: list[Row] = []
    for run in runs:
        speed = speeds.get(kind_of(run.config))
        if terms.tokens_per_second:
            speed = Speed.stated(terms.tokens_per_second)
        price = terms.price_per_hour or 0.0
        rows.append((run.label, _numbers(run, counts[run.label], speed, price)))
    table = _table(name, rows, hidden="cost" if terms.price_per_hour is None else "")
    hours = [numbers["hours"] for _, numbers in rows if not numbers["done"]]
    caption = [f"Sums over the runs of a row; {len(todo)} to do, {concurrent} at a time."]
    caption += _notes(runs, counts, terms)
    if isnan(sum(hours)):
        caption.append("Hours need --calibrate, --tokens-per-second or a finished run.")
    else:
        wall = max(sum(hours) / concurrent, max(hours, default=0.0))
        caption.append(f"From beginning to end: {_text('hours', wall)} hours.")
    table.caption = " ".join(caption)
    return table


def _count(runs: Sequence[AskedRun], speeds: dict[Kind, Speed]) -> dict[str, Counts]:
    """Count what the runs of each row compute, and add the speed of finished runs to `speeds`."""
    counts: dict[str, Counts] = {}
    # Finished runs go first: they say at what pace and how fast the others will go.
    for run in sorted(runs, key=lambda run: not run.directory.finished()):
        kind, result = kind_of(run.config), run.directory.finished()
        if run.label not in counts:  # the runs of a row differ in the seed alone
            pace = pace_of(read_lines(run.directory.steps)) if result else None
            encoder = speeds[kind].encoder if kind in speeds else None
            counts[run.label] = plan(run.config, run.benchmark, encoder, pace)
        if result:
            seconds = sum(result["seconds"].values())
            speeds.setdefault(kind, Speed.observed(counts[run.label], seconds))
    return counts


def find_place(runs: int, terms: Terms) -> tuple[int, str, int | None]:
    """Find how many of `runs` fit at a time, on which device, and with how many threads.

    They share what Ray has, or would have on this machine; no number of threads is torch's choice.

    Raises:
        InputError: as many as are asked for never fit.
    """
    if find_spec("ray") is None:
        return 1, str(pick_device(terms.device)), None
    from forever.launch.ray_cluster import capacity, cluster, divide

    # What Ray would find here; to start it for that takes ten seconds.
    total = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    machines = 1
    if os.environ.get("RAY_ADDRESS"):
        with cluster(dashboard=False):
            total, machines = capacity()
    share = divide(total, machines, runs, terms.concurrent, terms.workers, terms.device)
    return share.concurrent, share.device, share.threads


def _numbers(run: AskedRun, counts: Counts, speed: Speed | None, price: float) -> dict[str, float]:
    """What is planned of a run; of a finished one what it did, as far as it says."""
    updates, trained = counts.updates, counts.total(*UPDATES).tokens
    events: list[Mapping[str, int]] = [counts.events]
    seconds = speed.seconds(counts) if speed else nan
    result = run.directory.finished()
    if result:
        updates, events = result["updates"], [*result["events"].values()]
        trained, seconds = result["tokens"], sum(result["seconds"].values())
    return {
        "runs": 1,
        "done": bool(result),
        **{kind: updates.get(kind, 0) for kind in ("task", "replay", "consolidation")},
        "events": sum(count.get("replay", 0) + count.get("consolidation", 0) for count in events),
        "train MTok": trained / 1e6,
        "other MTok": counts.total("probe", *AT_THE_END).tokens / 1e6,
        "eval MTok": counts.total("prompts", "answers").tokens / 1e6,
        "hours": seconds / 3600,
        "cost": seconds / 3600 * price,
    }


def _notes(runs: Sequence[AskedRun], counts: Mapping[str, Counts], terms: Terms) -> list[str]:
    """Sentences on what is exact, what is an estimate, and what the hours rest on."""
    notes = [_EXACT]
    if any(getattr(run.config.method, "clock", "") == "model" for run in runs):
        notes.append(_BY_MODEL_CLOCK)
    if any(count.total(*AT_THE_END).calls for count in counts.values()):
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


def _table(name: str, rows: Sequence[Row], hidden: str) -> Table:
    table = Table(
        title=f"plan of {name}", title_justify="left", caption_justify="left", box=box.SIMPLE
    )
    table.add_column("variant", no_wrap=True)
    columns = [column for column in rows[0][1] if column != hidden]
    for column in ("done", "other MTok"):
        if not any(numbers[column] for _, numbers in rows):
            columns.remove(column)
    for column in columns:
        table.add_column(column.replace("consolidation", "consolid."), justify="right")

    def add(label: str, group: Sequence[Row]) -> None:
        cells: list[str] = []
        for column in columns:
            cells.append(_text(column, sum(numbers[column] for _, numbers in group)))
        table.add_row(label, *cells)

    labels = [label for label, _ in rows]
    for label in dict.fromkeys(labels):
        add(label, [row for row in rows if row[0] == label])
    table.add_section()
    done = [row for row in rows if row[1]["done"]]
    if done:
        add("done, skipped", done)
    add("to do", [row for row in rows if not row[1]["done"]])
    return table


def _text(column: str, number: float) -> str:
    """Format a number for a column.

    Counts are whole and money has cents. Hours and tokens have more digits if they are few, because
    a small run takes minutes.
    """
    if isnan(number):
        return "-"
    if column == "cost":
        return f"{number:,.2f}"
    if column == "hours" or "MTok" in column:
        digits = 3 if number < 1 else 1
        return f"{number:,.{digits}f}"
    return f"{number:,.0f}"
