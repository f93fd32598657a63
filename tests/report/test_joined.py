"""`forever report A B C`: folders of several machines and revisions in one table."""

import json
import re
import shutil
from pathlib import Path

import pytest
from made_up import base_run, edit, make_up
from typer.testing import CliRunner

from forever.cli.main import app
from forever.errors import InputError
from forever.report.frame import frame_of, text_table
from forever.report.joined import destination, names_of, read_studies, warnings
from forever.report.report import write_report
from forever.report.row import Row
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a` has base and +FIR; `b`, of another machine and revision, has base and finetune."""
    folder = tmp_path_factory.mktemp("joined")
    fir, tuned = {"method.days": "fixed_interval"}, {"method.name": "finetune"}
    make_up(folder / "a", Sweep("toy", base_run(), {"base": {}, "+FIR": fir}, (0, 1)))
    make_up(folder / "b", Sweep("other", base_run(), {"base": {}, "finetune": tuned}, (0, 1)))
    for path in (folder / "b").glob("*/environment.json"):
        edit(path, revision="def", gpus=["H200"], cores=16)
    return folder


@pytest.fixture
def folders(made: Path, tmp_path: Path) -> list[Path]:
    """Copies to spoil."""
    return [Path(shutil.copytree(made / name, tmp_path / name)) for name in "ab"]


def rows_of(folders: list[Path], tmp_path: Path) -> dict[str, Row]:
    study = read_studies(folders, tmp_path / "to")
    return {row.variant: row for row in study.parts[0].rows}


def test_variants_of_all_folders_are_in_one_table(folders: list[Path], tmp_path: Path) -> None:
    """The same variant in two gets the folder's name, and is compared with its namesake."""
    rows = rows_of(folders, tmp_path)
    assert {name: row.reference for name, row in rows.items()} == dict.fromkeys(
        ["base (a)", "+FIR", "base (b)", "finetune"], "base (a)"
    )
    table = text_table(frame_of([*rows.values()]), "scores")
    assert table["folder"].tolist() == ["–", "a", "–", "", "b"]
    assert table["less"].tolist() == ["–", "base (a)", "base (a)", "", "base (a)"]


def test_each_benchmark_has_its_own_references(
    folders: list[Path], components: Path, tmp_path: Path
) -> None:
    """Of `components` one half is on `toy`, as all of `b` is."""
    study = read_studies([folders[1], components], tmp_path)
    of_toy, other = study.parts
    assert (of_toy.benchmark, other.benchmark) == ("toy", "other")
    assert {row.variant: row.reference for row in of_toy.rows} == {
        "base (b)": "base (b)", "base (components)": "base (b)", "+FIR": "base (b)",
        "finetune (b)": "base (b)", "finetune (components)": "finetune (b)",
    }  # fmt: skip
    assert {row.reference for row in other.rows} == {"base (components)"}
    fir = {row.variant: row for row in other.rows}["+FIR"]
    assert fir.compared("difference").runs == 2


def test_runs_of_the_same_seed_and_data_pair(folders: list[Path], tmp_path: Path) -> None:
    alone = {row.variant: row for row in read_study(folders[1]).rows}
    rows = rows_of(folders, tmp_path)
    assert rows["+FIR"].compared("difference").runs == 2
    assert rows["finetune"].compared("difference").runs == 2
    # The runs are the same in both folders, so each difference is what it is in its own.
    same = rows["base (b)"].compared("difference")
    assert (same.value, same.low, same.high) == (0, 0, 0)
    ours = rows["finetune"].compared("op").value - rows["base (a)"].compared("op").value
    assert rows["finetune"].compared("difference").value == pytest.approx(ours)
    assert rows["finetune"].compared("op").value == alone["finetune"].compared("op").value
    for path in folders[1].glob("finetune*s0*/predictions/*/1.jsonl"):
        text = path.read_text(encoding="utf-8").replace('"yes"', '"other"', 1)
        path.write_text(text, encoding="utf-8")
    assert rows_of(folders, tmp_path)["finetune"].compared("difference").runs == 1


def test_a_report_says_where_the_runs_are_from(folders: list[Path], tmp_path: Path) -> None:
    """And warns where code or data differ."""
    study = read_studies(folders, tmp_path / "to")
    assert write_report(study) == tmp_path / "to" / "report.html"
    content = json.loads((tmp_path / "to" / "report.json").read_text(encoding="utf-8"))
    assert content["folders"] == [
        {"folder": "a", "runs": "4 of 4", "machine": "a chip, 2 cores", "revision": "abc",
         "version": "0.1.0"},
        {"folder": "b", "runs": "4 of 4", "machine": "H200, 16 cores", "revision": "def",
         "version": "0.1.0"},
    ]  # fmt: skip
    assert len(content["warnings"]) == 1
    assert not (folders[0] / "report.html").exists()
    for path in folders[1].glob("*/environment.json"):
        edit(path, revision="abc")
    assert warnings(read_studies(folders, tmp_path)) == []
    for path in folders[1].glob("base*/result.json"):  # as another version of `mini` has
        edit(path, data={"colour": "0123"})
    assert "toy" in warnings(read_studies(folders, tmp_path))[0]
    assert warnings(read_study(folders[1])) == []


def test_a_report_warns_of_one_model_with_two_weights(folders: list[Path], tmp_path: Path) -> None:
    for folder, digest in zip(folders, ("0123", "4567"), strict=True):
        for path in folder.glob("*/result.json"):
            edit(path, model={"weights": digest})
    assert "weights" in warnings(read_studies(folders, tmp_path))[-1]


def test_what_must_not_be_mixed_is_refused(folders: list[Path], tmp_path: Path) -> None:
    for path in folders[1].glob("*/result.json"):
        text = path.read_text(encoding="utf-8").replace('"taste"', '"smell"')
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="smell"):
        read_studies(folders, tmp_path)
    inside = next(folders[0].glob("base*"))
    for shared in ([folders[0], folders[0]], [folders[0], inside], [inside, folders[0]]):
        with pytest.raises(InputError, match=re.escape(str(shared[1]))):
            read_studies(shared, tmp_path)


def test_the_rule_of_rounds_is_kept(folders: list[Path], tmp_path: Path) -> None:
    """For as many comparisons as there are, and no fewer than when seeds were added."""
    for before, now in ((1, 4), (7, 7)):
        rule = {"alpha": 0.05, "comparisons": before, "points": 1.0}
        (folders[1] / "rounds.json").write_text(json.dumps(rule), encoding="utf-8")
        study = read_studies(folders, tmp_path)
        assert study.stopping == {**rule, "comparisons": now}
        assert any(row.decided for row in study.rows)


def test_folders_have_different_names(tmp_path: Path) -> None:
    places = [tmp_path / "x" / "demo", tmp_path / "y" / "demo", tmp_path / "z"]
    assert names_of(places[:1] + places[2:]) == ["demo", "z"]
    assert names_of(places[:2]) == ["x/demo", "y/demo"]


def test_no_report_of_runs_is_overwritten(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    many = [tmp_path / name for name in "abcde"]
    assert destination(many, None) == tmp_path / "reports" / "a_b_c_and_2_more"
    run = next(folders[0].glob("base*"))
    for own in (folders[1], run, tmp_path / "a"):
        with pytest.raises(InputError, match=re.escape(str(own))):
            destination(folders, own)
    for arguments, page in ((["a", "b"], "reports/a_b"), (["a", "b", "--to", "mine"], "mine")):
        done = CliRunner().invoke(app, ["report", *arguments])
        assert done.exit_code == 0, done.output
        assert (tmp_path / page / "figures" / "op.svg").is_file()
    assert not (tmp_path / "a" / "report.html").exists()
