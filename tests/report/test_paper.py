"""The published numbers, and how ours are put beside them."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from forever.config.run import RunConfig
from forever.launch.local import run_local
from forever.report.analyses import analyses, correlations, minutes_an_epoch, slowing
from forever.report.findings import findings
from forever.report.page import about_resolution
from forever.report.report import summary_table, tex, write_report
from forever.report.rows import Row, Run
from forever.report.study import read_study
from forever.report.tables import row_texts
from forever.runs.directory import RunDirectory
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import named_run
from forever.sweeps.published import (
    FORGETTING_RATE,
    MODEL_DAY,
    TABLES,
    TRAINING_TIME,
    agreement,
    published,
)
from forever.sweeps.sweep import Sweep


@pytest.mark.parametrize("name", TABLES)
def test_every_published_row_is_a_variant_of_its_sweep(name: str) -> None:
    sweep = load_sweep(name).expand(named_run("superni/7/forever"))
    variants = {sweep.paper.get(variant, variant) for variant in sweep.variants}
    benchmarks = {trial.config.data.benchmark for trial in sweep.trials()}
    for benchmark, table in TABLES[name].items():
        assert benchmark in benchmarks
        assert set(table) <= variants
        # The paper prints two numbers of backbones.
        assert name == "backbones" or sweep.paper.get(sweep.reference, sweep.reference) in table


# The published tables as text, to be compared by eye with the paper; a benchmark's name before a
# bar, else SuperNI.
PRINTED = """
components: base 42.5/-2.8, +FIR 40.1/-5.2, +RR 37.2/-7.8, +ER 40.9/-6.9, +STC 41.3/-3.9, -IAR 39.9/-4.4, +PIR 42.7/-3.0, +IAR&PIR 42.8/-2.6
spacing: standard 42.5/-2.8, exponential 42.3/-2.6, polynomial 41.5/-3.2, uniform 40.9/-3.6, decreasing 37.2/-7.8
memory_size: forever 2 % 42.5, forever 5 % 43.5, forever 10 % 43.9, forever 50 % 46.4
memory_size: vbm 2 % 41.2, vbm 5 % 42.4, vbm 10 % 43.0, vbm 50 % 45.4
warmup_window: S = 3 41.8/-3.8, S = 6 42.1/-3.7, S = 12 42.0/-3.4, S = 24 42.5/-2.8, S = 48 42.3/-3.0, S = 96 41.2/-4.4
memory_epochs: E_mem = 1 42.2/-3.0, E_mem = 2 42.5/-2.8, E_mem = 4 42.6/-2.9
full_finetuning: recurrent_kif 46.0/-4.1, aimmerging 46.4/-3.0, vbm 46.4/-3.1, forever 47.5/-2.2
long_sequence: thirty | recurrent_kif 24.7/-15.0, aimmerging 26.1/-11.6, vbm 26.7/-12.8, forever 27.9/-10.8
backbones: vbm; Llama-3.1-8B 49.0/-2.9, forever; Llama-3.1-8B 50.6/-2.1
main_results: standard | finetune 47.2/-12.6, mix_replay 65.8/-8.0, fixed_interval 65.1/-9.2, migu 69.9, ssr 68.4/-7.1
main_results: standard | recurrent_kif 70.6/-6.5, aimmerging 71.9/-5.0, vbm 71.5/-5.2, forever 72.9/-4.7, mtl 77.4
main_results: long | finetune 36.0/-17.5, mix_replay 65.1/-11.4, fixed_interval 64.5/-10.9, migu 66.3, ssr 67.5/-9.0
main_results: long | recurrent_kif 67.7/-8.4, aimmerging 67.9/-6.3, vbm 68.1/-6.1, forever 69.4/-5.0, mtl 77.8
main_results: finetune 8.2/-27.4, mix_replay 34.6/-14.1, fixed_interval 34.7/-14.5, migu 35.0, ssr 40.1/-5.4
main_results: recurrent_kif 39.7/-5.0, aimmerging 41.0/-3.4, vbm 41.3/-3.7, forever 42.1/-2.9, mtl 48.2
"""  # noqa: E501


def test_the_published_numbers() -> None:
    printed: dict[tuple[str, str, str], tuple[float, float | None]] = {}
    for line in PRINTED.strip().splitlines():
        name, rest = line.split(": ", 1)
        benchmark, rows = rest.split(" | ") if " | " in rest else ("superni", rest)
        for row in rows.split(", "):
            variant, numbers = row.rsplit(" ", 1)
            op, *bwt = map(float, numbers.split("/"))
            printed[name, benchmark, variant.replace(";", ",")] = (op, *(bwt or [None]))  # pyright: ignore
    known = {
        (name, benchmark, variant): (row.op, row.bwt)
        for name, tables in TABLES.items()
        for benchmark, table in tables.items()
        for variant, row in table.items()
    }
    assert known == printed
    assert FORGETTING_RATE == (0.0023, 0.0018, 0.0010, 0.0005, 0.0003)
    assert [r for r, _ in MODEL_DAY.values()] == [0.7379, 0.2182, -0.5625]
    assert [p for _, p in MODEL_DAY.values()] == [0.0017, None, 0.0291]
    times = [
        [minutes[name] for name in ("mix_replay", "aimmerging", "vbm", "forever")]
        for minutes in TRAINING_TIME.values()
    ]
    assert times == [[1.3, 1.5, 1.4, 1.4], [6.8, 9.9, 9.1, 8.5]]


def test_a_small_benchmark_stands_for_the_papers() -> None:
    row = published("components", "mini", "+FIR")
    assert row is not None
    assert row == published("components", "superni", "+FIR")
    assert (row.op, row.bwt) == (40.1, -5.2)
    assert published("main_results", "mini", "forever") is None  # for which of the three?
    assert published("main_results", "long", "forever") == TABLES["main_results"]["long"]["forever"]
    assert published("demo", "mini", "base") is None
    # Which is not SuperNI at another size.
    assert published("components", "standard", "+FIR") is None
    main = TABLES["main_results"]
    assert published("baselines", "mini", "forever") == published("baselines", "superni", "forever")
    assert published("baselines", "superni", "forever") == main["superni"]["forever"]
    assert published("baselines", "standard", "migu") == main["standard"]["migu"]
    assert (
        published("memory_size", "superni", "vbm 5 %")
        == TABLES["memory_size"]["superni"]["vbm 5 %"]
    )


@pytest.mark.parametrize(
    ("difference", "verdict", "expected"),
    [
        (-2.4, "loss", "agrees"), (-2.4, "win", "opposite"), (-2.4, "tie", "not shown"), (1.0, "win", "agrees"),
        (1.0, "loss", "opposite"), (-0.3, "loss", "not equal"), (None, "win", ""), (-2.4, None, ""), (0.2, None, ""),
    ],
)  # fmt: skip
def test_agreement(difference: float | None, verdict: str | None, expected: str) -> None:
    assert agreement(difference, verdict) == expected


@pytest.mark.parametrize(
    ("interval", "verdict", "expected"),
    [
        ((-0.9, 0.8), "tie", "agrees"), ((0.1, 0.7), "win", "agrees"), ((-30.0, 30.0), "tie", "too wide"),
        ((-0.5, 1.2), "tie", "too wide"), ((0.5, 1.5), "win", "not equal"), ((-0.9, 0.8), None, ""),
    ],
)  # fmt: skip
def test_equality_is_shown_by_a_narrow_interval(
    interval: tuple[float, float], verdict: str | None, expected: str
) -> None:
    """Published +0.2: a tie among +-30 points says nothing of that."""
    assert agreement(0.2, verdict, *interval) == expected


# ---- a report of two benchmarks under the name of one of the paper's tables


@pytest.fixture(scope="module")
def folder(
    small_config: RunConfig, data_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`components` with two variants and two seeds on a toy benchmark and on a part of it under
    another name."""
    root = tmp_path_factory.mktemp("data")
    for name in ("toy", "other"):
        shutil.copytree(data_root / "toy", root / name)
    base = small_config.override({"data.root": str(root)})
    part = {
        "data.benchmark": "other",
        "data.order": ["shape", "colour"],
        "data.train_rows": 8,
        "data.test_rows": 2,
    }
    orders: dict[str, dict[str, Any]] = {"1": {}, "2": part}
    variants = {
        "base": {},
        "+FIR": {"method.days": "fixed_interval"},
        "finetune": {"method.name": "finetune"},
    }
    sweep = Sweep("components", base, variants, (0, 1), orders)
    folder = tmp_path_factory.mktemp("sweeps") / "components"
    for trial in sweep.trials():
        run_local(trial.config, folder / trial.key)
    sweep.write_manifest(folder)
    write_report(folder)
    return folder


