"""Clusters of Ray's launcher: valid for it, right where its schema does not look, and one of them
tried with pretended GPUs on this machine."""

import json
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from faults.inject import children
from machines import free_ports, head_node
from marks import ON_RAY
from ray_commands import begin, sweep_command

from forever.config.run import RunConfig
from forever.runs.directory import RunDirectory

pytestmark = ON_RAY

ROOT = Path(__file__).parents[2]
CLOUDS = ("aws", "gcp", "azure")


def read(cloud: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / f"{cloud}.yaml").read_text(encoding="utf-8"))


@pytest.fixture(params=CLOUDS)
def cluster(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(cluster))


def test_the_file_at_the_top_is_that_of_aws() -> None:
    assert (ROOT / "cluster.yaml").read_text() == (ROOT / "deploy/aws.yaml").read_text()


def is_spot(node: dict[str, Any]) -> bool:
    """Whether machines of a type may be taken away, in the words of each cloud."""
    words = ("'MarketType': 'spot'", "'preemptible': True", "'priority': 'Spot'")
    return any(word in str(node["node_config"]) for word in words)


def test_drivers_sit_on_the_head_and_workers_on_spot_gpus(cluster: dict[str, Any]) -> None:
    head, gpu = cluster["available_node_types"]["head"], cluster["available_node_types"]["gpu"]
    assert head["resources"]["trial_slot"] >= 1
    assert "GPU" not in head["resources"]
    assert (is_spot(head), is_spot(gpu)) == (False, True)
    assert gpu["resources"]["GPU"] == 1
    assert "trial_slot" not in gpu["resources"]
    assert gpu["min_workers"] == 0
    # Forever cannot see what is not there yet.
    assert head["resources"]["later_gpus"] == gpu["max_workers"] * gpu["resources"]["GPU"]


def test_one_ray_version_everywhere_and_tokens_on(cluster: dict[str, Any]) -> None:
    assert "--constraint ~/forever-cl/constraints.txt" in cluster["setup_commands"][-1]
    assert f"\nray=={version('ray')}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    # Ray makes no token on a new machine.
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    head = cluster["head_start_ray_commands"][-1]
    for command in (head, cluster["worker_start_ray_commands"][-1]):
        assert command.startswith("RAY_AUTH_MODE=token")
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head
    assert "--dashboard-host=127.0.0.1" in head


# ---- tried with Ray's own pretended machines

IDLE_S = 8
# Ray's `AutoscalingCluster` would begin with `ray stop --force`, which ends every cluster of this
# machine, so what it starts is started here. Its provider knows a head of this name and number.
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
HEAD_ID = "f" * 51 + "0" * 5


def pretended(cluster: dict[str, Any], port: int) -> dict[str, Any]:
    """The same node types, as processes of this machine that go after a short time."""
    types = {name: dict(each) for name, each in cluster["available_node_types"].items()}
    for each in types.values():
        each["node_config"] = {}
    types["gpu"]["resources"] = {**types["gpu"]["resources"], "object_store_memory": 80_000_000}
    types["ray.head.default"] = types.pop("head") | {"max_workers": 0}
    provider = {"type": "external", "module": PROVIDER, "gcs_address": f"127.0.0.1:{port}",
                "launch_multiple": True, "head_node_id": HEAD_ID}  # fmt: skip
    kinds = ("", "head_", "worker_")
    nothing: dict[str, Any] = {f"{kind}setup_commands": [] for kind in kinds}
    nothing |= {f"{kind}start_ray_commands": [] for kind in kinds[1:]}
    nothing |= {"file_mounts": {}, "auth": {}, "initialization_commands": []}
    nothing |= {"cluster_synced_files": [], "rsync_exclude": []}
    return {**cluster, **nothing, "idle_timeout_minutes": IDLE_S / 60, "provider": provider,
            "head_node_type": "ray.head.default", "available_node_types": types}  # fmt: skip


@pytest.mark.slow
def test_gpu_nodes_come_for_a_sweep_and_go_when_it_is_over(
    private_ray: Path, tmp_path: Path, small_config: RunConfig
) -> None:
    """The autoscaler (v2) of a cluster that begins without any."""
    cluster = read("aws")
    ports = free_ports(6)
    config = private_ray / "autoscaling.json"
    config.write_text(json.dumps(pretended(cluster, ports[0])))
    resources = dict(cluster["available_node_types"]["head"]["resources"])
    flags = [f"--num-cpus={resources.pop('CPU')}", "--num-gpus=0"]
    flags += [f"--resources={json.dumps(resources)}", f"--autoscaling-config={config}"]
    environment = {"RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1",
                   "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
                   "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID}  # fmt: skip
    variants = {"base": {}, "slow": {"optim.lr": 1e-3}}
    command = sweep_command(
        tmp_path, None, small_config, variants, "--gpus-per-run", "1", "--workers", "1"
    )
    with head_node(private_ray, ports, *flags, **environment) as head:
        head.await_nodes(1)
        commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children(head.pid)]
        assert any("/autoscaler/v2/monitor.py" in command for command in commands)
        address = {"RAY_ADDRESS": head.environment["ADDRESS"], "RAY_AUTH_MODE": "token"}
        address["RAY_API_SERVER_ADDRESS"] = head.environment["RAY_API_SERVER_ADDRESS"]
        seen: list[int] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.5):
                seen.append(len(head.nodes()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            process = begin(command, tmp_path, "out/*/*/result.json", 1, **address)
            out, errors = process.communicate(timeout=180)
            assert process.returncode == 0, (out, errors)
            (left,) = head.await_nodes(1, patience_s=IDLE_S + 60)
        finally:
            over.set()
            watcher.join()
    assert left["is_head_node"]
    assert max(seen) == 3  # the head, and a node for each of two runs
    for path in tmp_path.glob("out/*/*/result.json"):
        assert RunDirectory(path.parent).finished()
