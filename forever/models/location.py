"""Where a backbone is, and whether its folder is data alone; nothing here loads torch.

What others made is data: weights in safetensors, settings and a tokenizer in JSON. Whatever would
make transformers run code of the folder or unpickle its weights is refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forever.errors import InputError, one_line, shown
from forever.files import read_json

WEIGHTS = "model.safetensors"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
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
# What is downloaded of a model besides its weights: settings and the tokenizer, no code, no pickle.
_TEXTS = ["*.json", "*.txt", "*.model", "*.jinja"]
TINY = Path(__file__).parent / "tiny"


# ---- finding a model


def locate(name: str) -> Path:
    """Return where a local backbone lies; for a hub's name a path that does not exist."""
    if name == "tiny":
        return TINY
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, or nobody's home
        raise InputError(f"{name!r} cannot be a model's name: {error}") from None
    return path


def looks_like_path(name: str) -> bool:
    """Return whether a name is a path; a hub's name is `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def find(name: str) -> Path | None:
    """Return the folder or file of a model if it is on this machine; the network is not used."""
    path = _cached(name)
    if path == locate(name):
        return path if path.exists() else None
    with suppress(InputError):  # a part of it may be in the cache
        return path if all(file.is_file() for file in weights_of("model.name", path)) else None


def _cached(name: str) -> Path:
    """Return the place of a model on this machine, be it in the hub's cache; it may not exist."""
    path = locate(name)
    if path.exists() or looks_like_path(name):
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not in the cache
        return path


def fetch(name: str, setting: str = "model.name") -> Path:
    """Return the folder or GGUF file of a model, after a download if `name` is a hub's.

    Raises:
        InputError: see `check`; or the hub does not have it, or cannot be reached.
    """
    check(name, setting)
    path = locate(name)
    if path.exists():
        return path
    # The newest snapshot, or without a network the one of last time.
    path = _download(name, setting, _TEXTS)
    _check_settings(setting, path)  # before gigabytes come
    files = weights_of(setting, path)
    if not all(file.is_file() for file in files):
        _download(name, setting, [file.name for file in files], path.name)
    _check_folder(setting, path)
    return path


def _download(name: str, key: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Download files at the top of a hub's model, small ones without bars; return its folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    if revision is None:
        disable_progress_bars()
    try:
        chosen: dict[str, Any] = {"allow_patterns": [*patterns], "ignore_patterns": ["*/*"]}
        return Path(snapshot_download(name, revision=revision, **chosen))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{key}: {name!r} is not a local folder and could not be downloaded: "
            f"{one_line(error)}; download it once where there is a network (the cache is HF_HOME), "
            "or give a folder or a GGUF file",
            key=key,
        ) from error
    finally:
        enable_progress_bars()


# ---- the adapter of model.init


def find_adapter(name: str) -> Path | None:
    """Return the folder of an adapter if it is on this machine; the network is not used."""
    path = _cached(name)
    return path if all((path / file).is_file() for file in ADAPTER) else None


def fetch_adapter(name: str) -> Path:
    """Return the folder of an adapter in PEFT's format, after a download if `name` is a hub's.

    Raises:
        InputError: there is none, its weights are a pickle, or the hub cannot be reached.
    """
    key, path = "model.init", locate(name)
    if not path.exists() and not looks_like_path(name):
        path = _download(name, key, ADAPTER)
    settings, weights = (path / file for file in ADAPTER)
    if not settings.is_file():
        problem = f"{str(path)!r} has no {settings.name}; give the folder of an adapter that PEFT"
        raise InputError(f"{key}: {problem} or TRL saved", key=key, path=path)
    if not weights.is_file():
        problem = f"{path} has no {weights.name}"
        if (path / "adapter_model.bin").exists():
            problem += ", and a pickle (adapter_model.bin) is not opened since it can run code"
        raise InputError(f"{key}: {problem}; save the adapter in safetensors", key=key, path=path)
    return path


