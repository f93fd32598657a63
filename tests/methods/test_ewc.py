"""EWC against autograd, naive sums and values worked by hand. What the tests of single baselines
share is here, too."""

import json
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from helpers import KILLED_CLOSES_NO_FILES, execute, outcome, rows_task, stub_learner, with_rows
from torch import Tensor

from forever.config.methods.baselines import EwcConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Task
from forever.evaluation import decoding
from forever.launch.local import Placement, run_local
from forever.methods import ewc
from forever.methods.ewc import Ewc
from forever.methods.registry import build_method
from forever.runs import checkpoint, session
from forever.seeding import derive
from forever.training import importance, loop
from forever.training.build import build_learner
from forever.training.forward import cross_entropy
from forever.training.importance import fisher_information
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import add_penalty, perform
from forever.training.steps import Step, StepRecord, Steps
from forever.training.world import World

T = TypeVar("T")
U = TypeVar("U")

# ---- shared: a method and its learner, trained without files; ranks that are threads; a run that
# dies all the time


def toy(config: RunConfig) -> tuple[Task, ...]:
    """The tasks of a configuration on the toy benchmark."""
    return load_benchmark(config.data).tasks


def begin(
    config: RunConfig,
    fields: dict[str, Any],
    world: World = World(),
    micro: int | None = None,
    **changes: Any,
) -> tuple[Learner, Any]:
    """A learner and its method, before the first of three tasks; `changes` are dotted keys, "__"
    for a dot."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    parsed = RunConfig.parse(config.override(dotted).model_dump(mode="json") | {"method": fields})
    method = build_method(parsed.method)
    return build_learner(parsed, world, micro, method, 3), method


class Unsaved:
    """Stands for a session: nothing happened before, nothing is kept but what the updates did."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def past(self, stage: int) -> deque[StepRecord]:
        return deque()

    def record(
        self, learner: Learner, method: Any, action: Any, record: StepRecord, remembered: bool
    ) -> None:
        self.records.append(record)

    def end_training(self, learner: Learner, method: Any) -> None:
        pass


def learn(learner: Learner, method: Any, *tasks: Task) -> list[StepRecord]:
    """Train the next tasks as a run does."""
    unsaved: Any = Unsaved()
    for task in tasks:
        loop.train_task(learner, method, len(learner.memory.kept), task, unsaved)
    return unsaved.records


def start(learner: Learner, method: Any, task: Task) -> Steps:
    """Begin the next task as a run does; what it would do."""
    learner.begin(len(learner.memory.kept), task)
    method.begin_task(learner, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    return method.steps(learner, task)


def update(learner: Learner, method: Any, steps: Steps) -> StepRecord:
    """The next update of a task that was started."""
    return perform(learner, method, next(steps))


def theta(learner: Learner) -> Tensor:
    return learner.parameters.snapshot()


def together(size: int, build: Callable[[World], T], work: Callable[[T], U]) -> list[U]:
    """What `work` returns on each of `size` ranks. They are threads that meet at every exchange."""
    meeting = threading.Barrier(size, timeout=30)
    brought: list[Any] = [None] * size

    class Rank(World):
        def exchange(self, value: Any) -> list[Any]:
            meeting.wait()
            brought[self.rank] = value
            meeting.wait()
            return list(brought)

        def sum_(self, tensor: Tensor) -> Tensor:
            parts = self.exchange(tensor.clone())
            return tensor.copy_(torch.stack(parts).sum(0))

        def from_leader(self, tensor: Tensor) -> Tensor:
            return tensor.copy_(self.exchange(tensor.clone())[0])

        def gather(self, values: list[Any]) -> list[list[Any]]:
            return self.exchange(json.loads(json.dumps(values)))

    def guarded(built: T) -> U:
        try:
            return work(built)
        except BaseException:
            meeting.abort()
            raise

    built = [build(Rank(rank, size)) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, built))


class Killed(BaseException):
    """Stands for SIGKILL."""


TINY_RUN: dict[str, Any] = {
    "data.train_rows": 4,
    "data.test_rows": 1,
    "optim.batch_size": 2,
    "optim.epochs": 1,
}


