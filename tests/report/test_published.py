"""The published numbers, and how ours are put beside them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from forever.report.facts import too_small_for
from forever.report.row import Row
from forever.report.run import Run
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.sweeps import published as paper
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import named_run


@pytest.mark.parametrize("name", paper.TABLES)
def test_every_published_row_is_a_variant_of_its_sweep(name: str) -> None:
    sweep = load_sweep(name).expand(named_run("superni/7/forever"))
    variants = {sweep.paper.get(variant, variant) for variant in sweep.variants}
    benchmarks = {trial.config.data.benchmark for trial in sweep.trials()}
    for benchmark, table in paper.TABLES[name].items():
        assert benchmark in benchmarks
        assert set(table) <= variants
        # The paper prints two numbers of backbones.
        assert name == "backbones" or sweep.paper.get(sweep.reference, sweep.reference) in table


# The published tables as text, to be compared by eye with the paper; a benchmark's name before a
# bar, else SuperNI.
PRINTED = """
components: base 42.5/-2.8, +FIR 40.1/-5.2, +RR 37.2/-7.8, +ER 40.9/-6.9, +STC 41.3/-3.9
components: -IAR 39.9/-4.4, +PIR 42.7/-3.0, +IAR&PIR 42.8/-2.6
spacing: standard 42.5/-2.8, exponential 42.3/-2.6, polynomial 41.5/-3.2, uniform 40.9/-3.6
spacing: decreasing 37.2/-7.8
memory_size: forever 2 % 42.5, forever 5 % 43.5, forever 10 % 43.9, forever 50 % 46.4
memory_size: vbm 2 % 41.2, vbm 5 % 42.4, vbm 10 % 43.0, vbm 50 % 45.4
warmup_window: S = 3 41.8/-3.8, S = 6 42.1/-3.7, S = 12 42.0/-3.4, S = 24 42.5/-2.8
warmup_window: S = 48 42.3/-3.0, S = 96 41.2/-4.4
memory_epochs: E_mem = 1 42.2/-3.0, E_mem = 2 42.5/-2.8, E_mem = 4 42.6/-2.9
full_finetuning: recurrent_kif 46.0/-4.1, aimmerging 46.4/-3.0, vbm 46.4/-3.1, forever 47.5/-2.2
long_sequence: thirty | recurrent_kif 24.7/-15.0, aimmerging 26.1/-11.6, vbm 26.7/-12.8
long_sequence: thirty | forever 27.9/-10.8
backbones: vbm; Llama-3.1-8B 49.0/-2.9, forever; Llama-3.1-8B 50.6/-2.1
main_results: standard | finetune 47.2/-12.6, mix_replay 65.8/-8.0, fixed_interval 65.1/-9.2
main_results: standard | migu 69.9, ssr 68.4/-7.1
main_results: standard | recurrent_kif 70.6/-6.5, aimmerging 71.9/-5.0, vbm 71.5/-5.2
main_results: standard | forever 72.9/-4.7, mtl 77.4
main_results: long | finetune 36.0/-17.5, mix_replay 65.1/-11.4, fixed_interval 64.5/-10.9
main_results: long | migu 66.3, ssr 67.5/-9.0
main_results: long | recurrent_kif 67.7/-8.4, aimmerging 67.9/-6.3, vbm 68.1/-6.1
main_results: long | forever 69.4/-5.0, mtl 77.8
main_results: finetune 8.2/-27.4, mix_replay 34.6/-14.1, fixed_interval 34.7/-14.5, migu 35.0
main_results: ssr 40.1/-5.4
main_results: recurrent_kif 39.7/-5.0, aimmerging 41.0/-3.4, vbm 41.3/-3.7, forever 42.1/-2.9
main_results: mtl 48.2
"""


def test_the_published_numbers() -> None:
    printed: dict[tuple[str, str, str], tuple[float, float | None]] = {}
    for line in PRINTED.strip().splitlines():
        name, rest = line.split(": ", 1)
        benchmark, rows = rest.split(" | ") if " | " in rest else ("superni", rest)
        for row in rows.split(", "):
            variant, numbers = row.rsplit(" ", 1)
            op, *bwt = map(float, numbers.split("/"))
            printed[name, benchmark, variant.replace(";", ",")] = (op, *(bwt or [None]))  # pyright: ignore
    known: dict[tuple[str, str, str], tuple[float, float | None]] = {}
    for name, tables in paper.TABLES.items():
        for benchmark, table in tables.items():
            known |= {(name, benchmark, key): (row.op, row.bwt) for key, row in table.items()}
    assert known == printed
    assert paper.FORGETTING_RATE == (0.0023, 0.0018, 0.0010, 0.0005, 0.0003)
    assert [r for r, _ in paper.MODEL_DAY.values()] == [0.7379, 0.2182, -0.5625]
    assert [p for _, p in paper.MODEL_DAY.values()] == [0.0017, None, 0.0291]
    methods = ("mix_replay", "aimmerging", "vbm", "forever")
    times = [[minutes[name] for name in methods] for minutes in paper.TRAINING_TIME.values()]
    assert times == [[1.3, 1.5, 1.4, 1.4], [6.8, 9.9, 9.1, 8.5]]


@pytest.mark.parametrize(
    ("runs", "row"),
    [
        ("components/mini/+FIR", "components/superni/+FIR"),
        ("main_results/mini/forever", None),  # for which of the three?
        ("main_results/long/forever", "main_results/long/forever"),
        ("demo/mini/base", None),
        ("components/standard/+FIR", None),  # which is not SuperNI at another size
        ("baselines/mini/forever", "main_results/superni/forever"),
        ("baselines/superni/forever", "main_results/superni/forever"),
        ("baselines/standard/migu", "main_results/standard/migu"),
        ("memory_size/superni/vbm 5 %", "memory_size/superni/vbm 5 %"),
    ],
)
def test_a_small_benchmark_stands_for_the_papers(runs: str, row: str | None) -> None:
    name, benchmark, variant = row.split("/") if row else ("", "", "")
    expected = paper.TABLES[name][benchmark][variant] if row else None
    assert paper.published(*runs.split("/")) == expected


@pytest.mark.parametrize(
    ("difference", "verdict", "interval", "expected"),
    [
        (-2.4, "loss", (), "agrees"),
        (-2.4, "win", (), "opposite"),
        (-2.4, "tie", (), "not shown"),
        (1.0, "win", (), "agrees"),
        (1.0, "loss", (), "opposite"),
        (-0.3, "loss", (), "not equal"),
        (None, "win", (), ""),
        (-2.4, None, (), ""),
        # Equality is shown by a narrow interval: a tie among +-30 points says nothing of +0.2.
        (0.2, None, (), ""),
        (0.2, "tie", (-0.9, 0.8), "agrees"),
        (0.2, "win", (0.1, 0.7), "agrees"),
        (0.2, "tie", (-30.0, 30.0), "too wide"),
        (0.2, "tie", (-0.5, 1.2), "too wide"),
        (0.2, "win", (0.5, 1.5), "not equal"),
        (0.2, None, (-0.9, 0.8), ""),
    ],
)
def test_agreement(
    difference: float | None, verdict: str | None, interval: tuple[float, ...], expected: str
) -> None:
    assert paper.agreement(difference, verdict, *interval) == expected


PAPERS = {"model.name": "Qwen/Qwen3-4B", "memory.fraction": 0.5, "method.warmup_steps": 48}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({**PAPERS, "seed": 3}, True),
        ({"model.tuning": "full", "optim.lr": 1e-5, "data.order": "8"}, True),
        ({"optim.lr": 1e-5}, False),
        ({"optim.epochs": 1}, False),
        ({"model.rank": 64}, False),
        ({"model.name": "tiny"}, False),
        ({"data.order": ["task363", "task875"]}, False),
        ({"data.validation": 0.2}, False),
        ({"data.train_rows": 100}, False),
    ],
)
def test_the_papers_setting(changes: dict[str, Any], same: bool, tmp_path: Path) -> None:
    """Sizes are compared with the paper's only where nothing differs but what its tables vary."""
    config = named_run("superni/7/forever").override(changes)
    directory = RunDirectory(tmp_path)
    directory.config.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    order = config.data.order if isinstance(config.data.order, str) else "custom"
    run = Run("key", "base", "superni", order, 0, directory, {})
    assert Row("base", [run]).same_setting is same


