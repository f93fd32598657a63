"""The files for Kubernetes: they fit the fields of the CRDs that they use, and each other."""

import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
pytest.importorskip("jsonschema")
import jsonschema
from typer.testing import CliRunner

from forever.cli.main import app
from forever.errors import InputError
from forever.launch.submit.kuberay import PARTS, folder, manifests, read_values
from forever.launch.submit.submission import Submission
from scripts import kuberay

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((folder() / "schema.json").read_text(encoding="utf-8"))
VALID = jsonschema.Draft202012Validator(SCHEMA)


OWN = "# Later?\nvariants:\n  base: {}\n  später: {method.days: [4]}\n"


def everything(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    filled = values or read_values()
    return [each for part in (*PARTS, "rayjob") for each in manifests(part, filled)]


def rendered(*words: str, sweep: str = "components") -> list[dict[str, Any]]:
    command = ["submit", sweep, "--out", "/shared/runs", "--render", "rayjob", *words]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return [*yaml.safe_load_all(done.stdout)]


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep and a run in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(OWN, encoding="utf-8")
    (tmp_path / "run.yaml").write_text("method: {name: forever}\nmodel: {name: tiny}\n")
    return tmp_path


def test_all_fields_are_those_of_the_reference(own_files: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    objects = [*everything(), *rendered(sweep="sweeps/mine.yaml")]
    for each in objects:
        VALID.validate(each)
    assert {each["kind"] for each in objects} == set(SCHEMA["properties"]["kind"]["enum"])


def misspell(field: str) -> Callable[[Any], Any]:
    return lambda parent: parent.update({f"{field}x": parent.pop(field)})


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        ("spec", misspell("enableInTreeAutoscaling")),
        ("spec", misspell("headGroupSpec")),
        ("spec.autoscalerOptions", lambda options: options.update(idleTimeoutSeconds="600")),
        ("spec.authOptions", lambda options: options.update(mode="tokens")),
        ("spec.workerGroupSpecs.0", misspell("maxReplicas")),
        ("spec.headGroupSpec", lambda group: group.update(rayStartParams={"num-gpus": 0})),
        ("spec.headGroupSpec", lambda group: group.update(serviceType="LoadBalancers")),
        ("spec.workerGroupSpecs.0.template.spec.tolerations.0", misspell("effect")),
        ("spec.headGroupSpec.template.spec.securityContext", lambda c: c.update(runAsUser=0)),
        ("spec.headGroupSpec.template.spec.containers.0", lambda c: c.update(image="a/b:latest")),
        ("spec.headGroupSpec.template.spec.containers.0.env.0", misspell("value")),
    ],
)
def test_a_field_that_is_wrong_is_found(place: str, damage: Callable[[Any], Any]) -> None:
    (cluster,) = copy.deepcopy(manifests("raycluster", read_values()))
    target: Any = cluster
    for step in place.split("."):
        target = target[int(step)] if step.isdigit() else target[step]
    VALID.validate(cluster)
    damage(target)
    assert not VALID.is_valid(cluster)


