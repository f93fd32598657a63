"""SAPT: attention, mixture and memory term against their formulas."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import begin, learn, start, toy, update
from torch import Tensor

from forever.config.run import RunConfig
from forever.data.collation import collate_prompts
from forever.data.encoding import Encoded
from forever.evaluation.decoding import decode
from forever.methods.sapt import divergence
from forever.models import lora
from forever.models.backbone import load
from forever.training.forward import answer_logits
from forever.training.learner import Learner

SAPT: dict[str, Any] = {"name": "sapt", "hidden": 5}


def trained(
    config: RunConfig, tasks: int, weight: float = 1.0, **changes: Any
) -> tuple[Learner, Any]:
    """A learner and its method after so many tasks."""
    learner, method = begin(config, {**SAPT, "memory_weight": weight}, **changes)
    learn(learner, method, *toy(config)[:tasks])
    return learner, method


def prompts_of(learner: Learner, examples: Any) -> list[tuple[int, ...]]:
    return [learner.encoder.encode_prompt(example).prompt for example in examples]


def gate(learner: Learner, encoded: list[Encoded]) -> Tensor:
    weights = learner.gate(encoded)
    assert weights is not None
    return weights


def by_hand(learner: Learner, method: Any, prompts: list[tuple[int, ...]]) -> Tensor:
    """a [B, t] for one prompt after the other, from the formula."""
    selector = method.selector
    embedding = learner.backbone.model.get_input_embeddings().weight.detach()
    keys = [*method.tensors.get("keys", ()), selector.key[0]]
    rows = []
    for prompt in prompts:
        largest = [max(embedding[token, c] for token in prompt) for c in range(embedding.shape[1])]
        z = selector.up @ (selector.down @ torch.stack(largest))
        z = z / (1 + torch.exp(-z))
        q = (z - z.mean()) / (z.var(unbiased=False) + 1e-5).sqrt() * selector.scale + selector.shift
        scores = torch.stack([key @ q for key in keys]) / math.sqrt(len(q))
        rows.append(scores.exp() / scores.exp().sum())
    return torch.stack(rows).detach()


# ---- attention


def test_attention_against_its_formula(small_config: RunConfig) -> None:
    learner, method = trained(small_config, 3)
    for part in (method.selector.scale, method.selector.shift):
        part.data += torch.linspace(-0.3, 0.4, 32)
    # Short prompts without a common word, so that attention to them is far apart.
    prompts = [(10,), (20, 21), (30, 31, 32)]
    attention = gate(learner, [Encoded(prompt, (), False) for prompt in prompts])
    assert attention.shape == (3, 3)
    torch.testing.assert_close(attention, by_hand(learner, method, prompts), rtol=1e-4, atol=1e-6)
    assert attention.std(0).max() > 0.01  # it tells prompts apart


def test_attention_sees_the_prompt_alone(small_config: RunConfig) -> None:
    """Not the answer, the task, the padding, or the other prompts of a batch."""
    learner, _ = trained(small_config, 2)
    examples = [toy(small_config)[0].train[0], *(task.test[0] for task in toy(small_config)[1:])]
    encoded = [learner.encoder.encode(example) for example in examples]
    assert len({len(one.prompt) for one in encoded}) > 1  # so some are padded
    batch = gate(learner, [learner.encoder.encode_prompt(example) for example in examples])
    assert torch.equal(gate(learner, encoded), batch)
    answered = [replace(example, output="red blue old") for example in examples]
    assert torch.equal(gate(learner, [learner.encoder.encode(e) for e in answered]), batch)
    alone = torch.cat([gate(learner, [one]) for one in encoded])
    torch.testing.assert_close(alone, batch, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(batch[0], batch[1], atol=1e-4)


def test_attention_holds_for_every_decoding_step(small_config: RunConfig) -> None:
    """And the cached pass gives the logits of a pass over prompt and answer."""
    learner, _ = trained(small_config, 2)
    model = learner.backbone.model.eval()
    examples = [task.test[0] for task in toy(small_config)]
    encoded = [learner.encoder.encode_prompt(example) for example in examples]
    padded = decode(learner.backbone, learner.encoder, examples, 5, learner.gate, packed=False)
    assert decode(learner.backbone, learner.encoder, examples, 5, learner.gate) == padded
    assert decode(learner.backbone, learner.encoder, [], 5, learner.gate) == []  # a rank has none

    pad = learner.backbone.tokenizer.pad_token_id
    ids, mask = collate_prompts(encoded, pad, learner.backbone.device)
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    with torch.no_grad(), lora.mixed(model, gate(learner, encoded)):
        out = model.generate(input_ids=ids, attention_mask=mask, **options)
    cached = torch.stack(out.logits, dim=1)  # [B, 5, V]
    for i, prompt in enumerate(encoded):
        answer = tuple(out.sequences[i, ids.shape[1] :].tolist())
        with torch.no_grad():
            whole, _ = answer_logits(learner, [replace(prompt, answer=answer)])
        torch.testing.assert_close(cached[i], whole, rtol=1e-4, atol=1e-4)


# ---- the mixture


@pytest.mark.parametrize("weights", [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1 / 3] * 3])
def test_adapters_are_mixed_by_attention(
    small_config: RunConfig, weights: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One-hot attention is that adapter alone; uniform attention is the mean of all."""
    learner, method = trained(small_config, 3)
    plain = load(small_config.model.name, torch.float32, torch.device("cpu"))
    for name, bank in lora.banks(learner.backbone.model):
        A = torch.cat([bank.frozen_A, bank.A.detach()])
        B = torch.cat([bank.frozen_B, bank.B.detach()])
        mixture = torch.einsum("e,eor,erd->od", torch.tensor(weights), B, A)
        plain.model.get_submodule(name).weight.data += 2 * mixture
    bare, _ = begin(small_config, {"name": "finetune"})
    bare.backbone = plain
    log_a = torch.tensor([weights] * 3).log()
    monkeypatch.setattr(method, "attention", lambda learner, prompts: log_a)
    learner.backbone.model.eval()
    encoded = [learner.encoder.encode(task.train[0]) for task in toy(small_config)]
    mixed, expected = answer_logits(learner, encoded)[0], answer_logits(bare, encoded)[0]
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-4)


