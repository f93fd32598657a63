"""The loop and the one optimiser step, against plain PyTorch and Hugging Face code written here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import execute, lines, lora_tensors, outcome
from safetensors.torch import load_file
from torch import Tensor

from forever.config.methods.replay import FinetuneConfig
from forever.config.run import RunConfig
from forever.data.batching import Batch, batches
from forever.data.encoding import Encoded
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.methods.base import Method
from forever.methods.plain import Finetune
from forever.methods.registry import METHODS
from forever.models.backbone import load
from forever.training import loop
from forever.training import step as step_module
from forever.training.build import build_learner
from forever.training.forward import answer_logits, cross_entropy
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import add_penalty, optimizer_step, probe
from forever.training.steps import Forward, Penalty, Probe, Step
from forever.training.world import World

FINETUNE = Finetune(FinetuneConfig())


def learner_of(config: RunConfig, benchmark: Benchmark, **changes: Any) -> Learner:
    """A learner at the start of the benchmark's first task, its adapter moved away from zero."""
    learner = build_learner(config.override(changes), World())
    learner.begin(0, benchmark.tasks[0])
    learner.planned_steps = 10
    with torch.no_grad():
        noise = torch.Generator().manual_seed(0)
        learner.parameters.flat += 0.05 * torch.randn(
            learner.parameters.flat.shape, generator=noise
        )
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    return learner


@pytest.fixture
def learner(base_config: RunConfig, benchmark_of_three: Benchmark) -> Learner:
    return learner_of(base_config, benchmark_of_three)


def encoded(learner: Learner, count: int = 5) -> list[Encoded]:
    assert learner.task is not None
    return [learner.encoder.encode(e) for e in learner.task.train[:count]]


def step_of(learner: Learner, count: int = 5, **fields: Any) -> Step:
    assert learner.task is not None
    return Step(Batch(learner.task.train[:count]), **fields)


class Spy(Method):
    """Fine-tuning that keeps each update's gradient, unclipped."""

    def __init__(self) -> None:
        super().__init__(None)
        self.gradients: list[Tensor] = []

    def on_gradients(self, learner: Learner) -> None:
        self.gradients.append(learner.parameters.grad.clone())


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


def test_head_runs_at_label_positions_only(learner: Learner) -> None:
    rows, seen = encoded(learner), []
    head = learner.backbone.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, __, output: seen.append(tuple(output.shape)))
    cross_entropy(learner, rows)
    handle.remove()
    assert seen == [(1, sum(len(r.answer) for r in rows), head.out_features)]
    # Undone.
    assert learner.backbone.model(input_ids=torch.ones(2, 3, dtype=torch.long)).logits.shape[
        :2
    ] == (2, 3)


def test_recorded_loss_is_the_mean_over_supervised_tokens(learner: Learner) -> None:
    rows = encoded(learner)
    expected = full_logits_loss(learner, rows).item()
    record = optimizer_step(learner, FINETUNE, step_of(learner))
    assert record.loss == pytest.approx(expected, rel=1e-6)
    assert record.tokens == sum(len(r.prompt) + len(r.answer) for r in rows)
    assert record.lr == learner.config.optim.lr


def test_probe_measures_and_changes_nothing(
    base_config: RunConfig, benchmark_of_three: Benchmark
) -> None:
    learner = learner_of(base_config, benchmark_of_three, **{"model.dropout": 0.5})
    before = learner.parameters.snapshot()
    learner.backbone.model.train()
    action = Probe(step_of(learner).batch)
    record = probe(learner, action)
    assert record == probe(learner, action)  # dropout is off
    learner.backbone.model.eval()
    assert record.loss == pytest.approx(
        full_logits_loss(learner, encoded(learner)).item(), rel=1e-6
    )
    assert (record.update_norm, record.lr) == (0, 0)
    assert torch.equal(learner.parameters.snapshot(), before)
    assert not learner.parameters.grad.any()


# ---- one update


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 4])
def test_micro_batches_add_up_to_one_batch(learner: Learner, micro_batch: int) -> None:
    """The last micro-batch is shorter, and rows have different numbers of answer tokens."""
    assert learner.task is not None
    task = learner.task
    uneven = tuple(replace(e, output=e.output + " red" * i) for i, e in enumerate(task.train[:5]))
    start, spy = learner.parameters.snapshot(), Spy()
    records = []
    for size in (None, micro_batch):
        learner.parameters.load(start)
        learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
        learner.micro_batch = size
        records.append(optimizer_step(learner, spy, Step(Batch(uneven))))
    whole, parts = spy.gradients
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-7)
    assert records[1].loss == pytest.approx(records[0].loss, rel=1e-6)
    assert records[1].update_norm == pytest.approx(records[0].update_norm, rel=1e-4)


