"""A model is known by what its files hold, and not by its name. Nothing here loads torch."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from forever.config.overrides import difference_lines
from forever.config.run import RunConfig
from forever.models.location import ADAPTER, SETTINGS, TOKENIZER, find, find_adapter, weights_of


def changed(there: Mapping[str, str], config: RunConfig) -> list[str]:
    """Return how the files that a run reads differ from the digests in its result, a line each;
    files that are not on this machine yet do not count."""
    now = of_others(config)
    path = find(config.model.name)
    if path:
        now |= digests(path)
    here = {part: now.get(part, digest) for part, digest in there.items()}
    return difference_lines({"model": there}, {"model": here})


def of_others(config: RunConfig) -> dict[str, str]:
    """Return the digests of what a run reads beside the model: the adapter that it begins from, a
    chat template and the models of its method, as far as this machine has them."""
    read: dict[str, str] = {}
    if config.model.init and (path := find_adapter(config.model.init)):
        read["init"] = _digest(path / name for name in ADAPTER)
    for field, name in config.method.models().items():
        if path := find(name):
            digested = digests(path, f"method.{field}")
            read |= {f"{field} {part}": digest for part, digest in digested.items()}
    if config.data.prompt == "chat" and (path := find(config.model.name)):
        read["chat template"] = _digest([path / "chat_template.jinja"])  # or in the tokenizer's
    return read


def digests(path: Path, setting: str = "model.name") -> dict[str, str]:
    """Return the digests of a model's settings, tokenizer and weights; a GGUF file has them all.

    A gigabyte takes a second or two, once a process while the files stay the same.
    """
    if path.is_file():
        return {"weights": _digest([path])}
    return {
        "config": _digest(path / name for name in SETTINGS),
        "tokenizer": _digest(path / name for name in TOKENIZER),
        "weights": _digest(weights_of(setting, path)),
    }


def _digest(paths: Iterable[Path]) -> str:
    """Return twelve hex digits that change with any of the files that exist."""
    sha = hashlib.sha256()
    for path in paths:
        if path.is_file():
            facts = path.stat()
            sha.update(path.name.encode() + _sha256(path, facts.st_size, facts.st_mtime_ns))
    return sha.hexdigest()[:12]


@cache
def _sha256(path: Path, size: int, changed_ns: int) -> bytes:
    """Return the SHA-256 of a file; with another size or time it is another file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
