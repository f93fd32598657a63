"""How far a run got, read from its directory by those who watch it or come after it."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix, scores_after
from forever.files import last_line
from forever.runs.directory import RunDirectory
from forever.runs.tracking import Tracker, tell


def is_run(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return RunDirectory(folder).config.is_file()


def stage_scores(directory: RunDirectory) -> list[dict[str, float | None]]:
    """What is known after each stage: `acc/<task>` of the tasks seen so far, `op` and `bwt`.

    A stage is over when all its tasks have been scored; that of joint training when there is a
    result. The answers say by their ids which task they belong to, so the data need not be here.
    """
    matrix = PerformanceMatrix((), (), mixed=tuple(directory.mixed_tests()))
    scores: list[dict[str, float | None]] = []
    if directory.read_config().method.joint:
        if directory.result.is_file():
            matrix.tasks, matrix.stages = _read_stage(directory, matrix, 0), ("joint",)
            scores.append(scores_after(matrix, 0))
        return scores
    while len(tasks := _read_stage(directory, matrix, len(scores))) > len(scores):
        # One more is scored ahead if forward transfer is measured.
        matrix.tasks = matrix.stages = tasks[: len(scores) + 1]
        scores.append(scores_after(matrix, len(scores)))
    return scores


def _read_stage(directory: RunDirectory, matrix: PerformanceMatrix, stage: int) -> tuple[str, ...]:
    """Read the scores of tasks 0, 1, ... after `stage`, up to the first that is missing."""
    names: list[str] = []
    past, untested = [*directory.learned()], directory.untested()  # of a fork
    while True:
        number = len(names)
        lines = None if number in untested else directory.sound_answers(stage, number)
        if lines:
            matrix.items[number, stage] = [line["score"] for line in lines]
            names.append(lines[0]["id"].rsplit("/", 2)[0])  # <task>/<split>/<number>
        elif number <= stage and (number in untested or stage < len(past) - 1):
            matrix.missing.add((number, stage))
            names.append(past[number])
        else:
            return tuple(names)


class Follower:
    """Reports a run that other processes train to trackers, by what appears in its directory.

    It is polled now and then, and reports the last one of the updates in between.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        benchmark: Benchmark,
        trackers: Sequence[Tracker],
    ) -> None:
        self.directory = directory
        self.benchmark = benchmark.joint() if config.method.joint else benchmark
        self._trackers = list(trackers)
        self._line: dict[str, Any] | None = None
        self._files = self._stages = 0
        self._started = False

    def poll(self) -> None:
        """Report what is new and complete: files of another machine arrive one by one."""
        with suppress(InputError):
            self._poll()

    def _poll(self) -> None:
        if not is_run(self.directory.path):
            return  # no worker has begun yet
        if not self._started:
            self._started = True
            tell(self._trackers, "started", self.directory, self.benchmark)
        line = last_line(self.directory.steps)
        if line is not None and line != self._line:
            self._line = line
            tell(self._trackers, "step", line)
        files = len(self.directory.all_answers()) + self.directory.result.is_file()
        if files != self._files:
            for scores in stage_scores(self.directory)[self._stages :]:
                tell(self._trackers, "stage", self._stages, scores)
                self._stages += 1
            result = self.directory.finished()
            if result is not None:
                tell(self._trackers, "finished", result)
            self._files = files  # not before they are read: answers may be there before the config
