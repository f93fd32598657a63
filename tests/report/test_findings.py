"""docs/findings.md and its figures show the committed reports."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from forever.files import read_json
from scripts import findings
from scripts.keep import REPORT, RESULTS

# A number with its interval, such as +1.4 [0.0, +2.8] or 24 points [14, 35].
ESTIMATE = re.compile(r"([+-]?\.?\d[\d.]*)(?:\s+points)?\s+\[([+\d.-]+),\s+([+\d.-]+)\]")
# What a script says of the clocks, and a verdict of earlier runs.
ELSEWHERE = {"0.07 [0.03, 0.11]", "+2.1 [+0.1, +4.1]"}


def estimates(content: Any) -> Iterator[tuple[float, float, float]]:
    """The value and the interval of each estimate in a report, and of the reverse difference."""
    if isinstance(content, dict):
        if content.keys() >= {"value", "low", "high"}:
            yield content["value"], content["low"], content["high"]
            yield -content["value"], -content["high"], -content["low"]
        content = [*content.values()]
    if isinstance(content, list):
        for part in content:
            yield from estimates(part)


def test_each_estimate_on_the_page_is_in_a_committed_report() -> None:
    reports = [read_json(path)["parts"] for path in RESULTS.glob(f"*/{REPORT}")]
    known, missing = {*estimates(reports)}, set[str]()
    for match in ESTIMATE.finditer((findings.DOCS / "findings.md").read_text(encoding="utf-8")):
        digits = [len(text.partition(".")[2]) for text in match.groups()]
        rounded = {tuple(map(round, numbers, digits)) for numbers in known}
        if tuple(map(float, match.groups())) not in rounded:
            missing.add(" ".join(match[0].split()))
    assert missing == ELSEWHERE


def test_the_figure_of_when_and_how_shows_the_committed_numbers() -> None:
    axis, *maps = findings.when_and_how().axes
    part = read_json(RESULTS / "when_how-mini" / REPORT)["parts"][0]
    effects = [e["difference"] for e in part["analyses"]["main_effects"]["effects"]]
    shown = {value for line in axis.lines for value in np.ravel(line.get_xydata()).tolist()}
    assert {effect["value"] for effect in effects if effect} <= shown
    texts = sorted(text.get_text() for heat in maps for text in heat.texts)
    assert texts == sorted(f"{row['op']['value']:.1f}" for row in part["rows"])
