"""`forever data check` counts what a run would read, and refuses what a run would refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.check import balance_table, lengths_table, read_tasks, tasks_table
from forever.errors import InputError

Rows = list[dict[str, str]]


def row(text: str, answer: str = "yes") -> dict[str, str]:
    return {"instruction": "Is it?", "input": text, "output": answer}


def written(folder: Path, train: Rows, test: Rows) -> Path:
    """A task's folder with two files."""
    folder.mkdir(parents=True)
    for name, rows in (("train", train), ("test", test)):
        lines = "".join(json.dumps(each) + "\n" for each in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def run_of(root: Path, *order: str) -> RunConfig:
    return RunConfig.parse({"data": {"benchmark": "mine", "order": order, "root": str(root)}})


def test_overlap_answers_and_lengths(tmp_path: Path) -> None:
    """A test row overlaps if its question is in any task, except for case and blanks."""
    yes = [row(f"a {n}") for n in range(8)]
    no = [row(f"b {n}", "no") for n in range(2)]
    tests = [row("A  1 "), row("new", "no"), row("newer", "maybe")]
    written(tmp_path / "mine" / "a", yes + no, tests)
    written(tmp_path / "mine" / "b", [row(f"c {n}") for n in range(10)], [row("b 1"), row("C 3")])
    checked = read_tasks(tmp_path)
    lines = tasks_table(checked).records
    assert [(line["task"], line["train"], line["overlap"]) for line in lines] == [
        ("a", 10, 1),
        ("b", 10, 2),
    ]
    answers = {line["task"]: line for line in balance_table(checked).records}
    assert answers["a"]["answers"] == {"yes": [8, 1], "no": [2, 1], "maybe": [0, 1]}
    assert answers["a"]["unseen"] == ["maybe"]
    assert lengths_table(checked, None, RunConfig()).records[0]["answer, longest"] == 1
    assert [task.name for _, task in read_tasks(tmp_path, ["b"]).tasks] == ["b"]
    with pytest.raises(InputError, match="'c'"):
        read_tasks(tmp_path, ["c"])


def test_a_benchmarks_folder_and_the_one_above_are_checked_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "mine"):  # the second is named as its folder
        written(tmp_path / "mine" / name, [row(f"{name} 1")], [row("2")])
    digests = [
        [task.digest() for _, task in read_tasks(place).tasks]
        for place in (tmp_path, tmp_path / "mine")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2
    (tmp_path / "mine" / "a").rename(tmp_path / "mine" / "rte")
    (tmp_path / "mine").rename(tmp_path / "long_sequence")
    monkeypatch.chdir(tmp_path / "long_sequence")
    assert {benchmark for benchmark, _ in read_tasks(Path()).tasks} == {"long"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        read_tasks(tmp_path / "empty")


def test_a_check_names_what_a_run_refuses_and_shows_the_rest(tmp_path: Path) -> None:
    written(tmp_path / "mine" / "good", [row("a")], [row("b")])
    written(tmp_path / "mine" / "overlap", [row("a"), row("b")], [row("b")])
    bad = written(tmp_path / "mine" / "bad", [row("a")], [row("b")]) / "train.jsonl"
    bad.write_text(bad.read_text() + "{", encoding="utf-8")
    twin = tmp_path / "mine2" / "x" / "train.json"
    written(twin.parent, [row("a")], [row("b")])
    twin.write_text("{}", encoding="utf-8")
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 2
    errors = done.stderr.splitlines()
    assert len(errors) == 3
    assert f"{bad}, line 2" in errors[0]
    assert "overlap/test/0" in errors[1]
    assert "task x" in errors[2]
    assert " good " in done.stdout
    for name, error in zip(("bad", "overlap"), errors, strict=False):
        with pytest.raises(InputError) as refused:
            load_benchmark(run_of(tmp_path, name).data)
        assert error == f"error: {refused.value}"


LONG = " ".join(["word"] * 40)
# Changes of a run, the split with the long answer, and whether it is refused.
TOO_LONG = [
    ({"model.max_length": 16}, "train", True),
    ({}, "test", True),
    ({"data.metrics": {"a": "rouge_l"}}, "test", False),
]


@pytest.mark.parametrize(("changes", "split", "is_refused"), TOO_LONG)
def test_a_check_and_a_run_agree_on_answers_that_are_too_long(
    changes: dict[str, Any], split: str, is_refused: bool, tmp_path: Path
) -> None:
    train = [row(f"other {i}") for i in range(6)]
    test = [row("c", LONG if split == "test" else "yes")]
    if split == "train":
        train[1]["output"] = LONG
    written(tmp_path / "data" / "mine" / "a", train, test)
    config = run_of(tmp_path / "data", "a").override(
        {"model.name": "tiny", "evaluation.max_new_tokens": 8, **changes}
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    check = CliRunner().invoke(app, ["data", "check", str(file)])
    assert check.exit_code == (2 if is_refused else 0)
    if is_refused:
        options = ["--out", str(tmp_path / "runs"), "--mlflow", "off", "--quiet", "--device", "cpu"]
        with pytest.raises(InputError) as refused:
            CliRunner().invoke(app, ["run", str(file), *options], catch_exceptions=False)
        assert check.stderr == f"error: {refused.value}\n"
