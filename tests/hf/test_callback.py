"""`Forever` in a trainer: events come when Algorithm 1 has them, and leave no other trace."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import execute, lines
from marks import TRL_WARNS
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from forever.config.run import RunConfig
from forever.data.batching import batches
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoder
from forever.data.tasks import Task
from forever.errors import InputError
from forever.hf import Forever, mix
from forever.hf.trainer import shared
from forever.models.adapter import attach, attached
from forever.models.backbone import load
from forever.training.memory import Memory
from forever.world import World

pytestmark = TRL_WARNS
CPU = torch.device("cpu")


def events(trainer: Any) -> list[dict[str, Any]]:
    """What was logged of replay."""
    return [entry for entry in trainer.state.log_history if "replay/event" in entry]


def logged(trainer: Any, *left_out: str) -> list[dict[str, Any]]:
    """What was logged of the task."""
    kept = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{key: value for key, value in entry.items() if key not in left_out} for entry in kept]


def trained(trainer: Any) -> list[torch.nn.Parameter]:
    return [p for p in trainer.model.parameters() if p.requires_grad]


def theta(trainer: Any) -> Tensor:
    return torch.nn.utils.parameters_to_vector(trained(trainer)).detach()


class Capture(TrainerCallback):
    """Keeps Theta as it is after the last update of the task, before Forever's turn."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        trainer.add_callback(self)

    def on_step_end(self, *arguments: Any, **_: Any) -> None:
        self.theta = theta(self.trainer)


# ---- what it leaves alone


def test_without_a_memory_nothing_changes(make: Any) -> None:
    alone = make()
    alone.train()
    beside = make()
    Forever().attach(beside)
    beside.train()
    assert torch.equal(theta(alone), theta(beside))
    assert logged(alone) == logged(beside)


def test_an_event_moves_weights_and_nothing_else(make: Any, old: Any) -> None:
    """Neither step nor epoch nor scheduler nor what is counted and logged of the task."""
    alone = make(optim="sgd")
    alone.train()
    # At a rate of zero an event of SGD leaves no trace at all, not in dropout's random numbers.
    beside = make(optim="sgd")
    Forever(memory=old, day_steps=3, lr=0.0, regularizer="none").attach(beside)
    beside.train()
    assert len(events(beside)) > 2
    assert torch.equal(theta(alone), theta(beside))
    assert logged(alone) == logged(beside)
    assert alone.state.global_step == beside.state.global_step == 16
    assert alone.lr_scheduler.state_dict() == beside.lr_scheduler.state_dict()
    assert alone._total_train_tokens == beside._total_train_tokens


# ---- what an event does


@pytest.mark.parametrize(("size", "accumulated"), [(4, 1), (1, 4)])
def test_an_event_is_the_update_worked_out_by_hand(
    make: Any, old: Any, size: int, accumulated: int
) -> None:
    """Theta - lr (g + 2 beta (Theta - Theta*)), g of the mean over the tokens of the answers in a
    batch of memory, however it is divided, and lr the highest, though the schedule ends at zero."""
    trainer = make(
        dropout=0.0,
        optim="sgd",
        learning_rate=0.1,
        max_steps=4,
        max_grad_norm=0.0,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulated,
    )
    start, capture = theta(trainer), Capture(trainer)
    forever = Forever(memory=old[:4], days="end_only", beta=0.5, gamma=0).attach(trainer)
    trainer.train()
    assert [event["replay/updates"] for event in events(trainer)] == [1]
    result, before = theta(trainer), capture.theta
    assert isinstance(forever.memory, Dataset)
    torch.nn.utils.vector_to_parameters(before, trained(trainer))
    inputs = trainer.data_collator([*forever.memory])
    labels = inputs.pop("labels")
    trainer.model.zero_grad()
    logits = trainer.model(**inputs).logits[:, :-1].flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten()).backward()
    gradient = torch.cat([p.grad.flatten() for p in trained(trainer) if p.grad is not None])
    expected = before - 0.1 * (gradient + 2 * 0.5 * (before - start))
    assert (before - start).abs().max() > 1e-3
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    ("settings", "last"), [({}, 0.01), ({"end_rate": "current"}, 0.0), ({"lr": 0.002}, 0.002)]
)
def test_an_event_has_the_rate_of_the_task_and_the_last_one_the_highest(
    make: Any, old: Any, settings: dict[str, Any], last: float
) -> None:
    """As in Algorithm 1's own loop, unless `lr` is given; the schedule is linear from 0.01 to 0."""
    trainer = make()
    Forever(memory=old, day_steps=3, clock="steps", **settings).attach(trainer)
    trainer.train()
    *within, end = events(trainer)
    assert [event["step"] for event in within] == [3, 6, 12]
    current = [0.01 * (1 - event["step"] / 16) for event in within]
    expected = [settings["lr"]] * 3 if "lr" in settings else current
    assert [event["replay/lr"] for event in within] == pytest.approx(expected)
    assert end["replay/lr"] == pytest.approx(last)


