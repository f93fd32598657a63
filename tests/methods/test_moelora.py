"""MoELoRA: routing, balance and contrast against loops over tokens, and against values by hand."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from helpers import begin, learn, load_adapter, lora_tensors, start, theta, toy, update
from safetensors.torch import load_file
from torch import Tensor, nn

from forever.config.methods.ours import MoeLoraConfig
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation.decoding import decode
from forever.methods.moelora import TopKRouter, balance_loss, contrastive_loss, expert_outputs
from forever.models import lora
from forever.models.lora import LoraBank
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.steps import Step

MOELORA: dict[str, Any] = {"name": "moelora"}
PLAIN: dict[str, Any] = {**MOELORA, "balance": 0.0, "contrast": 0.0}


def routed(experts: int = 5, **fields: Any) -> tuple[LoraBank, TopKRouter]:
    """A layer of width 6 and 7 whose experts are drawn at random, with its router."""
    stream = torch.Generator().manual_seed(0)
    bank = LoraBank(nn.Linear(6, 7), rank=2, alpha=6.0, dropout=0.0, adapters=experts)
    for tensor in (bank.base.weight, bank.A, bank.B):
        tensor.data.normal_(0, 1, generator=stream)
    router = TopKRouter(MoeLoraConfig(**fields), experts, 6, stream)
    router.R.data.mul_(50)  # so that experts differ in probability
    bank.router = router
    return bank, router


def inputs() -> Tensor:
    """Three examples of four tokens."""
    return torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))


def routers(learner: Learner) -> list[TopKRouter]:
    return [cast(TopKRouter, bank.router) for _, bank in lora.banks(learner.backbone.model)]


# ---- routing


def gate_by_hand(router: TopKRouter, x: Tensor) -> list[float]:
    """The weight of each expert for one token."""
    weights = (router.R @ x).exp().tolist()
    best = sorted(range(len(weights)), key=lambda e: -weights[e])[: router.config.top_k]
    whole = sum(weights[e] for e in best) if router.config.renormalise else sum(weights)
    return [weights[e] / whole if e in best else 0.0 for e in range(len(weights))]


@pytest.mark.parametrize(("k", "renormalise"), [(1, True), (1, False), (2, True), (5, True)])
def test_each_token_passes_through_its_k_experts(k: int, renormalise: bool) -> None:
    """All experts are computed, with weight zero where unselected; the loops take the others."""
    bank, router = routed(top_k=k, renormalise=renormalise)
    bank.dropout = 0.9  # the router sees the input without it
    x = inputs()
    y, trained = bank.eval()(x), router(bank.train(), x)
    for example in range(3):
        for token in range(4):
            at = x[example, token]
            gate = gate_by_hand(router, at)
            assert sum(g > 0 for g in gate) == k
            assert trained[example, token].tolist() == pytest.approx(gate, rel=1e-5)
            expected = bank.base(at)
            for e, weight in enumerate(gate):
                expected = expected + 3.0 * weight * (bank.B[e] @ (bank.A[e] @ at))
            torch.testing.assert_close(y[example, token], expected, rtol=1e-5, atol=1e-5)


def test_one_expert_is_fine_tuning(small_config: RunConfig) -> None:
    plain = begin(small_config, {"name": "finetune"})
    one = begin(small_config, {**PLAIN, "experts": 1, "top_k": 1})
    records, expected = learn(*one, *toy(small_config)), learn(*plain, *toy(small_config))
    for a, b in zip(records, expected, strict=True):
        assert (a.loss, a.penalty) == (pytest.approx(b.loss, rel=1e-5), 0)
    trained = [lora_tensors(learner.backbone.model) for learner, _ in (one, plain)]
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)


def test_experts_are_as_many_as_tasks_and_differ(small_config: RunConfig) -> None:
    """The first is fine-tuning's; the router is N(0, 0.02^2); nothing global is drawn."""
    state = torch.get_rng_state()
    learner, _ = begin(small_config, MOELORA)
    assert torch.equal(torch.get_rng_state(), state)
    single = lora_tensors(begin(small_config, {"name": "finetune"})[0].backbone.model)
    for name, bank in lora.banks(learner.backbone.model):
        assert bank.A.shape == (3, 4, 32)
        assert torch.equal(bank.A[:1], single[f"{name}.A"])
        assert not torch.equal(bank.A[0], bank.A[1])
        assert bank.scale == 2.0
    values = torch.stack([router.R.detach() for router in routers(learner)])
    assert values.shape == (4, 3, 32)
    assert values.std().item() == pytest.approx(0.02, rel=0.15)
    assert MoeLoraConfig().experts_for(1) == 2  # as many as a token needs


