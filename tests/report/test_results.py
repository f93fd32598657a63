"""RESULTS.md compares our intervals with the paper's published differences."""

from typing import Any

import pytest

from forever.sweeps import published as paper
from scripts.results import PAGE, Status, answers_of, claim_row, page, read_claims, status


@pytest.mark.parametrize(
    ("published", "low", "high", "expected"),
    [
        (-5.3, -16, -2, "reproduced"),
        (-5.3, -1, 5, "not shown"),
        (-5.3, -4, 8, "cannot tell"),
        (-5.3, 6, 12, "contradicted"),
        (5.3, 2, 16, "reproduced"),
        # Less than half a point counts as no difference.
        (0.2, -0.6, 0.4, "reproduced"),
        (0.2, -30, 32, "cannot tell"),
        (0.2, 6, 12, "contradicted"),
    ],
)
def test_a_status_compares_an_interval_with_a_published_difference(
    published: float, low: float, high: float, expected: str
) -> None:
    assert status({"low": low, "high": high}, published) == expected


def test_what_a_correction_takes_away_is_not_reproduced() -> None:
    assert status({"low": -16, "high": -2}, -5.3, is_shown=False) == Status.CANNOT_TELL
    assert status({"low": 3, "high": 15}, -5.3, is_shown=False) == Status.CONTRADICTED


def row(variant: str, value: float = -9.0, **changes: Any) -> dict[str, Any]:
    """A row of a report."""
    estimate = {"value": value, "low": value - 3, "high": value + 3, "runs": 5}
    return {
        "variant": variant, "paper_variant": variant, "reference": "base", "bound": False,
        "idle": False, "degenerate": False, "nothing_to_forget": False,
        "difference": estimate, "p": 0.001,
        "bwt_difference": None, "bwt_p": None, **changes,
    }  # fmt: skip


def statuses(*rows: Any, name: str = "components", scale: str = "mini") -> dict[str, Status]:
    """What a report of some rows says to claims, by the variant of the claim."""
    base = row("base", difference=None, p=None)
    part = {"benchmark": "mini", "rows": [base, *rows], "analyses": {}}
    report = {"name": name, "finished": 15, "parts": [part]}
    claims, outcomes = read_claims(), dict[str, Status]()
    for key, answer in answers_of(report, f"{name}-{scale}"):
        if key in claims:
            _, outcomes[key[2]] = claim_row(claims[key], answer)
    return outcomes


def test_differences_are_corrected_for_all_that_are_no_bounds() -> None:
    """Holm makes 0.03, 0.06 and 0.06 of 0.01, 0.04 and 0.03."""
    rows = [row("+FIR", p=0.01), row("+RR", p=0.04), row("+ER", p=0.03)]
    found = statuses(*rows, row("-IAR", p=0.04, bound=True), row("+STC", p=None))
    corrected = {"+RR": Status.NOT_SHOWN, "+ER": Status.CANNOT_TELL}
    assert found == {**dict.fromkeys(["+FIR", "-IAR", "+STC"], Status.REPRODUCED), **corrected}


def test_what_did_not_run_as_meant_is_not_judged() -> None:
    one_run = {"value": -9.0, "low": -12.0, "high": -6.0, "runs": 1}
    rows = [row("+FIR", idle=True), row("+RR", degenerate=True), row("+ER", difference=one_run)]
    assert {*statuses(*rows).values()} == {Status.NOT_JUDGED}


def test_nothing_is_said_of_keeping_where_nothing_was_forgotten() -> None:
    kept = {"value": -4.0, "low": -5.0, "high": -3.0, "runs": 5}
    part = {"benchmark": "mini", "analyses": {}, "rows": [row("base", difference=None)]}
    part["rows"].append(row("+FIR", bwt_difference=kept, bwt_p=0.001, nothing_to_forget=True))
    report, claims = {"name": "components", "finished": 10, "parts": [part]}, read_claims()
    outcomes: dict[str, Status] = {}
    for key, answer in answers_of(report, "components-mini"):
        _, outcomes[key[-1]] = claim_row(claims[key], answer)
    assert outcomes == {"op": Status.REPRODUCED, "bwt": Status.NOT_JUDGED}


def test_a_caveat_holds_at_a_smaller_scale() -> None:
    names = {"reference": "base", "paper_variant": "forever 50 %"}
    base = row("base", difference=None, paper_variant="forever 2 %")
    fall = [base, row("forever 100 %", **names)]
    assert statuses(*fall, name="memory_size") == {"forever 50 %": Status.NOT_JUDGED}
    found = statuses(*fall, name="memory_size", scale="paper")
    assert found == {"forever 50 %": Status.CONTRADICTED}


def test_language_model_answers_two_tables() -> None:
    """Its base is FOREVER of the main table."""
    base = row("base", difference=None)
    part = {"benchmark": "superni", "rows": [base, row("finetune"), row("-IAR")], "analyses": {}}
    report = {"name": "language_model", "finished": 15, "parts": [part]}
    keys = {key[:3] for key, _ in answers_of(report, "language_model-superni")}
    assert {*keys} >= {("components", "superni", "-IAR"), ("main_results", "superni", "finetune")}


def test_published_differences_are_those_of_the_sweeps() -> None:
    for (sweep, benchmark, variant, reference, measure), claim in read_claims().items():
        if measure in ("op", "bwt"):
            rows = paper.TABLES[sweep][benchmark]
            ours, base = (getattr(rows[name], measure) for name in (variant, reference))
            assert float(claim["published"]) == pytest.approx(ours - base, abs=0.06)


def test_the_page_is_what_the_reports_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.results"
