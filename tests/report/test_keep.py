"""A sweep is committed so that every number of its report can be computed again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import base_run, edit, leaves, make_up

from forever.files import read_json, read_lines, write_lines
from forever.report.report import stored
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep
from scripts.keep import RUNS, committed, keep, moved, report_again

VARIANTS = {
    "base": {},
    "+FIR": {"method.days": "fixed_interval"},
    "finetune": {"method.name": "finetune", "method.probe_every": 3},
    "mtl": {"method.name": "mtl"},
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of four variants, of which one has answers that are neither right nor wrong."""
    folder = tmp_path_factory.mktemp("sweeps") / "components"
    make_up(folder, Sweep("components", base_run(), VARIANTS, (0, 1)), skip=["plus_FIR-ocustom-s1"])
    (run,) = folder.glob("base-*-s0-*")
    path = run / "predictions" / "4" / "1.jsonl"
    lines = read_lines(path)
    for line in lines[:3]:
        line["score"] = 2 / 3
    write_lines(path, lines)
    matrix = read_json(run / "result.json")["matrix"]
    matrix[0][3] = 100 * sum(line["score"] for line in lines) / len(lines)
    edit(run / "result.json", matrix=matrix)
    return folder


@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_report_is_computed_again_from_what_is_kept(
    in_rounds: bool, sweep: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sweep, tmp_path / "components"))
    if in_rounds:
        rule = {"alpha": 0.05, "comparisons": 2, "points": 2.0}
        (folder / "rounds.json").write_text(json.dumps(rule), encoding="utf-8")
    study = read_study(folder)
    expected = json.loads(stored(study))
    path = keep(study, tmp_path / "kept")
    first = path.read_text(encoding="utf-8")
    assert leaves(json.loads(first)) == pytest.approx(leaves(expected), abs=1e-6)
    path.unlink()
    assert report_again(tmp_path / "kept").read_text(encoding="utf-8") == first


def test_single_runs_have_the_name_of_their_folder(sweep: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sweep, tmp_path / "runs"))
    (folder / "sweep.json").unlink()
    path = keep(read_study(folder), tmp_path / "bounds")
    first = path.read_text(encoding="utf-8")
    assert json.loads(first)["name"] == "bounds"
    assert not moved(path.parent)
    assert keep(read_study(folder), tmp_path / "bounds", add=True).read_text("utf-8") == first


def test_parts_of_a_sweep_are_kept_one_after_the_other(sweep: Path, tmp_path: Path) -> None:
    """As seeds of several machines; a part that comes again replaces itself."""
    whole = keep(read_study(sweep), tmp_path / "whole").read_text(encoding="utf-8")
    manifest = read_json(sweep / "sweep.json")
    for number, seed in enumerate((0, 1, 1)):
        part = Path(shutil.copytree(sweep, tmp_path / f"{number}" / "components"))
        trials = [trial for trial in manifest["trials"] if trial["seed"] == seed]
        edit(part / "sweep.json", trials=trials)
        keys = {trial["key"] for trial in trials}
        for run in part.glob("*/config.yaml"):
            if run.parent.name not in keys:
                shutil.rmtree(run.parent)
        keep(read_study(part), tmp_path / "parts", add=True)
    assert (tmp_path / "parts" / "report.json").read_text(encoding="utf-8") == whole


def test_no_folder_of_a_machine_is_kept(sweep: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sweep, tmp_path / "components"))
    for path in folder.glob("*/environment.json"):
        edit(path, argv=["forever", "sweep", "--out", "/home/me/runs", "data.root=/home/me/data"])
    keep(read_study(folder), tmp_path / "kept")
    shared = read_lines(tmp_path / "kept" / RUNS)[0]["shared"]
    assert shared["environment"]["argv"][2:] == ["--out", "runs", "data.root=data"]


def each_committed() -> Iterator[Any]:
    """The folders of committed sweeps; but for the smallest they take seconds each."""
    folders = sorted(committed(), key=lambda folder: (folder / RUNS).stat().st_size)
    for number, folder in enumerate(folders):
        marks = [pytest.mark.slow] if number else []
        yield pytest.param(folder, id=folder.name, marks=marks)


@pytest.mark.parametrize("folder", [*each_committed()])
def test_no_committed_number_moves(folder: Path) -> None:
    assert moved(folder) == []
