"""What a model's folder must be before anything in it is loaded. Nothing here loads torch.

A folder may come from a stranger. What transformers would load from it is safetensors and JSON that
lie inside of it; whatever would make transformers run code, unpickle, look elsewhere or put
something else on the model is refused.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from forever.errors import InputError, one_line, shown

_PARTS = {
    "configuration": ("config.json",),
    "weights": ("model.safetensors", "model.safetensors.index.json"),
    "tokenizer": (
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
        "vocab.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tekken.json",
    ),
}
NO_CODE = (
    "Python code that comes with it, and no code of a model is run; "
    "give one whose architecture transformers has"
)
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")


def check(setting: str, folder: Path) -> None:
    """Refuse a folder that is incomplete, damaged, or more than a model's weights and settings.

    Args:
        setting: the configuration key that names the folder.

    Raises:
        InputError: the first thing that is wrong, by its file's name.
    """
    for what, files in _PARTS.items():
        if not any((folder / file).is_file() for file in files):
            raise InputError(
                f"{setting}: folder {str(folder)!r} has no {what} ({' or '.join(files)}); give a "
                "Hugging Face model folder with safetensors"
            )
    _check_files(setting, folder)
    check_settings(setting, folder)
    weights = shapes(setting, folder)
    settings = _read(setting, folder / "config.json")
    for name in _LAYERS:
        layers = settings.get(name)
        if isinstance(layers, int) and layers > len(weights):
            raise InputError(
                f"{setting}: {folder / 'config.json'} has {name}={layers}, and there are "
                f"{len(weights)} weights; give the folder as it was published"
            )


def check_settings(setting: str, folder: Path) -> None:
    """Refuse settings by which transformers would load more than safetensors.

    Raises:
        InputError: a JSON configuration names Python code, a kernel or a file of weights, there is
            an adapter, or a configuration cannot be read.
    """
    refuse_adapter(setting, folder)
    for path in sorted(folder.glob("*config*.json")):
        for key, value in _entries(_read(setting, path)):
            if key == "auto_map":
                raise InputError(f"{setting}: {path} asks by auto_map for {NO_CODE}")
            if key.endswith("_implementation") and "/" in str(value):
                raise InputError(
                    f"{setting}: {path} asks by {key} for a kernel, which is {NO_CODE}"
                )
            if key == "transformers_weights":
                raise InputError(
                    f"{setting}: {path} names a file by {key}; weights are in model.safetensors, "
                    "or in the files of model.safetensors.index.json"
                )


def refuse_adapter(setting: str, folder: Path) -> None:
    """Raise InputError if transformers would put an adapter that lies here on the model."""
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{setting}: {folder / 'adapter_config.json'} would put an adapter on the model; give "
            "the model alone, or merge the adapter into it"
        )


def shapes(setting: str, folder: Path) -> dict[str, list[int]]:
    """The shape of every weight by name, from the headers of the files.

    Raises:
        InputError: a file is missing or damaged, or is not what the index says.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return _header(setting, folder / "model.safetensors")
    weights: dict[str, list[int]] = {}
    for path in files_of_index(setting, index):
        if not os.path.isfile(path):  # a name that is too long is an error to `Path.is_file`
            raise InputError(f"{setting}: {shown(path.name)}, which {index} names, is missing")
        weights |= _header(setting, path)
    for name in _read(setting, index)["weight_map"]:
        if name not in weights:
            raise InputError(f"{setting}: {index} names {shown(name)}, which no file has")
    return weights


def files_of_index(setting: str, index: Path) -> list[Path]:
    """The files that an index shares the weights out to; InputError if they could be others."""
    places = _read(setting, index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise InputError(f"{setting}: {index} has no weight_map of names to files")
    files: set[str] = set()
    for file in places.values():
        plain = isinstance(file, str) and Path(file).name == file
        if not plain or not file.endswith(".safetensors"):
            raise InputError(
                f"{setting}: {index} names {shown(file)}; weights are *.safetensors beside it, and "
                "no pickle is read"
            )
        files.add(file)
    return [index.with_name(file) for file in sorted(files)]


def _check_files(setting: str, folder: Path) -> None:
    """Refuse links that lead out, what is neither file nor folder, and parts of a checkpoint."""
    root = folder.resolve()
    if root.parent.name == "snapshots" and root.parents[1].name.startswith("models--"):
        root = root.parents[1]  # in the hub's cache: its files are links to blobs beside
    for path in sorted(folder.rglob("*")):
        if not (path.is_file() or path.is_dir()):
            raise InputError(f"{setting}: {path} is a broken link, or no file; give the file")
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise InputError(
                f"{setting}: {path} leads out of the folder, to {path.resolve()}; copy the file "
                "into the folder"
            )
    for path in sorted(folder.glob("shard-*.safetensors")):
        raise InputError(
            f"{setting}: {path} is part of a distributed checkpoint; give the model in "
            "model.safetensors"
        )


def _header(setting: str, path: Path) -> dict[str, list[int]]:
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{setting}: {path} is damaged, or no safetensors file ({one_line(error)}); fetch it "
            "again"
        ) from None


def _read(setting: str, path: Path) -> dict[str, Any]:
    """The object in a JSON file of the folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{setting}: {path} cannot be read as JSON ({one_line(error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{setting}: {path} holds {type(content).__name__}, not named fields")
    return content


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """All keys of nested settings with their values."""
    waiting = [settings]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
