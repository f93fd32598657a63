"""`forever plan`: the cost of a run or a sweep as a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from experiments.runs import load_run
from experiments.sweeps import SWEEPS, named_sweep
from forever.config import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.plan import Plan, plan
from forever.run_directory import RunDirectory


def plan_table(
    name: str,
    on: str,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None,
    out: Path,
    tokens_per_second: float | None,
    price_per_hour: float | None,
) -> Table:
    """One row a run, and the sum of what is still to be done.

    Raises:
        InputError: unknown name, bad data; as for the run itself.
    """
    if name in SWEEPS:
        sweep = named_sweep(name, load_run(on).override(changes), seeds)
        runs = [(t.key, t.config, out / sweep.name / t.key) for t in sweep.trials()]
    else:
        configs = [load_run(name).override({**changes, "seed": seed}) for seed in seeds or (0,)]
        runs = [(config.key(), config, out / config.key()) for config in configs]
    table = Table(title=f"plan of {name}", title_justify="left", caption=_caption(tokens_per_second), box=box.SIMPLE)
    table.add_column("run", no_wrap=True)
    columns = ["task", "replay", "consolid.", "events", "train kTok", "eval kTok", "hours"]
    for column in [*columns, *(["cost"] if price_per_hour is not None else []), "state"]:
        table.add_column(column, justify="right")
    total = [0.0] * (len(columns) + (price_per_hour is not None))
    for key, config, folder in runs:
        numbers = _numbers(_plan(config), tokens_per_second, price_per_hour)
        done = RunDirectory(folder).finished() is not None
        total = [t + (0 if done else n) for t, n in zip(total, numbers, strict=True)]
        table.add_row(key, *_texts(numbers, tokens_per_second), "done" if done else "to do")
    table.add_section()
    table.add_row("to do", *_texts(total, tokens_per_second), "")
    return table


def _plan(config: RunConfig) -> Plan:
    return plan(config, load_benchmark(config.data))


def _numbers(costs: Plan, tokens_per_second: float | None, price_per_hour: float | None) -> list[float]:
    hours = costs.seconds(tokens_per_second) / 3600 if tokens_per_second else 0.0
    kinds = [costs.updates.get(kind, 0) for kind in ("task", "replay", "consolidation")]
    numbers = [*kinds, sum(costs.events.values()), costs.train_tokens, costs.evaluation_tokens, hours]
    return numbers if price_per_hour is None else [*numbers, hours * price_per_hour]


def _texts(numbers: list[float], tokens_per_second: float | None) -> list[str]:
    hours = [f"{value:,.2f}" if tokens_per_second else "-" for value in numbers[6:]]
    return [*(f"{value:,.0f}" for value in numbers[:4]), *(f"{value / 1000:,.0f}" for value in numbers[4:6]), *hours]


def _caption(tokens_per_second: float | None) -> str:
    text = "Updates by kind; replays if every update moves the parameters equally far. Tokens at four characters each."
    return text if tokens_per_second else f"{text} Hours need --tokens-per-second."
