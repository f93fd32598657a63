"""A run that begins after a stage of another: the same past, another future.

A fork is planted as the directory of an interrupted run: the other run's answers and journal up to
the stage, and its checkpoint after it. From there it is resumed like any other run.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forever.config.overrides import difference_lines
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError, unknown
from forever.files import check_digest, sha256, sync_folder, write_bytes, write_text, writing
from forever.methods.registry import build_method
from forever.models.identity import changed
from forever.runs import checkpoint
from forever.runs.checkpoint import State
from forever.runs.directory import RunDirectory
from forever.runs.environment import code
from forever.runs.journal import first_lines
from forever.runs.lock import locked
from forever.training.learner import part
from forever.training.past import Past


@dataclass(frozen=True)
class Origin:
    """Where a fork begins: after stage `stage` (from 0) of a run that learned tasks `trained`."""

    directory: RunDirectory
    config: RunConfig
    stage: int
    trained: tuple[str, ...]

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
    """Find what RUN@TASK means: a run's folder, and the name or number (from 1) of its stage."""
    name, _, task = text.rpartition("@")
    if not name or not task:
        raise InputError(
            f"--fork {text!r} is not of the form RUN@TASK, e.g. runs/mini-1-finetune-s0-3f9a1b2c@2"
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
    stages = {str(number): number - 1 for number in range(1, len(trained) + 1)}
    stages |= {task: stage for stage, task in enumerate(trained)}
    if task not in stages:
        raise unknown(f"task of {name}", task, stages)
    return Origin(directory, config, stages[task], trained)


def plant(
    origin: Origin, config: RunConfig, benchmark: Benchmark, target: RunDirectory
) -> list[str]:
    """Make `target` a run of `config` that stands after the origin's stage.

    A fork that was planted before stays. Returns in what it differs from the origin, a line each.

    Raises:
        InputError: the configurations or the data of the past disagree, the method cannot continue
            from there, or no task is left.
    """
    source, stage = origin.directory, origin.stage
    changes = difference_lines(origin.config.identity(), config.identity())
    if target.fork.is_file():
        return changes

    # Does the future fit the past: settings, data, method, model?
    _check_settings(origin.config, config)
    weights = source.weights(stage)
    saved = checkpoint.read(weights)
    if saved is None:
        raise InputError(
            f"{weights} is missing or damaged; runs keep these weights with --keep-stages, so run "
            "it with that into another --out"
        )
    state = State.of(saved, weights)
    _check_data(origin, config, benchmark, state.data)
    past = Past(
        config=origin.config.method,
        private=build_method(origin.config.method).private,
        state=state.method,
        tensors=(*part(saved.tensors, "method/"), *part(saved.tensors, "frozen/")),
        run=source.path.name,
        task=origin.trained[stage],
        tasks=len(state.data),
    )
    reason = build_method(config.method).can_follow(past, len(benchmark.tasks))
    if reason is not None:
        raise InputError(reason)
    if lines := changed(state.model, config):
        raise InputError(
            f"a fork keeps the model of its run, {source.path.name}: {lines[0]}; put its files back"
        )
    journal = {
        source.steps.name: first_lines(
            source.steps, state.steps, state.digests.get(source.steps.name)
        ),
        source.events.name: first_lines(
            source.events, state.events, state.digests.get(source.events.name)
        ),
    }
    answers = _answers_until(source, stage, state.digests)

    # Copy the past. fork.json comes last: without it the next call copies everything again.
    with writing(target.path), locked(target.path):
        digests: dict[str, str] = {}
        for name, lines in journal.items():
            write_bytes(target.path / name, lines)
            digests[name] = sha256(lines)
        for name, digest in answers.items():
            write_bytes(target.path / name, (source.path / name).read_bytes(), durable=False)
            digests[name] = digest
        if answers:
            sync_folder(target.path / "predictions")
        data = [task.digest() for task in benchmark.tasks]
        state = replace(state, data=data, code=code(), digests=digests)
        shutil.rmtree(target.checkpoints, ignore_errors=True)
        checkpoint.save(target.checkpoints, stage, 0, saved.tensors, vars(state))
        content = {
            "run": source.path.name,
            "task": origin.trained[stage],
            "stage": stage + 1,
            "origin": origin.identity(),
            "changes": changes,
            "code": saved.state["code"],
        }
        write_text(target.fork, json.dumps(content, indent=1) + "\n")
    return changes


def _answers_until(source: RunDirectory, stage: int, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the answers after the stages up to `stage`, by name.

    The checkpoint of the stage has those of earlier ones. Of the stage itself they are the source's
    own, if it is finished; its answers may be missing, since its weights are here.
    """
    names = [source.name(path) for path in source.all_answers()]
    last = [name for name in names if Path(name).parent.name == str(stage + 1)]
    known = {name: digest for name, digest in digests.items() if name.startswith("predictions")}
    if source.manifest.is_file():
        manifest = json.loads(source.manifest.read_text(encoding="utf-8"))
        known |= {name: manifest[name] for name in last if name in manifest}
    for name, digest in known.items():
        check_digest(source.path / name, digest)
    return known


def _check_settings(origin: RunConfig, config: RunConfig) -> None:
    """What the past scores were made with must hold for the scores to come."""
    then, now = origin.model_dump(mode="json"), config.model_dump(mode="json")
    for name in ("model", "evaluation"):
        lines = difference_lines({name: then[name]}, {name: now[name]})
        # Dropout acts on updates, and on none of the past ones.
        lines = [line for line in lines if not line.startswith("model.dropout ")]
        if lines:
            raise InputError(f"a fork keeps the {name} of its run: {lines[0]}")
    for method in (origin.method, config.method):
        if method.joint:
            raise InputError(
                f"method.name={method.name!r} learns all tasks at once; it has no stage to fork at"
            )


def _check_data(
    origin: Origin, config: RunConfig, benchmark: Benchmark, digests: Sequence[str]
) -> None:
    """The tasks of the past must be the same."""
    tasks, past, ending = len(benchmark.tasks), origin.stage + 1, ""
    if tasks <= past:
        raise InputError(
            f"nothing to train: the run has {tasks} tasks, a fork after task {past} needs more"
        )
    if config.evaluation.forward_transfer:
        # Tasks were scored before they came, with weights that a fork does not have.
        past = max(tasks, len(digests))
        ending = ", and all of them with evaluation.forward_transfer"
    now = [task.digest() for task in benchmark.tasks]
    if now[:past] != digests[:past]:
        raise InputError(
            f"the tasks up to {origin.trained[origin.stage]}, their rows or their metrics differ "
            f"from those that {origin.directory.path.name} was scored on; a fork keeps data and "
            f"order up to its task{ending}"
        )
