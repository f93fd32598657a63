"""What holds replay: distances of answers against loops, and one weight for every *when*.

T task updates of which each has up to B examples; J replay events.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    FOREVER,
    Driven,
    begin,
    driven,
    execute,
    flip,
    learn,
    method_of,
    start,
    together,
    toy,
)
from safetensors.torch import load_file
from torch import Tensor

from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.errors import InputError
from forever.launch.local import Placement, run_local
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.step import perform, probe
from forever.training.steps import Probe

SHARE: dict[str, Any] = {"day_steps": 1, "memory_epochs": "share"}
WHENS: dict[str, tuple[str, dict[str, Any]]] = {
    "standard days": ("forever", SHARE),
    "step clock": ("forever", {**SHARE, "clock": "steps"}),
    "permuted": ("forever", {**SHARE, "clock": "steps", "days": "permuted"}),
    "evenly": ("forever", {**SHARE, "clock": "steps", "days": "evenly"}),
    "end only": ("forever", {**SHARE, "days": "end_only"}),
    "mixed": ("mix_replay", {"day_steps": 1}),
}


def spent(when: str, **fields: Any) -> Driven:
    """A task of 16 updates of 4 that replays 22 of the 17 kept examples."""
    name, own = WHENS[when]
    method = method_of(name, **{**own, "penalty_scale": "batch", **fields})
    return driven(method, rows=32, **{"budget.examples": 22})


@pytest.mark.parametrize("regularizer", ["intensity", "kl", "logits"])
@pytest.mark.parametrize("when", WHENS)
def test_the_weights_of_a_task_have_one_sum_for_every_when(when: str, regularizer: str) -> None:
    """beta * budget / batch size, at a constant strength: 0.5 * 22 / 4."""
    run = spent(when, regularizer=regularizer, beta=0.5, gamma=0.0)
    weights = [step.pull + (step.penalty.beta if step.penalty else 0) for step in run.steps]
    assert sum(weights) == pytest.approx(0.5 * 22 / 4, rel=1e-12)
    assert len([weight for weight in weights if weight]) >= 6


@pytest.mark.parametrize("when", WHENS)
def test_every_when_replays_the_same_examples_and_none_twice_before_all_came(when: str) -> None:
    run = spent(when)
    own = {f"new/train/{i}" for i in range(32)}
    replayed = [id_ for batch in run.ids("task", "replay", "consolidation") for id_ in batch]
    counts = Counter(id_ for id_ in replayed if id_ not in own)
    mixed = Counter(id_ for batch in spent("mixed").ids("task") for id_ in batch if id_ not in own)
    assert counts == mixed
    assert sorted(counts.values()) == 12 * [1] + 5 * [2]  # 22 of 17


def test_views_count_in_the_stream() -> None:
    """A budget of 34 shows each of 17 examples in two views."""
    method = method_of("vbm", day_steps=1, memory_epochs="share", days="equal")
    run = driven(method, rows=32, **{"budget.examples": 34})
    counts = Counter(id_ for batch in run.ids("replay", "consolidation") for id_ in batch)
    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) >= 15  # shares are whole examples


def test_an_event_divides_beta_by_its_updates() -> None:
    """Of two passes over 17 examples in batches of 4: ten updates have a tenth each."""
    fields = {"day_steps": 2, "days": [1], "gamma": 0.0, "beta": 1.0}
    run = driven(method_of("forever", **fields, penalty_scale="event"))
    betas = [step.penalty.beta for step in run.of_kind("replay") if step.penalty]
    assert betas == pytest.approx(10 * [0.1])
    assert [step.penalty.beta for step in run.of_kind("consolidation") if step.penalty] == 5 * [0.2]
    with pytest.raises(InputError, match="penalty_scale"):
        RunConfig.parse(
            {"budget": {"seconds": 1}, "method": {"name": "forever", "penalty_scale": "event"}}
        )


def test_an_interleaved_penalty_follows_the_pace_of_the_update_before() -> None:
    """Norms 1, 3, 5, ...: mu_0 = 1, mu = (1 + 3) / 2, (2 + 5) / 2, ..., and the batch's share."""
    fields = {"day_steps": 1, "smoothing": 0.5, "regularizer": "intensity", "beta": 1.0}
    method = method_of("mix_replay", **fields, min_strength=0.0, max_strength=1e9)
    run = driven(method, norm=lambda t: 2.0 * t - 1)
    pace, mu = [1.0, 1.0], 1.0
    for t in range(2, len(run.steps)):
        mu = (mu + 2 * t - 1) / 2
        pace.append(mu)
    for step, strength in zip(run.steps, pace, strict=True):
        replayed = sum(not e.id.startswith("new") for e in step.batch.examples)
        beta = step.penalty.beta if step.penalty else 0.0
        assert beta == pytest.approx(strength * replayed / 4)


