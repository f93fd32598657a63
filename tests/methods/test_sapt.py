"""SAPT: attention, mixture and memory term against their formulas, and the adapter that writes
prompts."""

import inspect
import math
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    KILLED_CLOSES_NO_FILES,
    canned_sample,
    drive,
    lora_tensors,
    rows_task,
    stub_learner,
)
from test_ewc import begin, learn, start, survives_kills, theta, together, toy, update
from torch import Tensor

from forever.config.methods.baselines import SaptConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoded, collate_prompts
from forever.data.tasks import Example
from forever.errors import InputError
from forever.evaluation import decoding
from forever.evaluation.decoding import decode
from forever.evaluation.scoring import evaluate
from forever.methods.base import Method
from forever.methods.sapt.method import Sapt
from forever.methods.sapt.selector import Selector, divergence, pool
from forever.methods.ssr.synthesis import (
    encode_writer,
    parse_pseudo,
    pseudo_examples,
    write_prompts,
)
from forever.models import lora
from forever.models.backbone import load
from forever.planning.counts import plan
from forever.training.forward import answer_logits
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Step
from forever.training.world import World

SAPT: dict[str, Any] = {"name": "sapt", "hidden": 5}
PSEUDO: dict[str, Any] = {**SAPT, "memory_prompts": "pseudo", "generator_steps": 2}


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


# ---- the first task


def test_first_task_is_fine_tuning(small_config: RunConfig) -> None:
    """One key has all attention: the same losses and adapters, and nothing to learn for what
    computes attention."""
    task = toy(small_config)[0]
    plain, plain_method = begin(small_config, {"name": "finetune"})
    learner, method = begin(small_config, SAPT)
    fresh = [p.detach().clone() for p in method.selector.parameters()]
    records, expected = learn(learner, method, task), learn(plain, plain_method, task)
    for a, b in zip(records, expected, strict=True):
        assert (a.loss, a.penalty) == (pytest.approx(b.loss, rel=1e-6), 0)
    trained = [lora_tensors(each.backbone.model) for each in (learner, plain)]
    torch.testing.assert_close(*trained, rtol=1e-6, atol=1e-6)
    for before, parameter in zip(fresh, method.selector.parameters(), strict=True):
        assert parameter.grad is not None
        assert not parameter.grad.any()
        assert torch.equal(parameter, before)
    rows = [learner.encoder.encode(example) for example in task.train]
    assert torch.equal(gate(learner, rows), torch.ones(8, 1))
    for one in (learner, plain):
        one.backbone.model.eval()
    torch.testing.assert_close(
        answer_logits(learner, rows)[0], answer_logits(plain, rows)[0], rtol=1e-5, atol=1e-5
    )


# ---- attention


def test_attention_against_its_formula(small_config: RunConfig) -> None:
    learner, method = trained(small_config, 3)
    for part in (method.selector.scale, method.selector.shift):
        part.data += torch.linspace(-0.3, 0.4, 32)
    rows = prompts_of(learner, [task.test[0] for task in toy(small_config)])
    attention = gate(learner, rows)
    assert attention.shape == (3, 3)
    torch.testing.assert_close(
        attention, by_hand(learner, method, [r.prompt for r in rows]), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(attention.sum(-1), torch.ones(3))
    assert attention.std(0).max() > 1e-3  # it tells prompts apart


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


def test_keys_are_uniform_and_of_the_seed() -> None:
    state = torch.get_rng_state()
    one, same, other = (Selector(1000, 3, seed) for seed in (0, 0, 1))
    first = one.key.detach().clone()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.key, other.key)
    one.draw_key(0, 1)
    assert not torch.equal(one.key, first)
    assert 0.98 < one.key.abs().max().item() <= 1
    assert one.key.std().item() == pytest.approx(3**-0.5, rel=0.05)
    one.draw_key(0, 0)
    assert torch.equal(one.key, first)
    assert torch.equal(torch.get_rng_state(), state)


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


