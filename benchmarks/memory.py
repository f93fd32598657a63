"""Peak memory of a process that trains one batch, ours over `Trainer` and PEFT.

    python -m benchmarks.memory ours|theirs RUN.yaml

prints the bytes while it trains: of the GPU if there is one, else the process's largest resident
size once the model is loaded. The model itself is in it.
"""

import gc
import subprocess
import sys
from pathlib import Path

import torch
import yaml

from benchmarks.case import Case
from benchmarks.training import train, trainer_seconds, with_peft
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoder
from forever.methods.registry import build_method
from forever.training.build import build_learner
from forever.world import World, pick_device


def memory(name: str, config: RunConfig, folder: Path) -> Case:
    """The first batch of the task with the longest examples, a process each."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    used: list[int] = []
    for side in ("ours", "theirs"):
        command = [sys.executable, "-m", "benchmarks.memory", side, str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        used.append(int(output.split()[-1]))
    return Case(f"peak memory over Trainer and PEFT, {name}", 0.6, "x cost", [used[0] / used[1]])


def main(side: str, path: str) -> None:
    """Train one batch and print the peak."""
    config = RunConfig.parse(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    world = World(device=pick_device("auto"))
    tasks = load_benchmark(config.data).tasks
    task = max(tasks, key=lambda task: sum(len(e.instruction + e.input) for e in task.train[:8]))
    examples = task.train[: config.optim.batch_size]
    if side == "ours":
        learner = build_learner(config, build_method(config.method), world)
        _forget_peak()
        train(learner, task, examples)
    else:
        theirs = with_peft(config, world)
        encoder = Encoder(theirs.tokenizer, config.model.max_length)
        _forget_peak()
        trainer_seconds(theirs, config, encoder, examples, world)
    print(_peak())


def _forget_peak() -> None:
    """Loading needs more than training."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split()[0]: line.split()[1:] for line in lines}
    return 1024 * int(sizes["VmHWM:"][0])


if __name__ == "__main__":
    main(*sys.argv[1:])