def test_a_plain_trainer_replays_too(
    backbone_folder: Path, base_config: RunConfig, tmp_path: Path
) -> None:
    """It has no metrics of its own, and takes examples that are tokens."""
    first, second = load_benchmark(base_config.data).tasks[:2]
    tokenizer = AutoTokenizer.from_pretrained(backbone_folder)
    once, encoder = base_config.override({"optim.epochs": 1}), Encoder(tokenizer, 256)
    settings = {"output_dir": str(tmp_path), "max_steps": 8, "save_strategy": "no"}
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(backbone_folder),
        args=TrainingArguments(**settings, report_to=[], use_cpu=True, disable_tqdm=True),
        train_dataset=encoded(second, once, encoder),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )
    Forever(memory=encoded(first, once, encoder), day_steps=3).attach(trainer)
    trainer.train()
    assert [event["replay/examples"] for event in events(trainer)][:1] == [48]
    assert next(event["step"] for event in events(trainer)) == 3


def encoded(task: Task, config: RunConfig, encoder: Encoder) -> Dataset:
    """A task's training examples as a run of the platform shows them, all epochs in order."""
    stream = batches(task.train, config.optim.epochs, 4, config.seed, "data", task.name)
    examples = [encoder.encode(example) for batch in stream for example in batch.examples]
    return Dataset.from_list(
        [
            {"input_ids": [*e.prompt, *e.answer], "labels": [-100] * len(e.prompt) + [*e.answer]}
            for e in examples
        ]
    )


class Recorded(Forever):
    """Hears of the distances that a run of the platform wrote down."""

    deltas: list[float]

    def delta(self) -> float:
        return self.deltas.pop(0)


def test_events_come_when_our_own_loop_has_them(
    make: Any, base_config: RunConfig, tmp_path: Path
) -> None:
    """Two tasks of 60 updates: from the same distances after the same updates, and live as well,
    since all else is equal: data, their order, the adapter's start and the optimiser."""
    config = base_config.override(
        {"data.order": ["colour", "shape"], "data.train_rows": 24, "optim.epochs": 10}
        | {"method.regularizer": "none", "method.consolidation_epochs": 2, "optim.lr": 3e-3}
    )
    execute(config, tmp_path / "run")
    steps = lines(tmp_path / "run" / "steps.jsonl")
    deltas = [s["update_norm"] for s in steps if s["task"] == "shape" and s["kind"] == "task"]
    ours = [event["step"] for event in lines(tmp_path / "run" / "events.jsonl")]
    assert len(deltas) == 60
    assert len(ours) > 3

    backbone = load(config.model.name, torch.float32, CPU)
    attach(backbone.model, config.model, config.seed)
    encoder = Encoder(backbone.tokenizer, config.model.max_length)
    settings = {"learning_rate": 3e-3, "lr_scheduler_type": "constant", "num_train_epochs": 1}
    settings |= {"train_sampling_strategy": "sequential", "model": attached(backbone.model)}
    tasks = load_benchmark(config.data).tasks
    first = make(encoded(tasks[0], config, encoder), **settings)
    first.train()
    kept = Memory(config.memory.fraction, 4, config.seed).choose(tasks[0])
    once = config.override({"optim.epochs": 1})
    memory = encoded(Task("kept", kept, (), "exact_match"), once, encoder)
    live = make(encoded(tasks[1], config, encoder), **settings)
    Forever(memory, day_steps=3, regularizer="none", consolidation_epochs=2).attach(live)
    live.train()
    found = [event["step"] for event in events(live)]
    assert len(found) == len(ours)
    assert all(abs(mine - other) <= 1 for mine, other in zip(found, ours, strict=True))

    told = make(encoded(tasks[1], config, encoder), **settings)
    recorded = Recorded(memory, day_steps=3, regularizer="none", consolidation_epochs=2)
    recorded.deltas = deltas
    recorded.attach(told)
    told.train()
    assert [event["step"] for event in events(told)] == ours


def test_the_choice_of_examples_is_that_of_our_own_memory(make: Any, old: Any) -> None:
    """As many of each answer where there are few, and only what the trainer trains on."""
    trainer = make(num_train_epochs=1)
    forever = Forever(memory=old).attach(trainer)
    trainer.train()
    memory = forever.close_task(fraction=0.2)
    first = [next(token for token in labels if token != -100) for labels in memory["labels"]]
    kept = trainer.processing_class.convert_ids_to_tokens(first[5:])
    assert sorted(kept) == ["round"] * 3 + ["square"] * 3
    assert memory.column_names == ["input_ids", "labels"]
    # The next task goes on with it.
    following = make(max_steps=2)
    assert forever.attach(following).task == 1
    following.train()
    assert [event["replay/examples"] for event in events(following)] == [11]


