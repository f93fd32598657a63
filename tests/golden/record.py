"""Golden numbers: what the rows of the conformance table and two named runs did when recorded.

Work that should not alter the maths must reproduce them. `python tests/golden/record.py [NAME ...]`
writes the files again, all of them or those named; do so only where numbers are meant to move, and
say why in the commit.

A file holds
- `updates`: the first 20 updates, one line each: task, kind, loss, update norm, penalty, beta;
- `events`: all events, one line each: task, kind, step, day, beta, updates, rows;
- `decisions`: digests of what was decided in the whole run, without a single rounded number;
- `matrix` and `op`: the scores;
- `bitwise`: digests of the final weights and of all answers;
- `machine`: on what it was recorded. Bits are compared on such a machine only.
"""

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# As a script: the packages, then the helpers of the tests.
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
import transformers
from helpers import (
    CONFIGS,
    Outcome,
    canned_sample,
    execute,
    lines,
    make_benchmark,
    outcome,
    save_backbone,
    save_data,
    small_toy_config,
    toy_config,
)

from forever.config.run import RunConfig
from forever.evaluation import decoding
from forever.sweeps.named_runs import named_run
from forever.training import step as step_module
from forever.training.learner import Learner
from forever.training.steps import Step, StepRecord

FOLDER = Path(__file__).parent
MINI = ("mini/forever", "mini/finetune")
NAMES = (*CONFIGS, *MINI)
FIRST = 20
UPDATE_FIELDS = ("task", "kind", "loss", "update_norm", "penalty", "beta")
EVENT_FIELDS = ("task", "kind", "step", "day", "beta", "updates", "rows")


def toy_run(folder: Path) -> RunConfig:
    """The run from which the rows differ; its backbone and its data are put into `folder`."""
    benchmark = make_benchmark()
    backbone = save_backbone(folder / "backbone", benchmark)
    return small_toy_config(toy_config(backbone, save_data(folder / "data", benchmark)))


def config_of(name: str, toy: RunConfig) -> RunConfig:
    """The configuration of a row of the conformance table, or of a run such as `mini/forever`."""
    if name in MINI:
        return named_run(name)
    return RunConfig.parse(toy.model_dump(mode="json") | {"method": CONFIGS[name]})


class Watch:
    """What no file of a run tells: the examples of each batch, and the memory in the end."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.memory: dict[str, list[str]] = {}
        self._learner: Learner | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch every update, and let the random model write text that can be parsed."""
        update = step_module.optimizer_step

        def watched(learner: Learner, method: Any, step: Step) -> StepRecord:
            self._learner = learner
            self.batches.append([example.id for example in step.batch.examples])
            return update(learner, method, step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_module, "optimizer_step", watched)
            patch.setattr(decoding, "sample", canned_sample)
            yield
        assert self._learner is not None
        for task, examples in self._learner.memory.kept.items():
            self.memory[task] = [example.id for example in examples]


def measure(name: str, toy: RunConfig, folder: Path) -> dict[str, Any]:
    """Run one row in `folder` and return what its golden file should hold."""
    watch = Watch()
    with watch.on():
        execute(config_of(name, toy), folder)
    steps, events = lines(folder / "steps.jsonl"), lines(folder / "events.jsonl")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {
        "name": name,
        "updates": columns(steps[:FIRST], UPDATE_FIELDS),
        "events": columns(events, EVENT_FIELDS),
        "decisions": {
            "updates": digest(columns(steps, ("task", "kind", "step", "epoch", "rows", "tokens"))),
            "examples": digest(watch.batches),
            "memory": digest(sorted(watch.memory.items())),
            "events": digest(columns(events, ("task", "kind", "step", "day", "updates", "rows"))),
        },
        "matrix": result["matrix"],
        "op": result["op"],
        "bitwise": bitwise(outcome(folder)),
        "machine": machine(),
    }


def columns(journal: Sequence[dict[str, Any]], fields: Sequence[str]) -> list[list[Any]]:
    """The values of `fields` in each line of a journal."""
    return [[line[field] for field in fields] for line in journal]


def bitwise(run: Outcome) -> dict[str, str]:
    """Digests of the final weights, in the order of their names, and of all answers."""
    weights = [run.adapter[name].float().numpy().tobytes().hex() for name in sorted(run.adapter)]
    answers = []
    for path in sorted(path for path in run.files if path.startswith("predictions")):
        answers += [json.loads(line)["prediction"] for line in run.files[path].splitlines()]
    return {"weights": digest(weights), "answers": digest(answers)}


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def machine() -> dict[str, Any]:
    """All on which the rounding of a run depends."""
    about = dict.fromkeys(("model name", "cpu family", "model", "stepping", "flags"), "")
    linux = Path("/proc/cpuinfo")
    for line in linux.read_text(encoding="utf-8").splitlines() if linux.is_file() else ():
        key, _, value = line.partition(":")
        if key.strip() in about:
            about[key.strip()] = value.strip()
    flags = about.pop("flags")
    limits = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
    return {
        "processor": " ".join(about.values()) or platform.processor(),
        "flags": digest(sorted(flags.split()))[:12],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "limits": {name: os.environ[name] for name in limits if name in os.environ},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def path_of(name: str) -> Path:
    """Where the golden file of a row lies."""
    return FOLDER / f"{name.replace(' ', '_').replace('/', '_')}.json"


def stored(name: str) -> dict[str, Any]:
    return json.loads(path_of(name).read_text(encoding="utf-8"))


def write(golden: dict[str, Any]) -> None:
    """Write a golden file, an update and an event to a line, so that differences can be read."""
    parts = []
    for key, value in golden.items():
        text = json.dumps(value)
        if key in ("updates", "events") and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(line)}" for line in value) + "\n ]"
        parts.append(f' "{key}": {text}')
    path_of(golden["name"]).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main(names: Sequence[str]) -> None:
    """Record the rows `names`, or all."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    torch.set_num_threads(1)  # as in the tests
    with tempfile.TemporaryDirectory() as folder:
        toy = toy_run(Path(folder))
        for name in names or NAMES:
            write(measure(name, toy, Path(folder) / "runs" / path_of(name).stem))
            print(path_of(name).name)


if __name__ == "__main__":
    main(sys.argv[1:])