@pytest.mark.parametrize(("rate", "expected"), [("whole", [0.8]), ("current", [0.1]), ("none", [])])
def test_the_rate_of_the_end(rate: str, expected: list[float], base_config: RunConfig) -> None:
    """A linear decay from 0.8 over 8 updates ends at 0.1."""
    settings = {"optim.lr": 8e-1, "optim.schedule": "linear", "data.train_rows": 8}
    config = base_config.override({**settings, "optim.epochs": 4})
    learner, method = begin(config, {"name": "forever", "days": "end_only", "end_rate": rate})
    records = learn(learner, method, *toy(config)[:2])
    rates = [record.lr for record in records[8:] if record.lr]
    assert rates[:8] == pytest.approx([0.1 * (8 - t) for t in range(8)])
    assert sorted({*rates[8:]}) == pytest.approx(expected)


# ---- answers


@pytest.fixture
def small(base_config: RunConfig) -> RunConfig:
    return base_config.override({"data.train_rows": 8, "optim.epochs": 2, "optim.clip": 1e9})


def before_a_replay(
    config: RunConfig, learner: Learner, method: Any
) -> tuple[Learner, Any, Batch, Tensor]:
    """Bring a learner into its second task, away from Theta*; with its memory, and Theta*."""
    learn(learner, method, toy(config)[0])
    start(learner, method, toy(config)[1])
    known = learner.parameters.snapshot()
    stream = torch.Generator().manual_seed(1)
    learner.parameters.load(known + 0.3 * torch.randn(known.shape, generator=stream))
    return learner, method, Batch(learner.memory.examples), known


def kl(z: Tensor, known: Tensor) -> Tensor:
    """A softmax's KL at one position, summed in a loop."""
    p, q = known.softmax(-1), z.softmax(-1)
    return sum((p[v] * (p[v].log() - q[v].log()) for v in range(len(z))), start=z.new_zeros(()))


def kl_of_three(z: Tensor, known: Tensor) -> Tensor:
    """The KL of the three largest and of the sum of all others."""
    p, q = known.softmax(-1), z.softmax(-1)
    largest = p.topk(3).indices.tolist()
    rest = [v for v in range(len(z)) if v not in largest]
    pairs = [(p[v], q[v]) for v in largest] + [(p[rest].sum(), q[rest].sum())]
    return sum((a * (a / b).log() for a, b in pairs), start=z.new_zeros(()))


def squared(z: Tensor, known: Tensor) -> Tensor:
    return sum(((a - b) ** 2 for a, b in zip(z, known, strict=True)), start=z.new_zeros(())) / len(
        z
    )


DISTANCES = {
    "kl": ({"regularizer": "kl"}, kl),
    "kl of three": ({"regularizer": "kl", "logits": 3}, kl_of_three),
    "logits": ({"regularizer": "logits"}, squared),
    "logits of three": ({"regularizer": "logits", "logits": 3}, kl_of_three),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("fields", "distance"), DISTANCES.values(), ids=DISTANCES)
def test_answers_are_held_as_in_a_loop(
    small: RunConfig, fields: dict[str, Any], distance: Any, size: int
) -> None:
    """Loss and gradient, on one rank and two, beside an example alone and a position alone."""
    fields = {**FOREVER, **fields, "beta": 0.7, "penalty_scale": "batch"}
    learner, _, batch, known = before_a_replay(small, *begin(small, fields))
    parameters, theta = learner.parameters, learner.parameters.snapshot()
    encoded = [learner.encoder.encode(example) for example in batch.examples]

    # The reference: both models on each example, dropout off.
    learner.backbone.model.eval()
    parameters.load(known)
    with torch.no_grad():
        before = [answer_logits(learner, [one])[0] for one in encoded]
    parameters.load(theta)
    positions = sum(len(one.answer) for one in encoded)
    pull = 0.7 * len(encoded) / learner.config.optim.batch_size
    total, ce = torch.zeros(()), torch.zeros(())
    for one, z_known in zip(encoded, before, strict=True):
        z, targets = answer_logits(learner, [one])
        ce = ce + F.cross_entropy(z, targets, reduction="sum") / positions
        for now, then in zip(z, z_known, strict=True):
            total = total + pull * distance(now, then) / positions
    parameters.grad.zero_()
    (ce + total).backward()
    expected = parameters.grad.clone()

    def work(built: tuple[Learner, Any]) -> tuple[float, float, Tensor]:
        learner, method, batch, _ = before_a_replay(small, *built)
        record = perform(learner, method, method.step_on(learner, batch, 0.7, "replay"))
        return record.loss, record.penalty, learner.parameters.grad.clone()

    for loss, penalty, gradient in together(size, partial(begin, small, fields), work):
        assert loss == pytest.approx(ce.item(), rel=1e-4)
        assert penalty == pytest.approx(total.item(), rel=1e-3)
        assert total.item() > 0.01
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


