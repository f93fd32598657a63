"""What a model's folder must have, and must not ask for. Nothing here loads torch.

What others made is data here: weights in safetensors, settings and a tokenizer in JSON. Whatever
would make transformers run code of the folder or unpickle its weights is refused.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forever.errors import InputError, one_line, shown

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SETTINGS = ("config.json", "generation_config.json")
TOKENIZER = (
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
_NOT_ALONE = {"added_tokens.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json"}
_PARTS = {
    "configuration": ("config.json",),
    "weights": (WEIGHTS, INDEX),
    "tokenizer": [name for name in TOKENIZER if name not in _NOT_ALONE],
}
NO_CODE = (
    "Python code that comes with it, and no code of a model is run; "
    "give one whose architecture transformers has"
)
_MOST_LAYERS = 1000  # transformers makes all that config.json asks for before it reads weights


def check(key: str, folder: Path) -> None:
    """Refuse a folder that is incomplete, or that would not be read as data.

    Args:
        key: the configuration key that names the folder.

    Raises:
        InputError: the first thing that is wrong, by its file's name.
    """
    for part, names in _PARTS.items():
        if not any((folder / name).is_file() for name in names):
            raise InputError(
                f"{key}: folder {str(folder)!r} has no {part} ({' or '.join(names)}); give a "
                "Hugging Face model folder with safetensors",
                key=key,
                path=folder,
            )
    check_settings(key, folder)
    for path in weights_of(key, folder):
        if not path.is_file():
            raise InputError(f"{key}: {path}, which {INDEX} names, is missing", key=key, path=path)


def check_settings(key: str, folder: Path) -> None:
    """Refuse settings by which transformers would load more than safetensors and JSON."""
    refuse_adapter(key, folder)
    for path in sorted(folder.glob("*config*.json")):
        for name, value in _entries(_read(key, path)):
            problem = ""
            if name == "auto_map":
                problem = f"asks by auto_map for {NO_CODE}"
            elif name.endswith("_implementation") and "/" in str(value):
                problem = f"asks by {name} for a kernel, which is {NO_CODE}"
            elif name == "transformers_weights":
                problem = f"names a file by {name}; weights must be in {WEIGHTS}"
            elif "layer" in name and isinstance(value, int) and value > _MOST_LAYERS:
                problem = f"has {name}={value}; at most {_MOST_LAYERS} are made"
            if problem:
                raise InputError(f"{key}: {path} {problem}", key=key, path=path)


def refuse_adapter(key: str, folder: Path) -> None:
    """Raise InputError if transformers would put an adapter of the folder on the model."""
    path = folder / "adapter_config.json"
    if path.exists():
        problem = "would put an adapter on the model; give the model alone, or merge the adapter"
        raise InputError(f"{key}: {path} {problem}", key=key, path=path)


def weights_of(key: str, folder: Path) -> list[Path]:
    """Return the files of weights that a folder should have; others than safetensors are refused,
    since a pickle runs code."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [folder / WEIGHTS]
    files = _read(key, index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{key}: {index} has no weight_map of names to files", key=key, path=index)
    for name in files.values():
        is_beside = isinstance(name, str) and Path(name).name == name
        if not is_beside or not name.endswith(".safetensors"):
            problem = f"names {shown(name)}; weights must be *.safetensors files beside it"
            raise InputError(f"{key}: {index} {problem}", key=key, path=index)
    return [folder / name for name in sorted(set(files.values()))]


def _read(key: str, path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{path} cannot be read as JSON ({one_line(error)})"
        raise InputError(f"{key}: {problem}", key=key, path=path) from None
    if not isinstance(content, dict):
        problem = f"{path} must hold a JSON object; it holds a {type(content).__name__}"
        raise InputError(f"{key}: {problem}", key=key, path=path)
    return content


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys of nested settings with their values."""
    waiting = [settings]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
