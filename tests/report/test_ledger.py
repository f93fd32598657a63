"""RESULTS.md is what the committed result files say."""

import json
from pathlib import Path
from typing import Any

import pytest

from forever.report.claims import claims, read_claims
from forever.sweeps import published as paper
from scripts.ledger import LEDGER, page, section, sections, tally


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


def row(
    variant: str,
    op: Numbers | None,
    verdict: str | None,
    bwt: Numbers | None = None,
    **changes: Any,
) -> Any:
    def estimate(numbers: Numbers | None) -> dict[str, float] | None:
        return numbers and dict(zip(("value", "low", "high", "runs"), (*numbers, 5), strict=True))

    content = {"variant": variant, "paper_variant": variant, "reference": "base", "bound": False}
    numbers = {"difference": estimate(op), "bwt_difference": estimate(bwt)}
    return {**content, **numbers, "verdict": verdict, **changes}


def report(rows: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A committed report, of `components` on mini unless told otherwise."""
    rows = rows or [
        row("base", None, None),
        row("+FIR", (-3.0, -5.0, -1.0), "loss", (-2.0, -4.0, 0.5)),
        row("+RR", (2.0, -1.0, 5.0), "tie"),
        row("+PIR", (1.0, -30.0, 32.0), "tie"),
        row("+IAR&PIR", (-0.1, -0.6, 0.4), "tie"),
    ]
    return {
        "name": "components", "scale": "mini", "finished": 15, "revisions": ["abc"],
        "hardware": ["chip, 2 cores"], "commands": ["forever sweep components"],
        "parts": [{"benchmark": "mini", "rows": rows, "analyses": {}}], **changes,
    }  # fmt: skip


def analysed(name: str, content: Any, **changes: Any) -> dict[str, Any]:
    """A committed report of a sweep with one analysis."""
    part = {"benchmark": "mini", "rows": [], "analyses": {name: content}}
    return report(name=name, parts=[part], **changes)


def to_forever(
    variant: str, numbers: Any = None, verdict: str | None = None, **changes: Any
) -> Any:
    return row(variant, numbers, verdict, reference="forever", **changes)


Answer = tuple[str, str, str]


def answers(reports: list[Any], table: str, text: str = "") -> list[Answer]:
    asked = [claim for claim in claims(reports) if claim.table == table]
    asked = [claim for claim in asked if claim.text.startswith(text)]
    return [(claim.ours, claim.status.value, claim.scale) for claim in asked]


@pytest.mark.parametrize(
    ("variant", "ours", "status"),
    [
        ("+FIR", "OP -3.0 [-5.0, -1.0]; BWT -2.0 [-4.0, +0.5]", "reproduced"),
        ("+RR", "OP +2.0 [-1.0, +5.0]", "not reproduced: no difference shown"),
        # Published: +0.2.
        ("+PIR", "OP +1.0 [-30.0, +32.0]", "no difference shown: interval too wide"),
        ("+IAR&PIR", "OP -0.1 [-0.6, +0.4]", "reproduced"),
    ],
)
def test_claims_are_answered_by_reports(variant: str, ours: str, status: str) -> None:
    assert answers([], "components", variant) == [("", "not attempted", "")]
    assert answers([report()], "components", variant) == [(ours, status, "mini")]
    assert answers([report()], "components", "+STC") == [("", "not attempted", "")]
    both = answers([report(), report(scale="paper")], "components", variant)
    assert [scale for *_, scale in both] == ["mini", "paper"]


def test_published_differences_are_between_variant_and_reference() -> None:
    told = {(claim.table, claim.text): claim.published for claim in claims([])}
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
    rows = [row(name, (-2.0, -3.0, -1.0), "loss", reference="forever 2 %") for name in names]
    vbm = ("memory_size", "vbm 5 %")
    assert answers([report(rows, name="memory_size")], *vbm) == [("", "not attempted", "")]
    rows[-1]["reference"] = "forever 5 %"
    assert answers([report(rows, name="memory_size")], *vbm) == [
        ("OP -2.0 [-3.0, -1.0]", "reproduced", "mini")
    ]


@pytest.mark.parametrize(
    ("benchmark", "answered"),
    [("superni", "superni"), ("mini", "superni"), ("standard", "standard"), ("own", "superni")],
)
def test_all_methods_on_one_benchmark_answer_the_main_table(benchmark: str, answered: str) -> None:
    rows = [to_forever("forever"), to_forever("ssr", (-2.0, -3.0, -1.0), "loss")]
    parts = [{"benchmark": benchmark, "rows": rows, "analyses": {}}]
    told = [claim for claim in claims([report(name="baselines", parts=parts)]) if claim.ours]
    assert [(claim.table, claim.text, claim.status.value) for claim in told] == [
        ("main_results", f"{answered}: ssr less forever", "reproduced")
    ]


def test_what_was_tried_stands_first_with_its_commands_below(tmp_path: Path) -> None:
    for scale in ("mini", "cpu"):
        (tmp_path / scale).mkdir()
        content = report(scale=scale, commands=[f"forever sweep components --scale {scale}"])
        (tmp_path / scale / "report.json").write_text(json.dumps(content), encoding="utf-8")
    lines = sections(read_claims(tmp_path))
    headings = [line for line in lines if line.startswith("### ")]
    assert headings[:2] == ["### components", "### main_results"]
    assert len(headings) == len({*headings})
    own = lines[: lines.index("### main_results")]
    lines_of_table = [line for line in own if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines_of_table]
    assert rows[0] == ["claim", "ours", "published", "status", "scale", "runs"]
    assert rows[1][0] == rows[2][0] == "+FIR less base"
    assert [line[4] for line in rows[1:]] == ["cpu", "mini"] * 4 + ["–"] * 3
    assert own[-4:-1] == ["  `forever sweep components --scale cpu`", "- mini, abc; chip, 2 cores:",
                          "  `forever sweep components --scale mini`"]  # fmt: skip
    assert "Not attempted: `forever sweep spacing --scale paper`." in lines
    assert "The paper's numbers of ewc; olora; moelora; sapt are not known here." in lines


def test_a_method_that_did_nothing_of_its_own_answers_nothing() -> None:
    rows = [to_forever("forever")]
    for name, idle in (("finetune", False), ("ssr", True)):
        rows.append(to_forever(name, (-30.0, -33.0, -27.0), "loss", idle=idle))
    told = [c.status.value for c in claims([report(rows, name="baselines")]) if c.report]
    assert told == ["reproduced", "not judged: ends as fine-tuning does, to the last digit"]


def test_the_tally_counts_each_answer_once() -> None:
    rows = [
        row("base", None, None),
        row("+FIR", (-3.0, -5.0, -1.0), "loss"),
        row("+RR", (9.0, 6.0, 12.0), "win"),
        row("+ER", (2.0, -1.0, 5.0), "tie"),
        row("+PIR", (1.0, -30.0, 32.0), "tie"),
        row("-IAR", (1.0, 0, 2), None),
    ]
    claimed = claims([report(rows), report(rows, scale="cpu")])
    lines = tally(claimed)
    assert lines[0] == "| scale | answers | reproduced | not shown | contradicted | not judged |"
    assert lines[2:4] == ["| mini | 5 | 1 | 2 | 1 | 1 |", "| cpu | 5 | 1 | 2 | 1 | 1 |"]
    summary = "claims have an answer, none at full scale, which needs a GPU."
    assert f"5 of {len(claimed) - 5} {summary}" in lines
    assert tally(claims([]))[0].startswith("0 of ")


def test_a_bound_is_judged_by_its_interval() -> None:
    bound = to_forever("finetune", (-30.0, -33.0, -27.0), bound=True)

    def status(**difference: float) -> str:
        rows = [
            to_forever("forever"),
            bound | {"runs": 2, "difference": bound["difference"] | difference},
        ]
        return answers([report(rows, name="baselines")], "main_results", "superni: finetune")[0][1]

    assert status() == "reproduced"
    assert status(value=30.0, low=27.0, high=33.0) == "not reproduced: opposite"
    assert status(runs=1) == "not judged"  # two runs of its own, of which the reference has one


@pytest.mark.parametrize(
    ("scale", "phases", "low", "high", "status"),
    [
        ("mini", 2, 0.001, 0.003, "reproduced"),
        ("mini", 2, -0.001, 0.003, "not reproduced: no difference shown"),
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
    fall = None if low is None else {"value": (low + high) / 2, "low": low, "high": high, "runs": 4}
    content = {"rates": [0.003, 0.002, 0.001, 0.0009, 0.0008][:phases], "fall": fall}
    made = analysed("forgetting_rate", {"finetune": content}, scale=scale)
    ((ours, told, _),) = answers([made], "forgetting_rate")
    assert told == status
    assert ours == {
        ("mini", 2, 0.001): "+0.0020 [+0.0010, +0.0030] (0.0030, 0.0020)",
        ("mini", 1, None): "(0.0030)",
    }.get((scale, phases, low), ours)


def test_a_report_that_lacks_a_part_answers_nothing_and_stops_nothing() -> None:
    """A folder used again has a variant more, an interrupted sweep a method less."""
    looks = {"rates": [0.2, 0.1], "fall": None}
    twice = {"finetune": looks, "finetune (optim.lr=0.1)": looks}
    made = analysed("forgetting_rate", twice)
    assert [status for _, status, _ in answers([made], "forgetting_rate")] == ["not judged"]
    minutes = {"forever": 1.0}
    made = analysed("training_time", {"tiny": minutes})
    assert {status for _, status, _ in answers([made], "training_time")} == {"not attempted"}
    minutes["mix_replay"] = 0.5
    times = {(ours, status) for ours, status, _ in answers([made], "training_time")}
    assert times == {("2.00", "measured"), ("", "not attempted")}


NONE = "no correlation shown"
SHOWN = f"reproduced: {NONE}"


@pytest.mark.parametrize(
    ("r", "p", "pairs", "statuses"),
    [
        (0.9, 0.01, 15, ["reproduced", "not reproduced", "not reproduced"]),
        (-0.9, 0.01, 15, ["not reproduced", "not reproduced", "reproduced"]),
        # Interval -0.25 to 0.70.
        (0.3, 0.3, 15, [f"not {SHOWN}", f"{NONE}: too few tasks", f"not {SHOWN}"]),
        (0.1, 0.3, 60, [f"not {SHOWN}", "reproduced", f"not {SHOWN}"]),  # interval -0.16 to 0.34
        (0.1, 0.9, 3, [f"not {SHOWN}", f"{NONE}: too few tasks", f"not {SHOWN}"]),
    ],
)
def test_correlations_have_a_sign_and_a_p(
    r: float, p: float, pairs: int, statuses: list[str]
) -> None:
    """Published: positive with the other order, none with BWT, negative with joint training. That
    there is none takes an interval that is narrow enough."""
    numbers = {"r": r, "p": p, "pairs": pairs}
    made = analysed("model_day", dict.fromkeys(paper.MODEL_DAY, numbers))
    assert [status for _, status, _ in answers([made], "model_day")] == statuses
