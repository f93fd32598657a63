"""MoELoRA: routing, balance and contrast against hand-worked values, and against naive loops over
tokens."""

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from helpers import begin, learn, load_adapter, lora_tensors, start, theta, toy, update
from safetensors.torch import load_file
from torch import Tensor, nn

from forever.config.methods.baselines import MoeLoraConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.evaluation.decoding import decode
from forever.methods.moelora.method import MoeLora
from forever.methods.moelora.router import (
    TopKRouter,
    balance_loss,
    contrastive_loss,
    evenly,
    expert_outputs,
)
from forever.methods.registry import build_method
from forever.models import lora
from forever.models.lora import LoraBank
from forever.training.build import build_learner
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.steps import Step
from forever.training.world import World

PLAIN: dict[str, Any] = {"name": "moelora", "balance": 0.0, "contrast": 0.0}


def routed(
    experts: int = 5, k: int = 2, renormalise: bool = True, tokens: int = 64
) -> tuple[LoraBank, TopKRouter]:
    """A layer of width 6 and 7 whose experts are drawn at random, with its router."""
    stream = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    bank = LoraBank(nn.Linear(6, 7), rank=2, alpha=6.0, dropout=0.0, adapters=experts)
    bank.A.data.normal_(0, 1, generator=stream)
    bank.B.data.normal_(0, 1, generator=stream)
    made = TopKRouter(6, experts, k, renormalise, tokens, 0.1, stream)
    made.R.data.mul_(50)  # so that experts differ in probability
    bank.router = made
    return bank, made


def mark(bank: LoraBank, real: Tensor) -> None:
    """Say which tokens are no padding, as a pass of the model does."""
    bank.real, bank.places = real, real.flatten().nonzero().flatten()


def inputs(rows: int = 3, tokens: int = 4) -> Tensor:
    return torch.randn(rows, tokens, 6, generator=torch.Generator().manual_seed(1))


def routers(learner: Learner) -> list[TopKRouter]:
    return [cast(TopKRouter, bank.router) for _, bank in lora.banks(learner.backbone.model)]


# ---- settings in which it is something else


def test_one_expert_is_fine_tuning(small_config: RunConfig) -> None:
    plain = begin(small_config, {"name": "finetune"})
    one = begin(small_config, {**PLAIN, "experts": 1, "top_k": 1})
    records, expected = learn(*one, *toy(small_config)), learn(*plain, *toy(small_config))
    for a, b in zip(records, expected, strict=True):
        assert (a.loss, a.penalty) == (pytest.approx(b.loss, rel=1e-5), 0)
    trained = [lora_tensors(learner.backbone.model) for learner, _ in (one, plain)]
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)


def test_experts_are_as_many_as_tasks_and_differ(small_config: RunConfig) -> None:
    """Each with its own draw, the first that of fine-tuning; the router is N(0, 0.02^2); nothing
    global is drawn."""
    state = torch.get_rng_state()
    learner, _ = begin(small_config, {"name": "moelora"})
    assert torch.equal(torch.get_rng_state(), state)
    plain, _ = begin(small_config, {"name": "finetune"})
    single = lora_tensors(plain.backbone.model)
    for name, bank in lora.banks(learner.backbone.model):
        assert bank.A.shape == (3, 4, 32)
        assert torch.equal(bank.A[:1], single[f"{name}.A"])
        assert not torch.equal(bank.A[0], bank.A[1])
        assert bank.scale == 2.0
    values = torch.cat([r.R.detach().flatten() for r in routers(learner)])
    assert values.std().item() == pytest.approx(0.02, rel=0.15)
    assert len({r.R.detach().sum().item() for r in routers(learner)}) == 4
    wide, _ = begin(small_config, {"name": "moelora", "experts": 7})
    assert {len(r.R) for r in routers(wide)} == {7}
    config = RunConfig.parse(small_config.model_dump(mode="json") | {"method": {"name": "moelora"}})
    alone = build_learner(config, World(), method=MoeLora(MoeLoraConfig()), tasks=1)
    assert {len(r.R) for r in routers(alone)} == {2}  # as many as a token needs


# ---- routing


