"""Answers to the first prompts of tasks, against `model.generate`, by kind of task.

An untrained model rarely ends an answer itself, so most have the full length.
"""

from collections.abc import Sequence
from functools import partial

from benchmarks.case import Case, precision, seconds
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example, Task
from forever.evaluation.decoding import Over, decode
from forever.evaluation.scoring import hopeless_answers
from forever.models.backbone import Backbone, load
from forever.world import World

PROMPTS = 24  # a task; with few a step is hardly fuller than that of the other way
# How many times as fast as one prompt at a time, and as batches of 8, ours should be.
GOALS = {"classification": (12.0, 3.0), "generation": (6.0, 2.0)}


def answers(name: str, config: RunConfig, world: World) -> list[Case]:
    """One prompt at a time, and batches of 8 in the order of the dataset, as the field does it."""
    backbone = load(config.model.name, precision(world), world.device)
    encoder = Encoder(backbone.tokenizer, config.model.max_length)
    limit = config.evaluation.max_new_tokens
    by_kind: dict[str, list[Task]] = {}
    for task in load_benchmark(config.data).tasks:
        kind = "generation" if task.labels is None else "classification"
        by_kind.setdefault(kind, []).append(task)
    cases: list[Case] = []
    for kind, tasks in sorted(by_kind.items()):
        examples: list[Example] = []
        over: list[Over | None] = []
        prompts: list[list[Encoded]] = []
        for task in tasks:
            chosen = task.test[:PROMPTS]
            examples += chosen
            over += [hopeless_answers(task)] * len(chosen)
            prompts.append([encoder.encode_prompt(example) for example in chosen])
        ours = seconds(partial(decode, backbone, encoder, examples, limit, over=over), world)
        one = seconds(partial(_theirs, backbone, prompts, 1, limit), world)
        eight = seconds(partial(_theirs, backbone, prompts, 8, limit), world)
        goal_of_one, goal_of_eight = GOALS[kind]
        cases += [
            Case(f"{kind} against one at a time, {name}", goal_of_one, "x", [one / ours]),
            Case(f"{kind} against batches of 8, {name}", goal_of_eight, "x", [eight / ours]),
        ]
    return cases


def _theirs(backbone: Backbone, tasks: Sequence[Sequence[Encoded]], size: int, limit: int) -> None:
    """Answer the prompts task by task, in batches of `size`."""
    backbone.tokenizer.padding_side = "left"
    for prompts in tasks:
        for start in range(0, len(prompts), size):
            rows = [{"input_ids": list(prompt.prompt)} for prompt in prompts[start : start + size]]
            batch = backbone.tokenizer.pad(rows, return_tensors="pt").to(backbone.device)
            backbone.model.generate(**batch, max_new_tokens=limit, do_sample=False)
