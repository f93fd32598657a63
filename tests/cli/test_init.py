"""`forever init`: what it writes runs as it is, and nothing is overwritten."""

import json
import re
from pathlib import Path

import pytest
import yaml
from commands import Call, document
from helpers import largest_file

from forever.cli import starters
from forever.cli.starters.run import run_text
from forever.config.overrides import dotted_keys
from forever.config.run import RunConfig
from forever.models.loading import load_tokenizer
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import load_run, named_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_is_written(call: Call) -> None:
    code, printed, _ = call("init")
    assert (code, printed) == (0, "wrote run.yaml\nnext  forever run run.yaml\n")
    assert load_run("run.yaml") == named_run("mini/forever")
    assert call("init", "--on", "superni/7/ssr", "--to", "other.yaml")[0] == 0
    assert load_run("other.yaml") == named_run("superni/7/ssr")


@pytest.mark.parametrize("name", ["mini/forever", "superni/7/ssr", "cpu/long/4/vbm", "mini/mtl"])
def test_a_runs_file_has_every_key(name: str) -> None:
    config = named_run(name)
    text = run_text(config, "run.yaml")
    values = yaml.safe_load(text)
    assert RunConfig.parse(values) == config
    for key in (*dotted_keys(RunConfig), *dotted_keys(type(config.method), "method.")):
        part, *names = key.split(".")
        if part != "method" or key in dotted_keys(type(config.method), "method."):
            assert part in values
            assert not names or names[0] in values[part], key
    assert max(map(len, text.splitlines())) <= 100


def test_tasks_are_written_and_learned(call: Call, tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert call("init", "--task", name)[0] == 0
    assert load_run("second.yaml").data.order == ("first", "second")
    rows = document(call, "data", "check", "second.yaml")["tasks"]["rows"]
    assert [(row["task"], row["labels"], row["overlap"]) for row in rows] == [
        ("first", 2, 0),
        ("second", 2, 0),
    ]
    assert document(call, "run", "second.yaml", "--mlflow", "off")["lost"] == []  # it is learned


def test_tiny_has_a_token_for_each_word_of_the_tasks() -> None:
    tokenizer = load_tokenizer("tiny")
    words: set[str] = set()
    for file in Path(starters.__file__).parent.glob("*/*.jsonl"):
        for line in file.read_text("utf-8").splitlines():
            words |= {*re.findall(r"\w+", " ".join(json.loads(line).values()))}
    assert words
    assert [word for word in sorted(words) if len(tokenizer.tokenize(f" {word}")) > 1] == []


def test_a_sweep_is_written(call: Call) -> None:
    assert call("init", "sweep", "--to", "mine.yaml")[0] == 0
    sweep = load_sweep("mine.yaml").expand(load_run("mini/forever"))
    assert [*sweep.variants] == ["base", "late", "once"]


@pytest.mark.parametrize("folder", [".", "..", "../here", "a/b"])
def test_a_folder_of_tasks_may_be_any_that_has_a_name(
    folder: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _, printed, _ = call("init", "--task", "b", "--to", folder)
    file = printed.split()[-1]
    assert load_run(file).data.benchmark == Path(folder).resolve().name
    assert document(call, "data", "check", file)["problems"] == []


@pytest.mark.parametrize("words", [["init"], ["init", "sweep"], ["init", "--task", "first"]])
def test_nothing_is_overwritten(words: list[str], call: Call) -> None:
    assert call(*words)[0] == 0
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code, _, error = call(*words)
    assert (code, error.count("\n")) == (2, 1)
    assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_a_full_disk_leaves_no_half_file(call: Call, tmp_path: Path) -> None:
    with largest_file(100):
        code, _, errors = call("init", "--task", "mine")
    assert (code, errors.count("\n")) == (1, 1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert call("init", "--task", "mine")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        *[["--task", name] for name in ("../up", "a b", "", ".x")],
        *[["--task", "first", "--to", folder] for folder in ("/", "mini", "a/../mini", "superni")],
        *[["run", "--to", file] for file in ("days.txt", "days", "mydir/")],
        ["sweep", "--task", "first"],
        ["sweep", "--on", "mini/ewc"],
        ["--task", "first", "--on", "mini/ewc"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_written_is_refused(words: list[str], call: Call) -> None:
    code, _, error = call("init", *words)
    assert (code, error.count("\n")) == (2, 1)
    assert [*Path().iterdir()] == []
