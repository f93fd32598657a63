"""Trackers hear everything after it is on disk, and none can end a run. A follower of another
process's run reports the same. The journal can be cut and continued."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import lines, outcome

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.files import WriteError, last_line, read_lines, sha256, write_lines, write_text
from forever.launch.local import Placement, run_local
from forever.runs import checkpoint
from forever.runs.directory import RunDirectory
from forever.runs.journal import Journal, first_lines
from forever.runs.progress import Follower
from forever.runs.tracking import Tracker, tell
from forever.stopping import Stopped
from forever.training.events import ReplayEvent

CALLS = ["started", "step", "event", "stage", "finished"]


class Listener(Tracker):
    """Keeps what is reported to it; it may do something each time, or fail at one call."""

    def __init__(
        self,
        fails: str = "",
        then: Callable[[], None] = lambda: None,
        error: BaseException = RuntimeError("the server is away"),
    ) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []
        self.fails, self.then, self.error = fails, then, error
        for name in CALLS:
            setattr(self, name, partial(self.hear, name))

    def hear(self, name: str, *details: Any) -> None:
        if name == self.fails:
            raise self.error
        self.heard.append((name, details))
        self.then()

    def of(self, *names: str) -> list[Any]:
        return [details for name, details in self.heard if name in names]


def run(config: RunConfig, path: Path, *trackers: Tracker) -> dict[str, Any]:
    return run_local(config, path, trackers=trackers, placement=Placement(device="cpu"))


def test_a_tracker_hears_the_whole_run_after_it_is_on_disk(
    small_config: RunConfig, tmp_path: Path
) -> None:
    on_disk: list[tuple[int, int, bool]] = []

    def count() -> None:
        counts = [len(read_lines(tmp_path / f"{name}.jsonl")) for name in ("steps", "events")]
        on_disk.append((counts[0], counts[1], (tmp_path / "result.json").exists()))

    tracker = Listener(then=count)
    result = run(small_config, tmp_path, tracker)
    assert [line for (line,) in tracker.of("step")] == lines(tmp_path / "steps.jsonl")
    assert [vars(event) for (event,) in tracker.of("event")] == lines(tmp_path / "events.jsonl")
    stages = tracker.of("stage")
    assert [number for number, _ in stages] == [0, 1, 2]
    assert (stages[2][1]["op"], stages[2][1]["bwt"]) == (result["op"], result["bwt"])
    first = result["matrix"][0][0]
    assert stages[0][1] == {"acc/colour": first, "op": first, "bwt": None}
    assert tracker.of("finished") == [(result,)]
    names = [name for name, _ in tracker.heard]
    assert names[0] == "started"
    for number, (steps, events, finished) in enumerate(on_disk, 1):
        assert steps >= names[:number].count("step")
        assert events >= names[:number].count("event")
        assert finished == (names[number - 1] == "finished")


def test_a_tracker_that_raises_is_left_out_and_the_run_continues(
    small_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config.override({"data.order": ["colour", "shape"]})
    failing, listener = [Listener(fails=what) for what in CALLS], Listener()
    result = run(config, tmp_path / "tracked", *failing, listener)
    assert len(listener.of("step")) == sum(result["updates"].values())
    assert listener.of("finished") == [(result,)]
    assert capsys.readouterr().err.count("the server is away") == len(CALLS)
    names = [name for name, _ in listener.heard]
    for tracker in failing:
        assert [name for name, _ in tracker.heard] == names[: names.index(tracker.fails)]
    run(config, tmp_path / "alone")
    assert outcome(tmp_path / "alone").differences(outcome(tmp_path / "tracked")) == []


def test_a_tracker_cannot_leave_for_the_run() -> None:
    """By SystemExit rich leaves, where nobody reads what it prints; an interrupt is not its."""
    listener = Listener()
    trackers: list[Tracker] = [Listener("step", error=SystemExit(1)), listener]
    tell(trackers, "step", {})
    assert trackers == [listener]
    for error in (KeyboardInterrupt(), Stopped(signal.SIGTERM)):
        with pytest.raises(type(error)):
            tell([Listener("step", error=error)], "step", {})


@pytest.mark.parametrize("method", ["forever", "mtl"])
def test_a_follower_reports_what_the_run_reports(
    small_config: RunConfig, tmp_path: Path, method: str
) -> None:
    values = small_config.model_dump(mode="json") | {"method": {"name": method}}
    config, directory = RunConfig.parse(values), RunDirectory(tmp_path / "run")
    following = Listener()
    follower = Follower(config, directory, load_benchmark(config.data), [following])
    follower.poll()  # nothing is there yet
    assert following.heard == []
    running = Listener(then=follower.poll)
    run(config, directory.path, running)
    for _ in range(2):  # the second time there is nothing new
        follower.poll()
        assert running.of("step", "stage") == following.of("step", "stage")

    late = Listener()  # comes late, and hears where the run is
    Follower(config, directory, load_benchmark(config.data), [late]).poll()
    assert late.of("step") == running.of("step")[-1:]
    assert late.of("stage") == running.of("stage")


# ---- the journal, and files


def test_journal_is_on_disk_line_by_line_and_cut_after_the_kept_lines(tmp_path: Path) -> None:
    event = ReplayEvent("replay", "t", 9, 1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 2, 8, 1.0, 0.5)
    first = Journal(RunDirectory(tmp_path))
    for n in range(5):
        first.write("step", {"n": n})
        first.write("event", event)
        assert len(lines(tmp_path / "steps.jsonl")) == n + 1
    assert lines(tmp_path / "events.jsonl") == [vars(event)] * 5
    first.close()
    with (tmp_path / "steps.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"n": 5, "torn')  # killed while writing
    second = Journal(RunDirectory(tmp_path), 3, 2)
    second.write("step", {"n": "new"})
    second.write("event", event)
    second.close()
    assert [line["n"] for line in lines(tmp_path / "steps.jsonl")] == [0, 1, 2, "new"]
    assert second.lines == {"steps": 4, "events": 3}


def test_a_torn_last_line_is_not_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3', encoding="utf-8")
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    assert last_line(path) == {"a": 2}
    assert first_lines(path, 2) == b'{"a": 1}\n{"a": 2}\n'
    assert last_line(tmp_path / "missing") is None
    assert read_lines(tmp_path / "missing") == []


def test_any_text_survives_a_json_line(tmp_path: Path) -> None:
    """Unicode has line breaks that JSON does not escape; data and answers may hold them."""
    odd = "line\u2028sep para\u2029 next\x85line \x0b \x0c \x1c \x1d \x1e \r\n tab\t é 你好 🙂"
    path, records = tmp_path / "x.jsonl", [{"n": n, "text": odd} for n in range(2000)]
    write_lines(path, records)
    assert read_lines(path) == records
    assert last_line(path) == records[-1]


def test_answers_are_on_disk_before_the_weights_that_gave_them_may_go(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync, save = dict[str, bytes](), os.fsync, checkpoint.save
    saved: list[int] = []

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_file():
            synced["/".join(path.parts[-3:])] = path.read_bytes()
        fsync(handle)

    def save_after(folder: Path, stage: int, update: int, tensors: Any, state: Any) -> None:
        earlier = [
            f"predictions/{j}/{i}.jsonl" for j in range(1, stage + 1) for i in range(1, j + 1)
        ]
        assert {name for name in synced if name.startswith("predictions")} == {*earlier}
        for name in earlier:
            assert state["digests"][name] == sha256(synced[name])
        saved.append(stage)
        save(folder, stage, update, tensors, state)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(checkpoint, "save", save_after)
    run(small_config, tmp_path / "run")
    assert {*saved} == {0, 1, 2}
    assert "predictions/3/3.jsonl" in synced


def test_a_file_is_replaced_as_a_whole_and_is_on_disk_with_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take answers away that a later checkpoint relies on."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def killed(source: Path, target: Path) -> Path:
        raise OSError("killed")

    path = tmp_path / "predictions" / "1" / "1.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note)
        write_text(path, "old")
        # Each folder once what is in it has its name.
        folders = [path.name for path in synced if path.is_dir()]
        assert folders == [tmp_path.name, "predictions", "1"]
        assert synced[-1] == path.parent
        patch.setattr(Path, "replace", killed)
        with pytest.raises(WriteError, match=r"1\.jsonl"):
            write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
