"""The model card: what was trained on which data by which method, how well, and how to load it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from forever.cli.export.licence import UNKNOWN
from forever.cli.export.snippet import Base, adapter_lines, model_lines
from forever.cli.view.seen import Seen
from forever.data.prompts import prompt
from forever.data.tasks import Example
from forever.evaluation.metrics import PerformanceMatrix
from forever.report.format import estimated, markdown_table
from forever.report.study import plain_run
from forever.stats.bootstrap import Estimate
from forever.stats.compare import compare
from forever.text import markdown
from forever.yaml_file import to_yaml

_TICKS = re.compile("`+")


def card(seen: Seen, base: Base, licences: tuple[str, str], whole: bool, merged: bool) -> str:
    """The text of README.md.

    Args:
        licences: of the base model and of the data.
        whole: the folder has a whole model and no adapter.
        merged: it has the merged model, too, in `merged`.
    """
    parts = [
        _front(seen, base, licences, whole),
        _title(seen, base, whole),
        _loading(base, whole, merged),
        _scores(seen),
        _training(seen),
        _data(seen),
        _licence(base, licences),
    ]
    return "\n".join(parts)


def _front(seen: Seen, base: Base, licences: tuple[str, str], whole: bool) -> str:
    """What the hub reads; no licence where that of the model or of the data is not known."""
    licence, of_data = licences
    fields: dict[str, Any] = {"library_name": "transformers" if whole else "peft"}
    if base.on_hub:
        fields["base_model"] = base.name
    if licence and " " not in licence and not of_data.startswith(UNKNOWN):
        fields["license"] = licence.lower()
    sets = [dataset.path for dataset in seen.config.data.datasets.values() if not dataset.is_path]
    if sets:
        fields["datasets"] = list(dict.fromkeys(sets))
    fields["tags"] = ["continual-learning", "forever-cl", seen.config.method.name]
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n"


def _title(seen: Seen, base: Base, whole: bool) -> str:
    result = seen.result
    what = "A model" if whole else "An adapter"
    tasks = ", ".join(map(markdown, result["tasks"]))
    how = "together" if seen.config.method.joint else "one after another"
    return (
        f"# {markdown(seen.directory.path.name)}\n\n"
        f"{what} for {markdown(base.title)}, trained by the method "
        f"{markdown(result['method'])} on {len(result['tasks'])} tasks, {how}, with "
        f"seed {result['seed']}: {tasks}.\n"
    )


def _loading(base: Base, whole: bool, merged: bool) -> str:
    """The lines of Python, and the prompt that they are for."""
    lines = model_lines(".") if whole else adapter_lines(base)
    text = f"## Load it\n\n{_block('python', lines)}"
    if not base.on_hub and not whole:
        title = markdown(base.title)
        text += f"\nThe path is that of one machine: put your own copy of {title} in its place.\n"
    if merged:
        text += (
            f"\nThe folder `merged` has both in one:\n\n{_block('python', model_lines('merged'))}"
        )
    return (
        f"{text}\nThe prompt of an example with an input; the answer follows, decoded greedily:\n\n"
        f"{_block('text', _template('{input}'))}\nAnd of one without:\n\n"
        f"{_block('text', _template(''))}"
    )


def _template(text: str) -> list[str]:
    return prompt(Example("", "{instruction}", text, "")).split("\n")


def _block(language: str, lines: Sequence[str]) -> str:
    """A block of code, whose fence is longer than any in it."""
    inside = max((len(run) for run in _TICKS.findall("\n".join(lines))), default=0)
    fence = "`" * max(3, inside + 1)
    return "\n".join([f"{fence}{language}", *lines, fence, ""])


def _scores(seen: Seen) -> str:
    """The scores after the last task, with intervals."""
    run = plain_run(seen.directory.path)
    matrix, unit = run.matrix, (run.order, run.seed)
    overall = compare({"": {unit: matrix}})[""]
    rows = [["OP, the mean of all tasks", "", _interval(overall.op)]]
    if overall.bwt is not None:
        rows.append(["BWT, gained since learned", "", _interval(overall.bwt)])
    last = len(matrix.stages) - 1
    for number, task in enumerate(matrix.tasks):
        alone = PerformanceMatrix((task,), (task,), {(0, 0): matrix.items[number, last]})
        metric = seen.result.get("metrics", {}).get(task, "")
        estimate = compare({"": {unit: alone}})[""].op
        rows.append([markdown(task), metric, _interval(estimate)])
    table = markdown_table(("score after the last task", "metric", "% [95 % interval]"), rows)
    return (
        "## Scores\n\n"
        + "\n".join(table)
        + "\n\nIntervals resample the test rows: they say how far "
        "another test set could move the scores\nof this one run, not how far another seed would.\n"
    )


def _interval(estimate: Estimate) -> str:
    return estimated(estimate, "{:.1f}")


def _training(seen: Seen) -> str:
    """The configuration without places on this machine, and what it ran on."""
    settings = seen.config.model_dump(mode="json")
    settings["data"].pop("root")
    for task, dataset in seen.config.data.datasets.items():
        settings["data"]["datasets"][task] = dataset.identity()
    for section, key in (("model", "name"), ("method", "encoder")):
        name = settings[section].get(key) or ""
        if name.startswith(("/", ".", "~")):
            settings[section][key] = name.rstrip("/").rpartition("/")[2]
    text = to_yaml(settings, default_flow_style=None, width=96)
    place = seen.directory.read_environment()
    made = _made(place)
    return f"## How it was trained\n\n{made}\n\n{_block('yaml', text.splitlines())}"


def _made(place: Mapping[str, Any]) -> str:
    versions = {name: text for name, text in place.get("packages", {}).items() if text}
    packages = ", ".join(f"{name} {text}" for name, text in versions.items())
    devices = ", ".join(place.get("gpus", [])) or place.get("cpu") or "an unknown processor"
    revision = place.get("revision") or "unknown"
    return markdown(f"By forever-cl, revision {revision}, on {devices}; {packages}.")


def _data(seen: Seen) -> str:
    result = seen.result
    rows: list[list[str]] = []
    for task in result["tasks"]:
        counts = result.get("rows", {}).get(task, {})
        digest = result.get("data", {}).get(task, "")
        numbers = [str(counts.get(split, "")) for split in ("train", "test")]
        rows.append([markdown(task), *numbers, f"`{digest}`"])
    head = ("task", "training rows", "test rows", "digest")
    name = markdown(str(result["benchmark"]))
    return (
        f"## Data\n\nBenchmark {name}, in the order of the table. A digest changes with any "
        "example:\n`forever data check` shows those of data at hand.\n\n"
        + "\n".join(markdown_table(head, rows))
        + "\n"
    )


def _licence(base: Base, licences: tuple[str, str]) -> str:
    of_base, of_data = map(markdown, licences)
    lines = ["## Licence", "", f"- Base model, {markdown(base.title)}: {of_base}"]
    return "\n".join([*lines, f"- Data: {of_data}", ""])
