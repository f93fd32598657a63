"""The figures of docs/findings.md show the committed reports."""

from pathlib import Path

import numpy as np
import pytest

from scripts import findings

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"


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
