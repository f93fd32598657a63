"""A run in this process."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.methods.ssr.method import SsrConfig
from forever.models import location
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.sweeps.sweep import Trial

if TYPE_CHECKING:
    from forever.training.world import World


@dataclass(frozen=True)
class Placement:
    """How a run uses its machine: nothing here changes what is computed, up to rounding and the
    masks of dropout."""

    device: str = "auto"
    micro_batch: int | None = None
    checkpoint_s: float = 60.0
    keep_stages: bool = False
    """Keep the weights of every stage, so that other runs can fork there. With full fine-tuning
    each is a model."""


def check(config: RunConfig, directory: RunDirectory, resume: bool) -> Benchmark:
    """Everything that can be wrong with a run, found before torch is imported or anything is
    downloaded.

    Returns:
        The benchmark, since it had to be read to be checked.

    Raises:
        InputError: bad data, no model weights, a folder that holds another run, or one that is
        finished on other rows.
    """
    location.check(config.model.name)
    _check_adapter(config)
    _check_encoder(config)
    directory.check(config, resume)
    benchmark = load_benchmark(config.data)
    if directory.finished() is not None:
        _check_rows(directory, _digests(benchmark))
    _check_width(config, len(benchmark.tasks))
    return benchmark


def check_finished(trials: Sequence[Trial], folder: Path) -> None:
    """What a sweep has finished was learned from the rows that the rest of it will learn from.

    Raises:
        InputError: a task of a finished trial has changed. Data that are no longer there say
        nothing.
    """
    known: dict[str, dict[str, str]] = {}
    for trial in trials:
        directory, about = RunDirectory(folder / trial.key), trial.config.data.model_dump_json()
        if directory.finished() is None:
            continue
        if about not in known:
            try:
                known[about] = _digests(load_benchmark(trial.config.data))
            except InputError:
                known[about] = {}
        _check_rows(directory, known[about])


def _digests(benchmark: Benchmark) -> dict[str, str]:
    return {task.name: task.digest() for task in benchmark.tasks}


def _check_rows(directory: RunDirectory, digests: Mapping[str, str]) -> None:
    before = (directory.finished() or {}).get("data", {})
    for task in before.keys() & digests.keys():
        if before[task] != digests[task]:
            raise InputError(
                f"{directory.path} is finished, and the rows of task {task} are no longer those that it learned; "
                "give another --out, or those rows"
            )


def _check_adapter(config: RunConfig) -> None:
    """Refuse an adapter that PEFT does not know."""
    if config.model.adapter:
        from forever.models.adapter import describe  # with PEFT and torch, which take seconds

        describe(config.model)


def _check_encoder(config: RunConfig) -> None:
    if isinstance(config.method, SsrConfig) and config.method.encoder is not None:
        location.refuse_code("method.encoder", config.method.encoder)


def _check_width(config: RunConfig, tasks: int) -> None:
    if (width := location.width(config.model.name)) is not None:
        config.method.check_width(config, tasks, width)


def refused(trials: Sequence[Trial], others: bool = False) -> dict[str, str]:
    """What is wrong with the trials of a sweep, by key, found before anything starts.

    Args:
        others: whether the sweep has other trials, which are finished: then it has something to
        show in any case.

    Raises:
        InputError: something is wrong with every one.
    """
    problems: dict[str, str] = {}
    # Number of tasks or what is wrong; trials share it with data and backbone.
    known: dict[str, int | InputError] = {}
    for trial in trials:
        about = f"{trial.config.data.model_dump_json()} {trial.config.model.name}"
        try:
            if about not in known:
                location.check(trial.config.model.name)
                known[about] = len(load_benchmark(trial.config.data).tasks)
            if isinstance(found := known[about], InputError):
                raise found
            _check_adapter(trial.config)
            _check_encoder(trial.config)
            _check_width(trial.config, found)
        except InputError as error:
            known.setdefault(about, error)
            problems[trial.key] = str(error)
    if trials and len(problems) == len(trials) and not others:
        raise InputError(next(iter(problems.values())))
    return problems


def run_local(
    config: RunConfig,
    path: Path,
    *,
    resume: bool = False,
    trackers: Sequence[Tracker] = (),
    placement: Placement = Placement(),
    world: "World | None" = None,
) -> dict[str, Any]:
    """Run or go on with a run; a finished one is left as it is.

    Returns:
        The content of result.json.

    Raises:
        InputError: see `check`.
    """
    directory = RunDirectory(path)
    benchmark = check(config, directory, resume)
    finished = directory.finished()
    if finished is not None:
        return finished
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from forever.runs.environment import describe
    from forever.runs.session import Session
    from forever.training.loop import run
    from forever.training.world import World, pick_device

    world = world or World(device=pick_device(placement.device))
    # Until every rank has checked: to a late one the leader's files would look like an older run.
    world.wait()
    with locked(directory.path, world.leads):
        if world.leads:
            directory.check(config, resume)  # another process may have had the folder until now
        # The others wait here until the leader holds the folder, and take its word: files may reach
        # them later.
        finished_by_another = world.gather([directory.finished() is not None])[0][0]
        if not finished_by_another:
            if world.leads:
                directory.create(config, describe())
                # It goes on; how it ended before is no longer true.
                directory.ended.unlink(missing_ok=True)
            keep = placement.checkpoint_s, placement.keep_stages
            with closing(Session(config, directory, world, trackers, *keep)) as session:
                run(config, benchmark, session, world, placement.micro_batch)
    result = directory.finished()
    assert result is not None or not world.leads
    return result or {}
