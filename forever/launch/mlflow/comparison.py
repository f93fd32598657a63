"""The page on which MLflow compares the trials of a sweep: OP, BWT and what differs, nothing else.

By itself MLflow draws a chart for each metric. What a page shows can be kept under a name, as its
button "Share" does: a tag of the experiment, which the page's address names.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VIEW = "mlflow.sharedViewState."  # and the identity of the sweep's run
SCORES = {"final/op": "OP (%)", "final/bwt": "BWT (points)"}
_MOST_PARAMETERS = 8  # that one can tell apart in a chart
_SCORES, _DIFFERENCES = "scores", "differences"  # the two parts of the page


def view_of(sweep: str, metrics: Iterable[str], parameters: Sequence[str]) -> str:
    """The value of the tag.

    Args:
        sweep: the identity of the sweep's run.
        metrics: the keys of all metrics that its trials have.
        parameters: those in which they differ.
    """
    shown = list(parameters[:_MOST_PARAMETERS])
    columns = [f"metrics.`{key}`" for key in SCORES] + [f"params.`{key}`" for key in shown]
    state = {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{sweep}'",
        "orderByKey": "metrics.`final/op`",
        "orderByAsc": False,
        "selectedColumns": columns,
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # else MLflow sorts the sections
        "compareRunSections": [
            _section(_SCORES, "OP and BWT", 2),
            _section(_DIFFERENCES, "Parameters that differ", 1),
        ],
        "compareRunCharts": [*_charts(shown), *_hidden(metrics)],
    }
    text = json.dumps(state, separators=(",", ":"))
    return f"deflate;{base64.b64encode(zlib.compress(text.encode())).decode()}"


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that all have, with different values. A chart leaves out a run that lacks one."""
    keys: list[str] = []
    for key in settings[0] if settings else ():
        values = {str(run.get(key, "")) for run in settings}
        if len(values) > 1 and all(key in run for run in settings):
            keys.append(key)
    return keys


def _section(uuid: str, name: str, columns: int) -> dict[str, Any]:
    shown = {"display": True, "isReordered": True}
    return {"uuid": uuid, "name": name, "columns": columns, "cardHeight": 320, **shown}


def _chart(kind: str, uuid: str, section: str, **fields: Any) -> dict[str, Any]:
    place = {"metricSectionId": section, "deleted": False, "isGenerated": False}
    return {"type": kind, "uuid": uuid, "runsCountToCompare": 100, **place, **fields}


def _charts(parameters: Sequence[str]) -> list[dict[str, Any]]:
    charts: list[dict[str, Any]] = []
    for key, title in SCORES.items():
        charts.append(_chart("BAR", f"bar {key}", _SCORES, metricKey=key, displayName=title))
    chosen = {"selectedParams": ["variant", *parameters], "selectedMetrics": [*SCORES]}
    charts.append(_chart("PARALLEL", "parallel", _DIFFERENCES, showAllRuns=False, **chosen))
    compared = {"compareGroups": ["Parameters"], "showDifferencesOnly": True}
    compared |= {"showChangeFromBaseline": False, "baselineColumnUuid": ""}
    name = "Parameters that differ"
    charts.append(_chart("DIFFERENCE", "table", _DIFFERENCES, chartName=name, **compared))
    return charts


def _hidden(metrics: Iterable[str]) -> list[dict[str, Any]]:
    """Charts that somebody deleted, as it were: MLflow adds one for each metric that has none."""
    hidden: list[dict[str, Any]] = []
    for key in metrics:
        if key not in SCORES:
            chart = _chart("LINE", f"hidden {key}", _SCORES, metricKey=key)
            hidden.append({**chart, "deleted": True, "isGenerated": True})
    return hidden