def test_benchmarks_are_not_averaged(folder: Path) -> None:
    study = read_study(folder)
    assert [part.benchmark for part in study.parts] == ["toy", "other"]
    for part in study.parts:
        for row in part.rows:
            assert row.planned == len(row.runs) == 2
            assert {result["benchmark"] for result in row.results} == {part.benchmark}
            assert row.comparison is not None
            assert row.comparison.op.value == pytest.approx(
                sum(result["op"] for result in row.results) / 2
            )
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.index("### toy") < text.index("### other")
    assert "figures/op-toy.png" in text
    assert (folder / "figures" / "op-other.png").is_file()


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        (
            {
                "model.name": "Qwen/Qwen3-4B",
                "memory.fraction": 0.5,
                "method.warmup_steps": 48,
                "seed": 3,
            },
            True,
        ),
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
    assert Row("base", False, [run], 1, None).same_setting is same


def test_published_numbers_stand_beside_ours(folder: Path) -> None:
    part = read_study(folder).parts[0]
    fir = next(row for row in part.rows if row.variant == "+FIR")
    assert fir.paper_difference == pytest.approx(40.1 - 42.5)
    assert not fir.same_setting
    lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("Beside the paper:")
    table = [line for line in lines[start:] if line.startswith("|")][:4]
    assert len({line.count("|") for line in table}) == 1
    cells = [cell.strip() for cell in table[3].split("|")]
    assert cells[1] == "+FIR"
    # Sizes are not compared: toy is not SuperNI.
    assert (cells[3], cells[4], cells[6]) == ("40.1", "–", "−5.2")
    assert cells[8] == "−2.4"
    assert "are not the paper's setting" in "\n".join(lines)
    assert "finetune" not in "".join(table)  # which the table of components has not


