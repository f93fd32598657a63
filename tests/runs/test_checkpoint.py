"""A checkpoint is whole or not there; a damaged one is passed over and never crowds out good
ones."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import flip

from forever.runs import checkpoint
from forever.runs.checkpoint import latest, save


def write(folder: Path, stage: int, update: int) -> Path:
    """A checkpoint that its content identifies."""
    tensors = {"theta": torch.arange(6.0) + 100 * stage + update, "method/anchor": torch.ones(2, 2)}
    return save(folder, stage, update, tensors, {"stage": stage, "update": update})


def newest(folder: Path) -> tuple[int, int] | None:
    found = latest(folder)
    return None if found is None else (found.state["stage"], found.state["update"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_round_trip_is_bit_exact_and_without_pickle(tmp_path: Path) -> None:
    odd = torch.tensor([0.1, -0.0, 1e-45, 3.4e38, float("inf")])
    tensors = {
        "theta": odd, "adam/step": torch.tensor(7.0), "view": torch.arange(12.0).view(3, 4).T,
        "half": torch.rand(3).bfloat16(), "grad": torch.ones(2, requires_grad=True),
    }  # fmt: skip
    state = {"records": [[0.1, 1e-300, 2**53 - 1, "é"]], "none": None, "stage": -1}
    path = save(tmp_path, 0, 1, tensors, state)
    found = latest(tmp_path)
    assert found is not None
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype
    # -0.0 stays -0.0.
    assert torch.equal(found.tensors["theta"].view(torch.int32), odd.view(torch.int32))
    assert found.state == state
    assert names(path) == ["manifest.json", "state.json", "tensors.safetensors"]


def test_newest_by_place_in_training_and_two_are_kept(tmp_path: Path) -> None:
    assert latest(tmp_path) is latest(tmp_path / "not there") is None
    for stage, update in [(0, 9), (0, 10), (0, 11), (1, 2), (1, 2)]:
        write(tmp_path, stage, update)
        assert newest(tmp_path) == (stage, update)
    assert names(tmp_path) == ["000-00000011", "001-00000002"]
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    (tmp_path / ".hidden").mkdir()
    assert newest(tmp_path) == (1, 2)


# ---- damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("file", "damage"),
    [("tensors.safetensors", flip), ("state.json", truncate), ("manifest.json", Path.unlink)],
)
def test_damage_falls_back_to_the_one_before(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    write(tmp_path, 0, 4)
    damage(write(tmp_path, 0, 8) / file)
    assert newest(tmp_path) == (0, 4)


def test_after_a_fall_back_damaged_ones_do_not_crowd_out_good_ones(tmp_path: Path) -> None:
    """The run resumes from before the damage; what it then writes must be found, and two good ones
    kept."""
    for update in (40, 50):
        flip(write(tmp_path, 1, update) / "tensors.safetensors")
    assert newest(tmp_path) is None
    for update in (1, 2, 3):  # everything was damaged: the run began anew
        write(tmp_path, 0, update)
        assert newest(tmp_path) == (0, update)
    assert names(tmp_path) == ["000-00000002", "000-00000003"]


# ---- killed


class Killed(BaseException):
    """Stands for the process being killed."""


def die_at(point: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the process die at a call that touches the disk; the calls so far."""
    calls: list[str] = []

    def guard(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == point:
                raise Killed
            return original(*arguments, **options)

        return call

    for owner, name in (
        (checkpoint, "save_file"), (checkpoint, "_digests"), (checkpoint, "sync"),
        (checkpoint.shutil, "rmtree"), (Path, "write_text"), (Path, "rename"), (Path, "mkdir"),
    ):  # fmt: skip
        patch.setattr(owner, name, guard(name, getattr(owner, name)))
    return calls


@pytest.mark.parametrize("again", [False, True])
def test_killed_at_any_point_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Whatever was reached, the newest good checkpoint is the one before or the new one, and the
    next save works."""
    point, calls = 0, ["before the first"]
    while len(calls) >= point:  # the last round is not killed any more
        point += 1
        folder = tmp_path / str(point)
        write(folder, 0, 4)
        write(folder, 0, 8)
        with monkeypatch.context() as patch, suppress(Killed):
            calls = die_at(point, patch)
            write(folder, 0, 8 if again else 12)
        assert newest(folder) in ({(0, 4), (0, 8)} if again else {(0, 8), (0, 12)}), calls
        write(folder, 1, 1)
        assert newest(folder) == (1, 1)
        assert len(names(folder)) == 2  # no torn leftovers
    assert point > 12


def test_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync, rename = checkpoint.sync, Path.rename

    def note_sync(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    def note_rename(path: Path, target: Path) -> Path:
        files = ["manifest.json", "state.json", "tensors.safetensors"]
        assert sorted(synced) == [f".000-00000001.{os.getpid()}", *files]
        return rename(path, target)

    monkeypatch.setattr(checkpoint, "sync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    path = write(tmp_path, 0, 1)
    assert synced[-1] == tmp_path.name
    assert json.loads((path / "state.json").read_text(encoding="utf-8")) == {
        "stage": 0,
        "update": 1,
    }
