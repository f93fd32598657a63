"""docs/faults.md: each fault and each finding names tests, and these exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
# Lines of the two tables: a number or a finding first, tests or the reason for none last.
LINES = dict(re.findall(r"^\| (\d+|F\d+) \|(.*)\|$", PAGE, re.M))
TESTS = [*dict.fromkeys(re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE))]


@cache
def functions(path: str) -> set[str]:
    """The names of a file's test functions."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_fault_and_every_finding_has_a_line() -> None:
    expected = [str(number) for number in range(1, 31)] + [f"F{number}" for number in range(1, 24)]
    assert [*LINES] == expected


@pytest.mark.parametrize("name", LINES)
def test_every_line_names_a_test_or_says_why_there_is_none(name: str) -> None:
    assert "::test_" in LINES[name] or "not tested here: " in LINES[name]


@pytest.mark.parametrize("test", TESTS)
def test_every_named_test_exists(test: str) -> None:
    path, name = test.split("::")
    assert (ROOT / path).is_file()
    assert name in functions(path)
