"""A disk that is full, cuts a write or takes none: one line with path and remedy, the last
checkpoint is kept, and the run resumes when there is room again."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from helpers import KILLED_CLOSES_NO_FILES, Outcome, execute, largest_file, outcome
from made_up import base_run, make_up
from safetensors import SafetensorError

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError, write_bytes
from forever.launch.local import Placement, run_local
from forever.models import adapter, lora
from forever.report.report import write_report
from forever.runs import checkpoint, journal
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep

pytestmark = KILLED_CLOSES_NO_FILES


class Disk:
    """Fails at the `at`-th write or sync, after half of it, and at all that follow."""

    def __init__(self, at: int, number: int = errno.ENOSPC) -> None:
        self.at, self.number, self.count = at, number, 0

    def spend(self) -> None:
        self.count += 1
        if self.count >= self.at:
            raise OSError(self.number, os.strerror(self.number))

    @property
    def full(self) -> bool:
        return self.count >= self.at

    @contextmanager
    def inserted(self) -> Iterator[None]:
        disk, fsync, path_open, save = self, os.fsync, Path.open, checkpoint.save_file

        class File(FileIO):
            def write(self, content: Any) -> int:
                try:
                    disk.spend()
                except OSError:
                    super().write(bytes(content)[: len(content) // 2])
                    raise
                return super().write(content)

        def open_file(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if mode in ("wb", "ab"):
                return File(path, mode[0])
            if mode == "w":  # of a text: it is as if the first byte had no room
                path_open(path, mode).close()
                disk.spend()
            return path_open(path, mode, *rest, **options)

        def sync(handle: int) -> None:
            disk.spend()
            fsync(handle)

        def save_file(tensors: Any, path: Any, *rest: Any, **options: Any) -> None:
            try:
                disk.spend()
            except OSError as error:
                Path(path).write_bytes(b"half")
                raise SafetensorError(f"I/O error: {error.strerror} (os error 28)") from None
            save(tensors, path, *rest, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", sync)
            patch.setattr(Path, "open", open_file)
            patch.setattr(journal, "FileIO", File)
            for owner in (checkpoint, lora, adapter):
                patch.setattr(owner, "save_file", save_file)
            yield


def live(config: RunConfig, path: Path, disk: Disk) -> str | None:
    """A life of a run on a disk; what it says if that is full."""
    with disk.inserted():
        try:
            place = Placement(device="cpu", checkpoint_s=0.0)
            run_local(config, path, resume=True, placement=place)
        except WriteError as error:
            return str(error)
    return None


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    changes = {"data.order": ["colour", "shape"], "optim.epochs": 1, "method.name": "mix_replay"}
    metrics = {"colour": "rouge_l", "shape": "rouge_l"}
    return small_config.override({**changes, "data.metrics": metrics})


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(config, path)
    return outcome(path)


def test_full_at_every_write_and_every_sync(
    config: RunConfig, whole: Outcome, tmp_path: Path
) -> None:
    """One run of many lives: each has room for a little more than the last. Whatever was written
    by half, the next life resumes."""
    path, at, lives = tmp_path / "run", 1, 0
    while said := live(config, path, disk := Disk(at)):
        assert str(path) in said
        assert "\n" not in said
        assert not [*path.rglob("*/.0*")], "half a checkpoint takes room"
        RunDirectory(path).verify()
        lives, at = lives + 1, at + 1
    assert not disk.full
    assert lives > 15
    assert whole.differences(outcome(path)) == []
    RunDirectory(path).verify()


@pytest.mark.parametrize("size", [600, 10_000])
def test_a_write_cut_at_a_byte(
    config: RunConfig, whole: Outcome, tmp_path: Path, size: int
) -> None:
    """By the kernel, in the middle of whatever file grows beyond a size first."""
    path = tmp_path / "run"
    with largest_file(size), pytest.raises(WriteError, match=str(path)):
        run_local(config, path, placement=Placement(device="cpu", checkpoint_s=0.0))
    run_local(config, path, resume=True, placement=Placement(device="cpu"))
    assert whole.differences(outcome(path)) == []


# ---- folders that take nothing


@pytest.mark.parametrize("below", ["", "runs/deep"])
def test_out_is_a_file(config: RunConfig, tmp_path: Path, below: str) -> None:
    file = tmp_path / "out"
    file.write_text("mine")
    with pytest.raises(InputError, match=str(file)):
        execute(config, file / below / "run")
    assert file.read_text() == "mine"


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = make_up(tmp_path / "toy", Sweep("toy", base_run(), {"base": {}}, (0, 1)))
    with Disk(1, errno.EROFS).inserted(), pytest.raises(WriteError, match=f"^{folder}"):
        write_report(folder)


def test_a_file_that_cannot_be_written_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_bytes(path, b"old")
    for at in (1, 2, 3):
        with Disk(at).inserted(), pytest.raises(WriteError, match=str(path)):
            write_bytes(path, b"new")
        # The folder's sync comes last: by then the new content is there as a whole.
        assert path.read_bytes() == (b"new" if at == 3 else b"old")
        assert [*tmp_path.iterdir()] == [path]
