"""Tables for the console: all sweeps with their questions, and the best runs of a search."""

from collections import Counter
from pathlib import Path

from rich import box
from rich.table import Column, Table

from forever.sweeps.files import shipped_sweeps
from forever.sweeps.search import BASE, Search
from forever.sweeps.studies import Known, Studies


def sweeps_table() -> Table:
    """All sweeps that are shipped, in the order of the paper."""
    table = Table(Column("sweep", no_wrap=True), "question", box=box.SIMPLE)
    for sweep in shipped_sweeps().values():
        table.add_row(sweep.name, sweep.question)
    return table


def front_table(search: Search, folder: Path) -> Table:
    """The finished runs of a search that no other beats in OP, BWT and time, and its base."""
    studies = Studies(search, folder)
    runs, front = studies.known(), studies.best()
    table = Table("run", title="Best in OP, BWT or time", box=box.SIMPLE, min_width=80)
    for name in ("OP (%)", "BWT", "s"):
        table.add_column(name, justify="right")
    for run in front:
        table.add_row(run.trial.variant, *_cells(run))
    for run in runs:
        if run.trial.variant == BASE and run.objectives and run not in front:
            table.add_row("[dim]base, beaten[/]", *_cells(run))
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    # The best of many runs is partly luck, on these examples and with this seed.
    table.caption = (
        f"{counts}. Scored on examples held out from training, one seed: run the chosen ones on "
        "the test examples."
    )
    table.title_justify = table.caption_justify = "left"
    return table


def _cells(run: Known) -> list[str]:
    op, bwt, seconds = run.objectives or (0.0, 0.0, 0.0)
    return [f"{op:.1f}", f"{bwt:+.1f}", f"{seconds:.0f}"]
