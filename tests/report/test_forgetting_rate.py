"""The forgetting rate: looks at the loss on earlier tasks, from which nothing is learned."""

from pathlib import Path

import pytest
import torch
from helpers import execute, lines, load_adapter

from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.training.build import build_learner
from forever.training.step import probe
from forever.training.steps import Probe
from forever.training.world import World


@pytest.fixture
def looking(small_config: RunConfig) -> RunConfig:
    """Three tasks of four updates each."""
    return small_config.override(
        {"method.name": "finetune", "method.probe_every": 2, "memory.fraction": 0.75}
    )


def test_when_and_at_what_it_looks(looking: RunConfig, tmp_path: Path) -> None:
    result = execute(looking, tmp_path)
    looks = lines(tmp_path / "events.jsonl")
    assert [(look["task"], look["step"], list(look["losses"])) for look in looks] == [
        (task, step, earlier)
        for task, earlier in (("shape", ["colour"]), ("weight", ["colour", "shape"]))
        for step in (0, 2, 4)
    ]
    assert result["events"] == {"colour": {}, "shape": {"look": 3}, "weight": {"look": 3}}
    assert result["rows_seen"] == {"task": 48}
    # Nothing happens between the end of a task and the beginning of the next.
    assert looks[2]["losses"]["colour"] == looks[3]["losses"]["colour"]
    assert looks[1]["losses"]["colour"] != looks[2]["losses"]["colour"]


def test_the_loss_is_the_mean_over_kept_rows(looking: RunConfig, tmp_path: Path) -> None:
    """Against the same loss row by row, with the weights at the end of the run."""
    execute(looking, tmp_path)
    learner = build_learner(looking, World(device=torch.device("cpu")))
    tasks = load_benchmark(looking.data).tasks
    for task in tasks:
        learner.memory.add(task)
    load_adapter(learner.backbone.model, tmp_path / "adapter")
    last = lines(tmp_path / "events.jsonl")[-1]
    for task in tasks[:2]:
        kept = learner.memory.kept[task.name]
        assert len(kept) == 6  # a batch of four and one of two
        loss = 0.0
        for batch in (kept[:4], kept[4:]):
            loss += len(batch) * probe(learner, Probe(Batch(batch))).loss
        assert last["losses"][task.name] == pytest.approx(loss / 6, rel=1e-6)
