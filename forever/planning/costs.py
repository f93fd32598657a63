"""What a run computes, in counts, and how fast a device does it: the two factors of its time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forever.data.tasks import Example

UPDATES = ("task", "replay", "consolidation", "generator")


@dataclass(frozen=True)
class EndWork:
    """What a method's `end_task` will compute, for a plan.

    Attributes:
        passes: rows that go forward and back one by one, as for the Fisher information.
        texts: for each call of the decoder, the (prompt, written) tokens of its rows.
    """

    passes: Sequence["Example"] = ()
    texts: Sequence[Sequence[tuple[int, int]]] = ()


@dataclass(frozen=True)
class Work:
    """A kind of work.

    Attributes:
        calls: how often the model is called: updates, passes, batches of prompts, steps of
        decoding.
        tokens: of all rows. padded: the same with padding, which is what is computed.
    """

    calls: int = 0
    tokens: int = 0
    padded: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.calls + other.calls, self.tokens + other.tokens, self.padded + other.padded
        )


@dataclass(frozen=True)
class Plan:
    """Counts of one run.

    Attributes:
        work: by kind: the four of updates; `probe` (losses without an update); `single` (rows
        forward and back one by
            one); `prompts` and `answers` of evaluation, `openings` and `texts` of what a method
            writes itself: tokens that are read at once, and those that are written one step at a
            time.
        events: replays, consolidations and looks.
        rows: training rows by kind of update, repetitions counted, views not.
    """

    work: Mapping[str, Work]
    events: Mapping[str, int]
    rows: Mapping[str, int]

    @property
    def updates(self) -> dict[str, int]:
        """Optimiser updates by kind."""
        return {kind: self.work[kind].calls for kind in UPDATES if kind in self.work}

    @property
    def train_tokens(self) -> int:
        """Tokens of all updates: the `tokens` of result.json."""
        return self.tokens(*UPDATES)

    @property
    def other_tokens(self) -> int:
        """What a method computes besides updates: probes, Fisher information, texts of its own."""
        return self.tokens("probe", "single", "openings", "texts")

    @property
    def evaluation_tokens(self) -> int:
        """Tokens of prompts and answers that are decoded to be scored."""
        return self.tokens("prompts", "answers")

    def tokens(self, *kinds: str) -> int:
        """Tokens of some kinds of work, without padding."""
        return sum(self.work[kind].tokens for kind in kinds if kind in self.work)

    def seconds_at(self, tokens_per_second: float) -> float:
        """Time at a stated training throughput.

        A pass forward alone takes a third of one forward and back. A decoded token counts as a
        trained one: it does a third of the arithmetic, but in small steps.
        """
        read = self.tokens("probe", "prompts", "openings") / 3
        return (
            self.train_tokens + self.tokens("single", "answers", "texts") + read
        ) / tokens_per_second


@dataclass(frozen=True)
class Rate:
    """Seconds = per_call * calls + per_token * padded tokens."""

    per_call: float
    per_token: float

    @classmethod
    def fit(cls, samples: Sequence[tuple[float, float]]) -> "Rate":
        """The line through (padded tokens, seconds) of single calls with the least squares and
        nothing negative."""
        x, y = mean(x for x, _ in samples), mean(y for _, y in samples)
        spread = sum((a - x) ** 2 for a, _ in samples)
        slope = sum((a - x) * (b - y) for a, b in samples) / spread if spread else 0.0
        return cls.through(x, y, max(slope, 0.0))

    @classmethod
    def through(cls, tokens: float, seconds: float, per_token: float) -> "Rate":
        """A line of a known slope through one point, less steep if a call of no tokens would take
        less than none."""
        per_token = min(per_token, seconds / tokens) if tokens else 0.0
        return cls(seconds - per_token * tokens, per_token)

    def seconds(self, work: Work) -> float:
        """Time of some work."""
        return self.per_call * work.calls + self.per_token * work.padded


@dataclass(frozen=True)
class Speed:
    """How fast a device does the work of one kind of run, as measured.

    Attributes:
        rates: by kind of work. start: seconds before the first update: libraries, weights, data.
    """

    rates: Mapping[str, Rate]
    start: float

    def seconds(self, plan: Plan) -> float:
        """Time of a run."""
        return self.start + sum(self.rates[kind].seconds(work) for kind, work in plan.work.items())
