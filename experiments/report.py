"""`forever report`: tables with intervals and verdicts, figures, Markdown and HTML, from run directories alone.

Everything on the page was measured by a run in the folder. A run that is not there is named as missing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.study import Row, Run, Study, differences, read_study, show
from experiments.tables import NOTHING, row_texts, summary_table
from forever.errors import InputError
from forever.run_directory import read_lines, write_text
from forever.statistics import ALPHA, RESAMPLES
from forever.sweep import slug

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["summary_table", "write_report"]

MAIN_FIELDS = (
    "data.benchmark",
    "data.train_rows",
    "data.test_rows",
    "model.name",
    "model.tuning",
    "model.rank",
    "model.alpha",
    "model.targets",
    "optim.lr",
    "optim.batch_size",
    "optim.epochs",
    "optim.schedule",
    "memory.fraction",
)


@dataclass(frozen=True)
class Picture:
    """A figure of the page. `group`: where it stands; `name`: its file, without suffix."""

    group: str
    name: str
    caption: str
    png: bytes
    width: int  # CSS pixels, 96 an inch

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


def write_report(folder: Path) -> Path:
    """Write report.md, report.html and figures/ into a folder of runs.

    Args:
        folder: a sweep, a folder of run directories, or one run directory.

    Returns:
        The HTML page, which needs no other file.

    Raises:
        InputError: no finished run in the folder, a damaged file, or packages that the report needs are not installed.
    """
    study = read_study(folder)
    rows = study.rows
    try:
        import jinja2

        pictures = list(_pictures(study, rows))
    except ImportError as error:
        raise InputError(f"a report needs {error.name}; install it with: pip install 'forever-cl[report]'") from None
    for picture in pictures:
        path = study.folder / "figures" / f"{picture.name}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.png)
    # Of matrices that fill the page only the first is unfolded.
    fold = any(picture.group == "matrix" and picture.width > 560 for picture in pictures)
    page = _page(study, rows) | {"pictures": pictures, "fold": fold}
    loader = jinja2.PackageLoader("experiments")
    for name in ("report.md", "report.html"):
        escape = name.endswith(".html")
        environment = jinja2.Environment(
            loader=loader, autoescape=escape, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
        )
        environment.filters["cell"] = lambda text: str(text).replace("|", "\\|")  # a bar would end a Markdown cell
        write_text(study.folder / name, environment.get_template(f"{name}.j2").render(page))
    return study.folder / "report.html"


# ---- the page


def _page(study: Study, rows: list[Row]) -> dict[str, Any]:
    """What the templates fill in."""
    example = study.example
    return {
        "title": study.name,
        "subject": _subject(example),
        "reference": study.reference,
        "rows": [row_texts(row) for row in rows if not row.bound],
        "bounds": [row_texts(row) for row in rows if row.bound],
        "single": len(rows) == 1,
        "facts": _facts(study, example),
        "variants": [(row.variant, _changes(example, row)) for row in rows],
        "missing": study.missing,
        "planned": len(study.runs),
        "intervals": _about_intervals(rows),
        "verdicts": _about_verdicts(study, rows),
    }


def _subject(example: Run) -> str:
    assert example.result is not None
    model = _short("model.name", example.settings["model.name"])
    return f"{example.result['benchmark']}, {len(example.result['tasks'])} tasks · {model}"


def _facts(study: Study, example: Run) -> list[tuple[str, str]]:
    """What ran, on what, with which code."""
    finished = [run for run in study.runs if run.result is not None]
    results = [run.result for run in finished if run.result is not None]
    result, settings = results[finished.index(example)], example.settings
    fields = [*MAIN_FIELDS, *(key for key in settings if key.startswith("method."))]
    base = {key: settings[key] for key in fields if settings.get(key) is not None}
    tests = sorted({count["test"] for one in results for count in one["rows"].values()})
    gpus = {gpu for run in finished for gpu in run.environment.get("gpus", ())}
    cpus = {f"{env.get('cpu')}, {env.get('cores')} cores" for env in (run.environment for run in finished) if env}
    packages = [run.environment.get("packages", {}) for run in finished]
    versions = {
        f"{name} {one[name]}" for one in packages for name in ("forever-cl", "torch", "transformers") if name in one
    }
    truncated = sum(note.get("truncated", 0) for one in results for note in one["notes"].values())
    return [
        ("settings" if len(study.rows) == 1 else f"settings of {example.variant}", _settings(base)),
        ("tasks", " → ".join(result["tasks"]) if len({r["order"] for r in results}) == 1 else _listed(result["tasks"])),
        ("test rows a task", f"{tests[0]}" if len(tests) == 1 else f"{tests[0]} to {tests[-1]}"),
        ("seeds", _listed(sorted({run.seed for run in finished}))),
        ("orders", _listed(sorted({run.order for run in finished}))),
        ("hardware", _listed(sorted(gpus or cpus)) + _workers({one.get("world_size", 1) for one in results})),
        ("revision", _listed(sorted({str(run.environment.get("revision") or "unknown") for run in finished}))),
        ("versions", _listed(sorted(versions))),
        ("truncated training rows", f"{truncated} in all runs together"),
    ]


def _settings(values: Mapping[str, Any]) -> str:
    return " · ".join(f"{key}={_short(key, value)}" for key, value in values.items())


def _short(key: str, value: Any) -> str:
    """A model that lies in a folder is shown by the folder's name."""
    return Path(value).name if key == "model.name" and Path(value).is_absolute() else show(value)


