"""Tasks from any dataset that `datasets.load_dataset` reads, or that `save_to_disk` wrote."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from forever.config.parts import DatasetConfig
from forever.data.sources import limited
from forever.data.tasks import Example, Splits
from forever.errors import InputError, one_line, shown, unknown
from forever.reading import check_text, decode, is_folder, parse_json, path_of, read_file

_LONGEST_LIST = 2**20  # bytes of a list of splits
_PLACE = re.compile(r"\{([^{}]*)\}")


class _Saved(BaseModel):
    """What `save_to_disk` says of several splits: their names, which are those of folders."""

    splits: list[Annotated[str, Field(pattern=r"^\w[\w.-]*$")]]


_SAVED = TypeAdapter(_Saved)


def read_dataset(task: str, config: DatasetConfig, root: Path | None) -> Splits:
    """Return the examples of a task that a run describes; a relative path starts at `root`.

    Raises:
        InputError: there is no such dataset, split or column, or a field that is no text.
    """
    train = _examples(task, "train", config, root)
    return train, _examples(task, "test", config, root)


def _examples(
    task: str, part: str, config: DatasetConfig, root: Path | None
) -> tuple[Example, ...]:
    where = f"data.datasets.{task}"
    split, limit = config.test, config.test_rows
    if part == "train":
        split, limit = config.train, config.train_rows
    rows = _load(where, config, split, root)
    for column in config.filter:
        if column not in rows.column_names:
            raise unknown(f"column in {where}.filter", column, rows.column_names)
    columns = f"{where}.columns"
    instruction = _template(config.columns.instruction, rows.column_names, columns)
    text = _template(config.columns.input, rows.column_names, columns)
    output = _template(config.columns.output, rows.column_names, columns)
    examples: list[Example] = []
    for number, row in enumerate(_rows(rows, f"{where}, split {shown(split)}")):
        if _kept(row, config.filter):
            place = f"{where}, row {number} of {part}"
            fields = [_fill(template, row, place) for template in (instruction, text, output)]
            try:
                fields = [check_text(content) for content in fields]
            except InputError as error:
                raise InputError(f"{place} {error}") from None
            examples.append(Example(f"{task}/{part}/{number}", fields[0], fields[1], fields[2]))
    if not examples:
        raise InputError(
            f"{where}: nothing is left of {part} after the filter; a split needs a row"
        )
    return limited(tuple(examples), limit, part, task)


def _load(where: str, config: DatasetConfig, split: str, root: Path | None) -> Any:
    """Return one split as a `datasets.Dataset`."""
    import datasets  # a second
    from datasets.exceptions import DatasetNotFoundError

    datasets.disable_progress_bars()
    folder = path_of(config.path, f"{where}.path")
    if root is not None and is_folder(root / folder):
        folder = root / folder
    if config.is_path and not is_folder(folder):
        raise InputError(f"{where}.path: there is no folder {shown(str(folder))}")
    options: dict[str, Any] = {"path": config.path}
    if is_folder(folder):
        options = _of_folder(folder.absolute())
    try:
        return datasets.load_dataset(**options, name=config.name, split=split)
    except (ConnectionError, DatasetNotFoundError) as error:
        raise InputError(
            f"{where}.path: {shown(config.path)} is no local folder, not in the cache, and cannot "
            f"be fetched ({one_line(error)}); fetch it once where there is a network, or give a "
            "folder"
        ) from error
    except Exception as error:  # whatever a reader of files or the hub may raise
        raise InputError(f"{where}, split {shown(split)}: {one_line(error)}") from error


def _of_folder(folder: Path) -> dict[str, Any]:
    """Return how `load_dataset` reads a folder; `save_to_disk` mixes Arrow with JSON files."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        text = decode(read_file(splits, _LONGEST_LIST), splits)
        names = parse_json(text, _SAVED, str(splits)).splits
        files = {name: str(folder / name / "*.arrow") for name in names}
        return {"path": "arrow", "data_files": files}
    if (folder / "state.json").is_file():
        return {"path": "arrow", "data_files": str(folder / "*.arrow")}
    return {"path": str(folder)}


def _rows(rows: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, with the names of labels in the place of their numbers; -1 is none."""
    labels = {name: kind for name, kind in rows.features.items() if hasattr(kind, "int2str")}
    for number in range(len(rows)):
        try:
            row = rows[number]
            for name, kind in labels.items():
                value = row[name]
                if value is not None:
                    row[name] = kind.int2str(value) if value >= 0 else None
        except Exception as error:  # whatever a reader of pictures, sounds or dates may raise
            raise InputError(f"{where}, row {number}: {one_line(error)}") from error
        yield row


def _kept(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    for column, values in wanted.items():
        if row[column] not in (values if isinstance(values, list) else [values]):
            return False
    return True


def _template(text: str, columns: list[str], where: str) -> str:
    """Return a template: a column's name or a single word is a column; in several words `{column}`
    is one."""
    if text in columns or (len(text.split()) == 1 and "{" not in text):
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
                f"{where}: column {shown(place[1])} is {kind}; text or a number is expected"
            )
        return str(content)

    return _PLACE.sub(value, template)
