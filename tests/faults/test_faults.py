"""The injector, and the soak that uses it: what they say happened did happen."""

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from faults.inject import SEAMS, Fault, Point, environment

from benchmarks import soak


def test_what_the_soak_fills_the_disk_at_is_a_point() -> None:
    phases = {seam.phase for seam in SEAMS if isinstance(seam.phase, str)}
    assert {*soak.WRITES} <= phases | {"journal"}


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
        "watch.known['session'] = place(state=place(trained=False), world=place(rank=0),\n"
        "                               directory=run)\n"
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
    for name in ("clean", "other"):
        run = tmp_path / name / "run"
        (run / "predictions" / "1").mkdir(parents=True)
        (run / "predictions" / "1" / "1.jsonl").write_text("{}\n")
        (run / "steps.jsonl").write_text("{}\n")
        seconds = len(name)
        (run / "result.json").write_text(f'{{"op": 1, "seconds": {seconds}}}')
    clean, other = tmp_path / "clean", tmp_path / "other"
    assert soak.differences(clean, other) == []
    (other / "run" / "steps.jsonl").write_text("{ }\n")
    (other / "run" / "predictions" / "1" / "1.jsonl").unlink()
    (other / "run" / "result.json").write_text('{"op": 2}')
    assert soak.differences(clean, other) == [
        "run/result.json",
        "run/steps.jsonl",
        "run/predictions/1/1.jsonl",
    ]


def test_the_summary_of_a_soak_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nothing happened, and the code says whether anything differs."""

    def happen(self: soak.Soak, case: soak.Case) -> None:
        self.tally.faults["kill merge"] += 1
        self.tally.differences.append(str(case))

    case = soak.Case("case0", "vbm", ("kill merge",), (2,), "cut", 0)
    monkeypatch.setattr(soak.Soak, "draw", lambda self, number: case)
    monkeypatch.setattr(soak.Soak, "happen", happen)
    clock = SimpleNamespace(monotonic=count(step=60.0).__next__)  # a minute a look
    monkeypatch.setattr(soak, "time", clock)
    for minutes, code in ((1.5, 1), (0.0, 0)):
        with pytest.raises(typer.Exit) as end:
            soak.main(minutes, 3, tmp_path, tmp_path / "soak.json")
        content = json.loads((tmp_path / "soak.json").read_text())
        assert end.value.exit_code == code
        assert (content["seed"], len(content["differences"])) == (3, code)
    assert content["faults"] == {}
