"""A run that works in a scratch folder: its mirror is at any moment something to go on from."""

import shutil
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults.inject import Point, watched
from helpers import KILLED_CLOSES_NO_FILES, Outcome, outcome
from stores import ADDRESS, SAVED, Become, Clock, Killed, Store, dying, files_of, go_on

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError
from forever.launch.copies import settle
from forever.launch.local import run_local
from forever.storage import copying, mirror, remote
from forever.storage.address import Address, local_folder
from forever.storage.mirror import Mirror, mirrored

pytestmark = [*KILLED_CLOSES_NO_FILES, pytest.mark.usefixtures("quick")]


def test_a_run_with_a_mirror_is_one_without(
    config: RunConfig, whole: Outcome, store: Store, tmp_path: Path
) -> None:
    there, sent = store.run, threading.Event()

    def see(verb: str, name: str) -> None:
        if (verb, name.rpartition("/")[2]) == ("upload", "manifest.json"):
            sent.set()

    def wait(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            assert sent.wait(60)  # or else the run may be over before the mirror's second look

    store.before = see
    with watched(wait):
        path = go_on(config)
    assert whole.differences(outcome(path)) == []
    assert whole.differences(outcome(there)) == []
    # Of what is sent only the weights that nobody reads are gone here.
    checkpoints = {name for name in files_of(there) if name.startswith("checkpoints/")}
    assert len(checkpoints) == 6
    assert files_of(path).keys() == files_of(there).keys() - checkpoints


def test_any_moment_of_a_mirror_is_one_to_go_on_from(
    config: RunConfig,
    whole: Outcome,
    store: Store,
    by_hand: list[Mirror],
    machine: Become,
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
    store.answer()
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


def test_the_same_machine_goes_on_with_what_was_never_sent(
    config: RunConfig, whole: Outcome, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scratch is newer than the mirror, which has nothing of the second task."""

    passed: list[Point] = []

    def die(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            store.before = store.away
            passed.append(point)
            if len(passed) == 3:
                raise Killed

    with watched(die), dying():
        go_on(config)
    store.answer()
    trained: list[Point] = []
    with watched(trained.append):
        path = go_on(config)
    assert not {*trained} & {*passed[:2]}
    assert whole.differences(outcome(path)) == []


# ---- storage that is away


def test_lost_storage_costs_no_data_and_holds_no_run(
    config: RunConfig, whole: Outcome, store: Store, capsys: pytest.CaptureFixture[str]
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
            store.answer()

    with watched(switch):
        path = go_on(config)
    told = capsys.readouterr().err
    assert f"{ADDRESS} takes nothing (AWS Error NETWORK_CONNECTION: nobody answers); it is" in told
    assert f"all is kept in {path}\n" in told
    assert f"{ADDRESS} answers again and has everything\n" in told
    assert whole.differences(outcome(store.run)) == []


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
    assert whole.differences(outcome(store.run)) == []


def test_storage_that_stays_away_leaves_all_in_scratch(
    config: RunConfig,
    whole: Outcome,
    store: Store,
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
    assert not (store.run / "result.json").exists()
    for thread in threading.enumerate():
        if thread.name in ("mirror", "heart"):
            thread.join(60)  # it tries no more
    store.answer()
    settle(path)
    assert whole.differences(outcome(store.run)) == []
    assert not (path / "checkpoints").exists()


def test_storage_that_is_needed_now_is_named(config: RunConfig, store: Store) -> None:
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
    store: Store,
    machine: Become,
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


def test_a_thread_that_fails_in_its_own_way_is_no_mirror_that_has_everything(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library raises what it likes, as for a name that no address can have."""

    def refuse(self: Mirror) -> None:
        raise ValueError("surrogates not allowed")

    monkeypatch.setattr(Mirror, "push", refuse)
    monkeypatch.setattr(mirror, "PATIENCE_S", 0.3)
    with (
        pytest.raises(WriteError, match=r"has not everything \(surrogates not allowed\)"),
        mirrored(local_folder(ADDRESS)),
    ):
        pass


def test_a_checkpoint_that_is_replaced_while_it_is_sent_is_sent_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that went on from an older one comes past the same name."""
    folder = local_folder(ADDRESS)
    place = folder / "checkpoints/000-00000001"
    place.mkdir(parents=True)
    for name in ("state.json", "manifest.json"):
        (place / name).write_text("old")
    list_files = copying.local_files

    def replace(*given: Any) -> Any:
        for path in place.iterdir():
            path.unlink()
            path.write_text("another")
        return list_files(*given)

    sent: dict[str, remote.Stamp] = {}
    there = remote.Remote(Address("store", ("bucket", "runs", "run")))
    with monkeypatch.context() as patch:
        patch.setattr(copying, "local_files", replace)
        copying.push(folder, there, copying.of_run, sent)
    copying.push(folder, there, copying.of_run, sent)
    assert files_of(store.run) == files_of(folder)
