"""A run that is uploaded while it trains can be resumed anywhere, and one machine has it."""

import _thread
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.inject import Point, watched
from helpers import Outcome, outcome, wait_until
from made_up import base_run
from stores import BUCKET, OUT, SAVED, Become, Server, beat_until

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError
from forever.launch.copies import download, follow
from forever.launch.local import run_local
from forever.runs.lock import locked
from forever.stopping import Stopped
from forever.storage import remote, store
from forever.storage.address import SCRATCH, address_of, local_folder
from forever.storage.remote import Remote
from forever.storage.store import UNSENT, Store, uploading
from forever.sweeps.rounds import Limits, first_round, read_stopping, rounds
from forever.sweeps.sweep import Sweep

pytestmark = pytest.mark.usefixtures("quick")
TAKEN_OVER = 7  # the exit code of a process whose run another machine has
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["forever.training.loop", "peft", "transformers.models.qwen3.modeling_qwen3"]
)


def downloaded(address: str, weights: bool = False) -> Path:
    """The folder at an address on this machine."""
    path = local_folder(address)
    download(path, weights)
    return path


def store_at(address: str) -> Store:
    folder = local_folder(address)
    found = address_of(folder)
    assert found is not None
    return Store(folder, found)


# ---- a run from beginning to end


def test_a_run_in_storage_is_one_in_a_folder_and_is_downloaded_once(
    config: RunConfig, whole: Outcome, s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{OUT}/plain"
    path = local_folder(address)
    run_local(config, path, placement=SAVED)
    assert whole.differences(outcome(path)) == []
    assert not (path / "checkpoints").exists()  # room for the next run
    pointer = s3.read(f"{address}/.latest").decode()
    objects = [key for key in s3.keys("runs/plain/checkpoints/") if not key.endswith("/")]
    assert {key.split("/")[3] for key in objects} == {pointer}

    names: list[str] = []

    def noted(self: Remote, name: str, *rest: Any, do: Any = Remote.download) -> None:
        names.append(name)
        do(self, name, *rest)

    monkeypatch.setattr(Remote, "download", noted)
    downloaded(address)
    assert names == []  # it was written here
    machine(2)
    assert whole.differences(outcome(downloaded(address))) == []
    assert not [name for name in names if name.startswith("checkpoints/")]
    names.clear()
    downloaded(address)
    assert names == []


# ---- processes that die, machines that are lost


def live(config: RunConfig, address: str, scratch: Path, environment: dict[str, str]) -> None:
    """A process that trains a run, or resumes it."""
    # The server of processes may be older than that of the storage.
    os.environ.update(environment, **{SCRATCH: str(scratch)})
    torch.set_num_threads(1)
    store.HEARTBEAT_S, store.CONFIRM_S = 0.3, 0.05
    path = local_folder(address)
    try:
        download(path)
        run_local(config, path, resume=True, placement=SAVED)
    except (Stopped, WriteError):
        sys.exit(TAKEN_OVER)


def start(config: RunConfig, address: str, scratch: Path) -> Any:
    process = PROCESSES.Process(target=live, args=(config, address, scratch, {**os.environ}))
    process.start()
    return process


def updates(address: str, scratch: Path) -> int:
    """How many updates a machine's folder has."""
    path = scratch / "storage/s3" / address.removeprefix("s3://") / "steps.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.mark.slow
def test_kills_at_random_and_lost_machines_cost_no_bit(
    config: RunConfig, whole: Outcome, s3: Server, machine: Become, tmp_path: Path
) -> None:
    """Every other time the machine is lost, too, and another one resumes what was uploaded."""
    kills, number, chance = 0, 0, random.Random(0)
    while kills < 10:
        number += 1
        address, scratch, finished = f"{OUT}/killed-{number}", tmp_path / f"{number}", False
        while not finished:
            before = updates(address, scratch)
            process = start(config, address, scratch)
            wait_until(lambda: updates(address, scratch) > before or not process.is_alive())  # noqa: B023
            process.join(chance.uniform(0, 0.6))
            if finished := not process.is_alive():
                assert process.exitcode == 0
                break
            process.kill()
            process.join()
            kills += 1
            if kills % 2:
                shutil.rmtree(scratch)
                scratch = tmp_path / f"{number}-{kills}"
        machine(100 + number)
        assert whole.differences(outcome(downloaded(address))) == []


@pytest.mark.slow
def test_of_two_machines_one_finishes_and_the_other_stops(
    config: RunConfig, whole: Outcome, s3: Server, machine: Become, tmp_path: Path
) -> None:
    """The first one is cut off for longer than its lease, and the second one takes over."""
    address, scratches = f"{OUT}/two", [tmp_path / "one", tmp_path / "two"]
    first = start(config, address, scratches[0])
    wait_until(lambda: any(key.endswith(".latest") for key in s3.keys("runs/two")))
    os.kill(first.pid, signal.SIGSTOP)
    owner = s3.owner(address)
    try:
        second = start(config, address, scratches[1])
        wait_until(lambda: s3.owner(address) != owner)
        time.sleep(0.5)  # it sees that nobody else takes the lease
    finally:
        os.kill(first.pid, signal.SIGCONT)
    # The first one, unless it was cut off in the middle of a heartbeat, which then still arrives.
    # It has a lease of 0.9 s, and what a busy machine needs to save.
    wait_until(lambda: TAKEN_OVER in (first.exitcode, second.exitcode), within_s=10)
    first.join(120)
    second.join(120)
    assert {first.exitcode, second.exitcode} == {0, TAKEN_OVER}
    assert whole.differences(outcome(downloaded(address))) == []


def test_a_run_that_was_taken_over_leaves_and_changes_nothing(
    config: RunConfig, s3: Server, machine: Become
) -> None:
    address = f"{OUT}/taken"
    kept: list[bytes] = []

    def take(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1) and not kept:
            wait_until(lambda: any(key.endswith(".latest") for key in s3.keys("runs/taken")))
            while s3.owner(address) != "far":
                s3.take_lease(address)
                time.sleep(1)  # a heartbeat, and an upload that began before
            kept.append(s3.read(f"{address}/.latest"))

    with watched(take), pytest.raises((Stopped, WriteError)):
        run_local(config, local_folder(address), placement=SAVED)
    assert s3.read(f"{address}/.latest") == kept[0]
    assert s3.owner(address) == "far"
    assert "runs/taken/result.json" not in s3.keys("runs/taken")


# ---- the lease


def test_a_holder_that_lives_keeps_its_lease(
    config: RunConfig, s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAIT_S", 1.0)
    address, over = f"{OUT}/held", threading.Event()
    holder = threading.Thread(target=beat_until, args=(over, s3, address))
    holder.start()
    try:
        wait_until(lambda: s3.keys("runs/held"))
        with pytest.raises(InputError, match="process 7 on far"):
            run_local(config, local_folder(address), placement=SAVED)
    finally:
        over.set()
        holder.join()
    assert not (local_folder(address) / "config.yaml").exists()


def test_a_lease_expires_with_its_holder(
    s3: Server, machine: Become, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a whole time-to-live without a heartbeat; of the same folder, at once."""
    s3.take_lease(f"{OUT}/dead", ttl_s=0.6)
    began = time.monotonic()
    with store_at(f"{OUT}/dead"):
        assert time.monotonic() - began >= 0.6
    assert "process 7 on far" in capsys.readouterr().err

    s3.take_lease(f"{OUT}/mine", ttl_s=1e6)
    unsent = local_folder(f"{OUT}/mine") / UNSENT
    unsent.parent.mkdir(parents=True)
    unsent.write_text("far")
    with store_at(f"{OUT}/mine") as mine:
        assert mine.owner == "far"
    assert json.loads(s3.read(f"{OUT}/mine/.lease.json"))["holder"] == ""
    assert not unsent.exists()


def test_of_two_that_take_a_lease_at_once_one_has_it(
    s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CONFIRM_S", 0.5)
    monkeypatch.setattr(store, "WAIT_S", 0.5)
    stores: list[Store] = []
    for number in (1, 2):
        machine(number)
        stores.append(store_at(f"{OUT}/both"))
    over = threading.Event()

    def work(one: Store) -> bool:
        try:
            with one:
                return over.wait(5)
        except InputError:
            over.set()
            return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(work, stores)) == [False, True]


def test_who_loses_the_lease_while_taking_it_has_the_older_work(
    s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine takes it in the same moment and finishes, before this one asks again."""
    monkeypatch.setattr(store, "CONFIRM_S", 1.0)
    address = f"{OUT}/older"
    folder = local_folder(address)
    (folder / UNSENT).parent.mkdir(parents=True)
    (folder / UNSENT).write_text("mine")
    (folder / "steps.jsonl").write_text("older")
    one = store_at(address)
    with ThreadPoolExecutor(1) as pool:
        entered = pool.submit(one.__enter__)
        wait_until(lambda: s3.keys("runs/older/.lease.json"))
        s3.write(f"{address}/steps.jsonl", b"newer")
        lease = {"owner": "far", "holder": "", "count": 9, "ttl_s": 1e6}
        s3.write(f"{address}/.lease.json", json.dumps(lease).encode())
        entered.result()
    one.finish()
    assert s3.read(f"{address}/steps.jsonl") == b"newer"
    assert (folder / "steps.jsonl").read_text() == "newer"


def test_who_lost_the_lease_asks_its_run_to_stop_until_it_has(s3: Server, machine: Become) -> None:
    """A run that begins meanwhile drops what was asked before."""
    address = f"{OUT}/lost"
    request = local_folder(address) / ".stop"
    one = store_at(address).__enter__()
    for _ in range(2):
        wait_until(lambda: s3.take_lease(address) or request.is_file())
        request.unlink()
    with pytest.raises(WriteError):
        one.finish()


def test_a_worker_that_does_not_lead_has_the_files_of_the_leader(
    s3: Server, machine: Become
) -> None:
    address = f"{OUT}/followed"
    leading = local_folder(address)
    (leading / "checkpoints/000-00000001").mkdir(parents=True)
    (leading / "checkpoints/000-00000001/state.json").write_text("{}")
    (leading / "steps.jsonl").write_text("{}\n")
    with locked(leading), uploading(leading):  # what only the leader has is uploaded first
        follow(leading)  # as a worker beside it
        machine(2)
        other = local_folder(address)
        (other / "checkpoints/000-00000009").mkdir(parents=True)
        (other / "checkpoints/000-00000009/state.json").write_text("older, and further")
        follow(other)
    assert [path.name for path in (other / "checkpoints").iterdir()] == ["000-00000001"]
    assert (other / "steps.jsonl").read_text() == "{}\n"


def test_ctrl_c_leaves_no_half_file(
    s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is uploaded before the run begins may take long."""
    path = local_folder(f"{OUT}/half")
    path.mkdir(parents=True)
    (path / "steps.jsonl").write_bytes(b"all of it")

    def interrupted(file: Any, stream: Any, size: int) -> None:
        content = file.read()
        stream.write(content[:3])
        if content == b"all of it":
            time.sleep(0.2)  # until the main thread waits
            _thread.interrupt_main()
            time.sleep(0.2)
        stream.write(content[3:])

    monkeypatch.setattr(remote, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt), store_at(f"{OUT}/half"):
        pass
    assert s3.read(f"{OUT}/half/steps.jsonl") == b"all of it"


# ---- storage that is away


@pytest.mark.parametrize("status", [0, 503])
def test_storage_that_is_away_costs_nothing(
    config: RunConfig,
    whole: Outcome,
    s3: Server,
    machine: Become,
    capsys: pytest.CaptureFixture[str],
    status: int,
) -> None:
    """From the first task until everything is trained and scored; then all arrives."""
    address = f"{OUT}/away-{status}"
    failed = threading.Event()

    def switch(point: Point) -> None:
        if point.phase == "task" and not failed.is_set():
            failed.set()
            s3.fail = status
            if not status:
                s3.down()
        if point.phase == "result":
            time.sleep(1)  # which is long for heartbeats of 0.1 s
            s3.fail = 0
            s3.up()

    try:
        with watched(switch):
            run_local(config, local_folder(address), placement=SAVED)
    finally:
        s3.fail = 0
        s3.up()
    assert capsys.readouterr().err.count(f"{address} fails (") <= 1
    machine(2)
    assert whole.differences(outcome(downloaded(address))) == []


def test_storage_that_stays_away_leaves_all_in_the_folder(
    config: RunConfig, whole: Outcome, s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end waits for a while and names the folder; the next command uploads it."""
    monkeypatch.setattr(store, "FINISH_S", 0.3)
    address = f"{OUT}/stays"
    path = local_folder(address)

    def leave(point: Point) -> None:
        if point.phase == "result":
            s3.fail = 503

    with watched(leave), pytest.raises(WriteError, match=str(path)):
        run_local(config, path, placement=SAVED)
    s3.fail = 0
    assert "runs/stays/result.json" not in s3.keys("runs/stays")
    downloaded(address)
    assert not (path / "checkpoints").exists()
    machine(2)
    assert whole.differences(outcome(downloaded(address))) == []


def test_a_fork_that_has_hardly_begun_is_left_to_its_command(s3: Server, machine: Become) -> None:
    """Readers neither upload a part of it nor take it for an older copy."""
    folder = local_folder(f"{OUT}/fork")
    for name in (UNSENT, "fork.json", "checkpoints/000-00000000/state.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    downloaded(f"{OUT}/fork")
    assert (folder / "checkpoints/000-00000000/state.json").is_file()
    assert s3.keys("runs/fork") == []


def test_a_full_disk_here_is_named(
    s3: Server, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    s3.write(f"{OUT}/full/config.yaml", b"x")
    monkeypatch.setattr(remote, "make_folder", no_room)
    with pytest.raises(WriteError, match="No space left on device"):
        downloaded(f"{OUT}/full")


# ---- sweeps


def test_the_rule_of_a_sweep_in_rounds_is_there_whoever_wrote_last(
    s3: Server, machine: Become
) -> None:
    """It is written where a folder that lacks it, or has an older one, takes nothing away."""
    sweep = Sweep("days", base_run(), {"base": {}, "every": {"method.days": "fixed_interval"}})

    def rule_of(points: float | None) -> float | None:
        folder = downloaded(f"s3://{BUCKET}/rounds/days")
        if points is not None:
            parts = rounds(first_round(sweep), folder, Limits(points), lambda runs: 1, print)
            next(parts)  # and the process is killed in its first round
        with locked(folder), uploading(folder, is_sweep=True):
            sweep.write_manifest(folder)
        rule = read_stopping(folder)
        if rule is None:
            return None
        assert json.loads(s3.read(f"s3://{BUCKET}/rounds/days/rounds.json")) == rule
        return rule["points"]

    assert rule_of(None) is None
    for number, points in ((2, 2.0), (3, 1.0), (2, None)):
        machine(number)
        time.sleep(1.1)  # S3 tells contents of one size apart by whole seconds
        assert rule_of(points) == (points or 1.0)
