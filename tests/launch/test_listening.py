"""Who can talk to the servers that a sweep starts, and what they keep."""

import ipaddress
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("psutil")
import psutil
import ray
from marks import ON_RAY

from forever.launch.cluster import connected

pytestmark = ON_RAY
SECRET = "s3cret-of-the-environment"


def listening() -> set[tuple[str, str]]:
    """Name and address of each process below this one, and of this one, that takes connections."""
    found: set[tuple[str, str]] = set()
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        for connection in process.net_connections(kind="inet"):
            if connection.status == "LISTEN":
                found.add((process.name(), connection.laddr.ip))
    return found


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    inner = getattr(address, "ipv4_mapped", None)
    return (inner or address).is_loopback


def test_a_cluster_on_this_machine_listens_to_it_alone_and_asks_for_a_token(
    private_ray: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with connected(dashboard=True):
        before = ray.remote(lambda: None).remote()
        ray.get(before)  # a worker has started
        found = listening()
        page = ray.worker.global_worker.node.address_info["webui_url"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{page}/api/jobs/", timeout=30)
    assert len({name for name, _ in found}) > 3  # the head's parts, a worker, this process
    assert {(name, ip) for name, ip in found if not is_loopback(ip)} == set()
    assert refused.value.code == 401
    for path in private_ray.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