def another_backbone(folder: Path, config: RunConfig, layers: int) -> RunConfig:
    """Query, value and hidden width all different."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = Qwen3Config.from_pretrained(config.model.name)
    shape.head_dim, shape.num_hidden_layers, shape.layer_types = 12, layers, None
    Qwen3ForCausalLM(
        Qwen3Config(**{k: v for k, v in shape.to_dict().items() if k != "layer_types"})
    ).save_pretrained(folder)
    AutoTokenizer.from_pretrained(config.model.name).save_pretrained(folder)
    return config.override({"model.name": str(folder)})


@pytest.mark.parametrize("layers", [1, 2])
def test_gradient_through_earlier_adapters(
    small_config: RunConfig, layers: int, tmp_path: Path
) -> None:
    """Cut, it is missing below the top layer and nowhere else. The model's widths q, v and hidden
    all differ."""
    config = another_backbone(tmp_path, small_config, layers)
    gradients = []
    for cut in (False, True):
        learner, method = begin(config, {**SAPT, "detach_frozen": cut}, optim__clip=1e9)
        for n, bank in lora.banks(learner.backbone.model):
            assert bank.B.shape[1] == (48 if n.endswith("q_proj") else 24)
            bank.B.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(n)))
        learner.begin(0, toy(config)[0])
        method.begin_task(learner, toy(config)[0])
        method.end_task(learner, toy(config)[0])
        learner.memory.add(toy(config)[0])
        steps = start(learner, method, toy(config)[1])
        for _, bank in lora.banks(learner.backbone.model):
            bank.B.data.fill_(0.05)
        update(learner, method, steps)
        gradients.append(
            {
                n: b.A.grad.clone()
                for n, b in lora.banks(learner.backbone.model)
                if b.A.grad is not None
            }
        )
    top = [n for n in gradients[0] if f"layers.{layers - 1}." in n]
    below = [n for n in gradients[0] if n not in top]
    for n in top:
        torch.testing.assert_close(gradients[0][n], gradients[1][n], rtol=1e-4, atol=1e-6)
    assert len(below) == 2 * (layers - 1)
    assert all(not torch.allclose(gradients[0][n], gradients[1][n], rtol=1e-2) for n in below)


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


def test_divergence_is_nothing_only_at_the_target() -> None:
    stream = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits, target = (
            torch.randn(1, 4, generator=stream),
            torch.randn(4, generator=stream).softmax(0),
        )
        assert divergence(target, logits.log_softmax(-1)).item() > 1e-4
        assert divergence(target, target.log()[None]).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("target", [[0.2, 0.5, 0.3], [1.0, 0.0], [0.4, 0.6, 0.0, 0.0]])
def test_gradient_of_divergence_is_attention_minus_target(target: list[float]) -> None:
    """Also by finite differences; zeros in the target are for newer tasks and give no NaN."""
    goal = torch.tensor(target, dtype=torch.float64)
    full = torch.cat([goal, goal.new_zeros(4 - len(goal))])
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    divergence(goal, logits.log_softmax(-1)).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], logits.detach().softmax(-1)[0] - full)
    for i in range(4):
        nudge = torch.zeros(1, 4, dtype=torch.float64)
        nudge[0, i] = 1e-6
        ends = [
            divergence(goal, (logits.detach() + sign * nudge).log_softmax(-1)) for sign in (1, -1)
        ]
        assert logits.grad[0, i].item() == pytest.approx(
            ((ends[0] - ends[1]) / 2e-6).item(), abs=1e-8
        )


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


def test_targets_do_not_depend_on_the_number_of_ranks(small_config: RunConfig) -> None:
    task = toy(small_config)[0]
    weights = theta(trained(small_config, 1)[0])

    def build(world: World) -> tuple[Learner, Any]:
        learner, method = begin(small_config, SAPT, world=world)
        learner.parameters.load(weights)
        learner.begin(1, toy(small_config)[1])
        method.tensors["keys"] = torch.ones(1, 32) / 10
        return learner, method

    alone = build(World())
    expected = alone[1].mean_attention(alone[0], task)
    for found in together(3, build, lambda built: built[1].mean_attention(built[0], task)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def memory_term(learner: Learner, method: Any, number: int) -> float:
    """The mean divergence of each old task's batch of an update, from attention by hand."""
    total = 0.0
    for i, name in enumerate(learner.memory.kept):
        rows = learner.batch_at(number, method.prompts(learner, name), "attention", name).examples
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


