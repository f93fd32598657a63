"""Multi-task learning: the upper bound. One fresh adapter is trained on the union of all tasks (docs/protocol.md).

Natural mixing, no task balancing, as many epochs over the union as the others spend on each task. Scores exist after
the one stage only, so OP is defined and BWT is not.
"""

from typing import Literal

from forever.methods.base import Card, Method, MethodConfig


class MtlConfig(MethodConfig):
    name: Literal["mtl"] = "mtl"


class Mtl(Method[MtlConfig]):
    """Fine-tuning on `Benchmark.joint()`."""

    card = Card(
        title="MTL",
        paper="upper bound",
        memory="all rows",
        extra="none; one stage on the union of all rows",
        uncertain="nothing",
    )
    joint = True
