"""Text from outside, made fit for each place that shows it.

Names of tasks, variants and folders, answers and errors may hold anything: escape sequences,
markup, line breaks, a megabyte. They are kept as they are. Whoever shows one takes the function of
the place: `terminal` (or a `PlainTable`, or `complain`), `html`, `markdown`, `latex`, `label`.
"""

import os
import re
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

_LONGEST, _LONGEST_LABEL = 10_000, 80  # characters that are shown of one text
# What moves the cursor, starts a sequence, breaks a line, or hides or turns around what follows.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
# The last: formulas of GitHub; links; underscores that do not join two letters.
_MARKDOWN = re.compile(r"[\\`*~$]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
# What begins a formula; +FIR, -IAR and numbers do not.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?=.*(?:\w\(|[|!]))")
_GREEK = {"β": "beta", "γ": "gamma", "λ": "lambda", "μ": "mu", "τ": "tau", "Δ": "Delta"}
_LATEX = str.maketrans(
    {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
     "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
     "−": "$-$", "–": "--", "·": r"$\cdot$", "±": r"$\pm$", "×": r"$\times$", "≠": r"$\neq$",
     "→": r"$\rightarrow$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {letter: f"$\\{name}$" for letter, name in _GREEK.items()}
)  # fmt: skip

_NAMES = "password|passwd|pwd|secret|token|api_?key|access_?key|credentials?"
# Lengths are bounded: a megabyte of such beginnings would otherwise take hours.
_LOGIN = r"(?<=://)\S{0,1000}@"  # up to the last @ of the word: a password may hold / and @
_QUERY = (
    r"(?i)(?<=[?&;])([\w.-]{0,60}(?:password|passwd|pwd|secret|token|key|sig|signature|credential"
    r"|auth)[\w-]{0,60})=[^&;\s'\")]*"
)
# Tokens of Hugging Face, AWS, GitHub, GitLab, OpenAI and Slack, which are secrets wherever they
# stand.
_KEY = r"\bhf_[A-Za-z0-9]{16,}\b|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[opsur]_\w{20,}"
_KEY += r"|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}|\bsk-[\w-]{20,}|\bxox[a-z]-[\w-]{10,}"
_KEY += r"|(?<=hooks\.slack\.com/services/)\S+|(?<==Basic )\S+"
# What is masked, in this order, and what it becomes.
_MASKED = [
    (_LOGIN, "***@"),
    (r"(?<![^\s='\"(])[\w.+-]{1,200}:[^\s/@]\S{0,1000}@(?=\w)", "***@"),
    (_QUERY, r"\1=***"),
    (rf"{_KEY}|(?<=\bBearer )\S+|(?<=\bAuthorization: Basic )\S+", "***"),
    (rf"(?i)\b([\w-]{{0,60}}(?:{_NAMES}))=[^\s,;&'\"]+", r"\1=***"),
]
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|KEY|CREDENTIALS?)(?:_ID)?$")
_SHORTEST = 8  # of a secret in the environment; a shorter one would be found everywhere
_TEXT = 16  # columns that one of text has at least, or what is in it


def without_credentials(text: str) -> str:
    """The text without the user names, passwords and tokens in it.

    Those are what addresses carry, what looks like a token, and whatever the environment holds
    under the name of a secret. Whatever is printed or kept goes through it: commands, errors,
    tracebacks.
    """
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET_VARIABLE.search(name.upper()):
            text = text.replace(value, "***")
    for pattern, mask in _MASKED:
        text = re.sub(pattern, mask, text)
    return text


def holds_secret(text: str) -> bool:
    """Return whether a text surely holds a password or a token; less is refused than is masked."""
    return any(re.search(pattern, text) for pattern in (_LOGIN, _QUERY, _KEY))


def visible(text: object) -> str:
    """The text in one line, with escapes such as \\x1b and \\n for what is not seen."""
    shown = str(text)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}…"
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), shown)


def visible_lines(text: str) -> str:
    """Several lines, each of them `visible`."""
    return "\n".join(map(visible, text.split("\n")))


def terminal(text: object, style: str = "") -> Text:
    """Text for a console of rich, which takes no markup from it."""
    return Text(visible(text), style=style)


@dataclass(frozen=True)
class Cell:
    """A cell of a `PlainTable`: what it is for a program, and how a person sees it."""

    value: Any
    text: str
    style: str = ""


