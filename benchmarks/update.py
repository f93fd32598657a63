"""Speed of one update, against what one would write with PEFT and transformers instead.

The other loop computes logits at every position, and clips, steps and measures the update norm
tensor by tensor. Both train the same adapter on the same batches, in turns within one process, so a
slow spell of the machine hits both; the ratio is what to quote.

    python benchmarks/update.py [--model tiny] [--benchmark mini] [--rounds 7] [--updates 20]
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import typer
from peft import LoraConfig, get_peft_model
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import DataCollatorForSeq2Seq

from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoder
from forever.methods.registry import build_method
from forever.models.backbone import load
from forever.sweeps.named_runs import named_run
from forever.training.build import build_learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step
from forever.training.steps import Step
from forever.training.world import World, pick_device

OURS, PLAIN, RATIO = "ours, ms an update", "plain loop, ms an update", "plain / ours"


def main(
    model: str = "tiny",
    benchmark: str = "mini",
    root: Path | None = None,
    device: str = "auto",
    rounds: int = 7,
    updates: int = 20,
) -> None:
    """Time rounds of updates and print what they took."""
    changes = {"model.name": model, "model.dropout": 0.0, "data.root": root and str(root)}
    config = named_run(f"{benchmark}/finetune").override(changes)
    task = load_benchmark(config.data).tasks[0]
    size = config.optim.batch_size
    batches = [Batch(task.train[i : i + size]) for i in range(0, updates * size, size)]
    world = World(device=pick_device(device))
    ours, theirs = _ours(config, task, world), _plain(config, world)
    for update in (ours, theirs):
        _time(update, batches[:3], world)  # warm-up
    rows: dict[str, list[float]] = {name: [] for name in (OURS, PLAIN, RATIO)}
    for _ in range(rounds):
        rows[OURS].append(1000 * _time(ours, batches, world) / len(batches))
        rows[PLAIN].append(1000 * _time(theirs, batches, world) / len(batches))
        rows[RATIO].append(rows[PLAIN][-1] / rows[OURS][-1])
    title = f"{model}, batch {size}, {world.device}, {torch.get_num_threads()} threads"
    Console().print(_table(title, rows))


def _table(title: str, rows: dict[str, list[float]]) -> Table:
    table = Table(title=title, box=box.SIMPLE)
    for column in ("", "min", "median", "max"):
        table.add_column(column, justify="right")
    for name, values in rows.items():
        table.add_row(name, f"{min(values):.2f}", f"{median(values):.2f}", f"{max(values):.2f}")
    return table


def _time(update: Callable[[Batch], Any], batches: list[Batch], world: World) -> float:
    start = time.perf_counter()
    for batch in batches:
        update(batch)
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _ours(config: Any, task: Any, world: World) -> Callable[[Batch], Any]:
    learner = build_learner(config, world)
    learner.begin(0, task)
    learner.optimizer = build_optimizer(learner.parameters, config.optim)
    method = build_method(config.method)
    return lambda batch: optimizer_step(learner, method, Step(batch))


def _plain(config: Any, world: World) -> Callable[[Batch], Any]:
    dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    backbone = load(config.model.name, dtype, world.device)
    model = config.model
    lora = LoraConfig(
        r=model.rank, lora_alpha=model.alpha, target_modules=list(model.targets), lora_dropout=0.0
    )
    peft = get_peft_model(backbone.model, lora).train()
    trainable = [parameter for parameter in peft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=config.optim.lr, weight_decay=0.0)
    encoder = Encoder(backbone.tokenizer, model.max_length)
    backbone.tokenizer.padding_side = "right"
    collate = DataCollatorForSeq2Seq(backbone.tokenizer)

    def update(batch: Batch) -> float:
        rows: list[dict[str, list[int]]] = []
        for example in map(encoder.encode, batch.examples):
            labels = [*[-100] * len(example.prompt), *example.answer]  # -100 is not learned
            rows.append({"input_ids": [*example.prompt, *example.answer], "labels": labels})
        peft(**collate(rows).to(world.device)).loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        before = [parameter.detach().clone() for parameter in trainable]
        optimizer.step()
        optimizer.zero_grad()
        squares = 0.0
        for parameter, old in zip(trainable, before, strict=True):
            squares += float((parameter.detach() - old).double().pow(2).sum())
        return math.sqrt(squares)

    return update


if __name__ == "__main__":
    typer.run(main)
