"""How near `forever advise` comes to the smallest dose that whole runs need, on pairs of `mini`.

    python -m benchmarks.advise --out DIR

For each of ten pairs all weights of `tiny` learn the first task. Then the advice for the second one
is compared with what eight whole runs say, by the same rule, of doses from none to 60 %.
"""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from forever.config.run import RunConfig
from forever.data.mini import TASKS, mini_task
from forever.hf.advise import advise
from forever.launch.local import Placement, run_local
from forever.world import World

RESULTS = Path(__file__).with_name("advise.json")
DOSES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6)
PAIRS = 10


def main(out: Annotated[Path, typer.Option(help="Folder for the runs.")]) -> None:
    """Add the pairs that are not in the results yet."""
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    names = list(TASKS)
    pairs = [(names[i % 8], names[(i * 3 + i // 8 + 1) % 8]) for i in range(PAIRS + 6)]
    for first, second in [pair for pair in pairs if pair[0] != pair[1]][:PAIRS]:
        if f"{first}, {second}" in results:
            continue
        model = out / first
        learn = {"data.benchmark": "mini", "data.order": [first], "model.name": "tiny"}
        learn |= {"model.tuning": "full", "optim.lr": 1e-3, "method.name": "finetune"}
        if not (model / "result.json").is_file():
            run_local(RunConfig().override(learn), model, placement=Placement(device="cpu"))
        config = RunConfig().override({"model.name": str(model / "model"), "optim.lr": 3e-3})
        (old, _), (new, _) = mini_task(first), mini_task(second)
        advice = advise(config, old, new, World())
        whole = advise(config, old, new, World(), DOSES, cost=100.0)
        results[f"{first}, {second}"] = {
            "advised": [advice.dose, advice.low, advice.high],
            "cost": round(advice.cost, 2),
            "needed": [whole.dose, whole.low, whole.high],
            "pilots": [[p.dose, p.old.value, p.new.value] for p in advice.pilots],
            "whole": [[p.dose, p.old.value, p.new.value] for p in whole.pilots],
        }
        print(first, second, advice.dose, whole.dose, flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
