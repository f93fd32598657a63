"""What a model and its tokenizer share when they are loaded: errors of one line, and the checks
that only the architecture makes possible."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from forever.data.encoding import Limits
from forever.errors import InputError, shown
from forever.models.location import NO_CODE, SETTINGS, check, entries, find, read_object, weights_of

_MOST_GROWTH = 100  # characters that a normaliser makes of one


class NotHere(InputError):
    """The model is a hub's and not on this machine; a run would download it."""


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
    if path.is_dir():
        check_normalizer("model.name", path)
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
    """Return a model's folder and, for a GGUF file, its name, as transformers takes them."""
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return str(path), {}


# ---- checks of a model


def check_size(key: str, path: Path, empty: nn.Module) -> None:
    """Refuse a model without memory that is larger than its files, before it gets memory.

    A byte holds at most four numbers, which are quantised to two bits.
    """
    numbers = sum(parameter.numel() for parameter in empty.parameters())
    size = sum(file.stat().st_size for file in weights_of(key, path))
    if numbers > 4 * size:
        _refuse(key, path, f"has {numbers} numbers by its config.json, and {size} bytes of weights")


def check_report(key: str, path: Path, report: Mapping[str, Any], but: str = "\0") -> None:
    """Refuse a model whose weights are not all there, or are of another shape.

    Args:
        report: the missing and mismatched keys by transformers, which leaves out those that its
            architecture does not need, such as tied weights.
        but: the beginning of names that may be missing.
    """
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(but))
    if missing:
        _refuse(key, path, f"lacks {len(missing)} weights, the first is {shown(missing[0])}")
    for name, is_shape, needed in sorted(report["mismatched_keys"]):
        shapes = f"{shown(tuple(is_shape))} instead of {tuple(needed)}"
        _refuse(key, path, f"has {shown(name)} of shape {shapes}")


def check_normalizer(key: str, folder: Path) -> None:
    """Refuse a tokenizer whose replacements, one after another, make a text very much longer."""
    file, growth = folder / "tokenizer.json", 1
    if file.is_file():
        for name, value in entries(read_object(key, file).get("normalizer")):
            if name == "content":
                growth *= max(1, len(str(value)))
    if growth > _MOST_GROWTH:
        _refuse(key, file, f"replaces a character by up to {growth} others")


def check_tokens(key: str, path: Path, model: Any, used: Iterable[int]) -> None:
    """Refuse a tokenizer that pads or ends with a token without an embedding in the model."""
    rows = model.get_input_embeddings().weight.shape[0]
    for token in used:
        if not 0 <= token < rows:
            _refuse(key, path, f"pads or ends with token {shown(token)}, and its model has {rows}")


@torch.no_grad()
def check_causal(key: str, path: Path, model: Any) -> None:
    """Refuse a model whose logits depend on later tokens: it would see what it is to learn."""
    logits: list[torch.Tensor] = []
    for last in (0, 1):
        ids = torch.tensor([[0, 1, last]], device=model.device)  # of any vocabulary
        logits.append(model(input_ids=ids, use_cache=False).logits[:, :2].float())
    if (logits[0] - logits[1]).norm() > 0.02 * logits[0].norm():  # bf16 has two digits
        raise InputError(
            f"{key}: {path} attends to later tokens, so in training it would see the answers; "
            "give a causal model (a decoder), or set is_decoder in its config.json if it is one",
            key=key,
            path=path,
        )


def limits_of(model: nn.Module) -> Limits:
    """Return which tokens have an embedding in a model, and how many positions it has learned.

    Positions that are computed (RoPE, ALiBi) have no end.
    """
    tokens = cast(Any, model).get_input_embeddings().weight.shape[0]
    most = getattr(cast(Any, model).config.get_text_config(), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and re.search(r"wpe$|position[a-z_]*$", name):
            # The first rows may be for padding (RoBERTa), or may not be used (OPT).
            unused = getattr(module, "offset", 0)
            if module.padding_idx is not None:
                unused = module.padding_idx + 1
            if most in (module.num_embeddings, module.num_embeddings - unused):
                return Limits(tokens, module.num_embeddings - unused)
    for name, table in model.named_buffers():  # of sines, as in GPT-J
        if name.endswith("embed_positions") and len(table) == most:
            return Limits(tokens, most)
    return Limits(tokens)


def ends_of(tokenizer: Any, model: Any) -> list[int]:
    """Return the tokens at which an answer ends: the tokenizer's EOS, and those of the model."""
    ends = model.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])]
    return list(dict.fromkeys(token for token in ends if token is not None))


def load_empty(name: str) -> Any:
    """Return a model that is on this machine from its settings alone, without memory for it."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    path = find(name)
    assert path is not None, "its tokenizer was read"
    where, options = source(path)
    with explained("model.name", name):
        config = AutoConfig.from_pretrained(where, trust_remote_code=False, **options)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        if (file := path / SETTINGS[1]).is_file():
            model.generation_config = GenerationConfig.from_dict(read_object("model.name", file))
        return model


def _refuse(key: str, path: Path, problem: str) -> None:
    message = f"{key}: {path} {problem}; give the folder as it was published"
    raise InputError(message, key=key, path=path)
