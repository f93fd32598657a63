"""Speed of one update, against what one would write with PEFT and transformers instead.

The other loop computes logits at every position and lets the model take the loss, one tensor at a
time through AdamW and clipping, and measures the update norm tensor by tensor. Both train the same
adapter on the same batches, in turns within one process, so a slow spell of the machine hits both;
the ratio is what to quote.

    python benchmarks/update.py [--model tiny] [--benchmark mini] [--rounds 7] [--updates 20]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from rich import box
from rich.console import Console
from rich.table import Table

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
    config = named_run(f"{arguments.benchmark}/finetune").override(
        {
            "model.name": arguments.model,
            "data.root": arguments.root and str(arguments.root),
            "model.dropout": 0.0,
        }
    )
    task = load_benchmark(config.data).tasks[0]
    size = config.optim.batch_size
    batches = [Batch(task.train[i : i + size]) for i in range(0, arguments.updates * size, size)]
    world = World(device=pick_device(arguments.device))
    ours, theirs = _ours(config, task, world), _plain(config, world)
    _time(ours, batches[:3], world), _time(theirs, batches[:3], world)  # warm-up
    pairs = [
        (_time(ours, batches, world), _time(theirs, batches, world))
        for _ in range(arguments.rounds)
    ]
    table = Table(
        title=f"{arguments.model}, batch {size}, {world.device}, {torch.get_num_threads()} threads",
        box=box.SIMPLE,
    )
    for column in ("", "min", "median", "max"):
        table.add_column(column, justify="right")
    rows = {
        "ours, ms an update": [1000 * a / len(batches) for a, _ in pairs],
        "plain loop, ms an update": [1000 * b / len(batches) for _, b in pairs],
        "plain / ours": [b / a for a, b in pairs],
    }
    for name, values in rows.items():
        table.add_row(name, *(f"{f(values):.2f}" for f in (min, median, max)))
    Console().print(table)


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
    trainable = [p for p in peft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=config.optim.lr, weight_decay=0.0)
    encoder = Encoder(backbone.tokenizer, model.max_length)
    pad = backbone.tokenizer.pad_token_id

    def update(batch: Batch) -> float:
        rows = [encoder.encode(example) for example in batch.examples]
        width = max(len(row.prompt) + len(row.answer) for row in rows)
        ids = torch.tensor(
            [[*r.prompt, *r.answer, *[pad] * (width - len(r.prompt) - len(r.answer))] for r in rows]
        )
        labels = torch.tensor(
            [
                [
                    *[-100] * len(r.prompt),
                    *r.answer,
                    *[-100] * (width - len(r.prompt) - len(r.answer)),
                ]
                for r in rows
            ]
        )
        mask = torch.tensor(
            [[int(i < len(r.prompt) + len(r.answer)) for i in range(width)] for r in rows]
        )
        inputs = {"input_ids": ids, "labels": labels, "attention_mask": mask}
        peft(**{name: tensor.to(world.device) for name, tensor in inputs.items()}).loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        before = [p.detach().clone() for p in trainable]
        optimizer.step()
        optimizer.zero_grad()
        return (
            sum(
                float((p.detach() - b).double().pow(2).sum())
                for p, b in zip(trainable, before, strict=True)
            )
            ** 0.5
        )

    return update


if __name__ == "__main__":
    main()
