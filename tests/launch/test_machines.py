"""Clusters of several machines, which are pretended here: each has a raylet and GPUs of its own.

Machines come and go while runs train. What is computed is the same.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray")
import torch
import yaml
from faults.inject import environment
from helpers import Outcome, outcome, wait_until
from machines import Head, cut_power, free_ports, head_node, worker_node
from marks import ON_RAY
from ray_commands import FOREVER, RAY, begin, newest_checkpoint, saved_in_the_middle, sweep_command

from forever.config.run import RunConfig
from forever.launch.cluster import START_TIMEOUT
from forever.launch.train import _FAILURES
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress

pytestmark = [*ON_RAY, pytest.mark.slow]


@pytest.fixture
def faults(private_ray: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of faults of all machines that are started from now on (see faults/inject.py)."""
    file = private_ray / "faults"
    file.write_text("")
    for name, value in environment(file).items():
        monkeypatch.setenv(name, value)
    yield file
    file.unlink()


@contextmanager
def machines(
    folder: Path, gpus: int, monkeypatch: pytest.MonkeyPatch, later_gpus: int = 0
) -> Iterator[Head]:
    """A head with so many GPUs, which this process and the machines that come know."""
    ports = free_ports(6)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", f"http://127.0.0.1:{ports[1]}")
    resources = json.dumps({"trial_slot": 2, "later_gpus": later_gpus})
    flags = ("--num-cpus=2", f"--num-gpus={gpus}", f"--resources={resources}")
    with head_node(folder, ports, *flags) as head:
        head.await_nodes(1)
        yield head


def places(head: Head, class_name: str) -> list[str]:
    """The machines on which actors of a class live."""
    actors = head.states("actors")
    return [
        each["node_id"]
        for each in actors
        if each["class_name"] == class_name and each["state"] == "ALIVE"
    ]


def await_file(path: Path, driver: "subprocess.Popen[str]", patience_s: float = 180.0) -> None:
    """Wait until a file is there, as long as the command lives that leads to it."""
    give_up = time.monotonic() + patience_s
    while not path.exists():
        if driver.poll() is not None:
            pytest.fail("\n".join(driver.communicate()))
        assert time.monotonic() < give_up, f"{path} did not come"
        time.sleep(0.05)


def end(driver: "subprocess.Popen[str]") -> None:
    """Kill a command that a test may have left running, with all that it started."""
    if driver.poll() is None:
        cut_power(driver.pid)
        driver.communicate()


# Ray Train checks for more room once a minute, for which no test has time.
DRIVER = """
from forever.cli import start
from forever.launch import train
train._RESIZE_EVERY_S = 1.0
start.main()
"""
HURRY = {START_TIMEOUT: "2"}  # a group that does not start is given up after so many seconds
NOTICE_S = 60  # between a notice and the end of a machine


@pytest.mark.parametrize("goes", ["with a notice", "without notice"])
def test_workers_come_and_go_with_their_machines(
    faults: Path,
    private_ray: Path,
    tmp_path: Path,
    base_config: RunConfig,
    alone: Callable[[RunConfig], Outcome],
    monkeypatch: pytest.MonkeyPatch,
    goes: str,
) -> None:
    """A run begins with two workers, has three when a machine comes in its second task, and ends
    with two when that goes in the third. It ends as a run of one worker does. After a notice it
    resumes from where that found it, though no other checkpoint within a task is made."""
    comes, leaves = tmp_path / "machine comes", tmp_path / "machine leaves"
    resumed, noticed = tmp_path / "run is resumed", goes == "with a notice"
    faults.write_text(
        f"hold phase=task task=1 rank=0 nth=3 once='{comes}'\n"
        f"hold phase=task task=2 rank=0 nth=3 once='{leaves}'"
    )
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base_config.model_dump(mode="json")))
    command = [sys.executable, "-c", DRIVER, "run", "base.yaml", "--mlflow", "off"]
    command += ["--workers", "2-3", "--gpus-per-run", "1", "--device", "cpu"]
    command += ["--checkpoint-every", "1000000" if noticed else "0"]
    with machines(private_ray, 2, monkeypatch) as head, ExitStack() as others:
        address = {"RAY_ADDRESS": head.environment["ADDRESS"], "RAY_AUTH_MODE": "token"}
        driver = begin(command, tmp_path, "runs/*/steps.jsonl", 1, **address)
        others.callback(end, driver)
        (run,) = tmp_path.glob("runs/*")
        await_file(comes, driver)
        assert workers(run) == [2]
        with ExitStack() as machine:
            machine.enter_context(worker_node(head.environment["ADDRESS"], gpus=1))
            await_file(leaves, driver)  # by which it has three
            assert workers(run) == [2, 3]
            if noticed:
                since = time.time()
                drain(head)
                await_file(run / ".stop", driver)
                faults.write_text(f"hold phase=task task=2 rank=0 once='{resumed}'")
                leaves.unlink()
                await_file(resumed, driver)
                assert saved_in_the_middle(run, updates=2)
                assert newest_checkpoint(run).stat().st_mtime - since < NOTICE_S
                faults.write_text("")
                resumed.unlink()
            else:
                machine.close()
            out, errors = driver.communicate(timeout=400)
            assert driver.returncode == 0, (out, errors)
        assert head.living() == []
    assert workers(run) == [2, 3, 2]
    result, single = outcome(run), alone(base_config)
    assert json.loads((run / "result.json").read_text())["world_size"] == 2
    assert result.result["matrix"] == single.result["matrix"]
    assert result.adapter.keys() == single.adapter.keys()
    for name, tensor in result.adapter.items():
        torch.testing.assert_close(tensor, single.adapter[name], rtol=0, atol=1e-5)


