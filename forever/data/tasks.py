"""The nouns of a benchmark: an example, a task, and the order in which tasks are learned."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Message:
    """What one of the roles says in a conversation: system, user or assistant."""

    role: str
    content: str
    supervised: bool = True  # whether `data.supervise=all` has a model learn to say it


@dataclass(frozen=True, slots=True)
class Example:
    """One training or test example; `id` is `<task>/<split>/<row>`, unique within a benchmark.

    It has an instruction with its input, or else the `turns` of a conversation before the answer.
    """

    id: str
    instruction: str
    input: str
    output: str
    turns: tuple[Message, ...] = ()

    @property
    def question(self) -> tuple[str, ...]:
        """What must not occur in training and in test."""
        if self.turns:
            return tuple(f"{turn.role}\0{turn.content.strip()}" for turn in self.turns)
        if self.is_text:
            return ("", self.output.strip())
        return self.instruction.strip(), self.input.strip()

    @property
    def opening(self) -> str:
        """What other examples of the task mostly begin with, too."""
        if self.turns and self.turns[0].role == "system":
            return self.turns[0].content
        return self.instruction

    @property
    def is_text(self) -> bool:
        """Whether it is a text alone, and answers nothing."""
        return not (self.instruction or self.input or self.turns)

    @property
    def shown(self) -> str:
        """What tells it from others of its task: the last turn, or the input if it has one."""
        return self.turns[-1].content if self.turns else self.input or self.instruction


Splits = tuple[tuple[Example, ...], tuple[Example, ...]]  # train, test


@dataclass(frozen=True)
class Learned:
    """What a run wrote of a task: enough to continue when its training examples are gone."""

    digest: str
    test_digest: str
    metric: str
    labels: tuple[str, ...] | None
    train: int  # how many training examples it had
    tested: bool = True  # whether its test examples are still here


@dataclass(frozen=True)
class Task:
    """One task: its disjoint splits, the metric of its scores (see `forever.scores`), and its
    answers if they are labels.

    `labels` are sorted and distinct; None means generation.
    """

    name: str
    train: tuple[Example, ...]
    test: tuple[Example, ...]
    metric: str
    labels: tuple[str, ...] | None = None
    learned: Learned | None = None  # by another run, on training examples that are gone

    @property
    def train_count(self) -> int:
        """How many training examples it has, or had."""
        return self.learned.train if self.learned else len(self.train)

    def digest(self) -> str:
        """Twelve hex digits that change with any example."""
        return self.learned.digest if self.learned else self._digest(self.train + self.test)

    def test_digest(self) -> str:
        """Twelve hex digits that change with any test example."""
        return self.learned.test_digest if self.learned else self._digest(self.test)

    def as_learned(self) -> Learned:
        """What a run writes of it."""
        return Learned(
            self.digest(),
            self.test_digest(),
            self.metric,
            self.labels,
            self.train_count,
            tested=bool(self.test),
        )

    def _digest(self, examples: tuple[Example, ...]) -> str:
        sha = hashlib.sha256(f"{self.name} {self.metric}".encode())
        for example in examples:
            turns = (text for turn in example.turns for text in (turn.role, turn.content))
            fields = (example.id, example.instruction, example.input, example.output, *turns, "\n")
            sha.update("\0".join(fields).encode())
        return sha.hexdigest()[:12]


@dataclass(frozen=True)
class Benchmark:
    """Tasks in the order in which they arrive.

    `tasks` are scored, `stages` are trained. In continual learning the two are equal, and task i is
    scored after every stage j >= i. Joint training has one stage, after which all are scored.
    """

    name: str
    order: str
    tasks: tuple[Task, ...]
    stages: tuple[Task, ...]

    @classmethod
    def sequence(cls, name: str, order: str, tasks: Iterable[Task]) -> "Benchmark":
        """Tasks learned one after another."""
        tasks = tuple(tasks)
        return cls(name, order, tasks, stages=tasks)

    def joint(self) -> "Benchmark":
        """Return the multi-task upper bound: one stage on the union of all training examples.

        It starts from the order of the tasks' names, so the order of learning does not matter. One
        task alone stays itself, name and random streams included, and equals fine-tuning.
        """
        if len(self.tasks) == 1:
            return self
        tasks = sorted(self.tasks, key=lambda task: task.name)
        union = tuple(example for task in tasks for example in task.train)
        stage = replace(tasks[0], name="joint", train=union, test=(), labels=None)
        return replace(self, stages=(stage,))

    def seen(self, stage: int) -> tuple[int, ...]:
        """Indices of the tasks that have been learned once `stage` (0-based) is over."""
        return tuple(range(len(self.tasks))) if len(self.stages) == 1 else tuple(range(stage + 1))