def test_forgetting_is_compared_beside_performance(folder: Path) -> None:
    """BWT less the reference's, with an interval, in all formats; the verdict is OP's."""
    part = read_study(folder).parts[0]
    fir = next(row for row in part.rows if row.variant == "+FIR")
    assert fir.comparison is not None
    ours = fir.comparison.bwt_difference
    assert ours is not None
    by_seed = [
        [row.results[seed]["bwt"] for row in part.rows if row.variant in ("base", "+FIR")]
        for seed in (0, 1)
    ]
    assert ours.value == pytest.approx(sum(b - a for a, b in by_seed) / 2)
    assert fir.paper_bwt_difference == pytest.approx(-5.2 + 2.8)
    numbers = json.loads((folder / "report.json").read_text(encoding="utf-8"))["parts"][0]["rows"][
        1
    ]
    assert numbers["bwt_difference"] == {
        "value": ours.value,
        "low": ours.low,
        "high": ours.high,
        "runs": 2,
    }
    assert numbers["paper"]["bwt_difference"] == fir.paper_bwt_difference
    shown = row_texts(fir)
    cell = f"{shown['bwt_difference']} {shown['bwt_difference_interval']}"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert f"| {cell} |" in next(line for line in text.splitlines() if line.startswith("| +FIR |"))
    assert f"| {shown['bwt_difference']} / −2.4 |" in text
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f'<td class="n">{shown["bwt_difference"]} / −2.4</td>' in page
    assert f'<td class="i">{shown["bwt_difference_interval"]}</td>' in page
    assert rf"{tex(shown['bwt_difference'])} / $-$2.4 \\" in (folder / "report.tex").read_text(
        encoding="utf-8"
    )


