"""What can be wrong with a model that only its architecture tells: sizes, names, numbers."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forever.errors import InputError, shown
from forever.models.folder import NO_CODE, weights_of


@contextmanager
def explained(key: str, name: str) -> Iterator[None]:
    """Turn whatever transformers raises within this context into an InputError of one line.

    Files of others can make any library that reads them raise anything.
    """
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # instead of its table of weights, `check_report`
    logging.disable_progress_bar()
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):  # its own message advises to allow that
            raise InputError(f"{key}: {name!r} needs {NO_CODE}", key=key) from error
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        message = f"{key}: {name!r} could not be loaded: {first[:300]}"
        raise InputError(message, key=key) from error
    finally:
        logging.set_verbosity(before)


def check_size(key: str, path: Path, empty: nn.Module) -> None:
    """Refuse a model without memory that is larger than its files, before it gets memory.

    A byte holds at most four numbers, which are quantised to two bits.
    """
    numbers = sum(parameter.numel() for parameter in empty.parameters())
    size = sum(file.stat().st_size for file in weights_of(key, path))
    if numbers > 4 * size:
        _refuse(key, path, f"has {numbers} numbers by its config.json, and {size} bytes of weights")


def check_report(key: str, path: Path, report: Mapping[str, Any], but: str = "\0") -> None:
    """Refuse a model whose weights are not all there, of another shape, or of no use.

    Args:
        report: the missing, mismatched and unexpected keys by transformers, which leaves out those
            that its architecture does not need, such as tied weights.
        but: the beginning of names that may be missing.
    """
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(but))
    if missing:
        _refuse(key, path, f"lacks {len(missing)} weights, the first is {shown(missing[0])}")
    for name, is_shape, needed in sorted(report["mismatched_keys"]):
        shapes = f"{shown(tuple(is_shape))} instead of {tuple(needed)}"
        _refuse(key, path, f"has {shown(name)} of shape {shapes}")
    surplus = sorted(report["unexpected_keys"])
    if surplus:
        rest = f"that its architecture does not use, the first is {shown(surplus[0])}"
        _refuse(key, path, f"has {len(surplus)} weights {rest}")


def check_finite(key: str, path: Path, model: nn.Module) -> None:
    """Refuse weights with NaN or Inf; those of a byte or less have neither, or are packed."""
    for name, weight in model.named_parameters():
        if weight.dtype.itemsize < 2:
            continue
        ends = torch.stack(weight.aminmax()) if weight.numel() else weight
        if not ends.isfinite().all():
            _refuse(key, path, f"has NaN or Inf in {shown(name)}")


def check_tokens(key: str, path: Path, model: Any, used: Iterable[int]) -> None:
    """Refuse a tokenizer that pads or ends with a token without an embedding in the model."""
    rows = model.get_input_embeddings().weight.shape[0]
    for token in used:
        if not 0 <= token < rows:
            _refuse(key, path, f"pads or ends with token {shown(token)}, and its model has {rows}")


def _refuse(key: str, path: Path, problem: str) -> None:
    message = f"{key}: {path} {problem}; give the folder as it was published"
    raise InputError(message, key=key, path=path)
