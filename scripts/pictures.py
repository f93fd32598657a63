"""Draw the figures of docs/explanation.md from two runs on `mini`, in light and in dark:
`python -m scripts.pictures`. The runs are kept in runs/, a minute on a CPU core."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

import forever
from forever.report.figures import style
from forever.text import label

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
_WIDTH = 5.4  # inches: so that words can be read on a phone
_REPLAY = "#EE7733"
_NAMES = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_SETTINGS: Any = {
    "svg.hashsalt": "forever",  # equal numbers make equal files
    "svg.fonttype": "path",
    "savefig.transparent": True,
    "font.size": 9,
    **dict.fromkeys(_NAMES, style.INK),
}
# What the colours on white are on a dark page.
_DARK = {
    style.INK: "#e8e8e8",
    style.GREY: "#9a9a9a",
    style.GRID: "#444850",
    style.ACCENT: "#77aadd",
}


def pictures(run: forever.RunResult, tuned: forever.RunResult) -> Iterator[tuple[str, str]]:
    """The names of the files and what they hold.

    Args:
        run: of FOREVER.
        tuned: of fine-tuning on the same tasks.
    """
    with mpl.rc_context(_SETTINGS):
        figures = {
            "forgetting": _forgetting(run, tuned),
            "clock": _clock(run),
            "days": _days(run),
            "strength": _strength(run),
        }
        drawn = {name: _svg(figure) for name, figure in figures.items()}
    for name, light in drawn.items():
        dark = light
        for colour, on_dark in _DARK.items():
            dark = dark.replace(colour.lower(), on_dark)
        yield f"{name}.svg", light
        yield f"{name}-dark.svg", dark


def _forgetting(run: forever.RunResult, tuned: forever.RunResult) -> Figure:
    """The score on the task that fine-tuning forgets most, after each later one."""
    figure, (axis,) = style.new_figure(_WIDTH, [1.1])
    task: Any = tuned.matrix.iloc[:, -1].idxmin()
    lines = (("FOREVER", run, style.ACCENT, "-"), ("fine-tuning", tuned, style.GREY, "--"))
    for name, result, colour, dashes in lines:
        scores = result.matrix.loc[task].dropna()
        axis.plot(scores.to_numpy(), dashes, marker="o", color=colour, label=name)
        last = len(scores) - 1
        below = scores.iloc[-1] < 50
        axis.annotate(name, (last, scores.iloc[-1]), (0, 8 if below else -14), ha="right",
                      textcoords="offset points", color=colour)  # fmt: skip
    scores, names = run.matrix.loc[task].dropna(), [label(name) for name in run.matrix.columns]
    names = names[-len(scores) :]
    axis.set_xticks(range(len(names)), names, rotation=20)
    axis.set(ylim=(-4, 104), xlabel="after learning", ylabel=f"score on {label(task)} (%)")
    axis.margins(x=0.02)
    return figure


def _clock(run: forever.RunResult) -> Figure:
    """How far each update of one task moves, and what the clock makes of it."""
    figure, (above, below) = style.new_figure(_WIDTH, [1.2, 1.9])
    steps, events = _of_task(run, run.matrix.index[-1])
    warmup = run.config.method.model_dump().get("warmup_steps", 1)
    for axis in (above, below):
        axis.axvspan(0.5, warmup + 0.5, color=_REPLAY, alpha=0.25, linewidth=0)
    above.bar(steps["step"], steps["update_norm"], width=0.85, color=style.ACCENT)
    above.set_ylabel("distance moved\nby an update")
    above.annotate(f"the first {warmup} updates make one day", (warmup + 0.5, 0.93),
                   (0.33, 0.93), xycoords=("data", "axes fraction"), textcoords="axes fraction",
                   va="center", arrowprops={"arrowstyle": "->", "color": _REPLAY})  # fmt: skip
    above.margins(y=0.2)
    days = steps[steps["days"] > 0]
    below.plot(days["step"], days["days"], color=style.ACCENT, linewidth=2)
    below.plot(steps["step"], steps["step"] / warmup, ":", color=style.GREY)
    steady = f"if every update were\nas long as the first {warmup}"
    below.annotate(steady, (0.47, 0.97), xycoords="axes fraction", color=style.GREY, va="top")
    replays = events[events["kind"] == "replay"]
    below.plot(replays["step"], replays["days"], "o", color=_REPLAY, zorder=3)
    place: Any = {"textcoords": "offset points", "ha": "right", "va": "center", "color": _REPLAY}
    for _, replay in replays.iterrows():
        below.annotate(f"{replay['day']:g}", (replay["step"], replay["days"]), (-5, 8), **place)
    below.set(xlabel="update of the task", ylabel="clock (model days)")
    below.set_ylim(-1, 1.12 * days["days"].max())
    return figure


def _days(run: forever.RunResult) -> Figure:
    """At which updates the days came, task by task."""
    figure, (axis,) = style.new_figure(_WIDTH, [1.6])
    tasks = [*run.matrix.index[1:]]
    for place, task in enumerate(tasks):
        steps, events = _of_task(run, task)
        axis.hlines(place, 0, steps["step"].max(), color=style.GRID, linewidth=1, zorder=0)
        replays = events[events["kind"] == "replay"]
        axis.plot(replays["step"], [place] * len(replays), "o", color=_REPLAY, markersize=6)
        for _, replay in replays.iterrows():
            axis.annotate(f"{replay['day']:g}", (replay["step"], place), (0, 6), ha="center",
                          textcoords="offset points", fontsize=7, color=style.GREY)  # fmt: skip
        end = events[events["kind"] == "consolidation"]
        axis.plot(end["step"], [place] * len(end), "D", color=style.ACCENT, clip_on=False)
    axis.set_yticks(range(len(tasks)), [label(task) for task in tasks])
    axis.set(ylim=(len(tasks) - 0.5, -0.7), xlabel="update of the task")
    axis.grid(visible=False)
    return figure


def _strength(run: forever.RunResult) -> Figure:
    """The pace of one task, and how strongly each replay is held."""
    figure, (axis,) = style.new_figure(_WIDTH, [1.1])
    steps, events = _of_task(run, run.matrix.index[-1])
    paces = steps["mu"] / steps["mu"].dropna().iloc[0]
    axis.plot(steps["step"], paces, color=style.ACCENT, linewidth=2)
    axis.axhline(1, color=style.GREY, linewidth=0.8, linestyle="--")
    kinds = (("replay", "o", _REPLAY), ("consolidation", "D", style.ACCENT))
    for kind, marker, colour in kinds:
        chosen = events[events["kind"] == kind]
        axis.plot(chosen["step"], chosen["strength"], marker, color=colour, clip_on=False)
    axis.set(
        xlabel="update of the task", ylabel="pace r (line),\nstrength s (marks)", ylim=(0, None)
    )
    return figure


def _of_task(run: forever.RunResult, task: str) -> tuple[Any, Any]:
    """The task's own updates, and its events."""
    steps, events = run.steps, run.events
    own = steps[(steps["task"] == task) & (steps["kind"] == "task")]
    return own, events[events["task"] == task]


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    out = ROOT / "runs" / "pictures"
    runs = [forever.run(f"mini/{method}", out=out) for method in ("forever", "finetune")]
    FOLDER.mkdir(exist_ok=True)
    for name, content in pictures(*runs):
        FOLDER.joinpath(name).write_text(content, encoding="utf-8")
        print(FOLDER / name)
