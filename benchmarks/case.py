"""What a benchmark measures: ours against another way, in turns, or a figure of ours alone."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from rich import box
from rich.table import Table

from forever.world import World


@dataclass
class Case:
    """Values of a case, one a round, and what they should come to.

    In the unit "x" they say how many times as fast ours is, and more is better; in "%", "s" and
    "x cost" less is.
    """

    name: str
    goal: float
    unit: str = "x"
    values: list[float] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        """Whether the median is on the wrong side of the goal."""
        middle = median(self.values)
        return middle < self.goal if self.unit == "x" else middle > self.goal


def table(cases: Sequence[Case]) -> Table:
    """A row a case; those that miss their goal come last."""
    shown = Table(box=box.SIMPLE)
    for column in ("case", "unit", "goal", "min", "median", "max", ""):
        justify = "left" if column in ("case", "unit", "") else "right"
        shown.add_column(column, justify=justify, no_wrap=column != "case")
    for case in sorted(cases, key=lambda case: case.missed):
        goal = f"{'>=' if case.unit == 'x' else '<='} {case.goal:g}"
        numbers = [min(case.values), median(case.values), max(case.values)]
        cells = [f"{number:.2f}" for number in numbers]
        shown.add_row(case.name, case.unit, goal, *cells, "missed" if case.missed else "")
    return shown


def precision(world: World) -> torch.dtype:
    """What people compute in: bf16 on a GPU, fp32 on a CPU."""
    return torch.bfloat16 if world.device.type == "cuda" else torch.float32


def seconds(work: Callable[[], Any], world: World = World()) -> float:
    """Wall time of `work`, to the last operation on a GPU."""
    start = time.perf_counter()
    work()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
