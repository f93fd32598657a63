"""What must outlive the process of a run: checkpoints of its state, its journal, its result.

A run can be killed at any moment. Its files then hold at worst a little more than the last
checkpoint says; the surplus is removed when the run resumes, and the same lines are written again.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from safetensors.torch import load_file

from forever.config.overrides import joined_lines
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark, Example, Task
from forever.errors import InputError
from forever.evaluation.metrics import scores_after
from forever.files import (
    WriteError,
    check_digest,
    json_lines,
    read_bytes,
    sha256,
    sync,
    sync_folder,
    write_text,
    writing,
)
from forever.models.identity import of_others
from forever.runs import checkpoint
from forever.runs.answers import Answers
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory
from forever.runs.environment import code
from forever.runs.journal import Journal, step_line
from forever.runs.results import costs, summary
from forever.runs.tracking import Tracker, tell
from forever.stopping import Attempt
from forever.text import complain
from forever.training.learner import Learner, part
from forever.training.method import Method
from forever.training.steps import Action, Step, StepRecord
from forever.world import World

_EXAMPLE = TypeAdapter(Example)


class Progress:
    """How far a run is, the updates that this process repeats first, and where the time goes."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.first = state.done  # the stage with which this process begins
        # What came of the stage's updates before the run was interrupted.
        self.past = deque(StepRecord(*numbers) for numbers in state.records)
        self._clock = self._saved = time.perf_counter()

    def begin_stage(self, stage: int) -> bool:
        """Whether a stage is still to be trained to its end; if so, it begins."""
        if stage < self.first:
            return False
        self.state.stage, self.state.trained, self.state.records = stage, False, []
        return True

    def spend(self, phase: str) -> None:
        """Count the time since the last call for a phase."""
        now = time.perf_counter()
        self.state.seconds[phase] = self.state.seconds.get(phase, 0.0) + now - self._clock
        self._clock = now

    def saved(self) -> None:
        """Note that a checkpoint was written."""
        self.spend("checkpoint")
        self._saved = self._clock

    @property
    def unsaved_s(self) -> float:
        """The seconds since the last checkpoint."""
        return time.perf_counter() - self._saved


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
    on_checkpoint: Callable[[], None] = lambda: None  # is called after each one
    journal: Journal | None = field(default=None, init=False)  # of the leading rank

    def __post_init__(self) -> None:
        self.attempt = Attempt(self.directory.path, self.world.rank, self.hang_s)

    # ---- start

    def begin(self, learner: Learner, method: Method[Any], benchmark: Benchmark) -> None:
        """Find out how far the run got, and put its tensors in place."""
        self.learner, self.method, self.benchmark = learner, method, benchmark

        # What the run began with must be what is here now, for all ranks. A fork cannot start again
        # without a checkpoint.
        model = {**learner.backbone.digests, **of_others(learner.config)}
        now = State(
            data=[task.digest() for task in benchmark.tasks],
            tests=[task.test_digest() for task in benchmark.tasks],
            tasks=[asdict(task.as_learned()) for task in benchmark.tasks],
            model=model,
            code=code(),
        )
        directory = self.directory
        saved = checkpoint.latest(
            directory.checkpoints,
            say=complain if self.world.leads else id,
            begun=directory.steps.is_file() and directory.steps.stat().st_size > 0,
        )
        if saved is None and directory.is_fork():
            raise InputError(
                f"{directory.checkpoints} has no checkpoint that can be read, and the past of a "
                f"fork was trained by another run; remove {directory.path}, and the command with "
                "--fork begins it again"
            )
        state = State.of(saved, directory.checkpoints) if saved else now
        self._agree(state, now)
        # Answers after earlier stages stay, also to test examples that have changed.
        names = [task.name for task in benchmark.tasks]
        pairs = zip(names, state.tests, now.tests, strict=False)
        changed = [name for name, then, here in pairs if then != here]
        scored = names if self.config.evaluation.forward_transfer else names[: state.stage]
        self._accept(state.changes(now, names), [name for name in changed if name in scored])
        state.data, state.tests, state.tasks = now.data, now.tests, now.tasks
        state.model, state.code = now.model, now.code

        if saved:
            self._restore(saved, state)
        self._saved = saved if state.records else None  # to restore again after the past
        for stage, task in enumerate(benchmark.stages[: state.done]):
            if task.learned:
                learner.memory.chosen[task.name] = self._kept(state, stage, task)
        self.answers = Answers(directory, benchmark, self.world, state.digests, stage=state.stage)

        # Until all ranks have read: the leader changes files from here on.
        self.world.wait()
        if self.world.leads:
            directory.clean()
            # A damaged checkpoint may have thrown the run back, behind answers by later weights.
            directory.drop_answers(after=state.stage if changed else state.done)
            self.answers.matrix.mixed = tuple(directory.mixed_tests())
            self.journal = Journal(directory, state.steps, state.events, state.digests)
        self._trackers = list(self.trackers if self.world.leads else ())
        self.attempt.begin()
        tell(self._trackers, "started", directory, benchmark)
        self.progress = Progress(state)

    def _agree(self, state: State, now: State) -> None:
        """Fail unless all ranks resume from the same checkpoint with the same model and code."""
        mine = [state.stage, state.trained, len(state.records), now.model, now.code]
        if any(others != [mine] for others in self.world.gather([mine])):
            raise RuntimeError(
                f"ranks found different checkpoints in {self.directory.path}, or a different model "
                "or program; is it a shared folder?"
            )

    def _accept(self, changes: list[str], mixed_tests: list[str]) -> None:
        """Refuse to resume with other data, another model or other code; or note it down."""
        if changes and not self.accept_changes:
            raise InputError(
                f"{self.directory.path}: this changed since this run began: "
                f"{joined_lines(changes)}; give another --out, or --accept-changes to resume"
            )
        if changes and self.world.leads:
            self.directory.accept(changes, mixed_tests)

    def _restore(self, saved: Checkpoint, state: State) -> None:
        """Put the tensors of a checkpoint in place."""
        self.learner.load_state_dict(saved.tensors)
        shapes = self.method.carried(self.learner, state.stage, state.trained)
        carried, flat = part(saved.tensors, "method/"), self.learner.parameters.flat
        self.method.load_state_dict(carried, saved.state["method"], shapes, flat)
        for name, digest in state.constants.items():
            check_digest(self.directory.path / name, digest)
            tensors = load_file(self.directory.path / name, device=str(flat.device))
            self.method.constants.update(tensors)

    def _kept(self, state: State, stage: int, task: Task) -> tuple[Example, ...]:
        """Read what was kept of a task whose training examples are gone."""
        path = self.directory.memory(stage)
        name = self.directory.name(path)
        if name not in state.memory:
            raise InputError(
                f"{path}, the kept examples of task {task.name}, was not written by the run before "
                "this one; put the task's training examples back into data.root"
            )
        check_digest(path, state.memory[name])
        return tuple(map(_EXAMPLE.validate_json, read_bytes(path).splitlines()))

    # ---- while training

    def recall(self) -> StepRecord | None:
        """What came of the next action before the run was interrupted; None if it is new."""
        return self.progress.past[0] if self.progress.past else None

    def record(self, action: Action, record: StepRecord) -> None:
        """Record an action that is over and to which the method has reacted."""
        progress = self.progress
        if progress.past:
            self._log(action, record)
            self._leave_past()
            self.attempt.pulse()
            return
        progress.spend(action.kind if isinstance(action, Step) else "probe")
        self._log(action, record)
        progress.spend("tracking")
        # Read once: a later signal is followed by a checkpoint after the next action.
        signal = self.attempt.stop_signal()
        if signal or progress.unsaved_s >= self.checkpoint_s:
            self._checkpoint(len(progress.state.records))
        self.attempt.pulse(signal)

    def _log(self, action: Action, record: StepRecord) -> None:
        """Write an action and its events down, then report to the trackers what is new."""
        self.progress.state.records.append(astuple(record))
        lines: list[tuple[str, Any]] = []
        if isinstance(action, Step):
            lines.append(("step", step_line(self.learner, action, record)))
        lines += [("event", event) for event in self.learner.events]
        self.learner.events.clear()
        for kind, content in lines:
            if self.journal:
                self.journal.write(kind, content)
            if not self.progress.past:
                tell(self._trackers, kind, content)

    def _leave_past(self) -> None:
        """Leave one record of the past behind. After the last one the method is where it was, and
        all tensors are put back, those of the optimiser too."""
        self.progress.past.popleft()
        if not self.progress.past and self._saved:
            self._restore(self._saved, self.progress.state)
            self._saved = None

    def end_training(self) -> None:
        """Save a stage: it is trained, its importance computed, its memory chosen."""
        learner, progress = self.learner, self.progress
        assert learner.task is not None
        truncated = learner.encoder.truncated(learner.task.train)
        notes = {"truncated": truncated, "examples": dict(learner.examples), **learner.notes}
        if self.config.budget.seconds is not None:
            notes["replay_seconds"] = learner.budget.replay_s
            notes["longest_replay_seconds"] = learner.budget.longest_replay_s
        progress.state.notes.append(notes)
        progress.spend("end_task")
        if self.journal:
            update = len(progress.state.records) + 1  # it sorts after the stage's last update
            counted = {**self.journal.lines, "digests": self.journal.digests}
            progress.state = replace(progress.state, trained=True, records=[], **counted)
            self._write_constants()
            self._write_memory(learner.task)
            self._checkpoint(update)
        self.attempt.pulse()

    def _write_constants(self) -> None:
        """Write what the method computed for good after this stage; checkpoints have its digest."""
        state = self.progress.state
        prefix = f"{state.stage}/"
        new = {name: t for name, t in self.method.constants.items() if name.startswith(prefix)}
        if new:
            path = self.directory.constants(state.stage)
            digest = checkpoint.write_constants(path, new)
            state.constants = {**state.constants, self.directory.name(path): digest}

    def _write_memory(self, task: Task) -> None:
        """Write the examples that memory keeps of a task, for a run that grows from this one."""
        state, path = self.progress.state, self.directory.memory(self.progress.state.stage)
        text = json_lines(map(asdict, self.learner.memory.kept[task.name]))
        write_text(path, text)
        state.memory = {**state.memory, self.directory.name(path): sha256(text.encode())}

    def _checkpoint(self, update: int) -> None:
        if self.journal is None:
            return
        if not self.directory.config.is_file():  # it would be made again, without what it is of
            raise WriteError(
                f"{self.directory.path} was removed while it was trained; run it again"
            )
        state, learner = self.progress.state, self.learner
        state.method = self.method.state
        state.digests |= self.answers.digests
        tensors = learner.state_dict(optimizer=not state.trained)
        tensors |= {f"method/{name}": tensor for name, tensor in self.method.tensors.items()}
        self.journal.sync()
        self.answers.sync()
        # The stage's own copy is written first: a kill in between loses neither.
        if state.trained and self.keep_stages:
            checkpoint.write(self.directory.weights(state.stage), tensors, vars(state))
        checkpoint.save(self.directory.checkpoints, state.stage, update, tensors, vars(state))
        self.on_checkpoint()
        self.progress.saved()

    # ---- scores and the end

    def end_stage(self, stage: int) -> None:
        """Report the scores of a stage: all tasks so far have been scored."""
        self.progress.spend("evaluation")
        tell(self._trackers, "stage", stage, scores_after(self.answers.matrix, stage))
        self.progress.spend("tracking")

    def finish(self) -> None:
        """Write the trained model and the result."""
        if self.journal is None:
            return
        self.journal.close()
        self.answers.sync()
        with writing(self.directory.path):
            sync_folder(self.method.save(self.learner, self.directory.path))
            sync(self.directory.path)
        state, matrix = self.progress.state, self.answers.matrix
        content = summary(self.config, self.benchmark, matrix, state.notes, self.directory)
        content |= costs(self.learner, self.method, state)
        digests = self.journal.digests | self.answers.digests | state.memory
        self.directory.finish(content, digests)
        tell(self._trackers, "finished", content)

    def close(self) -> None:
        """Close the files, however the run ended; the process may train another one."""
        if self.journal:
            self.journal.close()
        self.attempt.end()
