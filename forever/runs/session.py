"""What must outlive the process of a run: checkpoints of its state, its journal, its result.

The loop tells it what happened.

A run can be killed at any moment. What is on disk is then at worst a little more than the last
checkpoint says; the surplus is cut off when the run goes on, and the same lines are written again.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation.metrics import scores_after
from forever.methods.base import Method
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory, write_text
from forever.runs.journal import Journal
from forever.runs.results import Result, peak_memory
from forever.runs.tracking import Tracker, Trackers
from forever.training.learner import Learner, part
from forever.training.steps import Action, Step, StepRecord
from forever.training.world import World


class Session:
    """One run's way through its stages.

    Args:
        config: the run's configuration.
        directory: where it lives; created already.
        world: the ranks that share the run; only the leading one writes.
        trackers: told of what happens after it is on disk.
        checkpoint_s: seconds between checkpoints within a task; one is written at the end of each
            task in any case.
        keep_stages: whether to keep the checkpoint of every trained stage, for forks.

    Attributes:
        state: how far the run is.
        journal: its updates and replays.
        result: its measurements.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        world: World,
        trackers: Sequence[Tracker] = (),
        checkpoint_s: float = 60.0,
        keep_stages: bool = False,
    ) -> None:
        self.config = config
        self.directory = directory
        self.world = world
        self.trackers = Trackers(trackers if world.leads else ())
        self.checkpoint_s = checkpoint_s
        self.keep_stages = keep_stages
        self._saved: Checkpoint | None = None
        self._open = ExitStack()
        self._last_checkpoint = time.perf_counter()

    def close(self) -> None:
        """Close the files, however the run ended; a process may go on to train another one."""
        self._open.close()

    # ---- begin and resume

    def begin(self, learner: Learner, method: Method[Any], benchmark: Benchmark) -> None:
        """Find out how far the run got, and put its tensors in place."""
        data = [task.digest() for task in benchmark.tasks]
        self._saved = checkpoint.latest(self.directory.checkpoints)
        self.state = State(**self._saved.state) if self._saved else State(data=data)
        place = self.state.place()
        if any(places != [place] for places in self.world.gather([place])):
            raise RuntimeError(
                f"ranks found different checkpoints in {self.directory.path}; "
                "is it a shared folder?"
            )
        if self.state.data != data:
            raise InputError(
                f"{self.directory.path}: the data changed since this run began; give another --out"
            )
        self.result = Result(benchmark, self.directory)
        self.result.notes = self.state.notes
        self.result.seconds.update(self.state.seconds)
        if self._saved:
            self.restore(learner, method)
        self._begun, self._begun_trained = self.state.stage, self.state.trained

        # Until all ranks have read: the leader changes files from here on.
        self.world.wait()
        if self.world.leads:
            self._drop_predictions()
            journal = Journal(self.directory, self.state.steps, self.state.events)
            self.journal = self._open.enter_context(closing(journal))
        self.trackers.tell("started", self.directory, benchmark)
        self.result.spend(None)
        self._last_checkpoint = time.perf_counter()

    def trained(self, stage: int) -> bool:
        """Whether a stage was trained in an earlier life of this run."""
        return stage < self._begun or (stage == self._begun and self._begun_trained)

    def past(self, stage: int) -> list[StepRecord]:
        """What happened in a stage before the run was interrupted; empty if it begins now."""
        interrupted = stage == self._begun and not self._begun_trained
        records = self.state.past() if interrupted else []
        lines = dict(self.journal.lines) if self.world.leads else {}
        self.state = replace(self.state, stage=stage, trained=False, records=[], **lines)
        return records

    def restore(self, learner: Learner, method: Method[Any]) -> None:
        """Put all tensors of the checkpoint back."""
        assert self._saved is not None
        tensors = self._saved.tensors
        try:
            learner.load_state_dict(tensors)
        except InputError as error:
            raise InputError(f"{self.directory.path}: {error}") from None
        carried = part(tensors, "method/")
        method.load_state_dict(carried, self._saved.state["method"], self.world.device)
        # They are twice the size of the model and more. Within a task they are needed once again:
        # after the records of the past, together with the optimiser's moments.
        if self._saved.state["trained"] or learner.optimizer is not None:
            self._saved = None

    # ---- while training

    def record(
        self,
        learner: Learner,
        method: Method[Any],
        action: Action,
        record: StepRecord,
        remembered: bool,
    ) -> None:
        """Record an action that is over and to which the method has reacted.

        Trackers were told of `remembered` ones long ago.
        """
        self.state.add(record)
        if not remembered:
            self.result.spend(action.kind if isinstance(action, Step) else "probe")
        if self.world.leads:
            self._write(learner, action, record, tell=not remembered)
        learner.events.clear()
        due = time.perf_counter() - self._last_checkpoint >= self.checkpoint_s
        if self.world.leads and due and not remembered:
            self._checkpoint(learner, method)

    def end_training(self, learner: Learner, method: Method[Any]) -> None:
        """A stage is trained, its importance computed, its memory chosen."""
        assert learner.task is not None
        truncated = learner.encoder.truncated(learner.task.train)
        self.result.notes.append({"truncated": truncated, **learner.notes})
        self.result.spend("end_task")
        if self.world.leads:
            update = len(self.state.records) + 1  # it sorts after the stage's last update
            self.state = replace(self.state, trained=True, records=[], **self.journal.lines)
            self._checkpoint(learner, method, update)

    def _write(self, learner: Learner, action: Action, record: StepRecord, tell: bool) -> None:
        if isinstance(action, Step):
            line = step_line(learner, action, record)
            self.journal.step(line)
            if tell:
                self.trackers.tell("step", line)
        for event in learner.events:
            self.journal.event(event)
            if tell:
                self.trackers.tell("event", event)

    def _checkpoint(self, learner: Learner, method: Method[Any], update: int | None = None) -> None:
        trained, stage = self.state.trained, self.state.stage
        tensors = learner.state_dict(optimizer=not trained)
        tensors |= {f"method/{name}": tensor for name, tensor in method.tensors.items()}
        state = replace(self.state, method=method.state, seconds=dict(self.result.seconds))
        self.journal.sync()
        # The stage's own copy comes before the one to go on from: a kill in between loses neither.
        if trained and self.keep_stages:
            checkpoint.write(self.directory.weights(stage), tensors, state.to_json())
        update = len(state.records) if update is None else update
        checkpoint.save(self.directory.checkpoints, stage, update, tensors, state.to_json())
        self._last_checkpoint = time.perf_counter()

    # ---- scores and the end

    def scored(self, stage: int, task: int) -> bool:
        """Whether the answers are on disk; if so they are read into the matrix.

        Raises:
            InputError: they are gone, and the weights that gave them were trained on since.
        """
        on_disk = self.result.read_answers(stage, task)
        # A stage begins when all answers of the one before are on disk.
        if not on_disk and stage < self._begun:
            raise InputError(
                f"{self.directory.predictions(stage, task)} is missing, and the weights that gave "
                "its answers were trained on since; put the file back, or give another --out to "
                "run from the beginning"
            )
        return on_disk

    def keep_predictions(
        self, stage: int, task: int, predictions: Sequence[Mapping[str, Any]]
    ) -> None:
        """A task has been scored."""
        self.result.keep_answers(stage, task, predictions, write=self.world.leads)

    def end_stage(self, stage: int) -> None:
        """All tasks seen so far have been scored."""
        self.result.spend("evaluation")
        self.trackers.tell("stage", stage, scores_after(self.result.matrix, stage))

    def finish(self, learner: Learner, method: Method[Any]) -> None:
        """Write the trained model and the result."""
        if not self.world.leads:
            return
        self.close()
        method.save(learner, self.directory.path)
        carried = [*learner.state_dict(optimizer=False).values(), *method.tensors.values()]
        measured = {
            "parameters": {
                "trained": learner.parameters.flat.numel(),
                "stored": sum(tensor.numel() for tensor in carried),
            },
            "peak_memory_bytes": peak_memory(self.world.device),
            "world_size": self.world.size,
        }
        summary = self.result.summary(self.config, measured)
        write_text(self.directory.result, json.dumps(summary, indent=1) + "\n")
        self.trackers.tell("finished", summary)

    def _drop_predictions(self) -> None:
        """Remove answers given by weights that are not in the checkpoint.

        A damaged one may have thrown the run back.
        """
        valid = self._begun + 1 if self._begun_trained else self._begun
        for folder in (self.directory.path / "predictions").glob("*"):
            if folder.name.isdigit() and int(folder.name) > valid:
                shutil.rmtree(folder)


def step_line(learner: Learner, step: Step, record: StepRecord) -> dict[str, Any]:
    """The line of steps.jsonl for an update."""
    assert learner.task is not None
    return {
        "task": learner.task.name,
        "step": learner.step,
        "planned": learner.planned_steps,
        "update": learner.updates,
        "epoch": step.batch.epoch,
        "kind": step.kind,
        "loss": record.loss,
        "penalty": record.penalty,
        "update_norm": record.update_norm,
        "beta": step.penalty.beta if step.penalty else None,
        "lr": record.lr,
        "rows": len(step.batch.examples),
        "tokens": record.tokens,
        **learner.gauges,
    }