# ---- the two terms


def test_balance_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]], requires_grad=True)
    loss = balance_loss(p, torch.tensor([[0, 1], [0, 2]]))
    assert loss.item() == pytest.approx(3 * (0.5 * 0.55 + 0.25 * 0.2 + 0.25 * 0.25))
    loss.backward()
    assert p.grad is not None
    # N f_e / n: none through f.
    torch.testing.assert_close(p.grad, torch.tensor([[0.75, 0.375, 0.375]] * 2))


def contrast_by_hand(z: Tensor, experts: list[int], tau: float) -> float:
    """The formula, one anchor and one positive after the other."""
    anchors = []
    for i, expert in enumerate(experts):
        similar = [math.exp(float(z[i] @ z[j]) / tau) for j in range(len(z))]
        candidates = sum(similar) - similar[i]
        positives = [j for j, other in enumerate(experts) if other == expert and j != i]
        if positives:
            anchors.append(sum(-math.log(similar[p] / candidates) for p in positives))
            anchors[-1] /= len(positives)
    return sum(anchors) / len(anchors)


def test_contrast_against_its_formula() -> None:
    stream = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(9, 4, generator=stream, dtype=torch.float64), dim=-1)
    experts = [0, 1, 0, 2, 1, 0, 3, 1, 0]  # 2 and 3 occur once and are candidates only
    loss = contrastive_loss(z, torch.tensor(experts), 0.2).item()
    assert loss == pytest.approx(contrast_by_hand(z, experts, 0.2), rel=1e-9)


def test_contrast_is_finite_where_outputs_vanish() -> None:
    """B is zero before the first update, where normalisation has gradients of 1 / length."""
    bank, _ = routed()
    bank.B.data.zero_()
    chosen = torch.tensor([[0, 1], [1, 2], [0, 3]] * 4)
    z, experts = expert_outputs(bank, inputs().flatten(0, 1), chosen)
    loss = contrastive_loss(z, experts, 0.1)
    loss.backward()
    for side in (bank.A, bank.B):
        assert side.grad is not None
        assert side.grad.abs().max() < 1e3  # also no NaN
    # All alike: uniform over candidates.
    assert loss.item() == pytest.approx(math.log(len(z) - 1), rel=1e-3)


def test_terms_are_those_of_real_tokens() -> None:
    """Of 7 real tokens 5 are compared, evenly spread; what is in pads changes nothing."""
    bank, router = routed(contrast_tokens=5)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    bank.places = real.flatten().nonzero().flatten()
    x = torch.where(real[..., None], inputs(), 100.0)
    bank.train()(x)
    flat = x[real]
    logits = flat @ router.R.T
    chosen = logits.topk(2, dim=-1).indices
    balance = balance_loss(logits.softmax(-1), chosen).item()
    assert router.balance.item() == pytest.approx(balance, rel=1e-5)
    z, experts = [], []
    for i in (0, 1, 2, 4, 5):
        for e in chosen[i].tolist():
            output = bank.B[e] @ (bank.A[e] @ flat[i])
            z.append(output / (output @ output + 1e-4).sqrt())
            experts.append(e)
    expected = contrast_by_hand(torch.stack(z).detach().double(), experts, 0.1)
    assert router.contrast.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("micro", [None, 3])
