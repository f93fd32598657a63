"""A run that begins after a stage of another: the same past, another future.

A fork is planted as the directory of an interrupted run: the other run's answers and journal up to
the stage, and its checkpoint after it. Going on from there is what resuming does already. Memory is
chosen by the seed and needs no state.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from forever.config.overrides import difference_lines
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError, unknown
from forever.methods.registry import METHODS, build_method
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory, keep_lines, read_json, read_lines, write_text
from forever.runs.past import Past
from forever.training.learner import part


@dataclass(frozen=True)
class Origin:
    """Where a fork begins: after stage `stage` (from 0) of the run in `directory`.

    That run learned the tasks `trained`.
    """

    directory: RunDirectory
    config: RunConfig
    stage: int
    trained: tuple[str, ...]

    @property
    def task(self) -> str:
        """The task that was learned last."""
        return self.trained[self.stage]

    def identity(self) -> str:
        """Return eight hex digits that tell pasts apart.

        They stand for the configuration of the run and, if it is a fork, its own origin.
        """
        words = [self.config.fingerprint()]
        if self.directory.fork.is_file():
            before = read_json(self.directory.fork)
            words += [before["origin"], str(before["stage"])]
        return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]

    def key(self, config: RunConfig) -> str:
        """Return the name of the fork's directory.

        It is never that of the same configuration run from its beginning.
        """
        return f"{config.key()}-after{self.stage + 1}-{self.identity()}"


def find_origin(text: str) -> Origin:
    """Find the stage that RUN@TASK means.

    TASK is the name or the number (from 1) of a stage of the run in the folder RUN.

    Raises:
        InputError: another form, no run in the folder, no such task, or its weights are not kept.
    """
    name, _, task = text.rpartition("@")
    if not name or not task:
        raise InputError(
            f"--fork {text!r} is not of the form RUN@TASK, e.g. runs/mini-1-finetune-s0-3f9a1b2c@2"
        )
    directory = RunDirectory(Path(name))
    if not directory.config.is_file():
        raise InputError(f"--fork {text!r}: {name} holds no run, there is no config.yaml in it")
    try:
        config = directory.read_config()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--fork {text!r}: {directory.config} cannot be read: {reason}") from None
    if config.method.joint:
        raise InputError(
            f"--fork {text!r}: {config.method.name} learns all tasks at once; there is no stage to "
            "fork at"
        )
    tasks = [line["task"] for line in read_lines(directory.steps)]
    trained = tuple(dict.fromkeys(tasks))
    stage = _stage_of(text, name, task, trained)
    if not directory.weights(stage).is_dir():
        raise InputError(
            f"--fork {text!r}: {name} has no weights of stage {stage + 1} ({trained[stage]}); "
            "runs keep them with --keep-stages, so run it with that into another --out"
        )
    return Origin(directory, config, stage, trained)


def _stage_of(text: str, run: str, task: str, trained: tuple[str, ...]) -> int:
    """Return the stage (from 0) that a task's name or number means."""
    if not task.isdecimal():
        if task not in trained:
            raise unknown(f"task of {run}", task, trained)
        return trained.index(task)
    if not 1 <= int(task) <= len(trained):
        raise InputError(
            f"--fork {text!r}: {run} has trained {len(trained)} tasks; TASK is 1 to {len(trained)}"
        )
    return int(task) - 1