def survives_kills(config: RunConfig, fields: dict[str, Any], path: Path) -> None:
    """Three tasks of two updates, killed after each update and at the end of each task: equal to
    one that was not."""
    changed = config.override({**TINY_RUN, "memory.fraction": 0.5, "model.dropout": 0.1})
    config = RunConfig.parse(changed.model_dump(mode="json") | {"method": fields})
    execute(config, path / "whole")
    perform, end, done = loop.perform, session.Session.end_training, [0]

    def one(*arguments: Any) -> StepRecord:
        if done[0]:
            raise Killed
        done[0] += 1
        return perform(*arguments)

    def untouched(*arguments: Any) -> None:
        if done[0]:
            raise Killed
        end(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "perform", one)
        patch.setattr(session.Session, "end_training", untouched)
        deaths, place = 0, Placement(device="cpu", checkpoint_s=0.0)
        while not (path / "killed" / "result.json").exists():
            done[0] = 0
            try:
                run_local(config, path / "killed", resume=True, placement=place)
            except Killed:
                deaths += 1
    assert deaths >= 6
    assert outcome(path / "whole").differences(outcome(path / "killed")) == []
    ends = [checkpoint.latest(path / name / "checkpoints") for name in ("whole", "killed")]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    assert all(
        torch.equal(tensor, ends[1].tensors[name]) for name, tensor in ends[0].tensors.items()
    )
    assert ends[0].state["method"] == ends[1].state["method"]


# ---- EWC


def known_fisher(patch: pytest.MonkeyPatch, *values: Tensor) -> None:
    """The Fisher information of one task after the other is `values`."""
    left = iter(values)
    patch.setattr(ewc, "fisher_information", lambda learner, rows: next(left).clone())