def test_loss_is_the_weighted_mean_over_layers_and_parts(
    small_config: RunConfig, micro: int | None
) -> None:
    """The terms are those of each part of a batch of four, which weigh by their examples."""
    fields = {**MOELORA, "balance": 0.3, "contrast": 0.7}
    expected = 0.0
    for part in (slice(4),) if micro is None else (slice(3), slice(3, 4)):
        learner, method = begin(small_config, fields)
        action = next(start(learner, method, toy(small_config)[0]))
        assert isinstance(action, Step)
        learner.backbone.model.train()
        examples = [learner.encoder.encode(e) for e in action.batch.examples[part]]
        answer_logits(learner, examples)
        for router in routers(learner):
            term = 0.3 * router.balance.item() + 0.7 * router.contrast.item()
            expected += len(examples) / 4 * term / 4
    learner, method = begin(small_config, fields, micro=micro)
    record = update(learner, method, start(learner, method, toy(small_config)[0]))
    assert record.penalty == pytest.approx(expected, rel=1e-5)
    assert expected > 0.9


# ---- refusals, decoding, saving


@pytest.mark.parametrize(
    ("fields", "order", "works"),
    [
        ({"experts": 3, "top_k": 1}, "1", False),  # a gate that is always 1
        ({"experts": 3, "top_k": 4}, "1", False),
        ({"top_k": 1}, "2", False),  # four tasks, so four experts
        ({"top_k": 1}, ["cb"], True),  # one expert needs no router
        ({"top_k": 4}, "2", True),
        ({"experts": 3, "top_k": 1, "renormalise": False}, "1", True),
    ],
)
def test_routing_that_cannot_work_is_refused(
    fields: dict[str, Any], order: Any, works: bool
) -> None:
    """The number of tasks is that of experts if none is given, and known from the order."""
    values = {"data": {"benchmark": "standard", "order": order}, "method": {**MOELORA, **fields}}
    with nullcontext() if works else pytest.raises(InputError, match="top_k"):
        RunConfig.parse(values)


def learned(config: RunConfig) -> Learner:
    """A learner whose experts and routers have moved, so that routing matters."""
    learner, _ = begin(config, MOELORA)
    stream = torch.Generator().manual_seed(3)
    noise = torch.randn(learner.parameters.flat.shape, generator=stream)
    learner.parameters.load(theta(learner) + 0.3 * noise)
    learner.backbone.model.eval()
    return learner


def test_routing_in_batched_cached_decoding(small_config: RunConfig) -> None:
    """Left padding, the cache and the other examples of a batch change no token's route."""
    learner = learned(small_config)
    model, tokenizer = learner.backbone.model, learner.backbone.tokenizer
    examples = [task.test[0] for task in toy(small_config)]
    prompts = [list(learner.encoder.encode_prompt(example).prompt) for example in examples]
    assert len({len(prompt) for prompt in prompts}) > 1
    texts = decode(learner.backbone, learner.encoder, examples, 5, learner.gate)
    for ids, text in zip(prompts, texts, strict=True):  # one by one, and without a cache
        length = len(ids)
        while len(ids) < length + 5 and ids[-1] != tokenizer.eos_token_id:
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert tokenizer.decode(ids[length:], skip_special_tokens=True).strip() == text
    for _, bank in lora.banks(model):
        bank.router = None  # every token through all experts: the routes did something
    assert decode(learner.backbone, learner.encoder, examples, 5) != texts


def test_what_is_saved_is_the_whole_model(small_config: RunConfig, tmp_path: Path) -> None:
    """Adapters in PEFT's files and mixture.safetensors give the same logits on a fresh backbone."""
    model = learned(small_config).backbone.model
    lora.save_mixture(model, tmp_path, "base", {})
    fresh = begin(small_config, MOELORA)[0].backbone.model.eval()
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=ids).logits
    assert not torch.allclose(fresh(input_ids=ids).logits, expected)
    for number in range(3):
        load_adapter(fresh, tmp_path / str(number), number)
    mixture = load_file(tmp_path / "mixture.safetensors")
    missing, odd = fresh.load_state_dict(mixture, strict=False)
    assert odd == []
    assert not any("router" in name for name in missing)
    assert torch.equal(fresh(input_ids=ids).logits, expected)
