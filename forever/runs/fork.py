"""A run that begins after a stage of another: the same past, another future.

A fork is planted as the directory of an interrupted run: the other run's answers and journal up to
the stage, and its checkpoint after it. Going on from there is what resuming does already. Memory is
chosen by the seed and needs no state.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forever.config.methods.base import MethodConfig
from forever.config.methods.baselines import MoeLoraConfig, SaptConfig
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError, unknown
from forever.methods.registry import METHODS
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint
from forever.runs.directory import RunDirectory, differences, keep_lines, read_lines, write_text

# What may differ although it stands in a part that must agree: it acts on updates, and on none of
# the past ones.
_FREE = {"model": {"dropout"}}


@dataclass(frozen=True)
class Origin:
    """Where a fork begins: after stage `stage` (from 0), which learned `task`, of the run in
    `directory`."""

    directory: RunDirectory
    config: RunConfig
    stage: int
    task: str

    def identity(self) -> str:
        """Eight hex digits that tell pasts apart: the configuration of the run and, if it is a
        fork, its own origin."""
        before = _read_fork(self.directory)
        text = " ".join(
            [
                self.config.fingerprint(),
                *([before["origin"], str(before["stage"])] if before else []),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def key(self, config: RunConfig) -> str:
        """The name of the fork's directory: never that of the same configuration run from its
        beginning."""
        return f"{config.key()}-after{self.stage + 1}-{self.identity()}"


def find_origin(text: str) -> Origin:
    """What RUN@TASK means. TASK is the name or the number (from 1) of a stage of the run in the
    folder RUN.

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
        config = RunConfig.parse(yaml.safe_load(directory.config.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"--fork {text!r}: {directory.config} cannot be read: {' '.join(str(error).split())}"
        ) from None
    if METHODS[config.method.name].joint:
        raise InputError(
            f"--fork {text!r}: {config.method.name} learns all tasks at once; there is no stage to fork at"
        )
    trained = list(dict.fromkeys(line["task"] for line in read_lines(directory.steps)))
    if not task.isdecimal() and task not in trained:
        raise unknown(f"task of {name}", task, trained)
    stage = int(task) - 1 if task.isdecimal() else trained.index(task)
    if not 0 <= stage < len(trained):
        raise InputError(
            f"--fork {text!r}: {name} has trained {len(trained)} tasks; TASK is 1 to {len(trained)}"
        )
    if not directory.weights(stage).is_dir():
        raise InputError(
            f"--fork {text!r}: {name} has no weights of stage {stage + 1} ({trained[stage]}); "
            "runs keep them with --keep-stages, so run it with that into another --out"
        )
    return Origin(directory, config, stage, trained[stage])


def plant(
    origin: Origin, config: RunConfig, benchmark: Benchmark, target: RunDirectory
) -> list[str]:
    """Make `target` a run of `config` that stands after the origin's stage. One that is there
    already stays.

    Returns:
        In what it differs from the origin, a line each.

    Raises:
        InputError: the configurations or the data of the past disagree, or no task is left.
    """
    changes = differences(origin.config.identity(), config.identity())
    if target.path.exists():
        return changes
    _check_settings(origin, config)
    saved = checkpoint.read(origin.directory.weights(origin.stage))
    if saved is None:
        raise InputError(
            f"{origin.directory.weights(origin.stage)} is damaged; fork at another task"
        )
    _check_data(origin, config, benchmark, saved.state["data"])
    _check_method(origin, config, saved, len(benchmark.tasks))
    temporary = RunDirectory(target.path.with_name(f".{target.path.name}.{os.getpid()}"))
    shutil.rmtree(temporary.path, ignore_errors=True)
    temporary.path.mkdir(parents=True)
    for stage in range(origin.stage + 2):  # folder 0 is before training
        scores = origin.directory.path / "predictions" / str(stage)
        if scores.is_dir():
            shutil.copytree(scores, temporary.path / "predictions" / str(stage))
    for kind, journal in (("steps", temporary.steps), ("events", temporary.events)):
        shutil.copyfile(origin.directory.path / journal.name, journal)
        keep_lines(journal, saved.state[kind])
    state = {**saved.state, "data": [task.digest() for task in benchmark.tasks]}
    checkpoint.save(temporary.checkpoints, origin.stage, 0, saved.tensors, state)
    about = {"run": origin.directory.path.name, "task": origin.task, "stage": origin.stage + 1}
    write_text(
        temporary.fork,
        json.dumps({**about, "origin": origin.identity(), "changes": changes}, indent=1) + "\n",
    )
    # All of it or nothing: without its past the run would begin from scratch.
    temporary.path.rename(target.path)
    return changes


def _check_settings(origin: Origin, config: RunConfig) -> None:
    """What the past scores were made with must hold for the scores to come."""
    there, here = origin.config.model_dump(mode="json"), config.model_dump(mode="json")
    for part in ("model", "evaluation"):
        for settings in (there, here):
            settings[part] = {
                k: v for k, v in settings[part].items() if k not in _FREE.get(part, ())
            }
        found = differences({part: there[part]}, {part: here[part]})
        if found:
            raise InputError(f"a fork keeps the {part} of its run: {found[0]}")
    if METHODS[config.method.name].joint:
        raise InputError(
            f"method.name={config.method.name!r} learns all tasks at once and cannot go on from a stage"
        )


def _check_data(
    origin: Origin, config: RunConfig, benchmark: Benchmark, digests: Sequence[str]
) -> None:
    learned = list(dict.fromkeys(line["task"] for line in read_lines(origin.directory.steps)))
    # Forward transfer scores tasks before they come, with weights that a fork does not have.
    whole = config.evaluation.forward_transfer
    for index, digest in enumerate(digests if whole else digests[: origin.stage + 1]):
        task = benchmark.tasks[index] if index < len(benchmark.tasks) else None
        if index <= origin.stage and task is not None and task.name != learned[index]:
            raise InputError(
                f"task {index + 1} is {learned[index]!r} there, {task.name!r} here; a fork keeps its past"
            )
        if task is None or task.digest() != digest:
            what = task.name if task else f"task {index + 1}"
            raise InputError(
                f"the rows or the metric of {what} differ from those that {origin.directory.path.name} was scored on; "
                "a fork keeps data and order up to its task"
                + (", and all of them with evaluation.forward_transfer" if whole else "")
            )
    if len(benchmark.tasks) <= origin.stage + 1 or (whole and len(benchmark.tasks) != len(digests)):
        raise InputError(f"nothing to train: the run has {len(benchmark.tasks)} tasks, a fork after task "
                         f"{origin.stage + 1} needs more of them")  # fmt: skip


def _check_method(origin: Origin, config: RunConfig, saved: "Checkpoint", tasks: int) -> None:
    """A method that carries something from task to task hands it to itself only.

    What carries nothing can be followed by any method, for example fine-tuning by FOREVER; a method
    that would like to know more of the past than the weights (Fisher information, written rows)
    then has nothing of the tasks before.
    """
    there, here = origin.config.method.model_dump(), config.method.model_dump()
    if here["name"] != there["name"]:
        for name in (there["name"], here["name"]):
            if METHODS[name].mixed:
                raise InputError(
                    f"method.name is {there['name']!r} there, {here['name']!r} here, and {name} trains weights that no "
                    "other method has; fork it with the same method"
                )
    else:
        _check_sizes(origin.config.method, config.method, len(saved.state["data"]), tasks)
        _check_written(origin, saved.state["method"])
    carried = sorted(
        {*saved.state["method"], *(name.partition("/")[2] for name in saved.tensors if "/" in name)}
    )
    if not carried:
        return
    if here["name"] != there["name"]:
        raise InputError(
            f"method.name is {there['name']!r} there, {here['name']!r} here, and {there['name']} carries "
            f"{', '.join(carried[:3])} from task to task; fork it with the same method"
        )
    # Modes decide what is carried; numbers only how it is used.
    modes: Mapping[str, Any] = {
        key: value for key, value in there.items() if isinstance(value, str | bool)
    }
    if found := differences({"method": modes}, {"method": {key: here[key] for key in modes}}):
        raise InputError(
            f"{there['name']} carries {', '.join(carried[:3])} from task to task, and {found[0]}"
        )


def _check_sizes(
    there: MethodConfig, here: MethodConfig, tasks_there: int, tasks_here: int
) -> None:
    """What makes the trained weights so many, beside the model."""
    if isinstance(there, MoeLoraConfig) and isinstance(here, MoeLoraConfig):
        experts = there.experts_for(tasks_there)
        if here.experts_for(tasks_here) != experts:
            raise InputError(
                f"moelora has {experts} experts there, {here.experts_for(tasks_here)} here; "
                f"a fork keeps them, with method.experts={experts}"
            )
    if (
        isinstance(there, SaptConfig)
        and isinstance(here, SaptConfig)
        and there.hidden != here.hidden
    ):
        raise InputError(
            f"method.hidden is {there.hidden} there, {here.hidden} here; a fork of sapt keeps it"
        )


def _check_written(origin: Origin, state: Mapping[str, Any]) -> None:
    """What the model wrote of each finished task must be there; after the last task of a run
    nothing is written."""
    method = origin.config.method.model_dump()
    writes = method["name"] == "ssr" or method.get("memory_prompts") == "pseudo"
    if writes and origin.task not in state.get(
        "rows" if method["name"] == "ssr" else "prompts", {}
    ):
        raise InputError(
            f"{method['name']} wrote nothing of {origin.task}, the last task of {origin.directory.path.name}, and a "
            "fork could never rehearse it; fork at an earlier task"
        )


def _read_fork(directory: RunDirectory) -> dict[str, Any] | None:
    return (
        json.loads(directory.fork.read_text(encoding="utf-8")) if directory.fork.is_file() else None
    )