def test_a_machine_that_takes_long_to_come_is_waited_for(
    private_ray: Path, tmp_path: Path, base_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a group that fails to start is started again where no machine will come."""
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base_config.model_dump(mode="json")))
    command = [*FOREVER, "run", "base.yaml", "--mlflow", "off"]
    command += ["--workers", "1", "--gpus-per-run", "1", "--device", "cpu"]
    with machines(private_ray, 0, monkeypatch, later_gpus=1) as head, ExitStack() as others:
        address = {"RAY_ADDRESS": head.environment["ADDRESS"], "RAY_AUTH_MODE": "token"}
        driver = begin(command, tmp_path, "base.yaml", 1, **address, **HURRY)
        others.callback(end, driver)

        def started() -> bool:
            if driver.poll() is not None:
                pytest.fail("\n".join(driver.communicate()))
            return len(head.states("placement_groups")) > _FAILURES + 2

        wait_until(started, 120)
        others.enter_context(worker_node(head.environment["ADDRESS"], gpus=1))
        out, errors = driver.communicate(timeout=200)
        assert driver.returncode == 0, (out, errors)
    assert len([*tmp_path.glob("runs/*/result.json")]) == 1


def workers(run: Path) -> list[int]:
    """How many workers a run had, each time that it was begun or resumed with another number."""
    return [life["workers"] for life in RunDirectory(run).read_lives()]


def drain(head: Head) -> None:
    """Let Ray say that the machine beside the head will be taken away, as clouds say of spot ones,
    some time before."""
    (node,) = (node["node_id"] for node in head.nodes() if not node["is_head_node"])
    words = [*RAY, "drain-node", "--address", head.environment["ADDRESS"], "--node-id", node]
    words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "taken away"]
    words += ["--deadline-remaining-seconds", f"{NOTICE_S}"]
    subprocess.run(words, env=head.environment, check=True, capture_output=True, timeout=60)


def submitted(head: Head, command: list[str]) -> "subprocess.Popen[str]":
    """A command as a job of a cluster.

    No working directory goes along: pretended machines have one folder for all of theirs, and each
    removes from it what it does not use itself.
    """
    whole = [*RAY, "job", "submit", "--", *command]
    pipe = subprocess.PIPE
    environment = head.environment
    return subprocess.Popen(
        whole, env=environment, start_new_session=True, stdout=pipe, stderr=pipe, text=True
    )


def updates(file: Path) -> Counter[str]:
    """How many updates each run had, in all of its lives."""
    return Counter(line.split()[0] for line in file.read_text().splitlines())


def await_end(folder: Path, patience_s: float = 90.0) -> None:
    """Wait until no process trains the runs of a sweep any more."""
    give_up = time.monotonic() + patience_s
    for lock in folder.glob("out/*/*/.lock"):
        while in_progress(lock.parent):
            assert time.monotonic() < give_up, lock.read_text()
            time.sleep(0.2)


def test_a_sweep_outlives_its_machines_and_its_head(
    faults: Path,
    private_ray: Path,
    tmp_path: Path,
    small_config: RunConfig,
    alone: Callable[[RunConfig], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of three runs share the one GPU of a machine that is lost in mid-trial; the third has
    begun on another one when the head is lost."""
    marks = {name: tmp_path / f"{name} is held" for name in ("v0", "v1", "v2")}
    counted = tmp_path / "counted"
    holds = [f"hold run={name} phase=task task=1 once='{mark}'" for name, mark in marks.items()]
    faults.write_text("\n".join([f"count phase=journal once={counted}", *holds]))
    variants = {f"v{number}": {"optim.lr": 1e-3 * (number + 1)} for number in range(3)}
    words = ("--gpus-per-run", "0.5", "--workers", "1", "--checkpoint-every", "0")
    command = sweep_command(tmp_path, None, small_config, variants, *words)
    # So soon a machine leaves a head that does not answer; by itself after a minute.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")

    with machines(private_ray, 0, monkeypatch) as head, ExitStack() as others:
        with worker_node(head.environment["ADDRESS"], gpus=1):
            nodes = head.await_nodes(2)
            job = submitted(head, command)
            others.callback(end, job)
            for name in ("v0", "v1"):
                await_file(marks[name], job)
            (main,) = (node["node_id"] for node in nodes if node["is_head_node"])
            assert places(head, "ImplicitFunc") == [main] * 2
            workers = places(head, "RayTrainWorker")
            assert len(workers) == 2
            assert main not in workers
        with worker_node(head.environment["ADDRESS"], gpus=1):
            await_file(marks["v2"], job)
            finished = {path.parent for path in tmp_path.glob("out/*/*/result.json")}
            head.kill()
            await_end(tmp_path)
    before = updates(counted)
    assert 0 < len(finished) < len(variants)

    with machines(private_ray, 0, monkeypatch) as head, ExitStack() as others:
        others.enter_context(worker_node(head.environment["ADDRESS"], gpus=1))
        head.await_nodes(2)
        job = submitted(head, command)
        others.callback(end, job)
        out, errors = job.communicate(timeout=300)
        assert job.returncode == 0, (out, errors)
        assert head.living() == []
    runs = {path.parent for path in tmp_path.glob("out/*/*/result.json")}
    assert len(runs) == len(variants)
    after = updates(counted)
    for run in runs:
        if run in finished:
            assert after[run.name] == before[run.name]
        assert not in_progress(run)
        assert outcome(run).differences(alone(RunDirectory(run).read_config())) == []
