"""docs/methods.md: all methods in one table, and every hyper-parameter with its default and source.

    python -m scripts.method_table

Nothing on the page is written by hand: rows are the methods' cards, sizes come from building each
of them on the shape of Qwen3-0.6B and passing through fifteen tasks, hyper-parameters from their
configuration classes.
"""

from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import torch
from pydantic.fields import FieldInfo

from forever.config.run import RunConfig
from forever.data.tasks import Task
from forever.methods.registry import METHODS, build_method
from forever.models import lora
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.world import World

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
TASKS = 15
# The published shape of Qwen3-0.6B (config.json of Qwen/Qwen3-0.6B).
SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}

HEAD = f"""# Methods

Written by `python -m scripts.method_table` from the code. Sizes: parameters that are trained at a time, and those
that are kept from task to task (adapters, keys, importance) after {TASKS} tasks, for LoRA r = 8 on q_proj and v_proj of
Qwen3-0.6B, in millions. Memory: 2 % of each finished task's rows where it says rows or prompts. No method is told which
task a prompt at test belongs to. What each follows and does not follow stands at the top of its file in
`forever/methods/`.

| method | name | paper | memory | task id at test | trained | stored | beyond fine-tuning | uncertain |
|---|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for name, method in METHODS.items():
        card, (trained, stored) = method.card, sizes(name)
        millions = (f"{count / 1e6:.2f}" for count in (trained, stored))
        # No method can need the task id: decoding is given prompts, and no seam is told where they
        # come from.
        rows.append(
            _row(
                card.title,
                f"`{name}`",
                card.paper,
                card.memory,
                "no",
                *millions,
                card.extra,
                card.uncertain,
            )
        )
    return HEAD + "".join(rows) + "".join(hyper_parameters(name) for name in METHODS)


def sizes(name: str) -> tuple[int, int]:
    """Trained and stored parameters after `TASKS` tasks, counted on tensors without memory behind
    them."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = RunConfig.parse({"method": {"name": name}, "data": {"benchmark": "superni"}})
    method = build_method(config.method)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
        method.build(model, config, TASKS)
        parameters = FlatParameters((n, p) for n, p in model.named_parameters() if p.requires_grad)
        # No rows: importance and attention are sums over none of them, of the right shape.
        world = World(device=torch.device("meta"))
        memory = Memory(config.memory.fraction, config.optim.batch_size, config.seed)
        encoder = cast(Any, SimpleNamespace())
        learner = Learner(
            config, memory, Backbone(model, tokenizer=None), encoder, parameters, world
        )
        for stage in range(1 if method.joint else TASKS):
            task = Task(f"task {stage}", train=(), test=(), metric="exact_match")
            learner.begin(stage, task)
            method.begin_task(learner, task)
            if name != "ssr":  # whose end of a task writes rows, not parameters
                method.end_task(learner, task)
    carried = [*lora.frozen(model).values(), *method.tensors.values()]
    trained = parameters.flat.numel()
    return trained, trained + sum(tensor.numel() for tensor in carried)


def hyper_parameters(name: str) -> str:
    """A method's own section: its fields with defaults and reasons."""
    fields = type(
        build_method(RunConfig.parse({"method": {"name": name}}).method).config
    ).model_fields
    rows = [
        _row(
            f"`method.{key}`",
            f"`{_value(field.default)}`",
            _range(field),
            " ".join((field.description or "").split()),
        )
        for key, field in fields.items()
        if key != "name"
    ]
    head = (
        _row("key", "default", "allowed", "what, and where it comes from") + "|---|---|---|---|\n"
    )
    return f"\n## {METHODS[name].card.title}\n\n{head}{''.join(rows)}" if rows else ""


def _value(default: Any) -> str:
    return str(list(default) if isinstance(default, tuple) else default)


def _range(field: FieldInfo) -> str:
    """The values that a field takes, from its bounds or its choices."""
    choices = [str(choice) for part in _parts(field.annotation) for choice in _choices(part)]
    metadata = [m for part in _parts(field.annotation) for m in getattr(part, "__metadata__", ())]
    bounds = [b for m in [*field.metadata, *metadata] for b in getattr(m, "metadata", [m])]
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    limits = [
        f"{sign} {getattr(b, name):g}" for b in bounds for name, sign in signs if hasattr(b, name)
    ]
    return ", ".join(dict.fromkeys([*limits, *choices])) or (
        "true, false" if field.annotation is bool else ""
    )


def _parts(annotation: Any) -> tuple[Any, ...]:
    several = get_origin(annotation) in (Union, UnionType, tuple)
    return get_args(annotation) if several else (annotation,)


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
