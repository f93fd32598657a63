"""What people write may be anything: readers give what was meant, or refuse in one line."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from fuzz.cases import attempt, cases, changed, damaged, hostile_values, scalars
from hypothesis import given
from hypothesis import strategies as st

from forever.config.overrides import dotted_keys, parse_assignments
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.check import Checked, read_tasks
from forever.data.sources import find_tasks
from forever.data.tasks import Benchmark
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import find_search
from forever.yaml_file import to_yaml

ROOT = Path(__file__).parents[2]
KEYS = dotted_keys(RunConfig)
COLUMNS = {"instruction": "Is {colour} warm?", "output": "answer"}
RUNS = [
    load_run("mini/forever").model_dump(mode="json"),
    load_run("superni/7/ssr").model_dump(mode="json"),
    load_run("mini/moelora").model_dump(mode="json"),
    {
        "model": {"adapter": {"peft_type": "IA3"}},
        "data": {
            "benchmark": "mine",
            "order": ["warm"],
            "datasets": {"warm": {"path": "./x", "columns": COLUMNS, "filter": {"a": [1, "b"]}}},
        },
    },
]


def same_again(config: RunConfig | None, folder: Path) -> None:
    """What is accepted survives being written as YAML, and has a name and a fingerprint."""
    if config is None:
        return
    path = folder / "again.yaml"
    path.write_text(to_yaml(config.model_dump(mode="json")), encoding="utf-8")
    again = load_run(str(path))
    assert again == config
    assert again.fingerprint() == config.fingerprint()
    (folder / config.key()).is_file()  # no name is too long or has a NUL


# ---- configurations and assignments


@cases
@given(st.sampled_from(RUNS).flatmap(changed))
def test_changed_configurations(tmp_path: Path, values: Any) -> None:
    attempt(lambda: RunConfig.parse(values))
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    same_again(attempt(lambda: load_run(str(path))), tmp_path)


@cases
@given(st.sampled_from(RUNS).flatmap(lambda run: damaged(yaml.safe_dump(run).encode())))
def test_damaged_configuration_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    same_again(attempt(lambda: load_run(str(path))), tmp_path)


ODD_TEXTS = st.sampled_from(
    ("!!int x", "!!bool x", "!!timestamp x", "2020-99-99", "yes", "010", "1:30", "*a", "&a [*a]")
)
argv = st.binary(max_size=20).map(lambda content: content.decode("utf-8", "surrogateescape"))
texts = argv | ODD_TEXTS | scalars.map(str) | hostile_values.map(json.dumps)
texts |= damaged(b"[1, {a: b}]").map(lambda content: content.decode("latin-1"))
assignments = st.tuples(st.sampled_from(KEYS) | st.text(max_size=12), texts).map("=".join)


def assigned(arguments: list[str]) -> RunConfig:
    return load_run("mini/forever").override(parse_assignments(arguments))


@cases
@given(st.lists(assignments | argv, min_size=1, max_size=3))
def test_assignments(tmp_path: Path, arguments: list[str]) -> None:
    same_again(attempt(lambda: assigned(arguments)), tmp_path)


# ---- sweeps

# Small files that together have all that a sweep's file may have, and two that have the rest.
SHIPPED = ("ablations/components", "ablations/memory_epochs", "experiments/training_time")
SWEEPS = [(ROOT / f"{name}.yaml").read_bytes() for name in SHIPPED]
SWEEPS.append(b"""
title: Rates
seeds: {mini: [0, 1], paper: [0, 1]}
method: forever
space:
  optim.lr: {from: {times: 0.5}, to: {times: 2}, log: true}
  method.clock: {among: [model, steps], label: ''}
  method.beta: {from: 0.1, to: 1, if: {method.clock: [model]}}
