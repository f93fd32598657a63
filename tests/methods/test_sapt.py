"""SAPT: attention, mixture and memory term against their formulas."""

import inspect
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import begin, learn, start, toy, update
from torch import Tensor

from forever.config.run import RunConfig
from forever.data.encoding import Encoded, collate_prompts
from forever.evaluation.decoding import decode
from forever.evaluation.scoring import evaluate
from forever.methods.sapt.method import Sapt
from forever.methods.sapt.selector import divergence, pool
from forever.models import lora
from forever.models.backbone import load
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.step import perform

SAPT: dict[str, Any] = {"name": "sapt", "hidden": 5}


def trained(
    config: RunConfig, tasks: int, fields: dict[str, Any] = SAPT, **changes: Any
) -> tuple[Learner, Any]:
    """A learner and its method after so many tasks."""
    learner, method = begin(config, fields, **changes)
    learn(learner, method, *toy(config)[:tasks])
    return learner, method


def prompts_of(learner: Learner, examples: Any) -> list[Encoded]:
    return [learner.encoder.encode_prompt(example) for example in examples]


def gate(learner: Learner, rows: list[Encoded]) -> Tensor:
    found = learner.gate(rows)
    assert found is not None
    return found


def by_hand(learner: Learner, method: Any, prompts: list[tuple[int, ...]]) -> Tensor:
    """a [B, t] for one prompt after the other, from the formula."""
    selector, embedding = (
        method.selector,
        learner.backbone.model.get_input_embeddings().weight.detach(),
    )
    keys = [*method.tensors.get("keys", ()), selector.key[0]]
    found = []
    for prompt in prompts:
        u = torch.stack(
            [max(embedding[token, c] for token in prompt) for c in range(embedding.shape[1])]
        )
        z = selector.up @ (selector.down @ u)
        z = z / (1 + torch.exp(-z))
        q = (z - z.mean()) / (z.var(unbiased=False) + 1e-5).sqrt() * selector.scale + selector.shift
        scores = torch.stack([key @ q for key in keys]) / math.sqrt(len(q))
        found.append(scores.exp() / scores.exp().sum())
    return torch.stack(found).detach()


# ---- attention


