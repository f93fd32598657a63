"""One process or many: who computes which examples, and how they agree.

Every rank holds the same parameters and knows the same global batch; it computes its own examples,
and the gradients are summed. So one rank, two ranks and one rank with accumulation do the same
arithmetic up to the order of sums.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Defaults of its functions are the process group that is there when it is first imported, as by
# PEFT. Then `destroy_process_group` leaves the group's threads, and some processes abort at exit.
import torch.distributed.nn
from torch import Tensor

from forever.errors import InputError, unknown

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class World:
    """Rank `rank` of `size` processes that share one run. `device` is where this rank computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes files and talks to trackers."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's items of a global batch: every `size`-th."""
        return list(items[self.rank :: self.size])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def from_leader(self, tensor: Tensor) -> Tensor:
        """The leader's values, in place: near-equal floats must not lead to different decisions."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def gather(self, values: list[Any]) -> list[list[Any]]:
        """Return each rank's JSON values, on every rank. (Objects would be unpickled.)"""
        if self.size == 1:
            return [values]
        text = json.dumps(values).encode()
        longest = torch.tensor(len(text), device=self.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        padded = bytearray(text.ljust(int(longest)))  # blanks, which JSON passes over
        data = torch.frombuffer(padded, dtype=torch.uint8).to(self.device)
        parts = [torch.empty_like(data) for _ in range(self.size)]
        dist.all_gather(parts, data)
        return [json.loads(bytes(part.tolist())) for part in parts]

    def spread(self, items: Sequence[T], work: Callable[[list[T]], Sequence[R]]) -> list[R]:
        """Share the `work` on all items; every rank gets one JSON value an item, in order."""
        parts = self.gather(list(work(self.share(items))))
        return [parts[i % self.size][i // self.size] for i in range(len(items))]

    def seed(self, seed: int) -> None:
        """Start this device's random numbers anew; `torch.manual_seed` does all kinds, slowly."""
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):  # manual_seed acts on the current device
                torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def wait(self) -> None:
        """Wait until every rank has come to this line."""
        if self.size > 1:
            dist.barrier()


def pick_device(name: str) -> torch.device:
    """The device called `name`, if it is here; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise unknown("device", name, ["auto", "cpu", "cuda", "cuda:1"])
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(
            f"--device {name}: this machine has {count} GPUs that torch can use; try --device auto"
        )
    return device
