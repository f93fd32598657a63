"""The answers of a run and their scores: those on disk are read back, not given again."""

from collections.abc import Mapping, Sequence

from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.evaluation.scoring import Prediction
from forever.files import file_digest
from forever.runs.directory import RunDirectory
from forever.text import complain
from forever.world import World


class Answers:
    """The answers of a run's stages, their digests, and the matrix of their scores.

    Args:
        digests: those of all files that the checkpoint counts.
        stage: that of the checkpoint; the weights of earlier ones are gone.
    """

    def __init__(
        self,
        directory: RunDirectory,
        benchmark: Benchmark,
        world: World,
        digests: Mapping[str, str],
        stage: int,
    ) -> None:
        self.matrix = PerformanceMatrix(
            tuple(task.name for task in benchmark.tasks),
            tuple(stage.name for stage in benchmark.stages),
        )
        for number, task in enumerate(benchmark.tasks):
            if not task.test:
                self.matrix.missing |= {(number, j) for j in range(len(benchmark.stages))}
        self.digests = {name: digests[name] for name in digests if name.startswith("predictions")}
        self._directory, self._benchmark, self._world = directory, benchmark, world
        self._stage = stage
        self._unsynced = set[int]()  # stages whose answers a power cut could take

    def read(self, stage: int, task: int) -> bool:
        """Read the scores of the answers to a task; False if they must be given (again).

        Raises:
            InputError: they are missing or damaged, and the weights that gave them are gone.
        """
        path = self._directory.predictions(stage, task)
        name, examples = self._directory.name(path), self._benchmark.tasks[task].test
        if stage < self._stage and name not in self.digests:
            self.matrix.missing.add((task, stage))  # a run before this one had no test examples
            return True

        # Are the answers there, as they were written, one for each test example?
        answers = self._directory.sound_answers(stage, task)
        digest = file_digest(path) if answers else ""
        if digest != self.digests.get(name, digest):
            answers = None
        problem = f"{path} is {'damaged' if path.is_file() else 'missing'}"
        if answers and len(answers) != len(examples):
            problem = f"{path} has {len(answers)} answers for {len(examples)} test examples"
            answers = None

        # Ranks decide alike: another machine may have files that the leader has removed since.
        together = all(votes[0] for votes in self._world.gather([bool(answers)]))
        if answers and together:
            self.digests[name] = digest
            self.matrix.items[task, stage] = [line["score"] for line in answers]
            return True

        # They are given again, if by the same weights.
        if stage < self._stage:
            raise InputError(
                f"{problem}, and the weights that gave its answers were trained on "
                "since; put back what was there, or give another --out to run from the beginning"
            )
        if path.is_file() and self._world.leads:
            complain(f"{problem}; the answers are given again")
        return False

    def write(self, stage: int, task: int, answers: Sequence[Prediction]) -> None:
        """Take the scores of a task's answers, and write those to disk."""
        self.matrix.items[task, stage] = [answer.score for answer in answers]
        if self._world.leads:
            digest = self._directory.write_answers(stage, task, map(vars, answers))
            self.digests[self._directory.name(self._directory.predictions(stage, task))] = digest
            self._unsynced.add(stage)

    def sync(self) -> None:
        """Bring answers to the disk itself, before the weights that gave them may go."""
        if self._unsynced:
            self._directory.sync_answers(self._unsynced)
            self._unsynced.clear()
