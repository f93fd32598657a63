"""A run that begins after a stage of another: the same past, another future.

A fork is planted as the directory of an interrupted run: the other run's journal up to the stage,
the answers before it, and the checkpoint after it. From there it is resumed like any other run.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter

from forever.config.overrides import difference_lines, joined_lines
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark, Learned
from forever.errors import InputError, unknown
from forever.files import check_digest, write_bytes, write_text, writing
from forever.models.identity import changed
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory
from forever.runs.environment import code
from forever.runs.journal import first_lines
from forever.runs.lock import locked
from forever.storage.store import uploading
from forever.training.learner import part

_LEARNED = TypeAdapter(dict[str, Learned])


@dataclass(frozen=True)
class Origin:
    """Where a fork begins: after stage `stage` (from 0) of a run that learned tasks `trained`."""

    directory: RunDirectory
    config: RunConfig
    stage: int
    trained: tuple[str, ...]

    @cached_property
    def saved(self) -> Checkpoint:
        """The checkpoint after the stage: its own copy, or after the last one what a resume needs.

        Raises:
            InputError: it is missing or damaged.
        """
        weights = self.directory.weights(self.stage)
        saved = checkpoint.read(weights)
        if saved is None and self.stage == len(self.trained) - 1:
            saved = checkpoint.latest(self.directory.checkpoints)
        if saved is None or (saved.state["stage"], saved.state["trained"]) != (self.stage, True):
            raise InputError(
                f"{weights} is missing or damaged; runs keep these weights with --keep-stages, so "
                "run it with that into another --out"
            )
        return saved

    def learned(self) -> dict[str, Learned]:
        """What the run wrote of the tasks that it learned so far, in their order.

        A run of an earlier release wrote nothing, and a fork of it reads all data again.
        """
        state = State.of(self.saved, self.directory.checkpoints)
        names = self.trained[: self.stage + 1]
        facts = [{**task, "tested": True} for task in state.tasks]
        return _LEARNED.validate_python(dict(zip(names, facts, strict=False)))

    def identity(self) -> str:
        """Return eight hex digits for the run's configuration and, of a fork, its own origin."""
        words = [self.config.fingerprint()]
        if before := self.directory.read_fork():
            words += [before["origin"], str(before["stage"])]
        return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]

    def key(self, config: RunConfig) -> str:
        """Return the name of the fork's directory, never that of a run from the beginning."""
        return f"{config.key()}-after{self.stage + 1}-{self.identity()}"


def find_origin(text: str) -> Origin:
    """Find what RUN or RUN@TASK means: a run's folder, and the name or number (from 1) of its
    stage, by default the last."""
    name, at, task = text, "", ""
    if not RunDirectory(Path(text)).config.is_file() and "@" in text:
        name, at, task = text.rpartition("@")
    if not name or (at and not task):
        raise InputError(
            f"--fork {text!r} is not of the form RUN or RUN@TASK, e.g. "
            "runs/mini-1-finetune-s0-3f9a1b2c@2"
        )
    directory = RunDirectory(Path(name))
    if not directory.config.is_file():
        raise InputError(f"--fork {text!r}: {name} holds no run, there is no config.yaml in it")
    config = directory.read_config()
    trained = tuple(dict.fromkeys(line["task"] for line in directory.read_steps()))
    if not trained:
        raise InputError(
            f"--fork {text!r}: {directory.steps}, which says what was trained, is missing or empty"
        )
    if not at:
        if directory.finished() is None:
            raise InputError(
                f"--fork {text!r}: the run is not finished; finish it with --resume, or name a task"
            )
        return Origin(directory, config, len(trained) - 1, trained)
    stages = {str(number): number - 1 for number in range(1, len(trained) + 1)}
    stages |= {task: stage for stage, task in enumerate(trained)}
    if task not in stages:
        raise unknown(f"task of {name}", task, stages)
    return Origin(directory, config, stages[task], trained)


