"""`forever show` and `forever diff`: what they say of finished, unfinished and damaged runs."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import Call, document
from helpers import execute
from rich.console import Console

from forever.cli.view.run import lost_tasks, read_run, run_page
from forever.config.run import RunConfig


@pytest.fixture(scope="module")
def runs(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two finished runs on the toy benchmark: FOREVER, and fine-tuning with another seed."""
    folder = tmp_path_factory.mktemp("shown")
    execute(small_config.override({"data.test_rows": 6}), folder / "forever")
    plain = small_config.override({"data.test_rows": 6, "method.name": "finetune", "seed": 1})
    execute(plain, folder / "finetune")
    return folder / "forever", folder / "finetune"


@pytest.fixture
def unfinished(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """FOREVER's run, of which the last task was not scored."""
    run = Path(shutil.copytree(runs[0], tmp_path / "unfinished"))
    (run / "result.json").unlink()
    shutil.rmtree(run / "predictions" / "3")
    return run


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text("utf-8"))


def test_a_run_is_shown_to_people_and_to_programs(runs: tuple[Path, Path], call: Call) -> None:
    code, printed, error = call("show", str(runs[0]))
    assert (code, error) == (0, "")
    for part in ("finished", "score on, after", "OP ", "timeline", "▲", "◆", "events", "budget"):
        assert part in printed, part
    assert "\x1b" not in printed  # it is no terminal
    shown, result = document(call, "show", str(runs[0])), result_of(runs[0])
    rows = shown["matrix"]["rows"]
    assert [[row["scores"][stage] for stage in result["stages"]] for row in rows] == result[
        "matrix"
    ]
    assert shown["scores"]["op"] == result["op"]
    counted = {task: sum(kinds.values()) for task, kinds in result["events"].items() if kinds}
    events = shown["events"]["rows"]
    assert {row["task"]: row["replays"] + row["at_end"] for row in events} == counted
    marked = {row["task"]: len(row["replays"]) for row in shown["timeline"]["rows"]}
    assert {task: count for task, count in marked.items() if count} == counted


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(runs: tuple[Path, Path], width: int) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(run_page(read_run(runs[0]), width))
    assert max(map(len, captured.get().splitlines())) <= width


def test_wrong_answers_come_with_their_questions(runs: tuple[Path, Path], call: Call) -> None:
    files = sorted((runs[1] / "predictions" / "3").glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    wrong = {line["id"]: line for line in lines if not line["score"]}
    assert wrong, "fine-tuning forgets on this benchmark"
    for task, table in document(call, "show", str(runs[1]))["answers"].items():
        of_task = [line for key, line in wrong.items() if key.startswith(f"{task}/")]
        ways = Counter((line["reference"], line["prediction"]) for line in of_task)
        assert [row["times"] for row in table["rows"]] == sorted(ways.values(), reverse=True)[:3]
        assert f"{len(of_task)} of 6 wrong" in table["title"]
        for row in table["rows"]:
            line = wrong[row["id"]]
            assert (row["expected"], row["answered"]) == (line["reference"], line["prediction"])
            assert row["input"]
            assert row["instruction"].startswith("What ")


def test_without_the_data_answers_are_shown_without_questions(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    data = Path(shutil.copytree(small_config.data.root or "", tmp_path / "data"))
    config = small_config.override({"data.root": str(data), "method.name": "finetune"})
    execute(config, tmp_path / "run")
    shutil.rmtree(data)
    table = next(iter(document(call, "show", str(tmp_path / "run"))["answers"].values()))
    assert table["rows"][0]["input"] is None
    assert table["rows"][0]["expected"]
    assert str(data) in table["note"]


def lost(score: float, right: str) -> list[str]:
    """What is said of a task with these right answers, of which one letter is one answer."""
    answers = [{"reference": letter, "score": 1.0} for letter in right]
    return lost_tasks({"tasks": ["t"], "matrix": [[score]]}, {"t": answers})


def test_chance_is_the_most_frequent_answer_and_the_luck_of_the_examples() -> None:
    labels = "a" * 60 + "b" * 40
    # 1.645 sqrt(0.6 * 0.4 / 100) = 8.06 points
    assert "'a'" in lost(68.0, labels)[0]
    assert lost(68.1, labels) == []
    assert len(lost(0.0, labels)) == 1
    assert lost(5.0, "abcdefgh") == []  # these are no labels
    assert lost(50.0, "aaaaaaaa") == []  # there is nothing to choose from
    assert lost_tasks({"tasks": ["t"], "matrix": [[0.0]]}, {}) == []  # no answer was kept


def test_an_unfinished_run_shows_what_it_has(
    unfinished: Path, runs: tuple[Path, Path], call: Call
) -> None:
    shown = document(call, "show", str(unfinished))
    assert shown["state"].startswith("unfinished, 2 tasks")
    assert [row["task"] for row in shown["matrix"]["rows"]] == ["colour", "shape"]
    assert "budget" not in shown
    # What it has not counted is not zero.
    counted = result_of(runs[1])["updates"]["task"]
    rows = document(call, "diff", str(runs[1]), str(unfinished))["events"]["rows"]
    (row,) = [row for row in rows if row["number of"] == "updates, task"]
    assert (row["a"], row["b"], row["b less a"]) == (counted, None, None)


def test_a_run_of_which_less_was_kept_is_shown(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    for name in ("steps.jsonl", "events.jsonl", "predictions/1/1.jsonl"):
        (run / name).unlink()
    assert call("show", str(run))[0] == 0
    assert document(call, "diff", str(runs[1]), str(run))["same_updates"] is None


def test_two_runs_differ(runs: tuple[Path, Path], call: Call) -> None:
    shown = document(call, "diff", *map(str, runs))
    settings = {row["key"]: (row["a"], row["b"]) for row in shown["configuration"]["rows"]}
    assert settings["method.name"] == ("forever", "finetune")
    assert settings["seed"] == (0, 1)
    assert "optim.lr" not in settings
    results = [result_of(run) for run in runs]
    scores = {row["score"]: row["b less a"] for row in shown["scores"]["rows"]}
    assert scores["OP"] == pytest.approx(results[1]["op"] - results[0]["op"])
    counts = {row["number of"]: (row["a"], row["b"]) for row in shown["events"]["rows"]}
    assert counts["updates, consolidation"][1] == 0
    before, after = (result["matrix"][0][-1] for result in results)
    ends = {row["score on"]: (row["a"], row["b"]) for row in shown["matrix"]["rows"]}
    assert ends.get("colour, at the end", (before, before)) == (before, after)
    assert shown["environment"]["rows"] == []
    assert (shown["same_updates"], shown["warnings"]) == (0, [])


def test_a_run_does_not_differ_from_itself(runs: tuple[Path, Path], call: Call) -> None:
    shown = document(call, "diff", str(runs[0]), str(runs[0]))
    assert shown["same_updates"] == len((runs[0] / "steps.jsonl").read_text("utf-8").splitlines())
    for part in ("configuration", "scores", "matrix", "events", "environment"):
        assert shown[part]["rows"] == []


def test_an_unfair_comparison_is_said_to_be(
    unfinished: Path, runs: tuple[Path, Path], call: Call
) -> None:
    words = ("diff", str(runs[0]), str(unfinished))
    (warning,) = document(call, *words)["warnings"]
    assert warning in call(*words)[1]
