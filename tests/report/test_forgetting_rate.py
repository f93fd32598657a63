"""The forgetting rate: probes of the loss on earlier tasks, from which nothing is learned."""

from operator import mul
from pathlib import Path

import pytest
import torch
from helpers import execute, lines, load_adapter

from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.methods.registry import build_method
from forever.training.build import build_learner
from forever.training.step import probe
from forever.training.steps import Probe
from forever.world import World


def test_when_the_loss_is_probed_and_what_it_is(small_config: RunConfig, tmp_path: Path) -> None:
    """Three tasks of four updates each; the losses are means over the answers' tokens of all kept
    examples, with the weights at the end of the run."""
    order = ["weight", "colour", "shape"]  # the answers of the first are not of one length
    settings = {"method.name": "finetune", "method.probe_every": 2, "memory.fraction": 0.75}
    config = small_config.override(settings | {"data.order": order})
    result = execute(config, tmp_path)
    probes = lines(tmp_path / "events.jsonl")
    assert [(line["task"], line["step"], list(line["losses"])) for line in probes] == [
        (task, step, earlier)
        for task, earlier in (("colour", ["weight"]), ("shape", ["weight", "colour"]))
        for step in (0, 2, 4)
    ]
    assert result["events"] == {"weight": {}, "colour": {"look": 3}, "shape": {"look": 3}}
    assert result["rows_seen"] == {"task": 48}
    norms = [line["update_norm"] for line in lines(tmp_path / "steps.jsonl")]
    for probe_, sum_ in zip(probes, [0, sum(norms[4:6]), sum(norms[4:8])] * 2, strict=False):
        if probe_["task"] == "colour":
            assert probe_["tau"] == pytest.approx(sum_)
            assert (
                0 <= probe_["distance"] <= probe_["tau"] + 1e-6
            )  # no way is shorter than straight
        if probe_["step"] == 0:
            assert (probe_["tau"], probe_["distance"]) == (0, 0)
            assert list(probe_["kl"].values()) == pytest.approx([0] * len(probe_["kl"]), abs=1e-6)
    # Nothing happens between the end of a task and the beginning of the next.
    assert probes[2]["losses"]["weight"] == probes[3]["losses"]["weight"]
    assert probes[1]["losses"]["weight"] != probes[2]["losses"]["weight"]
    learner = build_learner(config, build_method(config.method), World(device=torch.device("cpu")))
    tasks = load_benchmark(config.data).tasks
    for task in tasks:
        learner.memory.add(task)
    load_adapter(learner.backbone.model, tmp_path / "adapter")
    for task in tasks[:2]:
        kept = learner.memory.kept[task.name]
        assert len(kept) == 6  # more than a batch has
        lengths = [len(learner.encoder.encode(example).answer) for example in kept]
        assert len(set(lengths)) == (2 if task.name == "weight" else 1)
        losses = [probe(learner, Probe(Batch((example,)))).loss for example in kept]
        mean = sum(map(mul, lengths, losses)) / sum(lengths)
        assert probes[-1]["losses"][task.name] == pytest.approx(mean, rel=1e-6)
