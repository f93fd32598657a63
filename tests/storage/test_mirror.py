"""A run that works in a scratch folder: its mirror is at any moment something to go on from."""

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults.inject import Point, watched
from helpers import KILLED_CLOSES_NO_FILES, Outcome, execute, outcome
from stores import Clock, Store, files_of

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError
from forever.launch.copies import settle
from forever.launch.local import Placement, run_local
from forever.runs.lock import locked
from forever.stopping import Stopped
from forever.storage import copying, mirror, remote
from forever.storage.address import local_folder
from forever.storage.copying import readable
from forever.storage.mirror import Mirror

pytestmark = KILLED_CLOSES_NO_FILES
ADDRESS = "store://bucket/runs/run"
SAVED = Placement(device="cpu", checkpoint_s=0.0)  # a checkpoint after every update


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    """Scores that are not all zero, and random streams that have to be found again."""
    changes: dict[str, Any] = {"model.dropout": 0.1, "optim.lr": 0.05}
    changes["data.metrics"] = {"shape": "rouge_l", "colour": "rouge_l"}
    return small_config.override({**changes, "data.order": ["shape", "colour"]})


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run in a folder of its own, which nobody interrupts."""
    path = tmp_path_factory.mktemp("whole")
    execute(config, path / "run", checkpoint_s=0.0)
    return outcome(path / "run")


def go_on(config: RunConfig, address: str = ADDRESS) -> Path:
    """The run at an address, from where it is, to its end; its folder on this machine."""
    path = local_folder(address)
    settle(path)
    run_local(config, path, resume=True, placement=SAVED)
    return path


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The block's run is killed in this process: nothing sends the rest."""
    with monkeypatch.context() as patch:
        patch.setattr(mirror._Sender, "end", _die)
        with pytest.raises(Killed):
            yield


def _die(sender: Any, patience_s: float) -> None:
    sender.mirror.push = sender.mirror.beat = sender.mirror.release = lambda: None
    sender.over.set()
    sender.join()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[Mirror]:
    """The mirrors that were made; their threads sleep but for the end."""
    mirrors: list[Mirror] = []
    claim = Mirror.claim
    monkeypatch.setattr(mirror._Sender, "run", _only_at_the_end)
    monkeypatch.setattr(Mirror, "claim", lambda self: (mirrors.append(self), claim(self))[1])
    return mirrors


def _only_at_the_end(sender: Any) -> None:
    sender.over.wait()
    sender.mirror.push()
    sender.mirror.release()


def test_a_run_with_a_mirror_is_one_without(
    config: RunConfig, whole: Outcome, store: Any, quick: None, tmp_path: Path
) -> None:
    path = go_on(config)
    there = store.folder / "bucket/runs/run"
    assert whole.differences(outcome(path)) == []
    assert whole.differences(outcome(there)) == []
    # Of what is sent only the weights that nobody reads are gone here.
    checkpoints = {name for name in files_of(there) if name.startswith("checkpoints/")}
    assert len(checkpoints) == 6
    assert files_of(path).keys() == files_of(there).keys() - checkpoints