def test_a_benchmark_of_which_nothing_is_finished_is_missing(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "components"))
    for path in copy.glob("*-o2-*"):
        shutil.rmtree(path)
    write_report(copy)
    text = (copy / "report.md").read_text(encoding="utf-8")
    other = text[text.index("### other") :]
    line = next(line for line in other.splitlines() if line.startswith("| +FIR |"))
    assert [cell.strip() for cell in line.split("|")][2:4] == ["0 of 2", "missing"]
    assert not re.search(r"\d", line.replace("0 of 2", ""))
    assert "No run is finished." in other
    assert "missing" in (copy / "report.tex").read_text(encoding="utf-8")
    content = json.loads((copy / "report.json").read_text(encoding="utf-8"))
    assert [row["op"] for row in content["parts"][1]["rows"]] == [None] * 3
    console = Console(width=100, record=True, force_terminal=False)
    console.print(summary_table(copy))
    assert "missing" in console.export_text()


def test_each_variant_has_its_own_reference(folder: Path, tmp_path: Path) -> None:
    """As `backbones` has: two pairs, compared within."""
    copy = Path(shutil.copytree(folder, tmp_path / "backbones"))
    manifest = json.loads((copy / "sweep.json").read_text(encoding="utf-8"))
    names = {
        "base": "forever, Llama-3.1-8B",
        "+FIR": "vbm, Llama-3.1-8B",
        "finetune": "forever, Qwen3-0.6B",
    }
    manifest |= {"name": "backbones", "reference": names["finetune"]}
    manifest["trials"] = [
        trial | {"variant": names[trial["variant"]]} for trial in manifest["trials"]
    ]
    manifest["references"] = {names["base"]: names["base"], names["+FIR"]: names["base"]}
    (copy / "sweep.json").write_text(json.dumps(manifest), encoding="utf-8")
    write_report(copy)
    old, new = (
        json.loads((path / "report.json").read_text(encoding="utf-8"))["parts"][0]
        for path in (folder, copy)
    )
    before, after = ({row["variant"]: row for row in part["rows"]} for part in (old, new))
    vbm = after["vbm, Llama-3.1-8B"]
    assert vbm["reference"] == "forever, Llama-3.1-8B"
    assert vbm["difference"] == before["+FIR"]["difference"]
    assert after["forever, Llama-3.1-8B"]["difference"] is None
    assert vbm["paper"] == {
        "op": 49.0, "bwt": -2.9, "difference": pytest.approx(-1.6), "bwt_difference": pytest.approx(-0.8)
    }  # fmt: skip
    said = "Differences are to forever, Qwen3-0.6B; of vbm, Llama-3.1-8B to forever, Llama-3.1-8B."
    assert said in (copy / "report.md").read_text(encoding="utf-8")
    assert said in (copy / "report.tex").read_text(encoding="utf-8")


def test_runs_on_other_test_rows_are_not_paired(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "components"))
    paired = {row.variant: row.comparison for row in read_study(copy).parts[0].rows}
    # As many rows with another answer among them.
    for path in copy.glob("plus_FIR-o1-s0*/predictions/*/1.jsonl"):
        first, *rest = path.read_text(encoding="utf-8").splitlines()
        path.write_text(
            "\n".join([json.dumps(json.loads(first) | {"reference": "other"}), *rest]),
            encoding="utf-8",
        )
    found = {row.variant: row.comparison for row in read_study(copy).parts[0].rows}
    counts = [
        one["+FIR"].difference.runs
        for one in (paired, found)
        if one["+FIR"] and one["+FIR"].difference
    ]
    assert counts == [2, 1]


