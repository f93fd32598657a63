"""`forever show` and `forever diff`: what they say of runs that are there, and where one failed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Call, document
from helpers import execute
from made_up import base_run, make_up_run
from rich.console import Console

from forever.cli.view.chance import chance
from forever.cli.view.seen import look
from forever.cli.view.timeline import buckets, marks, sparkline, timeline
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import json_lines, read_lines
from forever.runs.directory import RunDirectory

Edit = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def runs(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two finished runs on the toy benchmark: FOREVER, and fine-tuning with another rate."""
    folder = tmp_path_factory.mktemp("shown")
    execute(small_config.override({"data.test_rows": 6}), folder / "forever")
    plain = small_config.override({"data.test_rows": 6, "method.name": "finetune", "seed": 1})
    execute(plain, folder / "finetune")
    return folder / "forever", folder / "finetune"


def answers_of(run: Path) -> list[dict[str, Any]]:
    """The last answers to all tasks."""
    lines: list[dict[str, Any]] = []
    for path in sorted((run / "predictions" / "3").glob("*.jsonl")):
        lines += map(json.loads, path.read_text("utf-8").splitlines())
    return lines


def test_a_run_is_shown(runs: tuple[Path, Path], call: Call) -> None:
    code, printed, error = call("show", str(runs[0]))
    assert (code, error) == (0, "")
    for part in ("finished", "score on, after", "OP ", "timeline", "▲", "◆", "events", "budget"):
        assert part in printed, part
    assert "\x1b" not in printed  # it is no terminal


def test_a_run_is_shown_to_programs(runs: tuple[Path, Path], call: Call) -> None:
    told = document(call, "show", str(runs[0]))
    result = json.loads((runs[0] / "result.json").read_text("utf-8"))
    matrix = [
        [row["scores"][stage] for stage in result["stages"]] for row in told["matrix"]["rows"]
    ]
    assert matrix == result["matrix"]
    assert told["scores"]["op"] == result["op"]
    events = {row["task"]: row["replays"] + row["at_end"] for row in told["events"]["rows"]}
    counted = {task: sum(kinds.values()) for task, kinds in result["events"].items() if kinds}
    assert events == counted
    marked = {row["task"]: len(row["replays"]) for row in told["timeline"]["rows"]}
    assert {task: count for task, count in marked.items() if count} == counted


def test_wrong_answers_stand_beside_what_was_asked(runs: tuple[Path, Path], call: Call) -> None:
    told = document(call, "show", str(runs[1]))
    by_id = {answer["id"]: answer for answer in answers_of(runs[1])}
    wrong = [answer["id"] for answer in by_id.values() if not answer["score"]]
    assert wrong, "fine-tuning forgets on this benchmark"
    shown = [row for table in told["answers"].values() for row in table["rows"]]
    for row in shown:
        answer = by_id[row["id"]]
        assert row["id"] in wrong
        assert (row["expected"], row["answered"]) == (answer["reference"], answer["prediction"])
        assert row["input"]
        assert row["instruction"].startswith("What ")
    for task, table in told["answers"].items():
        count = sum(identity.startswith(f"{task}/") for identity in wrong)
        assert len(table["rows"]) == min(3, count)
        assert f"{count} of 6 wrong" in table["title"]


def test_questions_that_are_not_there_are_said_to_be(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = copied(runs[1], tmp_path)
    config = run / "config.yaml"
    root = look(run).config.data.root
    config.write_text(config.read_text("utf-8").replace(str(root), "/gone"), "utf-8")
    (run / "SHA256SUMS").unlink()
    old(run)
    told = document(call, "show", str(run))
    table = next(iter(told["answers"].values()))
    assert table["rows"][0]["input"] is None
    assert table["rows"][0]["expected"]
    assert "The questions are not shown: data.root: there is no folder" in table["note"]


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / run.name))


def old(run: Path) -> None:
    """Make a run one of the first release, whose files have no digests."""
    result = run / "result.json"
    content = json.loads(result.read_text("utf-8")) | {"schema_version": 1}
    result.write_text(json.dumps(content), "utf-8")


def changed(run: Path, task: int, edit: Edit) -> None:
    """Change the last answers to a task (from 0), and the score that follows."""
    path = run / "predictions" / "3" / f"{task + 1}.jsonl"
    answers = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    edit(answers)
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers), "utf-8")
    result = run / "result.json"
    content = json.loads(result.read_text("utf-8"))
    content["matrix"][task][-1] = 100 * sum(a["score"] for a in answers) / len(answers)
    result.write_text(json.dumps(content), "utf-8")
    (run / "SHA256SUMS").unlink(missing_ok=True)
    old(run)


