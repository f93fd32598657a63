"""Tasks from any dataset that `datasets.load_dataset` reads, or that `save_to_disk` wrote."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from forever.config.parts import ColumnsConfig, DatasetConfig
from forever.data.formats import ENDINGS, LARGEST_FILE, row_of
from forever.data.sources import limited
from forever.data.tasks import Example, Splits
from forever.errors import InputError, Missing, one_line, shown, unknown
from forever.reading import is_folder, path_of, read_text

_COLUMN = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Dataset:
    """A task that a run describes; a relative path starts at `root`."""

    name: str
    config: DatasetConfig
    root: Path | None

    def splits(self, needs_test: bool = True) -> Splits:
        """Read the training and test examples; raises as `examples`."""
        return self.examples("train"), self.examples("test")

    def origin(self) -> str:
        """Say which dataset is read."""
        return self.config.path

    def examples(self, split: str) -> tuple[Example, ...]:
        """Read the examples of train or test.

        Raises:
            InputError: a column does not exist, a field is not text, or the hub cannot be reached.
            Missing: the folder, the file or the split does not exist.
        """
        config, key = self.config, f"data.datasets.{self.name}"
        theirs, limit = config.test, config.test_rows
        if split == "train":
            theirs, limit = config.train, config.train_rows
        rows = _load(key, config, theirs, self.root)
        for column in config.filter:
            if column not in rows.column_names:
                raise unknown(f"column in {key}.filter", column, rows.column_names, f"{key}.filter")
        read = _reader(config.columns, rows.column_names, f"{key}.columns")
        wanted: dict[str, list[Any]] = {}
        for name, value in config.filter.items():
            values = value if isinstance(value, list) else [value]
            wanted[name] = [*values, *map(str, values)]  # of a CSV file every cell is text
        examples: list[Example] = []
        for number, row in _decoded(rows):
            if all(row[column] in values for column, values in wanted.items()):
                where = f"{key}, row {number} of {split}"
                known = row_of(read(row, where), where, key=key)
                examples.append(known.example(f"{self.name}/{split}/{number}"))
        if not examples:
            raise InputError(
                f"{key}: the filter leaves nothing of {split}; a split needs at least one row",
                key=f"{key}.filter",
            )
        return limited(tuple(examples), limit, split, self.name)


def _reader(
    columns: ColumnsConfig | None, names: list[str], key: str
) -> Callable[[Mapping[str, Any], str], Mapping[str, Any]]:
    """Return what makes a row of a known shape of a dataset's row; by default it is one."""
    if columns is None:
        return lambda row, where: row
    if columns.messages:
        if columns.messages not in names:
            raise unknown(f"column in {key}", columns.messages, names, key)
        return lambda row, where: {"messages": row[columns.messages]}
    fields = {"instruction": columns.instruction, "input": columns.input, "output": columns.output}
    templates = {field: _template(text, names, key) for field, text in fields.items()}
    return lambda row, where: {
        field: _fill(template, row, where, may_be_empty=field == "input")
        for field, template in templates.items()
    }


def _load(key: str, config: DatasetConfig, split: str, root: Path | None) -> Any:
    """Return one split as a `datasets.Dataset`."""
    import datasets  # a second
    from datasets.exceptions import DatasetNotFoundError

    datasets.disable_progress_bars()
    path = path_of(config.path, f"{key}.path")
    if root is not None and (is_folder(root / path) or _is_file(root / path)):
        path = root / path
    if config.is_path and not is_folder(path) and not _is_file(path):
        problem = f"there is no folder or file of rows {shown(str(path))}"
        raise Missing(f"{key}.path: {problem}", key=f"{key}.path")
    options: dict[str, Any] = {"path": config.path}
    if _is_file(path):
        kind = Path(path.name.removesuffix(".gz")).suffix[1:]
        options = {"path": kind.replace("jsonl", "json"), "data_files": str(path.absolute())}
        options |= _as_text([path])
    elif is_folder(path):
        path = path.absolute()
        options = {"path": str(path), **_as_text(sorted(path.rglob("*")))}
        # What `save_to_disk` wrote has JSON beside Arrow, which the reader of a folder would mix.
        saved = {file.parent.name: f"{file.parent}/*.arrow" for file in path.glob("*/state.json")}
        if (path / "dataset_dict.json").is_file():
            options = {"path": "arrow", "data_files": saved}
        elif (path / "state.json").is_file():
            options = {"path": "arrow", "data_files": f"{path}/*.arrow"}
        else:
            _check_card(key, path)
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
        problem = f"{key}, split {shown(split)}: {one_line(error)}"
        if "Unknown split" in str(error):
            remedy = "name another, or a part of one, such as train: train[:90%], test: train[90%:]"
            raise Missing(f"{problem}; {remedy}", key=key) from error
        if isinstance(error, FileNotFoundError):  # the folder has none
            raise Missing(f"{problem}; put files of rows there", key=key) from error
        raise InputError(problem, key=key) from error


def _is_file(path: Path) -> bool:
    return path.name.endswith(ENDINGS) and path.is_file()


def _as_text(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the options by which CSV files are read with every cell as text: 007 stays 007."""
    tables = [path for path in paths if path.name.endswith(ENDINGS)]
    if not tables or not all(path.name.endswith((".csv", ".csv.gz")) for path in tables):
        return {}
    header = next(csv.reader(StringIO(read_text(tables[0], LARGEST_FILE))), [])
    return {"converters": dict.fromkeys(header, str), "keep_default_na": False}


def _check_card(key: str, folder: Path) -> None:
    """Refuse a folder whose card would have files read that are not in it, or addresses."""
    from huggingface_hub import DatasetCard

    for name in ("README.md", ".huggingface.yaml"):
        file = folder / name
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if name != "README.md":
            text = f"---\n{text}\n---\n"
        waiting: list[Any] = [DatasetCard(text, ignore_metadata_errors=True).data.get("configs")]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Mapping):
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
            elif "://" in str(value) or Path(str(value)).is_absolute() or ".." in str(value):
                raise InputError(
                    f"{key}.path: {file} names data outside of its folder, {shown(value)}; put the "
                    "files into the folder, and their names into the card",
                    key=f"{key}.path",
                    path=file,
                )


def _decoded(rows: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows with their numbers; labels have their names, and -1 is without one."""
    labels = {name: kind for name, kind in rows.features.items() if hasattr(kind, "int2str")}
    for number, row in enumerate(rows):
        for name, kind in labels.items():
            value = row[name]
            if value is not None:
                row[name] = kind.int2str(value) if value >= 0 else None
        yield number, row


def _template(text: str, columns: list[str], key: str) -> str:
    """Return a template: a column's name or a single word is a column, and in a text of several
    words `{column}` is one."""
    if text in columns or (len(text.split()) == 1 and "{" not in text):
        text = f"{{{text}}}"
    for name in _COLUMN.findall(text):
        if name not in columns:
            raise unknown(f"column in {key}", name, columns, key)
    return text


def _fill(template: str, row: Mapping[str, Any], where: str, may_be_empty: bool) -> str:
    def value(column: re.Match[str]) -> str:
        content = row[column[1]]
        if content is None and may_be_empty:
            return ""
        if not isinstance(content, str | int | float):
            kind = "empty" if content is None else type(content).__name__
            raise InputError(
                f"{where}: column {shown(column[1])} is {kind}; it must be text or a number",
                key=where.partition(",")[0],
            )
        return str(content)

    return _COLUMN.sub(value, template)
