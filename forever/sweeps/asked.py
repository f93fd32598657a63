"""Which runs a plan is about; torch is not loaded, so that a plan is refused at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import read_data
from forever.sweeps.files import sweep_or_none
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search
from forever.sweeps.sweep import check_count


class AskedRun(NamedTuple):
    """A run that a command would do; `label` names its variant and, of several, its order."""

    label: str
    config: RunConfig
    benchmark: Benchmark
    directory: RunDirectory


def asked_runs(
    name: str,
    base: str,
    changes: Mapping[str, Any],
    seeds: tuple[int, ...] | None,
    out: Path,
    only: Sequence[str] = (),
    trials: int | None = None,
) -> list[AskedRun]:
    """The runs that `forever run NAME` or `forever sweep NAME` would do, finished ones included.

    A search counts as so many runs of its base: its points are known only when it runs.

    Raises:
        InputError: unknown name, or bad data, as for the run itself, or too many runs.
    """
    check_count(name, max(trials or 0, len(seeds or ())))
    file = sweep_or_none(name)
    if file is None:
        run = load_run(name).override(changes)
        configs = [run.override({"seed": seed}) for seed in seeds or (run.seed,)]
        asked = [(name, config, out / config.key()) for config in configs]
    elif file.is_search:
        search = find_search(file, load_run(base).override(changes), seeds)
        asked = [(name, search.base, out / search.name / "base")] * (trials or search.trials)
    else:
        sweep = file.expand(load_run(base), seeds, changes, only)
        asked = []
        for trial in sweep.trials():
            label = f"{trial.variant} o{trial.order}" if len(sweep.orders) > 1 else trial.variant
            asked.append((label, trial.config, out / sweep.name / trial.key))
    runs: list[AskedRun] = []
    data = read_data(config for _, config, _ in asked)
    for (label, config, path), benchmark in zip(asked, data, strict=True):
        if isinstance(benchmark, InputError):
            raise benchmark
        runs.append(AskedRun(label, config, benchmark, RunDirectory(path)))
    return runs


def without_failed(runs: Sequence[AskedRun]) -> list[AskedRun]:
    """The runs that did not fail for good in an earlier call, which a sweep leaves out.

    Raises:
        InputError: no run is left.
    """
    kept: list[AskedRun] = []
    for run in runs:
        if (run.directory.end_without_result() or {}).get("state") != "failed":
            kept.append(run)
    if not kept:
        raise InputError("all these runs failed before; --retry-failed plans them again")
    return kept
