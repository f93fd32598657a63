"""What replay needs of a `Trainer`: all that depends on how transformers and TRL are written.

Read in transformers 5.23 and TRL 1.16. Whatever begins with an underscore may be called otherwise
in another version; it is used in this file and nowhere else.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle, islice
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn

from forever.errors import InputError
from forever.world import World

Examples = Dataset | Sequence[Mapping[str, Any]]
# How an SFTTrainer counts what it trains on; an event must not show in it.
_COUNTED = ("_metrics", "_total_train_tokens", "current_gradient_accumulation_steps")


def refuse(trainer: Any) -> None:
    """Raise InputError, with the remedy, for a trainer with which replay cannot work."""
    args = trainer.args
    if hasattr(trainer, "_prepare_dataset") and not hasattr(trainer, "_formatting_func"):
        raise InputError(
            f"replay works in a Trainer or an SFTTrainer, not in a {type(trainer).__name__}; use "
            "forever.hf.mix"
        )
    if trainer.is_deepspeed_enabled:
        raise InputError(
            "DeepSpeed keeps gradients where a penalty cannot reach them; use DDP, or FSDP with "
            "fsdp_config={'fsdp_version': 2}"
        )
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2:
        raise InputError(
            "FSDP 1 makes one vector of many weights; set fsdp_config={'fsdp_version': 2}"
        )
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise InputError(
            f"train_sampling_strategy={args.train_sampling_strategy!r} puts the longest examples "
            "first, so the first model day would be unlike all others; use 'random'"
        )
    if args.restore_callback_states_from_checkpoint:
        raise InputError(
            "restore_callback_states_from_checkpoint=True would build a new Forever without its "
            "memory; leave it out: Forever reads its state itself"
        )


def as_dataset(examples: Examples) -> Dataset:
    """Return examples, which a script may have as a list of dictionaries, as a dataset."""
    if isinstance(examples, Dataset):
        return examples
    return Dataset.from_list([dict(example) for example in examples])


def prepared(trainer: Any, examples: Dataset) -> Dataset:
    """Return examples as the trainer prepares its own, one a row, with the columns that it uses."""
    if getattr(trainer, "_is_vision_dataset", False):
        raise InputError("examples with images cannot be replayed; use forever.hf.mix")
    if hasattr(trainer, "_prepare_dataset") and not trainer._skip_prepare_dataset:
        formatting = trainer._formatting_func
        examples = trainer._prepare_dataset(
            examples, trainer.processing_class, trainer.args, False, formatting, "memory"
        )
    return trainer._remove_unused_columns(examples, description="memory")


@contextmanager
def apart(trainer: Any, rate: Callable[[Any], float] | None, seed: int) -> Iterator[None]:
    """Within this context updates leave no trace but in weights and moments.

    Args:
        rate: gives a group of the optimiser's parameters its learning rate; None leaves it.
        seed: of dropout.
    """
    accelerator, groups = trainer.accelerator, trainer.optimizer.param_groups
    counted = {name: getattr(trainer, name) for name in _COUNTED if hasattr(trainer, name)}
    rates, synchronised = [group["lr"] for group in groups], accelerator.sync_gradients
    logs = trainer.control.should_log  # which an entry in the log would take for done
    device = trainer.args.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        World(device=device).seed(seed)
        if "_metrics" in counted:
            trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        for group in groups:
            group["lr"] = group["lr"] if rate is None else rate(group)
        try:
            yield
        finally:
            for group, before in zip(groups, rates, strict=True):
                group["lr"] = before
            for name, value in counted.items():
                setattr(trainer, name, value)
            accelerator.gradient_state._set_sync_gradients(synchronised)
            trainer.control.should_log = logs


def log(trainer: Any, values: Mapping[str, float]) -> None:
    """Log an event's numbers, and none of the task's; to be called within `apart`."""
    if hasattr(trainer, "_metrics"):
        trainer._metrics["train"].clear()
    trainer.log({f"replay/{name}": value for name, value in values.items()})


def update(
    trainer: Any, world: World, examples: list[Any], penalty: Callable[[], None] | None
) -> float:
    """Train on a global batch as the trainer does on one of the task, and return its mean loss.

    Args:
        examples: all that the ranks share.
        penalty: adds to the gradient, before it is clipped.
    """
    args, model, accelerator = trainer.args, trainer.model_wrapped, trainer.accelerator
    share, size = shared(world, examples), args.train_batch_size
    parts = [trainer.data_collator(share[i : i + size]) for i in range(0, len(share), size)]
    parts, tokens = trainer.get_batch_samples(iter(parts), len(parts), args.device)
    trainer.current_gradient_accumulation_steps = len(parts)
    loss = torch.zeros((), dtype=torch.float64, device=args.device)
    for number, part in enumerate(parts, start=1):
        last = number == len(parts)
        accelerator.gradient_state._set_sync_gradients(last)
        with nullcontext() if last else accelerator.no_sync(model=model):
            loss += trainer.training_step(model, part, tokens)
    if penalty is not None:
        penalty()
    if args.max_grad_norm > 0:
        trainer._clip_grad_norm(model)
    trainer.optimizer.step()
    model.zero_grad()
    return world.sum_(loss).item() / world.size


def shared(world: World, examples: list[Any]) -> list[Any]:
    """Return this rank's part of a batch: as many examples as any other has, or the others would
    wait for it forever. So some are in two parts where the ranks do not divide them."""
    count = -(-len(examples) // world.size) * world.size
    return [*world.share([*islice(cycle(examples), count)])]


# ---- Theta, of which a rank may have a part only


class Weights:
    """All that a trainer trains, as one tensor a parameter: under FSDP the rank's own part."""

    def __init__(self, trainer: Any, world: World) -> None:
        self.trainer, self.world = trainer, world

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters, in the model's order."""
        return [p for p in self.trainer.model.parameters() if p.requires_grad]

    @property
    def sharded(self) -> bool:
        """Whether every rank has a part of its own."""
        return any(hasattr(parameter, "to_local") for parameter in self.trained)

    def snapshot(self) -> list[Tensor]:
        """Return a copy of Theta."""
        return [_local(parameter).clone() for parameter in self.trained]

    def load(self, values: Sequence[Tensor]) -> None:
        """Set Theta to what `snapshot` gave."""
        for parameter, value in zip(self.trained, values, strict=True):
            _local(parameter).copy_(value)

    @contextmanager
    def at(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Let Theta be `values` for a while, in which no gradient is computed."""
        now = self.snapshot()
        self.load(values)
        try:
            yield
        finally:
            self.load(now)

    def distance(self, other: Sequence[Tensor]) -> float:
        """Return ||Theta - other||_2, the same number on every rank."""
        pairs = zip(self.trained, other, strict=True)
        gaps = [torch.linalg.vector_norm(_local(p) - o, dtype=torch.float64) for p, o in pairs]
        squares = torch.stack(gaps).square().sum()
        if self.sharded:
            self.world.sum_(squares)
        return self.world.from_leader(squares).sqrt().item()

    def pull(self, start: Sequence[Tensor], beta: float) -> None:
        """Add 2 beta (Theta - start) to the gradient, that of beta ||Theta - start||^2."""
        scaler = self.trainer.accelerator.scaler  # in fp16 the loss is scaled, and so its gradient
        scale = 1.0 if scaler is None else scaler.get_scale()
        for parameter, value in zip(self.trained, start, strict=True):
            if parameter.grad is not None:
                _local(parameter.grad).add_(_local(parameter) - value, alpha=2 * beta * scale)


def _local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank has, without a copy."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
