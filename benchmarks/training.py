"""Updates on the first batches of tasks, against `Trainer` and PEFT with a padding collator."""

import tempfile
from collections.abc import Sequence
from typing import Any

from peft import LoraConfig, get_peft_model
from torch.utils.data import SequentialSampler
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer, TrainingArguments

from benchmarks.case import Case, precision, seconds
from forever.config.run import RunConfig
from forever.data.batching import Batch
from forever.data.benchmarks import load_benchmark
from forever.data.encoding import Encoder
from forever.data.tasks import Task
from forever.methods.registry import build_method
from forever.models.backbone import Backbone, load
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.optim import build_optimizer
from forever.training.step import optimizer_step
from forever.training.steps import Step
from forever.world import World


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
