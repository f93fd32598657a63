"""The licence of a base model and of data, as far as their folders say it."""

import re
from pathlib import Path

from forever.cli.export.snippet import Base
from forever.config.parts import DataConfig
from forever.data.benchmarks import FOLDERS
from forever.storage.address import local_folder

_OURS = "Apache-2.0"  # of this package and of what is embedded in it
_FIELD = re.compile(r"^license: *['\"]?([\w.+-]{1,60})['\"]?\s*$", re.MULTILINE)
_FRONT = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)
_LONGEST = 100_000  # characters of a file that are looked at
UNKNOWN = "not known here"


def base_licence(base: Base) -> str:
    """The licence of a model by its card or its LICENSE, or where to look it up."""
    if base.path is not None:
        folder = base.path.parent if base.gguf else base.path
        if folder.is_relative_to(Path(__file__).parents[2]):
            return _OURS
        if found := _of_folder(folder):
            return found
    if base.on_hub:
        return f"{UNKNOWN}; see https://huggingface.co/{base.name}"
    return UNKNOWN


def data_licence(data: DataConfig) -> str:
    """The licence of a benchmark by the files in its folder, or of datasets by their pages."""
    if data.benchmark == "mini":
        return _OURS
    if data.datasets:
        pages: list[str] = []
        for dataset in data.datasets.values():
            if not dataset.is_path:
                pages.append(f"https://huggingface.co/datasets/{dataset.path}")
        return f"{UNKNOWN}; see {', '.join(dict.fromkeys(pages))}" if pages else UNKNOWN
    root = local_folder(data.root or ".").expanduser()
    for name in FOLDERS.get(data.benchmark, (data.benchmark,)):
        if found := _of_folder(root / name) or _of_folder(root):
            return found
    return UNKNOWN


def _of_folder(folder: Path) -> str:
    """The licence in a folder's card (README.md), or the first line of its LICENSE."""
    card = folder / "README.md"
    if card.is_file():
        front = _FRONT.match(card.read_text(encoding="utf-8", errors="replace")[:_LONGEST])
        field = _FIELD.search(front[1]) if front else None
        if field:
            return field[1]
    for path in sorted(folder.glob("LICEN[CS]E*")):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace")[:_LONGEST].splitlines()
            first = next((line.strip() for line in lines if line.strip()), "")
            return f"{first[:80]} ({path.name})"
    return ""
