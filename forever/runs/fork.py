"""A run that begins after a stage of another: the same past, another future.

A fork is planted as the directory of an interrupted run: the other run's answers and journal up to
the stage, and its checkpoint after it. Going on from there is what resuming does already.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from forever.config.overrides import difference_lines
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError, unknown
from forever.files import (
    DAMAGED,
    SUMS,
    decoded,
    read_sums,
    sha256,
    sync,
    sync_folder,
    write_bytes,
    writing,
)
from forever.methods.past import Past
from forever.methods.registry import METHODS, build_method
from forever.models.identity import changed
from forever.reading import check_links
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory
from forever.runs.environment import code
from forever.runs.journal import first_lines
from forever.runs.shapes import SCHEMA_VERSION
from forever.training.learner import part

Tensors = Mapping[str, Tensor]  # of a checkpoint, by name


@dataclass(frozen=True)
class Origin:
    """Where a fork begins: after stage `stage` (from 0) of a run that learned tasks `trained`."""

    directory: RunDirectory
    config: RunConfig
    stage: int
    trained: tuple[str, ...]

    def identity(self) -> str:
        """Eight hex digits for the run's configuration and, if it is a fork, its own origin."""
        words = [self.config.fingerprint()]
        if before := self.directory.read_fork():
            words += [before["origin"], str(before["stage"])]
        return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]

    def key(self, config: RunConfig) -> str:
        """The name of the fork's directory, never that of a run from the beginning."""
        return f"{config.key()}-after{self.stage + 1}-{self.identity()}"


def latest_of(directory: RunDirectory, say: Callable[[str], object]) -> Checkpoint | None:
    """The newest checkpoint of a run, if one can be read; `say` is told of damaged ones.

    Raises:
        InputError: a fork has none, and its past was trained by another run.
    """
    found = checkpoint.latest(directory.checkpoints, say, directory.has_steps())
    if found is None and directory.fork.is_file():
        raise InputError(
            f"{directory.checkpoints} has no checkpoint that can be read, and the past of a fork "
            f"was trained by another run; remove {directory.path}, and the command with --fork "
            "begins it again"
        )
    return found


def find_origin(text: str) -> Origin:
    """Find what RUN@TASK means: a run's folder, and the name or number (from 1) of its stage."""
    name, _, task = text.rpartition("@")
    if not name or not task:
        raise InputError(
            f"--fork {text!r} is not of the form RUN@TASK, e.g. runs/mini-1-finetune-s0-3f9a1b2c@2"
        )
    directory = RunDirectory(Path(name))
    if not directory.config.is_file():
        raise InputError(f"--fork {text!r}: {name} holds no run, there is no config.yaml in it")
    check_links(directory.path)
    config = directory.read_config()
    trained = tuple(dict.fromkeys(line["task"] for line in directory.read_steps()))
    if not trained:
        raise InputError(
            f"--fork {text!r}: {directory.steps}, which says what was trained, is missing or empty"
        )
    stages = {str(number): number - 1 for number in range(1, len(trained) + 1)}
    stages |= {task: stage for stage, task in enumerate(trained)}
    if task not in stages:
        raise unknown(f"task of {name}", task, stages)
    return Origin(directory, config, stages[task], trained)


def plant(
    origin: Origin, config: RunConfig, benchmark: Benchmark, target: RunDirectory
) -> list[str]:
    """Make `target` a run of `config` that stands after the origin's stage.

    A fork that is there already stays. Returns in what it differs from the origin, a line each.

    Raises:
        InputError: the configurations or the data of the past disagree, the method cannot go on
            from there, or no task is left.
    """
    changes = difference_lines(origin.config.identity(), config.identity())
    if target.path.exists():
        return changes
    _check_settings(origin.config, config)
    weights = origin.directory.weights(origin.stage)
    saved = checkpoint.read(weights)
    if saved is None:
        raise InputError(
            f"{weights} is not there, or damaged; runs keep these weights with --keep-stages, so "
            "run it with that into another --out"
        )
    state = State.of(saved, weights)
    _check_data(origin, config, benchmark, state.data)
    past = _past(origin, state, saved.tensors)
    reason = build_method(config.method).can_follow(past, len(benchmark.tasks))
    if reason is not None:
        raise InputError(reason)
    _check_model(origin, config, state.model)
    # All of it or nothing: without its past the run would begin from scratch.
    with writing(target.path), _appearing(target.path) as temporary:
        _copy_past(origin, state, saved.tensors, benchmark, temporary)
        content = {
            "run": origin.directory.path.name,
            "task": origin.trained[origin.stage],
            "stage": origin.stage + 1,
            "origin": origin.identity(),
            "changes": changes,
            "code": state.code,
        }
        temporary.write(temporary.fork, json.dumps(content, indent=1) + "\n")
    return changes


