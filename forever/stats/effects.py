"""Main effects: what a level of one factor is worth in the mean over the levels of another.

Every combination of two levels, a cell, is run in blocks, which differ in all that is not a factor.
A block has one number a level, its mean over the other factor's levels, so the comparison of two
levels has one difference a block, however many cells there are. The differences are judged by the
confidence sequence of `sequential`, which holds however often blocks are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from forever.stats.bootstrap import Estimate
from forever.stats.sequential import ALPHA, ROUNDING, caution, half_width
from forever.stats.verdict import Verdict, verdict

Cell = tuple[str, ...]  # a level of each factor


@dataclass(frozen=True)
class Effect:
    """A level of a factor: its mean score, and what that is less the reference level's; None for
    the reference level itself, and if no block is complete."""

    factor: str
    level: str
    score: float | None
    difference: Estimate | None
    verdict: Verdict | None
    caution: str = ""  # why the verdict may be wrong more often than promised


@dataclass(frozen=True)
class MainEffects:
    """The effects of all levels.

    `blocks` are those in which every cell was measured; the `incomplete` are left out.
    """

    effects: Sequence[Effect]
    blocks: int
    incomplete: int
    comparisons: int  # which err in at most ALPHA together


def main_effects(
    scores: Mapping[tuple[Cell, Hashable], float],
    levels: Mapping[str, Sequence[str]],
    reference: Cell,
    equal_doses: bool = True,
) -> MainEffects:
    """Compares the levels of two factors with the reference level of each.

    Args:
        scores: in percent, by cell and block.
        levels: all that are planned, of each of two factors by its name. A block without one of
            their cells is left out.
        reference: the level of each factor with which the others are compared.
        equal_doses: whether all cells replay as many examples; otherwise nothing is judged.
    """
    cells = list(product(*levels.values()))
    count = Counter(block for _, block in scores)
    blocks = [block for block in count if count[block] == len(cells)]
    comparisons = sum(map(len, levels.values())) - 2
    effects: list[Effect] = []
    for place, (factor, names) in enumerate(levels.items()):
        # By level, one number a block: the mean over the levels of the other factor.
        means: dict[str, list[float]] = {}
        for level in names:
            row = [cell for cell in cells if cell[place] == level]
            means[level] = [fmean(scores[cell, block] for cell in row) for block in blocks]
        for level in names:
            difference = outcome = None
            reason = ""
            if blocks and level != reference[place]:
                base = means[reference[place]]
                apart = [a - b for a, b in zip(means[level], base, strict=True)]
                value, half = fmean(apart), half_width(apart, ALPHA / comparisons)
                low, high = max(value - half, -100.0), min(value + half, 100.0)
                difference = Estimate(value, low, high, len(blocks))
                if equal_doses:
                    outcome = verdict(value, low, high, shown=abs(value) - half > ROUNDING)
                    reason = caution(apart, 0.0, 0 if outcome == "tie" else len(blocks), "block")
            score = fmean(means[level]) if blocks else None
            effects.append(Effect(factor, level, score, difference, outcome, reason))
    return MainEffects(effects, len(blocks), len(count) - len(blocks), comparisons)