def nothing_right(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        answer |= {"prediction": "purple", "score": 0.0, "cut": False}


def test_a_task_at_zero_is_told_in_a_line(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = copied(runs[0], tmp_path)

    changed(run, 2, nothing_right)
    told = document(call, "show", str(run))
    line = next(line for line in told["lost"] if line.startswith("weight "))
    assert line.startswith("weight ends at 0 of 6 right: 'purple' for 'heavy' (3x), 'purple' for")
    helps = "more updates (optim.epochs; it has 4 updates) or a larger optim.lr"
    assert f"Usually helps: {helps}" in line
    assert line in call("show", str(run))[1].replace("\n", " ").replace("  ", " ")


def test_a_task_whose_answers_were_not_kept_is_not_judged_by_those_of_another(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = copied(runs[0], tmp_path)

    changed(run, 0, nothing_right)
    changed(run, 1, nothing_right)
    (run / "predictions" / "3" / "1.jsonl").unlink()
    lines = document(call, "show", str(run))["lost"]
    assert lines[0].startswith("shape ends at 0 of 6 right: ")
    assert not any(line.startswith("colour ") for line in lines)


def test_a_task_at_chance_is_told_in_a_line(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    """It answers one label throughout, though it was learned."""
    run = copied(runs[1], tmp_path)

    def always_red(answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            right = answer["reference"] == "red"
            answer |= {"prediction": "red", "score": float(right), "cut": False}

    changed(run, 0, always_red)
    content = json.loads((run / "result.json").read_text("utf-8"))
    content["matrix"][0][0] = 100.0
    (run / "result.json").write_text(json.dumps(content), "utf-8")
    lines = document(call, "show", str(run))["lost"]
    line = next(line for line in lines if line.startswith("colour "))
    assert "ends at chance, 50.0 (always" in line
    assert "'red' for 'blue' (3x)." in line
    assert line.endswith(
        "replay, such as method.name=forever; the task was learned and is forgotten."
    )


def test_chance_is_the_most_frequent_answer_and_the_luck_of_the_rows() -> None:
    answers = [{"reference": "a" if row < 60 else "b", "score": 1.0} for row in range(100)]
    guess = chance(answers)
    assert guess is not None
    assert (guess.answer, guess.score) == ("a", 60.0)
    # 1.645 sqrt(0.6 * 0.4 / 100) = 8.06 points
    assert guess.reaches(68.0, 100)
    assert not guess.reaches(68.1, 100)
    assert chance([{"reference": str(row), "score": 0.0} for row in range(9)]) is None  # no labels
    assert chance([{"reference": "a", "score": 1.0}] * 9) is None  # nothing to choose from


def test_a_good_run_is_told_nothing(runs: tuple[Path, Path], tmp_path: Path, call: Call) -> None:
    run = copied(runs[0], tmp_path)

    def all_right(answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            answer |= {"prediction": answer["reference"], "score": 1.0}

    for task in range(3):
        changed(run, task, all_right)
    told = document(call, "show", str(run))
    assert told["lost"] == []
    assert "answers" not in told
    assert "No answer is wrong: colour, shape, weight." in call("show", str(run))[1]


def test_a_run_that_is_not_over_shows_what_it_has(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = copied(runs[0], tmp_path)
    (run / "result.json").unlink()
    shutil.rmtree(run / "predictions" / "3")
    told = document(call, "show", str(run))
    assert told["state"] == "unfinished, 2 tasks are scored; --resume goes on"
    assert [row["task"] for row in told["matrix"]["rows"]] == ["colour", "shape"]
    assert "budget" not in told


@pytest.mark.parametrize("name", ["steps.jsonl", "events.jsonl"])
def test_a_damaged_run_is_refused_and_one_of_which_less_was_kept_is_shown(
    runs: tuple[Path, Path], tmp_path: Path, call: Call, name: str
) -> None:
    """Never another number in silence."""
    run = copied(runs[0], tmp_path)
    journal = run / name
    journal.write_text(journal.read_text("utf-8").replace('"rows": ', '"rows": 1'), "utf-8")
    for words in (("show", str(run)), ("diff", str(runs[1]), str(run))):
        code, _, error = call(*words)
        assert (code, error.count("\n")) == (2, 1)
        assert f"{journal} is damaged" in error
    journal.unlink()
    (run / "predictions" / "1" / "1.jsonl").unlink()
    assert call("show", str(run))[0] == 0
    assert call("diff", str(runs[1]), str(run))[0] == 0


def test_strange_fields_are_no_traceback(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = copied(runs[0], tmp_path)
    (run / "result.json").write_text("{}", "utf-8")
    (run / "SHA256SUMS").unlink()
    old(run)
    for words in (("show", str(run)), ("diff", str(run), str(run))):
        code, _, error = call(*words)
        assert (code, error.count("\n")) == (2, 1)
        assert f"{run} holds a file with missing or strange fields ('" in error


def test_what_is_no_run_is_refused(runs: tuple[Path, Path], call: Call) -> None:
    code, _, error = call("show", str(runs[0].parent))
    assert code == 2
    assert "holds no run; give one of the runs in it: finetune, forever" in error
    code, _, error = call("diff", str(runs[0]), "nowhere")
    assert code == 2
    assert "nowhere holds no run; a run's folder has a config.yaml" in error
    with pytest.raises(InputError, match="holds no run"):
        look(Path("nowhere"))


def test_two_runs_differ_in_what_is_told(runs: tuple[Path, Path], call: Call) -> None:
    told = document(call, "diff", *map(str, runs))
    settings = {row["key"]: (row["a"], row["b"]) for row in told["configuration"]["rows"]}
    assert settings["method.name"] == ("forever", "finetune")
    assert settings["seed"] == (0, 1)
    assert settings["method.warmup_steps"] == (1, None)
    assert "optim.lr" not in settings
    results = [json.loads((run / "result.json").read_text("utf-8")) for run in runs]
    scores = {row["score"]: row["b less a"] for row in told["scores"]["rows"]}
    assert scores["OP"] == pytest.approx(results[1]["op"] - results[0]["op"])
    counts = {row["number of"]: (row["a"], row["b"]) for row in told["events"]["rows"]}
    assert counts["updates, consolidation"][1] == 0
    ours, theirs = (result["matrix"][0][-1] for result in results)
    ends = {row["score on"]: (row["a"], row["b"]) for row in told["matrix"]["rows"]}
    assert ends.get("colour, at the end", (ours, ours)) == (ours, theirs)
    code, printed, _ = call("diff", *map(str, runs))
    assert code == 0
    assert "The same: environment." in printed
    assert "No update is the same." in printed


def test_what_an_unfinished_run_has_not_counted_is_no_zero(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    run = copied(runs[0], tmp_path)
    (run / "result.json").unlink()
    counted = json.loads((runs[1] / "result.json").read_text("utf-8"))["updates"]["task"]
    for pair, here, there in (((runs[1], run), "a", "b"), ((run, runs[1]), "b", "a")):
        words = ("diff", *map(str, pair))
        (row,) = [
            row
            for row in document(call, *words)["events"]["rows"]
            if row["number of"] == "updates, task"
        ]
        assert (row[here], row[there], row["b less a"]) == (counted, None, None)
        (line,) = [line for line in call(*words)[1].splitlines() if "updates, task" in line]
        assert sorted(line.split()[2:]) == sorted((str(counted), "–", "–"))


def test_what_makes_a_comparison_unfair_is_told_to_programs_too(
    runs: tuple[Path, Path], tmp_path: Path, call: Call
) -> None:
    told = document(call, "diff", *map(str, runs))
    assert (told["same_updates"], told["warnings"]) == (0, [])
    updates = len((runs[0] / "steps.jsonl").read_text("utf-8").splitlines())
    assert document(call, "diff", str(runs[0]), str(runs[0]))["same_updates"] == updates
    run = copied(runs[0], tmp_path)
    (run / "result.json").unlink()
    shutil.rmtree(run / "predictions" / "3")
    words = ("diff", str(runs[0]), str(run))
    (warning,) = document(call, *words)["warnings"]
    assert warning == "Scores are of other tasks, or of another order."
    assert warning in call(*words)[1]
    (run / "steps.jsonl").unlink()
    assert document(call, *words)["same_updates"] is None


def test_a_run_does_not_differ_from_itself(runs: tuple[Path, Path], call: Call) -> None:
    _, printed, _ = call("diff", str(runs[0]), str(runs[0]))
    assert "updates are the same." in printed
    assert "The same: configuration, scores, matrix, events, environment." in printed


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(runs: tuple[Path, Path], width: int) -> None:
    from forever.cli.view.run import run_page

    console = Console(width=width)
    with console.capture() as captured:
        console.print(run_page(look(runs[0]), width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    matrix = "\n".join(lines[: next(n for n, line in enumerate(lines) if "OP " in line)])
    assert "…" not in matrix


def test_a_timeline_marks_replays_where_they_were() -> None:
    assert buckets([0.0, 1.0, 2.0, 3.0], 2) == [0.5, 2.5]
    assert sparkline([0, 1, 2, 9], 2) == "▁▅██"
    assert sparkline([0.0], 0.0) == "▁"
    events = [{"kind": "replay", "step": 5}, {"kind": "consolidation", "step": 10}]
    assert marks(events, 10, 5) == "  ▲ ◆"


def test_a_journal_of_replays_alone_is_shown(tmp_path: Path) -> None:
    """A strange hand wrote it: there is no update of the task under which a mark could stand."""
    make_up_run(tmp_path, "base", base_run())
    run = RunDirectory(tmp_path)
    lines = [{**line, "kind": "replay"} for line in read_lines(run.steps)]
    run.steps.write_text(json_lines(lines), encoding="utf-8")
    run.result.unlink()
    table = timeline(look(run.path))
    assert any("▲" in str(cell) or "◆" in str(cell) for cell in table.columns[1].cells)
