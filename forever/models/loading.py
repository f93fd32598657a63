"""What can be wrong with a model that only its architecture tells: sizes, names, numbers."""

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forever.errors import InputError, shown
from forever.models import folder

_AGAIN = "give the folder as it was published"
_PACKED = 16  # quantised weights of two bits in one number of 32
_OF_THE_MACHINE = (errno.ENOSPC, errno.EIO, errno.ENOMEM, errno.EMFILE)  # not of the model


@contextmanager
def explained(setting: str, name: str) -> Iterator[None]:
    """Within this context, where transformers reads a stranger's files, errors become InputErrors.

    What strange settings do there has no end: any exception of any library means that the model
    cannot be loaded.
    """
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # its table of weights is for another reader
    logging.disable_progress_bar()
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            raise
        if "trust_remote_code" in str(error):  # its own message advises to allow that
            raise InputError(f"{setting}: {name!r} needs {folder.NO_CODE}") from error
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise InputError(f"{setting}: {name!r} could not be loaded: {first[:300]}") from error
    finally:
        logging.set_verbosity(before)


def check_size(setting: str, path: Path, empty: nn.Module) -> None:
    """Refuse a model without memory that has more numbers than its files.

    Otherwise transformers would find memory for all that is missing, which may be without end.
    """
    needed = sum(parameter.numel() for parameter in empty.parameters())
    there = sum(prod(shape) for shape in folder.shapes(setting, path).values())
    packed = getattr(empty.config, "quantization_config", None) is not None
    if needed > there * (_PACKED if packed else 1):
        raise InputError(
            f"{setting}: by its config.json, {path} has {needed} numbers, and its files hold "
            f"{there}; {_AGAIN}"
        )


def check_report(setting: str, path: Path, report: Mapping[str, Any], but: str = "\0") -> None:
    """Refuse a model whose weights are not all there, of another shape, or of no use.

    Args:
        report: what transformers says of missing, mismatched and unexpected keys, which leaves out
            those that its architecture does not miss, such as tied weights.
        but: the beginning of names that may be missing.
    """
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(but))
    if missing:
        raise InputError(
            f"{setting}: {path} lacks {len(missing)} weights, the first is {shown(missing[0])}; "
            f"{_AGAIN}"
        )
    for name, there, needed in sorted(report["mismatched_keys"]):
        raise InputError(
            f"{setting}: {path} has {shown(name)} of shape {shown(tuple(there))} instead of "
            f"{tuple(needed)}; {_AGAIN}"
        )
    surplus = sorted(report["unexpected_keys"])
    if surplus:
        raise InputError(
            f"{setting}: {path} has {len(surplus)} weights that its architecture does not use, the "
            f"first is {shown(surplus[0])}; {_AGAIN}"
        )


def check_finite(setting: str, path: Path, model: nn.Module) -> None:
    """Refuse weights with NaN or Inf; those of a byte or less have neither, or are packed."""
    for name, weight in model.named_parameters():
        if weight.dtype.itemsize < 2:
            continue
        ends = torch.stack(weight.aminmax()) if weight.numel() else weight
        if not ends.isfinite().all():
            raise InputError(
                f"{setting}: {path} has NaN or Inf in {shown(name)}; the file is damaged, or its "
                "training diverged"
            )


def check_tokens(setting: str, path: Path, model: Any, used: Iterable[int]) -> None:
    """Refuse a tokenizer that pads or ends with a token which the model has no embedding of."""
    rows = model.get_input_embeddings().weight.shape[0]
    for token in used:
        if not 0 <= token < rows:
            raise InputError(
                f"{setting}: {path} pads or ends with token {shown(token)}, and its model has "
                f"{rows}, numbered from 0; take it out of the tokenizer's files, or give the "
                "model that was trained with it"
            )
