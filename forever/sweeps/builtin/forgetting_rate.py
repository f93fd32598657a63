"""How fast earlier tasks are forgotten in each phase of a task: fine-tuning, with looks at the loss
on earlier tasks.

The paper's table has tasks 6 to 15 of SuperNI's order 7 in phases of 60 updates (2.5 S). task639
and task1590 have 180 and 160 updates and so only three and two phases (docs/protocol.md, A28).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings
from forever.sweeps.sweep import Sweep

PHASES = 5


def forgetting_rate(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    """One variant: nothing is replayed, the loss on kept rows is looked at after each phase."""
    phase = round(2.5 * getattr(base.method, "warmup_steps", 24))
    looking = {**method_settings(base, "finetune"), "method.probe_every": phase}
    return Sweep("forgetting_rate", base, {"finetune": looking}, seeds, reference="finetune")


def rates(tasks: Sequence[str], events: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By task, the rise of the mean loss on the tasks before it per update, in each phase that it
    reaches.

    Args:
        tasks: in the order in which they were learned. A third of them is left out at the
        beginning, as in the paper,
            where few tasks can be forgotten yet: 5 of 15.
        events: the lines of events.jsonl.
    """
    looks: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        if event["kind"] == "look":
            mean = sum(event["losses"].values()) / len(event["losses"])
            looks.setdefault(event["task"], []).append((event["step"], mean))
    return {
        task: [(b - a) / (end - start) for (start, a), (end, b) in pairwise(found)][:PHASES]
        for task, found in looks.items()
        if task in tasks[len(tasks) // 3 :]
    }
