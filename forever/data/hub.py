"""Tasks from any dataset that `datasets.load_dataset` reads.

That is a hub name, a local folder of parquet, Arrow, CSV or JSON files, or one that `save_to_disk`
wrote.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forever.config.parts import DatasetConfig
from forever.data.sources import Splits, limited
from forever.data.tasks import Example
from forever.errors import InputError, unknown

_PLACE = re.compile(r"\{([^{}]*)\}")


def read_dataset(task: str, config: DatasetConfig, root: Path | None) -> Splits:
    """Return the training and test examples of a task that a run's configuration describes.

    Args:
        root: the folder from which a relative path to a local dataset starts, if it is there.

    Raises:
        InputError: there is no such dataset, split or column, or a field that is no text.
    """
    train = _examples(task, "train", config, root)
    return train, _examples(task, "test", config, root)


def _examples(
    task: str, part: str, config: DatasetConfig, root: Path | None
) -> tuple[Example, ...]:
    where = f"data.datasets.{task}"
    rows = _load(where, config, config.train if part == "train" else config.test, root)
    templates = [
        _template(text, rows.column_names, f"{where}.columns")
        for text in (config.columns.instruction, config.columns.input, config.columns.output)
    ]
    for column in config.filter:
        if column not in rows.column_names:
            raise unknown(f"column in {where}.filter", column, rows.column_names)
    examples = []
    for number, row in enumerate(_texts(rows)):
        if not _kept(row, config.filter):
            continue
        fields = [_fill(text, row, f"{where}, row {number} of {part}") for text in templates]
        examples.append(Example(f"{task}/{part}/{number}", *fields))
    if not examples:
        raise InputError(
            f"{where}: nothing is left of {part} after the filter; a split needs a row"
        )
    limit = config.train_rows if part == "train" else config.test_rows
    return limited(tuple(examples), limit, part, task)


def _load(where: str, config: DatasetConfig, split: str, root: Path | None) -> Any:
    """Return one split as a `datasets.Dataset`."""
    import datasets  # a second
    from datasets.exceptions import DatasetNotFoundError

    datasets.disable_progress_bars()
    folder = Path(config.path).expanduser()
    if root is not None and (root / folder).is_dir():
        folder = root / folder
    if config.is_path and not folder.is_dir():
        raise InputError(f"{where}.path: there is no folder {str(folder)!r}")
    options: dict[str, Any] = {"path": config.path}
    if folder.is_dir():
        options = _saved(folder) or {"path": str(folder.absolute())}
    try:
        return datasets.load_dataset(**options, name=config.name, split=split)
    except (ConnectionError, DatasetNotFoundError) as error:
        raise InputError(
            f"{where}.path: {config.path!r} is no local folder, not in the cache, and cannot be "
            f"fetched ({_line(error)}); fetch it once where there is a network, or give a folder"
        ) from error
    except Exception as error:  # whatever a reader of files or the hub may raise
        raise InputError(f"{where}, split {split!r}: {_line(error)}") from error


def _saved(folder: Path) -> dict[str, Any] | None:
    """Return how `load_dataset` reads what `save_to_disk` wrote; None for another folder."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = json.loads(splits.read_text(encoding="utf-8"))["splits"]
        return {
            "path": "arrow",
            "data_files": {name: str(folder.absolute() / name / "*.arrow") for name in names},
        }
    if (folder / "state.json").is_file():
        return {"path": "arrow", "data_files": str(folder.absolute() / "*.arrow")}
    return None


def _line(error: Exception) -> str:
    """Return the innermost reason of an error as one line."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]


def _texts(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, with the names of labels in the place of their numbers."""
    labels = {
        name: feature for name, feature in rows.features.items() if hasattr(feature, "int2str")
    }
    for row in rows:
        for name, feature in labels.items():
            if row[name] is not None and row[name] >= 0:
                row[name] = feature.int2str(row[name])
        yield row


def _kept(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    for column, values in wanted.items():
        if row[column] not in (values if isinstance(values, list) else [values]):
            return False
    return True


def _template(text: str, columns: list[str], where: str) -> str:
    """Return a template: a single word is a column's name; in several words `{column}` is one.

    Raises:
        InputError: no such column.
    """
    if text and len(text.split()) == 1 and "{" not in text:
        text = f"{{{text}}}"
    for name in _PLACE.findall(text):
        if name not in columns:
            raise unknown(f"column in {where}", name, columns)
    return text


def _fill(template: str, row: Mapping[str, Any], where: str) -> str:
    def value(place: re.Match[str]) -> str:
        content = row[place[1]]
        if not isinstance(content, str | int | float):
            kind = "empty" if content is None else type(content).__name__
            raise InputError(
                f"{where}: column {place[1]!r} is {kind}; text or a number is expected"
            )
        return str(content)

    return _PLACE.sub(value, template)
