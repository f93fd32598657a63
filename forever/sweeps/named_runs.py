"""Named runs: `[cpu/]<benchmark>[/<order>]/<method>`, and what each scale changes in the paper's
settings (scales.yaml)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forever.config.methods import config_class, has_method, method_names
from forever.config.orders import ORDERS, default_order
from forever.config.run import RunConfig
from forever.errors import InputError, shown, unknown
from forever.yaml_file import SUFFIXES, YamlFile

_SETTINGS = YamlFile.read(Path(__file__).with_name("scales.yaml")).values
_TRAIN, _TEST = 1000, 100  # examples of most of the paper's tasks
# The run from which each experiment differs, by the size of everything in it.
SCALES: dict[str, str] = {scale: part["base"] for scale, part in _SETTINGS.items()}


def named_run(name: str) -> RunConfig:
    """The run that a name like `mini/forever`, `superni/7/forever` or `long/4/finetune` stands for.

    Raises:
        InputError: unknown benchmark, order or method.
    """
    place = name.removeprefix("cpu/")
    parts = place.split("/")
    is_file = os.path.isfile(name)  # a name that is too long is an error to `Path.is_file`
    if len(parts) not in (2, 3) or (is_file and parts[0] not in ORDERS):
        kind = ".yaml file" if is_file else "file"
        raise InputError(
            f"{shown(name)} is not a {kind}, nor of the form [cpu/]<benchmark>[/<order>]/<method>, "
            "such as mini/forever"
        )
    benchmark, *middle, method = parts
    if benchmark not in ORDERS:
        raise unknown("benchmark", benchmark, ORDERS)
    order = "".join(middle) or default_order(benchmark)
    if order not in ORDERS[benchmark]:
        raise unknown(f"order of {benchmark}", order, ORDERS[benchmark])
    if not has_method(method):
        raise unknown("method", method, method_names())
    scale = "paper" if place == name else "cpu"
    if benchmark == "mini":
        scale = "mini"
    shorter = _SETTINGS[scale].get("orders", {}).get(benchmark, {})
    changes = {
        "data.benchmark": benchmark,
        "data.order": shorter.get(order, order),
        "method.name": method,
    }
    return RunConfig().override(changes | _SETTINGS[scale]["settings"] | _of(method, scale))


def _of(method: str, scale: str) -> dict[str, Any]:
    """The settings of a method at a scale."""
    return _SETTINGS.get(scale, {}).get("methods", {}).get(method, {})


Counts = Mapping[str, Mapping[str, int]]  # examples by task and split, as in a result


def scale_of(run: RunConfig, rows: Counts | None = None) -> str:
    """The scale that a run has by its data: mini, cpu (few and short rows), paper (a whole
    benchmark in the paper's sizes), or "other".

    Args:
        rows: how many examples the tasks have, as in a result; None believes that the data have the
            paper's sizes before the run's limits.
    """
    data = run.data
    if data.benchmark == "mini":
        return "mini"
    # A run may have other sizes.
    short = run.model.max_length == _SETTINGS["cpu"]["settings"]["model.max_length"]
    if short and data.train_rows is not None:
        return "cpu"
    names = ORDERS.get(data.benchmark, {}).get(str(data.order))  # tasks in a list have no name
    if names is None or data.validation is not None:
        return "other"
    if rows is None:
        limits = {"train": data.train_rows, "test": data.test_rows}
        rows = {}
        for name in names:
            counts = _least(name).items()
            rows[name] = {split: min(count, limits[split] or count) for split, count in counts}
    return "paper" if has_papers_sizes(rows) else "other"


def has_papers_sizes(rows: Counts) -> bool:
    """Whether all tasks have as many training examples as the paper's, and as many for testing.

    Up to 1000 may be more than the paper's, which others drew from the originals; more for testing
    only measure better.
    """
    for name, counts in rows.items():
        least = _least(name)
        if not least["train"] <= counts["train"] <= _TRAIN or counts["test"] < least["test"]:
            return False
    return True


def _least(task: str) -> dict[str, int]:
    """How many examples a task of the paper's has."""
    sizes = _SETTINGS["paper"]["sizes"]
    return {"train": sizes["train"].get(task, _TRAIN), "test": sizes["test"].get(task, _TEST)}


def orders(base: RunConfig, *benchmarks: str) -> dict[str, dict[str, Any]]:
    """All orders of the paper's benchmarks by number, as differences from a run, whose sizes stay;
    on `mini` its two orders stand for those of each benchmark."""
    small = "cpu/" if scale_of(base) == "cpu" else ""
    # Another benchmark would begin without them.
    sizes = base.data.model_dump(mode="json", exclude={"root"})
    if benchmarks and base.data.benchmark == "mini":
        benchmarks = ("mini",)
    places: dict[str, dict[str, Any]] = {}
    for benchmark in benchmarks:
        for order in ORDERS[benchmark]:
            place = named_run(f"{small}{benchmark}/{order}/finetune").data
            data = {**sizes, "benchmark": place.benchmark, "order": place.order}
            places[order] = {f"data.{key}": value for key, value in data.items()}
    return places


def method_settings(base: RunConfig, method: str) -> dict[str, Any]:
    """The dotted keys that put a method, as named runs of that scale have it, in the place of
    another one; S of the run holds for every method that has one."""
    if method == base.method.name:
        return {}
    settings = {"method.name": method, **_of(method, scale_of(base))}
    day_steps = getattr(base.method, "day_steps", None)
    if day_steps and "day_steps" in config_class(method).model_fields:
        settings["method.day_steps"] = day_steps
    return settings


def load_run(argument: str) -> RunConfig:
    """A run from a YAML file or by name.

    Raises:
        InputError: no such file or name, or a file that is not a configuration, with its line.
    """
    if not argument.endswith(SUFFIXES):
        return named_run(argument)
    file = YamlFile.read(Path(argument))
    try:
        return RunConfig.parse(file.values)
    except InputError as error:
        raise file.located(error) from None
