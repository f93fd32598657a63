"""docs/findings.md says what the committed reports say, and its figures show it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from forever.files import read_json
from scripts import findings
from scripts.keep import REPORT, RESULTS, ROOT

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
IN_ROUNDS = sorted(ROOT.glob(f"benchmarks/rounds-*/{REPORT}"))
INTERVAL = re.compile(r"([+-]?\d+\.\d) \[([+-]?\d+\.\d), ([+-]?\d+\.\d)\]")


def quotable(estimate: Mapping[str, float]) -> set[tuple[str, ...]]:
    """An estimate with its interval as the page writes it, and turned round."""
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    # Adding zero takes the sign from a zero, as the page writes it.
    both = (value, low, high), (-value, -high, -low)
    return {tuple(f"{round(number, 1) + 0.0:.1f}" for number in numbers) for numbers in both}


def known(reports: Iterable[Path]) -> set[tuple[str, ...]]:
    """All differences in OP and areas under curves with their intervals, and turned round."""
    found: set[tuple[str, ...]] = set()
    for path in reports:
        for part in read_json(path)["parts"]:
            for row in filter(lambda row: row["difference"], part["rows"]):
                found |= quotable(row["difference"])
            for area in part["analyses"].get("doses", {}).values():
                found |= quotable(area["op"]) | quotable(area["bwt"])
            for schedule in part["analyses"].get("beyond_chance", {}).values():
                found |= quotable(schedule["difference"])
    return found


def test_every_interval_of_the_page_is_in_a_report() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    quoted = {tuple(n.removeprefix("+") for n in found) for found in INTERVAL.findall(text)}
    assert quoted
    sweeps = ("arena", "arena_seconds", "doses", "tuned", *findings.TABLES)
    on_mini = [f"{sweep}-mini" for sweep in sweeps]
    folders = (*on_mini, "protocol-mini", "language_model-superni", "language_model-long")
    assert quoted <= known([*IN_ROUNDS, *(RESULTS / folder / REPORT for folder in folders)])


def test_the_page_on_seeds_has_every_decision_of_the_sweeps_in_rounds() -> None:
    """Of each sweep the intervals that it quotes, and the seeds that each comparison took."""
    page = (PAGE.parent / "benchmark.md").read_text(encoding="utf-8")
    section = page[page.index("## How many seeds") : page.index("## What it is")]
    lines = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    assert lines.keys() == {path.parent.name[7:] for path in IN_ROUNDS} | {"warmup_window"}
    for path in IN_ROUNDS:
        line = lines[path.parent.name.removeprefix("rounds-")]
        quoted = {tuple(n.removeprefix("+") for n in found) for found in INTERVAL.findall(line)}
        assert quoted <= known([path])
        (part,) = read_json(path)["parts"]
        rows = [row for row in part["rows"] if row["verdict"] not in (None, "not comparable")]
        seeds = Counter(f"({row['difference']['runs']})" for row in rows)
        assert Counter(re.findall(r"\(\d+\)", line)) == seeds
        assert {row["decided"] for row in rows} <= {"differs", "within ±2"}


@pytest.mark.parametrize("name", findings.FIGURES)
def test_a_figure_shows_the_committed_numbers(name: str) -> None:
    assert (PAGE.parent / f"findings-{name}.png").is_file()
    (axis,) = findings.FIGURES[name]().axes
    shown = {x for line in axis.lines for x in np.asarray(line.get_xdata()).tolist()}
    if name == "budget":
        arena = findings.compared(findings.rows_of("arena"))
        rows = [row for row in arena if row["replayed_rows"] == 728 or row["variant"] == "pad"]
        assert {row["difference"]["value"] for row in rows} <= shown
        assert len(axis.get_yticklabels()) == len(rows)
    if name == "dose":
        rows = {row["variant"]: row for row in findings.rows_of("doses")}
        doses = [rows[f"forever {share}"]["replayed_rows"] for share in findings.SHARES]
        assert doses == sorted(doses)
        assert {*doses} <= shown
        curves = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axis.lines}
        for schedule, label in findings.SCHEDULES.items():
            ops = [rows[f"{schedule} {share}"]["op"]["value"] for share in findings.SHARES]
            assert curves[label] == ops
    if name == "paper":
        base, *others = findings.rows_of("components")
        assert base["difference"] is None
        published = [row for row in others if row["paper"]]
        assert {row["difference"]["value"] for row in published} <= shown
        assert {row["paper"]["difference"] for row in published} <= shown
