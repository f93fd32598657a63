"""The loop and the one optimiser step, against plain PyTorch and Hugging Face code written here."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import execute, lines, lora_tensors, outcome
from safetensors.torch import load_file
from torch import Tensor

from forever.config.run import RunConfig
from forever.data.batching import Batch, batches
from forever.data.encoding import Encoded
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.evaluation.scoring import evaluate
from forever.methods.registry import METHODS, build_method
from forever.models.backbone import load
from forever.training import loop
from forever.training import step as step_module
from forever.training.build import build_learner
from forever.training.forward import cross_entropy
from forever.training.learner import Learner
from forever.training.method import Method
from forever.training.optim import build_optimizer
from forever.training.step import add_penalty, optimizer_step, probe
from forever.training.steps import Forward, Penalty, Probe, Step, StepRecord
from forever.world import World


def learner_of(config: RunConfig, benchmark: Benchmark, **changes: Any) -> Learner:
    """A learner at the start of the benchmark's first task, its adapter moved away from zero."""
    config = config.override(changes)
    learner = build_learner(config, build_method(config.method), World())
    learner.begin(0, benchmark.tasks[0])
    learner.planned_steps = 10
    with torch.no_grad():
        learner.parameters.flat += 0.05 * draw(learner)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    return learner


def draw(learner: Learner, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(learner.parameters.flat.shape, generator=stream)


@pytest.fixture
def learner(base_config: RunConfig, benchmark_of_three: Benchmark) -> Learner:
    return learner_of(base_config, benchmark_of_three)


def batch_of(learner: Learner) -> Batch:
    assert learner.task is not None
    return Batch(learner.task.train[:5])


def encoded(learner: Learner) -> list[Encoded]:
    return [learner.encoder.encode(example) for example in batch_of(learner).examples]


class Spy(Method):
    """Fine-tuning that keeps each update's gradient, unclipped."""

    def __init__(self) -> None:
        super().__init__(None)
        self.gradients: list[Tensor] = []

    def on_gradients(self, learner: Learner) -> None:
        self.gradients.append(learner.parameters.grad.clone())


def step_from(
    learner: Learner, start: Tensor, method: Method, batch: Batch | None = None, **fields: Any
) -> StepRecord:
    """One update from `start` with a fresh optimiser."""
    learner.parameters.load(start)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    return optimizer_step(learner, method, Step(batch or batch_of(learner), **fields))


# ---- the loss


def full_logits_loss(learner: Learner, rows: Sequence[Encoded], pad_side: str = "right") -> Tensor:
    """What Hugging Face computes itself: padded ids, mask, labels -100 on prompt and pads; mean
    over answer tokens."""
    width = max(len(r.prompt) + len(r.answer) for r in rows)
    ids = torch.full((len(rows), width), learner.backbone.tokenizer.pad_token_id)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for i, row in enumerate(rows):
        n = len(row.prompt) + len(row.answer)
        where = slice(0, n) if pad_side == "right" else slice(width - n, width)
        ids[i, where] = torch.tensor(row.prompt + row.answer)
        mask[i, where] = 1
        labels[i, where] = torch.tensor((-100,) * len(row.prompt) + row.answer)
    return learner.backbone.model(input_ids=ids, attention_mask=mask, labels=labels).loss


@pytest.mark.parametrize(
    ("pad_side", "tuning"), [("right", "lora"), ("left", "lora"), ("right", "full")]
)
def test_loss_and_gradient_equal_full_logits(
    base_config: RunConfig, benchmark_of_three: Benchmark, pad_side: str, tuning: str
) -> None:
    """With full fine-tuning the tied output head gets its gradient from the label positions
    alone."""
    learner = learner_of(base_config, benchmark_of_three, **{"model.tuning": tuning})
    rows = encoded(learner)
    assert len({len(r.prompt) for r in rows}) > 1  # there is padding
    full_logits_loss(learner, rows, pad_side).backward()
    reference, loss = learner.parameters.grad.clone(), full_logits_loss(learner, rows).item()
    learner.parameters.grad.zero_()
    ours = cross_entropy(learner, rows) / sum(len(r.answer) for r in rows)
    ours.backward()
    assert ours.item() == pytest.approx(loss, rel=1e-6)
    assert reference.abs().max() > 1e-4
    # Entries are sums whose summands are as large as the largest entry, which rounding follows.
    atol = 1e-5 * reference.abs().max().item()
    torch.testing.assert_close(learner.parameters.grad, reference, rtol=1e-4, atol=atol)


def test_recorded_numbers(learner: Learner) -> None:
    """The loss is the mean over supervised tokens, Delta how far the parameters moved."""
    rows, before = encoded(learner), learner.parameters.snapshot()
    expected = full_logits_loss(learner, rows).item()
    record = optimizer_step(learner, Spy(), Step(batch_of(learner)))
    assert record.loss == pytest.approx(expected, rel=1e-6)
    assert record.tokens == sum(len(r.prompt) + len(r.answer) for r in rows)
    assert record.lr == learner.config.optim.lr
    moved = (learner.parameters.snapshot().double() - before.double()).norm().item()
    assert record.update_norm == pytest.approx(moved, rel=1e-6)
    assert moved > 0


def test_probe_measures_and_changes_nothing(
    base_config: RunConfig, benchmark_of_three: Benchmark
) -> None:
    learner = learner_of(base_config, benchmark_of_three, **{"model.dropout": 0.5})
    before, action = learner.parameters.snapshot(), Probe(batch_of(learner))
    learner.backbone.model.train()
    record = probe(learner, action)
    assert record == probe(learner, action)  # dropout is off
    learner.backbone.model.eval()
    expected = full_logits_loss(learner, encoded(learner)).item()
    assert record.loss == pytest.approx(expected, rel=1e-6)
    assert (record.update_norm, record.lr) == (0, 0)
    assert torch.equal(learner.parameters.snapshot(), before)
    assert not learner.parameters.grad.any()


# ---- one update


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_micro_batches_add_up_to_one_batch(learner: Learner, micro_batch: int) -> None:
    """The last micro-batch is shorter, and rows have different numbers of answer tokens."""
    examples = enumerate(batch_of(learner).examples)
    uneven = Batch(tuple(replace(e, output=e.output + " red" * i) for i, e in examples))
    start, spy = learner.parameters.snapshot(), Spy()
    whole = step_from(learner, start, spy, uneven)
    learner.micro_batch = micro_batch
    parts = step_from(learner, start, spy, uneven)
    torch.testing.assert_close(spy.gradients[1], spy.gradients[0], rtol=1e-4, atol=1e-7)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.update_norm == pytest.approx(whole.update_norm, rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_penalty_equals_autograd_of_the_loss_form(
    learner: Learner, weighted: bool, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CE + beta sum_j w_j (Theta_j - Theta*_j)^2, once an update and not once a micro-batch."""
    learner.micro_batch = micro_batch
    start, spy = learner.parameters.snapshot(), Spy()
    anchor, weights = start + 0.1 * draw(learner, 3), draw(learner, 4).abs()
    penalty = Penalty(0.7, anchor, weights if weighted else None)
    with_penalty: list[Tensor] = []

    def watch(parameters: Any, added: Penalty | None) -> Tensor:
        value = add_penalty(parameters, added)
        with_penalty.append(parameters.grad.clone())
        return value

    monkeypatch.setattr(step_module, "add_penalty", watch)
    plain = step_from(learner, start, spy, kind="replay")
    record = step_from(learner, start, spy, kind="replay", penalty=penalty)
    theta = start.clone().requires_grad_()
    value = 0.7 * ((weights if weighted else 1) * (theta - anchor) ** 2).sum()
    value.backward()
    assert theta.grad is not None
    added = with_penalty[1] - with_penalty[0]
    torch.testing.assert_close(added, theta.grad, rtol=1e-4, atol=1e-6)
    assert record.penalty == pytest.approx(value.item(), rel=1e-5)
    # On_gradients sees the cross-entropy alone, and the loss is reported without the penalty.
    assert torch.equal(spy.gradients[0], spy.gradients[1])
    assert (plain.loss, plain.penalty) == (record.loss, 0)


class RidgeInLoss(Spy):
    """A term that does not depend on the rows, through the seam `loss`."""

    def loss(self, learner: Learner, forward: Forward) -> Tensor:
        squares = [parameter.square().sum() for parameter in learner.parameters.named.values()]
        return forward.cross_entropy + forward.share * 0.3 * torch.stack(squares).sum()


class RidgeOnGradients(Spy):
    """The same term through the seam `on_gradients`."""

    def on_gradients(self, learner: Learner) -> None:
        learner.parameters.grad.add_(learner.parameters.flat.detach(), alpha=0.6)
        super().on_gradients(learner)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_seams_loss_and_on_gradients(learner: Learner, micro_batch: int | None) -> None:
    learner.micro_batch = micro_batch
    start = learner.parameters.snapshot()
    methods = [RidgeInLoss(), RidgeOnGradients(), Spy()]
    losses, ends = [], []
    for method in methods:
        losses.append(step_from(learner, start, method).loss)
        ends.append(learner.parameters.snapshot())
    in_loss, on_gradients, plain = (method.gradients[0] for method in methods)
    torch.testing.assert_close(in_loss, on_gradients, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-4)
    assert losses == pytest.approx([losses[2]] * 3, rel=1e-6)  # the cross-entropy is reported
    assert (plain - in_loss).abs().max() > 1e-3


def test_dropout_is_drawn_anew_each_update_and_repeats_with_the_seed(
    base_config: RunConfig, benchmark_of_three: Benchmark
) -> None:
    learner = learner_of(base_config, benchmark_of_three, **{"model.dropout": 0.5})
    spy, start = Spy(), learner.parameters.snapshot()
    for updates in (0, 0, 1):
        learner.updates = updates
        torch.rand(3)  # whatever was drawn before does not matter
        step_from(learner, start, spy)
    assert torch.equal(spy.gradients[0], spy.gradients[1])
    assert not torch.equal(spy.gradients[0], spy.gradients[2])


# ---- whole runs


def test_full_fine_tuning_equals_a_plain_loop(
    base_config: RunConfig, benchmark_of_three: Benchmark, tmp_path: Path
) -> None:
    """AdamW on the model's own tensors, Hugging Face's loss with labels, the same batches, two
    tasks in a row. What is saved is a folder that can be trained again."""
    from transformers import AutoModelForCausalLM

    changes = {"model.tuning": "full", "method.name": "finetune", "optim.lr": 1e-3}
    config = base_config.override({**changes, "data.order": ["colour", "shape"]})
    execute(config, tmp_path / "first")
    learner = learner_of(config, benchmark_of_three)  # for its encoder; its weights are not used
    model = AutoModelForCausalLM.from_pretrained(config.model.name)
    learner.backbone.model = model.train()
    losses = []
    for task in benchmark_of_three.tasks[:2]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        for batch in batches(task.train, 3, 4, 0, "data", task.name):
            loss = full_logits_loss(learner, [learner.encoder.encode(e) for e in batch.examples])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    recorded = [line["loss"] for line in lines(tmp_path / "first" / "steps.jsonl")]
    assert len(losses) == 18 + 24
    assert recorded == pytest.approx(losses, rel=1e-4)
    start = AutoModelForCausalLM.from_pretrained(config.model.name).state_dict()
    for name, tensor in load_file(tmp_path / "first" / "model" / "model.safetensors").items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-3, atol=2e-4)
        assert (tensor - start[name]).abs().max() > 2e-3  # ten times the tolerance

    again = config.override({"model.name": str(tmp_path / "first" / "model")})
    assert execute(again, tmp_path / "second")["updates"] == {"task": 18 + 24}


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> list[Learner]:
    """The learners of the runs that a test makes."""
    made: list[Learner] = []

    def watch(*arguments: Any) -> Learner:
        made.append(build_learner(*arguments))
        return made[-1]

    monkeypatch.setattr(loop, "build_learner", watch)
    return made


def test_answers_do_not_depend_on_how_many_tasks_share_a_queue(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose answers are written down when all of them are there."""
    sizes: list[int] = []

    def watch(*arguments: Any) -> Any:
        sizes.append(len(arguments[3]))
        return evaluate(*arguments)

    monkeypatch.setattr(loop, "evaluate", watch)
    execute(small_config, tmp_path / "together")
    monkeypatch.setattr(loop, "PROMPTS_AT_ONCE", 1)
    execute(small_config, tmp_path / "each")
    assert sizes == [1, 2, 3, *[1] * 6]
    answers = [outcome(tmp_path / name).files for name in ("together", "each")]
    for name, text in answers[0].items():
        assert not name.startswith("predictions") or text == answers[1][name]


@pytest.mark.parametrize("name", METHODS)
def test_base_weights_never_change_and_evaluating_changes_nothing(
    small_config: RunConfig, learners: list[Learner], tmp_path: Path, name: str
) -> None:
    """The backbone stays as it was, bit for bit. No statistic is collected and no random number
    drawn outside of training."""
    # Texts of the published 2048 tokens take SSR minutes.
    short = {"method.max_tokens": 20} if name == "ssr" else {}
    config = small_config.override({"model.dropout": 0.1, "method.name": name, **short})
    less = execute(config, tmp_path / "less")
    start = load(config.model.name, torch.float32, torch.device("cpu")).model.state_dict()
    now: dict[str, Tensor] = {}
    for key, tensor in learners[0].backbone.model.state_dict().items():
        now[key.replace(".base.", ".").replace(".base_layer.", ".")] = tensor
    assert all(torch.equal(now[key], tensor) for key, tensor in start.items())
    adapters = lora_tensors(learners[0].backbone.model)
    assert len(adapters) == 2 * 2 * 2  # A and B of two targets in two layers
    assert all(tensor.any() for tensor in adapters.values())

    scored = {"evaluation.forward_transfer": True, "evaluation.max_new_tokens": 7}
    more = execute(config.override(scored), tmp_path / "more")
    differing = outcome(tmp_path / "less").differences(outcome(tmp_path / "more"))
    assert [d for d in differing if d.startswith(("adapter", "file steps", "file events"))] == []
    assert less["fwt"] is None
    assert name == "mtl" or more["fwt"] is not None


def test_warmup_and_decay_of_the_rate_follow_task_updates_only(
    small_config: RunConfig, tmp_path: Path
) -> None:
    changes = {"optim.schedule": "linear", "optim.warmup_steps": 2, "optim.lr": 0.01}
    execute(small_config.override(changes), tmp_path)
    rates: dict[str, list[tuple[int, float]]] = {"task": [], "replay": [], "consolidation": []}
    for line in lines(tmp_path / "steps.jsonl"):
        if line["task"] == "shape":
            rates[line["kind"]].append((line["step"], line["lr"]))
    assert [lr for _, lr in rates["task"]] == pytest.approx([0.005, 0.01, 0.01, 0.005])
    assert {lr for _, lr in rates["consolidation"]} == {0.01}  # the decay has ended at zero
    assert rates["replay"]
    next_rate = {1: 0.01, 2: 0.01, 3: 0.005, 4: 0.01}  # that of the task update that comes next
    assert [lr for _, lr in rates["replay"]] == pytest.approx(
        [next_rate[step] for step, _ in rates["replay"]]
    )


def test_journal_lines_add_up(small_config: RunConfig, tmp_path: Path) -> None:
    result = execute(small_config, tmp_path)
    steps, events = lines(tmp_path / "steps.jsonl"), lines(tmp_path / "events.jsonl")
    kinds = [step["kind"] for step in steps]
    assert {*kinds} == {"task", "replay", "consolidation"}
    assert result["updates"] == {kind: kinds.count(kind) for kind in {*kinds}}
    assert result["tokens"] == sum(step["tokens"] for step in steps)
    for task in result["tasks"]:
        steps_of_task = [step for step in steps if step["task"] == task]
        tau, days = 0.0, [event for event in events if event["task"] == task]
        for update, step in enumerate(steps_of_task, 1):
            tau += step["update_norm"] if step["kind"] == "task" else 0
            assert step["update"] == update
            assert step["tau"] == pytest.approx(tau, rel=1e-12)
        replays = [step for step in steps_of_task if step["kind"] != "task"]
        assert sum(event["updates"] for event in days) == len(replays)
        assert {step["beta"] for step in replays} == {event["beta"] for event in days}
        for event in days:
            assert event["beta"] == pytest.approx(1e-3 * event["strength"])
    first = next(step for step in steps if step["task"] == "shape" and step["step"] == 1)
    assert result["notes"]["shape"]["tau_day"] == pytest.approx(first["tau"])


def test_a_row_that_cannot_be_cut_is_found_before_the_first_update(
    small_config: RunConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"prompt tokens without its input"):
        execute(small_config.override({"model.max_length": 20}), tmp_path / "run")
    assert not (tmp_path / "run" / "steps.jsonl").exists()
