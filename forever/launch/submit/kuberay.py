"""What runs on Kubernetes: files of `deploy/kuberay/` with the values of one file filled in.

A file is YAML in which `${name}` stands for a whole value. Values are filled in as JSON, so none
can be anything but a value.
"""

import json
from collections.abc import Mapping
from importlib.resources import files as package_files
from os.path import normpath
from pathlib import Path
from string import Template
from typing import Any

import yaml

from forever.errors import InputError, shown, unknown
from forever.yaml_file import YamlFile

# What a RayCluster and a RayJob are made of; the rest is applied once.
PARTS = ("raycluster", "mlflow", "network")
TAKEN = "/job"  # where the head of a RayJob has the files that it takes along


def folder() -> Path:
    """Where the files lie: in the package, or on top of a checkout."""
    shipped = Path(str(package_files("forever.launch"))) / "shipped" / "kuberay"
    return shipped if shipped.is_dir() else shipped.parents[3] / "deploy" / "kuberay"


def read_values(path: Path | None = None) -> dict[str, Any]:
    """The shipped values, with those of a file in their place.

    Raises:
        InputError: the file has a value that no part asks for, or that Kubernetes would refuse.
    """
    shipped = YamlFile.read(folder() / "values.yaml").values
    values = dict(shipped)
    if path is None:
        return values
    for name, value in YamlFile.read(path).values.items():
        if name not in values:
            raise unknown(f"value in {path}", name, values)
        if type(value) is not type(values[name]):
            kind = type(values[name]).__name__
            rule = f"a value of type {kind} is expected"
        else:
            rule = _rule_against(name, {**shipped, name: value})
        if rule:
            raise InputError(f"{path}: {name} is {shown(value)}; {rule}")
        values[name] = value
    drain, grace = values["drain_seconds"], values["grace_seconds"]
    if drain >= grace:
        raise InputError(
            f"{path}: drain_seconds is {drain} and grace_seconds {grace}; a pod that is killed "
            "before Ray's wait is over saves nothing: give drain_seconds below grace_seconds"
        )
    return values


def _rule_against(name: str, values: Mapping[str, Any]) -> str | None:
    """The rule by which Kubernetes or Ray would refuse a value among those that are shipped."""
    try:
        from jsonschema import Draft202012Validator
    except ModuleNotFoundError:
        raise InputError("values are checked by jsonschema; pip install jsonschema") from None

    if name == "trial_slots" and values[name] < 1:  # a text for Ray, into which no schema looks
        return "expected: a whole number, 1 or more"
    schema = json.loads((folder() / "schema.json").read_text(encoding="utf-8"))
    for part in (*PARTS, "rayjob"):
        for each in manifests(part, values):
            for error in Draft202012Validator(schema).iter_errors(each):
                rule = dict(error.schema).get("description")
                return f"expected: {rule}" if rule else error.message
    return None


def manifests(part: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of a part (`rayjob`, or one of `PARTS`) as Kubernetes takes them."""
    text = (folder() / f"{part}.yaml").read_text(encoding="utf-8")
    gpus = values["gpu_max"] * values["gpu_count"]  # Ray does not tell to what a cluster may grow
    resources = json.dumps({"trial_slot": values["trial_slots"], "later_gpus": gpus})
    # KubeRay wants quotes around them, which its shell takes away.
    given = {**values, "head_resources": json.dumps(resources)}
    filled = Template(text).substitute({name: json.dumps(v) for name, v in given.items()})
    objects = list(yaml.safe_load_all(filled))
    if part == "rayjob":  # it has a cluster of its own, made like the one that stays
        (cluster,) = manifests("raycluster", values)
        objects[0]["spec"]["rayClusterSpec"] = cluster["spec"]
    return objects


def taking_along(job: dict[str, Any], files: Mapping[str, str]) -> list[dict[str, Any]]:
    """A RayJob whose head has files below `TAKEN`, and the ConfigMap that holds them.

    The head runs the sweep, and trials get their settings from it: no other pod needs the files.

    Args:
        job: changed in place.
        files: their texts by path.
    """
    texts = {f"file-{number}": text for number, text in enumerate(files.values())}
    holder = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": job["metadata"], "data": texts}
    places = map(normpath, files)  # a path cannot be a key
    items = [{"key": key, "path": path} for key, path in zip(texts, places, strict=True)]
    source = {"name": job["metadata"]["name"], "items": items}
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    pod["volumes"].append({"name": "job", "configMap": source})
    pod["containers"][0]["volumeMounts"].append({"name": "job", "mountPath": TAKEN})
    return [holder, job]
