"""The injector does what it says, and the soak sees what differs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.inject import Fault, Point, environment

from benchmarks.soak import differences


def test_a_fault_happens_at_its_point_and_once(tmp_path: Path) -> None:
    line = f"full 'phase=end of task' task=1 rank=1 run=base nth=2 'once={tmp_path}/a mark'"
    fault, again = Fault.parse(line), Fault.parse(line)
    point = Point("end of task", 1, 0, 1, "base-s0")
    for other in (
        Point("task", 1, 0, 1, "base-s0"),
        Point("end of task", 0, 0, 1, "base-s0"),
        Point("end of task", 1, 0, 0, "base-s0"),
        Point("end of task", 1, 0, 1, "other"),
        point,  # the first of two
    ):
        fault(other)
    with pytest.raises(OSError, match="No space left"):
        fault(point)
    assert (tmp_path / "a mark").exists()
    for _ in range(3):  # as in the next process
        again(point)


def test_a_child_is_killed_where_its_file_says(tmp_path: Path) -> None:
    """By SIGKILL, and not if the file is empty."""
    (tmp_path / "faults").write_text("kill phase=merge task=0")
    code = (
        "import types, forever.models.parameters as p, inject, sys\n"
        "watch = next(finder for finder in sys.meta_path if hasattr(finder, 'watch')).watch\n"
        "place = types.SimpleNamespace\n"
        "run = place(path=place(name='run'))\n"
        "watch.known['session'] = place(world=place(rank=0), directory=run,\n"
        "    progress=place(state=place(trained=False)))\n"
        "watch.known['learner'] = place(stage=0, updates=3)\n"
        "p.FlatParameters.merge(None, None, None, 1, 1)\n"
    )
    command = [sys.executable, "-c", code]
    variables = environment(tmp_path / "faults")

    def child() -> "subprocess.CompletedProcess[str]":
        both = {**os.environ, **variables}
        return subprocess.run(command, env=both, capture_output=True, text=True, timeout=60)

    assert child().returncode == -9
    (tmp_path / "faults").write_text("")
    assert "AttributeError" in child().stderr  # there is nothing to merge


def test_the_soak_sees_what_differs(tmp_path: Path) -> None:
    clean, other = tmp_path / "clean", tmp_path / "other"
    for folder, seconds in ((clean, 1), (other, 2)):
        (folder / "run/predictions/1").mkdir(parents=True)
        (folder / "run/predictions/1/1.jsonl").write_text("{}\n")
        (folder / "run/steps.jsonl").write_text("{}\n")
        (folder / "run/result.json").write_text(f'{{"op": 1, "seconds": {seconds}}}')
    assert differences(clean, other) == []
    (other / "run/steps.jsonl").write_text("{ }\n")
    (other / "run/predictions/1/1.jsonl").unlink()
    (other / "run/result.json").write_text('{"op": 2}')
    assert differences(clean, other) == [
        "run/result.json",
        "run/predictions/1/1.jsonl",
        "run/steps.jsonl",
    ]
