"""Whatever byte of a run's files is lost or changed: it is named and refused, or computed again
from its own weights, and no number differs in silence."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
import torch
from helpers import KILLED_CLOSES_NO_FILES, Outcome, Then, execute, flip, outcome

from forever.cli.view.run import read_run
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.files import SUMS, read_noted, read_sums, write_noted
from forever.launch.local import Placement, run_local
from forever.planning.table import Terms, plan_table
from forever.report.study import plain_run, read_study
from forever.runs import checkpoint
from forever.runs.checkpoint import Checkpoint, State
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.sweeps.asked import AskedRun

pytestmark = KILLED_CLOSES_NO_FILES


class Killed(BaseException):
    """Stands for SIGKILL."""


def kill() -> None:
    raise Killed


def live(config: RunConfig, path: Path, **at: int) -> None:
    """One life of a run; it goes on if it has begun. It may be killed `at` an update or a stage."""
    place = Placement(device="cpu", checkpoint_s=0.0, keep_stages=True)
    try:
        run_local(config, path, resume=True, trackers=[Then(kill, **at)], placement=place)
    except Killed:
        return
    assert not at


def refusal(call: Callable[[], Any]) -> str | None:
    """What a call refuses; None if it does not."""
    try:
        call()
    except InputError as error:
        return str(error)
    return None


@dataclass
class Runs:
    config: RunConfig
    whole: Outcome
    finished: Path
    training: Path  # killed in the second of two tasks
    scored: Path  # killed when that had been scored, before there was a result


@pytest.fixture(scope="module")
def runs(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    metrics = {"data.metrics": {"shape": "rouge_l", "colour": "rouge_l"}}
    config = small_config.override({"data.order": ["colour", "shape"], **metrics})
    finished = folder / config.key()
    live(config, finished)
    live(config, folder / "training", update=7)  # the third of the second task
    live(config, folder / "scored", after_stage=1)
    return Runs(config, outcome(finished), finished, folder / "training", folder / "scored")


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda path: Path(shutil.copytree(path, tmp_path / path.name))


# ---- what happens to a file


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_line(path: Path) -> None:
    """Without its last line: all that is left is sound."""
    path.write_bytes(path.read_bytes().rstrip(b"\n").rpartition(b"\n")[0])


def raise_number(path: Path) -> None:
    """Another digit in a number, which can be read as well."""
    text = path.read_text()
    for key in ('"score": ', '"rows": ', '"loss_after": ', '"op": ', "seed: ", '"cores": '):
        text = text.replace(key, f"{key}1")
    path.write_text(text)


DAMAGE = (flip, cut, cut_line, raise_number, Path.unlink)
PAST = ("predictions/1/1.jsonl", "steps.jsonl", "events.jsonl", "config.yaml")
FINISHED = (*PAST, "predictions/2/1.jsonl", "predictions/2/2.jsonl", "environment.json", SUMS)


def damaged(path: Path, name: str, damage: Callable[[Path], None]) -> bool:
    """Damage a file of a run; says whether that changed anything."""
    before = (path / name).read_bytes()
    damage(path / name)
    return not (path / name).is_file() or (path / name).read_bytes() != before


# ---- a finished run


@pytest.mark.parametrize("name", [*FINISHED, "result.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_of_a_finished_run_is_named_by_every_reader(
    runs: Runs, copy: Any, name: str, damage: Callable[[Path], None]
) -> None:
    path = copy(runs.finished)
    RunDirectory(path).verify()
    if not damaged(path, name, damage):
        pytest.skip(f"{name} has nothing of the kind")
    if not (path / "result.json").is_file():
        assert plain_run(path).state == "unfinished"  # and it goes on as such
        return
    told = SUMS if name == SUMS else path / name  # a line of SHA256SUMS is that of some file
    with pytest.raises(InputError, match=str(told)):
        RunDirectory(path).verify()
    with pytest.raises(InputError, match=str(told if (path / "config.yaml").is_file() else path)):
        read_study(path)
    if (path / name).is_file() or name in ("config.yaml", SUMS):  # others may not have been kept
        with pytest.raises(InputError, match=str(path)):
            read_run(path)
    if name == "result.json":
        asked = AskedRun("forever", runs.config, load_benchmark(runs.config.data), None)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=str(told)):
            plan_table("forever", [asked._replace(directory=RunDirectory(path))], Terms())
        with pytest.raises(InputError, match=str(told)):
            live(runs.config, path)


def test_a_lost_result_is_computed_again(runs: Runs, copy: Any) -> None:
    path = copy(runs.finished)
    (path / "result.json").unlink()
    live(runs.config, path)
    assert runs.whole.differences(outcome(path)) == []


# ---- a run that goes on


@pytest.mark.parametrize("name", PAST)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("at", ["training", "scored"])
def test_a_damaged_past_is_refused(
    runs: Runs, copy: Any, name: str, damage: Callable[[Path], None], at: str
) -> None:
    """Nothing could compute it again: its weights were trained on since."""
    path = copy(getattr(runs, at))
    if name.startswith("predictions") and at == "scored":
        pytest.skip("as while training")
    if name == "events.jsonl" and at == "training":
        pytest.skip("the first task has no events")
    if not damaged(path, name, damage) or (name == "steps.jsonl" and not _in_past(runs, path)):
        pytest.skip("nothing of the past is damaged")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=rf"{name.replace('.', '[.]')} (is|cannot|, line)"):
        live(runs.config, path)
    for file, content in before.items():
        if file.name != ".lock":  # lines of the journal after the checkpoint may go
            assert content.startswith(file.read_bytes()), file
            assert file.suffix == ".jsonl" or file.read_bytes() == content, file


def _in_past(runs: Runs, path: Path) -> bool:
    """Whether the journal up to the checkpoint is not what it was."""
    state = json.loads((max((path / "checkpoints").iterdir()) / "state.json").read_text())
    steps = path / "steps.jsonl"
    lines = steps.read_bytes().split(b"\n")[:-1] if steps.is_file() else []
    whole = (runs.finished / "steps.jsonl").read_bytes().split(b"\n")
    return lines[: state["steps"]] != whole[: state["steps"]]


@pytest.mark.parametrize("name", ["predictions/2/1.jsonl", "predictions/2/2.jsonl"])
@pytest.mark.parametrize("damage", [flip, cut_line, Path.unlink])
def test_damaged_answers_of_the_weights_that_are_there_are_given_again(
    runs: Runs, copy: Any, capsys: Any, name: str, damage: Callable[[Path], None]
) -> None:
    path = copy(runs.scored)
    damaged(path, name, damage)
    live(runs.config, path)
    assert runs.whole.differences(outcome(path)) == []
    RunDirectory(path).verify()
    told = f"{path / name} is damaged; the answers are given again"
    assert (told in capsys.readouterr().err) == (damage is not Path.unlink)


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("at", ["training", "scored"])
def test_without_its_sums_no_answer_counts(
    runs: Runs, copy: Any, damage: Callable[[Path], None], at: str
) -> None:
    path = copy(getattr(runs, at))
    damaged(path, SUMS, damage)
    said = refusal(lambda: live(runs.config, path))
    if said is None:
        assert runs.whole.differences(outcome(path)) == []
    else:
        assert str(path) in said


def test_a_damaged_environment_is_named_and_written_anew(
    runs: Runs, copy: Any, capsys: Any
) -> None:
    path = copy(runs.training)
    flip(path / "environment.json")
    live(runs.config, path)
    assert "environment.json is damaged" in capsys.readouterr().err
    assert runs.whole.differences(outcome(path)) == []
    RunDirectory(path).verify()


def test_a_lost_configuration_is_no_new_run(runs: Runs, copy: Any) -> None:
    path = copy(runs.training)
    (path / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"config\.yaml is missing"):
        live(runs.config.override({"optim.lr": 0.5}), path)


def test_a_disk_that_loses_something_while_the_run_trains_is_noticed(
    runs: Runs, tmp_path: Path
) -> None:
    spoil = Then(lambda: flip(tmp_path / "predictions" / "1" / "1.jsonl"), after_stage=1)
    with pytest.raises(InputError, match=r"predictions/1/1\.jsonl is damaged"):
        run_local(runs.config, tmp_path, trackers=[spoil], placement=Placement(device="cpu"))
    assert not (tmp_path / "result.json").exists()


# ---- checkpoints


def folder_in_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink, folder_in_place])
@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_named(
    runs: Runs, copy: Any, capsys: Any, file: str, damage: Callable[[Path], None]
) -> None:
    path = copy(runs.training)
    newest = max((path / "checkpoints").iterdir())
    damage(newest / file)
    live(runs.config, path)
    told = f"{newest} damaged; the run goes on from the one before"
    assert told in capsys.readouterr().err
    assert runs.whole.differences(outcome(path)) == []


def test_both_checkpoints_damaged_is_said_aloud(runs: Runs, copy: Any, capsys: Any) -> None:
    path = copy(runs.training)
    folders = sorted((path / "checkpoints").iterdir(), reverse=True)
    for folder in folders:
        flip(folder / "state.json")
    live(runs.config, path)
    told = f"{folders[0]}, {folders[1]} damaged; the run begins anew"
    assert told in capsys.readouterr().err
    assert runs.whole.differences(outcome(path)) == []


# ---- a fork


@pytest.mark.parametrize("name", [*PAST, SUMS, "stages/1/tensors.safetensors"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_fork_of_a_damaged_run_is_refused(
    runs: Runs, copy: Any, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    path, target = copy(runs.finished), RunDirectory(tmp_path / "fork")
    if not name.startswith("stages") and not damaged(path, name, damage):
        pytest.skip(f"{name} has nothing of the kind")
    elif name.startswith("stages"):
        flip(path / name)
    benchmark = load_benchmark(runs.config.data)
    said = refusal(lambda: plant(find_origin(f"{path}@1"), runs.config, benchmark, target))
    if said is not None:
        assert str(path) in said
        assert not target.path.exists()
        return
    # What was damaged comes after the first task, or the fork tells that it is missing.
    said = refusal(lambda: live(runs.config, target.path))
    if said is None:
        assert runs.whole.differences(outcome(target.path)) == []
    else:
        assert "is missing" in said


def test_a_run_without_a_checkpoint_begins_again_whatever_its_journal_holds(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(runs.config, tmp_path)
    for name in ("result.json", "checkpoints", "predictions"):
        target = tmp_path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    (tmp_path / "steps.jsonl").write_bytes(b"\xff\n{")
    live(runs.config, tmp_path)
    assert "checkpoints has no checkpoint; the run begins anew" in capsys.readouterr().err
    assert runs.whole.differences(outcome(tmp_path)) == []


STRANGE = {
    "updates": {"task": 10**500},
    "examples": {"replayed": 1, "task": 10**400},
    "parameters": {"trained": "x"},
    "peak_memory_bytes": -1,
    "metrics": 5,
    "rows": {},
}


@pytest.mark.parametrize("field", STRANGE)
def test_a_strange_result_whose_sums_fit_is_refused(runs: Runs, copy: Any, field: str) -> None:
    directory = RunDirectory(copy(runs.finished))
    content = json.loads(directory.result.read_text("utf-8")) | {field: STRANGE[field]}
    directory.write(directory.result, json.dumps(content))
    with pytest.raises(InputError, match=f"result.json.*{field}"):
        read_run(directory.path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("stage", "x"), ("stage", -2), ("trained", "x"), ("records", [5]), ("records", [[1, 2]]),
     ("records", [["a"] * 8]), ("steps", "a"), ("events", -1), ("digests", []), ("notes", 5),
     ("seconds", 5), ("data", 5), ("model", 5), ("method", [])],
)  # fmt: skip
def test_a_strange_checkpoint_whose_sums_fit_is_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    checkpoint.save(tmp_path, 0, 1, {}, vars(State()) | {field: value})
    saved = checkpoint.latest(tmp_path)
    assert saved is not None
    with pytest.raises(InputError, match=f"{tmp_path} has a strange field '{field}"):
        State.of(saved, tmp_path)


def newest_of(path: Path) -> tuple[Path, Checkpoint]:
    """The newest checkpoint of a run, and what it holds."""
    newest = max((path / "checkpoints").iterdir())
    saved = checkpoint.read(newest)
    assert saved is not None
    return newest, saved


FORGED = {
    "no object": ([], "damaged"),
    "trained before the first": ({"trained": False}, "fields disagree"),
    "notes are missing": ({"notes": []}, "fields disagree"),
    "updates after the last": ({"trained": True, "notes": [{}, {}]}, "fields disagree"),
    "of a longer run": ({"stage": 999, "notes": [{}] * 999}, "a run of 1000 tasks or more"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_state_is_one_line(runs: Runs, copy: Any, forged: str) -> None:
    """Its sums fit, since who forged it wrote them as well."""
    path, (changes, told) = copy(runs.training), FORGED[forged]
    newest, saved = newest_of(path)
    assert saved.state["records"]
    assert not saved.state["trained"]
    if forged == "trained before the first":
        saved.state["stage"] = -1
    state = saved.state | changes if isinstance(changes, dict) else changes
    checkpoint.write(newest, saved.tensors, state)  # pyright: ignore[reportArgumentType]
    if forged == "no object":
        assert checkpoint.read(newest) is None  # the one before is sound
        return
    with pytest.raises(InputError, match=told):
        live(runs.config, path)


@pytest.mark.parametrize(
    ("method", "values"),
    [("finetune", {"rows": {}}), ("forever", {"fisher_tasks": -1}), ("forever", {"rows": {}}),
     ("ssr", {"fisher_tasks": 1}), ("ssr", {"rows": {"colour": [{"id": "a"}]}})],
)  # fmt: skip
def test_a_value_that_a_method_does_not_carry_is_refused(
    small_config: RunConfig, tmp_path: Path, method: str, values: dict[str, Any]
) -> None:
    config = small_config.override({"method.name": method})
    live(config, tmp_path, update=2)
    newest, saved = newest_of(tmp_path)
    checkpoint.write(newest, saved.tensors, {**saved.state, "method": values})
    (name,) = values
    with pytest.raises(InputError, match=f"the checkpoint's `method` has a strange field '{name}"):
        live(config, tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("anchor", torch.zeros(3)), ("other", torch.zeros(3)), ("targets", torch.zeros(9, 9)),
     ("pace", torch.zeros(1)), ("start", torch.zeros(3))],
)  # fmt: skip
@pytest.mark.parametrize("method", ["finetune", "ewc", "forever", "sapt", "aimmerging"])
def test_a_tensor_that_a_method_does_not_carry_is_refused(
    small_config: RunConfig, tmp_path: Path, method: str, name: str, tensor: torch.Tensor
) -> None:
    config = small_config.override({"method.name": method})
    live(config, tmp_path, update=2)
    newest, saved = newest_of(tmp_path)
    checkpoint.write(newest, {**saved.tensors, f"method/{name}": tensor}, saved.state)
    with pytest.raises(
        InputError, match=rf"a tensor '{name}' of .*, which {method} does not carry"
    ):
        live(config, tmp_path)


def test_no_byte_of_a_sealed_file_changes_in_silence(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.end("failed", "loss is nan at update 3")
    readers: list[tuple[Path, Callable[[], Any]]] = [
        (directory.ended, directory.end_without_result)
    ]
    for path, read in readers:
        content, before = path.read_bytes(), read()
        silent = 0
        for place in range(len(content)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            if refusal(read) is None:  # the seal is no longer called so; all that it seals is whole
                silent += 1
                assert {key: read()[key] for key in before} == before
        assert silent <= len("sha256") + 2
        path.write_text(json.dumps(before), encoding="utf-8")  # by an earlier release
        assert read() == before


# ---- what only looks like damage


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would begin anew, and remove it."""
    checkpoint.save(tmp_path, 0, 1, {"theta": torch.zeros(2)}, vars(State()))

    def fails(path: Path) -> NoReturn:
        raise OSError(errno.EMFILE, "too many files", str(path))

    for owner, name in ((checkpoint, "load_file"), (Path, "read_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails)
            with pytest.raises(OSError, match="too many files"):
                checkpoint.latest(tmp_path)


def test_a_fork_that_died_before_its_configuration_was_written_begins(
    small_config: RunConfig, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path)
    directory.write(directory.fork, "{}")
    directory.steps.write_text("")
    directory.check(small_config, resume=True)
    directory.create(small_config, {})
    directory.config.unlink()
    directory.check(small_config, resume=True)
    with pytest.raises(InputError, match=r"config\.yaml is missing"):
        directory.check(small_config.override({"seed": 7}), resume=True)


def test_a_file_without_a_sum_counts_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an earlier release; the process dies between the line and the file."""
    (tmp_path / "old.json").write_text("old")
    monkeypatch.setattr("forever.files.write_text", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_noted(tmp_path, "old.json", "new")
    assert read_noted(tmp_path, "old.json", read_sums(tmp_path)) == b"old"