def plant(
    origin: Origin, config: RunConfig, benchmark: Benchmark, target: RunDirectory
) -> list[str]:
    """Make `target` an interrupted run of `config` that was trained up to the origin's stage.

    A fork that was planted before stays. Returns in what it differs from the origin, a line each.

    Raises:
        InputError: the settings, the data or the files of the past do not fit, or no task is left.
    """
    source, stage = origin.directory, origin.stage
    changes = difference_lines(origin.config.identity(), config.identity())
    if target.fork.is_file():
        return changes

    # The past was trained and scored with these settings and files.
    _check_settings(origin.config, config)
    saved = origin.saved
    if source.mixed_tests():
        raise InputError(f"{source.path} cannot be forked: it has {source.why_no_bwt()}")
    state = State.of(saved, source.weights(stage))
    data = [task.digest() for task in benchmark.tasks]
    tests = [task.test_digest() for task in benchmark.tasks]
    _check_data(origin, config, data, state.data)
    memory = _kept(origin, config, benchmark, state.memory)
    if lines := changed(state.model, config):
        raise InputError(
            f"a fork keeps the model of its run, {source.path.name}: {lines[0]}; put its files back"
        )

    # What a method carries from task to task, only the same one in the same modes can use.
    carried = [
        *state.method,
        *state.constants,
        *part(saved.tensors, "method/"),
        *part(saved.tensors, "frozen/"),
    ]
    then, now = origin.config.method.model_dump(), config.method.model_dump()
    modes = [key for key, value in then.items() if isinstance(value, str | bool)]
    lines = difference_lines(
        {"method": {key: then[key] for key in modes}},
        {"method": {key: now.get(key) for key in modes}},
    )
    if carried and lines:
        raise InputError(
            f"{then['name']} carries {', '.join(sorted(carried)[:3])} from task to task, so a fork "
            f"keeps the method and its modes: {joined_lines(lines)}"
        )

    # Copy the lines and the answers that the checkpoint counts; the stage's own answers are given
    # again. fork.json comes last: without it the next call copies everything again. In storage
    # workers of other machines find it.
    digests = {**state.digests, **state.constants, **memory}
    past = {name: (source.path / name).read_bytes() for name in _files(source, digests)}
    for path, count in ((source.steps, state.steps), (source.events, state.events)):
        past[path.name] = first_lines(path, count, state.digests.get(path.name))
    with writing(target.path), locked(target.path), uploading(target.path):
        if target.fork.is_file():  # another process has planted it meanwhile
            return changes
        for name, content in past.items():
            write_bytes(target.path / name, content)
        shutil.rmtree(target.checkpoints, ignore_errors=True)
        tasks = [asdict(task.as_learned()) for task in benchmark.tasks]
        state = replace(state, data=data, tests=tests, tasks=tasks, memory=memory, code=code())
        checkpoint.save(target.checkpoints, stage, 0, saved.tensors, vars(state))
        content = {
            "run": source.path.name,
            "task": origin.trained[stage],
            "stage": stage + 1,
            "origin": origin.identity(),
            "learned": dict(zip(origin.trained[: stage + 1], tasks, strict=False)),
            "changes": changes,
            "code": saved.state["code"],
        }
        write_text(target.fork, json.dumps(content, indent=1) + "\n")
    return changes


def _files(source: RunDirectory, digests: Mapping[str, str]) -> list[str]:
    """Return the names of the answers and constants that a checkpoint counts; InputError if one has
    changed."""
    names = [name for name in digests if not name.endswith(".jsonl") or "/" in name]
    for name in names:
        check_digest(source.path / name, digests[name])
    return names


def _check_settings(origin: RunConfig, config: RunConfig) -> None:
    """What the past scores were made with must hold for the scores to come."""
    then, now = origin.model_dump(mode="json"), config.model_dump(mode="json")
    for values in (then, now):
        values["data"] = {key: values["data"][key] for key in ("prompt", "supervise")}
    for name in ("model", "evaluation", "data"):
        lines = difference_lines({name: then[name]}, {name: now[name]})
        # Dropout acts on updates, and on none of the past ones; recomputing changes no bit.
        free = ("model.dropout ", "model.gradient_checkpointing ")
        lines = [line for line in lines if not line.startswith(free)]
        if lines:
            raise InputError(f"a fork keeps the {name} of its run: {lines[0]}")
    for method in (origin.method, config.method):
        if method.joint:
            raise InputError(
                f"method.name={method.name!r} learns all tasks at once; it has no stage to fork at"
            )


def _kept(
    origin: Origin, config: RunConfig, benchmark: Benchmark, memory: Mapping[str, str]
) -> dict[str, str]:
    """Return the digests of the examples that the past kept, which a fork with another seed or
    another memory chooses anew: InputError if their task's training examples are gone."""
    names = ("seed", "memory")
    lines = difference_lines(
        origin.config.model_dump(mode="json", include={*names}),
        config.model_dump(mode="json", include={*names}),
    )
    if not lines:
        return dict(memory)
    for task in benchmark.tasks:
        if task.learned:
            raise InputError(
                f"the training examples of {task.name} are gone, so a fork keeps what "
                f"{origin.directory.path.name} kept of them: {lines[0]}; put them back into "
                "data.root, or grow the run of that seed"
            )
    return {}


def _check_data(origin: Origin, config: RunConfig, now: Sequence[str], then: Sequence[str]) -> None:
    """The tasks of the past must have the same digests."""
    past = origin.stage + 1
    if len(now) <= past:
        raise InputError(
            f"nothing to train: the run has {len(now)} tasks, a fork after task {past} needs more"
        )
    ending = ""
    if config.evaluation.forward_transfer:
        # Tasks were scored before they came, with weights that a fork does not have.
        past = max(len(now), len(then))
        ending = ", and all of them with evaluation.forward_transfer"
    if now[:past] != then[:past]:
        raise InputError(
            f"the tasks up to {origin.trained[origin.stage]}, their rows or their metrics differ "
            f"from those that {origin.directory.path.name} was scored on; a fork keeps data and "
            f"order up to its task{ending}"
        )
