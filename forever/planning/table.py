"""`forever plan`: which runs are asked for, and a table of what they compute, take and cost.

Nothing here loads torch, so that a plan that is refused is refused at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError, unknown
from forever.runs.directory import RunDirectory
from forever.sweeps.builtin.search import TRIALS, search
from forever.sweeps.named_runs import load_run
from forever.sweeps.registry import SWEEPS, asked_sweep

COLUMNS = (
    "runs", "done", "task", "replay", "consolidation", "events",
    "train MTok", "other MTok", "eval MTok", "hours", "cost",
)  # fmt: skip


@dataclass(frozen=True)
class Terms:
    """What the estimate of time and cost rests on.

    Attributes:
        calibrate: measure this machine. tokens_per_second: or take this training throughput.
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
                "--calibrate measures the throughput that --tokens-per-second states; give one of them"
            )


@dataclass
class PlannedRun:
    """A run of the plan. `label` names its row; `result` is that of a finished run.

    `numbers` by column, and `seconds` if they are known, are filled in by the estimate.
    """

    label: str
    config: RunConfig
    benchmark: Benchmark
    directory: RunDirectory
    result: dict[str, Any] | None
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None


def asked_runs(
    name: str,
    base: str,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None,
    out: Path,
    only: Sequence[str] = (),
    trials: int | None = None,
) -> list[PlannedRun]:
    """The runs that `forever run NAME` or `forever sweep NAME` would do, finished ones included.

    A search is planned as that many runs of its base: its points are known only when it runs.

    Raises:
        InputError: unknown name, or bad data, as for the run itself.
    """
    if name == "search":
        config = search(load_run(base).override(changes), seeds).base
        folder = RunDirectory(out / name / "base")
        asked = [(name, config, folder)] * (trials or TRIALS)
    elif name in SWEEPS:
        sweep = asked_sweep(name, load_run(base), changes, seeds, only)
        asked = []
        for trial in sweep.trials():
            label = f"{trial.variant} o{trial.order}" if len(sweep.orders) > 1 else trial.variant
            asked.append((label, trial.config, RunDirectory(out / sweep.name / trial.key)))
    elif "/" not in name and not name.endswith((".yaml", ".yml")):
        raise unknown("sweep", name, [*SWEEPS, "search"])
    else:
        run = load_run(name).override(changes)
        configs = [run.override({"seed": seed}) for seed in seeds] if seeds else [run]
        asked = [(name, config, RunDirectory(out / config.key())) for config in configs]
    benchmarks: dict[str, Benchmark] = {}
    runs: list[PlannedRun] = []
    for label, config, directory in asked:
        data = config.data.model_dump_json()
        benchmarks[data] = benchmarks.get(data) or load_benchmark(config.data)
        runs.append(PlannedRun(label, config, benchmarks[data], directory, directory.finished()))
    return runs


def without_failed(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that did not fail for good in an earlier call, which a sweep leaves out."""
    ends = [run.directory.end_without_result() or {} for run in runs]
    kept = [run for run, end in zip(runs, ends, strict=True) if end.get("state") != "failed"]
    if not kept:
        raise InputError("all these runs failed before; --retry-failed plans them again")
    return kept


def plan_table(
    name: str, runs: Sequence[PlannedRun], notes: Sequence[str], terms: Terms, concurrent: int
) -> Table:
    """One row a variant and order, and the sums of what is done and what is to do.

    Args:
        notes: sentences for the caption: what is estimated, and how. concurrent: runs at once.
    """
    done = [run for run in runs if run.result is not None]
    todo = [run for run in runs if run.result is None]
    unused = {column for column in COLUMNS if not any(run.numbers[column] for run in runs)}
    hidden = unused & {"done", "other MTok"} | ({"cost"} if terms.price_per_hour is None else set())
    columns = [column for column in COLUMNS if column not in hidden]
    table = Table(
        title=f"plan of {name}", title_justify="left", caption_justify="left", box=box.SIMPLE
    )
    table.add_column("variant", no_wrap=True)
    for column in columns:
        table.add_column(column.replace("consolidation", "consolid."), justify="right")
    for label in dict.fromkeys(run.label for run in runs):
        _add_row(table, label, columns, [run for run in runs if run.label == label])
    table.add_section()
    if done:
        _add_row(table, "done, skipped", columns, done)
    _add_row(table, "to do", columns, todo)
    lines = [f"Sums over the runs of a row; {len(todo)} to do, {concurrent} at a time.", *notes]
    if not any(run.seconds is None for run in todo):
        seconds = [run.seconds or 0.0 for run in todo]
        wall = max(sum(seconds) / concurrent, max(seconds, default=0.0))
        lines.append(f"From beginning to end: {_text('hours', wall / 3600)} hours.")
    table.caption = " ".join(lines)
    return table


def _add_row(table: Table, label: str, columns: Sequence[str], runs: Sequence[PlannedRun]) -> None:
    untimed = any(run.seconds is None for run in runs)
    texts: list[str] = []
    for column in columns:
        unknown_time = untimed and column in ("hours", "cost")
        total = sum(run.numbers[column] for run in runs)
        texts.append("-" if unknown_time else _text(column, total))
    table.add_row(label, *texts)


def _text(column: str, number: float) -> str:
    """Counts are whole and money has cents; hours and tokens have more digits if they are few,
    because a small run takes minutes."""
    if column == "cost":
        return f"{number:,.2f}"
    if column == "hours" or "MTok" in column:
        digits = 3 if number < 1 else 1
        return f"{number:,.{digits}f}"
    return f"{number:,.0f}"
