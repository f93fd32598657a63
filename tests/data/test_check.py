"""`forever data check` counts what a run would read, and refuses what a run would refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import save_kind
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.check import balance_table, doubts_table, lengths_table, read_tasks, tasks_table
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


def test_what_may_not_be_meant_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are those that a model sees: here without surrounding blanks."""
    train = [row(f"a {n}", ("US", "us", "uk")[n % 3]) for n in range(15)]
    train += [row("a 0 ", "US"), row("a 0", "uk"), row("a 1", " us"), row("a 4", "US")]
    tests = [row("new", "US"), row("new", "US"), row("newer", "UK")]
    written(tmp_path / "mine" / "a", train, tests)
    pairs = [{"prompt": f"b {n}", "answer": f"so {n}"} for n in range(3)]
    written(tmp_path / "mine" / "b", pairs, [{"prompt": "c", "answer": "none"}, row("d", "12")])
    config = run_of(tmp_path, "a", "b").override({"data.metrics": {"b": "numeric"}})
    table = doubts_table(read_tasks(config))
    assert [list(record.values()) for record in table.records] == [
        [
            "a",
            3,
            2,
            0,
            "UK = uk, US = us",
            "train.jsonl and test.jsonl: instruction, input, output",
        ],
        ["b", 0, 0, 1, "-", "train.jsonl and test.jsonl: prompt, completion"],
    ]
    caption = str(table.caption)
    assert "a/train/15 repeats a/train/0; a/train/17 repeats a/train/1; a/test/1" in caption
    assert "a/train/16 contradicts a/train/0; a/train/18 contradicts a/train/4" in caption
    assert "b/test/0 is unreachable" in caption
    sensitive = config.override({"data.metrics": {"a": "label_likelihood"}})
    assert doubts_table(read_tasks(sensitive)).records[0]["labels taken for one"] == "-"
    # A metric that fails on a later example; a run tries the first one.
    monkeypatch.chdir(tmp_path)
    Path("late.py").write_text("def score(one, other): return 1 / (one == 'US')", encoding="utf-8")
    checked = read_tasks(config.override({"data.metrics": {"a": "late:score"}}))
    assert [line["task"] for line in doubts_table(checked).records] == ["b"]
    assert ["late:score failed on the reference 'UK'" in each for each in checked.problems] == [
        True
    ]


def test_a_tasks_file_is_checked_and_shown(tmp_path: Path) -> None:
    """A text is shown without a prompt, and all of it is supervised."""
    texts = [{"text": f"It is warm in room {n}."} for n in range(10)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in texts), encoding="utf-8")
    done = CliRunner().invoke(app, ["data", "check", str(path), "--model", "tiny", "--json"])
    assert done.exit_code == 0
    page = json.loads(done.stdout)
    (task,) = page["tasks"]["rows"]
    assert (task["train"], task["test"], task["metric"]) == (8, 2, "text_likelihood")
    origin = "texts.jsonl, of which a part is held out: text"
    assert page["doubts"]["rows"][0]["read as"] == origin
    for example in page["examples"]["texts"]["examples"]:
        assert example["prompt"] == ["<|endoftext|>"]
        assert "".join(example["supervised"]).startswith("Itiswarminroom")


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
    for name in ("mini", "m" * 101):  # the embedded benchmark, and more than a name has
        shutil.copytree(tmp_path / "mine", tmp_path / "odd" / name)
        assert len(read_tasks(tmp_path / "odd" / name).problems) == 1
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


def test_control_tokens_are_named_in_inputs_and_refused_in_answers(tmp_path: Path) -> None:
    rows = [row(f"a {n}") for n in range(4)]
    rows[2]["input"] = "before <|endoftext|> after"
    written(tmp_path / "mine" / "a", rows, [row("b")])
    command = ["data", "check", str(tmp_path), "--model", "tiny"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "1 inputs (a/train/2)" in " ".join(done.stdout.split())
    rows[2]["output"] = "yes <|endoftext|>"
    written(tmp_path / "mine" / "b", rows, [row("c")])
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "b/train/2" in done.stderr


def test_a_check_refuses_what_the_model_has_not_learned(
    backbone_folder: Path, tmp_path: Path
) -> None:
    """From the model's settings alone, before a run."""
    model = save_kind(tmp_path / "model", "gpt2", backbone_folder, n_positions=40)
    written(tmp_path / "data" / "mine" / "a", [row("a")], [row("b")])
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path / "data"), "--model", str(model)])
    assert done.exit_code == 2
    assert "40 positions" in done.stderr
