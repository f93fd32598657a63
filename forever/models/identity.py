"""A model is known by what its files hold, and not by its name. Nothing here loads torch."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from forever.config.methods.replay import SsrConfig
from forever.config.overrides import difference_lines
from forever.config.run import RunConfig
from forever.models.folder import files_of_index
from forever.models.location import find

_SETTINGS = ("config.json", "generation_config.json")
_TOKENIZER = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def changed(there: Mapping[str, str], config: RunConfig) -> list[str]:
    """In what the files that a run reads differ from the digests that it has noted, a line each;
    those that are not on this machine yet say nothing."""
    if not there:  # by an early version
        return []
    now = of_encoder(config)
    path = find(config.model.name)
    if path:
        now |= digests(path)
    here = {part: now.get(part, digest) for part, digest in there.items()}
    return difference_lines({"model": there}, {"model": here})


def of_encoder(config: RunConfig) -> dict[str, str]:
    """Digests of the sentence encoder of SSR; none without one, or while it is not here."""
    if not isinstance(config.method, SsrConfig) or not config.method.encoder:
        return {}
    path = find(config.method.encoder)
    if path is None:
        return {}
    return {f"encoder {part}": digest for part, digest in digests(path, "method.encoder").items()}


def digests(path: Path, setting: str = "model.name") -> dict[str, str]:
    """Digests of a model's settings, tokenizer and weights; of a GGUF file, which has them all.

    A gigabyte takes a second or two, once a process as long as the files do not change.
    """
    if path.is_file():
        return {"weights": _digest([path])}
    weights = [path / "model.safetensors"]
    if not weights[0].is_file():
        weights = files_of_index(setting, path / "model.safetensors.index.json")
    return {
        "config": _digest(path / name for name in _SETTINGS),
        "tokenizer": _digest(path / name for name in _TOKENIZER),
        "weights": _digest(weights),
    }


def _digest(paths: Iterable[Path]) -> str:
    """Twelve hex digits that change with any of the files that are there."""
    sha = hashlib.sha256()
    for path in paths:
        if path.is_file():
            facts = path.stat()
            sha.update(path.name.encode() + _sha256(path, facts.st_size, facts.st_mtime_ns))
    return sha.hexdigest()[:12]


@cache
def _sha256(path: Path, size: int, changed_ns: int) -> bytes:
    """The SHA-256 of a file; with another size or time it is another file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