def plant(
    origin: Origin, config: RunConfig, benchmark: Benchmark, target: RunDirectory
) -> list[str]:
    """Make `target` a run of `config` that stands after the origin's stage.

    A fork that is there already stays.

    Returns:
        In what it differs from the origin, a line each.

    Raises:
        InputError: the configurations or the data of the past disagree, or no task is left.
    """
    changes = difference_lines(origin.config.identity(), config.identity())
    if target.path.exists():
        return changes
    _check_settings(origin, config)
    saved = checkpoint.read(origin.directory.weights(origin.stage))
    if saved is None:
        raise InputError(
            f"{origin.directory.weights(origin.stage)} is damaged; fork at another task"
        )
    _check_data(origin, config, benchmark, State(**saved.state).data)
    reason = build_method(config.method).can_follow(_past(origin, saved), len(benchmark.tasks))
    if reason is not None:
        raise InputError(reason)
    # All of it or nothing: without its past the run would begin from scratch.
    temporary = RunDirectory(target.path.with_name(f".{target.path.name}.{os.getpid()}"))
    shutil.rmtree(temporary.path, ignore_errors=True)
    temporary.path.mkdir(parents=True)
    _copy_past(origin, saved, benchmark, temporary)
    content = {
        "run": origin.directory.path.name,
        "task": origin.task,
        "stage": origin.stage + 1,
        "origin": origin.identity(),
        "changes": changes,
    }
    write_text(temporary.fork, json.dumps(content, indent=1) + "\n")
    temporary.path.rename(target.path)
    return changes


def _copy_past(
    origin: Origin, saved: Checkpoint, benchmark: Benchmark, target: RunDirectory
) -> None:
    """Copy the answers, the journal and the checkpoint up to the origin's stage."""
    for stage in range(origin.stage + 2):  # folder 0 is before training
        answers = origin.directory.path / "predictions" / str(stage)
        if answers.is_dir():
            shutil.copytree(answers, target.path / "predictions" / str(stage))
    state = State(**saved.state)
    for journal, count in ((target.steps, state.steps), (target.events, state.events)):
        shutil.copyfile(origin.directory.path / journal.name, journal)
        keep_lines(journal, count)
    state = replace(state, data=[task.digest() for task in benchmark.tasks])
    checkpoint.save(target.checkpoints, origin.stage, 0, saved.tensors, state.to_json())


def _past(origin: Origin, saved: Checkpoint) -> Past:
    """What the method of the fork is asked about. Frozen adapters count as carried tensors."""
    state = State(**saved.state)
    method, frozen = part(saved.tensors, "method/"), part(saved.tensors, "frozen/")
    return Past(
        config=origin.config.method,
        private=METHODS[origin.config.method.name].private,
        state=state.method,
        tensors=(*method, *frozen),
        run=origin.directory.path.name,
        task=origin.task,
        tasks=len(state.data),
    )


def _check_settings(origin: Origin, config: RunConfig) -> None:
    """What the past scores were made with must hold for the scores to come."""
    there, here = origin.config.model_dump(mode="json"), config.model_dump(mode="json")
    for settings in (there, here):
        del settings["model"]["dropout"]  # it acts on updates, and on none of the past ones
    for name in ("model", "evaluation"):
        lines = difference_lines({name: there[name]}, {name: here[name]})
        if lines:
            raise InputError(f"a fork keeps the {name} of its run: {lines[0]}")
    if config.method.joint:
        raise InputError(
            f"method.name={config.method.name!r} learns all tasks at once and cannot go on from a "
            "stage"
        )


def _check_data(
    origin: Origin, config: RunConfig, benchmark: Benchmark, digests: list[str]
) -> None:
    """The tasks of the past must be the same."""
    # Forward transfer scores tasks before they come, with weights that a fork does not have.
    whole = config.evaluation.forward_transfer
    past = digests if whole else digests[: origin.stage + 1]
    tasks = benchmark.tasks
    for index, digest in enumerate(past):
        name = tasks[index].name if index < len(tasks) else f"task {index + 1}"
        if index <= origin.stage and index < len(tasks) and name != origin.trained[index]:
            raise InputError(
                f"task {index + 1} is {origin.trained[index]!r} there, {name!r} here; a fork keeps "
                "its past"
            )
        if index >= len(tasks) or tasks[index].digest() != digest:
            ending = ", and all of them with evaluation.forward_transfer" if whole else ""
            raise InputError(
                f"the rows or the metric of {name} differ from those that "
                f"{origin.directory.path.name} was scored on; a fork keeps data and order up to "
                f"its task{ending}"
            )
    if len(tasks) <= origin.stage + 1 or (whole and len(tasks) != len(digests)):
        raise InputError(
            f"nothing to train: the run has {len(tasks)} tasks, a fork after task "
            f"{origin.stage + 1} needs more of them"
        )
