"""Where a backbone is, and whether it can be loaded, without torch and without a download."""

import json
from pathlib import Path

from forever.errors import InputError

_PARTS = {
    "configuration": ("config.json",),
    "weights": ("*.safetensors",),
    "tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json"),
}
_NO_CODE = (
    "Python code that comes with it, and no code of a model is run; "
    "give one whose architecture transformers has"
)
TINY = Path(__file__).parent / "tiny"


def check(name: str) -> None:
    """Refuse a backbone that cannot be loaded.

    Raises:
        InputError: a missing file or folder, one without weights, configuration or tokenizer, or
            one that asks for Python code of its own.
    """
    path = locate(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model.name: there is no GGUF file {name!r}")
    elif path.is_dir():
        for what, files in _PARTS.items():
            if not any(any(path.glob(file)) for file in files):
                raise InputError(
                    f"model.name: folder {name!r} has no {what} ({' or '.join(files)}); give a "
                    "Hugging Face model folder with safetensors"
                )
        refuse_code("model.name", name)
    elif looks_like_path(name):
        raise InputError(
            f"model.name: there is no folder {name!r}; give a folder, a .gguf file or a model hub "
            "name"
        )


def refuse_code(setting: str, name: str) -> None:
    """Refuse a local model folder whose model or tokenizer is Python code that came with it.

    Transformers would run the code that `auto_map` names. A hub name says nothing before it is
    downloaded; for that, every `from_pretrained` says `trust_remote_code=False`. `setting` is the
    configuration key that holds `name`.

    Raises:
        InputError: a JSON configuration in the folder has `auto_map`, or cannot be read.
    """
    for path in sorted(locate(name).glob("*config*.json")):
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{setting}: {path} cannot be read as JSON ({error})") from None
        if isinstance(settings, dict) and "auto_map" in settings:
            raise InputError(f"{setting}: {path} asks by auto_map for {_NO_CODE}")


def check_failure(setting: str, name: str, error: Exception) -> None:
    """Raise InputError if transformers failed because it may not run a model's code.

    Its own message advises to allow that.
    """
    if "trust_remote_code" in str(error):
        raise InputError(f"{setting}: {name!r} needs {_NO_CODE}") from error


def width(name: str) -> int | None:
    """Return the width of a local backbone's hidden states, or None if config.json has none."""
    try:
        config = json.loads((locate(name) / "config.json").read_text(encoding="utf-8"))
        size = config["hidden_size"]
    # No local folder, or one whose model says it in another way.
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if isinstance(size, int) else None


def looks_like_path(name: str) -> bool:
    """A hub name is `name` or `owner/name`; everything else is meant as a path."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def locate(name: str) -> Path:
    """Where a local backbone lies; for a hub name a path that does not exist."""
    return TINY if name == "tiny" else Path(name).expanduser()
