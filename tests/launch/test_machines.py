"""Several machines, which are sessions of processes on this one, with pretended GPUs."""

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("ray")
import ray
import torch
from conftest import Head, cut_power, free_ports, head_node, worker_node
from faults.inject import children, environment
from helpers import Outcome, outcome
from ray_commands import FOREVER, ON_RAY, RAY, left_in_the_end, sweep_command

from forever.config.run import RunConfig
from forever.launch import ray_train
from forever.launch.fleet import Fleet
from forever.launch.local import Placement
from forever.launch.ray_train import run_workers
from forever.runs.directory import RunDirectory

pytestmark = [*ON_RAY, pytest.mark.slow]


@pytest.fixture(scope="module")
def faulty(private_ray: Path) -> Iterator[Path]:
    """The file of faults, which all machines know from their environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(private_ray / "faults").items():
            patch.setenv(name, value)
        yield private_ray / "faults"


def await_that(true: Callable[[], object], patience_s: float = 120.0) -> None:
    give_up = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.1)


# ---- workers that come and go


def test_a_run_takes_the_workers_that_there_are(
    faulty: Path,
    two_cores: None,
    tmp_path: Path,
    small_config: RunConfig,
    alone: Callable[[RunConfig], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two, three when a machine comes in mid-task, and two again after it said that it will go: the
    run saves before, and none of this is a failure. The numbers are those of one process."""
    monkeypatch.setattr(ray_train, "_FAILURES", 0)
    monkeypatch.setattr(ray_train, "_RESIZE_EVERY_S", 2.0)
    come, go, run = tmp_path / "come", tmp_path / "go", tmp_path / "run"
    faulty.write_text(
        f"hold task=1 phase=replay rank=0 once={come}\nhold task=2 phase=replay rank=0 once={go}"
    )
    address = ray.get_runtime_context().gcs_address
    seen: list[str] = []

    def disturb() -> None:
        with ExitStack() as machines:
            await_that(come.exists)
            machines.enter_context(worker_node(address))
            await_that((run / "logs/rank-2.log").exists)
            seen.append("grew")
            await_that(go.exists)
            (new,) = (n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"]["CPU"] == 1)
            command = [*RAY, "drain-node", "--address", address, "--node-id", new, "--reason"]
            command += ["DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
            command += ["--deadline-remaining-seconds", "60"]
            environment = {**os.environ, "RAY_AUTH_MODE": "token"}
            subprocess.run(command, env=environment, check=True, capture_output=True)
            await_that((run / ".stop").exists)
            seen.append("was told")
            faulty.write_text("")
            go.unlink()
            await_that(lambda: RunDirectory(run).finished())

    disturber = threading.Thread(target=disturb)
    disturber.start()
    place = Placement(device="cpu", checkpoint_s=0.0)
    result = run_workers(small_config, run, Fleet(workers=3, least=1, placement=place))
    disturber.join()
    assert seen == ["grew", "was told"]
    assert result["world_size"] == 2
    single = alone(small_config)
    assert result["matrix"] == single.result["matrix"]
    assert result["events"] == single.result["events"]
    for name, tensor in outcome(run).adapter.items():
        torch.testing.assert_close(tensor, single.adapter[name], rtol=0, atol=1e-5)
    starts = Counter(path.name for path in (run / "logs").iterdir() for _ in headers(path))
    assert starts == {"rank-0.log": 3, "rank-1.log": 3, "rank-2.log": 1}
    assert left_in_the_end() == []


def headers(log: Path) -> list[str]:
    """The first line of each process that wrote into a log."""
    rank = log.stem.replace("-", " ")
    return [line for line in log.read_text().splitlines() if f" {rank} on " in line]


# ---- a sweep on machines that are killed


def test_a_sweep_outlives_its_machines(
    faulty: Path,
    private_ray: Path,
    tmp_path: Path,
    small_config: RunConfig,
    alone: Callable[[RunConfig], Outcome],
) -> None:
    """Two runs share a GPU. Its machine is killed in mid-task, and they go on on one that was
    added; then the head is, and the same command goes on on the next cluster."""
    held, later = tmp_path / "held", tmp_path / "later"
    faulty.write_text(
        f"hold run=a phase=replay task=1 once={held}\nhold run=c phase=replay task=1 once={later}"
    )
    variants = {name: {"optim.lr": 1e-3 * number} for number, name in enumerate("abc", 1)}
    here = tmp_path / "project"
    here.mkdir()
    options = ("--workers", "1", "--gpus-per-run", "0.5", "--ray-logs")
    options += ("--checkpoint-every", "0")
    words = sweep_command(here, None, small_config, variants, *options)[len(FOREVER) + 1 :]
    words = [word.replace(f"{here}/", "") if "yaml" in word else word for word in words]
    ports = free_ports(6)
    flags = ("--num-cpus=2", "--num-gpus=0", '--resources={"trial_slot": 3}')

    def submit(head: Head) -> "subprocess.Popen[str]":
        url = head.environment["RAY_API_SERVER_ADDRESS"]
        variables = {k: v for k, v in head.environment.items() if k != "RAY_API_SERVER_ADDRESS"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*FOREVER, "submit", *words, "--address", url],
            cwd=here, env=variables, stdout=pipe, stderr=pipe, text=True,
        )  # fmt: skip

    def sleeping(process: "subprocess.Popen[str]", file: Path) -> None:
        await_that(lambda: file.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()

    with head_node(private_ray, ports, *flags) as head:
        head.await_nodes(1)
        (at_head,) = (node["node_id"] for node in head.nodes())
        with worker_node(head.environment["ADDRESS"], gpus=1) as first:
            head.await_nodes(2)
            process = submit(head)
            sleeping(process, held)
            workers = [a for a in living(head) if a["class_name"] == "RayTrainWorker"]
            others = [a for a in living(head) if a["class_name"] != "RayTrainWorker"]
            assert {actor["node_id"] for actor in workers} == {first_gpu(head)}
            assert {actor["node_id"] for actor in others} == {at_head}, others
            with worker_node(head.environment["ADDRESS"], gpus=1):
                head.await_nodes(3)
                cut_power(first)
                sleeping(process, later)
                assert (RunDirectory(next(here.glob("out/*/a-*")))).finished()
                head.kill()
                out, errors = process.communicate(timeout=60) if process.poll() else ("", "")
        assert not children(first)
    finished = {path: path.stat().st_mtime_ns for path in here.glob("out/*/*/result.json")}
    faulty.write_text("")
    with head_node(private_ray, ports, *flags) as head:
        with worker_node(head.environment["ADDRESS"], gpus=1):
            head.await_nodes(2)
            again = submit(head)
            out, errors = process.communicate(timeout=120)
            assert process.returncode == 0 or "the same command" in errors, (out, errors)
            assert "the connection is lost" in out
            out, errors = again.communicate(timeout=180)
            assert again.returncode == 0, (out, errors)
            assert "rank 0 on" in out  # --ray-logs
            assert [a for a in living(head) if a["class_name"] == "RayTrainWorker"] == []
            held_places = [g for g in head.states("placement_groups") if g["state"] != "REMOVED"]
            assert held_places == []
        pid = head.pid
    assert not children(pid)
    assert not [*here.glob("out/*/.tune/*"), *here.glob("out/*/*/.ray_train")]
    results = [*here.glob("out/*/*/result.json")]
    assert len(results) == len(variants)
    for path in results:
        config = RunDirectory(path.parent).read_config()
        assert outcome(path.parent).differences(alone(config)) == []
        assert finished.get(path) in (None, path.stat().st_mtime_ns)


def living(head: Head) -> list[dict[str, str]]:
    """The actors of a sweep that live; those that Ray has for itself have no resources of ours."""
    actors = [each for each in head.states("actors") if each["state"] == "ALIVE"]
    own = ("JobSupervisor", "_AutoscalingCoordinatorActor", "_StatsActor")
    return [each for each in actors if each["class_name"] not in own]


def first_gpu(head: Head) -> str:
    (gpu,) = (node["node_id"] for node in head.nodes() if node["resources_total"].get("GPU"))
    return gpu