@pytest.mark.parametrize(
    "fields", [{"strength": 0.0}, {"strength": 1e6}, {"strength": 1e6, "mode": "separate"}]
)
def test_without_strength_or_importance_it_is_fine_tuning(
    small_config: RunConfig, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, plain_method = begin(small_config, {"name": "finetune"})
    learner, method = begin(small_config, {"name": "ewc", **fields})
    if fields["strength"]:
        monkeypatch.setattr(ewc, "fisher_information", lambda learner, rows: theta(learner) * 0)
    assert learn(learner, method, *toy(small_config)) == learn(
        plain, plain_method, *toy(small_config)
    )
    assert torch.equal(theta(learner), theta(plain))


def test_penalty_changes_the_second_task_and_not_the_first(small_config: RunConfig) -> None:
    tasks = toy(small_config)
    ends = []
    for strength in (0.0, 1e6):
        learner, method = begin(small_config, {"name": "ewc", "strength": strength})
        learn(learner, method, tasks[0])
        first = theta(learner)
        records = learn(learner, method, tasks[1])
        ends.append((first, theta(learner), learner.parameters.distance(first).item()))
        assert any(r.penalty > 0 for r in records) == (strength > 0)
    assert torch.equal(ends[0][0], ends[1][0])
    assert not torch.equal(ends[0][1], ends[1][1])
    assert ends[1][2] < ends[0][2]  # it is held back


def test_penalty_is_nothing_at_the_anchor(small_config: RunConfig) -> None:
    """The first update of a task is that of fine-tuning, bit for bit: the penalty and its gradient
    are 0 there."""
    tasks = toy(small_config)
    after = []
    for strength in (0.0, 1e9):
        learner, method = begin(small_config, {"name": "ewc", "strength": strength})
        learn(learner, method, tasks[0])
        steps = start(learner, method, tasks[1])
        first = update(learner, method, steps)
        after.append((theta(learner), learner.parameters.grad.clone()))
        assert first.penalty == 0
    assert torch.equal(after[0][0], after[1][0])
    assert torch.equal(after[0][1], after[1][1])


@pytest.mark.parametrize("micro", [None, 1])
@pytest.mark.parametrize("clip", [1e9, 0.05])
@pytest.mark.parametrize("mode", ["online", "separate"])
def test_gradient_is_that_of_the_loss(
    small_config: RunConfig, micro: int | None, clip: float, mode: str
) -> None:
    """The hook against autograd of CE + lambda/2 sum Omega (Theta - mu)^2 written as a loss, in 1
    and 4 parts."""
    strength = 1e4
    fields = {"name": "ewc", "strength": strength, "mode": mode}
    learner, method = begin(small_config, fields, micro=micro, optim__clip=clip)
    learn(learner, method, *toy(small_config)[:2])
    steps = start(learner, method, toy(small_config)[2])
    noise = torch.randn(theta(learner).shape, generator=torch.Generator().manual_seed(0))
    learner.parameters.flat.data += 0.1 * noise
    action = next(steps)
    assert isinstance(action, Step)

    rows = [learner.encoder.encode(example) for example in action.batch.examples]
    omega = method.tensors["fisher"]
    mu = (
        method.tensors["anchor"]
        if mode == "online"
        else method.tensors["moment"] / omega.clamp_min(1e-30)
    )
    omegas, mus = learner.parameters.split(omega), learner.parameters.split(mu)
    penalty = torch.stack(
        [(omegas[n] * (p - mus[n]) ** 2).sum() for n, p in learner.parameters.named.items()]
    ).sum()
    loss = cross_entropy(learner, rows) / sum(len(row.answer) for row in rows)
    learner.parameters.grad.zero_()
    loss.backward(retain_graph=True)
    alone = learner.parameters.grad.norm().item()
    learner.parameters.grad.zero_()
    (loss + strength / 2 * penalty).backward()
    expected = learner.parameters.grad.clone()
    assert expected.norm().item() > 1.5 * alone
    expected *= min(1.0, clip / (expected.norm().item() + 1e-6))

    record = perform(learner, method, action)
    torch.testing.assert_close(
        learner.parameters.grad, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item()
    )
    assert record.penalty == pytest.approx(strength / 2 * penalty.item(), rel=1e-5)
    assert record.loss == pytest.approx(cross_entropy.item(), rel=1e-5)


def test_optimum_between_a_new_task_and_the_old() -> None:
    """CE replaced by h/2 (Theta - c)^2: the optimum is (h c + lambda Omega mu) / (h + lambda
    Omega)."""
    learner, method = stub_learner(), Ewc(EwcConfig(strength=3.0))
    h, c = 2.0, torch.tensor([5.0, -1.0, 0.0])
    omega, mu = torch.tensor([1.0, 0.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])
    method.tensors |= {"fisher": omega, "anchor": mu}
    for _ in range(200):
        learner.parameters.grad.copy_(h * (learner.parameters.flat.detach() - c))
        add_penalty(learner.parameters, method.penalty())
        learner.parameters.flat.data -= 0.1 * learner.parameters.grad
    expected = torch.tensor([(10 + 3) / 5, -1.0, 36 / 14])
    torch.testing.assert_close(theta(learner), (h * c + 3 * omega * mu) / (h + 3 * omega))
    torch.testing.assert_close(theta(learner), expected)


def test_separate_penalties_are_their_naive_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tasks. The value differs by the constant that sum F_i (Theta_i - M/S)^2 is."""
    stream = torch.Generator().manual_seed(1)
    fishers = [torch.rand(3, generator=stream) for _ in range(5)]
    for fisher in fishers:
        fisher[2] = 0  # an entry that never mattered
    ends = [torch.randn(3, generator=stream) for _ in range(5)]
    learner, method = stub_learner(), Ewc(EwcConfig(strength=7.0, mode="separate"))
    known_fisher(monkeypatch, *fishers)
    for end in ends:
        learner.parameters.load(end)
        method.end_task(learner, rows_task("any", 2))
    at = torch.tensor([0.3, -2.0, 1.5])
    learner.parameters.load(at)
    learner.parameters.grad.zero_()
    value = add_penalty(learner.parameters, method.penalty()).item()
    naive = sum(7.0 * f * (at - end) for f, end in zip(fishers, ends, strict=True))
    torch.testing.assert_close(
        learner.parameters.grad, torch.as_tensor(naive), rtol=1e-5, atol=1e-6
    )
    S, M = sum(fishers), sum(f * e for f, e in zip(fishers, ends, strict=True))
    centre = torch.where(torch.as_tensor(S) > 0, M / S, torch.zeros(3))
    values = [
        sum(3.5 * (f * (x - e) ** 2).sum() for f, e in zip(fishers, ends, strict=True))
        for x in (at, centre)
    ]
    assert value == pytest.approx(float(values[0] - values[1]), rel=1e-5)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_online_importance_adds_up_around_the_last_end(
    decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, method = stub_learner(), Ewc(EwcConfig(decay=decay))
    known_fisher(
        monkeypatch, torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 2]), torch.tensor([4.0, 0, 1])
    )
    for place in (1.0, 2.0, 3.0):
        learner.parameters.flat.data.fill_(place)
        method.end_task(learner, rows_task("any", 2))
    learner.parameters.flat.data.fill_(9.0)  # the anchor is a copy
    assert method.tensors["fisher"].tolist() == [4 + decay**2, decay, 1 + 2 * decay]
    assert method.tensors["anchor"].tolist() == [3.0, 3.0, 3.0]
    assert method.tensors.keys() == {"fisher", "anchor"}


def test_decay_of_separate_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, method = stub_learner(), Ewc(EwcConfig(decay=0.5, mode="separate"))
    known_fisher(monkeypatch, torch.ones(3), torch.ones(3))
    for place in (1.0, 4.0):
        learner.parameters.flat.data.fill_(place)
        method.end_task(learner, rows_task("any", 2))
    penalty = method.penalty()
    assert penalty is not None
    assert penalty.anchor.tolist() == [(0.5 * 1 + 4) / 1.5] * 3


# ---- Fisher information


@pytest.fixture(scope="module")
def trained(small_config: RunConfig) -> tuple[Learner, Ewc]:
    """After the first task, so that B is not zero; tests leave its weights as they are."""
    learner, method = begin(small_config, {"name": "ewc"}, model__dropout=0.3)
    learn(learner, method, toy(small_config)[0])
    return learner, method


def test_fisher_is_the_mean_squared_gradient_of_single_rows(
    trained: tuple[Learner, Ewc], small_config: RunConfig
) -> None:
    """Against the model's own loss, dropout off although the model was training, no penalty in
    it."""
    learner, method = trained
    rows = toy(small_config)[0].train
    learner.backbone.model.train()
    found = fisher_information(learner, rows)
    learner.backbone.model.eval()
    total = torch.zeros_like(found)
    for example in rows:
        row = learner.encoder.encode(example)
        learner.parameters.grad.zero_()
        ids, labels = (
            torch.tensor([row.prompt + row.answer]),
            torch.tensor([(-100,) * len(row.prompt) + row.answer]),
        )
        learner.backbone.model(input_ids=ids, labels=labels).loss.backward()
        total += learner.parameters.grad**2
    torch.testing.assert_close(found, total / len(rows), rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(found, method.tensors["fisher"], rtol=1e-4, atol=1e-10)
    assert (found >= 0).all()
    assert found.isfinite().all()
    assert found.sum() > 1e-6


def test_fisher_does_not_depend_on_order_or_repetition(
    trained: tuple[Learner, Ewc], small_config: RunConfig
) -> None:
    learner, _ = trained
    rows = toy(small_config)[0].train
    found = fisher_information(learner, rows)
    for other in (rows[::-1], rows + rows):
        torch.testing.assert_close(fisher_information(learner, other), found, rtol=1e-5, atol=1e-9)
    assert not torch.allclose(fisher_information(learner, rows[:4]), found, rtol=1e-2)


@pytest.mark.parametrize("size", [2, 3])
def test_fisher_does_not_depend_on_the_number_of_ranks(
    trained: tuple[Learner, Ewc], small_config: RunConfig, size: int
) -> None:
    """Eight rows: three ranks have three, three and two."""
    alone, _ = trained
    rows = toy(small_config)[0].train

    def build(world: World) -> Learner:
        learner, _ = begin(small_config, {"name": "ewc"}, world=world)
        learner.parameters.load(theta(alone))
        return learner

    found = together(size, build, lambda learner: fisher_information(learner, rows))
    assert all(torch.equal(part, found[0]) for part in found)
    torch.testing.assert_close(found[0], fisher_information(alone, rows), rtol=1e-5, atol=1e-9)


def test_opposite_gradients_do_not_cancel(
    trained: tuple[Learner, Ewc], small_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _ = trained
    rows = toy(small_config)[0].train[:2]  # one of each label
    slope = torch.linspace(-1, 1, len(theta(learner)))

    def known(learner: Learner, encoded: list[Any]) -> Tensor:
        sign = 1.0 if encoded[0] == learner.encoder.encode(rows[0]) else -1.0
        return sign * len(encoded[0].answer) * (learner.parameters.flat * slope).sum()

    monkeypatch.setattr(importance, "cross_entropy", known)
    torch.testing.assert_close(fisher_information(learner, rows), slope**2)


@pytest.mark.parametrize("labels", ["gold", "sampled"])
def test_the_end_of_a_task_changes_nothing_but_the_method(
    small_config: RunConfig, labels: str
) -> None:
    """Weights, optimiser and random streams stay; the next update is the same as without it."""
    tasks = toy(small_config)
    after = []
    for ends in (True, False):
        fields = {"name": "ewc", "fisher_labels": labels, "strength": 0.0}
        learner, method = begin(small_config, fields, model__dropout=0.2)
        steps = start(learner, method, tasks[0])
        update(learner, method, steps)
        assert learner.optimizer is not None
        adam = {
            name: value.clone()
            for name, value in learner.optimizer.state_dict()["state"][0].items()
        }
        weights, states = theta(learner), (torch.get_rng_state(), random.getstate())
        if ends:
            method.end_task(learner, tasks[0])
            assert torch.equal(theta(learner), weights)
            now = learner.optimizer.state_dict()["state"][0]
            assert all(torch.equal(value, now[name]) for name, value in adam.items())
            assert torch.equal(torch.get_rng_state(), states[0])
            assert random.getstate() == states[1]
        update(learner, method, steps)
        after.append(theta(learner))
    assert torch.equal(after[0], after[1])


# ---- answers drawn from the model


def sampled(config: RunConfig, world: World = World(), **changes: Any) -> tuple[Learner, Ewc]:
    return begin(config, {"name": "ewc", "fisher_labels": "sampled"}, world=world, **changes)


def test_drawn_answers_replace_nothing_but_answers(small_config: RunConfig) -> None:
    """Each has a seed of its own, on any number of ranks, and its tokens are those that were
    drawn."""
    task = toy(small_config)[0]
    learner, method = sampled(small_config)
    drawn = method.answers(learner, task)
    prompts = [learner.encoder.encode_prompt(example) for example in task.train]
    assert [replace(row, answer=()) for row in drawn] == prompts
    assert len({row.answer for row in drawn}) > 4
    seeds = [derive(0, "fisher", task.name, i) for i in range(len(prompts))]
    texts = decoding.sample(learner.backbone, prompts, seeds, 3, decoding.Sampling())
    decode = learner.backbone.tokenizer.decode
    assert [decode(row.answer, skip_special_tokens=True).strip() for row in drawn] == texts
    for part in together(
        3,
        lambda world: sampled(small_config, world),
        lambda built: built[1].answers(built[0], task),
    ):
        assert part == drawn


def test_drawn_answers_end_where_the_model_ended_them(small_config: RunConfig) -> None:
    """With its EOS, which was drawn like any token; one that was cut off has none, for none was
    drawn."""
    task = toy(small_config)[0]
    learner, method = sampled(small_config, evaluation__max_new_tokens=40)
    end = learner.backbone.tokenizer.eos_token_id
    answers = [row.answer for row in method.answers(learner, with_rows(task, task.train * 8))]
    assert {answer.count(end) for answer in answers} == {0, 1}
    for answer in answers:
        assert (answer[-1] == end) if end in answer else (len(answer) == 40)
        assert end not in answer[:-1]


def test_fisher_of_drawn_answers_is_used(small_config: RunConfig) -> None:
    task = toy(small_config)[0]
    learner, method = begin(small_config, {"name": "ewc", "fisher_labels": "sampled"})
    learn(learner, method, task)
    drawn = method.answers(learner, task)
    assert drawn == method.answers(learner, task)
    torch.testing.assert_close(
        method.tensors["fisher"], fisher_information(learner, drawn), rtol=1e-4, atol=1e-10
    )
    assert not torch.allclose(
        method.tensors["fisher"], fisher_information(learner, task.train), rtol=1e-2
    )


def test_drawn_answers_of_any_length_fit(small_config: RunConfig) -> None:
    """A random model hardly stops; where nothing of a row could be cut its answer is longer than a
    gold one may be."""
    task = toy(small_config)[0]
    learner, _ = begin(small_config, {"name": "ewc"})
    bare = len(learner.encoder.encode_prompt(replace(task.train[0], input=" ")).prompt)
    learner, method = sampled(
        small_config, model__max_length=bare + 5, evaluation__max_new_tokens=128
    )
    assert max(len(row.answer) for row in method.answers(learner, task)) > 5
    method.end_task(learner, task)
    assert method.tensors["fisher"].isfinite().all()
    assert method.tensors["fisher"].any()


def test_tokens_are_not_read_again(small_config: RunConfig) -> None:
    """What is drawn need not be what its text would be read as: here nothing, for every token is
    special."""
    task = with_rows(toy(small_config)[0], toy(small_config)[0].train[:2])
    learner, _ = sampled(small_config)
    pad = learner.backbone.tokenizer.pad_token_id
    rows = [replace(learner.encoder.encode_prompt(e), answer=(pad, pad)) for e in task.train]
    found = fisher_information(learner, rows)
    expected = torch.zeros_like(found)
    learner.backbone.model.eval()
    for row in rows:
        learner.parameters.grad.zero_()
        ids = torch.tensor([[*row.prompt, pad, pad]])
        logits = learner.backbone.model(input_ids=ids).logits[0, -3:-1]
        F.cross_entropy(logits, torch.tensor([pad, pad])).backward()
        expected += learner.parameters.grad**2 / 2
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-10)


@pytest.mark.filterwarnings(*[mark.args[0] for mark in KILLED_CLOSES_NO_FILES])
@pytest.mark.parametrize(
    "fields",
    [
        {"strength": 1e6},
        {"strength": 1e6, "mode": "separate", "decay": 0.5, "fisher_labels": "sampled"},
    ],
)
def test_killed_after_every_update(
    small_config: RunConfig, fields: dict[str, Any], tmp_path: Path
) -> None:
    survives_kills(small_config, {"name": "ewc", **fields}, tmp_path)
