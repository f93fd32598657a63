"""cluster.yaml: valid for Ray's launcher, and right where its schema does not look."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

FILE = Path(__file__).parents[2] / "cluster.yaml"


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(cluster))


def test_drivers_sit_on_the_head_and_workers_on_spot_gpus(cluster: dict[str, Any]) -> None:
    head, gpu = cluster["available_node_types"]["head"], cluster["available_node_types"]["gpu"]
    assert head["resources"]["trial_slot"] >= 1
    assert "GPU" not in head["resources"]
    assert "InstanceMarketOptions" not in head["node_config"]
    assert gpu["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert gpu["resources"]["GPU"] == 1
    assert "trial_slot" not in gpu["resources"]
    assert gpu["min_workers"] == 0
    # Forever cannot see what is not there yet.
    assert head["resources"]["later_gpus"] == gpu["max_workers"] * gpu["resources"]["GPU"]


def test_one_ray_version_everywhere_and_tokens_on(cluster: dict[str, Any]) -> None:
    constraints = (FILE.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (version,) = (line for line in constraints if line.startswith("ray=="))
    assert version.replace("ray==", "ray[default,tune,train]==") in cluster["setup_commands"][0]
    # Ray makes none on a new machine.
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    for command in (
        cluster["head_start_ray_commands"][-1],
        cluster["worker_start_ray_commands"][-1],
    ):
        assert command.startswith("RAY_AUTH_MODE=token")
    assert (
        "--autoscaling-config=~/ray_bootstrap_config.yaml" in cluster["head_start_ray_commands"][-1]
    )
    assert "--dashboard-host=127.0.0.1" in cluster["head_start_ray_commands"][-1]
