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


def test_when_it_looks_and_what_it_sees(small_config: RunConfig, tmp_path: Path) -> None:
    """Three tasks of four updates each; the losses are means over the kept rows, row by row with
    the weights at the end of the run."""
    settings = {"method.name": "finetune", "method.probe_every": 2, "memory.fraction": 0.75}
    config = small_config.override(settings)
    result = execute(config, tmp_path)
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
    learner = build_learner(config, World(device=torch.device("cpu")))
    tasks = load_benchmark(config.data).tasks
    for task in tasks:
        learner.memory.add(task)
    load_adapter(learner.backbone.model, tmp_path / "adapter")
    for task in tasks[:2]:
        kept = learner.memory.kept[task.name]
        assert len(kept) == 6  # a batch of four and one of two
        loss = 0.0
        for batch in (kept[:4], kept[4:]):
            loss += len(batch) * probe(learner, Probe(Batch(batch))).loss
        assert looks[-1]["losses"][task.name] == pytest.approx(loss / 6, rel=1e-6)
