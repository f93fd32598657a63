"""Whether a variant is better than its reference: one rule for tables, pages and sweeps in rounds.

Variants that both replay are judged at equal doses only: as many replayed examples, or as much time
spent on them. What a larger dose is worth is another question, which only variants ask that differ
in nothing but the dose; those that replay nothing, such as bounds, ask what replay is worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

# Points of OP: the components that matter in the paper move it by 1.2 to 5.3.
EQUIVALENT = 1.0
# The shares of the larger dose by which two may differ. A budget of examples is kept exactly, so
# 2 % forgive rounding; one of seconds is left after the update that exceeds it.
APART = {"examples": 0.02, "seconds": 0.1}
# Points of BWT: fine-tuning that loses less has forgotten nothing that a method could keep.
FORGOTTEN = 1.0
# What sets how much is replayed, and nothing else.
DOSE = ("memory.fraction", "method.memory_epochs", "budget.examples", "budget.seconds")

Verdict = Literal["win", "loss", "equivalent", "tie", "not comparable"]
_WORDS = {"win": "better", "loss": "worse", "tie": "not shown", "not comparable": "≠ dose"}


def verdict(
    value: float, low: float, high: float, shown: bool, margin: float | None = EQUIVALENT
) -> Verdict:
    """What a difference to the reference says.

    Args:
        value: the difference in points; `low` and `high` are the ends of its interval.
        shown: whether the difference is significant.
        margin: an interval within this many points of zero shows that variants are equivalent;
            None: nothing shows that.
    """
    if shown and value:
        return "win" if value > 0 else "loss"
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent"
    return "tie"


def nothing_to_forget(tuned: Sequence[float]) -> bool:
    """Whether BWT says nothing about keeping what was known: fine-tuning, whose BWT is given,
    forgot nothing."""
    return bool(tuned) and min(tuned) > -FORGOTTEN


def word(code: Verdict | None) -> str:
    """A verdict as people read it; "" for none."""
    return _WORDS.get(code or "", code or "")


class Replayed(NamedTuple):
    """What a run replayed; None: it did not count."""

    examples: float | None
    seconds: float | None


def replayed(result: Mapping[str, Any]) -> Replayed:
    """What result.json says: examples of memory and those in their place, repetitions and views
    counted, and, of a run with a budget of seconds, the time of updates on them."""
    counted = result.get("examples")
    examples = None
    if counted:
        examples = counted["replayed"] + counted.get("padded", 0)
    seconds: list[float] = []
    for note in result.get("notes", {}).values():
        if "replay_seconds" in note:
            seconds.append(note["replay_seconds"])
    return Replayed(examples, math.fsum(seconds) if seconds else None)


@dataclass(frozen=True)
class DoseGap:
    """How far apart the replay doses of two variants are.

    Attributes:
        kind: "examples" or "seconds" of replay; "" where doses need not be equal, or are not known.
        apart: the difference as a share of the larger dose.
    """

    kind: Literal["examples", "seconds", ""] = ""
    apart: float = 0.0

    @property
    def comparable(self) -> bool:
        """Whether there may be a verdict."""
        return self.apart <= APART.get(self.kind, math.inf)

    def words(self) -> str:
        """By how much they differ."""
        return f"{100 * self.apart:.1f} % of {self.kind}"

    @property
    def equal(self) -> str:
        """What is equal: `kind` where it is so."""
        return self.kind if self.comparable else ""


def dose_gap(
    settings: Mapping[str, Any],
    others: Mapping[str, Any],
    runs: Sequence[Replayed],
    base: Sequence[Replayed],
) -> DoseGap:
    """Compares the doses of a variant and its reference.

    Args:
        settings: of the variant under dotted keys; `others` are those of the reference.
        runs: what the variant's runs replayed; `base` is the same of the reference's, run by run.
    """
    seconds = settings.get("budget.seconds")
    is_timed = seconds is not None and seconds == others.get("budget.seconds")
    kind = "seconds" if is_timed else "examples"
    dose, other = _total(runs, kind), _total(base, kind)
    if not dose or not other:
        return DoseGap()
    result = DoseGap(kind, abs(dose - other) / max(dose, other))
    keys = {key for key in {*settings, *others} if settings.get(key) != others.get(key)}
    if not result.comparable and keys <= {*DOSE}:
        return DoseGap()
    return result


def _total(runs: Sequence[Replayed], kind: str) -> float | None:
    """The sum over runs; None if one did not count."""
    numbers = [getattr(run, kind) for run in runs]
    return None if None in numbers else math.fsum(numbers)
