"""What must outlive the process of a run: checkpoints of its state, its journal, its result.

A run can be killed at any moment. What is on disk is then at worst a little more than the last
checkpoint says; the surplus is cut off when the run goes on, and the same lines are written again.
"""

import json
import shutil
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from forever.config.overrides import joined_lines
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix, scores_after
from forever.evaluation.scoring import Prediction
from forever.files import DAMAGED, sync, sync_folder, writing
from forever.methods.base import Method
from forever.models.identity import of_encoder
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory
from forever.runs.environment import code
from forever.runs.fork import latest_of
from forever.runs.journal import Journal, step_line
from forever.runs.results import costs, summary
from forever.runs.shapes import SCHEMA_VERSION, weight_digests
from forever.runs.tracking import Tracker, tell
from forever.stopping import Attempt
from forever.text import complain
from forever.training.learner import Learner, part
from forever.training.steps import Action, Step, StepRecord
from forever.training.world import World


@dataclass
class Session:
    """One run's way through its stages, which the loop tells it of."""

    config: RunConfig
    directory: RunDirectory  # where the run lives; created already
    world: World  # only the leading rank writes
    trackers: Sequence[Tracker] = ()  # told of what happens after it is on disk
    checkpoint_s: float = 60.0  # between checkpoints within a task; each task ends with one anyway
    hang_s: float = 0.0  # without a step before this process is ended; 0 is never
    keep_stages: bool = False  # keep the checkpoint of every trained stage, for forks
    accept_changes: bool = False  # go on with other data, another model or other code
    journal: Journal | None = field(default=None, init=False)  # of the leading rank

    def __post_init__(self) -> None:
        self.attempt = Attempt(self.directory.path, self.world.rank, self.hang_s)
        self._answered = set[int]()  # stages whose answers may not be on the disk itself

    def begin(self, learner: Learner, method: Method[Any], benchmark: Benchmark) -> None:
        """Find out how far the run got, and put its tensors in place."""
        self.learner, self.method, self.benchmark = learner, method, benchmark
        self.matrix = PerformanceMatrix(
            tuple(task.name for task in benchmark.tasks),
            tuple(stage.name for stage in benchmark.stages),
        )
        model = {**learner.backbone.digests, **of_encoder(learner.config)}
        now = State(data=[task.digest() for task in benchmark.tasks], model=model, code=code())
        saved = latest_of(self.directory, complain if self.world.leads else id)
        self.state = state = State.of(saved, self.directory.checkpoints) if saved else now
        if state.stage >= len(benchmark.stages):
            raise InputError(
                f"{self.directory.checkpoints} is of a run of {state.stage + 1} tasks or more, and "
                f"this one has {len(benchmark.stages)}; {DAMAGED}"
            )
        place = [state.stage, state.trained, len(state.records), now.model, now.code]
        if any(places != [place] for places in self.world.gather([place])):
            raise RuntimeError(
                f"ranks found different checkpoints in {self.directory.path}, or a different model "
                "or program; is it a shared folder?"
            )
        self._accept(state.changes(now, self.matrix.tasks))
        state.data, state.model, state.code = now.data, now.model, now.code
        if saved:
            self._restore(saved)
        # The stage with which this life begins, and what happened in it if it was interrupted.
        self._saved_stage, self._first = state.stage, state.done
        self._past = deque(StepRecord(*numbers) for numbers in state.records)
        self._saved = saved if self._past else None

        if self.world.leads and state.schema_version < SCHEMA_VERSION:
            self.directory.adopt(*self.directory.all_answers())
            state.schema_version = SCHEMA_VERSION
        # Until all ranks have read: the leader changes files from here on.
        self.world.wait()
        if self.world.leads:
            self._drop_answers()
            self.journal = Journal(self.directory, state.steps, state.events, state.digests)
            state.digests = self.journal.digests
        self._trackers = list(self.trackers if self.world.leads else ())
        self.attempt.begin()
        tell(self._trackers, "started", self.directory, benchmark)
        self._clock = self._last_checkpoint = time.perf_counter()

    def _accept(self, changes: list[str]) -> None:
        """Refuse to go on with other data, another model or other code; or note it down."""
        if changes and not self.accept_changes:
            raise InputError(
                f"{self.directory.path}: this changed since this run began: "
                f"{joined_lines(changes)}; give another --out, or --accept-changes to go on"
            )
        if changes and self.world.leads:
            self.directory.accept(changes)

    def begin_stage(self, stage: int) -> bool:
        """Whether a stage is still to be trained to its end; if so, it begins."""
        if stage < self._first:
            return False
        self.state.stage, self.state.trained, self.state.records = stage, False, []
        return True

    # ---- while training

    def recall(self) -> StepRecord | None:
        """What came of the next action before the run was interrupted; None if it is new."""
        return self._past[0] if self._past else None

    def record(self, action: Action, record: StepRecord) -> None:
        """Record an action that is over and to which the method has reacted."""
        new = not self._past
        if new:
            self._spend(action.kind if isinstance(action, Step) else "probe")
        self.state.records.append(astuple(record))
        if isinstance(action, Step):
            self._log("step", step_line(self.learner, action, record), new)
        for event in self.learner.events:
            self._log("event", event, new)
        self.learner.events.clear()
        signal = self.attempt.stop_signal()  # read once: a later one is saved after the next step
        if new:
            self._spend("tracking")
            if signal or time.perf_counter() - self._last_checkpoint >= self.checkpoint_s:
                self._checkpoint(len(self.state.records))
        else:
            self._advance()
        self.attempt.pulse(signal)

    def _advance(self) -> None:
        """Leave behind a record of the past."""
        # After the last record of the past the method has come to where it was, and all tensors are
        # put back, those of the optimiser too.
        self._past.popleft()
        if not self._past and self._saved:
            self._restore(self._saved)
            self._saved = None

    def end_training(self) -> None:
        """A stage is trained, its importance computed, its memory chosen."""
        learner = self.learner
        assert learner.task is not None
        truncated = learner.encoder.truncated(learner.task.train)
        notes = {"truncated": truncated, "examples": dict(learner.examples), **learner.notes}
        if self.config.budget.seconds is not None:
            notes["replay_seconds"] = learner.replay_s
            notes["longest_replay_seconds"] = learner.longest_replay_s
        self.state.notes.append(notes)
        self._spend("end_task")
        if self.journal:
            update = len(self.state.records) + 1  # it sorts after the stage's last update
            counted = {**self.journal.lines, "digests": self.journal.digests}
            self.state = replace(self.state, trained=True, records=[], **counted)
            self._checkpoint(update)
        self.attempt.pulse()

    def _log(self, kind: str, content: Any, new: bool) -> None:
        """Write a step or an event down and tell the trackers, unless they were told long ago."""
        if self.journal:
            self.journal.write(kind, content)
        if new:
            tell(self._trackers, kind, content)

    def _checkpoint(self, update: int) -> None:
        if self.journal is None:
            return
        state, learner = self.state, self.learner
        state.method = self.method.state
        tensors = learner.state_dict(optimizer=not state.trained)
        tensors |= {f"method/{name}": tensor for name, tensor in self.method.tensors.items()}
        self.journal.sync()
        self._sync_answers()
        # The stage's own copy comes before the one to go on from: a kill in between loses neither.
        if state.trained and self.keep_stages:
            checkpoint.write(self.directory.weights(state.stage), tensors, vars(state))
        checkpoint.save(self.directory.checkpoints, state.stage, update, tensors, vars(state))
        self._spend("checkpoint")
        self._last_checkpoint = self._clock

    def _restore(self, saved: Checkpoint) -> None:
        self.learner.load_state_dict(saved.tensors)
        shapes = self.method.carried(self.learner, self.state.stage, self.state.trained)
        carried, flat = part(saved.tensors, "method/"), self.learner.parameters.flat
        self.method.load_state_dict(carried, saved.state["method"], shapes, flat)

    def _spend(self, phase: str) -> None:
        """Count the time since the last call for a phase."""
        now = time.perf_counter()
        self.state.seconds[phase] = self.state.seconds.get(phase, 0.0) + now - self._clock
        self._clock = now

    # ---- scores and the end

    def scored(self, stage: int, task: int) -> bool:
        """Whether the answers to a task are on disk; if so their scores are read."""
        answers, rows = self.directory.sound_answers(stage, task), self.benchmark.tasks[task].test
        sound = bool(answers) and len(answers) == len(rows)
        # Ranks decide alike: another machine may have files that the leader has removed since.
        together = all(votes[0] for votes in self.world.gather([sound]))
        if answers and together:
            self.matrix.items[task, stage] = [line["score"] for line in answers]
            return True
        path = self.directory.predictions(stage, task)
        problem = f"{path} is {'damaged' if path.is_file() else 'missing'}"
        if answers and not sound:
            problem = f"{path} answers {len(answers)} test rows, and there are {len(rows)} now"
        if stage < self._saved_stage:
            raise InputError(
                f"{problem}, and the weights that gave its answers were trained on "
                "since; put back what was there, or give another --out to run from the beginning"
            )
        if path.is_file() and self.world.leads:
            complain(f"{problem}; the answers are given again")
        return False

    def keep_answers(self, stage: int, task: int, answers: Sequence[Prediction]) -> None:
        """Take the scores of a task's answers, and put those on disk."""
        self.matrix.items[task, stage] = [answer.score for answer in answers]
        if self.world.leads:
            self.directory.write_answers(stage, task, map(vars, answers))
            self._answered.add(stage)

    def _sync_answers(self) -> None:
        """Bring answers to the disk itself, before the weights that gave them may go."""
        if self._answered:
            self.directory.sync_answers(self._answered)
            self._answered.clear()

    def end_stage(self, stage: int) -> None:
        """All tasks seen so far have been scored."""
        self._spend("evaluation")
        tell(self._trackers, "stage", stage, scores_after(self.matrix, stage))
        self._spend("tracking")

    def finish(self) -> None:
        """Write the trained model and the result."""
        if self.journal is None:
            return
        self.journal.close()
        self.journal.check()
        self._sync_answers()
        self.directory.verify()  # a disk that lost something meanwhile would do so in silence
        with writing(self.directory.path):
            saved = self.method.save(self.learner, self.directory.path)
            sync_folder(saved)
            sync(self.directory.path)
        content = summary(
            self.config, self.benchmark, self.matrix, self.state.notes, self.directory
        )
        content |= costs(self.learner, self.method, self.state)
        content["journal"] = self.journal.digests
        content["weights"] = weight_digests(self.directory.path, saved)
        self.directory.write(self.directory.result, json.dumps(content, indent=1) + "\n")
        tell(self._trackers, "finished", content)

    def close(self) -> None:
        """Close the files, however the run ended; a process may go on to train another one."""
        if self.journal:
            self.journal.close()
        self.attempt.end()

    def _drop_answers(self) -> None:
        """Remove answers by later weights: a damaged checkpoint may have thrown the run back."""
        with writing(self.directory.path):
            for folder in (self.directory.path / "predictions").glob("*"):
                if folder.name.isdigit() and int(folder.name) > self._first:
                    shutil.rmtree(folder)
