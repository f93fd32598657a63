"""How far a run got, read from its directory.

It is for those who watch a run from another process, or after it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.evaluation.metrics import PerformanceMatrix, scores_after
from forever.runs.directory import RunDirectory, last_line, read_lines
from forever.runs.tracking import Tracker, Trackers


def is_run(folder: Path) -> bool:
    """Whether a run has begun in this folder."""
    return RunDirectory(folder).config.is_file()


def stage_scores(directory: RunDirectory) -> list[dict[str, float | None]]:
    """Return what is known after each stage: `acc/<task>` of the tasks seen so far, `op` and `bwt`.

    A stage is over when all its tasks have been scored. The answers say by their ids which task
    they belong to, so the data need not be here. Joint training has one stage, known to be over
    only when the result is there.
    """
    joint = directory.read_config().method.joint
    matrix = PerformanceMatrix((), ())
    scores: list[dict[str, float | None]] = []
    for stage in range(_stages(directory)):
        scored = _read_stage(directory, matrix, stage)
        over = directory.finished() is not None if joint else scored > stage
        if not over:
            break
        if joint:
            matrix.stages = ("joint",)
        else:
            # One more is scored ahead if forward transfer is measured.
            matrix.tasks = matrix.tasks[: stage + 1]
            matrix.stages = matrix.tasks
        scores.append(scores_after(matrix, stage))
    return scores


def _stages(directory: RunDirectory) -> int:
    folders = (directory.path / "predictions").glob("[1-9]*")
    return max((int(folder.name) for folder in folders if folder.name.isdigit()), default=0)


def _read_stage(directory: RunDirectory, matrix: PerformanceMatrix, stage: int) -> int:
    """Read the scores of tasks 0, 1, ... after `stage`, up to the first that is missing."""
    names: list[str] = []
    while (path := directory.predictions(stage, len(names))).is_file():
        lines = read_lines(path)
        matrix.items[len(names), stage] = [line["score"] for line in lines]
        names.append(lines[0]["id"].rsplit("/", 2)[0])  # <task>/<split>/<number>
    matrix.tasks = tuple(names)
    return len(names)


class Follower:
    """Tells trackers of a run that other processes train, by what appears in its directory.

    It looks now and then: of the updates in between it tells the last one.

    Args:
        benchmark: the run's data, as they were read.
        trackers: told `started`, `step` and `stage`.
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
        self._trackers = Trackers(trackers)
        self._line: dict[str, Any] | None = None
        self._files = self._stages = 0
        self._started = False

    def look(self) -> None:
        """Tell what is new."""
        if not self._started:
            self._started = True
            self._trackers.tell("started", self.directory, self.benchmark)
        line = last_line(self.directory.steps)
        if line is not None and line != self._line:
            self._line = line
            self._trackers.tell("step", line)
        answers = list(self.directory.path.glob("predictions/*/*.jsonl"))
        files = len(answers) + self.directory.result.is_file()
        if files != self._files:
            scores = stage_scores(self.directory)
            for number in range(self._stages, len(scores)):
                self._trackers.tell("stage", number, scores[number])
            self._stages, self._files = max(self._stages, len(scores)), files