class PlainTable(Table):
    """A table whose title, caption, heads and cells are shown as they are on a console.

    It knows its rows: `data` gives a program what the cells mean, under the heads of the columns.
    """

    title: Any
    caption: Any

    def __init__(self, *heads: Any, **options: Any) -> None:
        options = {"box": box.SIMPLE, **options}
        super().__init__(title_justify="left", **options)
        self.records: list[Mapping[str, Any]] = []
        self._keys: list[str] = []
        for head in heads:
            self.add_column(head)

    def add_column(self, header: Any = "", *arguments: Any, key: str = "", **options: Any) -> None:
        """Add a column; `key` is its name for programs if that is not the head."""
        self._keys.append(key or str(header))
        super().add_column(terminal(header), *arguments, **options)

    def add_row(self, *cells: Any, record: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Add a row of `Cell`s or of plain values, None being an empty one.

        Args:
            record: what the row means for a program, instead of its cells; empty: nothing.
        """
        row: list[Cell] = []
        for cell in cells:
            plain = Cell(cell, "" if cell is None else str(cell))
            row.append(cell if isinstance(cell, Cell) else plain)
        if record is None:
            record = dict(zip(self._keys, (cell.value for cell in row), strict=False))
        if record:
            self.records.append(record)
        super().add_row(*(terminal(cell.text, cell.style) for cell in row), **options)

    def data(self) -> dict[str, Any]:
        """What the table says, as JSON values."""
        return {"title": self.title or "", "rows": self.records, "note": self.caption or ""}

    def __rich_console__(self, console: Any, options: Any) -> Any:
        shown = copy(self)
        shown.title = self.title and terminal(self.title, "table.title")
        shown.caption = None  # which a narrow table would fold
        for part in shown._parts(options.max_width):
            yield from super(PlainTable, part).__rich_console__(console, options)
        if self.caption:
            yield terminal(self.caption, "table.caption")

    def _parts(self, width: int) -> list["PlainTable"]:
        """The table. If it is too wide, heads take several lines, and if it still is, then it
        becomes several tables, each with the first column. Columns to the right hold numbers,
        which are never cut or folded."""
        pad = self.padding[1]
        beside = 1 + (pad if self.collapse_padding else 2 * pad)
        room = width - 2 * (1 + pad) + beside
        if sum(_longest(column) + beside for column in self.columns) <= room:
            return [self]
        names = replace(self.columns[0], no_wrap=False, overflow="fold")
        left = room - min(_longest(names), _TEXT) - beside
        parts: list[PlainTable] = []
        free = 0
        for column in map(copy, self.columns[1:]):
            if column.justify == "right":
                column.width = _longest_number(column)
            needed = (column.width or min(_longest(column), _TEXT)) + beside
            if not parts or needed > free:
                parts.append(copy(self))
                parts[-1].columns = [names]
                free = left
            parts[-1].columns.append(column)
            free -= needed
        for part in parts[1:]:
            part.title = None
        return parts or [self]


def _longest(column: Column) -> int:
    """Columns of the terminal that a column takes if nothing in it is folded."""
    return max(cell_len(str(cell)) for cell in (column.header, *column.cells))


def _longest_number(column: Column) -> int:
    """Those that it takes if only its head is folded."""
    return max(cell_len(str(text)) for text in (*str(column.header).split(), *column.cells))


class Page:
    """Parts below one another on a console, each with a name in the document for programs."""

    def __init__(self, apart: bool = True) -> None:
        self._apart = apart  # whether an empty line stands between parts
        self._parts: list[Any] = []
        self._data: dict[str, Any] = {}

    def add(self, name: str, part: Any, group: str = "") -> None:
        """Add a table, or another part that has `data`; for programs perhaps in a group."""
        if self._parts and self._apart:
            self._parts.append(Text())
        self._parts.append(part)
        place = self._data.setdefault(group, {}) if group else self._data
        place[name] = part.data()

    def say(self, line: str, style: str = "") -> None:
        """Add a line for people."""
        self._parts.append(terminal(line, style))

    def note(self, **data: Any) -> None:
        """Add values for programs."""
        self._data |= data

    def data(self) -> dict[str, Any]:
        """What the page says, as JSON values."""
        return self._data

    def __rich_console__(self, console: Any, options: Any) -> Any:
        yield from self._parts


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, from the middle of which the rest is left out."""
    if len(text) <= most:
        return text
    behind = (most - 1) // 2
    return f"{text[: most - 1 - behind]}…{text[len(text) - behind :]}"


def complain(text: str) -> None:
    """Print something on stderr, in one line and without credentials."""
    text = text[: 10 * _LONGEST]  # what is cut off here is not seen
    print(visible(without_credentials(text)), file=sys.stderr, flush=True)


def spreadsheet(text: str) -> str:
    """Text for a cell of a CSV file, which no spreadsheet takes for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def html(text: object) -> str:
    """Text for a page, between tags or in an attribute."""
    return escape(visible(text))


def markdown(text: object) -> str:
    """Text for Markdown; of a table's cell `markdown_table` escapes the bars."""
    shown = _MARKDOWN.sub(lambda found: f"\\{found[0]}", visible(text))
    return _ENTITY.sub("&amp;", shown).replace("<", "&lt;").replace(">", "&gt;")


def latex(text: object) -> str:
    """Text for LaTeX in ASCII. An unknown character becomes a question mark, which compiles."""
    shown = visible(text)
    # At the beginning of a row they would belong to the end of the one before.
    guard = "{}" if shown.startswith(("[", "*")) else ""
    return guard + shown.translate(_LATEX).encode("ascii", "replace").decode("ascii")


def label(text: object) -> str:
    """Text for a figure: no formula, no longer than fits, and with a place in the legend."""
    shown = visible(text)
    if len(shown) > _LONGEST_LABEL:
        shown = f"{shown[: _LONGEST_LABEL - 1]}…"
    if shown.startswith("_"):
        shown = f" {shown}"  # Matplotlib would leave it out of a legend
    return shown.replace("$", r"\$")
