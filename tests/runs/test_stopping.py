"""A run that is stopped, by a signal or a file, saves a checkpoint and resumes as if nothing had
happened.

Signals are sent at a chosen call of a tracker, to this process.
"""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults.inject import Point, watched
from helpers import CONFIGS, Outcome, Then, execute, outcome

from forever import stopping
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.launch.local import Placement, run_local
from forever.runs.directory import RunDirectory
from forever.stopping import (
    Attempt,
    Stopped,
    ask_to_stop,
    listening,
    overhearing,
    polling,
    received,
)

NEVER = 1e9


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    """A Fisher pass ends each task."""
    values = small_config.model_dump(mode="json") | {"method": CONFIGS["forever both"]}
    return RunConfig.parse(values)


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same run that nobody stops."""
    path = tmp_path_factory.mktemp("whole")
    execute(config, path)
    return outcome(path)


def live(config: RunConfig, path: Path, tracker: Then) -> None:
    placement = Placement(device="cpu", checkpoint_s=NEVER)
    run_local(config, path, resume=True, trackers=[tracker], placement=placement)


def goes_on(config: RunConfig, path: Path, whole: Outcome, earlier: int) -> None:
    """The next life does the rest of the updates, and ends with the bits of a single one."""
    rest = Then()
    live(config, path, rest)
    assert earlier + rest.updates == len(whole.files["steps.jsonl"].splitlines())
    assert whole.differences(outcome(path)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_followed_by_a_checkpoint_and_the_end(
    config: RunConfig, whole: Outcome, tmp_path: Path, number: int
) -> None:
    """No update is repeated, although none would have been saved for a long time."""
    tracker = Then(lambda: signal.raise_signal(number), 6)
    with listening(), pytest.raises(Stopped) as stop:
        live(config, tmp_path / "run", tracker)
    assert (stop.value.number, tracker.updates) == (number, 6)
    assert received() == 0
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert json.loads((newest / "state.json").read_text())["trained"] is False
    goes_on(config, tmp_path / "run", whole, 6)


@pytest.mark.parametrize(("phase", "nth"), [("saved", 1), ("scoring", 2), ("fisher", 2)])
def test_a_signal_may_come_at_any_point(
    config: RunConfig, whole: Outcome, tmp_path: Path, phase: str, nth: int
) -> None:
    """The run stops after the update, or between two steps of what ends a task or scores it, which
    is repeated from the last checkpoint."""
    passed: list[str] = []

    def listen(point: Point) -> None:
        passed.append(point.phase)
        if point.phase == phase and passed.count(phase) == nth:
            signal.raise_signal(signal.SIGTERM)

    with listening(), watched(listen), pytest.raises(Stopped):
        live(config, tmp_path / "run", Then())
    live(config, tmp_path / "run", Then())
    assert whole.differences(outcome(tmp_path / "run")) == []


class AtStart(Then):
    """Sends a signal before the first update."""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_resumed_run_can_be_stopped_while_it_repeats_its_past(
    config: RunConfig, whole: Outcome, tmp_path: Path
) -> None:
    for tracker in (Then(lambda: signal.raise_signal(signal.SIGTERM), 7), AtStart()):
        with listening(), pytest.raises(Stopped):
            live(config, tmp_path / "run", tracker)
    assert tracker.updates == 0
    goes_on(config, tmp_path / "run", whole, 7)


def test_a_second_ctrl_c_leaves_at_once_and_a_third_one_ends_the_process(
    config: RunConfig, whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it should have left")

    with listening():
        with pytest.raises(Stopped):
            live(config, tmp_path / "run", Then(twice, 6))
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)  # for the test `_exit` returns
        assert left == [128 + signal.SIGINT]
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert not {name for name in names if name.startswith("001")}  # nothing was saved for it
    live(config, tmp_path / "run", Then())
    assert whole.differences(outcome(tmp_path / "run")) == []


def test_what_a_process_was_started_deaf_to_stays_unheard() -> None:
    """That is how nohup works, and a shell that starts something in the background."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with listening():
        signal.raise_signal(signal.SIGHUP)
        assert received() == 0
        with pytest.raises(Stopped), listening():
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---- other processes and threads


def test_another_process_asks_by_a_file(
    config: RunConfig, whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to an earlier process is void."""
    monkeypatch.setattr("forever.stopping._POLL_EVERY_S", 0.0)
    tracker = Then(lambda: ask_to_stop(tmp_path / "run"), 6)
    with pytest.raises(Stopped) as stop:
        live(config, tmp_path / "run", tracker)
    assert (stop.value.number, tracker.updates) == (signal.SIGTERM, 6)
    goes_on(config, tmp_path / "run", whole, 6)


def test_a_rank_that_does_not_lead_asks_the_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues meanwhile: the leading one may wait for it in the middle of an update."""
    monkeypatch.setattr("forever.stopping._POLL_EVERY_S", 0.0)
    leader, other = (Attempt(tmp_path, rank, hang_s=0) for rank in (0, 1))
    leader.begin()
    other.begin()
    try:
        leader.pulse()
        with listening(), polling():
            signal.raise_signal(signal.SIGTERM)
            other.pulse()
        with pytest.raises(Stopped):
            leader.pulse()
    finally:
        other.end()
        leader.end()


def test_sigterm_is_heard_where_the_main_thread_is_somebody_elses(
    config: RunConfig, whole: Outcome, tmp_path: Path
) -> None:
    """As in Ray's processes, which would end there and then."""
    theirs: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: theirs.append(number))

    def notice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while not received():
            time.sleep(0.001)

    def train() -> int:
        with overhearing(), pytest.raises(Stopped) as stop:
            live(config, tmp_path / "run", Then(notice, 6))
        return stop.value.number

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train).result() == signal.SIGTERM
    assert (theirs, stopping.received()) == ([], 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert theirs == [signal.SIGTERM]  # theirs again
    goes_on(config, tmp_path / "run", whole, 6)