def test_memory_term_counts_once_on_several_ranks(small_config: RunConfig) -> None:
    tasks = toy(small_config)
    source, first = trained(small_config, 1)

    def build(world: World) -> tuple[Learner, Any]:
        learner, method = begin(small_config, SAPT, world=world)
        learner.parameters.load(theta(source))
        learner.memory.add(tasks[0])
        method.tensors["targets"] = first.tensors["targets"]
        return learner, method

    def run(built: tuple[Learner, Any]) -> tuple[float, Tensor]:
        record = update(*built, start(*built, tasks[1]))
        return record.penalty, built[0].parameters.grad.clone()

    alone = run(build(World()))
    for found in together(3, build, run):
        assert found[0] == pytest.approx(alone[0], rel=1e-5)
        torch.testing.assert_close(found[1], alone[1], rtol=1e-3, atol=1e-6)
    assert alone[0] > 0


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
    assert [*inspect.signature(Sapt.gate).parameters] == ["self", "learner", "rows"]
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


# ---- the adapter that writes prompts


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "sample", canned_sample)


def test_writer_leaves_the_model_as_it_was(small_config: RunConfig, canned: None) -> None:
    """The first task, which memory has no say in, ends with the same weights as without a
    writer."""
    task = toy(small_config)[0]
    plain, written = trained(small_config, 1), begin(small_config, PSEUDO)
    records = learn(*written, task)
    assert torch.equal(theta(written[0]), theta(plain[0]))
    assert written[1].tensors.keys() == plain[1].tensors.keys()
    torch.testing.assert_close(written[1].tensors["targets"], plain[1].tensors["targets"])
    assert not written[1].writing
    assert [r.update_norm > 0 for r in records] == [True] * 6
    prompts = written[1].state["prompts"]["colour"]
    assert len(prompts) == plain[0].memory.quota(8) == 1
    assert prompts[0]["id"] == "colour/pseudo/0"
    assert prompts[0]["output"] == ""


def test_writer_is_a_fresh_adapter_alone(small_config: RunConfig, canned: None) -> None:
    """The one that was drawn for the task; old adapters have no weight, and attention is not
    trained."""
    learner, method = begin(small_config, PSEUDO)
    learn(learner, method, toy(small_config)[0])
    steps = start(learner, method, toy(small_config)[1])
    fresh = {n: b.A.detach().clone() for n, b in lora.banks(learner.backbone.model)}
    action, query = next(steps), []
    while isinstance(action, Step) and action.kind == "task":
        record = perform(learner, method, action)
        learner.updates += 1
        query = [p.detach().clone() for p in method.selector.parameters()]
        action = steps.send(record)
    assert isinstance(action, Step)
    assert action.kind == "generator"
    assert learner.optimizer is not None
    assert not learner.optimizer.state
    for n, b in lora.banks(learner.backbone.model):
        assert torch.equal(b.A, fresh[n])
        assert not b.B.any()
    row = learner.encoder.encode_prompt(toy(small_config)[0].test[0])
    assert torch.equal(gate(learner, [row]), torch.tensor([0.0, 1.0]))
    assert {e.instruction for e in action.batch.examples} == {"__gen__"}
    assert perform(learner, method, action).penalty == 0
    assert all(torch.equal(a, b) for a, b in zip(query, method.selector.parameters(), strict=True))
    assert any(
        not torch.equal(b.A, fresh[n]) or b.B.any() for n, b in lora.banks(learner.backbone.model)
    )


