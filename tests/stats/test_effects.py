"""Main effects by hand."""

from collections.abc import Hashable

import pytest

from forever.stats.effects import Cell, Effect, main_effects
from forever.stats.sequential import half_width

LEVELS = {"when": ("days", "mixed"), "how": ("none", "L2", "KL")}
WORTH = {"days": 0.0, "mixed": 4.0, "none": 0.0, "L2": 1.0, "KL": -2.0}


def scores() -> dict[tuple[Cell, Hashable], float]:
    """Six blocks in which levels add up, but for 3 points more of KL mixed in each second block.
    In the mean over how, mixed is then worth 4 or 5 points; over when, KL -2 or -0.5."""
    known: dict[tuple[Cell, Hashable], float] = {}
    for block in range(6):
        for when in LEVELS["when"]:
            for how in LEVELS["how"]:
                more = 3.0 * (block % 2) if (when, how) == ("mixed", "KL") else 0.0
                known[(when, how), block] = 80.0 + block + WORTH[when] + WORTH[how] + more
    return known


def test_a_level_is_compared_in_the_mean_over_the_other_factor() -> None:
    found = main_effects(scores(), LEVELS, ("days", "none"))
    assert (found.blocks, found.incomplete, found.comparisons) == (6, 0, 3)
    days, mixed, none, l2, kl = found.effects
    # The blocks have 82.5 in the mean, and the levels of how -1/3.
    assert days.score == pytest.approx(82.5 - 1 / 3)
    assert days == Effect("when", "days", days.score, None, None)
    assert none.score == pytest.approx(84.5)
    assert mixed.difference is not None
    assert kl.difference is not None
    assert (mixed.level, mixed.difference.value, mixed.verdict) == ("mixed", 4.5, "win")
    # A level of alpha over three comparisons.
    half = half_width([4.0, 5.0] * 3, 0.05 / 3)
    assert mixed.difference.high == pytest.approx(4.5 + half)
    half = half_width([-2.0, -0.5] * 3, 0.05 / 3)
    assert (kl.difference.value, kl.difference.low) == pytest.approx((-1.25, -1.25 - half))
    # Always one point, so one is shown.
    assert l2.difference is not None
    assert (l2.difference.value, l2.difference.low, l2.verdict) == (1.0, 1.0, "win")
    # Six blocks decide with less than the level says; what is open has nothing to be careful of.
    assert [effect.caution for effect in (mixed, l2)] == ["decided by 6 blocks"] * 2
    assert (kl.verdict, kl.caution) == ("tie", "")
    unequal = main_effects(scores(), LEVELS, ("days", "none"), equal_doses=False).effects
    assert {(effect.verdict, effect.caution) for effect in unequal} == {(None, "")}
    assert unequal[1].difference == mixed.difference


def test_a_block_without_a_cell_is_left_out_and_counted() -> None:
    known = scores()
    del known[("mixed", "L2"), 5]
    found = main_effects(known, LEVELS, ("days", "none"))
    assert (found.blocks, found.incomplete) == (5, 1)
    difference = found.effects[1].difference
    assert difference is not None
    assert (difference.value, difference.runs) == (pytest.approx(4.4), 5)
    # A level that is planned and was not run leaves nothing to compare.
    more = LEVELS | {"how": ("none", "L2", "KL", "logits")}
    found = main_effects(known, more, ("days", "none"))
    assert (found.blocks, found.incomplete, found.comparisons) == (0, 6, 4)
    assert {effect.difference for effect in found.effects} == {None}
