"""What a benchmark measures: ours against another way, in turns, or a figure of ours alone.

Updates and peak memory are measured against `Trainer` and PEFT, answers against `model.generate`.

    python -m benchmarks.cases ours|theirs RUN.yaml

prints the peak bytes of training one batch: of the GPU if there is one, else the process's largest
resident size once the model is loaded. The model itself is in it.
"""

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from peft import LoraConfig, get_peft_model
from rich import box
from rich.table import Table
from torch.utils.data import SequentialSampler
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer, TrainingArguments

from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example, Task
from forever.evaluation.decoding import Over, decode
from forever.evaluation.scoring import hopeless_answers
from forever.methods.registry import build_method
from forever.models.backbone import Backbone, load
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step
from forever.training.steps import Step
from forever.world import World, pick_device


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


# ---- updates, against `Trainer` and PEFT with a padding collator


def training(
    name: str, goal: float, config: RunConfig, rounds: int, world: World, batches: int = 2
) -> Case:
    """The first `batches` of each task of `config`, for so many rounds."""
    case = Case(f"training, {name}", goal)
    learner = build_learner(config, build_method(config.method), world)
    theirs = with_peft(config, world)
    for _ in range(rounds):
        ours = other = 0.0
        for task in load_benchmark(config.data).tasks:
            examples = task.train[: batches * config.optim.batch_size]
            ours += seconds(lambda: train(learner, task, examples), world)  # noqa: B023
            other += trainer_seconds(theirs, config, learner.encoder, examples, world)
        case.values.append(other / ours)
    return case


def train(learner: Learner, task: Task, examples: Sequence[Any]) -> None:
    """One pass over examples, in their order."""
    method = build_method(learner.config.method)
    learner.begin(0, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    size = learner.config.optim.batch_size
    for start in range(0, len(examples), size):
        optimizer_step(learner, method, Step(Batch(tuple(examples[start : start + size]))))


def with_peft(config: RunConfig, world: World) -> Backbone:
    """The same backbone with PEFT's own adapter."""
    backbone = load(config.model.name, precision(world), world.device)
    part = config.model
    adapter = LoraConfig(
        r=part.rank, lora_alpha=int(part.alpha), target_modules=list(part.targets), lora_dropout=0.0
    )
    backbone.tokenizer.padding_side = "right"
    backbone.model.is_quantized = False  # `load` has made plain weights of a GGUF file
    return Backbone(get_peft_model(backbone.model, adapter), backbone.tokenizer)


class _InOrder(Trainer):
    """The examples in their order, which is ours."""

    def _get_train_sampler(self, *arguments: Any, **options: Any) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


def trainer_seconds(
    backbone: Backbone, config: RunConfig, encoder: Encoder, examples: Sequence[Any], world: World
) -> float:
    """Seconds that `Trainer` trains, without making it."""
    rows: list[dict[str, list[int]]] = []
    for example in map(encoder.encode, examples):
        labels = [*[-100] * len(example.prompt), *example.answer]  # -100 is not learned
        rows.append({"input_ids": [*example.prompt, *example.answer], "labels": labels})
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=config.optim.batch_size,
            num_train_epochs=1,
            learning_rate=config.optim.lr,
            lr_scheduler_type="constant",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=world.device.type == "cpu",
        )
        collate = DataCollatorForSeq2Seq(backbone.tokenizer)
        trainer = _InOrder(backbone.model, settings, collate, train_dataset=rows)  # type: ignore
        trainer.remove_callback(PrinterCallback)
        return seconds(trainer.train, world)


def half_precision(name: str, config: RunConfig, world: World) -> list[Case]:
    """Frozen weights in bfloat16 against float32: how much faster, and how far gradients move."""
    faster = Case(f"bfloat16 against float32, {name}", 1.0)
    apart = Case(f"gradient in bfloat16 off that in float32, {name}", 5.0, "%")
    in_bf16 = config.override({"model.dtype": "bfloat16"})
    method = build_method(config.method)
    learners = [build_learner(each, method, world) for each in (config, in_bf16)]
    tasks, size = load_benchmark(config.data).tasks, config.optim.batch_size
    for learner in learners:  # the first call allocates, and begins with equal weights
        train(learner, tasks[0], tasks[0].train[:size])
    exact, rough = (learner.parameters.grad for learner in learners)
    apart.values.append(float(100 * (rough - exact).norm() / exact.norm()))
    for task in tasks:
        examples = task.train[:size]
        full, half = (seconds(lambda: train(one, task, examples), world) for one in learners)  # noqa: B023
        faster.values.append(full / half)
    return [faster, apart]


# ---- answers, against `model.generate`, by kind of task

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


# ---- peak memory of a process that trains one batch


def memory(name: str, config: RunConfig, folder: Path) -> Case:
    """The first batch of the task with the longest examples, a process each."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    used: list[int] = []
    for side in ("ours", "theirs"):
        command = [sys.executable, "-m", "benchmarks.cases", side, str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        used.append(int(output.split()[-1]))
    return Case(f"peak memory over Trainer and PEFT, {name}", 0.6, "x cost", [used[0] / used[1]])


def main(side: str, path: str) -> None:
    """Train one batch and print the peak."""
    config = RunConfig.parse(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    world = World(device=pick_device("auto"))
    tasks = load_benchmark(config.data).tasks
    task = max(tasks, key=lambda task: sum(len(e.instruction + e.input) for e in task.train[:8]))
    examples = task.train[: config.optim.batch_size]
    if side == "ours":
        learner = build_learner(config, build_method(config.method), world)
        _forget_peak()
        train(learner, task, examples)
    else:
        theirs = with_peft(config, world)
        encoder = Encoder(theirs.tokenizer, config.model.max_length)
        _forget_peak()
        trainer_seconds(theirs, config, encoder, examples, world)
    print(_peak())


def _forget_peak() -> None:
    """Loading needs more than training."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split()[0]: line.split()[1:] for line in lines}
    return 1024 * int(sizes["VmHWM:"][0])


if __name__ == "__main__":
    main(*sys.argv[1:])
