"""Where a backbone is, and whether it can be loaded; found out without importing torch or
downloading anything."""

import json
from pathlib import Path

from forever.errors import InputError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # fast, SentencePiece, byte-pair
TINY = Path(__file__).parent / "tiny"


def check(name: str) -> None:
    """Refuse a backbone that cannot be loaded, without loading or downloading anything.

    Raises:
        InputError: if `name` is a local folder without weights or configuration, or a missing GGUF
        file.
    """
    path = locate(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model.name: there is no GGUF file {name!r}")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"model.name: folder {name!r} has no config.json, so it is no Hugging Face model folder"
            )
        if not list(path.glob("*.safetensors")):
            raise InputError(
                f"model.name: folder {name!r} has no weights (*.safetensors); save them with safetensors"
            )
        if not any((path / file).is_file() for file in _TOKENIZERS):
            raise InputError(
                f"model.name: folder {name!r} has no tokenizer ({' or '.join(_TOKENIZERS)})"
            )
    elif looks_like_path(name):
        raise InputError(
            f"model.name: there is no folder {name!r}; give a folder, a .gguf file or a model hub name"
        )


def width(name: str) -> int | None:
    """The width of a local backbone's hidden states, as its config.json says; None where there is
    none to read."""
    try:
        found = json.loads((locate(name) / "config.json").read_text(encoding="utf-8"))[
            "hidden_size"
        ]
    # No local folder, or one whose model says it in another way.
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def looks_like_path(name: str) -> bool:
    """A hub name is `name` or `owner/name`; everything else is meant as a path."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def locate(name: str) -> Path:
    """Where a local backbone lies; for a hub name a path that does not exist."""
    return TINY if name == "tiny" else Path(name).expanduser()