def test_each_rank_has_as_many_examples_of_a_batch() -> None:
    """Also of one that is shorter than half of the ranks, as a memory's last may be."""
    for count in range(1, 10):
        parts = [shared(World(rank, 4, CPU), [*range(count)]) for rank in range(4)]
        assert {*map(len, parts)} == {-(-count // 4)}
        assert {*range(count)} == {each for part in parts for each in part}


def test_a_loop_over_tasks_begins_with_an_empty_memory(make: Any) -> None:
    alone = make(max_steps=2)
    alone.train()
    first = make(max_steps=2)
    forever = Forever(memory=[]).attach(first)
    first.train()
    assert torch.equal(theta(alone), theta(first))
    assert len(forever.close_task()) > 0


# ---- anchors


def divergence(trainer: Any) -> float:
    """KL from the base model to the trained one on the answers of a batch, in nats a token."""
    model = trainer.model.eval()
    inputs = next(iter(trainer.get_train_dataloader()))
    places = inputs.pop("labels")[:, 1:] != -100
    with torch.no_grad():
        log_p = model(**inputs).logits[:, :-1][places].log_softmax(-1)
        with model.disable_adapter():
            log_q = model(**inputs).logits[:, :-1][places].log_softmax(-1)
    return (log_q.exp() * (log_q - log_p)).sum(-1).mean().item()


@pytest.mark.parametrize("accumulated", [1, 2])
def test_an_anchor_holds_the_answers(make: Any, accumulated: int) -> None:
    """A fresh adapter is the base model, so both references are one. The divergence's part of the
    first update's loss is none, and of a trained one's it is what is worked out here."""
    changes = {"dropout": 0.0, "max_steps": 6, "gradient_accumulation_steps": accumulated}
    trained: dict[Any, Any] = {}
    for anchor in (None, "base", "task"):
        trained[anchor] = make(**changes)
        Forever(anchor=anchor, anchor_weight=5.0).attach(trained[anchor])
        trained[anchor].train()
    assert torch.equal(theta(trained["base"]), theta(trained["task"]))
    assert divergence(trained["base"]) < 0.5 * divergence(trained[None])


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"days": "ebbinghause"}, "method.days"),
        ({"bata": 1.0}, "method.bata"),
        ({"day_steps": 0}, "method.day_steps"),
        ({"regularizer": "importance"}, "regularizer"),
        ({"consolidation_epochs": "matched"}, "consolidation_epochs"),
        ({"anchor": "bass"}, "anchor"),
        ({"lr": -1e-3}, ""),
    ],
)
def test_settings_are_refused_by_their_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as refused:
        Forever(**settings)
    assert refused.value.key == key


@pytest.mark.parametrize(
    "changes",
    [
        {"train_sampling_strategy": "group_by_length"},
        {"restore_callback_states_from_checkpoint": True},
    ],
)
def test_trainers_with_which_replay_cannot_work_are_refused(make: Any, changes: Any) -> None:
    with pytest.raises(InputError):
        Forever().attach(make(**changes))


def test_a_trainer_has_one_forever_which_knows_it(make: Any, old: Any) -> None:
    trainer = make(max_steps=1)
    trainer.add_callback(Forever(memory=old))
    with pytest.raises(InputError):
        trainer.train()
    with pytest.raises(InputError):
        Forever(memory=old).attach(trainer)


def test_mixed_examples_are_not_packed(make: Any) -> None:
    """Packing would put them in an order of its own."""
    new = Dataset.from_list([{"prompt": f"a {i}", "completion": " b"} for i in range(4)])
    with pytest.raises(InputError):
        Forever().attach(make(mix(new, new, 0.5), packing=True, max_length=64))


def test_a_task_is_not_closed_before_it_was_trained() -> None:
    with pytest.raises(InputError):
        Forever().close_task()


def test_deepspeed_is_refused(make: Any) -> None:
    """It is not installed here, so only what the trainer would say of it is there."""
    trainer = make()
    trainer.is_deepspeed_enabled = True
    with pytest.raises(InputError, match="FSDP"):
        Forever().attach(trainer)


def test_an_anchor_at_the_base_needs_an_adapter(make: Any, backbone_folder: Path) -> None:
    whole = make(model=AutoModelForCausalLM.from_pretrained(backbone_folder))
    with pytest.raises(InputError):
        Forever(anchor="base").attach(whole)


def test_a_packed_dataset_is_not_what_is_kept(make: Any, old: Any) -> None:
    """A packed task is trained with a memory that is not; its examples are to be given."""
    trainer = make(packing=True, max_length=128, max_steps=2)
    forever = Forever(memory=old).attach(trainer)
    trainer.train()
    assert [event["replay/examples"] for event in events(trainer)] == [5]
    with pytest.raises(InputError):
        forever.close_task()
    assert len(forever.close_task(old, fraction=0.5)) == 5 + 2
