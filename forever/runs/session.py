"""The bookkeeping of one run: journal, checkpoints, predictions, result. The loop tells it what
happened.

A run can be killed at any moment. What is on disk is then at worst a little more than the last
checkpoint says; the surplus is cut off when the run goes on, and the same lines are written again.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import torch

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.methods.base import Method
from forever.models import lora
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory, read_lines, write_lines, write_text
from forever.runs.results import scores_after, summarise
from forever.runs.tracking import Journal, Tracker, Trackers
from forever.training.learner import Learner
from forever.training.steps import Action, Step, StepRecord
from forever.training.world import World

_NO_LINES = {"steps": 0, "events": 0}


class Session:
    """One run's way through its stages.

    Args:
        config: of the run.
        directory: where it lives; created already.
        world: only the leading rank writes.
        trackers: told of what happens after it is on disk.
        checkpoint_s: seconds between checkpoints within a task; one is written at the end of each
        task in any case.
        keep_stages: keep the checkpoint of every trained stage, for forks.
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
        self._saved: checkpoint.Checkpoint | None = None
        self._records: list[StepRecord] = []
        self._notes: list[dict[str, Any]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open = ExitStack()
        self._clock = self._last_checkpoint = time.perf_counter()

    def close(self) -> None:
        """Close the files, however the run ended; a process may go on to train another one."""
        self._open.close()

    # ---- begin

    def begin(self, learner: Learner, method: Method[Any], benchmark: Benchmark) -> None:
        """Find out how far the run got, and put its tensors in place."""
        self.benchmark = benchmark
        names = (tuple(t.name for t in benchmark.tasks), tuple(t.name for t in benchmark.stages))
        self.matrix = PerformanceMatrix(*names)
        self._data = [task.digest() for task in benchmark.tasks]
        self._saved = checkpoint.latest(self.directory.checkpoints)
        state = (
            self._saved.state
            if self._saved
            else {"stage": -1, "trained": True, "records": [], **_NO_LINES}
        )
        place = [state["stage"], state["trained"], len(state["records"])]
        if any(found != [place] for found in self.world.gather([place])):
            raise RuntimeError(
                f"ranks found different checkpoints in {self.directory.path}; is it a shared folder?"
            )
        if self._saved:
            if state["data"] != self._data:
                raise InputError(
                    f"{self.directory.path}: the data changed since this run began; give another --out"
                )
            self._notes = state["notes"]
            self._seconds.update(state["seconds"])
            self.restore(learner, method)
            if state["trained"]:
                self._saved = None
        self._stage, self._trained = state["stage"], state["trained"]
        self.world.wait()  # until all ranks have read: the leader changes files from here on
        if self.world.leads:
            self._drop_predictions()
            journal = Journal(self.directory, state["steps"], state["events"])
            self.journal = self._open.enter_context(closing(journal))
        self.trackers.tell("started", self.directory, benchmark)
        self._clock = self._last_checkpoint = time.perf_counter()

    def trained(self, stage: int) -> bool:
        """Whether a stage was trained in an earlier life of this run."""
        return stage < self._stage or (stage == self._stage and self._trained)

    def past(self, stage: int) -> deque[StepRecord]:
        """What happened in a stage before the run was interrupted; empty if it begins now."""
        self._records = []
        self._start = dict(self.journal.lines) if self.world.leads else {}
        if self._saved is None or self._trained or stage != self._stage:
            return deque()
        return deque(StepRecord(*values) for values in self._saved.state["records"])

    def restore(self, learner: Learner, method: Method[Any]) -> None:
        """Put all tensors of the checkpoint back, in place where they exist, since generators hold
        on to them."""
        assert self._saved is not None
        tensors = self._saved.tensors
        # Of a fork; a run's own always fit.
        if tensors["theta"].shape != learner.parameters.flat.shape:
            there, here = tensors["theta"].numel(), learner.parameters.flat.numel()
            raise InputError(
                f"{self.directory.path}: {there} numbers were trained there, {here} here; this cannot fork"
            )
        learner.parameters.load(tensors["theta"])
        method.state.update(self._saved.state["method"])
        frozen = {
            name.removeprefix("frozen/"): t
            for name, t in tensors.items()
            if name.startswith("frozen/")
        }
        lora.load_frozen(learner.backbone.model, frozen)
        for name, tensor in tensors.items():
            kind, _, key = name.partition("/")
            if kind == "method":
                current = method.tensors.get(key)
                if current is not None and current.shape == tensor.shape:
                    current.copy_(tensor)
                else:
                    method.tensors[key] = tensor.to(self.world.device, copy=True)
        adam = {
            name.removeprefix("adam/"): t for name, t in tensors.items() if name.startswith("adam/")
        }
        if adam and learner.optimizer is not None:
            learner.optimizer.load_state_dict(
                {**learner.optimizer.state_dict(), "state": {0: adam}}
            )
            self._saved = None  # twice the size of the model and more, and not needed again

    # ---- while training

    def record(
        self,
        learner: Learner,
        method: Method[Any],
        action: Action,
        record: StepRecord,
        remembered: bool,
    ) -> None:
        """One action is over and the method has reacted to it. `remembered` ones were told to
        trackers long ago."""
        self._records.append(record)
        kind = action.kind if isinstance(action, Step) else "probe"
        if not remembered:
            self._spend(kind)
        if not self.world.leads:
            learner.events.clear()
            return
        if isinstance(action, Step):
            line = self._line(learner, action, record)
            self.journal.step(line)
            if not remembered:
                self.trackers.tell("step", line)
        for event in learner.events:
            self.journal.event(event)
            if not remembered:
                self.trackers.tell("event", event)
        learner.events.clear()
        if not remembered and time.perf_counter() - self._last_checkpoint >= self.checkpoint_s:
            self._checkpoint(learner, method, trained=False)

    def end_training(self, learner: Learner, method: Method[Any]) -> None:
        """A stage is trained, its importance computed, its memory chosen."""
        assert learner.task is not None
        truncated = learner.encoder.truncated(learner.task.train)
        self._notes.append({"truncated": truncated, **learner.notes})
        self._spend("end_task")
        if self.world.leads:
            self._checkpoint(learner, method, trained=True)

    def _line(self, learner: Learner, step: Step, record: StepRecord) -> dict[str, Any]:
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

    def _checkpoint(self, learner: Learner, method: Method[Any], trained: bool) -> None:
        tensors = {"theta": learner.parameters.flat.data}
        tensors |= {f"method/{name}": tensor for name, tensor in method.tensors.items()}
        tensors |= {
            f"frozen/{name}": tensor for name, tensor in lora.frozen(learner.backbone.model).items()
        }
        if not trained and learner.optimizer is not None:
            tensors |= {
                f"adam/{name}": t
                for name, t in learner.optimizer.state_dict()["state"].get(0, {}).items()
            }
        lines = self.journal.lines if trained else self._start
        state = {
            "stage": learner.stage,
            "trained": trained,
            "records": [] if trained else [dataclasses.astuple(record) for record in self._records],
            "method": method.state,
            **lines,
            "notes": self._notes,
            "seconds": dict(self._seconds),
            "data": self._data,
        }
        self.journal.sync()
        # Before the one to go on from: a kill in between then loses neither.
        if trained and self.keep_stages:
            checkpoint.write(self.directory.weights(learner.stage), tensors, state)
        update = len(self._records) + trained  # a trained stage sorts after its last update
        checkpoint.save(self.directory.checkpoints, learner.stage, update, tensors, state)
        self._last_checkpoint = time.perf_counter()

    # ---- scoring

    def scored(self, stage: int, task: int) -> bool:
        """Whether the answers are on disk; if so they are read into the matrix.

        Raises:
            InputError: they are gone, and the weights that gave them were trained on since.
        """
        path = self.directory.predictions(stage, task)
        if (task, stage) in self.matrix.items:
            return True
        if path.is_file():
            self.matrix.items[task, stage] = [line["score"] for line in read_lines(path)]
            return True
        if stage < self._stage:  # a stage begins when all answers of the one before are there
            raise InputError(
                f"{path} is missing, and the weights that gave its answers were trained on since; "
                "put the file back, or give another --out to run from the beginning"
            )
        return False

    def keep_predictions(
        self, stage: int, task: int, predictions: Sequence[Mapping[str, Any]]
    ) -> None:
        """A task has been scored."""
        self.matrix.items[task, stage] = [prediction["score"] for prediction in predictions]
        if self.world.leads:
            write_lines(self.directory.predictions(stage, task), predictions)

    def end_stage(self, stage: int) -> None:
        """All tasks seen so far have been scored."""
        self._spend("evaluation")
        self.trackers.tell("stage", stage, scores_after(self.matrix, stage))

    def finish(self, learner: Learner, method: Method[Any]) -> None:
        """Write the adapter and the result."""
        if not self.world.leads:
            return
        self.close()
        if self.config.model.tuning == "lora" and method.mixed:
            lora.save_mixture(
                learner.backbone.model,
                self.directory.adapter,
                self.config.model.name,
                method.tensors,
            )
        elif self.config.model.tuning == "lora":
            lora.save_peft(learner.backbone.model, self.directory.adapter, self.config.model.name)
        else:
            learner.backbone.model.save_pretrained(self.directory.path / "model")
            learner.backbone.tokenizer.save_pretrained(self.directory.path / "model")
        device = self.world.device
        peak = (
            torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident_bytes()
        )
        seconds = {name: round(value, 3) for name, value in self._seconds.items()}
        carried = [*lora.frozen(learner.backbone.model).values(), *method.tensors.values()]
        trained = learner.parameters.flat.numel()
        measured = {
            "parameters": {
                "trained": trained,
                "stored": trained + sum(tensor.numel() for tensor in carried),
            },
            "seconds": seconds,
            "peak_memory_bytes": peak,
            "world_size": self.world.size,
        }
        steps, events = read_lines(self.directory.steps), read_lines(self.directory.events)
        result = summarise(
            self.config, self.benchmark, self.matrix, steps, events, self._notes, measured
        )
        write_text(self.directory.result, json.dumps(result, indent=1) + "\n")
        self.trackers.tell("finished", result)

    def _drop_predictions(self) -> None:
        """Answers given by weights that are not in the checkpoint: a damaged one may have thrown
        the run back."""
        valid = self._stage + 1 if self._trained else self._stage
        for folder in (self.directory.path / "predictions").glob("*"):
            if folder.name.isdigit() and int(folder.name) > valid:
                shutil.rmtree(folder)

    def _spend(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[phase] += now - self._clock
        self._clock = now


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