spaces: {ewc: {method.strength: {from: 1, to: 9}}}
trials: 3
figures: [pareto, {kind: sensitivity, key: optim.lr, label: rate}]
""")
SWEEPS.append(b"""
reference: a small
variants: {a: {}, b: {optim.clip: 2, reference: a}, c: {method: finetune}, d: {reference: c}}
each: {small: {memory.fraction: 0.1}, large: {memory.fraction: 0.2, named: '{memory.fraction %}'}}
""")


def use_sweep(path: str) -> None:
    file = load_sweep(path)
    base = load_run(file.base_run("mini"))
    if file.is_search:
        find_search(file, base)
    else:
        file.expand(base, (0,)).trials()


@cases
@given(st.sampled_from(SWEEPS).flatmap(damaged))
def test_damaged_sweep_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    attempt(lambda: use_sweep(str(path)))


@cases
@given(st.sampled_from(SWEEPS).map(yaml.safe_load).flatmap(changed))
def test_changed_sweeps(tmp_path: Path, values: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    attempt(lambda: use_sweep(str(path)))


# ---- data


def rows(split: str) -> list[dict[str, str]]:
    row = {"instruction": "Is it?", "output": "y"}
    return [{**row, "input": f"{split} {i}"} for i in range(6)]


def sentences(split: str) -> list[dict[str, str]]:
    return [{"sentence": f"{split} {i}", "label": "ab"[i % 2]} for i in range(6)]


def instances(split: str) -> dict[str, Any]:
    answers = [{"input": f"{split} {i}", "output": ["a", "b"]} for i in range(6)]
    return {"Definition": ["Do it."], "Instances": answers}


# One task in each layout: its files by their path in the benchmark's folder.
LAYOUTS: dict[str, dict[str, Any]] = {
    "ours": {"a/train.jsonl": rows("train"), "a/test.jsonl": rows("test")},
    "types": {
        "SC/a/train.json": sentences("train"),
        "SC/a/test.json": sentences("test"),
        "SC/a/labels.json": ["a", "b"],
    },
    "natural": {"a/train.json": instances("train"), "a/test.json": instances("test")},
    "labelled": {
        "rte/train.json": instances("train"),
        "rte/test.json": instances("test"),
        "rte/labels.json": ["a", "b"],
    },
    "lists": {"train/a.json": rows("train"), "test/a.json": rows("test")},
    "one file": {"task001_a.json": instances("all")},
}


def written(values: Any, path: Path) -> bytes:
    if path.suffix == ".jsonl" and isinstance(values, list):
        return b"".join(json.dumps(value).encode() + b"\n" for value in values)
    return json.dumps(values).encode()


@st.composite
def data_folders(draw: st.DrawFn) -> dict[str, bytes | None]:
    """The files of one layout, of which one is changed, damaged, missing or a folder (None)."""
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    files: dict[str, bytes | None] = {}
    for name, values in layout.items():
        files[name] = written(values, Path(name))
    name = draw(st.sampled_from(sorted(files)))
    kind = draw(st.sampled_from(("changed", "damaged", "damaged", "missing", "folder")))
    if kind == "changed":
        files[name] = written(draw(changed(layout[name])), Path(name))
    elif kind == "damaged":
        files[name] = draw(damaged(written(layout[name], Path(name))))
    elif kind == "missing":
        del files[name]
    else:
        files[name] = None
    return files


@cases
@given(data_folders())
def test_data_folders(tmp_path: Path, files: dict[str, bytes | None]) -> None:
    """What `check` says of a folder, a run says, too."""
    shutil.rmtree(tmp_path / "mine", ignore_errors=True)
    for name, content in files.items():
        path = tmp_path / "mine" / name
        if content is None:
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    checked = attempt(lambda: read_tasks(tmp_path / "mine")) or Checked("")
    names = [task.name for _, task in checked.tasks]
    if names:
        digests = [task.digest() for task in read(tmp_path, names).tasks]
        assert digests == [task.digest() for _, task in checked.tasks]
    for name in {*(attempt(lambda: find_tasks(tmp_path / "mine")) or ())} - {*names}:
        assert attempt(partial(read, tmp_path, [name])) is None
        assert checked.problems


def read(root: Path, order: list[str]) -> Benchmark:
    data = {"benchmark": "mine", "order": order, "root": str(root)}
    return load_benchmark(RunConfig.parse({"data": data}).data)
