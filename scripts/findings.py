"""The figures of docs/findings.md, from the reports in experiments/results.

python -m scripts.findings
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from forever.report.figures import style
from forever.runs.directory import read_json
from scripts.keep import REPORT, RESULTS

DOCS = Path(__file__).parents[1] / "docs"
# Sweeps on mini that stand for a table of the paper, in the order of the figure.
TABLES = ("baselines", "components", "spacing", "warmup_window", "memory_epochs")
# Variants that differ in little but how many examples they replay, by what they do with them.
DOSES = {
    "FOREVER": [("arena", "forever"), ("warmup_window", "S = 8"), ("memory_epochs", "E_mem = 1"),
                ("warmup_window", "S = 4"), ("components", "base"), ("warmup_window", "S = 1"),
                ("memory_epochs", "E_mem = 4")],
    "mixed into batches": [("arena", "interleaved"), ("baselines", "mix_replay")],
}  # fmt: skip
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)
COLOURS = {"win": "#117733", "loss": "#882255", "tie": style.GREY}

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
        whisker(axis, y, row["difference"], COLOURS[row["verdict"] or "tie"])
    axis.axvline(0, **style.MARK)
    names = [f"{row['variant']} less {row['reference']}" for row in rows]
    axis.set_yticks(range(len(rows)), names)
    axis.set_xlabel("difference in OP, points, with 95 % interval")
    _spread_out(axis)
    return figure


def beside_the_paper() -> Figure:
    """Every difference in OP that the paper prints (hollow) and ours, a row each."""
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
    """OP over the examples that a run replays: FOREVER with other days or passes, and mixing."""
    figure, (axis,) = style.new_figure(10, [2.8])
    for method, look in style.looks(DOSES, "FOREVER").items():
        rows = [row for sweep, name in DOSES[method] for row in rows_of(sweep)
                if row["variant"] == name]  # fmt: skip
        rows.sort(key=lambda row: row["replayed_rows"])
        doses = [row["replayed_rows"] for row in rows]
        for number, (dose, row) in enumerate(zip(doses, rows, strict=True)):
            op, above = row["op"], number % 2 == 1  # names of neighbours would touch
            axis.vlines(dose, op["low"], op["high"], color=look["color"], linewidth=1.2, alpha=0.5)
            side = 1 if method == "FOREVER" else -1
            place = {"xytext": (4 * side, 8 if above else -13), "textcoords": "offset points"}
            look_of_name = {"fontsize": style.SMALL, "color": look["color"]}
            name: Any = place | look_of_name | {"ha": "left" if side == 1 else "right"}
            axis.annotate(row["variant"], (dose, op["value"]), **name)
        axis.plot(doses, [row["op"]["value"] for row in rows], **look)
    axis.set(xlabel="replayed examples a run", ylabel="OP (%), 95 % interval", xlim=0)
    style.legend(figure)
    return figure


FIGURES = {"budget": at_one_budget, "paper": beside_the_paper, "dose": by_dose}


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        path = DOCS / f"findings-{name}.png"
        path.write_bytes(style.png(draw()))
        print(path)
