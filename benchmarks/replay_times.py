"""After which update of a task model day 7 comes on a real model, by schedule of the rate and size
of the batch. The paper has update 140 to 180 with S = 24 (docs/protocol.md#replay-times).

FOREVER trains a single task until day 7: the clock needs no memory, and the planned length of the
task, to which a linear decay refers, stays the whole one.

    python -m benchmarks.replay_times --model NAME --root DATA [--batches 8,32] [--updates 320]
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
import typer

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.files import read_json
from forever.methods.registry import build_method
from forever.runs.environment import describe
from forever.sweeps.named_runs import named_run
from forever.training.build import build_learner
from forever.training.optim import build_optimizer
from forever.training.step import perform
from forever.training.steps import Action, StepRecord, drive
from forever.world import World, pick_device

RESULTS = Path(__file__).with_name("replay_times.json")
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"optim.warmup_steps": 0, "optim.schedule": "constant"},
    "warm-up 10": {"optim.warmup_steps": 10, "optim.schedule": "constant"},
    "laboratory": {"optim.warmup_steps": 50, "optim.schedule": "linear"},
}


def main(
    model: str = "tiny",
    root: Path | None = None,
    run: str = "superni/7/forever",
    task: str = "task363",
    schedules: str = ",".join(SCHEDULES),
    batches: str = "8",
    seed: int = 0,
    updates: int = 320,
    device: str = "auto",
    out: Path = RESULTS,
) -> None:
    """Measure each schedule with each size of batch for at most N updates, print a line each
    and write them to a file, beside what it has of other schedules and sizes."""
    world = World(device=pick_device(device))
    base = named_run(run).override({"model.name": model, "data.root": root and str(root)})
    base = base.override({"data.order": [task], "seed": seed})
    place = describe()
    made = {key: place[key] for key in ("cpu", "revision")} | {"threads": torch.get_num_threads()}
    content = {"model": Path(model).name, "run": run, "task": task, "seed": seed}
    measured: dict[tuple[str, int], dict[str, Any]] = {}
    if out.is_file():
        before = read_json(out)
        if before | content != before:
            raise typer.BadParameter(f"{out} is of another model, task or seed; give another --out")
        for line in before["measured"]:
            measured[line["schedule"], line["batch"]] = line
    print("schedule     batch  planned  day 7   share clock  seconds")
    for name in schedules.split(","):
        for batch_size in map(int, batches.split(",")):
            config = base.override({**SCHEDULES[name], "optim.batch_size": batch_size})
            line = {"schedule": name, "batch": batch_size, **made}
            line |= first_week(config, updates, world)
            shown = "never" if line["day_7"] is None else f"{line['day_7']}"
            share = "" if line["day_7"] is None else f"{line['day_7'] / line['planned']:.1%}"
            print(
                f"{name:12} {batch_size:5} {line['planned']:8} {shown:>6} {share:>7} "
                f"{line['clock']:5.2f} {line['seconds']:8.0f}",
                flush=True,
            )
            measured[name, batch_size] = line
            content["measured"] = [*measured.values()]
            out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def first_week(config: RunConfig, updates: int, world: World) -> dict[str, Any]:
    """Train the only task of a run until day 7 has come, or for N updates.

    Returns `planned`, the updates of the whole task; `day_7`, the update after which it came, or
    None; `clock`, the days that the clock showed in the end, and `days`, after each tenth update.
    """
    (task,) = load_benchmark(config.data).tasks
    method = build_method(config.method)
    learner = build_learner(config, method, world)
    learner.begin(0, task)
    learner.optimizer = build_optimizer(learner.parameters, config.optim)

    def train(action: Action) -> StepRecord:
        record = perform(learner, method, action)
        learner.count(action, record)
        return record

    clock: list[float] = []
    begun = time.perf_counter()
    for _ in drive(method.steps(learner, task), train):
        clock.append(round(learner.gauges["days"] or 0.0, 3))
        if learner.notes["day_7"] is not None or learner.step == updates:
            break
    return {
        "planned": learner.planned_steps,
        "day_7": learner.notes["day_7"],
        "clock": clock[-1],
        "days": clock[9::10],
        "seconds": round(time.perf_counter() - begun, 1),
    }


if __name__ == "__main__":
    typer.run(main)