def test_attention_is_held_on_written_prompts(small_config: RunConfig, canned: None) -> None:
    learner, method = begin(small_config, PSEUDO, memory__fraction=0.5)
    learn(learner, method, *toy(small_config)[:2])
    steps = start(learner, method, toy(small_config)[2])
    for name in ("colour", "shape"):
        rows = method.prompts(learner, name)
        assert [asdict(row) for row in rows] == method.state["prompts"][name]
        assert len(rows) == 4
        assert {row.id for row in rows} == {f"{name}/pseudo/{i}" for i in range(4)}
    expected = memory_term(learner, method, 0)
    assert update(learner, method, steps).penalty == pytest.approx(expected, rel=1e-4)


def test_written_prompts_do_not_depend_on_the_number_of_ranks(
    small_config: RunConfig, canned: None
) -> None:
    task = toy(small_config)[0]

    def build(world: World) -> tuple[Learner, Any]:
        learner, method = begin(small_config, PSEUDO, world=world, memory__fraction=0.5)
        learner.begin(0, task)
        return learner, method

    def run(built: tuple[Learner, Any]) -> list[dict[str, str]]:
        return write_prompts(built[0], task, built[1].gate)

    expected = run(build(World()))
    assert len(expected) == 4
    assert together(3, build, run) == [expected] * 3


def test_a_model_that_writes_nothing_usable_leaves_no_prompts(
    small_config: RunConfig, capsys: Any
) -> None:
    """A random model never writes the separator. Later tasks then have no term, and that is
    said."""
    learner, method = begin(small_config, PSEUDO)
    records = learn(learner, method, *toy(small_config)[:2])
    assert method.state["prompts"] == {"colour": [], "shape": []}
    assert {r.penalty for r in records} == {0.0}
    assert learner.notes["written"] == 0
    assert capsys.readouterr().err.splitlines() == [
        f"sapt: 0 of 1 prompts that the model wrote for {name} can be used"
        for name in ("colour", "shape")
    ]


def test_nothing_is_said_of_prompts_that_are_all_there(
    small_config: RunConfig, canned: None, capsys: Any
) -> None:
    learner, method = begin(small_config, PSEUDO, memory__fraction=0.5)
    learn(learner, method, toy(small_config)[0])
    assert learner.notes["written"] == 4
    assert capsys.readouterr().err == ""


def test_nothing_is_written_of_the_last_task(small_config: RunConfig, canned: None) -> None:
    """No later task would need it; the plan knows (tests/planning/test_plan.py), and the weights
    are those of real prompts."""
    learner, method = begin(small_config, PSEUDO)
    learn(learner, method, *toy(small_config)[:2])
    seen = []
    steps = start(learner, method, toy(small_config)[2])
    while isinstance(action := next(steps, None), Step):
        seen.append(action.kind)
    assert seen == ["task"] * 4
    method.end_task(learner, toy(small_config)[2])
    assert method.state["prompts"].keys() == {"colour", "shape"}
    assert method.tensors["targets"].shape == (3, 3)
    assert "trained" not in method.tensors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name it. __inp__ a red box", ("Name it.", "a red box")),
        # A penalised separator may stay open.
        ("Name it. __inp a red box", ("Name it.", "a red box")),
        ("Name it.__inp__a __inp__ b", ("Name it.", "a __inp__ b")),
        ("Name it. a red box", None),
        ("__inp__ a red box", None),
        ("Name it. __inp__ ", None),
        ("", None),
    ],
)
def test_written_prompts_are_parsed(text: str, expected: tuple[str, str] | None) -> None:
    assert parse_pseudo(text) == expected


def test_what_a_writer_is_taught_is_what_is_parsed() -> None:
    task = rows_task("any", 3)
    rows = pseudo_examples(task)
    assert [parse_pseudo(row.output) for row in rows] == [
        (e.instruction, e.input) for e in task.train
    ]
    assert {(row.instruction, row.input) for row in rows} == {("__gen__", "")}
    assert len({row.id for row in rows}) == 3


