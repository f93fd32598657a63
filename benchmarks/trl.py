"""The script of docs/trl.md: two tasks with TRL or a plain Trainer, before and after.

    python -m benchmarks.trl --model HuggingFaceTB/SmolLM2-135M-Instruct
    python -m benchmarks.trl --model FOLDER --trainer plain

The tasks are two of `mini`: both are answered with yes or no, so only the instruction tells them
apart. Each way to learn the second task starts from the same model, which has learned the first.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainingArguments,
)

from forever.data.mini import mini_task
from forever.hf import Forever, mix
from forever.training.memory import balanced_choice

RESULTS = Path(__file__).with_name("trl.json")
FIRST, SECOND = "advice", "opening"
MEMORY = 20  # examples of the first task
SETTINGS = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 20, "report_to": []}
SETTINGS |= {
    "num_train_epochs": 2,
    "learning_rate": 1e-3,
    "save_strategy": "no",
    "disable_tqdm": True,
    "bf16": False,
}
SETTINGS |= {
    "activation_checkpointing": False,
    "output_dir": "runs/trl",
    "use_cpu": not torch.cuda.is_available(),
}


def rows(name: str) -> tuple[Dataset, Dataset]:
    """The 120 training and 40 test examples of a task."""
    train, test = (
        Dataset.from_list(
            [
                {"prompt": f"{e.instruction}\n{e.input}\nAnswer:", "completion": f" {e.output}"}
                for e in part
            ]
        )
        for part in mini_task(name, train_rows=120, test_rows=40)
    )
    return train, test


def sft(model: Any, tokenizer: Any, new: Dataset, held_out: Any, changes: dict[str, Any]) -> Any:
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(**{**SETTINGS, **changes})
    return SFTTrainer(
        model, args=args, train_dataset=new, eval_dataset=held_out, processing_class=tokenizer
    )


def plain(model: Any, tokenizer: Any, new: Dataset, held_out: Any, changes: dict[str, Any]) -> Any:
    return Trainer(
        model,
        args=TrainingArguments(**{**SETTINGS, **changes}),
        train_dataset=new,
        eval_dataset=held_out,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )


def tokens(dataset: Dataset, tokenizer: Any) -> Dataset:
    """Prepare examples as a plain Trainer takes them."""

    def encode(row: dict[str, str]) -> dict[str, list[int]]:
        asked = tokenizer(row["prompt"]).input_ids
        answer = [*tokenizer(row["completion"]).input_ids, tokenizer.eos_token_id]
        return {"input_ids": asked + answer, "labels": [-100] * len(asked) + answer}

    return dataset.map(encode, remove_columns=dataset.column_names)


def main(
    model: Annotated[str, typer.Option(help="A hub name or a folder.")],
    trainer: Annotated[str, typer.Option(help="sft or plain.")] = "sft",
) -> None:
    """Learn the first task, then the second one without replay, with Forever and with `mix`."""
    make = {"sft": sft, "plain": plain}[trainer]
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    data = [part for name in (FIRST, SECOND) for part in rows(name)]
    # As `close_task` chooses: as many of each answer.
    data.append(data[0].select(balanced_choice(data[0]["completion"], MEMORY, range(len(data[0])))))
    if trainer == "plain":
        data = [tokens(part, tokenizer) for part in data]
    old, old_test, new, new_test, memory = data
    held_out = {"old": old_test, "new": new_test}

    def adapted(trained: dict[str, Any] | None = None) -> Any:
        # Not a copy of a trained model: SFTTrainer binds what it changes to the one that it had.
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, trust_remote_code=False
        )
        targets = ["q_proj", "v_proj"]
        lora = LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
        adapter = get_peft_model(base, lora)
        if trained is not None:
            set_peft_model_state_dict(adapter, trained)
        return adapter

    results: dict[str, Any] = {}

    def note(name: str, learner: Any, replayed: int = 0) -> None:
        losses = learner.evaluate()
        results[name] = {part: losses[f"eval_{part}_loss"] for part in held_out}
        results[name]["replayed"] = replayed
        known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        text = json.dumps(known | {trainer: results}, indent=1)
        RESULTS.write_text(text + "\n", encoding="utf-8")

    first = make(adapted(), tokenizer, old, held_out, {})
    note("before", first)
    first.train()
    note("after the first task", first)
    learned = get_peft_model_state_dict(first.model)

    def learn(name: str, forever: Forever, train: Dataset, replayed: int = 0) -> int:
        following = make(adapted(learned), tokenizer, train, held_out, {})
        forever.attach(following)
        following.train()
        note(name, following, forever.replayed or replayed)
        return forever.replayed

    learn("nothing replayed", Forever(), new)
    dose = learn("Forever", Forever(memory), new)
    learn("Forever, nothing at the end", Forever(memory, end_rate="none"), new)
    # As many examples as Forever replayed, between those of the task.
    mixed = mix(new, memory, ratio=dose / (2 * len(new)), epochs=2)
    learn("mix", Forever(), mixed, replayed=dose)
    learn("anchor at the start of the task", Forever(anchor="task"), new)


if __name__ == "__main__":
    typer.run(main)
