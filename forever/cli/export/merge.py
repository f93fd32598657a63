"""The base model with an adapter merged into its weights."""

from pathlib import Path

import torch

from forever.cli.export.snippet import Base
from forever.errors import InputError, one_line
from forever.models.adapter import attached, restore
from forever.models.backbone import load

_SHORT = ("bfloat16", "float16")


def merge(adapter: Path, folder: Path, base: Base, name: str) -> None:
    """Write the model that an adapter and its base are together, in the type that the base came in.

    Args:
        name: of the base, as in a run's `model.name`.

    Raises:
        InputError: the base is not on this machine, or cannot be loaded, or the adapter is not of
            it.
    """
    # Merged in fp32, so that nothing of a small adapter is rounded away before the end.
    backbone = load(name, torch.float32, torch.device("cpu"))
    restore(backbone.model, adapter)
    try:
        model = attached(backbone.model).merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise InputError(f"{adapter} cannot be merged: {one_line(error)}") from error
    if base.dtype in _SHORT:
        model = model.to(getattr(torch, base.dtype))
    model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
