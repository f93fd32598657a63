"""RESULTS.md is what the committed result files say."""

import json
from pathlib import Path
from typing import Any

import pytest

from forever.sweeps import published as paper
from scripts.claims import Claim, claims, sides
from scripts.finding_claims import finding_claims
from scripts.ledger import LEDGER, frame_of, page, section, sections, tally


def test_page_is_what_the_files_say() -> None:
    assert LEDGER.read_text(encoding="utf-8") == page(), "run python -m scripts.ledger"


def keep(folder: Path, **changes: Any) -> None:
    """A committed run."""
    result = {
        "seed": 0, "op": 50.0, "bwt": -10.0, "forgetting": 10.0,
        "events": {"a": {"look": 9}, "b": {"replay": 2}}, "updates": {"task": 20, "replay": 5},
        "seconds": {"task": 60.0, "evaluation": 30.0}, "examples": {"replayed": 40},
    }  # fmt: skip
    where = {"revision": "abc", "gpus": [], "cpu": "chip", "cores": 2}
    where["argv"] = ["forever", "run", "x y"]
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result | changes), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(where), encoding="utf-8")


def test_a_row_is_a_mean_with_the_smallest_and_the_largest(tmp_path: Path) -> None:
    keep(tmp_path / "alone", bwt=None)
    for seed, op in enumerate((50.0, 61.0, 54.0)):
        keep(tmp_path / "thrice" / f"s{seed}", seed=seed, op=op)
    lines = section(tmp_path).splitlines()
    assert "| alone | 0 | 50.0 | - | 10.0 | 2 | 40 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    mean = "55.0 [50.0, 61.0] | -10.0 [-10.0, -10.0] | 10.0 [10.0, 10.0]"
    assert f"| thrice | 0, 1, 2 | {mean} | 2 | 40 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    assert lines.count("forever run 'x y'") == 1


Numbers = tuple[float, float, float]


def estimate(numbers: Numbers | None, runs: int = 5) -> Any:
    return numbers and dict(zip(("value", "low", "high", "runs"), (*numbers, runs), strict=True))


def row(variant: str, op: Numbers | None, p: float | None, **changes: Any) -> Any:
    """A row of a report, with the same p for OP and BWT."""
    content = {"variant": variant, "paper_variant": variant, "reference": "base", "bound": False}
    numbers = {"difference": estimate(op), "bwt_difference": None, "p": p, "bwt_p": p}
    return {**content, **numbers, **changes}


def report(*rows: Any, name: str = "components", scale: str = "mini", **analysis: Any) -> Any:
    """A committed report."""
    analyses = {name: analysis} if analysis else {}
    return {
        "name": name, "scale": scale, "finished": 15, "revisions": ["abc"],
        "hardware": ["chip, 2 cores"], "commands": [f"forever sweep {name} --scale {scale}"],
        "parts": [{"benchmark": "mini", "rows": list(rows), "analyses": analyses}],
    }  # fmt: skip


def claims_of(*reports: Any) -> list[Claim]:
    return [*claims(reports), *finding_claims(reports)]


def answers(told: Any, table: str, claim: str = "") -> list[tuple[str, str]]:
    """What a report says to some claims of a table."""
    asked = [answer for answer in claims_of(told) if answer.key[0] == table]
    asked = [answer for answer in asked if answer.claim.startswith(claim)]
    return [(answer.ours, answer.status.text) for answer in asked]


BASE = row("base", None, None)
FIR = row("+FIR", (-3, -5, -1), 0.001, bwt_difference=estimate((-2, -4, 0.5)))
ONE_RUN = estimate((-9, -12, -6), runs=1)
SHOWN = "no difference shown"


