"""A run whose mirror several machines know: it has one writer, who may die, be asked or be lost."""

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from faults.inject import Point, watched
from helpers import KILLED_CLOSES_NO_FILES, Outcome, execute, outcome, wait_until
from made_up import base_run, make_up
from stores import ADDRESS, SAVED, Become, Killed, Store, dying, files_of, go_on

import forever
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError
from forever.launch.copies import ask_to_save, follow, held, settle
from forever.launch.local import run_local
from forever.runs.lock import locked
from forever.stopping import Stopped
from forever.storage import mirror
from forever.storage.address import address_of, local_folder
from forever.storage.copying import of_run, of_sweep, readable
from forever.storage.mirror import Mirror, mirrored
from forever.sweeps.rounds import Limits, first_round, read_stopping, rounds
from forever.sweeps.sweep import Sweep

pytestmark = [*KILLED_CLOSES_NO_FILES, pytest.mark.usefixtures("quick")]


@pytest.fixture
def mine(store: Store) -> Mirror:
    """The mirror of this machine's folder, which has one file."""
    folder = local_folder(ADDRESS)
    address = address_of(folder)
    assert address is not None
    folder.mkdir(parents=True)
    (folder / "notes.json").write_text("mine")
    return Mirror(folder, address, of_run)


def take_over(store: Store) -> None:
    """Another machine takes the mirror, and changes a file there."""
    other = '{"identity": "other", "count": 1, "holder": "process 7 on far"}'
    (store.run / ".mirror.json").write_text(other)
    (store.run / "notes.json").write_text("theirs")