def _changes(example: Run, row: Row) -> str:
    if not row.runs:
        return "no run is finished"
    changes = differences(example.settings, row.runs[0].settings)
    return _settings(changes) if changes else ("the reference" if row.runs[0].variant == example.variant else "none")


def _about_intervals(rows: list[Row]) -> str:
    counts = sorted({row.comparison.op.runs for row in rows if row.comparison})
    text = (
        f"Brackets are 95 % percentile intervals of a paired bootstrap ({RESAMPLES:,} resamples, same draws for all "
        "variants). Tasks are taken as fixed. "
    )
    if counts[-1] == 1:
        return text + (
            "Each variant ran once, so only test items are resampled (items only, 1 seed): "
            "the intervals say nothing about what another seed would give"
            + (", and no variant is judged." if len(rows) > 1 else ".")
        )
    text += (
        "Test items and runs are resampled; with few runs the spread between runs is uncertain, and intervals are wide."
    )
    single = [row.variant for row in rows if row.comparison and row.comparison.op.runs == 1]
    return text + (f" One run only, hence items only: {_listed(single)}." if single else "")


def _about_verdicts(study: Study, rows: list[Row]) -> str:
    judged = sum(1 for row in rows if row.comparison and row.comparison.verdict)
    if not judged:
        return ""
    return (
        f"Δ OP is the difference to {study.reference} over the runs (order and seed) that both have. Verdicts: "
        f"two-sided bootstrap test at {100 * ALPHA:g} %, Holm-corrected for {judged} comparison{'s' * (judged > 1)}; "
        "a tie means that no difference was shown, not that there is none. Bounds are not judged."
    )


# ---- the figures


def _pictures(study: Study, rows: list[Row]) -> Iterator[Picture]:
    from experiments import figures

    def picture(group: str, name: str, caption: str, figure: Figure) -> Picture:
        return Picture(group, name, caption, figures.png(figure), round(96 * figure.get_size_inches()[0]))

    shown = [row for row in rows if row.comparison]
    if len(shown) > 1:
        intervals = {row.variant: row.comparison.op for row in shown if row.comparison}
        figure = figures.interval_figure(intervals, "OP (%) with 95 % interval", study.reference)
        yield picture("overview", "op", "Overall performance (OP) of each variant.", figure)
    if any(figures.seen(result) for row in shown for result in row.results):
        figure = figures.accuracy_figure({row.variant: row.results for row in shown}, study.reference)
        caption = "Mean score on the tasks learned so far, after each task; mean over runs."
        banded = len(shown) <= figures.BANDS and any(len(row.runs) > 1 for row in shown)
        yield picture("overview", "accuracy", caption + " Bands: lowest to highest run." * banded, figure)
    for row in shown:
        run = row.runs[0]
        title = f"{row.variant}, order {run.order}, seed {run.seed}"
        yield picture("matrix", f"matrix-{slug(row.variant)}", title, figures.matrix_figure(row.results[0], title))
    for row in sorted(shown, key=lambda row: row.runs[0] is not study.example):
        run = row.runs[0]
        title = f"{row.variant}, order {run.order}, seed {run.seed}"
        figure = figures.timeline_figure(read_lines(run.directory.steps), read_lines(run.directory.events), title)
        yield picture("timeline", f"timeline-{slug(row.variant)}", title, figure)


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in values) or NOTHING


def _workers(sizes: set[int]) -> str:
    return "" if sizes == {1} else f" ({_listed(sorted(sizes))} workers a run)"
