"""`forever init`: what it writes runs as it is, and nothing is overwritten."""

import re
from pathlib import Path

import pytest
import yaml
from commands import Call, document
from helpers import largest_file

from forever.cli.starters.run import run_text
from forever.cli.starters.task import _TEST, _TRAIN, _liked, _served
from forever.config.overrides import dotted_keys
from forever.config.run import RunConfig
from forever.models.tokenizer import load_tokenizer
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import load_run, named_run

SHORT = ["data.train_rows=8", "data.test_rows=4", "optim.epochs=1", "--mlflow", "off"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_that_is_begun_runs(call: Call) -> None:
    code, printed, _ = call("init")
    assert (code, printed) == (0, "wrote run.yaml\nnext  forever run run.yaml\n")
    assert load_run("run.yaml") == named_run("mini/forever")
    order = "data.order=[sentiment,happened]"
    assert call("run", "run.yaml", order, *SHORT)[0] == 0


@pytest.mark.parametrize("words", [["init"], ["init", "--task", "mine"]], ids=" ".join)
@pytest.mark.parametrize("size", [0, 100])
def test_a_full_disk_leaves_no_half_file(
    call: Call, tmp_path: Path, words: list[str], size: int
) -> None:
    with largest_file(size):
        code, _, errors = call(*words)
    assert (code, errors.count("\n")) == (1, 1)
    assert "cannot be written (File too large); make room" in errors
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert call(*words)[0] == 0


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
    assert ("default Qwen" in text) == (config.model.name != RunConfig().model.name)


def test_a_task_that_is_begun_is_learned(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        assert call("init", "--task", name)[0] == 0
    assert load_run("second.yaml").data.order == ("first", "second")
    rows = document(call, "data", "check", "second.yaml")["tasks"]["rows"]
    assert [(row["task"], row["labels"], row["overlap"]) for row in rows] == [
        ("first", 2, 0),
        ("second", 2, 0),
    ]
    told = document(call, "run", "second.yaml", "--mlflow", "off")
    assert told["lost"] == []  # it is learned
    config = Path(told["run"], "config.yaml").absolute()
    monkeypatch.chdir(tmp_path.parent)  # from where the run's own configuration finds the data
    assert document(call, "data", "check", str(config))["problems"] == []


def test_tiny_has_a_token_for_each_word_of_the_tasks() -> None:
    tokenizer = load_tokenizer("tiny")
    rows = [ask(number) for ask in (_liked, _served) for number in range(_TRAIN + _TEST)]
    words = {word for row in rows for text in row.values() for word in re.findall(r"\w+", text)}
    assert [word for word in sorted(words) if len(tokenizer.tokenize(f" {word}")) > 1] == []


def test_a_sweep_that_is_begun_can_be_planned(call: Call) -> None:
    assert call("init", "sweep", "--to", "mine.yaml")[0] == 0
    sweep = load_sweep("mine.yaml").expand(load_run("mini/forever"))
    assert [*sweep.variants] == ["base", "late", "once"]
    rows = document(call, "plan", "mine.yaml")["rows"]
    assert [row["runs"] for row in rows][:3] == [3, 3, 3]


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
    assert code == 2
    assert "is there, and init overwrites nothing" in error
    assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_what_cannot_be_begun_is_refused(call: Call) -> None:
    for name in ("../up", "a b", "", ".x"):
        code, _, error = call("init", "--task", name)
        assert code == 2
        assert "a task's name is that of a folder" in error
    for folder in ("/", "mini", "a/../mini", "standard", "superni"):
        code, _, error = call("init", "--task", "first", "--to", folder)
        assert code == 2
        assert "the folder's name is that of a benchmark" in error
    for file in ("days.txt", "days", "mydir/"):
        for what in ("run", "sweep"):
            code, _, error = call("init", what, "--to", file)
            assert code == 2
            assert f"the file of a {what} ends in .yaml, as {what}.yaml does" in error
    assert call("init", "sweep", "--task", "first")[0] == 2
    for words in (["sweep"], ["--task", "first"]):
        code, _, error = call("init", *words, "--on", "mini/ewc")
        assert code == 2
        assert "--on mini/ewc: a sweep or a task is not written from a run" in error
    assert [*Path().iterdir()] == []
