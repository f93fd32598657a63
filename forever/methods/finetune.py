"""Sequential fine-tuning: the lower bound. One adapter is trained on task after task, nothing is kept."""

from typing import Literal

from forever.methods.base import Card, Method, MethodConfig


class FinetuneConfig(MethodConfig):
    name: Literal["finetune"] = "finetune"


class Finetune(Method[FinetuneConfig]):
    """Every seam at its default."""

    card = Card(
        title="Fine-tuning",
        paper="lower bound",
        memory="none",
        extra="none",
        uncertain="nothing",
    )
