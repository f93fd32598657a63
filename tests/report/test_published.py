"""How our numbers are put beside the published ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import saved

from forever.report.facts import too_small_for
from forever.report.frame import frame_of, text_table
from forever.report.run import Run
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.sweeps import published as paper
from forever.sweeps.named_runs import named_run


@pytest.mark.parametrize(
    ("runs", "row"),
    [
        ("components/mini/+FIR", "components/superni/+FIR"),
        ("main_results/mini/forever", None),  # for which of the three?
        ("main_results/long/forever", "main_results/long/forever"),
        ("demo/mini/base", None),
        ("components/standard/+FIR", None),  # which is not SuperNI at another size
        ("baselines/mini/forever", "main_results/superni/forever"),
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
        (-0.3, "loss", (), "not equal"),
        (None, "win", (), ""),
        (-2.4, None, (), ""),
        # Equality is shown by a narrow interval: a tie among +-30 points says nothing of +0.2.
        (0.2, "tie", (-0.9, 0.8), "agrees"),
        (0.2, "win", (0.1, 0.7), "agrees"),
        (0.2, "tie", (-0.5, 1.2), "too wide"),
        (0.2, "win", (0.5, 1.5), "not equal"),
        (0.2, None, (-0.9, 0.8), ""),
    ],
)
def test_agreement(
    difference: float | None, verdict: str | None, interval: tuple[float, ...], expected: str
) -> None:
    assert paper.agreement(difference, verdict, *interval) == expected


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"model.name": "Qwen/Qwen3-4B", "memory.fraction": 0.5, "seed": 3}, True),
        ({"model.tuning": "full", "optim.lr": 1e-5, "data.order": "8"}, True),
        ({"optim.lr": 1e-5}, False),
        ({"model.name": "tiny"}, False),
        ({"data.order": ["task363", "task875"]}, False),
        ({"data.train_rows": 100}, False),
    ],
)
def test_the_papers_setting(changes: dict[str, Any], same: bool, tmp_path: Path) -> None:
    """Sizes are compared with the paper's only where nothing differs but what its tables vary."""
    config = named_run("superni/7/forever").override(changes)
    directory = RunDirectory(tmp_path)
    saved(config, directory.config)
    order = config.data.order if isinstance(config.data.order, str) else "custom"
    run = Run(directory, "base", "superni", order, 0)
    assert run.as_in_the_paper is same
    # Once it is over, its counts tell, whatever was asked for.
    for train, expected in {1000: same or changes == {"data.train_rows": 100}, 2000: False}.items():
        run = Run(directory, "base", "superni", order, 0)
        run.result = {"rows": {"task363": {"train": train, "test": 100}}}
        assert run.as_in_the_paper is expected


def test_published_numbers_are_shown_beside_ours(components: Path) -> None:
    """As performance does, forgetting less the reference's, run by run."""
    rows = {row.variant: row for row in read_study(components).parts[0].rows}
    base, fir = rows["base"], rows["+FIR"]
    apart = [b["bwt"] - a["bwt"] for a, b in zip(base.results, fir.results, strict=True)]
    assert fir.compared("bwt_difference").value == pytest.approx(sum(apart) / 2)
    numbers = {"op": 40.1, "bwt": -5.2, "difference": 40.1 - 42.5, "bwt_difference": -5.2 + 2.8}
    assert fir.published == pytest.approx(numbers)
    (cells,) = text_table(frame_of([fir]), "paper").to_dict("records")
    assert (cells["published OP"], cells["published Δ BWT"]) == ("40.1", "−2.4")
    # Sizes are not compared: toy is not SuperNI.
    assert "ours less theirs" not in cells
    assert rows["finetune"].published is None  # components has none


@pytest.mark.parametrize(("resolution", "too_small"), [(3.04, True), (2.3, False)])
def test_a_test_set_may_be_too_small(components: Path, resolution: float, too_small: bool) -> None:
    """With so many runs: more average the luck of single answers."""
    part = read_study(components).parts[0]
    (fir,) = [row for row in part.rows if row.variant == "+FIR"]
    comparison: Any = fir.comparison
    part.__dict__["rows"] = [replace(fir, comparison=replace(comparison, resolution=resolution))]
    assert bool(too_small_for(part)) is too_small