@contextmanager
def _appearing(target: Path) -> Iterator[RunDirectory]:
    """Fill the folder `target` under another name: it is there as a whole, or not at all."""
    temporary = RunDirectory(target.with_name(f".{target.name}.{os.getpid()}"))
    shutil.rmtree(temporary.path, ignore_errors=True)
    temporary.path.mkdir(parents=True)
    try:
        yield temporary
        sync_folder(temporary.path)
        temporary.path.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary.path, ignore_errors=True)


def _copy_past(
    origin: Origin, state: State, tensors: Tensors, benchmark: Benchmark, target: RunDirectory
) -> None:
    """Copy the answers, the journal and the checkpoint up to the origin's stage."""
    source = origin.directory
    if state.schema_version > 1 and read_sums(source.path) is None:
        raise InputError(f"{source.path / SUMS} is missing; {DAMAGED}")
    _copy_answers(source, target, range(-1, origin.stage + 1))
    digests: dict[str, str] = {}
    for journal, count in ((target.steps, state.steps), (target.events, state.events)):
        name = journal.name
        lines = first_lines(source.path / name, count, state.digests.get(name))
        write_bytes(journal, lines)
        digests[name] = sha256(lines)
    data = [task.digest() for task in benchmark.tasks]
    state = replace(state, schema_version=SCHEMA_VERSION, data=data, code=code(), digests=digests)
    checkpoint.save(target.checkpoints, origin.stage, 0, tensors, vars(state))


def _copy_answers(source: RunDirectory, target: RunDirectory, stages: Iterable[int]) -> None:
    """Copy the answers after some stages, which are those that the source wrote; -1 is before
    training."""
    for stage in stages:
        for path in sorted(source.predictions(stage, 0).parent.glob("*.jsonl")):
            text = decoded(path, source.read(path), str)
            target.write(target.path / path.relative_to(source.path), text)


def _past(origin: Origin, state: State, tensors: Tensors) -> Past:
    """What the method of the fork is asked about. Frozen adapters count as carried tensors."""
    return Past(
        config=origin.config.method,
        private=METHODS[origin.config.method.name].private,
        state=state.method,
        tensors=(*part(tensors, "method/"), *part(tensors, "frozen/")),
        run=origin.directory.path.name,
        task=origin.trained[origin.stage],
        tasks=len(state.data),
    )


def _check_settings(origin: RunConfig, config: RunConfig) -> None:
    """What the past scores were made with must hold for the scores to come."""
    there, here = origin.model_dump(mode="json"), config.model_dump(mode="json")
    for name in ("model", "evaluation"):
        lines = difference_lines({name: there[name]}, {name: here[name]})
        # Dropout acts on updates, and on none of the past ones.
        lines = [line for line in lines if not line.startswith("model.dropout ")]
        if lines:
            raise InputError(f"a fork keeps the {name} of its run: {lines[0]}")
    for method in (origin.method, config.method):
        if method.joint:
            raise InputError(
                f"method.name={method.name!r} learns all tasks at once; it has no stage to fork at"
            )


def _check_model(origin: Origin, config: RunConfig, there: Mapping[str, str]) -> None:
    """The model must be the same, by its files; one that is not here yet is checked later."""
    lines = changed(there, config)
    if lines:
        raise InputError(
            f"a fork keeps the model of its run, {origin.directory.path.name}: {lines[0]}; put its "
            "files back"
        )


def _check_data(
    origin: Origin, config: RunConfig, benchmark: Benchmark, digests: list[str]
) -> None:
    """The tasks of the past must be the same."""
    tasks, past, ending = len(benchmark.tasks), origin.stage + 1, ""
    if tasks <= past:
        raise InputError(
            f"nothing to train: the run has {tasks} tasks, a fork after task {past} needs more"
        )
    if config.evaluation.forward_transfer:
        # Tasks were scored before they came, with weights that a fork does not have.
        past, ending = (
            max(tasks, len(digests)),
            ", and all of them with evaluation.forward_transfer",
        )
    now = [task.digest() for task in benchmark.tasks]
    if now[:past] != digests[:past]:
        raise InputError(
            f"the tasks up to {origin.trained[origin.stage]}, their rows or their metrics differ "
            f"from those that {origin.directory.path.name} was scored on; a fork keeps data and "
            f"order up to its task{ending}"
        )
