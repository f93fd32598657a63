"""Clusters of Ray's launcher: valid for it, and right where its schema does not look."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from marks import ON_RAY

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
