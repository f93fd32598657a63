"""Where a backbone is, and whether it can be loaded, without torch and without a download."""

import json
from pathlib import Path
from typing import Any

from forever.errors import InputError
from forever.models import folder

# What is fetched of a model beside its weights: settings and the tokenizer, no code, no pickle.
_TEXTS = ["*.json", "*.txt", "*.model", "*.jinja"]
TINY = Path(__file__).parent / "tiny"


def check(name: str, setting: str = "model.name") -> None:
    """Refuse a local model that cannot be loaded; what the hub has is checked when it is fetched.

    `setting` is the configuration key that holds `name`.

    Raises:
        InputError: a missing file or folder, or a folder that `models.folder` refuses.
    """
    path = locate(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"{setting}: there is no GGUF file {name!r}")
        folder.refuse_adapter(setting, path.parent)
    elif path.is_dir():
        folder.check(setting, path)
    elif path.exists() or looks_like_path(name):
        raise InputError(
            f"{setting}: there is no folder {name!r}; give a folder, a .gguf file or a model hub "
            "name"
        )


def fetch(name: str, setting: str = "model.name") -> Path:
    """The folder or GGUF file of a model, from the hub if `name` is no path, as `check` wants it.

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
            f"{setting}: {name!r} is no local folder and could not be fetched: {first}; fetch it "
            "once where there is a network (the cache is HF_HOME), or give a folder or a GGUF file"
        ) from error
    folder.check(setting, path)
    return path


def _download(name: str, setting: str) -> Path:
    """The newest snapshot of a hub's model, or without a network the one of last time."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    top: dict[str, Any] = {"ignore_patterns": ["*/*"]}
    disable_progress_bars()
    try:
        path = Path(snapshot_download(name, allow_patterns=_TEXTS, **top))
    finally:
        enable_progress_bars()
    folder.check_settings(setting, path)  # before gigabytes come
    files = weights_of(path, setting)
    if not all(file.is_file() for file in files):
        names = [file.name for file in files]
        snapshot_download(name, revision=path.name, allow_patterns=names, **top)
    return path


def find(name: str) -> Path | None:
    """The folder or file of a model if it is on this machine, without a look at the network."""
    path = locate(name)
    if path.exists():
        return path
    if looks_like_path(name):
        return None
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(name, local_files_only=True))
        return path if all(file.is_file() for file in weights_of(path, "model.name")) else None
    except (OSError, ValueError):  # not there, or by half
        return None


def weights_of(path: Path, setting: str) -> list[Path]:
    """The files of weights that a model's folder should have."""
    index = path / "model.safetensors.index.json"
    return (
        folder.files_of_index(setting, index) if index.is_file() else [path / "model.safetensors"]
    )


def width(name: str) -> int | None:
    """Return the width of a local backbone's hidden states, or None if config.json has none."""
    try:
        config = json.loads((locate(name) / "config.json").read_text(encoding="utf-8"))
        size = config["hidden_size"]
    # No local folder, or one whose model says it in another way.
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return size if isinstance(size, int) else None


def looks_like_path(name: str) -> bool:
    """A hub name is `name` or `owner/name`; everything else is meant as a path."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def locate(name: str) -> Path:
    """Where a local backbone lies; for a hub name a path that does not exist.

    Raises:
        InputError: no path can have this name.
    """
    if name == "tiny":
        return TINY
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, or the home of nobody
        raise InputError(f"{name!r} can be no model's name: {error}") from None
    return path
