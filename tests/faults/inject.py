"""Faults at chosen points of a run, without a line in the library.

A point is a phase of a run, in a task after so many updates, on a rank. Wrapped functions of the
library name the points that a process passes. Tests listen to them in their own process by
`watched`. A command that they start, with all its workers, does what a file says, which they name
in its `environment`: Python loads `sitecustomize.py` beside this file when it starts.

    kill phase=replay task=1 update=5 rank=1 once=/tmp/marker
"""

import errno
import importlib
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import Any

VARIABLE = "FOREVER_FAULTS"
HELD_S = 120.0  # no process outlives its test by more


@dataclass(frozen=True)
class Point:
    """Something that a run is about to do."""

    phase: str
    task: int = 0  # the number of its stage
    update: int = 0  # updates of any kind that the task has had; 0 once it is trained
    rank: int = 0
    run: str = field(default="", compare=False)  # the name of its folder


Listener = Callable[[Point], None]
Namer = Callable[..., str | None]


def of_action(learner: Any, method: Any, action: Any) -> str:
    """What a method asks for: warm-up, task, replay, consolidation, probe or reading."""
    kind = getattr(action, "kind", type(action).__name__.lower())
    # Interleaved replay has a day for its pace, and no clock that waits for it.
    warming = hasattr(method, "clock") and learner.step < method.config.day_steps
    return "warm-up" if kind == "task" and warming else kind


def of_news(trackers: Any, what: str, *details: Any) -> str | None:
    """What trackers hear once it is on disk: the journal's line, an event, a stage."""
    return {"step": "journal", "event": "event", "stage": "stage"}.get(what)


@dataclass(frozen=True)
class Seam:
    """A function of the library, and the phase that begins, or ends, with a call of it."""

    module: str
    name: str
    phase: str | Namer
    after: bool = False


SEAMS = (
    Seam("forever.training.loop", "perform", of_action),
    Seam("forever.runs.session", "tell", of_news),
    Seam("forever.training.importance", "gradients_apart", "fisher"),
    Seam("forever.models.parameters", "FlatParameters.merge", "merge"),
    Seam("forever.methods.ssr", "continuations", "synthesis"),
    Seam("forever.methods.ssr", "diverse", "selection"),
    Seam("forever.training.memory", "Memory.add", "memory"),
    Seam("forever.runs.session", "Session.end_training", "end of task"),
    Seam("forever.evaluation.scoring", "decode", "scoring"),
    Seam("forever.runs.directory", "RunDirectory.write_answers", "answers"),
    Seam("forever.runs.checkpoint", "save_file", "checkpoint", after=True),  # half of it is there
    Seam("forever.runs.checkpoint", "save", "saved", after=True),
    Seam("forever.models.lora", "save_peft", "adapter"),
    Seam("forever.models.lora", "save_mixture", "adapter"),
    Seam("forever.runs.session", "summary", "result"),
)
# Calls that say where in a run a process is.
PLACES = (
    Seam("forever.runs.session", "Session.begin", "session"),
    Seam("forever.training.learner", "Learner.begin", "learner"),
)
MODULES = {seam.module for seam in SEAMS + PLACES}


class Watch:
    """Tells a listener of every point that this process passes."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.known: dict[str, Any] = {}

    def patch(self, module: ModuleType, replace: Callable[[Any, str, Any], None]) -> None:
        """Wrap the functions of a module that are seams."""
        for seam in SEAMS + PLACES:
            if seam.module == module.__name__:
                *owners, name = seam.name.split(".")
                owner = getattr(module, owners[0]) if owners else module
                replace(owner, name, self._wrapped(seam, getattr(owner, name)))

    def _wrapped(self, seam: Seam, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if seam in PLACES:
                self.known[str(seam.phase)] = arguments[0]
            elif not seam.after:
                self._pass(seam, arguments)
            result = function(*arguments, **options)
            if seam.after:
                self._pass(seam, arguments)
            return result

        return call

    def _pass(self, seam: Seam, arguments: tuple[Any, ...]) -> None:
        phase = seam.phase if isinstance(seam.phase, str) else seam.phase(*arguments)
        session, learner = self.known.get("session"), self.known.get("learner")
        if phase is None or session is None or learner is None:
            return
        # A life that finds a task trained has not counted its updates.
        update = 0 if session.progress.state.trained else learner.updates
        run = session.directory.path.name
        self.listener(Point(phase, learner.stage, update, session.world.rank, run))


@contextmanager
def watched(listener: Listener) -> Iterator[None]:
    """Hear of all points that runs in this process pass."""
    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    watch = Watch(listener)
    try:
        for module in sorted(MODULES):
            watch.patch(importlib.import_module(module), replace)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


# ---- faults of other processes


@dataclass
class Fault:
    """What happens at a point: `kill`, `full` (the disk), `hold` (wait there) or `count` it.

    `where` are fields of the point; a run is known by the beginning of its name. Of the points
    that fit it is the `nth`, and if `once` names a file it happens once in all processes.
    """

    action: str
    where: Mapping[str, str]
    nth: int = 1
    once: Path | None = None
    fitting: int = 0

    @classmethod
    def parse(cls, line: str) -> "Fault":
        """Read a line such as the one at the top."""
        action, *words = shlex.split(line)
        where = dict(word.split("=", 1) for word in words)
        once = where.pop("once", None)
        return cls(action, where, int(where.pop("nth", 1)), Path(once) if once else None)

    def __call__(self, point: Point) -> None:
        for name, value in self.where.items():
            actual = str(getattr(point, name))
            if actual != value and not (name == "run" and actual.startswith(value)):
                return
        self.fitting += 1
        if self.action == "count":
            self._count(point)
        elif self.fitting == self.nth and self._first():
            self._happen(point)

    def _first(self) -> bool:
        """Whether no process was here before; this one leaves a mark."""
        if self.once is None:
            return True
        try:
            self.once.open("x").close()
        except FileExistsError:
            return False
        return True

    def _happen(self, point: Point) -> None:
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "full":
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({point.phase})")
        elif self.action == "hold":
            # Whoever waits for the mark knows that the run is here, and lets it go by removing it.
            until = monotonic() + HELD_S
            while self.once and self.once.exists() and monotonic() < until:
                sleep(0.05)
        else:
            raise ValueError(f"unknown fault {self.action!r}")

    def _count(self, point: Point) -> None:
        assert self.once is not None
        with self.once.open("a", encoding="utf-8") as file:
            file.write(f"{point.run} {point.task} {point.update} {point.phase}\n")


def environment(faults: Path) -> dict[str, str]:
    """What a command must find in its environment for its processes to do what the file says.

    The file has a fault a line. It is read at every point, so it may change, or come later.
    """
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {VARIABLE: str(faults), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class FromFile:
    """A listener that does what a file says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: dict[str, Fault] = {}

    def __call__(self, point: Point) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            if line not in self.faults:
                self.faults[line] = Fault.parse(line)
            self.faults[line](point)


def children(pid: int) -> list[int]:
    """A process and all those that it and its descendants started in its session."""
    members: list[int] = []
    for name in os.listdir("/proc"):
        with suppress(ProcessLookupError, ValueError):
            if os.getsid(int(name)) == pid:
                members.append(int(name))
    return members
