"""The embedded benchmark and backbone are what they must be for a demo to be honest."""

import hashlib
import random
import re
from pathlib import Path

import pytest
from helpers import execute

from forever.config.parts import DataConfig
from forever.data.benchmarks import load_benchmark
from forever.data.mini import mini_task
from forever.models.location import TINY
from forever.sweeps.named_runs import named_run
from scripts.tiny_corpus import draw

# What published runs were trained on.
DIGESTS = ["c620ad9d0fd3", "05dda379ed38", "b86546bb7544", "f385c10655af", "04f6cebf0e7e"]


def test_five_tasks_of_plain_english() -> None:
    tasks = load_benchmark(DataConfig(order="1")).tasks
    assert [task.digest() for task in tasks] == DIGESTS
    assert [len(task.train) for task in tasks] == [200] * 5
    assert [len(task.test) for task in tasks] == [100] * 5
    assert [task.name for task in tasks if task.metric == "rouge_l"] == ["past_tense"]
    for task in tasks:
        inputs = [example.input for example in (*task.train, *task.test)]
        assert len(set(inputs)) == 300  # no row twice, none in both splits
        for label in task.labels or ():
            assert label in task.train[0].instruction  # options are listed
            assert sum(example.output == label for example in task.test) == 50
    assert mini_task("topic", seed=1) != mini_task("topic")


def test_the_corpus_of_the_backbone_did_not_change() -> None:
    """Nothing of it gives `mini` away: each draw checks that."""
    rng = random.Random("corpus")
    drawn = [draw(rng) for _ in range(2000)]
    text = repr([(example.instruction, example.input, example.output) for example in drawn])
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "8a881aa4aa82"


def test_weights_are_the_ones_of_the_recipe() -> None:
    weights = TINY / "model.safetensors"
    assert weights.stat().st_size <= 4e6
    record = (TINY / "README.md").read_text(encoding="utf-8")
    (recorded,) = re.findall(r"sha256 `([0-9a-f]{64})`", record)
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == recorded


@pytest.mark.slow
def test_there_is_something_to_learn_to_forget_and_to_win_back(tmp_path: Path) -> None:
    """Upper bound, lower bound, and replay in between.

    Margins are wide: rounding moves OP of fine-tuning by five points, and the others by less.
    """
    names = ("finetune", "mtl", "mix_replay")
    results = {name: execute(named_run(f"mini/{name}"), tmp_path / name) for name in names}
    op = {name: result["op"] for name, result in results.items()}
    learned = [row[i] for i, row in enumerate(results["finetune"]["matrix"])]
    assert op["mtl"] > 85
    assert op["finetune"] < op["mtl"] - 20
    assert results["finetune"]["bwt"] <= -20
    assert min(learned) >= 80  # each task was learned when it was its turn; chance is 50
    assert op["mix_replay"] - op["finetune"] > (op["mtl"] - op["finetune"]) / 3
