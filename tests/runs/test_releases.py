"""Folders of earlier releases are read and gone on with; those of later ones are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import lines
from made_up import edit

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.files import SUMS
from forever.launch.local import Placement, run_local
from forever.report.study import read_study
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.runs.shapes import SCHEMA_VERSION
from forever.sweeps.sweep import read_manifest

FIXTURES = Path(__file__).parents[1] / "fixtures"
FINISHED, INTERRUPTED = "base-ocustom-s0-17ac1bd6", "finetune-ocustom-s0-5b0774a0"


@pytest.fixture
def release_1(tmp_path: Path, backbone_folder: Path, data_root: Path) -> Path:
    """A sweep that 0.1.0 left: one run finished, one killed in its second task."""
    folder = Path(shutil.copytree(FIXTURES / "schema-1", tmp_path / "toy"))
    for path in folder.glob("*/config.yaml"):
        text = path.read_text().replace("BACKBONE", str(backbone_folder))
        path.write_text(text.replace("DATA", str(data_root)))
    return folder


def go_on(path: Path) -> RunConfig:
    config = RunDirectory(path).read_config()
    run_local(config, path, resume=True, placement=Placement(device="cpu"))
    return config


def test_every_release_has_a_fixture() -> None:
    """A new layout needs a new number, and a folder as the last release left it."""
    versions = {f"schema-{version}" for version in range(1, SCHEMA_VERSION)}
    assert {path.name for path in FIXTURES.iterdir()} == versions


def test_a_run_of_release_1_is_read(release_1: Path) -> None:
    assert not (release_1 / SUMS).exists()
    assert read_manifest(release_1)["schema_version"] == 1
    study = read_study(release_1)
    assert {run.variant: run.state for run in study.runs} == {
        "base": "finished",
        "finetune": "unfinished",
    }
    before = {path: path.read_bytes() for path in release_1.rglob("*") if path.is_file()}
    directory = RunDirectory(release_1 / FINISHED)
    directory.verify()
    result = directory.finished()
    assert result is not None
    assert result["schema_version"] == 1
    go_on(directory.path)  # nothing to do
    del before[release_1 / FINISHED / "config.yaml"]
    for path, content in before.items():
        assert path.read_bytes() == content


def test_a_run_of_release_1_goes_on_and_is_one_of_this_release(release_1: Path) -> None:
    path = release_1 / INTERRUPTED
    answers = (path / "predictions/1/1.jsonl").read_bytes()
    first = [line for line in lines(path / "steps.jsonl") if line["task"] == "colour"]
    go_on(path)
    directory = RunDirectory(path)
    directory.verify()
    result = directory.finished()
    assert result is not None
    assert result["schema_version"] == SCHEMA_VERSION
    assert (path / "predictions/1/1.jsonl").read_bytes() == answers
    steps = lines(path / "steps.jsonl")
    assert steps[: len(first)] == first
    assert len(steps) == sum(result["updates"].values()) == 8
    saved = checkpoint.latest(path / "checkpoints")
    assert saved is not None
    assert saved.state["schema_version"] == SCHEMA_VERSION
    assert {run.variant for run in read_study(release_1).finished} == {"base", "finetune"}


@pytest.mark.parametrize("name", ["steps.jsonl", "predictions/1/1.jsonl"])
@pytest.mark.parametrize(("run", "read"), [(FINISHED, read_study), (INTERRUPTED, go_on)])
def test_what_can_be_counted_of_release_1_is(
    release_1: Path, run: str, read: Callable[[Path], Any], name: str
) -> None:
    """Without sums a lost line is noticed, and a changed one is not."""
    path = release_1 / run / name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(InputError, match=name.replace(".", "[.]")):
        read(release_1 / run)


@pytest.mark.parametrize("version", [99, 0, None, True, "1", 1.0])
def test_a_result_of_an_unknown_release_is_refused(release_1: Path, version: object) -> None:
    path = release_1 / FINISHED / "result.json"
    content = json.loads(path.read_text())
    content["schema_version"] = version
    if version is None:
        del content["schema_version"]
    path.write_text(json.dumps(content))
    rule = rf"result\.json has schema_version {version!r}, and this release reads 1 to"
    for read in (read_study, go_on, lambda path: RunDirectory(path).finished()):
        with pytest.raises(InputError, match=rule):
            read(release_1 / FINISHED)


def test_a_checkpoint_of_a_later_release_is_refused(release_1: Path) -> None:
    path = release_1 / INTERRUPTED
    saved = checkpoint.latest(path / "checkpoints")
    assert saved is not None
    for state in ({"schema_version": 99}, {"later": 1}):
        checkpoint.save(path / "checkpoints", 1, 9, saved.tensors, saved.state | state)
        with pytest.raises(InputError, match=r"schema_version 99|a strange field 'later'"):
            go_on(path)


def test_a_sweep_of_a_later_release_is_refused(release_1: Path) -> None:
    edit(release_1 / "sweep.json", schema_version=3)
    with pytest.raises(InputError, match=r"sweep\.json has schema_version 3, and this release"):
        read_study(release_1)


def test_a_stage_of_release_1_can_be_forked(release_1: Path, tmp_path: Path) -> None:
    path = release_1 / INTERRUPTED
    saved = checkpoint.latest(path / "checkpoints")
    assert saved is not None
    # What --keep-stages would have left: after the first task, no record of the second.
    state = saved.state | {"stage": 0, "trained": True, "records": []}
    checkpoint.write(path / "stages" / "1", saved.tensors, state)
    config = RunDirectory(path).read_config()
    fork = RunDirectory(tmp_path / "fork")
    plant(find_origin(f"{path}@1"), config, load_benchmark(config.data), fork)
    run_local(config, fork.path, resume=True, placement=Placement(device="cpu"))
    fork.verify()
    assert fork.finished()
