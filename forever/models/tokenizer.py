"""A model's tokenizer; without the model for what only counts tokens."""

from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.models.loading import explained
from forever.models.location import check, find


class NotHere(InputError):
    """The model is a hub's and not on this machine; a run would download it."""


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model that is on this machine; see `models.backbone` for the name.

    Raises:
        NotHere: it is not on this machine.
        InputError: it cannot be loaded.
    """
    check(name)
    path = find(name)
    if path is None:
        raise NotHere(
            f"model.name: {name!r} is not on this machine, and only a run downloads it; download "
            "it once where there is a network (the cache is HF_HOME), or give a folder or a GGUF "
            "file",
            key="model.name",
        )
    with explained("model.name", name):
        return read_tokenizer(path)


def read_tokenizer(path: Path) -> Any:
    """Read the tokenizer of a model's folder or GGUF file; without a padding token, eos pads.

    Raises:
        InputError: it has no eos, at which answers end. Transformers may raise anything else.
    """
    from transformers import AutoTokenizer  # seconds

    where, options = source(path)
    tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"model.name: {path} has a tokenizer without eos_token, by which a model says that its "
            "answer is over; name it in tokenizer_config.json, or give another model",
            key="model.name",
        )
    return tokenizer


def source(path: Path) -> tuple[str, dict[str, str]]:
    """A model's folder and, for a GGUF file, its name, as transformers takes them."""
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return str(path), {}