def test_update_norm_is_how_far_the_parameters_moved(learner: Learner) -> None:
    before = learner.parameters.snapshot()
    record = optimizer_step(learner, FINETUNE, step_of(learner))
    moved = (learner.parameters.snapshot().double() - before.double()).norm().item()
    assert record.update_norm == pytest.approx(moved, rel=1e-6)
    assert moved > 0


def penalty_of(learner: Learner, weighted: bool, beta: float = 0.7) -> Penalty:
    noise = torch.Generator().manual_seed(3)
    shape = learner.parameters.flat.shape
    anchor = learner.parameters.snapshot() + 0.1 * torch.randn(shape, generator=noise)
    return Penalty(beta, anchor, torch.rand(shape, generator=noise) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_penalty_equals_autograd_of_the_loss_form(
    learner: Learner, weighted: bool, micro_batch: int | None
) -> None:
    """CE + beta sum_j w_j (Theta_j - Theta*_j)^2, once an update and not once a micro-batch."""
    penalty, spy = penalty_of(learner, weighted), Spy()
    learner.micro_batch = micro_batch
    start = learner.parameters.snapshot()
    theta = start.clone().requires_grad_()
    w = torch.ones_like(theta) if penalty.weights is None else penalty.weights
    value = penalty.beta * (w * (theta - penalty.anchor) ** 2).sum()
    value.backward()
    assert theta.grad is not None
    grads = []
    for p in (None, penalty):
        learner.parameters.load(start)
        learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
        before_clip: list[Tensor] = []
        original = add_penalty

        def watch(
            parameters: Any, q: Any, original: Any = original, kept: list[Tensor] = before_clip
        ) -> Tensor:
            number = original(parameters, q)
            kept.append(parameters.grad.clone())
            return number

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_module, "add_penalty", watch)
            record = optimizer_step(learner, spy, step_of(learner, penalty=p, kind="replay"))
        grads += before_clip
    # On_gradients sees the cross-entropy alone.
    assert torch.equal(spy.gradients[0], spy.gradients[1])
    torch.testing.assert_close(grads[1] - grads[0], theta.grad, rtol=1e-4, atol=1e-6)
    assert record.penalty == pytest.approx(value.item(), rel=1e-5)
    # The loss is reported without it.
    assert record.loss == pytest.approx(full_loss_at(learner, start), rel=1e-6)


def full_loss_at(learner: Learner, theta: Tensor) -> float:
    learner.parameters.load(theta)
    with torch.no_grad():
        return full_logits_loss(learner, encoded(learner)).item()


@pytest.mark.parametrize("weighted", [False, True])
def test_penalty_in_closed_form(learner: Learner, weighted: bool) -> None:
    penalty = penalty_of(learner, weighted)
    w = 1.0 if penalty.weights is None else penalty.weights
    drift = learner.parameters.snapshot() - penalty.anchor
    value = add_penalty(learner.parameters, penalty)
    torch.testing.assert_close(learner.parameters.grad, 2 * 0.7 * w * drift)
    assert value.item() == pytest.approx((0.7 * w * drift.double() ** 2).sum().item(), rel=1e-6)
    assert value.dtype == torch.float64


def test_penalty_is_zero_at_the_anchor(learner: Learner) -> None:
    value = add_penalty(learner.parameters, Penalty(5.0, learner.parameters.snapshot()))
    assert value.item() == 0
    assert not learner.parameters.grad.any()
    assert add_penalty(learner.parameters, None).item() == 0


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
    found = []
    for method in (RidgeInLoss(), RidgeOnGradients()):
        learner.parameters.load(start)
        learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
        record = optimizer_step(learner, method, step_of(learner))
        found.append((method.gradients[0], learner.parameters.snapshot(), record.loss))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-4)
    # What is reported is the cross-entropy.
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-6)
    plain = Spy()
    learner.parameters.load(start)
    optimizer_step(learner, plain, step_of(learner))
    assert (plain.gradients[0] - found[0][0]).abs().max() > 1e-3


