"""Tasks from any dataset that `datasets.load_dataset` reads, or that `save_to_disk` wrote."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forever.config.parts import DatasetConfig
from forever.data.rows import ROW, Row
from forever.data.sources import limited
from forever.data.tasks import Example, Splits
from forever.errors import InputError, one_line, shown, unknown
from forever.reading import first_problem, is_folder, path_of

_COLUMN = re.compile(r"\{([^{}]*)\}")


def read_dataset(task: str, config: DatasetConfig, root: Path | None) -> Splits:
    """Return the examples of a task that a run describes; a relative path starts at `root`.

    Raises:
        InputError: there is no such dataset, split or column, or a field is not text.
    """
    train = _examples(task, "train", config, root)
    return train, _examples(task, "test", config, root)


def _examples(
    task: str, part: str, config: DatasetConfig, root: Path | None
) -> tuple[Example, ...]:
    key = f"data.datasets.{task}"
    split, limit = config.test, config.test_rows
    if part == "train":
        split, limit = config.train, config.train_rows
    rows = _load(key, config, split, root)
    for column in config.filter:
        if column not in rows.column_names:
            raise unknown(f"column in {key}.filter", column, rows.column_names, f"{key}.filter")
    columns = config.columns
    if columns.messages and columns.messages not in rows.column_names:
        raise unknown(f"column in {key}", columns.messages, rows.column_names, f"{key}.columns")
    instruction, text, output = (
        _template(field, rows.column_names, f"{key}.columns")
        for field in (columns.instruction, columns.input, columns.output)
    )
    wanted = {name: values if isinstance(values, list) else [values]
              for name, values in config.filter.items()}  # fmt: skip
    examples: list[Example] = []
    for number, row in _decoded(rows):
        if all(row[column] in values for column, values in wanted.items()):
            where, name = f"{key}, row {number} of {part}", f"{task}/{part}/{number}"
            if columns.messages:
                examples.append(_conversation(row[columns.messages], where).example(name))
                continue
            fields = (_fill(template, row, where) for template in (instruction, text, output))
            examples.append(Example(name, *fields, turns=()))
    if not examples:
        raise InputError(
            f"{key}: the filter leaves nothing of {part}; a split needs at least one row",
            key=f"{key}.filter",
        )
    return limited(tuple(examples), limit, part, task)


def _load(key: str, config: DatasetConfig, split: str, root: Path | None) -> Any:
    """Return one split as a `datasets.Dataset`."""
    import datasets  # a second
    from datasets.exceptions import DatasetNotFoundError

    datasets.disable_progress_bars()
    path = path_of(config.path, f"{key}.path")
    if root is not None and is_folder(root / path):
        path = root / path
    if config.is_path and not is_folder(path):
        raise InputError(f"{key}.path: there is no folder {shown(str(path))}", key=f"{key}.path")
    options: dict[str, Any] = {"path": config.path}
    if is_folder(path):
        path = path.absolute()
        options = {"path": str(path)}
        # What `save_to_disk` wrote has JSON beside Arrow, which the reader of a folder would mix.
        saved = {file.parent.name: f"{file.parent}/*.arrow" for file in path.glob("*/state.json")}
        if (path / "dataset_dict.json").is_file():
            options = {"path": "arrow", "data_files": saved}
        elif (path / "state.json").is_file():
            options = {"path": "arrow", "data_files": f"{path}/*.arrow"}
    try:
        return datasets.load_dataset(**options, name=config.name, split=split)
    except (ConnectionError, DatasetNotFoundError) as error:
        raise InputError(
            f"{key}.path: {shown(config.path)} is neither a local folder nor in the cache, and "
            f"cannot be downloaded ({one_line(error)}); download it once where there is a network, "
            "or give a folder",
            key=f"{key}.path",
        ) from error
    except Exception as error:  # whatever a reader of files or the hub may raise
        raise InputError(f"{key}, split {shown(split)}: {one_line(error)}", key=key) from error


def _decoded(rows: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows with their numbers; labels have their names, and -1 is none."""
    labels = {name: kind for name, kind in rows.features.items() if hasattr(kind, "int2str")}
    for number, row in enumerate(rows):
        for name, kind in labels.items():
            value = row[name]
            if value is not None:
                row[name] = kind.int2str(value) if value >= 0 else None
        yield number, row


def _conversation(messages: Any, where: str) -> Row:
    try:
        return ROW.validate_python({"messages": messages})
    except ValidationError as error:
        message = first_problem(error, where)[1]
        raise InputError(message, key=where.partition(",")[0]) from None


def _template(text: str, columns: list[str], key: str) -> str:
    """Return a template: a column's name or a single word is a column, and in a text of several
    words `{column}` is one."""
    if text in columns or (len(text.split()) == 1 and "{" not in text):
        text = f"{{{text}}}"
    for name in _COLUMN.findall(text):
        if name not in columns:
            raise unknown(f"column in {key}", name, columns, key)
    return text


def _fill(template: str, row: Mapping[str, Any], where: str) -> str:
    def value(column: re.Match[str]) -> str:
        content = row[column[1]]
        if not isinstance(content, str | int | float):
            kind = "empty" if content is None else type(content).__name__
            raise InputError(
                f"{where}: column {shown(column[1])} is {kind}; it must be text or a number",
                key=where.partition(",")[0],
            )
        return str(content)

    return _COLUMN.sub(value, template)
