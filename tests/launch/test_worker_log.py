"""What a process of a run says is kept in the run's folder."""

import logging
import sys
from pathlib import Path

import pytest

from forever.launch.worker_log import logged
from forever.runs.environment import code


def test_what_is_printed_and_logged_is_kept_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a second process of the rank, and why it ended; no password is kept."""
    with logged(tmp_path, 1):
        print("a step")
        print("a warning", file=sys.stderr)
        logging.getLogger("library").error("no answer from http://me:secret@host")
    with pytest.raises(ValueError, match="boom"), logged(tmp_path, 1):
        raise ValueError("boom at http://me:secret@host")
    print("later")
    text = (tmp_path / "logs/rank-1.log").read_text(encoding="utf-8")
    firsts = [line for line in text.splitlines() if "rank 1 on" in line]
    assert len(firsts) == 2
    assert all(line.endswith(f"code {code()}") for line in firsts)
    for part in ("a step", "a warning", "library ERROR no answer", "ValueError: boom"):
        assert text.count(part) == 1, part
    assert "secret" not in text
    assert "later" not in text
    shown = capsys.readouterr()
    assert "a step" in shown.out
    assert "a warning" in shown.err
    assert f"code {code()}" in shown.err


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with logged(tmp_path, 0):
        print("goes on")
