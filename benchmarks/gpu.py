"""What a GPU gives: training and answers of a model of 0.6 billion parameters with random weights.

    python -m benchmarks.gpu DATA TOKENIZER [--at-once 8]

Pace does not depend on what weights are, and such a model needs no download. Each figure is printed
as it is measured; all are of the four short tasks of superni/7, on a GPU in bf16.
"""

import tempfile
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from benchmarks.cases import Case, answers, memory, seconds, train, training
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.methods.registry import build_method
from forever.sweeps.named_runs import named_run
from forever.training.build import build_learner
from forever.world import World, pick_device

# Of Qwen3-0.6B.
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


def main(
    root: Path, tokenizer: Path, at_once: int = 8, for_s: float = 5.0, layers: int = 28
) -> None:
    """Measure, and print; with fewer layers a machine without a GPU can try it."""
    world = World(device=pick_device("auto"))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        make(model, tokenizer, layers)
        changes = {"model.name": str(model), "model.dropout": 0.0, "data.root": str(root)}
        config = named_run("cpu/superni/7/finetune").override(changes | {"data.train_rows": 1000})
        for size in (8, 64, 256):
            sized = config.override({"optim.batch_size": size})
            print(f"batches of {size}: {pace(sized, for_s)}", flush=True)
            print(f"  kernels that may not repeat: {pace(sized, for_s, False)}", flush=True)
        with get_context("spawn").Pool(at_once) as pool:
            print(f"{at_once} at once:", *pool.starmap(pace, [(config, 2 * for_s)] * at_once))
        show(training("four tasks", 6.0, config, 3, world, batches=4))
        show(memory("four tasks", config, Path(folder)))
        for case in answers("four tasks", config, world):
            show(case)


def make(folder: Path, tokenizer: Path, layers: int) -> None:
    """Write the model, with the tokenizer of another."""
    torch.manual_seed(0)
    tokens = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    ends = {"eos_token_id": tokens.eos_token_id, "pad_token_id": tokens.pad_token_id}
    shape = SHAPE | ends | {"num_hidden_layers": layers, "bos_token_id": None}
    with torch.device(pick_device("auto")):
        Qwen3ForCausalLM(Qwen3Config(**shape)).bfloat16().save_pretrained(folder)
    tokens.save_pretrained(folder)


def pace(config: RunConfig, for_s: float, repeatable: bool = True) -> str:
    """Train for some seconds: two batches of each task in turn, each task's first at its start."""
    world = World(device=pick_device("auto"))
    learner = build_learner(config, build_method(config.method), world)
    tasks = load_benchmark(config.data).tasks
    torch.use_deterministic_algorithms(repeatable)
    for task in tasks:
        train(learner, task, task.train[: config.optim.batch_size])
    examples = tokens = 0
    begun, took_s = perf_counter(), 0.0
    for task in cycle(tasks):
        chosen = task.train[: 2 * config.optim.batch_size]
        seconds(lambda: train(learner, task, chosen), world)  # noqa: B023 - called at once
        examples += len(chosen)
        tokens += sum(len(e.prompt) + len(e.answer) for e in map(learner.encoder.encode, chosen))
        took_s = perf_counter() - begun
        if took_s > for_s:
            break
    update_ms = 1000 * took_s * config.optim.batch_size / examples
    return f"{examples / took_s:.1f} examples/s, {tokens / took_s:.0f} tokens/s, {update_ms:.0f} ms"


def show(case: Case) -> None:
    """Print what was measured."""
    print(case.name, [round(value, 2) for value in case.values], case.unit, flush=True)


if __name__ == "__main__":
    typer.run(main)
