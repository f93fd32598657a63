"""Write docs/methods.md: all methods in one table, and every hyper-parameter with its source.

    python scripts/method_table.py

The table's rows are the methods' cards. Sizes come from building each method on the shape of
Qwen3-0.6B and passing through fifteen tasks, hyper-parameters from the configuration classes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import torch
from pydantic.fields import FieldInfo
from transformers import Qwen3Config, Qwen3ForCausalLM

from forever.config.methods import METHOD_CONFIGS
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

`python scripts/method_table.py` writes this page from the code. "trained" and "stored" count
parameters in millions, for LoRA r = 8 on q_proj and v_proj of Qwen3-0.6B: those that are trained at
a time, and those that are kept from task to task (adapters, keys, importance) after {TASKS} tasks.
The memory holds 2 % of each finished task's examples, or their prompts. No method is told which
task a prompt at test belongs to. What a method follows and does not follow stands at the top of its
file in `forever/methods/`.

"""
COLUMNS = ["method", "name", "paper", "memory holds", "trained", "stored", "beyond fine-tuning"]

TAIL = """
## Variants that were removed

Nobody ran these five, so their code is gone; the git history before the first release has it. A
configuration that still names one with its old default is read as before, and any other value is
refused.

- **EWC, `fisher_labels: sampled`**: answers were drawn from the model instead of taken from the
  data, which gives the true Fisher information instead of the empirical one.
- **SAPT, `memory_prompts: pseudo`**: an adapter of its own learned a task's prompts by heart and
  wrote those on which attention is held, as in the paper.
- **MIGU, `hard_mask: true`**: what AdamW's momentum did to masked rows was undone after each
  update.
- **AIMMerging, `true_gap: true`**: the pace of learning was divided by the updates since the last
  merge instead of by S, which the code does although up to 2 S have passed.
- **VBM, `variant: mix`**: views of the memory's examples were mixed into every batch of the task,
  as in the published code for images, instead of recalled at intervals.
"""


def page() -> str:
    """Return the whole page."""
    rows: list[str] = []
    for name, method in METHODS.items():
        card = method.card
        trained, stored = sizes(name)
        cells = [card.title, f"`{name}`", card.paper, card.memory]
        cells += [f"{trained / 1e6:.2f}", f"{stored / 1e6:.2f}", card.extra, card.uncertain]
        rows.append(_row(cells))
    sections = [hyper_parameters(name) for name in METHODS]
    return HEAD + _head([*COLUMNS, "uncertain"]) + "".join(rows) + "".join(sections) + TAIL


def sizes(name: str) -> tuple[int, int]:
    """Count trained and stored parameters after `TASKS` tasks, on tensors without memory."""
    config = RunConfig.parse({"method": {"name": name}, "data": {"benchmark": "superni"}})
    method = build_method(config.method)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
        method.build(model, config, TASKS)
        parameters = FlatParameters((n, p) for n, p in model.named_parameters() if p.requires_grad)
        # Tasks have no examples: sums over none of them still have the right shape.
        learner = Learner(
            config=config,
            memory=Memory(config.memory.fraction, config.optim.batch_size, config.seed),
            backbone=Backbone(model, tokenizer=None),
            encoder=cast(Any, SimpleNamespace()),
            parameters=parameters,
            world=World(device=torch.device("meta")),
        )
        for stage in range(1 if method.config.joint else TASKS):
            task = Task(f"task {stage}", train=(), test=(), metric="exact_match")
            learner.begin(stage, task)
            method.begin_task(learner, task)
            if name != "ssr":  # its end of a task writes examples, not parameters
                method.end_task(learner, task)
    carried = [*lora.frozen(model).values(), *method.tensors.values()]
    trained = parameters.flat.numel()
    return trained, trained + sum(tensor.numel() for tensor in carried)


def hyper_parameters(name: str) -> str:
    """Return a method's own section: its fields with defaults and reasons."""
    rows: list[str] = []
    for key, field in METHOD_CONFIGS[name].model_fields.items():
        if key != "name":
            cells = [f"`method.{key}`", f"`{_value(field.default)}`", _range(field)]
            rows.append(_row([*cells, " ".join((field.description or "").split())]))
    if not rows:
        return ""
    head = _head(["key", "default", "allowed", "what it is, and where it comes from"])
    return f"\n## {METHODS[name].card.title}\n\n{head}{''.join(rows)}"


def _value(default: Any) -> str:
    return str(list(default) if isinstance(default, tuple) else default)


def _range(field: FieldInfo) -> str:
    """Say which values a field takes, from its bounds or its choices."""
    if field.annotation is bool:
        return "true, false"
    bounds = [*field.metadata]
    choices: list[str] = []
    for part in _parts(field.annotation):
        for metadata in getattr(part, "__metadata__", ()):
            bounds += getattr(metadata, "metadata", [metadata])
        if get_origin(part) is Literal:
            choices += [str(choice) for choice in get_args(part)]
    limits: list[str] = []
    for bound in bounds:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if hasattr(bound, name):
                limits.append(f"{sign} {getattr(bound, name):g}")
    return ", ".join(dict.fromkeys([*limits, *choices]))


def _parts(annotation: Any) -> tuple[Any, ...]:
    several = get_origin(annotation) in (Union, UnionType, tuple)
    return get_args(annotation) if several else (annotation,)


def _head(names: Sequence[str]) -> str:
    return _row(names) + "|---" * len(names) + "|\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
