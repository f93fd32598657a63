"""Answers to the first prompts of tasks, against `model.generate`, by kind of task.

An untrained model rarely ends an answer itself, so most have the full length.
"""

from collections.abc import Sequence

from benchmarks.case import Case, precision, seconds
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoded, Encoder
from forever.evaluation.decoding import decode
from forever.evaluation.scoring import hopeless_answers
from forever.models.backbone import Backbone, load
from forever.training.world import World

PROMPTS = 24  # a task; with few a step is hardly fuller than that of the other way


def answers(name: str, config: RunConfig, world: World) -> list[Case]:
    """One prompt at a time, and batches of 8 in the order of the dataset, as the field does it."""
    cases: list[Case] = []
    backbone = load(config.model.name, precision(world), world.device)
    encoder = Encoder(backbone.tokenizer, config.model.max_length)
    limit = config.evaluation.max_new_tokens
    for kind, goals in (("classification", (12.0, 3.0)), ("generation", (6.0, 2.0))):
        tasks = load_benchmark(config.data).tasks
        chosen = [task for task in tasks if (task.labels is not None) == (kind == "classification")]
        examples = [example for task in chosen for example in task.test[:PROMPTS]]
        over = [hopeless_answers(task) for task in chosen for _ in task.test[:PROMPTS]]
        ours = seconds(lambda: decode(backbone, encoder, examples, limit, over=over), world)  # noqa: B023
        one = eight = 0.0
        for task in chosen:
            prompts = [encoder.encode_prompt(example) for example in task.test[:PROMPTS]]
            one += seconds(lambda: _generate(backbone, prompts, 1, limit), world)  # noqa: B023
            eight += seconds(lambda: _generate(backbone, prompts, 8, limit), world)  # noqa: B023
        if chosen:
            cases.append(Case(f"{kind} against one at a time, {name}", goals[0], "x", [one / ours]))
            cases.append(
                Case(f"{kind} against batches of 8, {name}", goals[1], "x", [eight / ours])
            )
    return cases


def _generate(backbone: Backbone, prompts: Sequence[Encoded], size: int, limit: int) -> None:
    backbone.tokenizer.padding_side = "left"
    for start in range(0, len(prompts), size):
        rows = [{"input_ids": list(prompt.prompt)} for prompt in prompts[start : start + size]]
        batch = backbone.tokenizer.pad(rows, return_tensors="pt").to(backbone.device)
        backbone.model.generate(**batch, max_new_tokens=limit, do_sample=False)