def test_a_long_prompt_to_learn_is_cut_at_its_end(small_config: RunConfig) -> None:
    """It would not fit behind the trigger's own prompt; nothing of the kind stops a run."""
    learner, method = begin(small_config, PSEUDO)
    short, long = (
        Example("s", "__gen__", "", "red blue"),
        Example("l", "__gen__", "", "red blue " * 200),
    )
    assert encode_writer(learner, short) == learner.encoder.encode(short)
    with pytest.raises(InputError):
        learner.encoder.encode(long)
    row = encode_writer(learner, long)
    assert row.truncated
    assert len(row.prompt) + len(row.answer) == learner.encoder.max_length
    tokenizer = learner.backbone.tokenizer
    assert row.answer[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(row.answer[:4]) == "red blue red blue"
    assert method.encode(learner, Step(Batch((short, long)), "generator")) == [
        (encode_writer(learner, short),),
        (row,),
    ]


def test_a_written_prompt_that_cannot_be_one_is_dropped(
    small_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input may be cut, its instruction may not."""
    texts = [
        "red " * 300 + "__inp__ blue",
        "red __inp__ " + "blue " * 300,
        "no separator",
        "red __inp__ blue",
    ]
    monkeypatch.setattr(
        decoding, "sample", lambda backbone, prompts, *rest: (texts * len(prompts))[: len(prompts)]
    )
    learner, method = begin(small_config, PSEUDO, memory__fraction=0.5)
    learner.begin(0, toy(small_config)[0])
    found = write_prompts(learner, toy(small_config)[0], method.gate)
    assert [row["id"].split("/")[-1] for row in found] == ["1", "3", "5", "7"]
    for row in found:
        assert (
            len(learner.encoder.encode_prompt(Example(**row)).prompt) <= learner.encoder.max_length
        )


def test_a_plan_counts_the_writers_updates(small_config: RunConfig) -> None:
    config = RunConfig.parse(small_config.model_dump(mode="json") | {"method": PSEUDO})
    # Not of the last task.
    assert plan(config, load_benchmark(config.data)).updates == {"task": 12, "generator": 2 * 2}
    real = RunConfig.parse(small_config.model_dump(mode="json") | {"method": SAPT})
    assert plan(real, load_benchmark(real.data)).updates == {"task": 12}


def test_a_generator_of_steps_needs_no_model() -> None:
    changes: dict[str, Any] = {"memory.fraction": 0.25, "optim.batch_size": 4, "optim.epochs": 1}
    method: Method[Any] = Sapt(SaptConfig(memory_prompts="pseudo", generator_steps=3))
    runs = [
        drive(method, stub_learner([rows_task("old", 8)], **changes), rows_task("new", 8))
        for _ in range(2)
    ]
    assert [s.kind for s in runs[0].steps] == ["task"] * 2 + ["generator"] * 3
    assert runs[0].actions == runs[1].actions
    seen = Counter(e.id for s in runs[0].of_kind("generator")[:2] for e in s.batch.examples)
    assert seen == Counter(f"new/generator/{i}" for i in range(8))


# ---- refusals and resuming


def test_without_adapters_it_is_refused(small_config: RunConfig) -> None:
    with pytest.raises(
        InputError, match=r"method sapt works on LoRA adapters; model.tuning='full' has none"
    ):
        small_config.override({"method.name": "sapt", "model.tuning": "full"})


@pytest.mark.filterwarnings(*[mark.args[0] for mark in KILLED_CLOSES_NO_FILES])
@pytest.mark.parametrize(
    "fields", [{**SAPT, "memory_weight": 10.0}, {**PSEUDO, "generator_steps": 2}]
)
def test_killed_after_every_update(
    small_config: RunConfig, fields: dict[str, Any], tmp_path: Path, canned: None
) -> None:
    survives_kills(small_config, fields, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"optim.schedule": "linear"},
            r"optim\.schedule='linear' is at rate 0 when .* begins to learn; use 'c",
        ),
        ({"memory.fraction": 0}, r"memory\.fraction=0 leaves no prompts to write; raise it"),
    ],
)
def test_prompts_cannot_be_learned_at_a_rate_of_zero_or_for_nothing(
    small_config: RunConfig, change: dict[str, Any], message: str
) -> None:
    assert small_config.override({"method.name": "sapt", **change})
    with pytest.raises(InputError, match=message):
        small_config.override({"method.name": "sapt", "method.memory_prompts": "pseudo", **change})