# Published: +RR -5.3, +PIR +0.2, which is below half a point and counts as none, +ER -1.6.
@pytest.mark.parametrize(
    ("content", "status"),
    [
        (FIR, "reproduced"),
        (row("+RR", (2, -1, 5), 0.5), f"not reproduced: {SHOWN}"),
        # Wider to each side than the published difference.
        (row("+RR", (2, -4, 8), 0.5), "cannot tell: ±6.0"),
        (row("+RR", (-9, -16, -2), 0.001), "reproduced"),
        # On the other side of zero, however wide, and whatever is left of it after correction.
        (row("+RR", (9, 6, 12), 0.001), "contradicted"),
        (row("+RR", (9, 3, 15), 0.001), "contradicted"),
        (row("+RR", (9, 3, 15), 0.5), "contradicted"),
        # On the published side, but not after correction.
        (row("+RR", (-9, -16, -2), 0.5), "cannot tell: ±7.0"),
        (row("+PIR", (1, -30, 32), 0.5), "cannot tell: ±31.0"),
        (row("+PIR", (9, 6, 12), 0.001), "contradicted: they differ"),
        (row("+PIR", (-0.1, -0.6, 0.4), 0.5), "reproduced"),
        # As a sweep has it that was made before each variant had a reference of its own.
        (row("+RR", (9, 6, 12), 0.001, reference="other"), "not attempted"),
        # It did nothing of its own.
        (row("+ER", (-9, -12, -6), 0.001, idle=True),
         "not judged: ends as fine-tuning does, to the last digit"),
        (row("+RR", (-9, -12, -6), 0.001, degenerate=True),
         "degenerate here: fewer than half of its days come"),
        # Bounds, which are judged by their interval; the reference has only one run of the last.
        (row("+ER", (-9, -12, -6), None, bound=True), "reproduced"),
        (row("+ER", (9, 8, 10), None, bound=True), "contradicted"),
        (row("+ER", None, None, bound=True, difference=ONE_RUN), "not judged"),
    ],
)  # fmt: skip
def test_claims_are_answered_by_reports(content: Any, status: str) -> None:
    told = report(BASE, content)
    ((ours, told_status),) = answers(told, "components", f"{content['variant']} less base, OP")
    assert told_status == status
    assert answers(told, "components", "+STC less base, OP") == [("", "not attempted")]
    if content is FIR:
        assert ours == "-3.0 [-5.0, -1.0]"


def test_nothing_is_said_of_a_difference_to_a_degenerate_reference() -> None:
    told = report(BASE | {"degenerate": True}, FIR)
    ((_, status),) = answers(told, "components", "+FIR less base, OP")
    assert status == "degenerate here: fewer than half of its days come"


@pytest.mark.parametrize(
    ("bwt", "status"),
    [
        ((-4, -6, -2), "reproduced"),  # published: -2.4
        ((-2, -4, 0.5), f"not reproduced: {SHOWN}"),
        ((-2, -5, 1), "cannot tell: ±3.0"),
        ((4, 1, 7), "contradicted"),
    ],
)
def test_bwt_has_the_same_rules(bwt: Numbers, status: str) -> None:
    told = report(BASE, FIR | {"bwt_difference": estimate(bwt)})
    value, low, high = bwt
    shown = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    assert answers(told, "components", "+FIR less base, BWT") == [(shown, status)]


def test_both_measures_are_corrected_for_all_that_is_no_bound() -> None:
    """Holm makes 0.03, 0.06 and 0.06 of 0.01, 0.04 and 0.03, and BWT has p-values of its own. A
    sweep in rounds has none, and intervals that are corrected."""
    numbers = estimate((-2, -3, -1))
    rows: list[Any] = []
    for place, p in enumerate((0.01, 0.04, 0.03)):
        compared = {"bwt_p": (0.04, 0.03, 0.01)[place], "bwt_difference": numbers}
        rows.append(row(f"v{place}", (-2, -3, -1), p, **compared))
    rows.append(row("bound", (-2, -3, -1), 0.04, bound=True))
    rows.append(row("rounds", (-2, -3, -1), None))
    shown = {"v0": "loss", "v1": "tie", "v2": "tie", "bound": "loss", "rounds": "loss"}
    assert sides(rows, "op") == shown
    shown = {"v0": "tie", "v1": "tie", "v2": "loss", "bound": None, "rounds": None}
    assert sides(rows, "bwt") == shown