def test_runs_with_other_training_rows_are_paired(folder: Path, tmp_path: Path) -> None:
    """Their test rows are the same, whatever the digests of the tasks say."""
    copy = Path(shutil.copytree(folder, tmp_path / "components"))
    for path in copy.glob("plus_FIR-o1-*/result.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(
            json.dumps(result | {"data": dict.fromkeys(result["data"], "0")}), encoding="utf-8"
        )
    found = next(row.comparison for row in read_study(copy).parts[0].rows if row.variant == "+FIR")
    assert found is not None
    assert found.difference is not None
    assert found.difference.runs == 2


def test_numbers_for_programs(folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert (content["name"], content["reference"], content["seeds"]) == (
        "components",
        "base",
        [0, 1],
    )
    assert (content["planned"], content["finished"]) == (12, 12)
    study = read_study(folder)
    for part, written in zip(study.parts, content["parts"], strict=True):
        assert [row["variant"] for row in written["rows"]] == [row.variant for row in part.rows]
        for row, numbers in zip(part.rows, written["rows"], strict=True):
            assert row.comparison is not None
            assert numbers["op"]["value"] == row.comparison.op.value
            assert numbers["verdict"] == row.comparison.verdict
            assert numbers["gpu_hours"] is None
            if row.comparison.difference is not None:
                assert numbers["difference"]["runs"] == row.comparison.difference.runs == 2


def test_a_difference_counts_the_runs_that_both_have(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "components"))
    next(copy.glob("base-o1-s1*/result.json")).unlink()
    # A run that does not say where it was.
    next(copy.glob("finetune-o1-s0*/environment.json")).unlink()
    write_report(copy)
    content = json.loads((copy / "report.json").read_text(encoding="utf-8"))
    rows = {row["variant"]: row for row in content["parts"][0]["rows"]}
    assert rows["base"]["op"]["runs"] == 1
    for name in ("+FIR", "finetune"):
        assert (rows[name]["op"]["runs"], rows[name]["difference"]["runs"]) == (2, 1)
    assert content["hardware"]


def test_latex_is_well_formed(folder: Path) -> None:
    text = (folder / "report.tex").read_text(encoding="utf-8")
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    # For two benchmarks: scores, costs, paper.
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 6
    assert text.isascii()
    for table in re.findall(
        r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL
    ):
        rows = [row for row in table[1].split("\\\\") if "&" in row]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(table[0])}
    assert not re.findall(r"(?<!\\)[%_#]", text.split("\n", 1)[1])
    for expected in (
        "& seconds",
        "Holm-corrected",
        "are not the paper's setting",
        "Seeds 0, 1.",
        "& ours less theirs",
    ):
        assert expected in text


def test_labels_of_a_search_can_be_set_by_latex() -> None:
    """pdflatex knows no Greek outside of formulas."""
    assert (
        tex("uniform S8 E2 IAR β0.001 γ1 λ0.05")
        == r"uniform S8 E2 IAR $\beta$0.001 $\gamma$1 $\lambda$0.05"
    )
    assert (
        tex("2 × Δ −1 – 3 ± 4 → 5 & 6_7")
        == r"2 $\times$ $\Delta$ $-$1 -- 3 $\pm$ 4 $\rightarrow$ 5 \& 6\_7"
    )
    assert tex("{~^\\}") == r"\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"
    assert tex("日") == "?"


