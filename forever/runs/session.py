"""What must outlive the process of a run: checkpoints of its state, its journal, its result.

A run can be killed at any moment. Its files then hold at worst a little more than the last
checkpoint says; the surplus is removed when the run resumes, and the same lines are written again.
"""

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
from forever.files import file_digest, sync, sync_folder, writing
from forever.methods.base import Method
from forever.models.identity import of_method
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory
from forever.runs.environment import code
from forever.runs.journal import Journal, step_line
from forever.runs.results import costs, summary
from forever.runs.tracking import Tracker, tell
from forever.stopping import Attempt
from forever.text import complain
from forever.training.learner import Learner, part
from forever.training.steps import Action, Step, StepRecord
from forever.training.world import World


@dataclass
class Session:
    """One process's way through the stages of a run, which the loop reports to it."""

    config: RunConfig
    directory: RunDirectory  # where the run lives; created already
    world: World  # only the leading rank writes
    trackers: Sequence[Tracker] = ()  # they hear what happens after it is on disk
    checkpoint_s: float = 60.0  # between checkpoints within a task; each task ends with one anyway
    hang_s: float = 0.0  # without a step before this process is ended; 0 is never
    keep_stages: bool = False  # keep the checkpoint of every trained stage, for forks
    accept_changes: bool = False  # resume with other data, another model or other code
    journal: Journal | None = field(default=None, init=False)  # of the leading rank

    def __post_init__(self) -> None:
        self.attempt = Attempt(self.directory.path, self.world.rank, self.hang_s)

    def begin(self, learner: Learner, method: Method[Any], benchmark: Benchmark) -> None:
        """Find out how far the run got, and put its tensors in place."""
        self.learner, self.method, self.benchmark = learner, method, benchmark
        self.matrix = PerformanceMatrix(
            tuple(task.name for task in benchmark.tasks),
            tuple(stage.name for stage in benchmark.stages),
        )
        # What the run began with must be what is here now, for all ranks.
        model = {**learner.backbone.digests, **of_method(learner.config)}
        now = State(data=[task.digest() for task in benchmark.tasks], model=model, code=code())
        saved = self._newest_checkpoint()
        self.state = state = State.of(saved, self.directory.checkpoints) if saved else now
        progress = [state.stage, state.trained, len(state.records), now.model, now.code]
        if any(others != [progress] for others in self.world.gather([progress])):
            raise RuntimeError(
                f"ranks found different checkpoints in {self.directory.path}, or a different model "
                "or program; is it a shared folder?"
            )
        self._accept(state.changes(now, self.matrix.tasks))
        state.data, state.model, state.code = now.data, now.model, now.code

        if saved:
            self._restore(saved)
        # The stage with which this process begins, and its past if it was interrupted.
        self._saved_stage, self._first = state.stage, state.done
        self._past = deque(StepRecord(*numbers) for numbers in state.records)
        self._saved = saved if self._past else None
        # The digests of all answers so far, and the stages whose answers a power cut could take.
        self._answers = {
            name: digest for name, digest in state.digests.items() if name.startswith("predictions")
        }
        self._unsynced = set[int]()

        # Until all ranks have read: the leader changes files from here on.
        self.world.wait()
        if self.world.leads:
            self.directory.clean()
            # A damaged checkpoint may have thrown the run back, behind answers by later weights.
            self.directory.drop_answers(after=self._first)
            self.journal = Journal(self.directory, state.steps, state.events, state.digests)
        self._trackers = list(self.trackers if self.world.leads else ())
        self.attempt.begin()
        tell(self._trackers, "started", self.directory, benchmark)
        self._clock = self._last_checkpoint = time.perf_counter()

    def _newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be read; a fork cannot start again without one."""
        directory = self.directory
        say = complain if self.world.leads else id
        saved = checkpoint.latest(directory.checkpoints, say, directory.has_steps())
        if saved is None and directory.fork.is_file():
            raise InputError(
                f"{directory.checkpoints} has no checkpoint that can be read, and the past of a "
                f"fork was trained by another run; remove {directory.path}, and the command with "
                "--fork begins it again"
            )
        return saved

    def _accept(self, changes: list[str]) -> None:
        """Refuse to resume with other data, another model or other code; or note it down."""
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
        self._log(action, record, new)
        # Read once: a later signal is followed by a checkpoint after the next action.
        signal = self.attempt.stop_signal()
        if new:
            self._spend("tracking")
            if signal or time.perf_counter() - self._last_checkpoint >= self.checkpoint_s:
                self._checkpoint(len(self.state.records))
        else:
            self._leave_past()
        self.attempt.pulse(signal)

    def _log(self, action: Action, record: StepRecord, new: bool) -> None:
        """Write lines and events down, and tell the trackers those that are new."""
        lines: list[tuple[str, Any]] = []
        if isinstance(action, Step):
            lines.append(("step", step_line(self.learner, action, record)))
        lines += [("event", event) for event in self.learner.events]
        self.learner.events.clear()
        for kind, content in lines:
            if self.journal:
                self.journal.write(kind, content)
            if new:
                tell(self._trackers, kind, content)

    def _leave_past(self) -> None:
        """Leave one record of the past behind. After the last one the method is where it was, and
        all tensors are put back, those of the optimiser too."""
        self._past.popleft()
        if not self._past and self._saved:
            self._restore(self._saved)
            self._saved = None

    def end_training(self) -> None:
        """Save a stage: it is trained, its importance computed, its memory chosen."""
        learner = self.learner
        assert learner.task is not None
        truncated = learner.encoder.truncated(learner.task.train)
        notes = {"truncated": truncated, "examples": dict(learner.examples), **learner.notes}
        if self.config.budget.seconds is not None:
            notes["replay_seconds"] = learner.budget.replay_s
            notes["longest_replay_seconds"] = learner.budget.longest_replay_s
        self.state.notes.append(notes)
        self._spend("end_task")
        if self.journal:
            update = len(self.state.records) + 1  # it sorts after the stage's last update
            counted = {**self.journal.lines, "digests": self.journal.digests}
            self.state = replace(self.state, trained=True, records=[], **counted)
            self._checkpoint(update)
        self.attempt.pulse()

    def _checkpoint(self, update: int) -> None:
        if self.journal is None:
            return
        state, learner = self.state, self.learner
        state.method = self.method.state
        state.digests |= self._answers
        tensors = learner.state_dict(optimizer=not state.trained)
        tensors |= {f"method/{name}": tensor for name, tensor in self.method.tensors.items()}
        self.journal.sync()
        self._sync_answers()
        # The stage's own copy is written first: a kill in between loses neither.
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
        path = self.directory.predictions(stage, task)
        name, rows = self.directory.name(path), self.benchmark.tasks[task].test
        answers = self.directory.sound_answers(stage, task)
        digest = file_digest(path) if answers else ""
        if digest != self._answers.get(name, digest):
            answers = None
        problem = f"{path} is {'damaged' if path.is_file() else 'missing'}"
        if answers and len(answers) != len(rows):
            problem = f"{path} answers {len(answers)} test rows, and there are {len(rows)} now"
        sound = bool(answers) and len(answers) == len(rows)
        # Ranks decide alike: another machine may have files that the leader has removed since.
        together = all(votes[0] for votes in self.world.gather([sound]))
        if answers and together:
            self._answers[name] = digest
            self.matrix.items[task, stage] = [line["score"] for line in answers]
            return True
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
            digest = self.directory.write_answers(stage, task, map(vars, answers))
            self._answers[self.directory.name(self.directory.predictions(stage, task))] = digest
            self._unsynced.add(stage)

    def _sync_answers(self) -> None:
        """Bring answers to the disk itself, before the weights that gave them may go."""
        if self._unsynced:
            self.directory.sync_answers(self._unsynced)
            self._unsynced.clear()

    def end_stage(self, stage: int) -> None:
        """Tell the scores of a stage: all tasks so far have been scored."""
        self._spend("evaluation")
        tell(self._trackers, "stage", stage, scores_after(self.matrix, stage))
        self._spend("tracking")

    def finish(self) -> None:
        """Write the trained model and the result."""
        if self.journal is None:
            return
        self.journal.close()
        self._sync_answers()
        with writing(self.directory.path):
            sync_folder(self.method.save(self.learner, self.directory.path))
            sync(self.directory.path)
        content = summary(
            self.config, self.benchmark, self.matrix, self.state.notes, self.directory
        )
        content |= costs(self.learner, self.method, self.state)
        self.directory.finish(content, self.journal.digests | self._answers)
        tell(self._trackers, "finished", content)

    def close(self) -> None:
        """Close the files, however the run ended; the process may train another one."""
        if self.journal:
            self.journal.close()
        self.attempt.end()
