"""What MLflow's pages show of a sweep and of a trial: descriptions, and a prepared comparison.

A description is Markdown, of which MLflow makes a page. Names of tasks and variants pass
`forever.text.markdown`, so that none of them is markup there.

By itself MLflow draws a chart for each metric. The comparison shows OP, BWT and the parameters that
differ. It is kept as MLflow's button "Share" keeps what a page shows: as a tag of the experiment,
which the page's address names. That format is private to MLflow's front end: one that does not read
it says so and shows all runs of the experiment.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forever.format import duration, plural
from forever.launch.mlflow.store import Place
from forever.text import markdown, without_credentials

if TYPE_CHECKING:
    import pandas as pd

NOTE = "mlflow.note.content"
VIEW = "mlflow.sharedViewState."  # and the identity of the sweep's run
LONGEST = 8000  # characters of a tag that a store takes
_MOST_STAGES = 15  # of a matrix that is a table; a larger one is a picture
_MOST_PARAMETERS = 8  # that one can tell apart in a chart
_SCORES = {"final/op": "OP (%)", "final/bwt": "BWT (points)"}


def run_note(result: Mapping[str, Any], run: str) -> str:
    """Describe what a finished run has reached: scores, replays and the matrix.

    Args:
        result: the content of result.json.
        run: its identity in MLflow, under which its pictures are found.
    """
    import pandas as pd

    method, benchmark = markdown(result["method"]), markdown(result["benchmark"])
    bwt = "" if result["bwt"] is None else f", **BWT {result['bwt']:+.1f} points**"
    tasks = plural(len(result["tasks"]), "task")
    scores = f"**OP {result['op']:.1f} %**{bwt}: {method} on {benchmark}, {tasks}."
    kinds = result["events"].values()
    midway = sum(events.get("replay", 0) for events in kinds)
    at_end = sum(events.get("consolidation", 0) for events in kinds)
    replays = f"Replays: {midway} mid-task + {at_end} end of task"
    if result.get("examples"):
        replays += f", {result['examples']['replayed']:,} examples"
    updates, seconds = sum(result["updates"].values()), sum(result["seconds"].values())
    spent = f"{updates:,} updates in {duration(seconds)}."
    if len(result["stages"]) > _MOST_STAGES:
        matrix = f"![matrix](get-artifact?path=matrix.png&run_uuid={run})"
    else:
        cells: list[list[str]] = []
        for task, row in zip(result["tasks"], result["matrix"], strict=True):
            cells.append([task, *("" if score is None else f"{score:.1f}" for score in row)])
        head = ["score (%) after", *result["stages"]]
        matrix = table(pd.DataFrame(cells, columns=pd.Index(head)))
    # Scores and replays are one paragraph: MLflow folds up what is more than some lines.
    return _fitted(f"{scores} {replays}; {spent}", matrix)


def sweep_note(tables: Mapping[str, pd.DataFrame], about: str, place: Place) -> str:
    """Describe what a sweep has shown so far.

    Args:
        tables: those of its variants, by benchmark.
        about: its question and what it ran on.
        place: its run in MLflow, beside whose page those are that the note links to.
    """
    links = [
        f"[Whole report]({place.artifact('.', 'report.html')})",
        f"[trials compared]({place.comparison('.')})",
        f"[all runs]({place.all_runs('.')})",
    ]
    parts = [f"{markdown(about)} {' · '.join(links)}"]
    for benchmark, frame in tables.items():
        if len(tables) > 1:
            parts.append(markdown(benchmark))
        parts.append(table(frame))
    return _fitted(*parts)


def table(frame: pd.DataFrame) -> str:
    """Write a frame of texts as a Markdown table, numbers to the right of names.

    MLflow has no style for tables, so a wide space keeps the columns apart.
    """
    shown = frame.rename(columns=_cell).map(_cell)
    align = ["left", *["right"] * (len(frame.columns) - 1)]
    return shown.to_markdown(index=False, disable_numparse=True, colalign=align)


def _cell(text: str) -> str:
    return markdown(text).replace("|", "\\|") + "&ensp;"


def _fitted(*parts: str) -> str:
    """Join the parts, without the last lines if they are more than a store takes."""
    text = without_credentials("\n\n".join(parts))
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition("\n")[0]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that all have, with different values. A chart leaves out a run that lacks one."""
    keys: list[str] = []
    for key in settings[0] if settings else ():
        values = {str(run.get(key, "")) for run in settings}
        if len(values) > 1 and all(key in run for run in settings):
            keys.append(key)
    return keys


def view_of(sweep: str, metrics: Iterable[str], parameters: Sequence[str]) -> str:
    """Make the value of the tag that keeps the comparison.

    Args:
        sweep: the identity of the sweep's run.
        metrics: the keys of all metrics that its trials have.
        parameters: those in which they differ.
    """
    shown = list(parameters[:_MOST_PARAMETERS])

    def chart(kind: str, section: str, **fields: Any) -> dict[str, Any]:
        common = {"type": kind, "metricSectionId": section, "runsCountToCompare": 100}
        return {**common, "deleted": False, "isGenerated": False, **fields}

    charts: list[dict[str, Any]] = []
    for key, title in _SCORES.items():
        charts.append(chart("BAR", "scores", uuid=key, metricKey=key, displayName=title))
    chosen = {"selectedParams": ["variant", *shown], "selectedMetrics": [*_SCORES]}
    charts.append(chart("PARALLEL", "differences", uuid="parallel", showAllRuns=False, **chosen))
    compared = {"compareGroups": ["Parameters"], "showDifferencesOnly": True}
    compared |= {"showChangeFromBaseline": False, "baselineColumnUuid": ""}
    compared |= {"uuid": "table", "chartName": "Parameters that differ"}
    charts.append(chart("DIFFERENCE", "differences", **compared))
    # MLflow adds a chart for each metric that has none, unless it was deleted.
    for key in metrics:
        if key not in _SCORES:
            hidden = {"uuid": f"hidden {key}", "deleted": True, "isGenerated": True}
            charts.append(chart("LINE", "scores", metricKey=key, **hidden))
    size = {"display": True, "isReordered": True, "cardHeight": 320}
    state = {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{sweep}'",
        "orderByKey": "metrics.`final/op`",
        "orderByAsc": False,
        "selectedColumns": [*(f"metrics.`{key}`" for key in _SCORES),
                            *(f"params.`{key}`" for key in shown)],
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # else MLflow sorts the sections
        "compareRunSections": [
            {"uuid": "scores", "name": "OP and BWT", "columns": 2, **size},
            {"uuid": "differences", "name": "Parameters that differ", "columns": 1, **size},
        ],
        "compareRunCharts": charts,
    }  # fmt: skip
    text = json.dumps(state, separators=(",", ":"))
    return f"deflate;{base64.b64encode(zlib.compress(text.encode())).decode()}"
