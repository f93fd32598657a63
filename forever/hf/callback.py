"""FOREVER in a script with a `Trainer` or an `SFTTrainer`: replay between the updates of a task.

    trainer = SFTTrainer(model, args=args, train_dataset=new)
    Forever(memory=old).attach(trainer)
    trainer.train()

Clock, schedule and regulariser are those of `forever/replay`, asked through the `Trigger` that
Algorithm 1 uses. An event is made of updates by the trainer's own collator, loss, clipping and
optimiser, right after an update of the task is over and before its checkpoint is written. So no
checkpoint is ever within an event, and `global_step`, the scheduler and the epoch do not move.

What must survive a restart is in the `trainer_state.json` of each checkpoint; Theta*, which stays
the same all through a task, is a safetensors file in `output_dir`.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, concatenate_datasets
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from forever.config.methods.ours import ForeverConfig
from forever.config.run import RunConfig
from forever.errors import InputError, shown
from forever.files import check_digest, json_lines, sha256, write_bytes
from forever.hf.anchor import hold
from forever.hf.mix import is_mixed
from forever.hf.trainer import Examples, Weights, apart, as_dataset, log, prepared, refuse, update
from forever.replay.clock import CLOCKS
from forever.replay.regularizers import Regularizer, scaled
from forever.replay.schedules import CONTROLS, Days, days
from forever.replay.trigger import Due, Trigger
from forever.seeding import derive, permutation
from forever.training.memory import balanced_choice, quota
from forever.world import World


class Forever(TrainerCallback, ExportableState):
    """Replay of examples of earlier tasks at days of model time, and what holds what was known.

    Args:
        memory: examples of earlier tasks, in the form that the trainer's `train_dataset` has; the
            trainer prepares them in the same way. None means no replay.
        anchor: on every example that is trained, the answer's distribution is also held to that of
            the "base", the model without its adapter, or to that of the model at the start of the
            "task". It costs two more forward passes, one of them without gradients.
        anchor_weight: the weight of that term, a mean KL divergence in nats a token.
        lr: the learning rate of all replay. None is the trainer's current rate within a task, and
            its highest for the pass that ends it, because the usual schedule ends at zero, where
            replay would do nothing; `end_rate="current"` or `"none"` changes that.
        seed: of the order in which memory is replayed, and of dropout while it is.
        task: the number of tasks that were closed before, for a script that begins with a later
            one; `close_task` counts on.
        settings: FOREVER's own, such as `days`, `clock`, `day_steps`, `memory_epochs` or `beta`,
            by the names and with the defaults of the `method` section of a run.

    Raises:
        InputError: a setting is unknown, out of its bounds, or needs more than a trainer has.
    """

    def __init__(
        self,
        memory: Examples | None = None,
        *,
        anchor: Literal["base", "task"] | None = None,
        anchor_weight: float = 0.1,
        lr: float | None = None,
        seed: int = 0,
        task: int = 0,
        **settings: Any,
    ) -> None:
        config = RunConfig.parse({"method": {"name": "forever", **settings}}).method
        assert isinstance(config, ForeverConfig)
        if anchor not in (None, "base", "task"):
            raise InputError(f"anchor={shown(anchor)}; valid: None, 'base', 'task'", key="anchor")
        if anchor_weight < 0 or (lr is not None and lr < 0):
            raise InputError(f"anchor_weight={anchor_weight}, lr={lr}: neither can be below zero")
        _refuse_settings(config)
        self.memory = as_dataset(memory) if memory else None
        self.config = config
        self.anchor, self.anchor_weight = anchor, anchor_weight
        self.lr, self.seed = lr, seed
        self.regularizer = Regularizer(
            config.regularizer, config.beta, config.gamma, config.min_strength, config.max_strength
        )
        self.trainer: Any = None
        self.memory_digest = ""  # of its prepared examples
        self.task = task  # its number, in the names of random streams
        self.trigger: Trigger | None = None  # while a task with a memory is trained
        self.due: Due | None = None  # the replay that the last update of the task brought
        self.before: list[Tensor] = []  # Theta ahead of an update of the task
        self.start: list[Tensor] = []  # Theta*, if something is held to it
        self.digests: list[str] = []  # of its file, or of each rank's
        self.replayed = 0  # examples in this task so far
        self.ended = False  # whether this task had the replay that ends it

    def attach(self, trainer: Any) -> "Forever":
        """Join a trainer for one task, which is one `train()`.

        The next task's trainer gets the same object after `close_task`.

        Raises:
            InputError: the trainer is set up in a way with which replay cannot work.
        """
        refuse(trainer)
        if any(isinstance(callback, Forever) for callback in trainer.callback_handler.callbacks):
            raise InputError(
                "the trainer has a Forever already; leave it out of callbacks=[...], and make a "
                "new trainer for each task"
            )
        args = trainer.args
        if is_mixed(trainer.train_dataset):  # whose order is the point, and which has all epochs
            if getattr(args, "packing", False):
                raise InputError("packing=True puts what `mix` made in another order; leave it out")
            args.train_sampling_strategy, args.num_train_epochs = "sequential", 1
        self.trainer = trainer
        self.world = World(args.process_index, args.world_size, args.device)
        self.weights = Weights(trainer, self.world)
        if self.memory is not None:
            self.memory = prepared(trainer, self.memory)
            texts = json_lines(dict(example) for example in self.memory)
            self.memory_digest = sha256(texts.encode())
        if self.anchor is not None:
            self._hold()
        trainer.add_callback(self)
        return self

    def close_task(self, examples: Examples | None = None, fraction: float = 0.02) -> Dataset:
        """End the task whose training is over, and return the memory with a part of it.

        The choice is that of the platform's own runs: it depends on the seed and the number of the
        task alone, and where there are few different answers each gets as many examples.

        Args:
            examples: the task's own, if the trainer's dataset is packed, mixed or a stream.
            fraction: how much of them is kept.
        """
        if self.trainer is None:
            raise InputError("close_task() ends the task of a trainer: attach(trainer) comes first")
        if examples is None:
            examples = self.trainer.train_dataset
            if (
                not isinstance(examples, Dataset)
                or is_mixed(examples)
                or "seq_lengths" in examples.column_names
            ):
                raise InputError(
                    "the trainer's dataset is packed, mixed or a stream, so its rows are not the "
                    "examples of the task; give these, as in close_task(new)"
                )
        task = prepared(self.trainer, as_dataset(examples))
        answers: Sequence[Any] = range(len(task))
        if "labels" in task.column_names:
            answers = [_answer(labels) for labels in task["labels"]]
        order = permutation(len(task), self.seed, "memory", self.task)
        kept = task.select(balanced_choice(answers, quota(fraction, len(task)), order))
        if self.memory is None:
            memory = kept
        else:  # a memory from a file may have wider integers
            memory = concatenate_datasets([self.memory, kept.cast(self.memory.features)])
        self.memory, self.task = memory, self.task + 1
        return memory

    # ---- what the trainer calls, in this order

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer is None:
            raise InputError("Forever needs the trainer itself: Forever(...).attach(trainer)")
        if not self.memory and self.anchor is None:
            # A checkpoint that was written without a Forever has no entry for the trainer to fill.
            state.stateful_callbacks.setdefault(type(self).__name__, {})
            return
        self.due, self.replayed, self.ended, self.digests = None, 0, False, []
        if self.memory:
            clock = CLOCKS[self.config.clock](self.config.day_steps, self.config.smoothing)
            self.trigger = Trigger(clock, self._days(state.max_steps))
        penalty = self.memory and self.regularizer.strength(pace=1.0) > 0
        if state.global_step:
            self._resume(state)
        elif penalty or self.anchor == "task":
            self.start = self.weights.snapshot()
            self._save_start()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trigger is not None:
            self.before = self.weights.snapshot()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trigger is not None:
            skipped = self.trainer.accelerator.optimizer_step_was_skipped  # in fp16
            self.due = self.trigger.observe(None if skipped else self.delta())
            self.before = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.due is not None:
            self._replay(self.due, self.config.memory_epochs)
            self.due = None
        if control.should_training_stop:  # so the last checkpoint has it
            self._end()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._end()  # unless it is over; an evaluation may have stopped the task
        self.trigger, self.start = None, []

    def delta(self) -> float:
        """Return Delta, how far the last update of the task moved the weights."""
        return self.weights.distance(self.before)

    # ---- an event

    def _end(self) -> None:
        if self.trigger is not None and not self.ended and self.config.end_rate != "none":
            self._replay(self.trigger.end(), self.config.consolidation_epochs)
            self.ended = True

    def _replay(self, event: Due, passes: Any) -> None:
        """Pass over the memory `passes` times, at a strength fixed before the first update."""
        assert self.trigger is not None
        at_end = event.day is None
        number = self.trigger.events + at_end
        beta = self.regularizer.strength(event.pace)
        highest = at_end and self.config.end_rate == "whole"
        rate = self._rate if highest or self.lr is not None else None
        batches = list(self._batches(number, passes))
        if not batches:
            return
        losses: list[float] = []
        with apart(self.trainer, rate, derive(self.seed, "dropout", self.task, number)):
            for batch in batches:
                scale, size = self.config.penalty_scale, self._batch_size
                share = scaled(beta, scale, len(batch), size, updates=len(batches))
                pull = partial(self.weights.pull, self.start, share) if share else None
                losses.append(update(self.trainer, self.world, batch, pull))
            count = sum(len(batch) for batch in batches)
            self.replayed += count
            numbers = {"event": number, "days": event.days, "pace": event.pace, "beta": beta}
            numbers |= {"updates": len(batches), "examples": count, "dose": self.replayed}
            numbers |= {"lr": self.trainer.optimizer.param_groups[0]["lr"]}
            numbers |= {} if event.day is None else {"day": event.day}
            log(self.trainer, {**numbers, "loss": sum(losses) / len(losses)})

    def _batches(self, event: int, passes: int) -> Iterator[list[Any]]:
        """Yield global batches, newly shuffled in each pass, as large as one of the task."""
        assert self.memory is not None
        for number in range(passes):
            order = permutation(len(self.memory), self.seed, "replay", self.task, event, number)
            for begin in range(0, len(order), self._batch_size):
                indices = order[begin : begin + self._batch_size]
                yield [self.memory[index] for index in indices]

    @property
    def _batch_size(self) -> int:
        args = self.trainer.args
        return args.train_batch_size * args.gradient_accumulation_steps * args.world_size

    def _rate(self, group: dict[str, Any]) -> float:
        """Return the rate at which a group of parameters is replayed."""
        highest = group.get("initial_lr", group["lr"])
        return highest if self.lr is None else highest * self.lr / self.trainer.args.learning_rate

    def _days(self, updates: int) -> Days:
        if isinstance(self.config.days, str) and (drawn := CONTROLS.get(self.config.days)):
            return drawn(updates, self.config.day_steps, self.seed, str(self.task))
        return days(self.config.days)

    def _hold(self) -> None:
        if self.trainer.is_fsdp_enabled:
            raise InputError("anchor: the reference is not there under FSDP; use DDP", key="anchor")
        if self.anchor == "task":
            hold(self.trainer, self.anchor_weight, lambda: self.weights.at(self.start))
        elif hasattr(self.trainer.model, "disable_adapter"):
            hold(self.trainer, self.anchor_weight, self.trainer.model.disable_adapter)
        else:
            raise InputError(
                "anchor='base' is the model without its adapter, and this one has none; use "
                "anchor='task', or train a PEFT adapter",
                key="anchor",
            )

    # ---- a restart

    def state(self) -> dict[str, Any]:
        """Return what the `trainer_state.json` of a checkpoint keeps."""
        kept: dict[str, Any] = {"settings": self._settings(), "start": self.digests}
        kept |= {"replayed": self.replayed, "ended": self.ended}
        if self.trigger is not None:
            kept |= {"clock": {**vars(self.trigger.clock)}, "events": self.trigger.events}
        # Not as attributes: the trainer cannot make a Forever of plain values.
        return {"args": {}, "attributes": {}, "replay": kept}

    def _settings(self) -> dict[str, Any]:
        """Return what may not change within a task."""
        kept = self.config.model_dump(mode="json") | {"lr": self.lr, "seed": self.seed}
        kept |= {"anchor": self.anchor, "anchor_weight": self.anchor_weight, "task": self.task}
        return kept | {"memory": self.memory_digest}

    def _resume(self, state: Any) -> None:
        name, step = type(self).__name__, state.global_step
        saved = state.stateful_callbacks.get(name, {}).get("replay")
        if saved is None:
            raise InputError(
                f"the checkpoint of step {step} is of a training without Forever; replay cannot "
                "begin in the middle of a task: leave Forever out, or train from the start"
            )
        for key, value in json.loads(json.dumps(self._settings())).items():
            if value != saved["settings"].get(key):
                raise InputError(
                    f"{key}={shown(value)}: the checkpoint of step {step} was written with "
                    f"{shown(saved['settings'].get(key))}; give Forever what it had then",
                    key=key,
                )
        self.replayed, self.ended, self.digests = saved["replayed"], saved["ended"], saved["start"]
        if self.trigger is not None:
            self.trigger.resume(saved["clock"], saved["events"])
        if self.digests:
            check_digest(self._start_file, self.digests[self.world.rank % len(self.digests)])
            tensors, device = load_file(self._start_file), self.world.device
            self.start = [tensors[str(number)].to(device) for number in range(len(tensors))]

    def _save_start(self) -> None:
        named = {str(number): tensor.cpu() for number, tensor in enumerate(self.start)}
        content = save(named)
        self.digests = [sha256(content)]
        if self.weights.sharded:
            self.digests = [digest for (digest,) in self.world.gather(self.digests)]
        if self.world.leads or self.weights.sharded:
            write_bytes(self._start_file, content)
        self.world.wait()

    @property
    def _start_file(self) -> Path:
        sharded = self.weights.sharded
        part = f"-{self.world.rank}-of-{self.world.size}" if sharded else ""
        return Path(self.trainer.args.output_dir) / f"forever{part}.safetensors"


def _answer(labels: Sequence[int]) -> tuple[int, ...]:
    return tuple(token for token in labels if token != -100)


def _refuse_settings(config: ForeverConfig) -> None:
    """Refuse, with the remedy, what FOREVER has in a run and a trainer cannot do."""
    valid = {"regularizer": ("none", "intensity"), "source": ("memory",)}
    for key, values in valid.items():
        if getattr(config, key) not in values:
            raise InputError(
                f"{key}={getattr(config, key)!r} needs a run of the platform; valid in a trainer: "
                f"{', '.join(values)}",
                key=key,
            )
    if config.consolidation_epochs == "matched":
        raise InputError(
            "consolidation_epochs='matched' divides a run's budget; give a number of passes",
            key="consolidation_epochs",
        )
