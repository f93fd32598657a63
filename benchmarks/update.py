"""Speed of one update, against what one would write with PEFT and transformers instead.

The other loop computes logits at every position and lets the model take the loss, one tensor at a
time through AdamW and clipping, and measures the update norm tensor by tensor. Both train the same
adapter on the same batches, in turns within one process, so a slow spell of the machine hits both;
the ratio is what to quote.

    python benchmarks/update.py [--model tiny] [--benchmark mini] [--rounds 7] [--updates 20]
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoded, Encoder
from forever.methods.registry import build_method
from forever.models.backbone import load
from forever.sweeps.named_runs import named_run
from forever.training.build import build_learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step
from forever.training.steps import Step
from forever.training.world import World, pick_device

OURS, PLAIN, RATIO = "ours, ms an update", "plain loop, ms an update", "plain / ours"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--benchmark", default="mini")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=20)
    arguments = parser.parse_args()
    changes = {"model.name": arguments.model, "model.dropout": 0.0}
    changes["data.root"] = arguments.root and str(arguments.root)
    config = named_run(f"{arguments.benchmark}/finetune").override(changes)
    task = load_benchmark(config.data).tasks[0]
    size = config.optim.batch_size
    batches = [Batch(task.train[i : i + size]) for i in range(0, arguments.updates * size, size)]
    world = World(device=pick_device(arguments.device))
    ours, theirs = _ours(config, task, world), _plain(config, world)
    for update in (ours, theirs):
        _time(update, batches[:3], world)  # warm-up
    rows: dict[str, list[float]] = {name: [] for name in (OURS, PLAIN, RATIO)}
    for _ in range(arguments.rounds):
        rows[OURS].append(1000 * _time(ours, batches, world) / len(batches))
        rows[PLAIN].append(1000 * _time(theirs, batches, world) / len(batches))
        rows[RATIO].append(rows[PLAIN][-1] / rows[OURS][-1])
    title = f"{arguments.model}, batch {size}, {world.device}, {torch.get_num_threads()} threads"
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
    pad = backbone.tokenizer.pad_token_id

    def update(batch: Batch) -> float:
        encoded = [encoder.encode(example) for example in batch.examples]
        peft(**_inputs(encoded, pad, world.device)).loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        before = [parameter.detach().clone() for parameter in trainable]
        optimizer.step()
        optimizer.zero_grad()
        squares = 0.0
        for parameter, old in zip(trainable, before, strict=True):
            squares += float((parameter.detach() - old).double().pow(2).sum())
        return math.sqrt(squares)

    return update


def _inputs(encoded: Sequence[Encoded], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Pad ids on the right; labels of -100 are not learned."""
    width = max(len(example.prompt) + len(example.answer) for example in encoded)
    ids = torch.full((len(encoded), width), pad)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, example in enumerate(encoded):
        start, end = len(example.prompt), len(example.prompt) + len(example.answer)
        ids[row, :end] = torch.tensor(example.prompt + example.answer)
        labels[row, start:end] = torch.tensor(example.answer)
        mask[row, :end] = 1
    inputs = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    return {name: tensor.to(device) for name, tensor in inputs.items()}


if __name__ == "__main__":
    main()