def test_any_moment_of_a_mirror_is_one_to_go_on_from(
    config: RunConfig,
    whole: Outcome,
    store: Any,
    by_hand: list[Mirror],
    machine: Callable[[int], None],
    tmp_path: Path,
) -> None:
    """A copy of the storage is made between two requests, and another machine goes on with it."""
    copies: list[Path] = []

    def copy(verb: str, name: str) -> None:
        if verb in ("write", "upload", "delete"):
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(store.folder, copies[-1])

    def send(point: Point) -> None:
        if by_hand and point.phase in ("task", "replay", "stage", "answers", "saved", "result"):
            by_hand[-1].push()

    store.before = copy
    with watched(send):
        go_on(config)
    store.before = lambda verb, name: None
    assert len(copies) > 60
    for number, one in enumerate(copies[:: len(copies) // 7]):
        shutil.rmtree(store.folder)
        one.rename(store.folder)
        machine(10 + number)
        assert whole.differences(outcome(go_on_at_once(config))) == [], one.name


def go_on_at_once(config: RunConfig) -> Path:
    """As `go_on`, when it is known that whoever held the mirror is dead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "EVERY_S", 0.0)
        return go_on(config)


def test_a_killed_run_goes_on_on_another_machine_and_not_from_what_is_older(
    config: RunConfig,
    whole: Outcome,
    store: Any,
    by_hand: list[Mirror],
    machine: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Machine 1 dies in its second task; machine 2 goes on from what was sent; then 1 comes back
    with what it never sent, and takes what 2 made of it."""

    passed: list[Point] = []

    def die(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            passed.append(point)
            if len(passed) == 1:
                by_hand[-1].push()
            if len(passed) == 3:
                raise Killed

    with watched(die), dying(monkeypatch):
        go_on(config)
    ahead = max((local_folder(ADDRESS) / "checkpoints").iterdir()).name
    sent = max((store.folder / "bucket/runs/run/checkpoints").iterdir()).name
    assert sent < ahead
    machine(2)
    monkeypatch.setattr(mirror, "EVERY_S", 0.01)
    two = go_on(config)
    assert "was held by process" in capsys.readouterr().err
    assert whole.differences(outcome(two)) == []
    machine(1)
    one = go_on(config)
    assert whole.differences(outcome(one)) == []
    weights = {name for name in files_of(one) if not readable(name)}
    assert files_of(one).keys() - weights == files_of(two).keys()


def test_the_same_machine_goes_on_with_what_was_never_sent(
    config: RunConfig, whole: Outcome, store: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scratch is newer than the mirror, which has nothing of the second task."""

    passed: list[Point] = []

    def die(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            store.before = store.away
            passed.append(point)
            if len(passed) == 3:
                raise Killed

    with watched(die), dying(monkeypatch):
        go_on(config)
    store.before = lambda verb, name: None
    trained: list[Point] = []
    with watched(trained.append):
        path = go_on(config)
    assert not {*trained} & {*passed[:2]}
    assert whole.differences(outcome(path)) == []


# ---- storage that is away


def test_lost_storage_costs_no_data_and_holds_no_run(
    config: RunConfig, whole: Outcome, store: Any, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes away in the first task and comes back in the second."""
    failed = threading.Event()

    def fail(verb: str, name: str) -> None:
        if threading.current_thread().name == "mirror":  # the heart says nothing of it
            failed.set()
        store.away(verb, name)

    def switch(point: Point) -> None:
        if (point.phase, point.task) == ("task", 0):
            store.before = fail
        if (point.phase, point.task) == ("task", 1):
            assert failed.wait(60)
            store.before = lambda verb, name: None

    with watched(switch):
        path = go_on(config)
    told = capsys.readouterr().err
    assert f"{ADDRESS} takes nothing (AWS Error NETWORK_CONNECTION: nobody answers); it is" in told
    assert f"all is kept in {path}\n" in told
    assert f"{ADDRESS} answers again and has everything\n" in told
    assert whole.differences(outcome(store.folder / "bucket/runs/run")) == []


def test_ten_minutes_without_storage_cost_no_data(
    config: RunConfig,
    whole: Outcome,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is away from the first update on. The run trains to its end and then waits, for less than
    it would."""
    clock, away_s, tries = Clock(), 600.0, list[float]()
    monkeypatch.setattr(mirror, "Event", clock.event)
    monkeypatch.setattr(mirror, "time", SimpleNamespace(sleep=clock.sleep))

    def fail(verb: str, name: str) -> None:
        if clock.now < away_s:
            if threading.current_thread().name == "mirror":
                tries.append(clock.now)
            store.away(verb, name)

    def switch(point: Point) -> None:
        store.before = fail
        if (point.phase, point.task) == ("task", 1) and not clock.until:
            clock.let_go(until=500, reached=460)
        if point.phase == "result":
            assert clock.now < away_s  # all is trained and scored while nobody answers

    with watched(switch):
        path = go_on(config)
    told = capsys.readouterr().err
    assert told.count("takes nothing") == told.count("answers again and has everything") == 1
    mid_run = [moment for moment in tries if moment <= 500]
    assert mid_run[-1] >= 460
    assert max(after - before for before, after in pairwise(tries)) <= 30
    assert away_s <= clock.now < away_s + 30 < mirror.PATIENCE_S
    assert whole.differences(outcome(path)) == []
    assert whole.differences(outcome(store.folder / "bucket/runs/run")) == []


def test_storage_that_stays_away_leaves_all_in_scratch(
    config: RunConfig,
    whole: Outcome,
    store: Any,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The end waits for a while, says what for, and names the folder; the next call sends it."""
    monkeypatch.setattr(mirror, "PATIENCE_S", 0.3)

    def switch(point: Point) -> None:
        if point.phase == "result":
            store.before = store.away

    path = local_folder(ADDRESS)
    message = f"{ADDRESS} has not everything .* all is in {path}, and the same command sends it"
    with watched(switch), pytest.raises(WriteError, match=message):
        go_on(config)
    assert f"waiting until {ADDRESS} has the rest" in capsys.readouterr().err
    assert not (store.folder / "bucket/runs/run/result.json").exists()
    for thread in threading.enumerate():
        if thread.name in ("mirror", "heart"):
            thread.join(60)  # it tries no more
    store.before = lambda verb, name: None
    settle(path)
    assert whole.differences(outcome(store.folder / "bucket/runs/run")) == []
    assert not (path / "checkpoints").exists()


def test_storage_that_is_needed_now_is_named(config: RunConfig, store: Any, quick: None) -> None:
    """Nothing is trained, and nothing is there that could look like a run."""
    store.before = store.away
    with pytest.raises(InputError, match=r"cannot be used \(AWS Error NETWORK.*when it answers"):
        go_on(config)
    path = local_folder(ADDRESS)
    with pytest.raises(InputError, match="cannot be used"):
        run_local(config, path, placement=SAVED)
    assert files_of(path) == {}


def test_a_full_disk_here_is_named_and_ends_no_run(
    config: RunConfig,
    whole: Outcome,
    store: Any,
    quick: None,
    machine: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread's own notes have no room for a while; a copy that has none is refused."""
    writes = iter(range(6))
    write = mirror.Local.write

    def full(self: Any) -> None:
        if 2 <= next(writes, 9) < 6:
            raise WriteError(f"{self.folder} cannot be written (No space left on device)")
        write(self)

    with monkeypatch.context() as patch:
        patch.setattr(mirror.Local, "write", full)
        assert whole.differences(outcome(go_on(config))) == []
    machine(2)

    def no_room(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote, "make_folder", no_room)
    with pytest.raises(WriteError, match=r"No space left on device.*make room there"):
        settle(local_folder(ADDRESS))


# ---- several machines


def test_a_mirror_has_one_writer(
    config: RunConfig,
    store: Any,
    machine: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While a machine works on it, and says so, another one is refused with its name."""
    first = Mirror(local_folder(ADDRESS), mirror.address_of(local_folder(ADDRESS)), copying.of_run)
    with locked(first.folder):
        first.claim()
        machine(2)
        monkeypatch.setattr(mirror, "WAITS_S", 0.0)
        monkeypatch.setattr(mirror.time, "sleep", lambda seconds: first.beat())
        message = re.escape(f"{ADDRESS} is held by {first.holder}, which wrote there less than")
        with pytest.raises(InputError, match=message):
            run_local(config, local_folder(ADDRESS), placement=SAVED)
        assert not files_of(local_folder(ADDRESS))
        first.push()
        first.release()
    capsys.readouterr()
    run_local(config, local_folder(ADDRESS), placement=SAVED)
    assert capsys.readouterr().err == ""


def test_a_run_that_was_taken_over_leaves_and_changes_nothing(
    config: RunConfig,
    whole: Outcome,
    store: Any,
    machine: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As one that was cut off from the storage for long, while another machine went on."""
    made, claim = list[Mirror](), Mirror.claim
    monkeypatch.setattr(mirror, "EVERY_S", 0.05)
    monkeypatch.setattr(Mirror, "claim", lambda self: (made.append(self), claim(self))[1])
    taken = threading.Event()

    def take(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1) and not taken.is_set():
            [first] = made
            with first._one_at_a_time:  # not between its look and its sign of life
                there = store.folder / "bucket/runs/run/.mirror.json"
                there.write_text('{"identity": "other", "count": 1, "holder": "process 7 on far"}')
            taken.set()
        if taken.is_set() and point.phase == "task":
            for thread in threading.enumerate():
                if thread.name == "mirror":
                    thread.join(60)

    # It looks every half second whether it shall leave, and may be over by then.
    with watched(take), pytest.raises((Stopped, WriteError)) as left:
        go_on(config)
    told = capsys.readouterr().err
    assert f"{ADDRESS} was taken over by process 7 on far; leaving" in told
    assert "what was done here since is in" in f"{told} {left.value}"
    assert not (store.folder / "bucket/runs/run/result.json").exists()
    assert '"other"' in (store.folder / "bucket/runs/run/.mirror.json").read_text()


def test_a_run_is_asked_through_its_mirror_to_save(
    config: RunConfig,
    whole: Outcome,
    store: Any,
    quick: None,
    machine: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from forever.launch.copies import ask_to_save, held
    from forever.storage.address import SCRATCH

    def ask(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            with pytest.MonkeyPatch.context() as patch:  # a driver on another machine
                patch.setenv(SCRATCH, str(store.folder.parent / "machine-9"))
                folder = local_folder(ADDRESS)
                assert held(folder)
                ask_to_save(folder)
            request = path / ".stop"
            for _ in range(1000):
                if request.exists():
                    break
                threading.Event().wait(0.02)

    path = local_folder(ADDRESS)
    monkeypatch.setattr("forever.attempt._LOOK_EVERY_S", 0.0)  # the run would be over by then
    with watched(ask), pytest.raises(Stopped):
        go_on(config)
    machine(9)
    assert not held(local_folder(ADDRESS))
    machine(2)
    assert whole.differences(outcome(go_on(config))) == []


def test_a_reader_takes_no_weights_and_a_second_look_nothing(
    config: RunConfig, whole: Outcome, store: Any, quick: None, machine: Callable[[int], None]
) -> None:
    go_on(config)
    machine(2)
    path = local_folder(ADDRESS)
    settle(path, readable)
    assert whole.differences(outcome(path)) == []
    assert not (path / "checkpoints").exists()
    store.calls.clear()
    settle(path, readable)
    assert not [call for call in store.calls if call[0] not in ("read", "list")]


def test_files_that_somebody_put_there_are_a_run(
    config: RunConfig, whole: Outcome, store: Any, tmp_path: Path
) -> None:
    """As by `aws s3 cp`."""
    execute(config, tmp_path / "elsewhere")
    there = store.folder / "bucket/runs/run"
    shutil.copytree(tmp_path / "elsewhere", there, ignore=shutil.ignore_patterns(".*"))
    path = local_folder(ADDRESS)
    settle(path)
    assert files_of(path) == files_of(there)


def test_a_planted_fork_is_sent_as_a_whole(
    config: RunConfig, store: Any, quick: None, tmp_path: Path
) -> None:
    """What is only here is not taken for an old copy of a mirror that has not begun."""
    path = local_folder(ADDRESS)
    (path / "predictions").mkdir(parents=True)
    (path / "fork.json").write_text("{}")
    settle(path)
    assert files_of(path) == {"fork.json": b"{}"}