def test_a_test_set_that_is_too_small_is_called_so(folder: Path) -> None:
    """Two rows a task cannot show 2.4 points."""
    part = read_study(folder).parts[0]
    fir = next(row for row in part.rows if row.variant == "+FIR")
    assert fir.comparison is not None
    assert fir.comparison.resolution is not None
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert (fir.comparison.resolution > 2.4) == ("too small for the published difference" in text)


def test_the_warning_says_with_how_many_runs(folder: Path) -> None:
    """More runs average the luck of single answers, so it does not hold for any number of them."""
    fir = next(row for row in read_study(folder).parts[0].rows if row.variant == "+FIR")
    assert fir.comparison is not None
    wide = replace(fir, comparison=replace(fir.comparison, resolution=3.04))
    assert about_resolution([wide]) == (
        "The test set is too small for the published difference with these runs: +FIR (−2.4, chance ±3.0 with 2 runs)."
    )
    assert (
        about_resolution([replace(fir, comparison=replace(fir.comparison, resolution=2.3))]) == ""
    )


def test_hours_of_gpus(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "components"))
    for path in copy.glob("*/environment.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "gpus": ["H200"]}), encoding="utf-8")
    for path in copy.glob("*/result.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(
            json.dumps({**content, "world_size": 2, "seconds": {"task": 1000.0, "replay": 800.0}}),
            encoding="utf-8",
        )
    assert {row.gpu_hours for part in read_study(copy).parts for row in part.rows} == {1.0}
    write_report(copy)
    assert "GPU-hours" in (copy / "report.md").read_text(encoding="utf-8")
    assert "GPU-hours" not in (folder / "report.md").read_text(encoding="utf-8")


# ---- findings that are more than a score


@pytest.fixture
def days(folder: Path, tmp_path: Path) -> Path:
    """A `model_day` of three tasks in two orders, with numbers of ours in the results."""
    copy = Path(shutil.copytree(folder, tmp_path / "model_day"))
    manifest = json.loads((copy / "sweep.json").read_text(encoding="utf-8"))
    variants = {"base": "forever", "finetune": "mtl"}
    trials = [
        trial | {"benchmark": "toy", "variant": variants[trial["variant"]]}
        for trial in manifest["trials"]
        if trial["variant"] in variants
    ]
    content = manifest | {"name": "model_day", "reference": "forever", "trials": trials}
    (copy / "sweep.json").write_text(json.dumps(content), encoding="utf-8")
    found = {
        "1": {"colour": 1.0, "shape": 2.0, "weight": 4.0},
        "2": {"shape": 3.0, "colour": 2.0, "weight": 3.0},
    }
    for trial in trials:
        tasks = found[trial["order"]]
        joint = trial["variant"] == "mtl"
        final = {"colour": 90.0, "shape": 80.0, "weight": 60.0}
        result = json.loads((copy / trial["key"] / "result.json").read_text(encoding="utf-8"))
        result |= {
            "method": trial["variant"],
            "tasks": list(tasks),
            "stages": ["joint"] if joint else list(tasks),
            "matrix": [
                [final[task]] if joint else [0.0, 0.0, 10.0 * day] for task, day in tasks.items()
            ],
            "notes": {
                task: {"tau_day": day + trial["seed"] - 0.5} for task, day in tasks.items()
            },  # mean over seeds: day
        }
        (copy / trial["key"] / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return copy


def test_model_days_by_hand(days: Path) -> None:
    """(1, 2), (2, 3), (4, 3): r = 12 / sqrt(42 * 6). Means over orders 1.5, 2.5, 3.5 and joint 90,
    80, 60."""
    (part,) = read_study(days).parts
    found = correlations(part)
    assert found["other order"] == {
        "r": pytest.approx(2 / 7**0.5),
        "p": pytest.approx(0.4544, abs=1e-3),
        "pairs": 3,
    }
    assert found["joint training"]["r"] == pytest.approx(-30 / (2 * 1400 / 3) ** 0.5)
    # The last task of an order is not forgotten, and two pairs say nothing.
    assert "BWT" not in found
    assert analyses(part)["model_day"] == found
    assert findings(part) == [
        {"what": "a task's model day with its length in the other order", "ours": "r = +0.76, p = 0.45",
         "published": "r = +0.74, p = 0.0017", "basis": "3 tasks"},
        {"what": "a task's model day with joint training's score", "ours": "r = −0.98, p = 0.12",
         "published": "r = −0.56, p = 0.029", "basis": "3 tasks"},
    ]  # fmt: skip


def test_minutes_an_epoch_by_hand(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "time"))
    for path in copy.glob("*/result.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        result["seconds"] = {"task": 100.0, "replay": 44.0, "evaluation": 1000.0}
        path.write_text(json.dumps(result), encoding="utf-8")
    part = read_study(copy).parts[0]  # three tasks of two epochs
    ((_, minutes),) = minutes_an_epoch(part).items()
    assert minutes == {"forever": pytest.approx(0.4), "finetune": pytest.approx(0.4)}
    assert "training_time" not in analyses(part)  # where it was not asked for
    manifest = json.loads((copy / "sweep.json").read_text(encoding="utf-8"))
    (copy / "sweep.json").write_text(
        json.dumps(manifest | {"name": "training_time"}), encoding="utf-8"
    )
    write_report(copy)
    what = "forever, backbone0: minutes an epoch"  # of base and +FIR, two seeds each
    assert f"| {what} | 0.4 | – | 4 runs |" in (copy / "report.md").read_text(encoding="utf-8")
    assert rf"{what} & 0.4 & -- & 4 runs \\" in (copy / "report.tex").read_text(encoding="utf-8")
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert (
        f'<td class="name">{what}</td><td class="n">0.4</td><td class="n">–</td><td>4 runs</td>'
        in page
    )


def test_forgetting_falls_by_more_than_chance_or_not() -> None:
    """Three tasks that fall by 1, 2 and 3: Student's interval with two degrees of freedom, 2 +-
    4.303 / sqrt(3)."""
    curves = {
        (task, 0): [5.0, 3.0, 5.0 - fall] for task, fall in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    }
    # Another run of a task makes it surer of that task, and of no other: it falls by 1 on average.
    curves |= {("a", 1): [5.0, 3.0, 5.0], ("a", 2): [5.0, 3.0, 3.0]}
    found = slowing({**curves, ("short", 0): [9.0, 1.0]})
    assert found["rates"] == pytest.approx([34 / 6, 16 / 6, 17 / 5])
    fall = found["fall"]
    assert (fall["value"], fall["runs"]) == (2.0, 3)
    assert (fall["low"], fall["high"]) == pytest.approx((2 - 2.484, 2 + 2.484), rel=0.15)
    assert slowing({("a", 0): [2.0, 1.0]})["fall"] is None  # nothing tells how much tasks differ
    assert slowing({("a", 0): [2.0], ("b", 0): [3.0]}) == {"rates": [2.5], "fall": None}


def test_rates_of_forgetting_are_findings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"forgetting_rate": {"finetune": {"rates": [0.003, 0.001], "fall": None}}}
    monkeypatch.setattr("forever.report.findings.analyses", lambda _: found)
    part = read_study(folder).parts[0]
    assert [row["ours"] for row in findings(part)] == ["0.0030", "0.0010"]
    found["forgetting_rate"]["finetune"]["fall"] = {
        "value": 0.002,
        "low": -0.001,
        "high": 0.005,
        "runs": 4,
    }
    assert findings(part)[1:] == [
        {"what": "finetune: forgetting per update, phase 2", "ours": "0.0010", "published": "0.0018", "basis": "–"},
        {"what": "finetune: phase 1 less phase 2", "ours": "+0.0020 [−0.0010, +0.0050]", "published": "+0.0005",
         "basis": "4 tasks"},
    ]  # fmt: skip
