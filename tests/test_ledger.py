"""RESULTS.md is what the committed result files say."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.claims import claims
from experiments.ledger import LEDGER, page, section
from experiments.paper import MODEL_DAY


def test_page_is_what_the_files_say() -> None:
    assert LEDGER.read_text(encoding="utf-8") == page(), "run python -m experiments.ledger"


def keep(folder: Path, **changes: Any) -> None:
    """A committed run."""
    result = {
        "seed": 0, "op": 50.0, "bwt": -10.0, "forgetting": 10.0, "events": {"a": {}, "b": {"replay": 2}},
        "updates": {"task": 20, "replay": 5}, "seconds": {"task": 60.0, "evaluation": 30.0},
    }  # fmt: skip
    where = {"argv": ["forever", "run", "x y"], "revision": "abc", "gpus": [], "cpu": "chip", "cores": 2}
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result | changes), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(where), encoding="utf-8")


def test_a_row_is_a_mean_with_the_smallest_and_the_largest(tmp_path: Path) -> None:
    keep(tmp_path / "alone", bwt=None)
    for seed, op in enumerate((50.0, 61.0, 54.0)):
        keep(tmp_path / "thrice" / f"s{seed}", seed=seed, op=op)
    lines = section(tmp_path).splitlines()
    assert "| alone | 0 | 50.0 | - | 10.0 | 2 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    mean = "55.0 [50.0, 61.0] | -10.0 [-10.0, -10.0] | 10.0 [10.0, 10.0]"
    assert f"| thrice | 0, 1, 2 | {mean} | 2 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    assert lines.count("forever run 'x y'") == 1


def report(**changes: Any) -> dict[str, Any]:
    """A committed report of `components` on mini with three variants."""

    def row(variant: str, difference: tuple[float, float, float] | None, verdict: str | None) -> Any:
        return {
            "variant": variant,
            "paper_variant": variant,
            "bound": False,
            "difference": difference and dict(zip(("value", "low", "high", "runs"), (*difference, 5), strict=True)),
            "verdict": verdict,
        }

    rows = [
        row("base", None, None), row("+FIR", (-3.0, -5.0, -1.0), "loss"), row("+RR", (2.0, -1.0, 5.0), "tie"),
        row("+PIR", (1.0, -30.0, 32.0), "tie"), row("+IAR&PIR", (-0.1, -0.6, 0.4), "tie"),
    ]  # fmt: skip
    content = {
        "name": "components", "scale": "mini", "finished": 15, "revisions": ["abc"], "hardware": ["chip, 2 cores"],
        "commands": ["forever sweep components"], "parts": [{"benchmark": "mini", "rows": rows, "analyses": {}}],
    }  # fmt: skip
    return content | changes


def found(reports: list[Any], text: str) -> list[tuple[str, str, str]]:
    return [(claim.ours, claim.status, claim.scale) for claim in claims(reports) if claim.text.startswith(text)]


def test_claims_are_answered_by_reports() -> None:
    fir = "components: OP of +FIR"
    assert found([], fir) == [("", "not attempted", "")]
    assert found([report()], fir) == [("-3.0 [-5.0, -1.0]", "reproduced", "mini")]
    assert found([report()], "components: OP of +RR") == [
        ("+2.0 [-1.0, +5.0]", "not reproduced: no difference shown", "mini")
    ]
    assert found([report()], "components: OP of +PIR") == [
        ("+1.0 [-30.0, +32.0]", "no difference shown: interval too wide", "mini")  # published: +0.2
    ]
    assert found([report()], "components: OP of +IAR&PIR") == [("-0.1 [-0.6, +0.4]", "reproduced", "mini")]
    assert found([report()], "components: OP of +STC") == [("", "not attempted", "")]
    assert [scale for *_, scale in found([report(), report(scale="paper")], fir)] == ["mini", "paper"]


def test_a_bound_is_judged_by_its_interval() -> None:
    low = {"value": -30.0, "low": -33.0, "high": -27.0, "runs": 2}
    row = {"variant": "finetune", "paper_variant": "finetune", "bound": True, "verdict": None, "difference": low}

    def status(row: dict[str, Any]) -> str:
        part = {"benchmark": "mini", "rows": [row], "analyses": {}}
        return found([report(name="baselines", parts=[part])], "baselines: OP of finetune")[0][1]

    assert status(row) == "reproduced"
    assert status(row | {"difference": low | {"value": 30.0, "low": 27.0, "high": 33.0}}) == "not reproduced: opposite"
    # Two runs of its own, of which the reference has one.
    assert status(row | {"runs": 2, "difference": low | {"runs": 1}}) == "not judged"


def forgetting(scale: str, phases: int, low: float | None, high: float = 0.01) -> list[tuple[str, str, str]]:
    fall = None if low is None else {"value": (low + high) / 2, "low": low, "high": high, "runs": 4}
    analysis = {"finetune": {"rates": [0.003, 0.002, 0.001, 0.0009, 0.0008][:phases], "fall": fall}}
    part = {"benchmark": "mini", "rows": [], "analyses": {"forgetting_rate": analysis}}
    return found([report(name="forgetting_rate", scale=scale, parts=[part])], "forgetting_rate")


@pytest.mark.parametrize(
    ("scale", "phases", "low", "high", "status"),
    [
        ("mini", 2, 0.001, 0.003, "reproduced"), ("mini", 2, -0.001, 0.003, "not reproduced: no difference shown"),
        ("mini", 2, -0.003, -0.001, "not reproduced: opposite"), ("mini", 1, None, 0.0, "not judged"),
        ("paper", 4, 0.001, 0.003, "not judged"), ("paper", 5, 0.001, 0.003, "reproduced"),
    ],
)  # fmt: skip
def test_forgetting_slows_down_or_not(scale: str, phases: int, low: float | None, high: float, status: str) -> None:
    """The paper's scale needs the paper's five phases, a smaller one two; means that fall are not enough."""
    ((ours, told, _),) = forgetting(scale, phases, low, high)
    assert told == status
    assert ours == {
        ("mini", 2, 0.001): "+0.0020 [+0.0010, +0.0030] (0.0030, 0.0020)", ("mini", 1, None): "(0.0030)",
    }.get((scale, phases, low), ours)  # fmt: skip


def test_a_report_that_lacks_a_part_answers_nothing_and_stops_nothing() -> None:
    """A folder used again has a variant more, an interrupted sweep a method less."""
    looks = {name: {"rates": [0.2, 0.1], "fall": None} for name in ("finetune", "finetune (optim.lr=0.1)")}
    parts = [{"benchmark": "mini", "rows": [], "analyses": {"forgetting_rate": looks}}]
    assert [status for _, status, _ in found([report(name="forgetting_rate", parts=parts)], "forgetting_rate")] == [
        "not judged"
    ]
    parts = [{"benchmark": "mini", "rows": [], "analyses": {"training_time": {"tiny": {"forever": 1.0}}}}]
    times = found([report(name="training_time", parts=parts)], "training_time")
    assert {status for _, status, _ in times} == {"not attempted"}
    parts[0]["analyses"]["training_time"]["tiny"]["mix_replay"] = 0.5
    times = found([report(name="training_time", parts=parts)], "training_time")
    assert {(ours, status) for ours, status, _ in times} == {("2.00", "measured")}


@pytest.mark.parametrize(
    ("r", "p", "other", "joint"),
    [
        (0.9, 0.01, "reproduced", "not reproduced"), (-0.9, 0.01, "not reproduced", "reproduced"),
        (0.9, 0.2, "not reproduced", "not reproduced"),
    ],
)  # fmt: skip
def test_correlations_have_a_sign_and_a_p(r: float, p: float, other: str, joint: str) -> None:
    """Published: positive with the other order, negative with joint training, none with BWT."""
    numbers = {"r": r, "p": p, "pairs": 15}
    part = {"benchmark": "superni", "rows": [], "analyses": {"model_day": dict.fromkeys(MODEL_DAY, numbers)}}
    statuses = [status for _, status, _ in found([report(name="model_day", parts=[part])], "model_day")]
    assert statuses == [other, "not reproduced" if p < 0.05 else "reproduced", joint]
