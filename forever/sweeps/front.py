"""The best runs of a search, as a table."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from forever.sweeps.search import BASE, Known, front


def front_table(runs: Sequence[Known]) -> Table:
    """The finished runs of a search that no other beats in OP, BWT and time, and the base if it is
    none of them."""
    finished = [run for run in runs if run.state == "finished"]
    best = front(finished, lambda run: run.objectives)
    table = Table(
        title="Best in OP, BWT or time", title_justify="left", box=box.SIMPLE, min_width=80
    )
    table.add_column("run")
    for name in ("OP (%)", "BWT", "s"):
        table.add_column(name, justify="right")
    for run in [*best, *(run for run in finished if run.trial.variant == BASE and run not in best)]:
        op, bwt, seconds = run.objectives
        name = run.trial.variant if run in best else f"[dim]{run.trial.variant}, beaten[/]"
        table.add_row(name, f"{op:.1f}", f"{bwt:+.1f}", f"{seconds:.0f}")
    states = [run.state for run in runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    # The best of many runs is partly luck, on these rows and with this seed.
    table.caption = (
        f"{counts}. Scored on rows held out from training, one seed: run the chosen ones on the "
        "test rows."
    )
    table.caption_justify = "left"
    return table
