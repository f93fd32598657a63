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
    # What differs between runs of the reference's cell, such as a schedule of the learning rate.
    reference = base.levels[first], base.levels[second]
    known = by_cell.get(reference, [])
    outside = {
        key
        for run in known
        for key in {*run.settings, *known[0].settings}
        if run.settings.get(key) != known[0].settings.get(key)
    }
    scores: dict[tuple[Cell, Hashable], float] = {}
    for cell, runs in by_cell.items():
        for run in runs:
            block = run.unit, str([run.settings.get(key) for key in sorted(outside)])
            scores.setdefault((cell, block), run.outcome["op"])
    doses_differ = any(not row.dose_gap.comparable for row in part.rows if row.planned[0].levels)
    return main_effects(scores, levels, reference, equal_doses=not doses_differ)


def effects_table(part: Part) -> pd.DataFrame:
    """Tabulates the main effects as text; empty if there are none."""
    effects = effects_of(part)
    rows: list[tuple[str, ...]] = []
    for effect in effects.effects if effects else ():
        texts = number(effect.score, "{:.2f}"), estimated(effect.difference, "{:+.2f}")
        rows.append((effect.factor, effect.level, *texts, word(effect.verdict) or NOTHING))
    return pd.DataFrame(rows, columns=["factor", "level", "OP (%)", "Δ OP", "verdict"])


def effects_note(part: Part) -> str:
    """Says how the table of main effects was made; "" if there is none."""
    effects = effects_of(part)
    if effects is None:
        return ""
    left_out = f"; {plural(effects.incomplete, 'block')} left out, which lack a cell"
    cautions = [f"{e.factor} {e.level} ({e.caution})" for e in effects.effects if e.caution]
    careful = f" Less sure than that: {', '.join(cautions)}." if cautions else ""
    return (
        f"Main effects: each level's mean over the levels of the other factor, in "
        f"{plural(effects.blocks, 'block')}{left_out if effects.incomplete else ''}. Intervals are "
        f"of a confidence sequence over blocks; {plural(effects.comparisons, 'comparison')} "
        f"together err in at most {100 * ALPHA:g} %, if differences are about normal.{careful} "
        "Single cells, orders and rates are exploratory: their intervals hold for one look."
    )