def test_dropout_is_drawn_anew_each_update_and_repeats_with_the_seed(
    base_config: RunConfig, benchmark_of_three: Benchmark
) -> None:
    learner = learner_of(base_config, benchmark_of_three, **{"model.dropout": 0.5})
    spy, start = Spy(), learner.parameters.snapshot()
    for updates in (0, 0, 1):
        learner.parameters.load(start)
        learner.updates = updates
        torch.manual_seed(99)  # whatever was drawn before does not matter
        torch.rand(updates + 1)
        optimizer_step(learner, spy, step_of(learner))
    assert torch.equal(spy.gradients[0], spy.gradients[1])
    assert not torch.equal(spy.gradients[0], spy.gradients[2])


# ---- whole runs


def test_full_fine_tuning_equals_a_plain_loop(
    base_config: RunConfig, benchmark_of_three: Benchmark, tmp_path: Path
) -> None:
    """AdamW on the model's own tensors, Hugging Face's loss with labels, the same batches, two
    tasks in a row."""
    config = base_config.override(
        {
            "model.tuning": "full",
            "method.name": "finetune",
            "data.order": ["colour", "shape"],
            "optim.lr": 1e-3,
        }
    )
    execute(config, tmp_path)
    learner = learner_of(config, benchmark_of_three)  # for its encoder; its weights are not used
    from transformers import AutoModelForCausalLM

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
    recorded = [line["loss"] for line in lines(tmp_path / "steps.jsonl")]
    assert len(losses) == 18 + 24
    assert recorded == pytest.approx(losses, rel=1e-4)
    saved = load_file(tmp_path / "model" / "model.safetensors")
    start = AutoModelForCausalLM.from_pretrained(config.model.name).state_dict()
    for name, tensor in saved.items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-3, atol=2e-4)
        assert (tensor - start[name]).abs().max() > 2e-3  # ten times the tolerance


def test_seed_repeats_bit_for_bit(base_config: RunConfig, tmp_path: Path) -> None:
    config = base_config.override({"model.dropout": 0.1})
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.manual_seed(ord(name))  # the state of the global generator is not part of a run
        execute(config.override({"seed": seed}), tmp_path / name)
    a, b, c = (outcome(tmp_path / name) for name in "abc")
    assert a.differences(b) == []
    assert (tmp_path / "a/adapter/adapter_model.safetensors").read_bytes() == (
        tmp_path / "b/adapter/adapter_model.safetensors"
    ).read_bytes()
    differing = a.differences(c)
    assert "file steps.jsonl" in differing
    assert all(f"adapter {name}" in differing for name in a.adapter)


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> list[Learner]:
    """The learners of the runs that a test makes."""
    made: list[Learner] = []
    build = build_learner

    def watch(*arguments: Any) -> Learner:
        made.append(build(*arguments))
        return made[-1]

    monkeypatch.setattr(loop, "build_learner", watch)
    return made


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
    trained = learners[0].backbone.model.state_dict()
    now = {
        key.replace(".base.", ".").replace(".base_layer.", "."): tensor
        for key, tensor in trained.items()
    }
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


def test_main_batches_are_equal_across_methods(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay draws from its own streams: the current task's rows come in the same order, under
    every method."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    plain: Callable[..., Any] = optimizer_step
    name = ""

    def watch(learner: Learner, method: Method, step: Step) -> Any:
        if step.kind == "task":
            rows.setdefault(name, []).append(tuple(e.id for e in step.batch.examples))
        return plain(learner, method, step)

    monkeypatch.setattr(step_module, "optimizer_step", watch)
    settings: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("finetune", "ewc", "olora", "moelora", "sapt")},
        **{name: {"method.warmup_steps": 1} for name in ("fixed_interval", "vbm", "forever")},
        "recurrent_kif": {"method.inner_steps": 2},
        "aimmerging": {"method.interval": 1, "method.min_interval": 1},
    }
    for name, changes in settings.items():
        result = execute(small_config.override({"method.name": name, **changes}), tmp_path / name)
        memory = result["updates"].get("replay", 0) + result["updates"].get("consolidation", 0)
        assert (memory > 0) == (
            name in ("fixed_interval", "vbm", "forever", "recurrent_kif", "aimmerging")
        )
        assert rows[name] == rows["finetune"]
    assert len(rows["forever"]) == 12


