"""RESULTS.md is what the committed result files say."""

import json
from pathlib import Path
from typing import Any

import pytest

from forever.report.claims import Claim, claims
from forever.sweeps import published as paper
from scripts.ledger import LEDGER, frame_of, page, section, sections, tally


def test_page_is_what_the_files_say() -> None:
    assert LEDGER.read_text(encoding="utf-8") == page(), "run python -m scripts.ledger"


def keep(folder: Path, **changes: Any) -> None:
    """A committed run."""
    result = {
        "seed": 0, "op": 50.0, "bwt": -10.0, "forgetting": 10.0,
        "events": {"a": {"look": 9}, "b": {"replay": 2}}, "updates": {"task": 20, "replay": 5},
        "seconds": {"task": 60.0, "evaluation": 30.0},
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
    assert "| alone | 0 | 50.0 | - | 10.0 | 2 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    mean = "55.0 [50.0, 61.0] | -10.0 [-10.0, -10.0] | 10.0 [10.0, 10.0]"
    assert f"| thrice | 0, 1, 2 | {mean} | 2 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    assert lines.count("forever run 'x y'") == 1


Numbers = tuple[float, float, float]


def estimate(numbers: Numbers | None) -> Any:
    return numbers and dict(zip(("value", "low", "high", "runs"), (*numbers, 5), strict=True))


def row(
    variant: str, published: float, op: Numbers | None, verdict: str | None, **changes: Any
) -> Any:
    """A row of a report: what it is less its reference, published and found."""
    content = {"variant": variant, "paper_variant": variant, "reference": "base", "bound": False}
    numbers = {"difference": estimate(op), "bwt_difference": None}
    return {**content, **numbers, "paper": {"difference": published}, "verdict": verdict, **changes}


BASE = row("base", 0.0, None, None)
FOREVER = row("forever", 0.0, None, None, reference="forever")


def to_forever(variant: str, published: float, op: Numbers, **changes: Any) -> Any:
    return row(variant, published, op, "loss", reference="forever", **changes)


def report(*rows: Any, name: str = "components", scale: str = "mini", **analysis: Any) -> Any:
    """A committed report."""
    analyses = {name: analysis} if analysis else {}
    return {
        "name": name, "scale": scale, "finished": 15, "revisions": ["abc"],
        "hardware": ["chip, 2 cores"], "commands": [f"forever sweep {name} --scale {scale}"],
        "parts": [{"benchmark": "mini", "rows": list(rows), "analyses": analyses}],
    }  # fmt: skip


def words(claim: Claim) -> str:
    return claim.status.value[0]


def answers(reports: list[Any], *key: str) -> list[tuple[str, str]]:
    asked = [claim for claim in claims(reports) if claim.key[: len(key)] == key]
    return [(claim.ours, words(claim)) for claim in asked]


FIR = row("+FIR", -2.4, (-3, -5, -1), "loss", bwt_difference=estimate((-2.0, -4.0, 0.5)))
SHOWN = "no difference shown"


@pytest.mark.parametrize(
    ("content", "ours", "status"),
    [
        (FIR, "OP -3.0 [-5.0, -1.0]; BWT -2.0 [-4.0, +0.5]", "reproduced"),
        (row("+RR", -5.3, (2, -1, 5), "tie"), "OP +2.0 [-1.0, +5.0]", f"not reproduced: {SHOWN}"),
        (row("+RR", -5.3, (9, 6, 12), "win"), "OP +9.0 [+6.0, +12.0]", "not reproduced: opposite"),
        (row("+PIR", 0.2, (1, -30, 32), "tie"), "OP +1.0 [-30.0, +32.0]",
         f"{SHOWN}: interval too wide"),
        (row("+PIR", 0.2, (-0.1, -0.6, 0.4), "tie"), "OP -0.1 [-0.6, +0.4]", "reproduced"),
    ],
)  # fmt: skip
def test_claims_are_answered_by_reports(content: Any, ours: str, status: str) -> None:
    place = ("components", "superni", content["variant"])
    other = ("components", "superni", "+STC")
    told = report(BASE, content)
    assert answers([], *place) == answers([told], *other) == [("", "not attempted")]
    assert answers([told], *place) == [(ours, status)]
    assert answers([told, report(BASE, content, scale="paper")], *place) == 2 * [(ours, status)]


def test_published_differences_are_between_variant_and_reference() -> None:
    told = {(claim.key[0], claim.claim): claim.published for claim in claims([])}
    assert len(told) == len(claims([]))  # each claim once
    assert told["components", "+FIR less base"] == "OP -2.4; BWT -2.4"
    assert told["main_results", "superni: vbm less forever"] == "OP -0.8; BWT -0.8"
    assert told["main_results", "long: migu less forever"] == "OP -3.1"  # its BWT is not known here
    assert told["backbones", "vbm, Llama-3.1-8B less forever, Llama-3.1-8B"] == "OP -1.6; BWT -0.8"
    assert told["memory_size", "vbm 5 % less forever 5 %"] == "OP -1.1"
    assert told["memory_size", "forever 5 % less forever 2 %"] == "OP +1.0"


def test_a_difference_to_another_reference_answers_nothing() -> None:
    """As a sweep has that was made before each variant had its own."""
    names = ("forever 2 %", "forever 5 %", "vbm 5 %")
    rows = [row(name, -1.1, (-2, -3, -1), "loss", reference="forever 2 %") for name in names]
    place = ("memory_size", "superni", "vbm 5 %")
    assert answers([report(*rows, name="memory_size")], *place) == [("", "not attempted")]
    rows[-1]["reference"] = "forever 5 %"
    told = [("OP -2.0 [-3.0, -1.0]", "reproduced")]
    assert answers([report(*rows, name="memory_size")], *place) == told


@pytest.mark.parametrize(
    ("benchmark", "answered"),
    [("superni", "superni"), ("mini", "superni"), ("standard", "standard"), ("own", "superni")],
)
def test_all_methods_on_one_benchmark_answer_the_main_table(benchmark: str, answered: str) -> None:
    told = report(FOREVER, to_forever("ssr", -2.0, (-2, -3, -1)), name="baselines")
    told["parts"][0]["benchmark"] = benchmark
    (claim,) = [claim for claim in claims([told]) if claim.ours]
    assert claim.claim == f"{answered}: ssr less forever"
    assert (claim.key[0], words(claim)) == ("main_results", "reproduced")


def test_a_method_that_did_nothing_of_its_own_answers_nothing() -> None:
    rows = [to_forever("ssr", -2.0, (-30, -33, -27), idle=True)]
    told = answers([report(FOREVER, *rows, name="baselines")], "main_results", "superni", "ssr")
    assert told[0][1] == "not judged: ends as fine-tuning does, to the last digit"


@pytest.mark.parametrize(
    ("value", "runs", "status"),
    [
        (-30, 5, "reproduced"),
        (30, 5, "not reproduced: opposite"),
        (-30, 1, "not judged"),  # of which the reference has one
    ],
)
def test_a_bound_is_judged_by_its_interval(value: float, runs: int, status: str) -> None:
    difference = estimate((value, value - 3, value + 3)) | {"runs": runs}
    bound = row("finetune", -33.9, None, None, reference="forever", bound=True)
    told = report(FOREVER, bound | {"difference": difference}, name="baselines")
    assert answers([told], "main_results", "superni", "finetune")[0][1] == status


def test_what_was_tried_stands_first_with_its_commands_below() -> None:
    made = [report(BASE, FIR, scale=scale) for scale in ("cpu", "mini")]
    lines = sections(frame_of(claims(made)))
    headings = [line for line in lines if line.startswith("### ")]
    assert headings[:2] == ["### components", "### main_results"]
    assert len(headings) == len({*headings})
    own = lines[: lines.index("### main_results")]
    assert own[2] == "| claim | ours | published | status | scale | runs |"
    assert [line.split(" | ")[-2] for line in own[4:12]] == ["cpu", "mini", *["–"] * 6]
    for scale, origin in zip(("cpu", "mini"), own[-3:-1], strict=True):
        command = f"  `forever sweep components --scale {scale}`"
        assert origin.split("\n") == [f"- {scale}, abc; chip, 2 cores:", command]
    assert "Not attempted: `forever sweep spacing --scale paper`." in lines
    assert "The paper's numbers of ewc; olora; moelora; sapt are not known here." in lines


def test_the_tally_counts_each_answer_once() -> None:
    rows = [
        BASE,
        row("+FIR", -2.4, (-3, -5, -1), "loss"),
        row("+RR", -5.3, (9, 6, 12), "win"),
        row("+ER", -1.6, (2, -1, 5), "tie"),
        row("+PIR", 0.2, (1, -30, 32), "tie"),
        row("-IAR", -2.6, (1, 0, 2), None),
    ]
    claimed = claims([report(*rows), report(*rows, scale="cpu")])
    lines = tally(frame_of(claimed))
    assert lines[0] == "| scale | answers | reproduced | not shown | contradicted | not judged |"
    assert lines[2:4] == ["| mini | 5 | 1 | 2 | 1 | 1 |", "| cpu | 5 | 1 | 2 | 1 | 1 |"]
    summary = "claims have an answer, none at full scale, which needs a GPU."
    assert f"5 of {len(claimed) - 5} {summary}" in lines


@pytest.mark.parametrize(
    ("scale", "phases", "low", "high", "status"),
    [
        ("mini", 2, 0.001, 0.003, "reproduced"),
        ("mini", 2, -0.001, 0.003, f"not reproduced: {SHOWN}"),
        ("mini", 2, -0.003, -0.001, "not reproduced: opposite"),
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
    told = [report(name="forgetting_rate", scale=scale, finetune=content)]
    ((ours, told_status),) = answers(told, "forgetting_rate")
    assert told_status == status
    if (phases, low) == (2, 0.001):
        assert ours == "+0.0020 [+0.0010, +0.0030] (0.0030, 0.0020)"


def test_a_report_that_lacks_a_part_answers_nothing_and_stops_nothing() -> None:
    """A folder used again has a variant more, an interrupted sweep a method less."""
    looks = {"rates": [0.2, 0.1], "fall": None}
    twice = {"finetune": looks, "finetune (optim.lr=0.1)": looks}
    told = answers([report(name="forgetting_rate", **twice)], "forgetting_rate")
    assert told == [("(0.2000, 0.1000)", "not judged")]
    alone = [report(name="training_time", tiny={"forever": 1.0})]
    assert set(answers(alone, "training_time")) == {("", "not attempted")}
    both = [report(name="training_time", tiny={"forever": 1.0, "mix_replay": 0.5})]
    assert set(answers(both, "training_time")) == {("2.00", "measured"), ("", "not attempted")}


NONE = "no correlation shown"


@pytest.mark.parametrize(
    ("r", "p", "pairs", "statuses"),
    [
        (0.9, 0.01, 15, ["reproduced", "not reproduced", "not reproduced"]),
        (-0.9, 0.01, 15, ["not reproduced", "not reproduced", "reproduced"]),
        # Interval -0.25 to 0.70.
        (0.3, 0.3, 15, [f"not reproduced: {NONE}", f"{NONE}: too few tasks"]),
        (0.1, 0.3, 60, [f"not reproduced: {NONE}", "reproduced"]),  # interval -0.16 to 0.34
        (0.1, 0.9, 3, [f"not reproduced: {NONE}", f"{NONE}: too few tasks"]),
    ],
)
def test_correlations_have_a_sign_and_a_p(
    r: float, p: float, pairs: int, statuses: list[str]
) -> None:
    """Published: positive with the other order, none with BWT, negative with joint training. That
    there is none takes an interval that is narrow enough."""
    numbers = {"r": r, "p": p, "pairs": pairs}
    told = answers(
        [report(name="model_day", **dict.fromkeys(paper.MODEL_DAY, numbers))], "model_day"
    )
    assert [status for _, status in told][: len(statuses)] == statuses
