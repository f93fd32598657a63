"""Draw the figures of docs/findings.md from the committed reports: `python -m scripts.findings`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator

from forever.files import read_json
from scripts.keep import REPORT, RESULTS

DOCS = Path(__file__).parents[1] / "docs"
# Sweeps on mini that a table of the paper has as well, in the order of the figure.
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
# How the report names the variants of `when_how` at each learning rate.
RATES = {"constant rate": "", "linear decay": " (optim.schedule=linear)"}
SHARES = ("2.5 %", "5 %", "10 %", "25 %", "50 %")
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)
GREY, BLUE, RED = "#777777", "#004488", "#CC6677"
COLOURS = {"win": "#117733", "loss": "#882255"}  # what is not shown is grey

Rows = Sequence[Mapping[str, Any]]


def rows_of(sweep: str) -> Rows:
    """Return the rows of a committed sweep on mini."""
    return read_json(RESULTS / f"{sweep}-mini" / REPORT)["parts"][0]["rows"]


def new_axis(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def draw_differences(axis: Axes, rows: Rows, names: Sequence[str], colours: Sequence[str]) -> None:
    """Draw a dot with its interval a row; the axis is logarithmic beyond two points."""
    for y, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        difference = row["difference"]
        axis.hlines(y, difference["low"], difference["high"], color=colour, linewidth=2, alpha=0.4)
        axis.plot(difference["value"], y, "o", color=colour, markersize=5)
    axis.axvline(0, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("difference in OP, points, with 95 % interval")
    axis.set_xscale("symlog", linthresh=2, linscale=0.8)
    axis.xaxis.set_major_locator(FixedLocator(TICKS))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")


def when_and_how() -> Figure:
    """Draw the main effects with their intervals, and OP of each cell at both learning rates."""
    part = read_json(RESULTS / "when_how-mini" / REPORT)["parts"][0]
    effects = part["analyses"]["main_effects"]["effects"]
    levels = {f: [e["level"] for e in effects if e["factor"] == f] for f in ("when", "how")}
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axis, *maps = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    compared = [effect for effect in effects if effect["difference"]]
    axis.spines[["top", "right"]].set_visible(False)
    colours = [COLOURS.get(effect["verdict"], GREY) for effect in compared]
    draw_differences(axis, compared, [effect["level"] for effect in compared], colours)
    axis.set_xscale("linear")
    axis.xaxis.set_major_locator(MultipleLocator(1))
    axis.invert_yaxis()
    axis.axhline(len(levels["when"]) - 1.5, color=GREY, linewidth=0.6)
    axis.set_xlabel("OP less standard days, or less no anchor, points")
    axis.set_title("main effects, 95 % for all nine", fontsize=10)
    scores = {row["variant"]: row["op"]["value"] for row in part["rows"]}
    for heat, (title, suffix) in zip(maps, RATES.items(), strict=True):
        cells = [[scores[f"{w} {h}{suffix}"] for h in levels["how"]] for w in levels["when"]]
        heat.imshow(cells, cmap="Blues", vmin=min(scores.values()), vmax=max(scores.values()))
        for y, line in enumerate(cells):
            for x, value in enumerate(line):
                dark = value > (min(scores.values()) + max(scores.values())) / 2
                colour = "white" if dark else "black"
                heat.text(x, y, f"{value:.1f}", color=colour, ha="center", va="center", fontsize=8)
        heat.set_xticks(range(len(levels["how"])), levels["how"], rotation=30, ha="right")
        heat.set_yticks(range(len(levels["when"])), levels["when"])
        heat.set_title(f"OP (%), {title}", fontsize=10)
        heat.set_aspect("auto")
    maps[1].set_yticks([])
    return figure


def at_one_budget() -> Figure:
    """Draw what each way to spend the same replayed examples gains or loses."""
    rows = [row for row in rows_of("arena") if row["difference"] and row["budget"] == "exact"]
    rows.sort(key=lambda row: row["difference"]["value"])
    figure, axis = new_axis(7.5, 0.28 * len(rows) + 0.8)
    names = [f"{row['variant']} less {row['reference']}" for row in rows]
    draw_differences(axis, rows, names, [COLOURS.get(row["verdict"], GREY) for row in rows])
    return figure


def beside_the_paper() -> Figure:
    """Draw every difference in OP that the paper publishes for these sweeps (hollow), and ours."""
    rows: list[Mapping[str, Any]] = []
    names: list[str] = []
    for sweep in TABLES:
        for row in rows_of(sweep):
            paper = row["paper"] or {}
            if row["difference"] and paper.get("difference") is not None and not row["idle"]:
                rows.append(row)
                names.append(f"{sweep}: {row['variant']} less {row['reference']}")
    figure, axis = new_axis(8.5, 0.21 * len(rows) + 1)
    draw_differences(axis, rows, names, [BLUE] * len(rows))
    published = [row["paper"]["difference"] for row in rows]
    axis.plot(published, range(len(rows)), "D", color=RED, fillstyle="none", label="published")
    axis.plot([], [], "o", color=BLUE, label="mini, with 95 % interval")
    axis.set_ylim(len(rows) - 0.4, -0.6)
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    return figure


def by_dose() -> Figure:
    """Draw OP over the examples that a run replays, the same for all schedules at each dose."""
    rows = {row["variant"]: row for row in rows_of("doses")}
    figure, axis = new_axis(10, 3.6)
    for number, (schedule, label) in enumerate(SCHEDULES.items()):
        shown = [rows[f"{schedule} {share}"] for share in SHARES]
        doses = [row["replayed_rows"] * 1.03**number for row in shown]  # beside each other
        scores = [row["op"] for row in shown]
        errors = [
            [score["value"] - score["low"] for score in scores],
            [score["high"] - score["value"] for score in scores],
        ]
        values = [score["value"] for score in scores]
        width = 1.4 if number else 2.4
        marker = "osD^vPX"[number]
        axis.errorbar(doses, values, errors, marker=marker, label=label, linewidth=width)
    axis.set_xscale("log")
    ticks = [rows[f"forever {share}"]["replayed_rows"] for share in SHARES]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.set(xlabel="replayed examples a run", ylabel="OP (%), 95 % interval")
    figure.legend(loc="outside right center", frameon=False)
    return figure


FIGURES = {
    "when-how": when_and_how,
    "budget": at_one_budget,
    "paper": beside_the_paper,
    "dose": by_dose,
}


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        path = DOCS / f"findings-{name}.png"
        draw().savefig(path, dpi=150)
        print(path)
