"""Where a backbone is, and whether it can be loaded, without torch and without a download."""

import json
from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.models import folder

# What is downloaded of a model besides its weights: settings and the tokenizer, no code, no pickle.
_TEXTS = ["*.json", "*.txt", "*.model", "*.jinja"]
TINY = Path(__file__).parent / "tiny"


def check(name: str, setting: str = "model.name") -> None:
    """Refuse a local model that cannot be loaded; a hub's model is checked when it is downloaded.

    `setting` is the configuration key that holds `name`.

    Raises:
        InputError: a missing file or folder, or a folder that `models.folder` refuses.
    """
    path = locate(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            message = f"{setting}: there is no GGUF file {name!r}"
            raise InputError(message, key=setting, path=path)
        folder.refuse_adapter(setting, path.parent)
    elif path.is_dir():
        folder.check(setting, path)
    elif path.exists() or looks_like_path(name):
        raise InputError(
            f"{setting}: there is no folder {name!r}; give a folder, a .gguf file or the name of a "
            "model on the hub",
            key=setting,
            path=path,
        )


def fetch(name: str, setting: str = "model.name") -> Path:
    """Return the folder or GGUF file of a model, after a download if `name` is a hub's.

    Raises:
        InputError: see `check`; or the hub does not have it, or cannot be reached.
    """
    check(name, setting)
    path = locate(name)
    if path.exists():
        return path
    try:
        path = _download(name, setting)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(
            f"{setting}: {name!r} is not a local folder and could not be downloaded: {first}; "
            "download it once where there is a network (the cache is HF_HOME), or give a folder or "
            "a GGUF file",
            key=setting,
        ) from error
    folder.check(setting, path)
    return path


def _download(name: str, setting: str) -> Path:
    """Return the newest snapshot of a hub's model, or without a network the one of last time."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    top: dict[str, Any] = {"ignore_patterns": ["*/*"]}
    disable_progress_bars()
    try:
        path = Path(snapshot_download(name, allow_patterns=_TEXTS, **top))
    finally:
        enable_progress_bars()
    folder.check_settings(setting, path)  # before gigabytes come
    files = folder.weights_of(setting, path)
    if not all(file.is_file() for file in files):
        names = [file.name for file in files]
        snapshot_download(name, revision=path.name, allow_patterns=names, **top)
    return path


def find(name: str) -> Path | None:
    """Return the folder or file of a model if it is on this machine; the network is not used."""
    path = locate(name)
    if path.exists():
        return path
    if looks_like_path(name):
        return None
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(name, local_files_only=True))
        weights = folder.weights_of("model.name", path)
        return path if all(file.is_file() for file in weights) else None
    except (OSError, ValueError):  # not in the cache, or only a part of it
        return None


def width(name: str) -> int | None:
    """Return the width of a local backbone's hidden states, or None if config.json has none."""
    try:
        config = json.loads((locate(name) / "config.json").read_text(encoding="utf-8"))
        size = config["hidden_size"]
    # It is not a local folder, or its model has another key.
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if isinstance(size, int) else None


def looks_like_path(name: str) -> bool:
    """Return whether a name is a path; a hub's name is `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


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
