"""Trackers hear everything after it is on disk, and none can end a run. The journal can be cut and
continued."""

import os
from pathlib import Path
from typing import Any

import pytest
from helpers import lines, outcome

from forever.config.run import RunConfig
from forever.launch.local import Placement, run_local
from forever.runs.directory import (
    RunDirectory,
    keep_lines,
    last_line,
    read_lines,
    write_lines,
    write_text,
)
from forever.runs.journal import Journal
from forever.runs.tracking import Tracker, Trackers
from forever.training.events import ReplayEvent

CALLS = ["started", "step", "event", "stage", "finished"]


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)
        return lambda *details: self.heard.append((name, details))

    def of(self, name: str) -> list[Any]:
        return [details for call, details in self.heard if call == name]


class Failing(Listener):
    """Raises whenever it is told one thing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __getattr__(self, name: str) -> Any:
        if name == self.what:
            raise RuntimeError("the server is away")
        return super().__getattr__(name)


def run(config: RunConfig, path: Path, *trackers: Any) -> dict[str, Any]:
    return run_local(config, path, trackers=trackers, placement=Placement(device="cpu"))


def event(step: int) -> ReplayEvent:
    return ReplayEvent("replay", "t", step, 1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 2, 8, 1.0, 0.5)


def test_a_tracker_hears_the_whole_run_after_it_is_on_disk(
    small_config: RunConfig, tmp_path: Path
) -> None:
    class OnDisk(Listener):
        def __getattr__(self, name: str) -> Any:
            tell = super().__getattr__(name)
            counts = tuple(
                len(lines(p)) if p.exists() else 0
                for p in (tmp_path / "steps.jsonl", tmp_path / "events.jsonl")
            )
            self.disk.append((name, *counts, (tmp_path / "result.json").exists()))
            return tell

        disk: list[tuple[Any, ...]] = []

    tracker = OnDisk()
    result = run(small_config, tmp_path, tracker)
    steps = lines(tmp_path / "steps.jsonl")
    assert [line for (line,) in tracker.of("step")] == steps
    assert {line["planned"] for (line,) in tracker.of("step")} == {4}
    assert [vars(e) for (e,) in tracker.of("event")] == lines(tmp_path / "events.jsonl")
    assert [number for number, _ in tracker.of("stage")] == [0, 1, 2]
    assert tracker.of("stage")[2][1]["op"] == result["op"]
    assert tracker.of("stage")[2][1]["bwt"] == result["bwt"]
    assert tracker.of("stage")[0][1] == {
        "acc/colour": result["matrix"][0][0],
        "op": result["matrix"][0][0],
        "bwt": None,
    }
    assert tracker.of("finished") == [(result,)]
    assert tracker.heard[0][0] == "started"
    told = {"step": 0, "event": 0}
    for name, on_disk_steps, on_disk_events, finished in tracker.disk:
        if name in told:
            told[name] += 1
        assert on_disk_steps >= told["step"]
        assert on_disk_events >= told["event"]
        assert finished == (name == "finished")


@pytest.mark.parametrize("what", CALLS)
def test_a_tracker_that_raises_is_left_out_and_the_run_goes_on(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    config = small_config.override({"data.order": ["colour", "shape"]})
    failing, listener = Failing(what), Listener()
    result = run(config, tmp_path, failing, listener)
    assert len(listener.of("step")) == sum(result["updates"].values())
    assert listener.of("finished") == [(result,)]
    told = capsys.readouterr().err
    assert (
        told.count("Failing failed and is left out from here: RuntimeError: the server is away")
        == 1
    )
    position = next(i for i, (name, _) in enumerate(listener.heard) if name == what)
    assert failing.heard == listener.heard[:position]


def test_trackers_do_not_change_the_result(small_config: RunConfig, tmp_path: Path) -> None:
    run(small_config, tmp_path / "alone")
    run(small_config, tmp_path / "told", Listener(), Failing("step"))
    assert outcome(tmp_path / "alone").differences(outcome(tmp_path / "told")) == []


def test_an_interrupt_is_no_failure_of_a_tracker() -> None:
    class Interrupting(Tracker):
        def step(self, line: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trackers([Interrupting()]).tell("step", {})


# ---- the journal


def journal(path: Path, *kept: int) -> Journal:
    path.mkdir(exist_ok=True)
    return Journal(RunDirectory(path), *kept)


def test_journal_is_on_disk_line_by_line(tmp_path: Path) -> None:
    made = journal(tmp_path)
    for n in range(3):
        made.step({"n": n})
        assert len(lines(tmp_path / "steps.jsonl")) == n + 1
    made.event(event(2))
    assert lines(tmp_path / "events.jsonl") == [vars(event(2))]
    assert made.lines == {"steps": 3, "events": 1}
    made.close()


def test_journal_is_cut_after_the_kept_lines_and_goes_on(tmp_path: Path) -> None:
    first = journal(tmp_path)
    for n in range(5):
        first.step({"n": n})
        first.event(event(n))
    first.close()
    with (tmp_path / "steps.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"n": 5, "torn')  # killed while writing
    second = journal(tmp_path, 3, 2)
    assert [line["n"] for line in lines(tmp_path / "steps.jsonl")] == [0, 1, 2]
    second.step({"n": "new"})
    second.event(event(9))
    second.close()
    assert [line["n"] for line in lines(tmp_path / "steps.jsonl")] == [0, 1, 2, "new"]
    assert [line["step"] for line in lines(tmp_path / "events.jsonl")] == [0, 1, 9]
    assert second.lines == {"steps": 4, "events": 3}


def test_a_torn_last_line_is_not_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3', encoding="utf-8")
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    assert last_line(path) == {"a": 2}
    keep_lines(path, 2)
    assert path.read_text(encoding="utf-8") == '{"a": 1}\n{"a": 2}\n'
    assert read_lines(tmp_path / "missing") == []
    keep_lines(tmp_path / "missing", 0)
    assert not (tmp_path / "missing").exists()


def test_the_last_line_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_lines(path, ({"n": n, "text": "é" * 100} for n in range(2000)))
    assert last_line(path) == read_lines(path)[-1]
    path.write_text('{"n": 1', encoding="utf-8")
    assert last_line(path) is None
    assert last_line(tmp_path / "missing") is None


ODD = "line\u2028sep para\u2029 next\x85line \x0b \x0c \x1c \x1d \x1e \r\n tab\t é 你好 🙂"


def test_any_text_survives_a_json_line(tmp_path: Path) -> None:
    """Unicode has line breaks that JSON does not escape; a row of data or an answer may hold
    them."""
    path = tmp_path / "x.jsonl"
    write_lines(path, [{"prediction": ODD}, {"prediction": "plain"}])
    assert read_lines(path) == [{"prediction": ODD}, {"prediction": "plain"}]
    keep_lines(path, 1)
    assert read_lines(path) == [{"prediction": ODD}]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "result.json"
    write_text(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "new"


def test_a_file_that_is_replaced_is_on_disk_with_its_name_and_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take answers away that a later checkpoint relies on."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    write_text(tmp_path / "predictions" / "1" / "1.jsonl", "{}")
    # Each folder once what is in it has its name.
    assert [path.name for path in synced if path.is_dir()] == [tmp_path.name, "predictions", "1"]
    assert synced[-1] == tmp_path / "predictions" / "1"