def test_published_differences_are_between_variant_and_reference() -> None:
    told = {(claim.key[0], claim.claim): claim.published for claim in claims_of()}
    assert len(told) == len(claims_of())  # each claim once
    assert told["components", "+FIR less base, OP"] == "-2.4"
    assert told["components", "+FIR less base, BWT"] == "-2.4"
    assert told["main_results", "superni: vbm less forever, BWT"] == "-0.8"
    assert told["main_results", "long: migu less forever, BWT"] == "-4.2"
    assert told["main_results", "superni: ewc less forever, OP"] == "-9.2"
    assert told["main_results", "long: sapt, lambda = 2 less forever, OP"] == "-2.2"
    assert ("main_results", "superni: mtl less forever, BWT") not in told
    backbone = "aimmerging, Qwen3-0.6B less forever, Qwen3-0.6B, OP"
    assert told["backbones", backbone] == "-1.1"
    assert told["memory_size", "vbm 5 % less forever 5 %, OP"] == "-1.1"
    assert told["memory_size", "forever 5 % less forever 2 %, OP"] == "+1.0"
    time = "an epoch of aimmerging as a multiple of mix_replay's, Llama-3.1-8B"
    assert told["training_time", time] == "1.43"  # 8.0 of 5.6 minutes


@pytest.mark.parametrize(
    ("benchmark", "answered"),
    [("superni", "superni"), ("mini", "superni"), ("standard", "standard"), ("own", "superni")],
)
def test_all_methods_on_one_benchmark_answer_the_main_table(benchmark: str, answered: str) -> None:
    rows = [row("forever", None, None), row("ssr", (-2, -3, -1), 0.001)]
    told = report(*[own | {"reference": "forever"} for own in rows], name="baselines")
    told["parts"][0]["benchmark"] = benchmark
    (claim,) = [claim for claim in claims([told]) if claim.ours]
    assert (claim.key[0], claim.claim) == ("main_results", f"{answered}: ssr less forever, OP")


@pytest.mark.parametrize(
    ("benchmark", "answered"),
    [
        ("superni", {("components", "-IAR less base, OP"),
                     ("main_results", "superni: mix_replay less forever, OP")}),
        ("long", {("main_results", "long: mix_replay less forever, OP")}),
    ],
)  # fmt: skip
def test_language_model_answers_the_components_and_the_main_table(
    benchmark: str, answered: set[tuple[str, str]]
) -> None:
    """Where its base is called forever. The paper has components on SuperNI only."""
    budget = row("interleaved", (-2, -3, -1), 0.001, reference="forever, one budget")
    rows = [BASE, row("-IAR", (1, -9, 9), 0.5), row("mix_replay", (-2, -3, -1), 0.001), budget]
    told = report(*rows, name="language_model", scale="cpu")
    told["parts"][0]["benchmark"] = benchmark
    assert {(claim.key[0], claim.claim) for claim in claims([told]) if claim.ours} == answered


def test_each_answer_is_counted_and_stands_first_with_its_commands_below() -> None:
    rows = [
        BASE,
        row("+FIR", (-3, -5, -1), 0.001),
        row("+RR", (9, 6, 12), 0.001),
        row("+ER", (2, -1, 5), 0.5),
        row("+PIR", (1, -30, 32), 0.5),
        row("-IAR", None, 0.5, difference=ONE_RUN),
        row("+STC", (-1, -2, 0), 0.5),
    ]
    told = claims_of(*[report(*rows, scale=scale) for scale in ("cpu", "mini")])
    lines = tally(frame_of(told))
    assert lines[0] == (
        "| scale | answers | reproduced | not shown | cannot tell | contradicted | not judged |"
    )
    assert lines[2:4] == ["| mini | 6 | 1 | 1 | 2 | 1 | 1 |", "| cpu | 6 | 1 | 1 | 2 | 1 | 1 |"]
    summary = "claims have an answer, none at full scale, which needs a GPU."
    assert f"6 of {len(told) - 6} {summary}" in lines
    lines = sections(frame_of(told))
    headings = [line for line in lines if line.startswith("### ")]
    assert headings[:2] == ["### components", "### main_results"]
    assert len(headings) == len({*headings})
    own = lines[: lines.index("### main_results")]
    assert own[2] == "| claim | ours | published | status | scale | runs |"
    assert [line.split(" | ")[-2] for line in own[4:17]] == ["cpu", "mini"] * 6 + ["–"]
    for scale, origin in zip(("cpu", "mini"), own[-3:-1], strict=True):
        command = f"  `forever sweep components --scale {scale}`"
        assert origin.split("\n") == [f"- {scale}, abc; chip, 2 cores:", command]
    assert "Not attempted: `forever sweep spacing --scale paper`." in lines


