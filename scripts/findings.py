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
# How the report names the variants of `when_how` at each learning rate.
RATES = {"constant rate": "", "linear decay": " (optim.schedule=linear)"}
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20)
GREY, BLUE, RED = "#777777", "#004488", "#CC6677"
# How `penalty` names its anchors, and how the figure does.
PENALTIES = {
    "none": ("none", GREY),
    "event": ("β an event", "#117733"),
    "β × 0.1": ("β × 0.1", "#88CCEE"),
    "update": ("β an update (paper)", BLUE),
    "β × 3": ("β × 3", RED),
}
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
    levels: dict[str, list[str]] = {"when": [], "how": []}
    for effect in effects:
        levels[effect["factor"]].append(effect["level"])
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


def memory_and_penalty() -> Figure:
    """Draw OP against the share of a task that is kept, and against passes, a line a penalty."""
    scores = {row["variant"]: row["op"] for row in rows_of("penalty")}
    figure = Figure(figsize=(8.5, 3.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    kept, passes = ("10 %", "25 %", "50 %", "100 %"), ("10 %", "passes × 2", "passes × 4")
    panels = {"share of a task that is kept": kept, "passes over 10 %": passes}
    for axis, (title, cells) in zip(axes, panels.items(), strict=True):
        for place, (penalty, (name, colour)) in enumerate(PENALTIES.items()):
            known = [scores[f"{cell} {penalty}"] for cell in cells]
            across = [x + 0.06 * (place - 2) for x in range(len(cells))]
            axis.plot(across, [op["value"] for op in known], "o-", color=colour, label=name)
            axis.vlines(across, [op["low"] for op in known], [op["high"] for op in known], colour)
        axis.set_xticks(range(len(cells)), cells)
        axis.set_xlabel(title)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].set_xticklabels(["1", "2", "4"])
    axes[0].set_ylabel("OP (%), with 95 % interval")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


FIGURES = {"when-how": when_and_how, "paper": beside_the_paper, "memory": memory_and_penalty}


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        path = DOCS / f"findings-{name}.png"
        draw().savefig(path, dpi=150)
        print(path)
