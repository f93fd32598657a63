"""Write the tables of docs/methods.md: `python -m scripts.method_table`.

Rows are the methods' cards, sizes come from building each method on the shape of Qwen3-0.6B and
passing through fifteen tasks, hyper-parameters from the configuration classes.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
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
from forever.world import World
from scripts.markdown import table

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

BEGIN, END = "<!-- from here: scripts/method_table.py -->\n\n", "\n<!-- to here -->\n"
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
COLUMNS = ["method", "name", "paper", "memory holds", "trained", "stored", "beyond fine-tuning"]


def page() -> str:
    """Return the whole page: what is written by hand around the table and the sections."""
    rows: list[list[str]] = []
    for name, method in METHODS.items():
        card = method.card
        trained, stored = sizes(name)
        cells = [card.title, f"`{name}`", card.paper, card.memory]
        rows.append([*cells, f"{trained / 1e6:.2f}", f"{stored / 1e6:.2f}", card.extra])
        rows[-1].append(card.uncertain)
    text = table([*COLUMNS, "uncertain"], rows)
    for name in METHODS:
        text += hyper_parameters(name)
    old = PAGE.read_text(encoding="utf-8")
    return old.partition(BEGIN)[0] + BEGIN + text + END + old.partition(END)[2]


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
    fields = METHOD_CONFIGS[name].model_json_schema()["properties"]
    rows: list[list[str]] = []
    for key, field in fields.items():
        if key != "name":
            reason = " ".join(field.get("description", "").split())
            rows.append([f"`method.{key}`", f"`{field['default']}`", allowed(field), reason])
    if not rows:
        return ""
    columns = ["key", "default", "allowed", "what it is, and where it comes from"]
    return f"\n## {METHODS[name].card.title}\n\n{table(columns, rows)}"


def allowed(field: dict[str, Any]) -> str:
    """Say which values a field takes, from its bounds or its choices in a JSON schema."""
    if field.get("type") == "boolean":
        return "true, false"
    values: list[str] = []
    for part in [field, *field.get("anyOf", ()), *field.get("prefixItems", ())]:
        values += [f"{sign} {part[bound]:g}" for bound, sign in BOUNDS.items() if bound in part]
        values += part.get("enum", [part["const"]] if "const" in part else [])
    return ", ".join(dict.fromkeys(values))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