@pytest.mark.parametrize("k", [1, 2, 5])
def test_gates_are_those_of_the_largest_logits(k: int) -> None:
    bank, made = routed(k=k)
    x = inputs()
    gate = made(bank, x)
    assert gate.shape == (3, 4, 5)
    assert ((gate > 0).sum(-1) == k).all()
    torch.testing.assert_close(gate.sum(-1), torch.ones(3, 4))
    for row in range(3):
        for token in range(4):
            logits = made.R @ x[row, token]
            best = sorted(range(5), key=lambda e: -logits[e].item())[:k]
            for e in range(5):
                share = (
                    logits[e].exp() / sum(logits[j].exp() for j in best)
                    if e in best
                    else torch.zeros(())
                )
                assert gate[row, token, e].item() == pytest.approx(share.item(), rel=1e-5)


def test_dense_and_gathered_dispatch_agree() -> None:
    """All experts are computed and unselected ones weighted by zero; here only the selected ones
    are, one by one."""
    bank, made = routed()
    x = inputs()
    y, gate = bank(x), made(bank, x)
    for row in range(3):
        for token in range(4):
            expected = bank.base(x[row, token])
            for e in gate[row, token].nonzero().flatten().tolist():
                expected = expected + 3.0 * gate[row, token, e] * (
                    bank.B[e] @ (bank.A[e] @ x[row, token])
                )
            torch.testing.assert_close(y[row, token], expected, rtol=1e-5, atol=1e-5)


def test_router_sees_the_input_without_dropout() -> None:
    bank, made = routed()
    bank.dropout = 0.9
    seen = []
    made.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    bank.train()
    x = inputs()
    bank(x)
    assert torch.equal(seen[0], x)


def test_one_renormalised_expert_gives_the_router_no_gradient() -> None:
    """Which is why it is refused; not renormalised, the router learns."""
    for renormalise in (True, False):
        bank, made = routed(k=1, renormalise=renormalise)
        bank(inputs()).square().sum().backward()
        assert made.R.grad is not None
        assert bool(made.R.grad.abs().max() > 1e-6) != renormalise


# ---- balance


def test_balance_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]], requires_grad=True)
    loss = balance_loss(p, torch.tensor([[0, 1], [0, 2]]))
    assert loss.item() == pytest.approx(3 * (0.5 * 0.55 + 0.25 * 0.2 + 0.25 * 0.25))
    loss.backward()
    assert p.grad is not None
    # N f_e / n: none through f.
    torch.testing.assert_close(p.grad, torch.tensor([[0.75, 0.375, 0.375]] * 2))


# ---- contrast


def naive_contrast(z: Tensor, experts: list[int], tau: float) -> float:
    """The formula, one anchor and one positive after the other."""
    anchors = []
    for i, expert in enumerate(experts):
        positives = [j for j, other in enumerate(experts) if other == expert and j != i]
        candidates = sum(math.exp(float(z[i] @ z[j]) / tau) for j in range(len(z)) if j != i)
        if positives:
            terms = [-math.log(math.exp(float(z[i] @ z[p]) / tau) / candidates) for p in positives]
            anchors.append(sum(terms) / len(terms))
    return sum(anchors) / len(anchors)


def test_contrast_against_its_formula() -> None:
    z = F.normalize(
        torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=-1
    )
    experts = [0, 1, 0, 2, 1, 0, 3, 1, 0]  # 2 and 3 occur once and are candidates only
    found = contrastive_loss(z, torch.tensor(experts), 0.2).item()
    assert found == pytest.approx(naive_contrast(z, experts, 0.2), rel=1e-9)


@pytest.mark.parametrize("length", [0.0, 1e-6])
def test_contrast_is_finite_where_outputs_vanish(length: float) -> None:
    """B is zero before the first update; normalisation alone would have gradients of 1 / length
    there."""
    bank, _ = routed()
    bank.B.data.mul_(length)
    x = inputs().flatten(0, 1)
    chosen = torch.tensor([[0, 1], [1, 2], [0, 3]] * 4)
    z, experts = expert_outputs(bank, x, chosen)
    loss = contrastive_loss(z, experts, 0.1)
    loss.backward()
    assert loss.isfinite()
    for side in (bank.A, bank.B):
        assert side.grad is not None
        assert side.grad.isfinite().all()
        assert side.grad.abs().max() < 1e3
    # All alike: uniform over candidates.
    assert loss.item() == pytest.approx(math.log(len(z) - 1), rel=1e-3)


@pytest.mark.parametrize("experts", [[0], [0, 1, 2], []])
def test_without_a_pair_there_is_no_contrast(experts: list[int]) -> None:
    z = torch.randn(len(experts), 3, requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(experts, dtype=torch.long), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None
    assert not z.grad.any()


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [(3, 8, [0, 1, 2]), (8, 4, [0, 2, 4, 6]), (7, 3, [0, 2, 4]), (0, 4, [])],
)
def test_tokens_are_taken_evenly(count: int, limit: int, expected: list[int]) -> None:
    assert evenly(count, limit, torch.device("cpu")).tolist() == expected