def test_optimiser_is_fresh_for_each_task_and_weights_carry_over(
    small_config: RunConfig,
    learners: list[Learner],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts, ends, adam_steps = [], [], []

    class Watch(Method):
        def begin_task(self, learner: Learner, task: Any) -> None:
            starts.append(learner.parameters.snapshot())

        def end_task(self, learner: Learner, task: Any) -> None:
            ends.append(learner.parameters.snapshot())
            assert learner.optimizer is not None
            adam_steps.append(
                (learner.optimizer.state[learner.parameters.flat]["step"].item(), learner.updates)
            )

    monkeypatch.setattr(loop, "build_method", Watch)
    execute(small_config, tmp_path)
    assert adam_steps == [(4, 4)] * 3
    assert torch.equal(starts[1], ends[0])
    assert torch.equal(starts[2], ends[1])
    assert not torch.equal(starts[1], starts[0])
    fresh = lora_tensors(build_learner(small_config, World()).backbone.model)
    assert not any(tensor.any() for name, tensor in fresh.items() if name.endswith(".B"))


def test_warmup_and_decay_of_the_rate_follow_task_updates_only(
    small_config: RunConfig, tmp_path: Path
) -> None:
    execute(
        small_config.override(
            {"optim.schedule": "linear", "optim.warmup_steps": 2, "optim.lr": 0.01}
        ),
        tmp_path,
    )
    steps = [line for line in lines(tmp_path / "steps.jsonl") if line["task"] == "shape"]
    assert [s["lr"] for s in steps if s["kind"] == "task"] == pytest.approx(
        [0.005, 0.01, 0.01, 0.005]
    )
    assert {s["lr"] for s in steps if s["kind"] == "consolidation"} == {0.0}
    replays = [(s["step"], s["lr"]) for s in steps if s["kind"] == "replay"]
    rate = {1: 0.01, 2: 0.01, 3: 0.005, 4: 0.0}  # that of the task update that comes next
    assert replays
    assert [lr for _, lr in replays] == pytest.approx([rate[step] for step, _ in replays])


def test_journal_lines_add_up(small_config: RunConfig, tmp_path: Path) -> None:
    result = execute(small_config, tmp_path)
    steps, events = lines(tmp_path / "steps.jsonl"), lines(tmp_path / "events.jsonl")
    assert result["updates"] == {
        k: sum(s["kind"] == k for s in steps) for k in ("task", "replay", "consolidation")
    }
    assert result["tokens"] == sum(s["tokens"] for s in steps)
    for task in result["tasks"]:
        own = [s for s in steps if s["task"] == task]
        assert [s["update"] for s in own] == list(range(1, len(own) + 1))
        tau = 0.0
        for s in own:
            tau += s["update_norm"] if s["kind"] == "task" else 0
            assert s["tau"] == pytest.approx(tau, rel=1e-12)
        days = [e for e in events if e["task"] == task]
        assert sum(e["updates"] for e in days) == sum(s["kind"] != "task" for s in own)
        assert all(
            s["beta"] == pytest.approx(1e-3 * e["strength"])
            for e in days
            for s in own
            if s["beta"] == e["beta"]
        )
    assert result["notes"]["shape"]["tau_day"] == pytest.approx(
        next(s["tau"] for s in steps if s["task"] == "shape" and s["step"] == 1)
    )


def test_a_run_that_diverges_ends_with_an_error_and_no_result(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that reads NaN passes no day, and the scores would look like any other run's."""
    calls, honest = [], answer_logits

    def diverging(learner: Learner, rows: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        calls.append(len(rows))
        logits, targets = honest(learner, rows)
        return logits * (float("nan") if len(calls) > 5 else 1.0), targets

    monkeypatch.setattr(step_module, "answer_logits", diverging)
    with pytest.raises(
        FloatingPointError, match=r"task shape, update 2: loss nan.*lower optim\.lr"
    ):
        execute(small_config.override({"method.name": "finetune"}), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    assert len(lines(tmp_path / "run" / "steps.jsonl")) == 5


def test_a_row_that_cannot_be_cut_is_found_before_the_first_update(
    small_config: RunConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"prompt tokens without its input"):
        execute(small_config.override({"model.max_length": 20}), tmp_path / "run")
    assert not (tmp_path / "run" / "steps.jsonl").exists()


def test_a_fully_trained_model_is_a_folder_that_can_be_trained_again(
    small_config: RunConfig, tmp_path: Path
) -> None:
    full = small_config.override(
        {"model.tuning": "full", "optim.lr": 1e-3, "method.name": "finetune"}
    )
    execute(full, tmp_path / "first")
    second = full.override({"model.name": str(tmp_path / "first" / "model")})
    assert execute(second, tmp_path / "second")["updates"] == {"task": 12}
