"""The figures of docs/findings.md, from the reports in experiments/results.

python -m scripts.findings
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from forever.files import read_json
from forever.report.figures import style
from scripts.keep import REPORT, RESULTS

DOCS = Path(__file__).parents[1] / "docs"
# Sweeps on mini that stand for a table of the paper, in the order of the figure.
TABLES = ("baselines", "components", "spacing", "warmup_window", "memory_epochs", "memory_size")
# Variants of the sweep `doses` by their label, at each share of a task that is kept.
SCHEDULES = {
    "forever": "FOREVER",
    "step clock": "its days on a step clock",
    "random times": "random times",
    "fixed_interval": "fixed intervals",
    "end only": "end of a task only",
    "vbm": "VBM",
    "interleaved": "mixed into batches",
}
SHARES = ("2.5 %", "5 %", "10 %", "25 %", "50 %")
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)
COLOURS = {"win": "#117733", "loss": "#882255"}  # what is not shown is grey

Rows = Sequence[Mapping[str, Any]]


def rows_of(sweep: str) -> Rows:
    """The variants of a committed sweep on mini; none if it is not committed."""
    path = RESULTS / f"{sweep}-mini" / REPORT
    return read_json(path)["parts"][0]["rows"] if path.is_file() else []


def compared(rows: Rows) -> Rows:
    return [row for row in rows if row["difference"]]


def whisker(axis: Axes, y: float, difference: Mapping[str, Any], colour: str) -> None:
    """A dot with its interval, lying."""
    axis.hlines(y, difference["low"], difference["high"], color=colour, linewidth=2.2, alpha=0.4)
    axis.plot(difference["value"], y, "o", color=colour, markersize=5)


def at_one_budget() -> Figure:
    """What each way to spend the same replayed examples gains or loses against FOREVER."""
    rows = [row for row in compared(rows_of("arena")) if row["budget"] == "exact"]
    rows.sort(key=lambda row: row["difference"]["value"])
    figure, (axis,) = style.new_figure(7.5, [0.28 * len(rows)])
    for y, row in enumerate(rows):
        whisker(axis, y, row["difference"], COLOURS.get(row["verdict"], style.GREY))
    axis.axvline(0, **style.MARK)
    names = [f"{row['variant']} less {row['reference']}" for row in rows]
    axis.set_yticks(range(len(rows)), names)
    axis.set_xlabel("difference in OP, points, with 95 % interval")
    _spread_out(axis)
    return figure


def beside_the_paper() -> Figure:
    """Every difference in OP that the paper prints for these sweeps (hollow) and ours."""
    places = list(_published())
    figure, (axis,) = style.new_figure(8.5, [0.21 * len(places)])
    for y, (_, row) in enumerate(places):
        whisker(axis, y, row["difference"], style.ACCENT)
        axis.plot(row["paper"]["difference"], y, "D", color="#CC6677", fillstyle="none")
    axis.axvline(0, **style.MARK)
    names = [f"{sweep}: {row['variant']} less {row['reference']}" for sweep, row in places]
    axis.set_yticks(range(len(places)), names)
    axis.set(xlabel="difference in OP, points", ylim=(len(places) - 0.4, -0.6))
    axis.plot([], [], "o", color=style.ACCENT, label="mini, with 95 % interval")
    axis.plot([], [], "D", color="#CC6677", fillstyle="none", label="published")
    style.legend(figure, loc="outside upper right", ncols=2)
    _spread_out(axis)
    return figure


def _published() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for sweep in TABLES:
        for row in compared(rows_of(sweep)):
            if row["paper"] and row["paper"]["difference"] is not None and not row.get("idle"):
                yield sweep, row


def _spread_out(axis: Axes) -> None:
    """A point and fifty on one axis: linear up to two points, then logarithmic."""
    axis.set_xscale("symlog", linthresh=2, linscale=0.8)
    axis.xaxis.set_major_locator(FixedLocator(TICKS))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")
    axis.grid(axis="x", color=style.GRID, linewidth=0.6)
    axis.tick_params(length=0)


def by_dose() -> Figure:
    """OP over the examples that a run replays, at one budget for all schedules at each dose."""
    rows = {row["variant"]: row for row in rows_of("doses")}
    figure, (axis,) = style.new_figure(10, [2.8])
    for number, (schedule, look) in enumerate(style.looks(SCHEDULES, "forever").items()):
        doses: list[float] = []
        scores: list[float] = []
        for share in SHARES:
            row = rows[f"{schedule} {share}"]
            dose = row["replayed_rows"] * 1.03**number  # beside each other
            doses.append(dose)
            scores.append(row["op"]["value"])
            low, high = row["op"]["low"], row["op"]["high"]
            axis.vlines(dose, low, high, color=look["color"], linewidth=1.2, alpha=0.5)
        axis.plot(doses, scores, **{**look, "label": SCHEDULES[schedule]})
    axis.set_xscale("log")
    ticks = [rows[f"forever {share}"]["replayed_rows"] for share in SHARES]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.set(xlabel="replayed examples a run", ylabel="OP (%), 95 % interval")
    style.legend(figure)
    return figure


FIGURES = {"budget": at_one_budget, "paper": beside_the_paper, "dose": by_dose}


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        path = DOCS / f"findings-{name}.png"
        path.write_bytes(style.png(draw()))
        print(path)
