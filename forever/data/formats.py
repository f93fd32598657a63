"""Files of rows by their endings: JSON lines, a JSON array, CSV and parquet; text also gzipped.

To add a format, write a function that yields a file's rows and name its ending in `_READERS`.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forever.data.rows import ROW, ROWS, Row
from forever.errors import InputError, Missing, one_line
from forever.reading import first_problem, parse_json, read_text, too_large

Rows = Iterator[tuple[int, Row]]  # with their numbers in the file, from 0

LARGEST_FILE = 2**28  # bytes
_LONGEST_CELL = 2**20  # characters


def read_rows(path: Path) -> Rows:
    """Yield the rows of a file.

    Raises:
        InputError: it is missing or malformed; the message has its line, or the row's number.
    """
    return _READERS[Path(path.name.removesuffix(".gz")).suffix](path)


def _json(path: Path) -> Rows:
    """Yield a list of rows, or one row of each line, whatever the ending says."""
    text = read_text(path, LARGEST_FILE)
    if text[:1000].lstrip().startswith("["):
        yield from enumerate(parse_json(text, ROWS, path))
        return
    for number, line in enumerate(text.split("\n")):
        if line.strip():
            yield number, parse_json(line, ROW, path, number + 1)


def _csv(path: Path) -> Rows:
    """Every cell is text: 007 stays 007."""
    text = read_text(path, LARGEST_FILE)
    csv.field_size_limit(_LONGEST_CELL)
    lines = csv.DictReader(StringIO(text, newline=""), strict=True)
    try:
        for number, cells in enumerate(lines):
            line = lines.line_num
            if None in cells:
                rule = "it has more cells than the header has columns; quote cells that hold commas"
                raise InputError(f"{path}, line {line}: {rule}", path=path, line=line)
            present = {column: cell for column, cell in cells.items() if cell is not None}
            yield number, row_of(present, f"{path}, line {line}", path=path, line=line)
    except csv.Error as error:
        line = lines.reader.line_num
        raise InputError(f"{path}, line {line}: {error}", path=path, line=line) from None


def _parquet(path: Path) -> Rows:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    if not path.is_file():
        raise Missing(f"{path} does not exist", path=path)
    number = size = 0
    try:
        for batch in ParquetFile(path).iter_batches(1000):
            size += batch.nbytes
            if size > LARGEST_FILE:
                raise too_large(path, LARGEST_FILE)
            for cells in batch.to_pylist():
                yield number, row_of(cells, f"{path}, row {number}", path=path)
                number += 1
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} is not a parquet file ({one_line(error)})", path=path) from None


def row_of(cells: Mapping[str, Any], where: str, **facts: Any) -> Row:
    """Return the row that some cells are.

    Raises:
        InputError: they are none; it has the `facts`, and the key of the cell if these have none.
    """
    try:
        return ROW.validate_python(cells)
    except ValidationError as error:
        cell, message = first_problem(error, where)
        raise InputError(message, **{"key": cell, **facts}) from None


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
ENDINGS = (*_READERS, *(f"{ending}.gz" for ending in _READERS if ending != ".parquet"))
