"""The embedded benchmark and backbone are what they must be for a demo to be honest."""

import hashlib
import random
import re
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from helpers import execute, lines

from forever.config.parts import DataConfig
from forever.data.benchmarks import load_benchmark
from forever.data.mini import TASKS, Scene, mini_task
from forever.models.location import TINY
from forever.sweeps.named_runs import named_run
from scripts.tiny_corpus import draw

# What published runs were trained on.
DIGESTS = [
    "0a736b60b035",
    "eca211459ec1",
    "399942436648",
    "83b9db643495",
    "115e7d03d390",
    "c16b2a695884",
    "1ade3281bda1",
    "fb17726ae933",
]


def test_eight_tasks_of_plain_english() -> None:
    tasks = load_benchmark(DataConfig(order="1")).tasks
    assert [task.digest() for task in tasks] == DIGESTS
    assert [len(task.train) for task in tasks] == [160] * 8
    assert [len(task.test) for task in tasks] == [60] * 8
    assert [task.name for task in tasks if task.metric == "rouge_l"] == ["past_tense"]
    for task in tasks:
        inputs = [example.input for example in (*task.train, *task.test)]
        assert len(set(inputs)) == 220  # no row twice, none in both splits
        for label in task.labels or ():
            assert sum(example.output == label for example in task.test) * len(task.labels) == 60
    assert mini_task("topic", seed=1) != mini_task("topic")


def test_tasks_contradict_each_other() -> None:
    """Most tasks have the same answers, and their questions do not agree: only the instruction says
    which one is meant."""
    shared = [task for task in TASKS.values() if task.labels == ("no", "yes")]
    assert len(shared) == 5
    rng = random.Random(0)
    scenes = [Scene.draw(rng) for _ in range(2000)]
    for one, other in combinations(shared, 2):
        alike = fmean(one.answer(scene) == other.answer(scene) for scene in scenes)
        assert 0.4 < alike < 0.6


def test_the_corpus_of_the_backbone_did_not_change() -> None:
    """Nothing of it gives `mini` away: each draw checks that."""
    rng = random.Random("corpus")
    drawn = [draw(rng) for _ in range(2000)]
    text = repr([(example.instruction, example.input, example.output) for example in drawn])
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "504d6f6bd492"


def test_weights_are_the_ones_of_the_recipe() -> None:
    weights = TINY / "model.safetensors"
    assert weights.stat().st_size <= 4e6
    record = (TINY / "README.md").read_text(encoding="utf-8")
    (recorded,) = re.findall(r"sha256 `([0-9a-f]{64})`", record)
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == recorded


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Of the two bounds, and of a method between them."""
    folder, names = tmp_path_factory.mktemp("mini"), ("finetune", "mtl", "mix_replay")
    return {name: execute(named_run(f"mini/{name}"), folder / name) for name in names}


@pytest.mark.slow
def test_there_is_something_to_learn_to_forget_and_to_win_back(
    results: dict[str, dict[str, Any]],
) -> None:
    """What docs/benchmark.md measures, with margins that no processor's rounding exceeds."""
    op = {name: result["op"] for name, result in results.items()}
    learned = [row[i] for i, row in enumerate(results["finetune"]["matrix"])]
    assert op["mtl"] > 90
    assert op["finetune"] < op["mtl"] - 20
    assert min(learned) >= 85  # each task was learned when it was its turn
    assert op["mix_replay"] - op["finetune"] > (op["mtl"] - op["finetune"]) / 3


@pytest.mark.slow
def test_a_task_goes_as_the_paper_describes_it(tmp_path: Path) -> None:
    """Updates do not die, so that day 7 comes where the paper has it and day 30 comes, and what
    holds a replay to the past is about as large as its loss."""
    tasks = ["sentiment", "happened", "advice"]
    config = named_run("mini/forever").override({"data.order": tasks})
    execute(config, tmp_path / "run")
    steps = lines(tmp_path / "run" / "steps.jsonl")
    events = lines(tmp_path / "run" / "events.jsonl")
    for name in tasks:
        norms = [
            line["update_norm"] for line in steps if (line["task"], line["kind"]) == (name, "task")
        ]
        assert fmean(norms[80:]) > 0.3 * fmean(norms[:2])
    for name in tasks[1:]:
        steps_of = {event["day"]: event["step"] for event in events if event["task"] == name}
        assert 7 <= steps_of[7] <= 25
        assert 30 in steps_of
    held = [line for line in steps if line["penalty"]]
    penalty, loss = (fmean(line[name] for line in held) for name in ("penalty", "loss"))
    assert loss / 10 < penalty < 10 * loss
