"""Tables for the console: all sweeps with their questions, and the best runs of a search."""

from collections import Counter
from pathlib import Path

from forever.sweeps.files import shipped_sweeps
from forever.sweeps.search import BASE, Search
from forever.sweeps.studies import Known, Studies
from forever.text import Cell, PlainTable


def sweeps_table() -> PlainTable:
    """All sweeps that are shipped, in the order of the paper."""
    table = PlainTable()
    table.add_column("sweep", no_wrap=True)
    table.add_column("question")
    for sweep in shipped_sweeps().values():
        table.add_row(sweep.name, sweep.question)
    return table


def front_table(search: Search, folder: Path) -> PlainTable:
    """The finished runs of a search that no other beats in OP, BWT and time, and its base."""
    studies = Studies(search, folder)
    runs, front = studies.known(), studies.best()
    table = PlainTable("run", title="Best in OP, BWT or time", min_width=80)
    for name, key in {"OP (%)": "op", "BWT": "bwt", "s": "seconds"}.items():
        table.add_column(name, key=key, justify="right")
    for run in front:
        table.add_row(run.trial.variant, *_cells(run))
    for run in runs:
        if run.trial.variant == BASE and run.objectives and run not in front:
            table.add_row("base, beaten", *_cells(run), style="dim")
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    # The best of many runs is partly luck, on these examples and with this seed.
    table.caption = (
        f"{counts}. Scored on examples held out from training, one seed: run the chosen ones on "
        "the test examples."
    )
    return table


def _cells(run: Known) -> list[Cell]:
    op, bwt, seconds = run.objectives or (0.0, 0.0, 0.0)
    return [Cell(op, f"{op:.1f}"), Cell(bwt, f"{bwt:+.1f}"), Cell(seconds, f"{seconds:.0f}")]
