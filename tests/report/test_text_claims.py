"""What runs say to the claims of the paper's text, by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_up import TASKS, base_run, edit, make_up

from forever.files import read_json, read_lines, write_lines
from forever.report.report import stored
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep
from scripts.keep import keep
from scripts.text_claims import (
    DAY_7,
    findings,
    mean_over_benchmarks,
    reached,
    text_claims,
    times,
    within,
)

METHODS = ("forever", "vbm", "fixed_interval", "mtl")
BY_METHOD = {name: {"method.name": name} for name in METHODS}


def estimate(value: float, low: float, high: float, runs: int = 5) -> Any:
    return {"value": value, "low": low, "high": high, "runs": runs}


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((0.13, 0.12, 0.14), "reproduced"),
        ((0.13, 0.10, 0.16), "cannot tell: ±0.03"),
        ((0.15, 0.146, 0.16), "contradicted"),
        ((0.10, 0.05, 0.11), "contradicted"),
        ((0.15, 0.11, 0.19), "cannot tell: ±0.04"),
    ],
)
def test_a_number_lies_in_a_range(numbers: Any, status: str) -> None:
    """140 and 180 of 1250 updates are 0.112 and 0.144."""
    assert pytest.approx((0.112, 0.144)) == DAY_7
    assert within(*DAY_7, estimate(*numbers)).text == status


@pytest.mark.parametrize(
    ("rates", "fall", "status"),
    [
        ((0.0023, 0.0003), (0.002, 0.001, 0.003), "reproduced"),  # 7.7 times
        ((0.0023, 0.0020), (0.002, 0.001, 0.003), "not reproduced: by another factor"),
        ((0.0023, 0.0003), (0.002, -0.001, 0.005), "cannot tell: ±0.0030"),
        ((0.001, 0.002), (-0.002, -0.003, -0.001), "contradicted"),
        ((0.0023, 0.0003), None, "not judged"),
        ((0.0023, -0.0001), (0.002, 0.001, 0.003), "not reproduced: by another factor"),
    ],
)
def test_early_forgetting_is_seven_times_as_fast(rates: Any, fall: Any, status: str) -> None:
    ours, told = times(rates, fall and estimate(*fall))
    assert told.text == status
    assert ours == ("inf" if rates[1] < 0 else f"{rates[0] / rates[1]:.1f}")


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((0.0, -0.9, 0.9, 5), "reproduced"),
        ((-3.0, -5.0, -1.1, 5), "contradicted"),
        ((-3.0, -5.0, -0.9, 5), "cannot tell: ±2.0"),  # a point below would do
        ((-0.5, -3.0, 2.0, 5), "cannot tell: ±2.5"),
        ((0.0, -0.9, 0.9, 1), "not judged"),
    ],
)
def test_joint_training_is_reached_or_not(numbers: Any, status: str) -> None:
    assert reached(estimate(*numbers)).text == status


def test_the_mean_over_benchmarks_turns_signs_and_adds_variances() -> None:
    """VBM less FOREVER is -1 [-4, 1] and -3 [-7, 0]: 2, less hypot(2, 3) / 2, more 2.5."""

    def part(benchmark: str, *numbers: float) -> Any:
        ours = estimate(*numbers)
        row = {"paper_variant": "vbm", "reference": "forever", "difference": ours}
        return {"benchmark": benchmark, "rows": [row]}

    parts = [part("standard", -1, -4, 1), part("superni", -3, -7, 0)]
    told = {"name": "main_results", "scale": "cpu", "parts": parts}
    expected = {"value": 2, "low": 2 - math.hypot(2, 3) / 2, "high": 4.5, "runs": 10}
    assert mean_over_benchmarks(told, "op") == pytest.approx(expected)
    assert mean_over_benchmarks({**told, "scale": "paper"}, "op") is None  # Long Sequence lacks
    parts[1]["rows"][0]["difference"]["runs"] = 1  # which tells nothing
    assert mean_over_benchmarks(told, "op") == pytest.approx(estimate(1, -1, 4))


@pytest.fixture
def components(tmp_path: Path) -> Path:
    """Three tasks with day 7 after a quarter of the updates, after half of them, or never; and
    penalties of all of the loss or of half of it."""
    folder = make_up(tmp_path / "components", Sweep("components", base_run(), {"base": {}}, (0, 1)))
    for run in folder.glob("base-*"):
        notes = read_json(run / "result.json")["notes"]
        for task, day_7 in zip(TASKS[1:], (3, 6, None), strict=True):
            notes[task] |= {"day_7": day_7, "planned": 12}
        edit(run / "result.json", notes=notes)
        steps = read_lines(run / "steps.jsonl")
        for step in steps:
            if step["kind"] != "task":
                step["penalty"] = step["loss"] * (1.0 if step["task"] == TASKS[1] else 0.5)
        write_lines(run / "steps.jsonl", steps)
    return folder


def test_what_journals_say(components: Path, tmp_path: Path) -> None:
    """Shares of 1/4, 1/2 and 1; decades of 0, log10(1/2) and log10(1/2)."""
    content = json.loads(keep(read_study(components), tmp_path / "kept").read_text())
    told = content["parts"][0]["text"]
    assert told["day 7"]["value"] == pytest.approx(1.75 / 3, abs=1e-6)
    assert told["penalty"]["value"] == pytest.approx(2 / 3 * math.log10(0.5), abs=1e-3)
    assert told["penalty"]["runs"] == 2
    shown = {claim.key[1]: claim for claim in text_claims([content]) if claim.ours}
    assert shown.keys() == {"day 7", "penalty"}
    assert shown["penalty"].status.text == "reproduced"  # all of its interval within a decade
    assert shown["penalty"].ours.startswith("0.63 [")


def test_pairs_that_no_table_compares(tmp_path: Path) -> None:
    """VBM less fixed intervals as both differ from FOREVER; and one task less joint training."""
    order = {"data.order": ["colour", "task1687", "rte"]}
    sweep = Sweep("baselines", base_run(**order), BY_METHOD, (0, 1), reference="forever")
    study = read_study(make_up(tmp_path, sweep))
    (part,) = study.parts
    told = findings(part, {})
    rows = {row.variant: row.results for row in part.rows}
    apart = [a["op"] - b["op"] for a, b in zip(rows["vbm"], rows["fixed_interval"], strict=True)]
    assert told["vbm"]["op"]["value"] == pytest.approx(sum(apart) / 2)
    finals = [
        a["matrix"][1][-1] - b["matrix"][1][-1]
        for a, b in zip(rows["forever"], rows["mtl"], strict=True)
    ]
    assert told["joint, task1687"]["value"] == pytest.approx(sum(finals) / 2)
    report = json.loads(stored(study))
    report["parts"][0]["text"] = told
    shown = {claim.key[1] for claim in text_claims([report]) if claim.ours}
    pairs = {"joint, rte", "joint, task1687", "vbm, superni"}
    assert shown == pairs | {"mean, op", "mean, bwt"}
