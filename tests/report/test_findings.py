"""The figures of docs/findings.md show the committed reports."""

import numpy as np

from scripts import findings


def test_figures_show_the_committed_numbers() -> None:
    for figure, sweep in ((findings.at_one_budget(), "arena"), (findings.by_dose(), "doses")):
        (axis,) = figure.axes
        shown = {value for line in axis.lines for value in np.ravel(line.get_xydata()).tolist()}
        for row in findings.rows_of(sweep):
            if sweep == "doses" and row["variant"] in [f"vbm {share}" for share in findings.SHARES]:
                assert row["op"]["value"] in shown
            if sweep == "arena" and row["difference"] and row["budget"] == "exact":
                assert row["difference"]["value"] in shown
    (axis,) = findings.beside_the_paper().axes
    shown = {value for line in axis.lines for value in np.ravel(line.get_xydata()).tolist()}
    published = [row["paper"]["difference"] for row in findings.rows_of("components")[1:8]]
    assert {*published} <= shown
