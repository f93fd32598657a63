"""The base model with an adapter merged into its weights."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from forever.cli.export.snippet import Base
from forever.models.backbone import load

_SHORT = ("bfloat16", "float16")


def merge(adapter: Path, folder: Path, base: Base, name: str) -> None:
    """Write the model that an adapter and its base are together, in the type that the base came in.

    Args:
        name: of the base, as in a run's `model.name`.

    Raises:
        InputError: the base is not on this machine, or cannot be loaded.
    """
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict

    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    # Merged in fp32, so that nothing of a small adapter is rounded away before the end.
    backbone = load(name, torch.float32, torch.device("cpu"))
    with warnings.catch_warnings():
        # PEFT reads a property of the model that transformers has renamed.
        warnings.simplefilter("ignore", FutureWarning)
        model: Any = get_peft_model(backbone.model, PeftConfig.from_peft_type(**settings))
        set_peft_model_state_dict(model, load_file(adapter / "adapter_model.safetensors"))
        model = model.merge_and_unload(safe_merge=True)
    if base.dtype in _SHORT:
        model = model.to(getattr(torch, base.dtype))
    model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
