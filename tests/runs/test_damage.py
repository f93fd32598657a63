"""A file that was edited, truncated or flipped by accident, or put into another run's folder, is
named and refused, or computed again from its own weights; no number differs in silence."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import KILLED_CLOSES_NO_FILES, Outcome, Then, execute, flip, outcome
from made_up import base_run, make_up

from forever.cli.view.run import read_run
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.launch.local import Placement, run_local
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.sweeps.sweep import Sweep

pytestmark = KILLED_CLOSES_NO_FILES


class Killed(BaseException):
    """Stands for SIGKILL."""


def kill() -> None:
    raise Killed


def live(config: RunConfig, path: Path, **at: int) -> None:
    """One process of a run, which resumes. It may be killed `at` an update or a stage."""
    place = Placement(device="cpu", checkpoint_s=0.0, keep_stages=True)
    try:
        run_local(config, path, resume=True, trackers=[Then(kill, **at)], placement=place)
    except Killed:
        return
    assert not at


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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit_number(path: Path) -> None:
    """Put another digit into numbers, which can be read as well."""
    text = path.read_text()
    for key in ('"score": ', '"rows": ', '"op": ', "seed: ", '"cores": '):
        text = text.replace(key, f"{key}1")
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("result.json", edit_number),
        ("config.yaml", edit_number),
        ("environment.json", flip),
        ("steps.jsonl", cut),
        ("predictions/1/1.jsonl", flip),
    ],
)
def test_a_damaged_file_of_a_finished_run_is_named_by_every_reader(
    runs: Runs, copy: Any, name: str, damage: Callable[[Path], None]
) -> None:
    path = copy(runs.finished)
    RunDirectory(path).verify()
    damage(path / name)
    for read in (RunDirectory(path).verify, lambda: read_run(path), lambda: read_study(path)):
        with pytest.raises(InputError, match=name):
            read()


def test_a_lost_file_of_a_finished_run_is_named_and_a_lost_result_is_computed_again(
    runs: Runs, copy: Any
) -> None:
    path = copy(runs.finished)
    (path / "result.json").unlink()
    live(runs.config, path)
    assert runs.whole.differences(outcome(path)) == []
    (path / "predictions/2/1.jsonl").unlink()
    with pytest.raises(InputError, match=r"2/1\.jsonl is missing"):
        RunDirectory(path).verify()
    RunDirectory(path).verify(complete=False)  # enough to show what was kept


@pytest.mark.parametrize("name", ["predictions/1/1.jsonl", "steps.jsonl", "config.yaml"])
def test_a_damaged_past_is_refused_on_resume(runs: Runs, copy: Any, name: str) -> None:
    """Nothing could compute it again: its weights were trained on since."""
    path = copy(runs.training)
    edit_number(path / name)
    with pytest.raises(InputError, match=str(path)):
        live(runs.config, path)


def test_damaged_answers_of_the_newest_weights_are_given_again(runs: Runs, copy: Any) -> None:
    path = copy(runs.scored)
    cut(path / "predictions/2/1.jsonl")
    (path / "predictions/2/2.jsonl").unlink(missing_ok=True)
    live(runs.config, path)
    assert runs.whole.differences(outcome(path)) == []


def test_a_disk_that_loses_something_while_the_run_trains_is_noticed(
    runs: Runs, tmp_path: Path
) -> None:
    spoil = Then(lambda: flip(tmp_path / "predictions/1/1.jsonl"), after_stage=1)
    with pytest.raises(InputError, match=r"predictions/1/1\.jsonl"):
        run_local(runs.config, tmp_path, trackers=[spoil], placement=Placement(device="cpu"))
    assert not (tmp_path / "result.json").exists()


def test_damaged_checkpoints_are_named(runs: Runs, copy: Any, capsys: Any) -> None:
    """Also if all are damaged and the run starts again."""
    path = copy(runs.training)
    folders = [*(path / "checkpoints").iterdir()]
    for folder in folders:
        flip(folder / "state.json")
    live(runs.config, path)
    printed = capsys.readouterr().err
    assert all(str(folder) in printed for folder in folders)
    assert runs.whole.differences(outcome(path)) == []


def test_a_run_of_another_release_or_another_fingerprint_is_refused(runs: Runs, copy: Any) -> None:
    path = copy(runs.finished)
    (path / "manifest.json").write_text("{}")
    result = json.loads((path / "result.json").read_text())
    for odd in ({"schema_version": 2}, {"fingerprint": "0123456789ab"}):
        (path / "result.json").write_text(json.dumps(result | odd))
        with pytest.raises(InputError, match=str(path)):
            execute(runs.config, path)


@pytest.mark.parametrize("name", ["steps.jsonl", "stages/1/tensors.safetensors"])
def test_a_fork_of_a_damaged_run_is_refused(
    runs: Runs, copy: Any, tmp_path: Path, name: str
) -> None:
    path, target = copy(runs.finished), RunDirectory(tmp_path / "fork")
    flip(path / name) if name.startswith("stages") else edit_number(path / name)
    with pytest.raises(InputError, match=str(path)):
        plant(find_origin(f"{path}@1"), runs.config, load_benchmark(runs.config.data), target)
    assert not target.path.exists()


# ---- leftovers of a kill


def test_the_next_process_removes_what_a_killed_one_wrote_by_half(runs: Runs, copy: Any) -> None:
    path = copy(runs.training)
    (path / ".config.yaml.123").write_text("half")
    (path / "predictions/1/.1.jsonl.123").write_text("half")
    for folder in ("checkpoints/.001-00000009.123", "stages/.2.123"):
        (path / folder).mkdir(parents=True)
        (path / folder / "tensors.safetensors").write_bytes(b"half")
    live(runs.config, path)
    assert [file for file in path.rglob(".*") if file.name != ".lock"] == []
    assert runs.whole.differences(outcome(path)) == []


# ---- swapped folders


def swap(first: Path, second: Path) -> None:
    other = first.with_name("other")
    first.rename(other)
    second.rename(first)
    other.rename(second)


def test_two_folders_of_a_sweep_cannot_be_swapped(tmp_path: Path) -> None:
    """The report would swap the scores of the variants, and the next sweep would keep them."""
    variants = {"base": {}, "finetune": {"method.name": "finetune"}}
    folder = make_up(tmp_path / "toy", Sweep("toy", base_run(), variants, seeds=(0, 1)))
    first, second = (next(folder.glob(f"{name}-*s0*")) for name in ("base", "finetune"))
    swap(first, second)
    for path in (first, second):
        for read in (RunDirectory(path).verify, lambda path=path: read_run(path)):
            with pytest.raises(InputError, match=str(path)):
                read()
    damaged = [run.key for run in read_study(folder).runs if run.state == "damaged"]
    assert damaged == [first.name, second.name]
