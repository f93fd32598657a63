"""Shared fixtures: a benchmark of three tiny tasks and a random two-layer backbone small enough for hundreds of runs."""

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from forever.config import RunConfig
from forever.data.prompts import prompt
from forever.data.tasks import Benchmark, Example, Task

torch.set_num_threads(1)

WORDS = "red green blue round square flat small large heavy light old new soft hard warm cold".split()


def make_task(name: str, question: str, labels: tuple[str, str], rows: int = 24, test: int = 6) -> Task:
    """A task whose label is decided by the first word of the input."""

    def examples(split: str, count: int, offset: int) -> tuple[Example, ...]:
        found = []
        for i in range(count):
            words = [WORDS[(i + offset) % 16], WORDS[(3 * i + offset) % 16], WORDS[(7 * i + len(split)) % 16], str(i)]
            found.append(Example(f"{name}/{split}/{i}", question, f"{split} " + " ".join(words), labels[i % 2]))
        return tuple(found)

    return Task(name, examples("train", rows, 0), examples("test", test, 5), "exact_match", labels)


def make_benchmark() -> Benchmark:
    return Benchmark.sequence(
        "toy",
        "1",
        [
            make_task("colour", "What colour is it? Options: red, blue.", ("red", "blue")),
            make_task("shape", "What shape is it? Options: round, square.", ("round", "square"), rows=30),
            make_task("weight", "What weight is it? Options: heavy, light.", ("heavy", "light"), rows=20),
        ],
    )


@pytest.fixture(scope="session")
def benchmark_of_three() -> Benchmark:
    return make_benchmark()


def save_backbone(folder: Path, benchmark: Benchmark, seed: int = 0) -> Path:
    """A random Qwen3 of two layers with a word-level tokenizer, as a Hugging Face folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    texts = [f"{prompt(e)}{e.output} {' '.join(WORDS)}" for t in benchmark.tasks for e in (*t.train, *t.test)]
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<eos>"]))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory, benchmark_of_three: Benchmark) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"), benchmark_of_three)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory, benchmark_of_three: Benchmark) -> Path:
    """The toy benchmark as a folder in our own layout."""
    import json

    root = tmp_path_factory.mktemp("data")
    for task in benchmark_of_three.tasks:
        for split, rows in (("train", task.train), ("test", task.test)):
            path = root / "toy" / task.name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = ({"instruction": e.instruction, "input": e.input, "output": e.output} for e in rows)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def base_config(backbone_folder: Path, data_root: Path) -> RunConfig:
    """A run on the toy benchmark that takes about a second."""
    return RunConfig.parse(
        {
            "model": {"name": str(backbone_folder), "rank": 4, "alpha": 8, "dropout": 0.0, "max_length": 256},
            "data": {
                "benchmark": "toy",
                "order": ["colour", "shape", "weight"],
                "root": str(data_root),
                "metrics": {"colour": "exact_match", "shape": "exact_match", "weight": "exact_match"},
            },
            "optim": {"lr": 1e-2, "batch_size": 4, "epochs": 3},
            "memory": {"fraction": 0.2},
            "evaluation": {"max_new_tokens": 3},
            "method": {"name": "forever", "warmup_steps": 3},
        }
    )
