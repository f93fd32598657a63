"""Data from strangers: what is no text, has no end or says two things is refused with its line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.check import read_tasks
from forever.errors import InputError

ROW = {"instruction": "Is it?", "input": "a", "output": "yes"}
GOOD = json.dumps(ROW).encode()


def written(root: Path, line: bytes = GOOD, task: str = "a") -> Path:
    """A benchmark `mine` in `root` with a task whose second training row is `line`."""
    folder = root / "mine" / task
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_bytes(GOOD + b"\n" + line + b"\n")
    tested = {**ROW, "input": "another"}
    (folder / "test.jsonl").write_text(json.dumps(tested), encoding="utf-8")
    return root


def run_of(root: Path, *order: str, **values: Any) -> RunConfig:
    data = {"benchmark": "mine", "order": order or ("a",), "root": str(root)}
    return RunConfig.parse({"data": data, **values})


def row(**fields: Any) -> bytes:
    return json.dumps({**ROW, **fields}).encode()


# A row, and what is said after the file and the line.
REFUSED: dict[str, tuple[bytes, str]] = {
    "surrogate": (row(input="\ud800"), ", input has half of a surrogate pair"),
    "NUL": (row(output="a\0b"), ", output has a NUL character; remove it"),
    "no UTF-8": (b'{"instruction": "caf\xe9"}', ": byte 0xe9 is not UTF-8"),
    "deep": (GOOD[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ": the values are"),
    "digits": (GOOD[:-1] + b', "x": ' + b"9" * 5000 + b"}", ": a number of 5000 digits is too"),
    "twice": (GOOD[:-1] + b', "input": "b"}', ": 'input' occurs twice in an object"),
    "long text": (row(input="x" * 2_000_000), ", input has 2000000 characters, of 1048576"),
    "long line": (row(input="x" * 5_000_000), " has 5000055 bytes, of 4194304 that are read"),
    "no object": (b"3", ": input should be an object (3)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_hostile_row_is_refused_with_file_and_line(kind: str, tmp_path: Path) -> None:
    """By a run and by a check alike."""
    line, message = REFUSED[kind]
    root = written(tmp_path, line)
    with pytest.raises(InputError) as refused:
        load_benchmark(run_of(root).data)
    error = str(refused.value)
    assert error.startswith(f"{root / 'mine' / 'a' / 'train.jsonl'}, line 2{message}")
    assert error.isprintable()
    checked = read_tasks(root)
    assert (checked.tasks, checked.problems) == ([], [error])


@pytest.mark.parametrize("name", ["train.json", "test.json"])
def test_names_that_occur_twice_in_a_list_are_refused(name: str, tmp_path: Path) -> None:
    for split in ("train.json", "test.json"):
        path = tmp_path / "mine" / split.removesuffix(".json") / "a.json"
        path.parent.mkdir(parents=True)
        text = f'[{{"instruction": "i", "input": "{split}", "output": "o"}}]'
        if split == name:
            text = text.replace("}]", ', "output": "p"}]')
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.json: 'output' occurs twice in an object"):
        load_benchmark(run_of(tmp_path).data)


MEASURE = """
import resource, sys
from pathlib import Path
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = {"benchmark": "mine", "order": ["a"], "root": sys.argv[1]}
try:
    load_benchmark(RunConfig.parse({"data": data}).data)
except InputError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def test_a_line_of_100_mb_takes_little_memory(tmp_path: Path) -> None:
    root = written(tmp_path, row(input="x" * 100_000_000))
    command = [sys.executable, "-c", MEASURE, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kilobytes, error = done.stdout.split(" ", 1)
    assert "line 2 has 100000055 bytes" in error
    assert int(kilobytes) < 400_000


def test_a_million_bad_rows_take_little_memory(tmp_path: Path) -> None:
    """The first is named; a list of all faults would be gigabytes."""
    for split, text in (("train", "[" + "{}," * 1_000_000 + "{}]"), ("test", "[]")):
        path = tmp_path / "mine" / split / "a.json"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kilobytes, error = done.stdout.split(" ", 1)
    assert "a.json, 0, instruction: field required" in error
    assert int(kilobytes) < 300_000


def test_a_benchmark_stays_in_its_root(tmp_path: Path) -> None:
    written(tmp_path / "outside")
    (tmp_path / "root").mkdir()
    for name in ("../outside/mine", str(tmp_path / "outside" / "mine"), "..", "."):
        with pytest.raises(InputError, match=r"data\.benchmark: .* is no folder in data\.root"):
            RunConfig().override({"data.benchmark": name, "data.root": str(tmp_path / "root")})
    with pytest.raises(
        InputError, match=r"data\.root: there is no home folder for '~nobody-here/x'"
    ):
        load_benchmark(
            RunConfig().override({"data.benchmark": "a", "data.root": "~nobody-here/x"}).data
        )


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_root_that_no_path_can_be(name: str, tmp_path: Path) -> None:
    config = RunConfig().override({"data.benchmark": "mine", "data.root": str(tmp_path / name)})
    with pytest.raises(InputError, match="there is no folder"):
        load_benchmark(config.data)


# ---- a check goes on, and says what a run says


def test_a_check_names_what_is_bad_and_goes_on(tmp_path: Path) -> None:
    written(tmp_path, b"{", "bad")
    written(tmp_path, task="good")
    written(tmp_path, row(input="another"), "overlap")
    for twin in ("mine2/x/train.jsonl", "mine2/x/train.json"):
        path = tmp_path / twin
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GOOD)
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 2
    errors = done.stderr.splitlines()
    assert [error.split(": ", 1)[0] for error in errors] == ["error"] * 3
    assert "bad/train.jsonl, line 2: invalid JSON" in errors[0]
    assert "task overlap: test row overlap/test/0 repeats train row overlap/train/1" in errors[1]
    assert "task x is found twice" in errors[2]
    assert " good " in done.stdout


LONG = " ".join(["word"] * 40)
# Changes of a run, the long answer's split, and what a run and a check say of it.
TOO_LONG = [
    ({"model.max_length": 16}, "train", "example a/train/1: an answer of"),
    ({}, "test", "example a/test/0: its answer has"),
    ({"data.metrics": {"a": "rouge_l"}}, "test", ""),
]


@pytest.mark.parametrize(("changes", "split", "message"), TOO_LONG)
def test_a_check_and_a_run_agree_on_answers_that_are_too_long(
    changes: dict[str, Any], split: str, message: str, tmp_path: Path
) -> None:
    root = written(tmp_path / "data", row(input="b", output=LONG if split == "train" else "yes"))
    if split == "test":
        rows = [row(input=f"other {i}", output="yes") for i in range(6)]
        path = root / "mine" / "a" / "train.jsonl"
        path.write_bytes(b"\n".join(rows))
        (path.parent / "test.jsonl").write_bytes(row(input="c", output=LONG))
    config = run_of(root).override(
        {"model.name": "tiny", "evaluation.max_new_tokens": 8, **changes}
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    check = CliRunner().invoke(app, ["data", "check", str(file)])
    if not message:
        assert (check.exit_code, check.stderr) == (0, "")
        return
    assert check.exit_code == 2
    assert check.stderr.startswith(f"error: {message}")
    options = ["--out", str(tmp_path / "runs"), "--mlflow", "off", "--quiet", "--device", "cpu"]
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(app, ["run", str(file), *options], catch_exceptions=False)
    assert check.stderr == f"error: {refused.value}\n"