@pytest.mark.parametrize(
    ("scale", "phases", "low", "high", "status"),
    [
        ("mini", 2, 0.001, 0.003, "reproduced"),
        ("mini", 2, -0.001, 0.003, f"not reproduced: {SHOWN}"),
        ("mini", 2, -0.003, -0.001, "contradicted"),
        ("mini", 2, -0.1, 0.104, "cannot tell: ±0.1020"),
        ("mini", 1, None, 0.0, "not judged"),
        ("paper", 4, 0.001, 0.003, "not judged"),
        ("paper", 5, 0.001, 0.003, "reproduced"),
    ],
)
def test_forgetting_slows_down_or_not(
    scale: str, phases: int, low: float | None, high: float, status: str
) -> None:
    """The paper's scale needs the paper's five phases, a smaller one two; means that fall are not
    enough."""
    content = {"rates": [0.003, 0.002, 0.001, 0.0009, 0.0008][:phases], "fall": None}
    if low is not None:
        content["fall"] = estimate((0.002, low, high))
    told = report(name="forgetting_rate", scale=scale, finetune=content)
    ((ours, told_status),) = answers(told, "forgetting_rate")
    assert told_status == status
    if (phases, low) == (2, 0.001):
        assert ours == "+0.0020 [+0.0010, +0.0030] (0.0030, 0.0020)"


def test_a_report_that_lacks_a_part_answers_nothing_and_stops_nothing() -> None:
    """A folder used again has a variant more, an interrupted sweep a method less."""
    looks = {"rates": [0.2, 0.1], "fall": None}
    twice = {"finetune": looks, "finetune (optim.lr=0.1)": looks}
    told = answers(report(name="forgetting_rate", **twice), "forgetting_rate")
    assert told == [("(0.2000, 0.1000)", "not judged")]
    alone = report(name="training_time", tiny={"forever": 1.0})
    assert set(answers(alone, "training_time")) == {("", "not attempted")}
    both = report(name="training_time", tiny={"forever": 1.0, "mix_replay": 0.5})
    assert set(answers(both, "training_time")) == {("2.00", "measured"), ("", "not attempted")}


NONE, FEW = "not reproduced: no correlation shown", "cannot tell: too few tasks"


@pytest.mark.parametrize(
    ("r", "p", "pairs", "statuses"),
    [
        (0.9, 0.01, 15, ["reproduced", "contradicted", "contradicted"]),
        (-0.9, 0.01, 15, ["contradicted", "contradicted", "reproduced"]),
        # Interval -0.25 to 0.70.
        (0.3, 0.3, 15, [NONE, FEW, NONE]),
        (0.1, 0.3, 60, [NONE, "reproduced", NONE]),  # interval -0.16 to 0.34
        (-0.49, 0.22, 8, [NONE, FEW, FEW]),  # 0.88 to each side of z, where -0.56 is at -0.64
        (0.1, 0.9, 3, [FEW, FEW, FEW]),
    ],
)
def test_correlations_have_a_sign_and_a_p(
    r: float, p: float, pairs: int, statuses: list[str]
) -> None:
    """Published: positive with the other order, none with BWT, negative with joint training. That
    there is none takes an interval that is narrow enough."""
    numbers = {"r": r, "p": p, "pairs": pairs}
    told = report(name="model_day", **dict.fromkeys(paper.MODEL_DAY, numbers))
    assert [status for _, status in answers(told, "model_day")][: len(statuses)] == statuses