def width(name: str) -> int | None:
    """Return the width of a local backbone's hidden states, or None if config.json has none."""
    with suppress(InputError):  # it is not a local folder
        size = read_json(locate(name) / "config.json").get("hidden_size")
        return size if isinstance(size, int) else None


# ---- checking what was found


def check(name: str, setting: str = "model.name") -> None:
    """Refuse a local model that cannot be loaded; a hub's model is checked when it is downloaded.

    `setting` is the configuration key that holds `name`.

    Raises:
        InputError: a missing file or folder, or a folder that would not be read as data.
    """
    path = locate(name)
    if path.is_dir():
        _check_folder(setting, path)
    elif path.is_file() and path.suffix == ".gguf":
        _refuse_adapter(setting, path.parent)
    elif path.exists() or path.suffix == ".gguf" or looks_like_path(name):
        raise InputError(
            f"{setting}: {name!r} is neither a folder nor a .gguf file; give one, or the name of a "
            "model on the hub",
            key=setting,
            path=path,
        )


def _check_folder(key: str, folder: Path) -> None:
    """Refuse a folder that is incomplete, or that would not be read as data."""
    _check_settings(key, folder)  # first: an adapter alone lacks the rest
    for part, names in _PARTS.items():
        if not any((folder / name).is_file() for name in names):
            raise InputError(
                f"{key}: folder {str(folder)!r} has no {part} ({' or '.join(names)}); give a "
                "Hugging Face model folder with safetensors",
                key=key,
                path=folder,
            )
    for path in weights_of(key, folder):
        if not path.is_file():
            raise InputError(f"{key}: {path}, which {INDEX} names, is missing", key=key, path=path)


def _check_settings(key: str, folder: Path) -> None:
    """Refuse settings by which transformers would load more than safetensors and JSON."""
    _refuse_adapter(key, folder)
    for path in sorted(folder.glob("*config*.json")):
        for name, value in entries(read_object(key, path)):
            problem = ""
            if name == "auto_map":
                problem = f"asks by auto_map for {NO_CODE}"
            elif name.endswith("_implementation") and "/" in str(value):
                problem = f"asks by {name} for a kernel, which is {NO_CODE}"
            elif name == "transformers_weights":
                problem = f"names a file by {name}; weights must be in {WEIGHTS}"
            elif name == "quant_method" and value == "bitsandbytes":
                problem = "has weights of bitsandbytes, which are not trained; give them in bf16"
            elif "layer" in name and isinstance(value, int) and value > _MOST_LAYERS:
                problem = f"has {name}={value}; at most {_MOST_LAYERS} are made"
            if problem:
                raise InputError(f"{key}: {path} {problem}", key=key, path=path)


def _refuse_adapter(key: str, folder: Path) -> None:
    """Raise InputError if transformers would put an adapter of the folder on the model."""
    path = folder / ADAPTER[0]
    if path.exists():
        problem = f"is of an adapter; give the model alone here, and model.init={folder} to begin"
        raise InputError(f"{key}: {path} {problem} from the adapter", key=key, path=path)


def weights_of(key: str, folder: Path) -> list[Path]:
    """Return the files of weights that a folder should have; others than safetensors are refused,
    since a pickle runs code."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [folder / WEIGHTS]
    files = read_object(key, index).get("weight_map")
    names = {str(name) for name in files.values()} if isinstance(files, dict) else set[str]()
    for name in sorted(names) or ["nothing"]:
        if Path(name).name != name or not name.endswith(".safetensors"):
            problem = f"names {shown(name)}; weights must be *.safetensors files beside it"
            raise InputError(f"{key}: {index} {problem}", key=key, path=index)
    return [folder / name for name in sorted(names)]


def read_object(key: str, path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the folder."""
    try:
        return read_json(path, "download it again")
    except InputError as error:
        raise InputError(f"{key}: {error}", key=key, path=path) from None


def entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys of nested settings with their values."""
    waiting = [settings]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