def test_attention_against_its_formula(small_config: RunConfig) -> None:
    learner, method = trained(small_config, 3)
    for part in (method.selector.scale, method.selector.shift):
        part.data += torch.linspace(-0.3, 0.4, 32)
    # Short prompts without a common word, so that attention to them is far apart.
    rows = [Encoded(prompt, (), False) for prompt in ((10,), (20, 21), (30, 31, 32))]
    attention = gate(learner, rows)
    assert attention.shape == (3, 3)
    torch.testing.assert_close(
        attention, by_hand(learner, method, [r.prompt for r in rows]), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(attention.sum(-1), torch.ones(3))
    assert attention.std(0).max() > 0.01  # it tells prompts apart


def test_attention_sees_the_prompt_alone(small_config: RunConfig) -> None:
    learner, _ = trained(small_config, 2)
    examples = [toy(small_config)[0].train[0], *(task.test[0] for task in toy(small_config)[1:])]
    prompts, rows = prompts_of(learner, examples), [learner.encoder.encode(e) for e in examples]
    other = [learner.encoder.encode(replace(e, output="red blue old")) for e in examples]
    # Of different length, so that some are padded.
    assert len({len(row.prompt) for row in rows}) > 1
    batch = gate(learner, prompts)
    assert torch.equal(gate(learner, rows), batch)
    assert torch.equal(gate(learner, other), batch)
    for i, row in enumerate(rows):
        torch.testing.assert_close(gate(learner, [row])[0], batch[i], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(gate(learner, rows[::-1]), batch.flip(0), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(batch[0], batch[1], atol=1e-4)


def test_a_prompt_is_pooled_over_its_words() -> None:
    embedding = torch.nn.Embedding.from_pretrained(
        torch.tensor([[9.0, 9], [1, 5], [2, -4], [0, -8]])
    )
    prompts = [(1, 2), (3,), (3, 2, 2)]
    assert [pool(embedding, prompt).tolist() for prompt in prompts] == [[2, 5], [0, -8], [2, -4]]


def test_a_prompt_is_pooled_once(small_config: RunConfig) -> None:
    """Also if it was met while decoding, where tensors are made that no gradient could flow
    past."""
    learner, method = trained(small_config, 1)
    embedding, task = learner.backbone.model.get_input_embeddings(), toy(small_config)[1]
    prompts = [r.prompt for r in prompts_of(learner, task.train)]
    with torch.inference_mode():
        method.attention(learner, prompts)
    steps = start(learner, method, task)
    assert all(method.selector._pooled[prompt].is_inference() for prompt in prompts)
    assert math.isfinite(update(learner, method, steps).loss)
    again = method.selector.pooled(embedding, prompts)
    assert torch.equal(
        again, torch.stack([embedding.weight[list(prompt)].amax(0) for prompt in prompts])
    )
    embedding.weight.data.zero_()  # to show that it is not read again
    assert torch.equal(method.selector.pooled(embedding, prompts), again)


def test_attention_holds_for_every_decoding_step(small_config: RunConfig) -> None:
    """And the cached pass gives the logits of a pass over prompt and answer, so the mixture is the
    same, too."""
    learner, _ = trained(small_config, 2)
    model, pad = learner.backbone.model, learner.backbone.tokenizer.pad_token_id
    model.eval()
    examples = [task.test[0] for task in toy(small_config)]
    rows = prompts_of(learner, examples)
    ids, mask = collate_prompts(rows, pad, learner.backbone.device)
    seen = []
    name, _ = next(lora.banks(model))
    handle = model.get_submodule(name).register_forward_pre_hook(
        lambda bank, _: seen.append(bank.gate.clone())
    )
    decode(learner.backbone, learner.encoder, examples, 5, learner.gate)
    handle.remove()
    assert len(seen) > 1
    assert all(torch.equal(gate, seen[0]) for gate in seen)

    with torch.no_grad(), lora.mixed(model, gate(learner, rows)):
        options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            **options,
            output_logits=True,
            return_dict_in_generate=True,
        )
    cached = torch.stack(out.logits, dim=1)  # [B, 5, V]
    for i, row in enumerate(rows):
        answer = tuple(out.sequences[i, ids.shape[1] :].tolist())
        with torch.no_grad():
            whole, _ = answer_logits(learner, [Encoded(row.prompt, answer, False)])
        torch.testing.assert_close(cached[i], whole, rtol=1e-4, atol=1e-4)


# ---- the mixture


def forced(method: Any, patch: pytest.MonkeyPatch, weights: list[float]) -> None:
    row = torch.tensor(weights)
    patch.setattr(method, "attention", lambda learner, prompts: row.log().expand(len(prompts), -1))


@pytest.mark.parametrize(
    "weights", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1 / 3, 1 / 3, 1 / 3]]
)
def test_adapters_are_mixed_by_attention(
    small_config: RunConfig, weights: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One-hot attention is that adapter alone; uniform attention is the mean of all."""
    learner, method = trained(small_config, 3)
    plain = load(small_config.model.name, torch.float32, torch.device("cpu"))
    for name, bank in lora.banks(learner.backbone.model):
        A, B = (
            torch.cat([bank.frozen_A, bank.A.detach()]),
            torch.cat([bank.frozen_B, bank.B.detach()]),
        )
        plain.model.get_submodule(name).weight.data += (
            torch.einsum("e,eor,erd->od", torch.tensor(weights), B, A) * 2
        )
    bare, _ = begin(small_config, {"name": "finetune"})
    bare.backbone = plain
    forced(method, monkeypatch, weights)
    learner.backbone.model.eval()
    rows = [learner.encoder.encode(task.train[0]) for task in toy(small_config)]
    torch.testing.assert_close(
        answer_logits(learner, rows)[0], answer_logits(bare, rows)[0], rtol=1e-4, atol=1e-4
    )


def test_what_was_learned_is_not_touched_again(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {**SAPT, "memory_weight": 10.0})
    before: dict[str, Tensor] = {}
    for stage, task in enumerate(toy(small_config)):
        query = [
            p.detach().clone()
            for p in (method.selector.down, method.selector.up, method.selector.scale)
        ]
        own_key = method.selector.key.detach().clone()
        learn(learner, method, task)
        now = {**lora.frozen(learner.backbone.model), **method.tensors}
        moved = [
            not torch.equal(a, b) for a, b in zip(query, method.selector.parameters(), strict=False)
        ]
        assert all(moved) == (stage > 0)
        if stage:
            assert torch.equal(now["keys"][-1:], own_key)  # as it was at the end of its task
            assert not torch.equal(method.selector.key, own_key)
        for name, tensor in before.items():
            assert torch.equal(now[name][: len(tensor), : tensor.shape[1]], tensor), name
        before = {name: tensor.clone() for name, tensor in now.items()}
    assert method.tensors["keys"].shape == (2, 32)
    assert method.tensors["targets"].shape == (3, 3)


def test_gradient_through_earlier_adapters(small_config: RunConfig) -> None:
    """Cut, it is missing below the top layer and nowhere else."""
    gradients = []
    for cut in (False, True):
        learner, method = begin(small_config, {**SAPT, "detach_frozen": cut}, optim__clip=1e9)
        banks = dict(lora.banks(learner.backbone.model))
        for bank in banks.values():
            bank.B.data.copy_(torch.linspace(-0.3, 0.3, bank.B.numel()).view_as(bank.B))
        learner.begin(0, toy(small_config)[0])
        method.begin_task(learner, toy(small_config)[0])
        method.end_task(learner, toy(small_config)[0])
        learner.memory.add(toy(small_config)[0])
        steps = start(learner, method, toy(small_config)[1])
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
    target = torch.tensor([0.75, 0.25])
    rows = [
        0.75 * math.log(0.75 / p) + 0.25 * math.log(0.25 / q) for p, q in ((0.5, 0.25), (0.1, 0.1))
    ]
    assert divergence(target, a.log()).item() == pytest.approx(sum(rows) / 2, rel=1e-6)
    assert divergence(torch.tensor([0.0, 1.0]), a.log()).item() == pytest.approx(
        -math.log(0.25 * 0.1) / 2, rel=1e-6
    )


@pytest.mark.parametrize("target", [[0.2, 0.5, 0.3], [1.0, 0.0], [0.4, 0.6, 0.0, 0.0]])
def test_gradient_of_divergence_is_attention_minus_target(target: list[float]) -> None:
    """Zeros in the target are for newer tasks and give no NaN."""
    goal = torch.tensor(target, dtype=torch.float64)
    full = torch.cat([goal, goal.new_zeros(4 - len(goal))])
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    divergence(goal, logits.log_softmax(-1)).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], logits.detach().softmax(-1)[0] - full)


def test_targets_are_the_mean_attention_at_the_end_of_a_task(small_config: RunConfig) -> None:
    learner, method = begin(small_config, SAPT)
    for stage, task in enumerate(toy(small_config)):
        learn(learner, method, task)
        mean = by_hand(learner, method, [r.prompt for r in prompts_of(learner, task.train)]).mean(0)
        targets = method.tensors["targets"]
        torch.testing.assert_close(targets[stage], mean, rtol=1e-4, atol=1e-6)
        assert not targets.triu(1).any()  # zeros for newer tasks
        assert not targets.requires_grad
        torch.testing.assert_close(targets.sum(1), torch.ones(stage + 1))


def memory_term(learner: Learner, method: Any, number: int) -> float:
    """The mean divergence of each old task's batch of an update, from attention by hand."""
    total = 0.0
    for i, name in enumerate(learner.memory.kept):
        rows = learner.batch_at(number, learner.memory.kept[name], "attention", name).examples
        attention = by_hand(learner, method, [r.prompt for r in prompts_of(learner, rows)]).double()
        target = method.tensors["targets"][i].double()
        for a in attention:
            total += sum(
                float(p * (p / q).log()) for p, q in zip(target, a, strict=False) if p > 0
            ) / len(rows)
    return total


@pytest.mark.parametrize("micro", [None, 1])
def test_attention_on_old_prompts_is_held(small_config: RunConfig, micro: int | None) -> None:
    """In the third task the term sums over two tasks; its weight does not depend on accumulation or
    on ranks."""
    fields = {**SAPT, "memory_weight": 3.0}
    # Two batches a task.
    learner, method = begin(small_config, fields, micro=micro, memory__fraction=1.0)
    learn(learner, method, *toy(small_config)[:2])
    steps = start(learner, method, toy(small_config)[2])
    assert method.tensors["targets"].shape == (2, 2)
    expected = 3.0 * memory_term(learner, method, 0)
    action = next(steps)
    record = perform(learner, method, action)
    assert record.penalty == pytest.approx(expected, rel=1e-4)
    assert record.penalty > 0.01
    learner.updates += 1
    expected, again = (3.0 * memory_term(learner, method, number) for number in (1, 0))
    assert abs(expected - again) > 1e-3 * expected  # other prompts than before
    assert update(learner, method, steps).penalty == pytest.approx(expected, rel=1e-4)


def test_memory_is_shown_in_shuffled_passes(small_config: RunConfig) -> None:
    """Each task's prompts come round once a pass, and each task has an order of its own."""
    learner, _ = begin(small_config, SAPT)
    learner.begin(2, toy(small_config)[2])
    rows = toy(small_config)[0].train[:6]
    batches = [learner.batch_at(n, rows, "attention", "colour").examples for n in range(6)]
    assert [len(b) for b in batches] == [4, 2] * 3
    for i in (0, 2, 4):
        assert Counter(batches[i] + batches[i + 1]) == Counter(rows)
    assert batches[0] != batches[2]
    assert batches != [learner.batch_at(n, rows, "attention", "shape").examples for n in range(6)]


def test_holding_attention_keeps_it_nearer_to_its_target(small_config: RunConfig) -> None:
    drifts = []
    for weight in (0.0, 30.0):
        learner, method = trained(
            small_config, 3, {**SAPT, "memory_weight": weight}, memory__fraction=1.0
        )
        task, target = toy(small_config)[1], method.tensors["targets"][1]
        prompts = [r.prompt for r in prompts_of(learner, task.train)]
        drifts.append(divergence(target, method.attention(learner, prompts)).item())
    assert drifts[1] < 0.7 * drifts[0]


# ---- no task is named


def test_nothing_says_which_task_a_prompt_belongs_to(small_config: RunConfig) -> None:
    assert len(inspect.signature(Sapt.gate).parameters) == 3  # the method, a learner, what is asked
    assert {*Encoded.__dataclass_fields__} == {"prompt", "answer", "truncated"}
    learner, _ = trained(small_config, 3)
    for task in toy(small_config):
        renamed = replace(
            task,
            name="other",
            test=tuple(replace(e, id=f"other/{i}") for i, e in enumerate(task.test)),
        )
        texts = [
            [
                p.prediction
                for p in evaluate(
                    learner.backbone, learner.encoder, learner.world, t, 3, learner.gate
                )
            ]
            for t in (task, renamed)
        ]
        assert texts[0] == texts[1]
