"""The main effects of a sweep whose variants are the cells of two factors."""

from __future__ import annotations

from collections.abc import Hashable

import pandas as pd

from forever.format import plural
from forever.report.format import NOTHING, distinct, estimated, number
from forever.report.run import Run
from forever.report.study import Part
from forever.stats.effects import Cell, MainEffects, main_effects
from forever.stats.sequential import ALPHA
from forever.stats.verdict import word


def effects_of(part: Part) -> MainEffects | None:
    """Compares the levels of both factors; None without two factors of several levels.

    A block is a seed with its order and with the settings that differ between runs of one cell,
    such as a learning rate's schedule, so several folders of one sweep make one table. A run that
    two folders have counts once.
    """
    planned = [run for run in part.runs if len(run.levels) == 2]
    base = next((run for run in planned if run.variant == part.reference), None)
    if base is None:
        return None
    first, second = base.levels
    levels = {name: distinct(run.levels[name] for run in planned) for name in base.levels}
    if min(map(len, levels.values())) < 2:
        return None
    by_cell: dict[Cell, list[Run]] = {}
    for run in planned:
        if run.result is not None:
            by_cell.setdefault((run.levels[first], run.levels[second]), []).append(run)
    outside: set[str] = set()
    for runs in by_cell.values():
        for run in runs:
            for key in {*run.settings, *runs[0].settings}:
                if run.settings.get(key) != runs[0].settings.get(key):
                    outside.add(key)
    scores: dict[tuple[Cell, Hashable], float] = {}
    for cell, runs in by_cell.items():
        for run in runs:
            block = run.unit, str([run.settings.get(key) for key in sorted(outside)])
            scores.setdefault((cell, block), run.outcome["op"])
    return main_effects(scores, levels, (base.levels[first], base.levels[second]))


def effects_table(part: Part) -> pd.DataFrame:
    """Tabulates the main effects as text; empty if there are none."""
    found = effects_of(part)
    rows: list[tuple[str, ...]] = []
    for effect in found.effects if found else ():
        texts = number(effect.score, "{:.2f}"), estimated(effect.difference, "{:+.2f}")
        rows.append((effect.factor, effect.level, *texts, word(effect.verdict) or NOTHING))
    return pd.DataFrame(rows, columns=["factor", "level", "OP (%)", "Δ OP", "verdict"])


def effects_note(part: Part) -> str:
    """Says how the table of main effects was made; "" if there is none."""
    found = effects_of(part)
    if found is None:
        return ""
    left_out = f"; {plural(found.incomplete, 'block')} without some cell left out"
    return (
        f"Main effects: each level's mean over the levels of the other factor, in "
        f"{plural(found.blocks, 'block')}{left_out if found.incomplete else ''}. Intervals are of "
        f"a confidence sequence over blocks; {plural(found.comparisons, 'comparison')} together "
        f"err in at most {100 * ALPHA:g} %."
    )
