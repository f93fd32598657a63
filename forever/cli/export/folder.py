"""`forever export`: the folder with the adapter, the model card and, on request, the merged model.

The folder appears when all of it is there.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from forever.cli.export.card import card
from forever.cli.export.licence import base_licence, data_licence
from forever.cli.export.snippet import Base, locate_base
from forever.cli.view.seen import Seen, look
from forever.errors import InputError, reading
from forever.files import DAMAGED, writing
from forever.runs.shapes import check_weights
from forever.storage.address import portable

_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
# From the folder of an adapter into that of a model: with which base, and that base's name.
Merge = Callable[[Path, Path, Base, str], None]


def export_run(run: Path, to: Path, merge: Merge | None = None) -> list[str]:
    """Write what a finished run trained into the folder `to`, and return what was written.

    Args:
        merge: what writes the merged model, which loads torch; None writes the adapter alone.

    Raises:
        InputError: the run is not over or is damaged, its method has no one adapter, the folder is
            there already, or the base model is needed and not on this machine; or the whole model
            was trained, with which nothing is to be merged.
    """
    to = Path(os.path.abspath(to))
    if to == Path.cwd():
        raise InputError(f"--to {to} is the working folder; give one that is not there yet")
    with reading(run):
        seen = look(run)
        if seen.directory.verify() is None:
            raise InputError(f"{portable(run)} is {seen.state}; only a finished run is exported")
        base = locate_base(seen.config)
        whole = seen.config.model.tuning == "full"
        if whole and merge is not None:
            raise InputError(f"{portable(run)} trained the whole model; leave out --merged")
        source = seen.directory.path / ("model" if whole else "adapter")
        check_weights(seen.directory.path, seen.result)
        _check(seen, source, whole)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is there, and export overwrites nothing; give another --to")
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    with writing(to):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            _fill(temporary, seen, source, base, merge)
            if to.is_dir():
                to.rmdir()  # it is empty
            temporary.rename(to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    written = sorted(path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file())
    return [f"wrote {to / name}" for name in written]


def _check(seen: Seen, source: Path, whole: bool) -> None:
    """Refuse a run that left nothing which transformers or PEFT could load as one model."""
    if not source.is_dir():
        raise InputError(f"{source} is not there; it was not kept, so run again")
    for name in seen.result.get("weights", ()):
        path = seen.directory.path / name
        if not path.is_file():
            raise InputError(f"{path} is missing; {DAMAGED}")
    if not whole and not all((source / name).is_file() for name in _ADAPTER):
        raise InputError(
            f"method {seen.config.method.name} weighs several adapters by the prompt, which PEFT "
            f"cannot load as one; they are in {source}"
        )


def _fill(folder: Path, seen: Seen, source: Path, base: Base, merge: Merge | None) -> None:
    whole = source.name == "model"
    with reading(seen.directory.path):
        if whole:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        else:
            _copy_adapter(source, folder, base)
        licences = (base_licence(base), data_licence(seen.config.data))
        text = card(seen, base, licences, whole, merge is not None)
    (folder / "README.md").write_text(text, encoding="utf-8")
    if merge is not None:
        merge(source, folder / "merged", base, seen.config.model.name)


def _copy_adapter(source: Path, folder: Path, base: Base) -> None:
    """Copy the adapter; its settings name the base where it is, wherever they are read from."""
    shutil.copyfile(source / _ADAPTER[1], folder / _ADAPTER[1])
    settings = json.loads((source / _ADAPTER[0]).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base.name
    (folder / _ADAPTER[0]).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