def test_a_killed_run_goes_on_on_another_machine_and_not_from_what_is_older(
    config: RunConfig,
    whole: Outcome,
    store: Store,
    by_hand: list[Mirror],
    machine: Become,
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

    with watched(die), dying():
        go_on(config)
    ahead = max((local_folder(ADDRESS) / "checkpoints").iterdir()).name
    sent = max((store.run / "checkpoints").iterdir()).name
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


def test_a_mirror_has_one_writer(
    config: RunConfig,
    mine: Mirror,
    machine: Become,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While a machine works on it, and says so, another one is refused with its name."""
    with locked(mine.folder):
        mine.claim()
        machine(2)
        monkeypatch.setattr(mirror, "EVERY_S", 5.0)  # an end that takes longer is told
        monkeypatch.setattr(mirror, "WAITS_S", 0.0)
        monkeypatch.setattr(mirror.time, "sleep", lambda seconds: mine.beat())
        message = re.escape(f"{ADDRESS} is held by {mine.holder}, which wrote there less than")
        with pytest.raises(InputError, match=message):
            run_local(config, local_folder(ADDRESS), placement=SAVED)
        assert not files_of(local_folder(ADDRESS))
        mine.push()
        mine.release()
    capsys.readouterr()
    run_local(config, local_folder(ADDRESS), placement=SAVED)
    assert capsys.readouterr().err == ""


def test_a_run_that_was_taken_over_leaves_and_changes_nothing(
    config: RunConfig,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As one that was cut off from the storage for long, while another machine went on."""
    made, claim = list[Mirror](), Mirror.claim
    monkeypatch.setattr(Mirror, "claim", lambda self: (made.append(self), claim(self))[1])
    taken = threading.Event()

    def take(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1) and not taken.is_set():
            with made[0]._one_at_a_time:  # not between its look and its sign of life
                take_over(store)
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
    assert not (store.run / "result.json").exists()
    assert '"other"' in (store.run / ".mirror.json").read_text()


def test_a_mirror_that_could_not_be_released_is_not_written_over(
    store: Store, mine: Mirror
) -> None:
    """The storage goes away at the last moment; when it is back somebody else has the mirror."""
    mine.claim()
    mine.push()
    store.before = store.away
    with pytest.raises(OSError, match="nobody answers"):
        mine.release()
    store.answer()
    take_over(store)
    (mine.folder / "notes.json").write_text("mine, later")
    mine.push()
    mine.release()
    assert mine.lost == "process 7 on far"
    assert (store.run / "notes.json").read_text() == "theirs"
    assert '"other"' in (store.run / ".mirror.json").read_text()


def test_a_copy_that_was_cut_off_holds_for_nothing(store: Store, mine: Mirror) -> None:
    """Half of it is what the other machine sent: it must not pass for what was made here."""
    mine.claim()
    mine.push()
    take_over(store)
    store.before = lambda verb, name: store.away(verb, name) if verb == "download" else None
    with pytest.raises(InputError, match="nobody answers"):
        follow(mine.folder)
    (store.run / ".mirror.json").unlink()
    (store.run / "config.yaml").touch()
    store.answer()
    settle(mine.folder)
    assert (mine.folder / "notes.json").read_text() == "theirs"


def test_what_goes_away_while_it_is_copied_is_looked_for_again(store: Store, mine: Mirror) -> None:
    """As the checkpoint that the writer has replaced meanwhile."""
    mine.claim()
    mine.push()
    take_over(store)
    (store.run / "old.json").touch()

    def replace(verb: str, name: str) -> None:
        if verb == "download":
            (store.run / "old.json").unlink(missing_ok=True)

    store.before = replace
    follow(mine.folder)
    assert files_of(mine.folder) == {"notes.json": b"theirs"}


def test_a_run_is_asked_through_its_mirror_to_save(
    config: RunConfig,
    whole: Outcome,
    store: Store,
    machine: Become,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = local_folder(ADDRESS)

    def ask(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            machine(9)  # a driver
            assert held(local_folder(ADDRESS))
            ask_to_save(local_folder(ADDRESS))
            machine(1)
            wait_until((path / ".stop").exists)

    monkeypatch.setattr("forever.stopping._POLL_EVERY_S", 0.0)  # the run would be over by then
    with watched(ask), pytest.raises(Stopped):
        go_on(config)
    machine(9)
    assert not held(local_folder(ADDRESS))
    machine(2)
    assert whole.differences(outcome(go_on(config))) == []


def test_a_reader_takes_no_weights_and_a_second_look_nothing(
    config: RunConfig, whole: Outcome, store: Store, machine: Become
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
    config: RunConfig, whole: Outcome, store: Store, tmp_path: Path
) -> None:
    """As by `aws s3 cp`."""
    execute(config, tmp_path / "elsewhere")
    there = store.run
    shutil.copytree(tmp_path / "elsewhere", there, ignore=shutil.ignore_patterns(".*"))
    path = local_folder(ADDRESS)
    settle(path)
    assert files_of(path) == files_of(there)


def test_a_planted_fork_is_sent_as_a_whole(config: RunConfig, store: Store, tmp_path: Path) -> None:
    """What is only here is not taken for an old copy of a mirror that has not begun."""
    path = local_folder(ADDRESS)
    (path / "predictions").mkdir(parents=True)
    (path / "fork.json").write_text("{}")
    settle(path)
    assert files_of(path) == {"fork.json": b"{}"}


def test_the_rule_of_a_sweep_in_rounds_is_there_whoever_wrote_last(
    store: Store, machine: Become
) -> None:
    """It is written where a mirror that lacks it, or has an older one, takes nothing away."""
    sweep = Sweep("days", base_run(), {"base": {}, "every": {"method.days": "fixed_interval"}})

    def work(folder: Path) -> None:
        with locked(folder), mirrored(folder, chosen=of_sweep):
            sweep.write_manifest(folder)

    def rule_of(points: float | None) -> tuple[Any, Any]:
        folder = local_folder("store://bucket/runs/days")
        settle(folder, of_sweep)
        if points is not None:
            parts = rounds(first_round(sweep), folder, Limits(points), lambda runs: 1, print)
            next(parts)  # and the process is killed in its first round
        work(folder)
        there = store.folder / "bucket/runs/days/rounds.json"
        return read_stopping(folder), json.loads(there.read_bytes()) if there.is_file() else None

    assert rule_of(None) == (None, None)
    for number, points in ((2, 2.0), (3, 1.0), (2, None)):
        machine(number)
        here, there = rule_of(points)
        assert here == there
        assert here["points"] == (points or 1.0)


def test_a_report_that_python_writes_reaches_the_storage(store: Store, tmp_path: Path) -> None:
    make_up(tmp_path / "made", Sweep("days", base_run(), {"base": {}}, (0,)))
    place = store.folder / "bucket/runs/days"
    shutil.copytree(tmp_path / "made", place)
    result = forever.load("store://bucket/runs/days")
    assert isinstance(result, forever.SweepResult)
    page = result.write_report()
    written = files_of(place)
    assert written["report.html"] == page.read_bytes()
    assert "report.json" in written
    assert any(name.startswith("figures/") for name in written)
    forever.load("store://bucket/runs/days")
    assert page.is_file()
