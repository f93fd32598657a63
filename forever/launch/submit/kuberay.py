"""What runs on Kubernetes: files of `deploy/kuberay/` with the values of one file filled in.

A file is YAML in which `${name}` stands for a whole value. Values are filled in as JSON, so none
can be anything but a value.
"""

import json
from collections.abc import Mapping
from importlib.resources import files as package_files
from pathlib import Path
from string import Template
from typing import Any

import yaml

from forever.errors import InputError, unknown
from forever.yaml_file import YamlFile

# What a RayCluster and a RayJob are made of; the rest is applied once.
PARTS = ("raycluster", "mlflow", "network")


def folder() -> Path:
    """Where the files lie: in the package, or on top of a checkout."""
    shipped = Path(str(package_files("forever.launch"))) / "shipped" / "kuberay"
    return shipped if shipped.is_dir() else shipped.parents[3] / "deploy" / "kuberay"


def read_values(path: Path | None = None) -> dict[str, Any]:
    """The shipped values, with those of a file in their place.

    Raises:
        InputError: the file has a value that no part asks for.
    """
    values = dict(YamlFile.read(folder() / "values.yaml").values)
    if path is None:
        return values
    for name, value in YamlFile.read(path).values.items():
        if name not in values:
            raise unknown(f"value in {path}", name, values)
        if type(value) is not type(values[name]):
            kind = type(values[name]).__name__
            raise InputError(f"{path}: {name} is {value!r}; a value of type {kind} is expected")
        values[name] = value
    return values


def manifests(part: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of a part (`rayjob`, or one of `PARTS`) as Kubernetes takes them."""
    text = (folder() / f"{part}.yaml").read_text(encoding="utf-8")
    filled = Template(text).substitute({name: json.dumps(v) for name, v in values.items()})
    objects = list(yaml.safe_load_all(filled))
    if part == "rayjob":  # it has a cluster of its own, made like the one that stays
        (cluster,) = manifests("raycluster", values)
        objects[0]["spec"]["rayClusterSpec"] = cluster["spec"]
    return objects