# ---- both terms in training


@pytest.mark.parametrize("tokens", [64, 5])
def test_terms_of_a_layer(tokens: int) -> None:
    """What the router keeps in training is what the formulas give for its own probabilities and
    real tokens."""
    bank, made = routed(tokens=tokens)
    bank.train()
    x, real = inputs(), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    mark(bank, real)
    bank(x)
    flat = x[real]
    logits = flat @ made.R.T
    chosen = logits.topk(2, dim=-1).indices
    assert made.balance.item() == pytest.approx(
        balance_loss(logits.softmax(-1), chosen).item(), rel=1e-5
    )
    some = [i * 7 // min(7, tokens) for i in range(min(7, tokens))]
    z = [bank.B[e] @ (bank.A[e] @ flat[i]) for i in some for e in chosen[i].tolist()]
    z = [v / (v @ v + 1e-4).sqrt() for v in z]
    experts = [e for i in some for e in chosen[i].tolist()]
    expected = naive_contrast(torch.stack(z).detach().double(), experts, 0.1)
    assert made.contrast.item() == pytest.approx(expected, rel=1e-4)


def test_padding_changes_neither_term() -> None:
    bank, made = routed()
    bank.train()
    x, real = inputs(), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    found = []
    for pads in (0.0, 100.0):
        mark(bank, real)
        bank(torch.where(real[..., None], x, torch.full_like(x, pads)))
        found.append((made.balance.item(), made.contrast.item()))
    longer = torch.cat(
        [torch.where(real[..., None], x, 7 * torch.ones_like(x)), torch.ones(3, 5, 6)], dim=1
    )
    mark(bank, torch.cat([real, torch.zeros(3, 5).bool()], dim=1))
    bank(longer)
    found.append((made.balance.item(), made.contrast.item()))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)
    mark(bank, torch.ones_like(real))
    bank(x)
    assert made.balance.item() != pytest.approx(found[0][0], rel=1e-3)  # pads would matter


def test_loss_is_the_weighted_mean_over_layers(small_config: RunConfig) -> None:
    fields = {"name": "moelora", "balance": 0.3, "contrast": 0.7}
    learner, method = begin(small_config, fields)
    record = update(learner, method, start(learner, method, toy(small_config)[0]))
    balance = sum(r.balance.item() for r in routers(learner)) / 4
    contrast = sum(r.contrast.item() for r in routers(learner)) / 4
    assert record.penalty == pytest.approx(0.3 * balance + 0.7 * contrast, rel=1e-5)
    assert balance > 0.9
    assert contrast > 1


def test_parts_of_a_batch_weigh_by_their_rows(small_config: RunConfig) -> None:
    """The terms are those of each part and each rank; their weights add up to one."""
    fields = {"name": "moelora", "balance": 1.0, "contrast": 0.0}
    parts = []
    for part in (slice(0, 3), slice(3, 4)):
        learner, method = begin(small_config, fields)
        action = next(start(learner, method, toy(small_config)[0]))
        assert isinstance(action, Step)
        learner.backbone.model.train()
        answer_logits(learner, [learner.encoder.encode(e) for e in action.batch.examples[part]])
        parts.append(sum(r.balance.item() for r in routers(learner)) / 4)
    learner, method = begin(small_config, fields, micro=3)
    record = update(learner, method, start(learner, method, toy(small_config)[0]))
    assert record.penalty == pytest.approx(0.75 * parts[0] + 0.25 * parts[1], rel=1e-5)


def test_everything_trains_in_every_task_and_nothing_is_reset(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {"name": "moelora"}, optim__epochs=4)
    for task in toy(small_config)[:2]:
        before = theta(learner)
        start(learner, method, task)
        assert torch.equal(theta(learner), before)
        learn(learner, method, task)
        moved = learner.parameters.split(theta(learner) != before)
        assert {n.split(".")[-1] for n in moved} == {"A", "B", "R"}
        # Each expert of each layer.
        assert all(part.flatten(1).any(1).all() for part in moved.values())
    assert lora.frozen(learner.backbone.model) == {}
    assert method.tensors == {}


# ---- refusals and resuming


def refused(config: RunConfig, **fields: Any) -> str:
    with pytest.raises(InputError) as found:
        RunConfig.parse(config.model_dump(mode="json") | {"method": {"name": "moelora", **fields}})
    return str(found.value)


