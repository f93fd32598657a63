"""Tables for the console: all sweeps with their questions, and the best runs of a search."""

from collections import Counter
from pathlib import Path

from rich import box
from rich.table import Column, Table

from forever.sweeps.files import shipped_sweeps
from forever.sweeps.search import BASE, Search
from forever.sweeps.studies import Studies


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
    rows = [(run.trial.variant, run) for run in front]
    for run in runs:
        if run.trial.variant == BASE and run.objectives and run not in front:
            rows.append(("[dim]base, beaten[/]", run))
    numbers = [Column(name, justify="right") for name in ("OP (%)", "BWT", "s")]
    table = Table("run", *numbers, title="Best in OP, BWT or time", box=box.SIMPLE, min_width=80)
    for name, run in rows:
        table.add_row(name, *map(str.format, ("{:.1f}", "{:+.1f}", "{:.0f}"), run.objectives or ()))
    states = sorted(Counter(run.state for run in runs).items())
    # The best of many runs is partly luck, on these examples and with this seed.
    table.caption = (
        f"{', '.join(f'{count} {state}' for state, count in states)}. Scored on examples held out "
        "from training, one seed: run the chosen ones on the test examples."
    )
    table.title_justify = table.caption_justify = "left"
    return table
