"""A trainer of TRL on the toy benchmark: a training of a second or two."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forever.data.prompts import ALPACA
from forever.data.tasks import Benchmark, Task

pytest.importorskip("trl", reason="trl is not installed: extra hf")

Make = Callable[..., Any]


def as_rows(task: Task) -> list[dict[str, str]]:
    """A task's training examples, as TRL names their parts."""
    return [{"prompt": ALPACA.text(e), "completion": e.output} for e in task.train]


def digest(trainer: Any) -> str:
    """The SHA-256 of all that is trained."""
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    trained = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in trained]
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trained)).hexdigest()


@pytest.fixture
def make(backbone_folder: Path, benchmark_of_three: Benchmark, tmp_path: Path) -> Make:
    """Make an SFTTrainer of 8 updates an epoch on the task `shape`, with LoRA and dropout."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    def trainer(rows: Any = None, dropout: float = 0.1, model: Any = None, **changes: Any) -> Any:
        settings = {"output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 4}
        settings |= {"num_train_epochs": 2, "learning_rate": 1e-2, "report_to": [], "bf16": False}
        settings |= {"use_cpu": True, "logging_steps": 2, "save_strategy": "no"}
        settings |= {"disable_tqdm": True}
        torch.manual_seed(3)
        lora: Any = LoraConfig(r=4, lora_dropout=dropout, target_modules=["q_proj", "v_proj"])
        if model is None:
            model = AutoModelForCausalLM.from_pretrained(backbone_folder)
        else:
            lora = None
        if rows is None:
            rows = as_rows(benchmark_of_three.tasks[1])
        return SFTTrainer(
            model,
            args=SFTConfig(**{**settings, **changes}),
            train_dataset=rows if isinstance(rows, Dataset) else Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(backbone_folder),
            peft_config=lora,
        )

    return trainer


@pytest.fixture
def old(benchmark_of_three: Benchmark) -> list[dict[str, str]]:
    """Five examples of the task before."""
    return as_rows(benchmark_of_three.tasks[0])[:5]
