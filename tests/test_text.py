"""Text from outside does nothing in the place that shows it, and can still be read there."""

import ast
import io
import random
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forever.text import (
    PlainTable,
    complain,
    html,
    label,
    latex,
    markdown,
    spreadsheet,
    terminal,
    visible,
    visible_lines,
)

ROOT = Path(__file__).parents[1]
HOSTILE = [
    "$x_{$", "[red]x", "[/b]", "[link=http://h]x[/link]", ":bug:", "\x1b[2J\x1b]0;title\x07",
    "a\nb\r\tc", "\u202etxt.exe", "\u2028", "\x9b31m", "<script>alert(1)</script>", "&lt;",
    "a|b", "`x`", "*a* _b_ ~~c~~", "[a](http://h)", "![a][b]", r"\$", r"\input{/etc/passwd}",
    "%&#{}~^", "\ud800", "\x00", "日本", "_hidden", "*", "[1em]", "100 % $a$ $b",
]  # fmt: skip


def hostile_texts() -> list[str]:
    """Those, and some drawn from their characters."""
    draw, characters = random.Random(0), "".join(HOSTILE)
    drawn = ["".join(draw.choices(characters, k=12)) for _ in range(300)]
    return HOSTILE + drawn


def on_terminal(thing: Any) -> str:
    console = Console(width=200, record=True, force_terminal=True, file=io.StringIO())
    console.print(thing)
    return console.export_text(styles=True)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_shows_it_and_obeys_nothing(text: str) -> None:
    assert on_terminal(terminal(text)) == f"{visible(text)}\n"
    shown, plain = on_terminal(table_of(text)), on_terminal(table_of(visible(text)))
    assert shown == plain
    assert plain.count(visible(text).strip()) >= 4
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("text", "is_formula"),
    [
        ("=1+1", True), ("@SUM(B)", True), ("+cmd|' /C calc'!A0", True), ("-HYPERLINK(1)", True),
        ("\t=1", True), ("+FIR", False), ("-IAR&PIR", False), ("+16.7 [-1.0, 30.1]", False),
        ("-3.5", False), ("+FIR (earlier)", False), ("a=b", False), ("", False),
    ],
)  # fmt: skip
def test_a_spreadsheet_computes_no_name(text: str, is_formula: bool) -> None:
    assert spreadsheet(text) == ("'" if is_formula else "") + text


def table_of(text: str) -> PlainTable:
    table = PlainTable(text, "n", title=text, caption=text)
    table.add_row(text, "1")
    return table


def test_what_is_not_seen_has_a_name() -> None:
    assert visible("a\x1b[31m\n\t\u202e\ud800é日") == r"a\x1b[31m\n\t\u202e\ud800é日"
    assert visible_lines("a\nb\x07") == "a\nb\\x07"
    for text in hostile_texts():
        assert visible(text).isprintable()
        visible(text).encode("utf-8")


def test_a_megabyte_is_cut() -> None:
    assert len(visible("x" * 2**20)) == 10_001
    assert len(label("x" * 2**20)) == 80


def test_a_message_is_one_line_without_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    complain("a\n\x1b[31mb http://me:s3cret-pw@host")
    assert capsys.readouterr().err == "a\\n\\x1b[31mb http://***@host\n"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)


def test_a_page_has_no_tag_of_it() -> None:
    for text in hostile_texts():
        parser = Tags()
        parser.feed(f'<p title="{html(text)}">{html(text)}</p>')
        parser.close()
        assert parser.tags == ["p"]
        assert unescape(html(text)) == visible(text)


def test_markdown_takes_it_as_text() -> None:
    assert markdown("a_b method.days=[1, 2] [3.0, 4.0] +FIR") == (
        "a_b method.days=[1, 2] [3.0, 4.0] +FIR"
    )
    assert markdown("*a* _b_ `c` $d$ ~e~") == r"\*a\* \_b\_ \`c\` \$d\$ \~e\~"
    assert markdown("[a](h) ![b][c] [d]: h") == r"[a\](h) ![b\][c] [d\]: h"
    assert markdown("<b> & &lt; a\nb \\") == "&lt;b&gt; & &amp;lt; a\\\\nb \\\\"
    for text in hostile_texts():
        assert not set("<>\n") & set(markdown(text))


def test_latex_takes_it_as_text() -> None:
    assert latex("[1em] [2]") == "{}[1em] [2]"  # after the \\ of a row it would be a length
    assert latex("*") == "{}*"
    for text in hostile_texts():
        assert latex(text).isascii()
        assert "\\input" not in latex(text)


def test_a_figure_draws_it() -> None:
    """A formula would raise an error, or change what is read; an underscore would hide a line."""
    figures = pytest.importorskip("matplotlib.figure")
    texts = [text for text in hostile_texts()[:80] if visible(text).isascii()]
    figure = figures.Figure(figsize=(4, 4))
    axis = figure.add_subplot()
    for text in texts:
        axis.plot([0, 1], label=label(text))
        axis.text(0, 0, label(text))
    assert len(axis.get_legend_handles_labels()[1]) == len(texts)
    figure.savefig("/dev/null", format="png")


def test_whoever_prints_takes_the_functions_of_this_module() -> None:
    """A line on stderr is printed by `complain`; a table is a `PlainTable`; no page escapes text by
    itself."""
    found: list[str] = []
    for path in sorted((ROOT / "forever").rglob("*.py")):
        if path.name in ("text.py", "start.py"):  # the other says nothing from outside
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and "print(visible_lines(" in ast.unparse(node):
                continue
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "Table", "Text"):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node.func)}")
            if isinstance(node, ast.ImportFrom) and node.module in ("html", "rich.markup"):
                found.append(f"{path.relative_to(ROOT)}: {node.module}")
    assert found == []