def test_published_numbers_stand_beside_ours(components: Path) -> None:
    """As performance does, forgetting less the reference's, run by run."""
    rows = {row.variant: row for row in read_study(components).parts[0].rows}
    base, fir = rows["base"], rows["+FIR"]
    apart = [b["bwt"] - a["bwt"] for a, b in zip(base.results, fir.results, strict=True)]
    assert fir.compared("bwt_difference").value == pytest.approx(sum(apart) / 2)
    assert fir.published == {
        "op": 40.1, "bwt": -5.2, "difference": pytest.approx(40.1 - 42.5),
        "bwt_difference": pytest.approx(-5.2 + 2.8),
    }  # fmt: skip
    assert not fir.same_setting
    text = (components / "report.md").read_text(encoding="utf-8").partition("Beside the paper:")[2]
    head, _, *rows = re.findall(r"^\|.*$", text, flags=re.MULTILINE)[:4]
    names = [cell.strip() for cell in head.split("|")]
    cells = dict(zip(names, [cell.strip() for cell in rows[1].split("|")], strict=True))
    assert cells["variant"] == "+FIR"
    # Sizes are not compared: toy is not SuperNI.
    assert "ours less theirs" not in cells
    assert (cells["published OP"], cells["published BWT"]) == ("40.1", "−5.2")
    assert (cells["published Δ OP"], cells["published Δ BWT"]) == ("−2.4", "−2.4")
    assert "are not the paper's setting" in text
    assert not any(row.startswith("| finetune") for row in rows)  # components has none


def test_a_test_set_that_is_too_small_is_called_so(components: Path) -> None:
    """With so many runs: more average the luck of single answers."""
    part = read_study(components).parts[0]
    fir = next(row for row in part.rows if row.variant == "+FIR")
    assert fir.comparison is not None
    text = (components / "report.md").read_text(encoding="utf-8")
    too_small = fir.compared("resolution") > 2.4
    assert too_small == ("too small for the published difference" in text)
    for resolution, told in ((3.04, ["+FIR (−2.4, chance ±3.0 with 2 runs)"]), (2.3, [])):
        row = replace(fir, comparison=replace(fir.comparison, resolution=resolution))
        part.__dict__["rows"] = [row]
        assert too_small_for(part) == told