def test_routing_that_cannot_work_is_refused(small_config: RunConfig) -> None:
    assert "the router learns nothing" in refused(small_config, experts=3, top_k=1)
    assert "top_k=4 of 3 experts; lower method.top_k" in refused(small_config, experts=3, top_k=4)
    accepted: list[dict[str, Any]] = [
        {"experts": 1, "top_k": 1},
        {"experts": 3, "top_k": 1, "renormalise": False},
        {"experts": 3, "top_k": 3},
    ]
    for fields in accepted:
        RunConfig.parse(
            small_config.model_dump(mode="json") | {"method": {"name": "moelora", **fields}}
        )


def test_the_number_of_tasks_decides_what_can_work(small_config: RunConfig) -> None:
    """It is the number of experts if none is given, and known when a configuration is read; one
    needs no router."""
    assert "the router learns nothing" in refused(small_config, top_k=1)
    one = small_config.override({"data.order": ["colour"]})
    learner, _ = begin(one, {"name": "moelora", "top_k": 1, "experts": 1})
    assert all(len(router.R) == 1 for router in routers(learner))
    config = RunConfig.parse(
        one.model_dump(mode="json") | {"method": {"name": "moelora", "top_k": 1}}
    )
    alone = build_learner(config, World(), method=build_method(config.method), tasks=1)
    assert all(len(router.R) == 1 for router in routers(alone))
    named = {
        "data": {"benchmark": "standard", "order": "2"},
        "method": {"name": "moelora", "top_k": 1},
    }
    with pytest.raises(InputError, match="the router learns nothing"):
        RunConfig.parse(named)
    # Tasks and experts: 4.
    assert RunConfig.parse(named | {"method": {"name": "moelora", "top_k": 4}})


def learned(config: RunConfig) -> Learner:
    """A learner whose experts and routers have moved, so that routing matters."""
    method = build_method(config.override({"method.name": "moelora"}).method)
    learner = build_learner(config, World(), method=method, tasks=3)
    noise = torch.Generator().manual_seed(3)
    learner.parameters.load(
        learner.parameters.snapshot()
        + 0.3 * torch.randn(learner.parameters.flat.shape, generator=noise)
    )
    learner.backbone.model.eval()
    return learner


def test_routing_in_batched_cached_decoding(small_config: RunConfig) -> None:
    """Left padding, the cache and the other rows of a batch change no token's route."""
    learner = learned(small_config)
    examples = [task.test[0] for task in load_benchmark(small_config.data).tasks]
    assert len({len(learner.encoder.encode_prompt(e).prompt) for e in examples}) > 1
    together = decode(learner.backbone, learner.encoder, examples, 5, learner.gate)
    alone = [decode(learner.backbone, learner.encoder, [e], 5, learner.gate)[0] for e in examples]
    assert together == alone
    for example, text in zip(examples, together, strict=True):  # and no cache at all
        ids = list(learner.encoder.encode_prompt(example).prompt)
        start = len(ids)
        while len(ids) < start + 5 and ids[-1] != learner.backbone.tokenizer.eos_token_id:
            with torch.no_grad():
                ids.append(
                    int(
                        learner.backbone.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()
                    )
                )
        assert (
            learner.backbone.tokenizer.decode(ids[start:], skip_special_tokens=True).strip() == text
        )
    for _, bank in lora.banks(learner.backbone.model):
        bank.router = None  # every token through all experts: the routes did something
    assert decode(learner.backbone, learner.encoder, examples, 5) != together


def test_what_is_saved_is_the_whole_model(small_config: RunConfig, tmp_path: Path) -> None:
    """Adapters in PEFT's files and the rest in mixture.safetensors give the same logits on a fresh
    backbone."""
    learner = learned(small_config)
    lora.save_mixture(learner.backbone.model, tmp_path, "base", {})
    method = build_method(small_config.override({"method.name": "moelora"}).method)
    fresh = build_learner(small_config, World(), method=method, tasks=3)
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = learner.backbone.model(input_ids=ids).logits
    fresh.backbone.model.eval()
    assert not torch.allclose(fresh.backbone.model(input_ids=ids).logits, expected)
    for number in range(3):
        load_adapter(fresh.backbone.model, tmp_path / str(number), number)
    missing, odd = fresh.backbone.model.load_state_dict(
        load_file(tmp_path / "mixture.safetensors"), strict=False
    )
    assert odd == []
    assert not any("router" in name for name in missing)
    assert torch.equal(fresh.backbone.model(input_ids=ids).logits, expected)
