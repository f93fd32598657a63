"""What a plan says equals what a run does, where the pace of learning has no say."""

from pathlib import Path

import pytest
from conftest import execute

from forever.config import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.plan import plan

METHODS = [
    {"method.name": "finetune"},
    {"method.name": "mtl"},
    {"method.name": "mix_replay"},
    {"method.name": "fixed_interval", "method.warmup_steps": 3},
    {"method.clock": "steps"},
    {"method.clock": "steps", "method.days": "end_only", "method.consolidation_epochs": "matched"},
    # AIMMerging's merges follow its losses, and SSR may write fewer rows than memory would keep.
    *({"method.name": name} for name in ("ewc", "olora", "moelora", "sapt", "migu", "recurrent_kif")),
    {"method.name": "sapt", "method.memory_prompts": "pseudo", "method.generator_steps": 3},
    {"method.name": "migu", "method.replay": False},
    # Nothing is left out of a view here: then all views of a row are equally long.
    {"method.name": "vbm", "method.views": 2, "method.drop": 0, "method.warmup_steps": 3},
    {"method.name": "vbm", "method.variant": "mix", "method.drop": 0},
]


@pytest.mark.parametrize("changes", [{"method.name": "aimmerging"}, {"method.name": "ssr"}])
def test_an_estimate_where_training_has_a_say(changes: dict, base_config: RunConfig) -> None:
    config = base_config.override(changes)
    counted = plan(config, load_benchmark(config.data))
    plain = plan(config.override({"method.name": "finetune"}), load_benchmark(config.data))
    assert sum(counted.updates.values()) > plain.updates["task"]


@pytest.mark.parametrize("changes", METHODS, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_updates_and_tokens_equal_those_of_the_run(changes: dict, base_config: RunConfig, tmp_path: Path) -> None:
    from forever.data.encoding import Encoder
    from forever.models.backbone import load

    config = base_config.override(changes)
    result = execute(config, tmp_path / "run")
    import torch

    encoder = Encoder(load(config.model.name, torch.float32, torch.device("cpu")).tokenizer, config.model.max_length)
    counted = plan(
        config, load_benchmark(config.data), lambda e: len(encoder.encode(e).prompt) + len(encoder.encode(e).answer)
    )
    assert counted.updates == result["updates"]
    assert counted.rows == result["rows_seen"]
    assert counted.train_tokens == result["tokens"]
    events = [kind for by_kind in result["events"].values() for kind, n in by_kind.items() for _ in range(n)]
    assert sum(counted.events.values()) == len(events)


def test_the_papers_setting_by_hand() -> None:
    """T = 1250 updates of equal length and S = 24: six events of two passes and one consolidation pass, from task 2."""
    config = RunConfig.parse({"data": {"benchmark": "mini"}, "method": {"name": "forever"}})
    benchmark = load_benchmark(config.data)
    counted = plan(config.override({"optim.epochs": 50, "memory.fraction": 0.04}), benchmark)
    assert counted.updates["task"] == 5 * 50 * 25
    assert counted.events == {"replay": 4 * 6, "consolidation": 4}
    assert counted.updates["replay"] == sum(6 * 2 * k for k in (1, 2, 3, 4))  # 8 kept rows of each task, one batch
    assert counted.updates["consolidation"] == 1 + 2 + 3 + 4


def test_seconds() -> None:
    config = RunConfig.parse({"data": {"benchmark": "mini"}, "method": {"name": "finetune"}})
    counted = plan(config, load_benchmark(config.data), lambda example: 10)
    assert counted.train_tokens == 5 * 10 * 200 * 10
    assert counted.evaluation_tokens == 15 * 100 * 10
    assert counted.seconds(1000) == pytest.approx((100_000 + 15_000 / 3) / 1000)
