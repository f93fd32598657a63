"""Pretended machines of a cluster, which are sessions of processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

from faults.inject import children
from helpers import wait_until
from ray_commands import RAY

_TO_JOIN = {
    "RAY_AUTH_MODE": "token",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # a process in which Ray was used has forbidden it
}


class Head(NamedTuple):
    """A head node: the process that leads its session, and the environment of its users."""

    pid: int
    environment: dict[str, str]

    def nodes(self) -> list[dict[str, Any]]:
        """The machines that live; none while the head starts."""
        return [node for node in self.states("nodes") if node["state"] == "ALIVE"]

    def states(self, kind: str) -> list[dict[str, Any]]:
        """What Ray's state API says of nodes, actors or placement_groups; nothing if it is not
        there."""
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
        url = f"{self.environment['RAY_API_SERVER_ADDRESS']}/api/v0/{kind}?detail=true&limit=1000"
        request = Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            with urlopen(request, timeout=10) as answer:
                return json.load(answer)["data"]["result"]["result"]
        except (URLError, ConnectionError, TimeoutError):
            return []

    def await_nodes(self, count: int, patience_s: float = 90.0) -> list[dict[str, Any]]:
        """Wait until so many machines live."""

        def awaited() -> list[dict[str, Any]]:
            nodes = self.nodes()
            return nodes if len(nodes) == count else []

        return wait_until(awaited, patience_s)

    def living(self, others: int = 0) -> list[str]:
        """The actors and reserved places that are left when all but so many had time to end."""
        assert self.nodes(), "the head does not answer"
        give_up = time.monotonic() + 20
        while True:
            actors = [each for each in self.states("actors") if each["state"] != "DEAD"]
            # Ray's own actor: one a cluster, for all users, which takes no room.
            names = [each["class_name"] for each in actors]
            names = [name for name in names if name != "_AutoscalingCoordinatorActor"]
            names += [each["state"] for each in self.states("placement_groups")]
            left = [name for name in names if name != "REMOVED"]
            if len(left) <= others or time.monotonic() > give_up:
                return left
            time.sleep(0.3)

    def kill(self) -> None:
        """End the cluster as a power cut would; `ray stop` would end every Ray of this machine."""
        cut_power(self.pid)


def this_cluster() -> Head:
    """The cluster that this process has started."""
    return Head(os.getpid(), dict(os.environ))


def cut_power(machine: int) -> None:
    """Kill all processes of a pretended machine, which are those of its first one's session."""
    for pid in children(machine):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# What `ray.cluster_utils.Cluster.add_node` does, in its own process: `ray start` would look for
# the head at this computer's outer address.
_NODE = """
import signal, sys
from ray._private.node import Node
from ray._private.parameter import RayParams

address, cpus, gpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Node(
    RayParams(
        redis_address=address, gcs_address=address, num_cpus=cpus,
        num_gpus=gpus, object_store_memory=100_000_000, min_worker_port=0, max_worker_port=0,
        node_manager_port=0, include_log_monitor=False, dashboard_agent_listen_port=0,
    ),
    head=False, shutdown_at_exit=False, spawn_reaper=False,
)
signal.pause()
"""


@contextmanager
def worker_node(address: str, cpus: int = 1, gpus: int = 0) -> Iterator[int]:
    """Another pretended machine of a cluster, given by the process that leads it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _NODE, address, str(cpus), str(gpus)],
        env={**os.environ, **_TO_JOIN}, start_new_session=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process.pid
    finally:
        cut_power(process.pid)
        process.wait(10)


@contextmanager
def head_node(
    folder: Path, ports: Sequence[int], *flags: str, **environment: str
) -> Iterator[Head]:
    """A head node as `ray up` would start it.

    Args:
        ports: six `free_ports`, the first of which is that of the cluster.
    """
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port",
             "dashboard-agent-grpc-port", "metrics-export-port")  # fmt: skip
    options = [f"--{name}={number}" for name, number in zip(names, ports, strict=True)]
    options += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
    options += [f"--temp-dir={folder}/head", "--object-store-memory=200000000"]
    options += ["--disable-usage-stats", *flags]
    known = {**os.environ, **_TO_JOIN}
    # A job's command is `python`.
    known["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        [*RAY, "start", "--head", "--block", *options],
        env=known | environment, start_new_session=True, stdout=null, stderr=null,
    )  # fmt: skip
    known["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{ports[1]}"
    started = Head(process.pid, known | {"ADDRESS": f"127.0.0.1:{ports[0]}"})
    try:
        yield started
    finally:
        started.kill()
        process.wait(10)


def free_ports(count: int) -> list[int]:
    """Different ports at which nobody listens."""
    from forever.launch.cluster import free_port

    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return [*ports]