def test_what_was_learned_is_not_touched_again(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {**SAPT, "memory_weight": 10.0})
    kept: dict[str, Tensor] = {}
    for stage, task in enumerate(toy(small_config)):
        before = {name: p.detach().clone() for name, p in method.selector.named_parameters()}
        learn(learner, method, task)
        now = {**lora.frozen(learner.backbone.model), **method.tensors}
        # With a single key attention is 1, whatever the query.
        moved = {n for n, p in method.selector.named_parameters() if not torch.equal(p, before[n])}
        assert moved == (before.keys() if stage else set())
        if stage:
            assert torch.equal(now["keys"][-1:], before["key"])  # as at the end of its task
        for name, tensor in kept.items():
            assert torch.equal(now[name][: len(tensor), : tensor.shape[1]], tensor), name
        kept = {name: tensor.clone() for name, tensor in now.items()}
    assert method.tensors["keys"].shape == (2, 32)
    assert method.tensors["targets"].shape == (3, 3)


def test_gradient_through_earlier_adapters(small_config: RunConfig) -> None:
    """Cut, it is missing below the top layer and nowhere else."""
    tasks = toy(small_config)
    gradients: list[dict[str, Tensor]] = []
    for cut in (False, True):
        learner, method = begin(small_config, {**SAPT, "detach_frozen": cut}, optim__clip=1e9)
        banks = dict(lora.banks(learner.backbone.model))
        for bank in banks.values():
            bank.B.data.copy_(torch.linspace(-0.3, 0.3, bank.B.numel()).view_as(bank.B))
        start(learner, method, tasks[0])
        method.end_task(learner, tasks[0])
        learner.memory.add(tasks[0])
        steps = start(learner, method, tasks[1])
        for bank in banks.values():
            bank.B.data.fill_(0.05)
        update(learner, method, steps)
        gradients.append({n: b.A.grad.clone() for n, b in banks.items() if b.A.grad is not None})
    assert len(gradients[0]) == 4
    for name, whole in gradients[0].items():
        if "layers.1." in name:
            torch.testing.assert_close(whole, gradients[1][name], rtol=1e-4, atol=1e-6)
        else:
            assert not torch.allclose(whole, gradients[1][name], rtol=1e-2)


# ---- the memory term


def test_divergence_by_hand() -> None:
    a = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    pairs = [
        0.75 * math.log(0.75 / p) + 0.25 * math.log(0.25 / q) for p, q in ((0.5, 0.25), (0.1, 0.1))
    ]
    mean = divergence(torch.tensor([0.75, 0.25]), a.log()).item()
    assert mean == pytest.approx(sum(pairs) / 2, rel=1e-6)
    one_hot = divergence(torch.tensor([0.0, 1.0]), a.log()).item()
    assert one_hot == pytest.approx(-math.log(0.25 * 0.1) / 2, rel=1e-6)


def test_targets_are_the_mean_attention_at_the_end_of_a_task(small_config: RunConfig) -> None:
    learner, method = begin(small_config, SAPT)
    for stage, task in enumerate(toy(small_config)):
        learn(learner, method, task)
        mean = by_hand(learner, method, prompts_of(learner, task.train)).mean(0)
        targets = method.tensors["targets"]
        torch.testing.assert_close(targets[stage], mean, rtol=1e-4, atol=1e-6)
        assert not targets.triu(1).any()  # zeros for newer tasks
        assert not targets.requires_grad


def memory_term(learner: Learner, method: Any, number: int) -> float:
    """The mean divergence of each old task's batch of an update, from attention by hand."""
    total = 0.0
    for target, (name, kept) in zip(
        method.tensors["targets"], learner.memory.kept.items(), strict=True
    ):
        examples = learner.batch_at(number, kept, "attention", name).examples
        for attention in by_hand(learner, method, prompts_of(learner, examples)):
            pairs = [(p, q) for p, q in zip(target, attention, strict=False) if p > 0]
            total += sum(float(p * (p / q).log()) for p, q in pairs) / len(examples)
    return total


def test_attention_on_old_prompts_is_held(small_config: RunConfig) -> None:
    """In the third task the term sums over two tasks, each with the next of its two batches."""
    learner, method = trained(small_config, 2, weight=3.0, memory__fraction=1.0)
    steps = start(learner, method, toy(small_config)[2])
    expected = 3.0 * memory_term(learner, method, 0)
    assert expected > 0.01
    assert update(learner, method, steps).penalty == pytest.approx(expected, rel=1e-4)
    learner.updates += 1
    expected, again = (3.0 * memory_term(learner, method, number) for number in (1, 0))
    assert abs(expected - again) > 1e-3 * expected  # other prompts than before
    assert update(learner, method, steps).penalty == pytest.approx(expected, rel=1e-4)
