"""The embedded benchmark and backbone are what they must be for a demo to be honest."""

import hashlib
import re
from typing import Any

import pytest
from helpers import execute

from forever.data.mini import mini
from forever.models.location import TINY
from forever.sweeps.named_runs import named_run

CLASSIFICATION = ("sentiment", "topic", "place", "happened")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Upper bound, lower bound, and replay in between."""
    folder = tmp_path_factory.mktemp("mini")
    return {
        name: execute(named_run(f"mini/{name}"), folder / name)
        for name in ("finetune", "mtl", "mix_replay")
    }


def test_five_tasks_of_plain_english() -> None:
    benchmark = mini()
    assert [len(task.train) for task in benchmark.tasks] == [200] * 5
    assert [len(task.test) for task in benchmark.tasks] == [100] * 5
    assert sorted(task.metric for task in benchmark.tasks) == ["exact_match"] * 4 + ["rouge_l"]
    assert {task.name for task in benchmark.tasks if task.labels} == set(CLASSIFICATION)
    for task in benchmark.tasks:
        inputs = [example.input for example in (*task.train, *task.test)]
        assert len(set(inputs)) == 300  # no row twice, none in both splits
        instruction = task.train[0].instruction
        assert all(label in instruction for label in task.labels or ())  # options are listed
        for label in task.labels or ():
            assert sum(e.output == label for e in task.test) == 100 / len(task.labels or ())
    assert benchmark == mini()
    assert benchmark.tasks[0].test != mini(seed=1).tasks[0].test


def test_weights_are_the_ones_of_the_recipe() -> None:
    weights = TINY / "model.safetensors"
    assert weights.stat().st_size <= 4e6
    (recorded,) = re.findall(
        r"sha256 `([0-9a-f]{64})`", (TINY / "README.md").read_text(encoding="utf-8")
    )
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == recorded


@pytest.mark.slow
def test_there_is_something_to_learn_to_forget_and_to_win_back(
    results: dict[str, dict[str, Any]],
) -> None:
    """Margins are wide: rounding moves OP of fine-tuning by five points, and the others by less."""
    op = {name: result["op"] for name, result in results.items()}
    learned = [row[i] for i, row in enumerate(results["finetune"]["matrix"])]
    assert op["mtl"] > 85
    assert op["finetune"] < op["mtl"] - 20
    assert results["finetune"]["bwt"] <= -20
    assert min(learned) >= 80  # each task was learned when it was its turn; chance is 50
    assert op["mix_replay"] - op["finetune"] > (op["mtl"] - op["finetune"]) / 3