def test_one_file_has_all_values(tmp_path: Path) -> None:
    """Each is used, none is missing, and one of a user's takes its place everywhere."""
    texts = [(folder() / f"{part}.yaml").read_text(encoding="utf-8") for part in (*PARTS, "rayjob")]
    used = {name for text in texts for name in re.findall(r"(?<!\$)\$\{(\w+)\}", text)}
    assert used - {"head_resources"} == read_values().keys() - {"trial_slots"}  # made of it
    own = tmp_path / "mine.yaml"
    own.write_text(
        "namespace: mine\ngpu_max: 3\ngpu_count: 2\nimage: r.example.com/a/b@sha256:" + "0" * 64
    )
    objects = everything(read_values(own))
    for each in objects:
        VALID.validate(each)
        assert each["metadata"]["namespace"] == "mine"
    group = rendered("--values", str(own))[0]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert group["maxReplicas"] == 3
    head = objects[0]["spec"]["headGroupSpec"]["rayStartParams"]["resources"]
    assert json.loads(json.loads(head)) == {"trial_slot": 8, "later_gpus": 3 * 2}
    assert group["template"]["spec"]["containers"][0]["image"].endswith("0" * 64)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpu_maxx: 3", "unknown value in .*'gpu_maxx'; did you mean 'gpu_max'"),
        ("gpu_max: many", "gpu_max is 'many'; a value of type int is expected"),
        ("gpu_max: -3", "gpu_max is -3; expected: a whole number, 0 or more"),
        ("gpu_count: -1", "gpu_count is -1; expected: an amount of Kubernetes"),
        ("trial_slots: 0", "trial_slots is 0; expected: a whole number, 1 or more"),
        ("drain_seconds: abc", "drain_seconds is 'abc'; a value of type int"),
        ("grace_seconds: 30", "drain_seconds is 100 and grace_seconds 30; .* below grace_seconds"),
        ("namespace: My_Runs", "namespace is 'My_Runs'; expected: small letters"),
        ("name: " + 54 * "a", "name is 'a+'; expected: 53 characters at most"),
        ("shared_claim: -x", "shared_claim is '-x'; expected: small letters"),
        ("head_memory: 16 GB", "head_memory is '16 GB'; expected: an amount of Kubernetes"),
        ("image: a/b:latest", "image is 'a/b:latest'; expected: an image with a tag"),
        ("gpu_node: {a: 1}", "gpu_node is .*; expected: text under each key"),
        ("gpu_tolerations: [{kez: a}]", "gpu_tolerations is .*'kez' was unexpected"),
    ],
)
def test_a_value_that_fits_nowhere_is_refused(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(line)
    with pytest.raises(InputError, match=message):
        read_values(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "line",
    [
        "token_secret: team.ray-token",
        "image: localhost:5000/a/b:v1@sha256:" + 64 * "0",
        "gpu_tolerations: [{key: spot, value: 'yes'}, {operator: Exists}]",
        "postgres_storage: 1Ei",
        "grace_seconds: 101",
    ],
)
def test_what_kubernetes_takes_is_taken(line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(line)
    assert read_values(tmp_path / "mine.yaml") != read_values()


def test_a_value_stays_a_value() -> None:
    odd = 'x: {y} # "z"\n- ${image}'
    (job,) = manifests("rayjob", {**read_values(), "entrypoint": odd})
    assert job["spec"]["entrypoint"] == odd


def test_a_job_has_the_cluster_that_stays_and_the_command_of_a_submission() -> None:
    (job,) = rendered("--seeds", "0,1", "--env", "A=b: c")
    (cluster,) = manifests("raycluster", read_values())
    assert job["spec"]["rayClusterSpec"] == cluster["spec"]
    assert job["metadata"]["name"] == job["spec"]["jobId"]
    assert job["spec"]["entrypoint"].endswith("sweep components --out /shared/runs --seeds 0,1")
    variables = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert variables["A"] == "b: c"
    assert re.fullmatch("[0-9a-f]{12}", variables["FOREVER_CODE"])


def test_a_job_takes_the_files_of_its_sweep_along(own_files: Path) -> None:
    """Its head has them where the command is run, byte for byte."""
    holder, job = rendered("--on=run.yaml", sweep="./sweeps/mine.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    pod = cluster["headGroupSpec"]["template"]["spec"]
    volume, mount = pod["volumes"][-1], pod["containers"][0]["volumeMounts"][-1]
    assert holder["metadata"] == job["metadata"]
    assert volume["configMap"]["name"] == holder["metadata"]["name"]
    assert (volume["name"], mount["mountPath"]) == (mount["name"], "/job")
    there = own_files / "head"
    for item in volume["configMap"]["items"]:
        place = there / item["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(holder["data"][item["key"]], encoding="utf-8")
    for path in ("sweeps/mine.yaml", "run.yaml"):
        assert (there / path).read_bytes() == (own_files / path).read_bytes()
    words = shlex.split(job["spec"]["entrypoint"])
    assert (words[4], words[-1]) == ("/job/sweeps/mine.yaml", "--on=/job/run.yaml")
    assert all("configMap" not in str(group) for group in cluster["workerGroupSpecs"])


def test_another_text_of_a_file_is_another_job(own_files: Path) -> None:
    before = rendered(sweep="sweeps/mine.yaml")[1]["metadata"]["name"]
    (own_files / "sweeps/mine.yaml").write_text(OWN.replace("[4]", "[5]"), encoding="utf-8")
    assert rendered(sweep="sweeps/mine.yaml")[1]["metadata"]["name"] != before


def test_a_job_is_called_as_kuberay_allows_it() -> None:
    """Its cluster's name gets an ending, so 47 characters are left."""
    name = "a-sweep-with-the-longest-name-that-anybody-would-give"
    submission = Submission(name, (), "0123456789ab", "c0de")
    (job,) = manifests("rayjob", {**read_values(), "job": submission.id})
    VALID.validate(job)
    assert len(job["metadata"]["name"]) == 47


def pods() -> list[dict[str, Any]]:
    """The templates of all pods that the files make."""
    (cluster,) = manifests("raycluster", read_values())
    spec = cluster["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    objects = manifests("mlflow", read_values())
    return [each["template"] for each in groups] + [
        each["spec"]["template"] for each in objects if "template" in each["spec"]
    ]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    same = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    rules = selector.get("matchExpressions", [])
    return same and all(labels.get(rule["key"]) in rule["values"] for rule in rules)


def test_nobody_reaches_a_pod_whom_no_policy_names() -> None:
    policies = manifests("network", read_values())
    templates = pods()
    assert len(templates) == 4
    for template in templates:
        labels = template["metadata"]["labels"]
        guards = [p for p in policies if selects(p["spec"]["podSelector"], labels)]
        assert len(guards) == 1, labels
        assert all(rule["from"] for rule in guards[0]["spec"]["ingress"])
    for service in manifests("mlflow", read_values()):
        if service["kind"] == "Service":
            chosen = {"matchLabels": service["spec"]["selector"]}
            assert any(selects(chosen, t["metadata"]["labels"]) for t in templates)


def test_the_head_lets_in_the_operator_and_the_submitter() -> None:
    """Helm and kustomize name the operator in two ways; before v1.7 KubeRay marks no submitter."""
    head, *_ = manifests("network", read_values())
    (rule,) = [each for each in head["spec"]["ingress"] if "ports" in each]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8265}]
    component = {"app.kubernetes.io/component": "kuberay-operator"}
    job = rendered()[0]["spec"]
    submitter = job["submitterPodTemplate"]["metadata"]["labels"]

    def let_in(labels: dict[str, str], is_elsewhere: bool) -> bool:
        peers = [p for p in rule["from"] if "namespaceSelector" in p or not is_elsewhere]
        return any(selects(peer["podSelector"], labels) for peer in peers)

    for name in ("kuberay", "kuberay-operator"):
        assert let_in({"app.kubernetes.io/name": name, **component}, is_elsewhere=True)
    assert let_in(submitter, is_elsewhere=False)
    assert not let_in(submitter, is_elsewhere=True)
    assert not let_in({"app.kubernetes.io/name": "kuberay"}, is_elsewhere=False)
    # A Kubernetes Job takes no pod that is always started again, and it needs an image with Ray.
    pod = job["submitterPodTemplate"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["containers"][0]["image"] == read_values()["image"]


def test_gpus_on_spot_come_from_zero_and_secrets_stay_secret() -> None:
    values = read_values()
    (cluster,) = manifests("raycluster", values)
    spec, (gpu,) = cluster["spec"], cluster["spec"]["workerGroupSpecs"]
    assert spec["enableInTreeAutoscaling"]
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert spec["authOptions"] == {"mode": "token", "secretName": values["token_secret"]}
    assert (gpu["replicas"], gpu["minReplicas"]) == (0, 0)
    assert {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true",
            "effect": "NoSchedule"} in gpu["template"]["spec"]["tolerations"]  # fmt: skip
    head = spec["headGroupSpec"]
    assert not head["template"]["spec"].get("tolerations")
    # KubeRay wants the quotes that its shell takes away.
    resources = json.loads(json.loads(head["rayStartParams"]["resources"]))
    assert resources["later_gpus"] == values["gpu_max"] * values["gpu_count"]
    assert resources["trial_slot"] > 0
    pod = gpu["template"]["spec"]
    waits = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    drained_after = float(waits["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert 60 <= drained_after < pod["terminationGracePeriodSeconds"]  # Ray's own default is 30
    for template in pods():
        for variable in template["spec"]["containers"][0].get("env", []):
            hides = re.search("PASSWORD|URI|USER|KEY", variable["name"])
            literal = variable.get("value", "")
            assert not hides or "valueFrom" in variable or literal.startswith("http://forever-")


def test_the_script_prints_what_is_applied_once(capsys: pytest.CaptureFixture[str]) -> None:
    kuberay.main([])
    printed = [*yaml.safe_load_all(capsys.readouterr().out)]
    assert printed == [each for part in PARTS for each in manifests(part, read_values())]


@pytest.mark.parametrize(
    ("file", "told"), [("mine.yaml", "mine.yaml: gpu_max is -3"), ("none.yaml", "none.yaml")]
)
def test_the_script_refuses_in_one_line(file: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("gpu_max: -3")
    command = [sys.executable, "-m", "scripts.kuberay", str(tmp_path / file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert told in line


def test_the_launchers_files_say_where_runs_are_shown() -> None:
    """With the line as it stands behind its mark, it is one more command of every machine."""
    for cloud in ("aws", "gcp", "azure"):
        text = (ROOT / "deploy" / f"{cloud}.yaml").read_text(encoding="utf-8")
        commands = yaml.safe_load(text)["setup_commands"]
        with_it = yaml.safe_load(text.replace("  # - echo", "  - echo"))["setup_commands"]
        assert with_it[:-1] == commands
        assert re.fullmatch(r"echo 'export MLFLOW_TRACKING_URI=\S+' >> ~/\.bashrc", with_it[-1])
