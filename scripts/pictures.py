"""Draw the figures of docs/explanation.md from two runs on `mini`, in light and in dark:
`python -m scripts.pictures`. The runs are kept in runs/, two minutes on a CPU core."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import forever
from forever.report.figures import style
from forever.text import label

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
_WIDTH = 5.4  # inches: so that words can be read on a phone
_REPLAY = "#EE7733"
# Ink, what is less important, the grid, and the colour of FOREVER: on white, and on a dark page.
_THEMES = {
    "": (style.INK, style.GREY, style.GRID, style.ACCENT),
    "-dark": ("#E8E8E8", "#9A9A9A", "#444850", "#77AADD"),
}
_STATIC = {
    "svg.hashsalt": "forever",  # equal numbers make equal files
    "svg.fonttype": "path",
    "savefig.transparent": True,
    "font.size": 9,
}


class Palette:
    """The colours of a theme."""

    def __init__(self, theme: str) -> None:
        self.ink, self.grey, self.grid, self.accent = _THEMES[theme]

    @property
    def settings(self) -> Any:
        """The same for Matplotlib."""
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        return {**_STATIC, **dict.fromkeys(names, self.ink), "grid.color": self.grid}


def pictures(run: forever.RunResult, tuned: forever.RunResult) -> Iterator[tuple[str, str]]:
    """The names of the files and what they hold.

    Args:
        run: of FOREVER.
        tuned: of fine-tuning on the same tasks.
    """
    for theme in _THEMES:
        palette = Palette(theme)
        with mpl.rc_context(palette.settings):
            yield f"forgetting{theme}.svg", _svg(_forgetting(run, tuned, palette))
            yield f"clock{theme}.svg", _svg(_clock(run, palette))
            yield f"days{theme}.svg", _svg(_days(run, palette))
            yield f"strength{theme}.svg", _svg(_strength(run, palette))


def _forgetting(run: forever.RunResult, tuned: forever.RunResult, palette: Palette) -> Figure:
    """The score on the task that fine-tuning forgets most, after each later one."""
    figure, axis = _figure(2.4, palette)
    task: Any = tuned.matrix.iloc[:, -1].idxmin()
    lines = (("FOREVER", run, palette.accent, "-"), ("fine-tuning", tuned, palette.grey, "--"))
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


def _clock(run: forever.RunResult, palette: Palette) -> Figure:
    """How far each update of one task moves, and what the clock makes of it."""
    figure = Figure(figsize=(_WIDTH, 4.4), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[1, 1.5])
    steps, events = _of_task(run, run.matrix.index[-1])
    warmup = run.config.method.model_dump().get("warmup_steps", 1)
    for axis in (above, below):
        _tidy(axis, palette)
        axis.axvspan(0.5, warmup + 0.5, color=_REPLAY, alpha=0.25, linewidth=0)
    above.bar(steps["step"], steps["update_norm"], width=0.85, color=palette.accent)
    above.set_ylabel("distance moved\nby an update")
    above.annotate(f"the first {warmup} updates make one day", (warmup + 0.5, 0.93),
                   (0.33, 0.93), xycoords=("data", "axes fraction"), textcoords="axes fraction",
                   va="center", arrowprops={"arrowstyle": "->", "color": _REPLAY})  # fmt: skip
    above.margins(y=0.2)
    days = steps[steps["days"] > 0]
    below.plot(days["step"], days["days"], color=palette.accent, linewidth=2)
    below.plot(steps["step"], steps["step"] / warmup, ":", color=palette.grey)
    steady = f"if every update were\nas long as the first {warmup}"
    below.annotate(steady, (0.47, 0.97), xycoords="axes fraction", color=palette.grey, va="top")
    replays = events[events["kind"] == "replay"]
    below.plot(replays["step"], replays["days"], "o", color=_REPLAY, zorder=3)
    place: Any = {"textcoords": "offset points", "ha": "right", "va": "center", "color": _REPLAY}
    for _, replay in replays.iterrows():
        below.annotate(f"{replay['day']:g}", (replay["step"], replay["days"]), (-5, 8), **place)
    below.set(xlabel="update of the task", ylabel="clock (model days)")
    below.set_ylim(-1, 1.12 * days["days"].max())
    return figure


def _days(run: forever.RunResult, palette: Palette) -> Figure:
    """At which updates the days came, task by task."""
    figure, axis = _figure(2.9, palette)
    tasks = [*run.matrix.index[1:]]
    for place, task in enumerate(tasks):
        steps, events = _of_task(run, task)
        axis.hlines(place, 0, steps["step"].max(), color=palette.grid, linewidth=1, zorder=0)
        replays = events[events["kind"] == "replay"]
        axis.plot(replays["step"], [place] * len(replays), "o", color=_REPLAY, markersize=6)
        for _, replay in replays.iterrows():
            axis.annotate(f"{replay['day']:g}", (replay["step"], place), (0, 6), ha="center",
                          textcoords="offset points", fontsize=7, color=palette.grey)  # fmt: skip
        end = events[events["kind"] == "consolidation"]
        axis.plot(end["step"], [place] * len(end), "D", color=palette.accent, clip_on=False)
    axis.set_yticks(range(len(tasks)), [label(task) for task in tasks])
    axis.set(ylim=(len(tasks) - 0.5, -0.7), xlabel="update of the task")
    axis.grid(visible=False)
    return figure


def _strength(run: forever.RunResult, palette: Palette) -> Figure:
    """The pace of one task, and how strongly each replay is held."""
    figure, axis = _figure(2.4, palette)
    steps, events = _of_task(run, run.matrix.index[-1])
    paces = steps["mu"] / steps["mu"].dropna().iloc[0]
    axis.plot(steps["step"], paces, color=palette.accent, linewidth=2)
    axis.axhline(1, color=palette.grey, linewidth=0.8, linestyle="--")
    kinds = (("replay", "o", _REPLAY), ("consolidation", "D", palette.accent))
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


def _figure(height: float, palette: Palette) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axis = figure.subplots()
    _tidy(axis, palette)
    return figure, axis


def _tidy(axis: Axes, palette: Palette) -> None:
    style.tidy(axis)
    axis.patch.set_visible(False)
    axis.grid(axis="y", color=palette.grid, linewidth=0.6)


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