def test_a_probe_says_how_far_the_model_has_gone(small: RunConfig) -> None:
    fields = {"name": "finetune", "probe_every": 1}
    learner, _, batch, known = before_a_replay(small, *begin(small, fields))
    encoded = [learner.encoder.encode(example) for example in batch.examples]
    record = probe(learner, Probe(batch, known))
    learner.backbone.model.eval()
    with torch.no_grad():
        now = torch.cat([answer_logits(learner, [one])[0] for one in encoded])
        with learner.parameters.at(known):
            then = torch.cat([answer_logits(learner, [one])[0] for one in encoded])
    expected = sum(kl(z, z_known).item() for z, z_known in zip(now, then, strict=True)) / len(now)
    assert record.kl == pytest.approx(expected, rel=1e-3)
    theta = learner.parameters.snapshot()
    assert record.distance == pytest.approx((theta - known).norm().item(), rel=1e-5)
    assert probe(learner, Probe(batch)).loss == pytest.approx(record.loss, rel=1e-6)


def test_as_many_logits_as_the_vocabulary_has_are_all() -> None:
    method = method_of("der", logits=5)
    logits = torch.randn(4, 5)
    assert method.largest(logits).places is None
    kept = method_of("der", logits=4).largest(logits)
    assert kept.places is not None
    # The one that is left out has the rest of the mass, so KL is that of all.
    z = torch.randn(4, 5)
    whole = F.kl_div(z.log_softmax(-1), logits.softmax(-1), reduction="sum")
    assert method_of("forever", regularizer="kl").distance(z, kept) == pytest.approx(
        whole.item(), rel=1e-4
    )
    large = torch.randn(1, 5000)
    assert method_of("der").largest(large).values.shape == (1, 64)
    assert method_of("der", logits="all").largest(large).places is None


def test_nothing_pulls_where_nothing_changed(small: RunConfig) -> None:
    """At the first update of a task the model is the one that is held to, for KL and for logits."""
    for regularizer in ("kl", "logits"):
        fields = {**FOREVER, "regularizer": regularizer, "beta": 1.0}
        learner, method, batch, known = before_a_replay(small, *begin(small, fields))
        learner.parameters.load(known)
        record = perform(learner, method, method.step_on(learner, batch, 1.0, "replay"))
        assert abs(record.penalty) < 1e-5


def test_stored_logits_are_those_of_each_example_s_own_task(small: RunConfig) -> None:
    """In the third task the first task's examples are held to the model after the first."""
    learner, method = begin(small, {"name": "der"})
    seen = []
    for task in toy(small)[:2]:
        learn(learner, method, task)
        kept = learner.memory.kept[task.name]
        seen.append(method.answers(learner, kept).values)
    start(learner, method, toy(small)[2])
    method.pull = 1.0
    method.begin_passes(learner)
    held = torch.cat([method.known[example].values for example in learner.memory.examples])
    torch.testing.assert_close(held, torch.cat(seen), rtol=0, atol=0)
    assert all(not t.requires_grad for t in method.constants.values())


def test_logits_lie_beside_the_checkpoints_and_are_known_by_digest(
    small_config: RunConfig, tmp_path: Path
) -> None:
    config = RunConfig.parse(small_config.model_dump(mode="json") | {"method": {"name": "der"}})
    execute(config, tmp_path)
    files = sorted((tmp_path / "constants").iterdir())
    assert [file.name for file in files] == ["1.safetensors", "2.safetensors", "3.safetensors"]
    assert not any(
        "values" in name for name in load_file(next(tmp_path.glob("checkpoints/*/*.safetensors")))
    )
    (tmp_path / "result.json").unlink()
    flip(files[0])
    with pytest.raises(InputError, match=r"1\.safetensors"):
        run_local(config, tmp_path, resume=True, placement=Placement(device="cpu"))
