"""`forever` called in the process of a test: what the fixture `call` returns is read here."""

import json
from collections.abc import Callable
from typing import Any

# Arguments to the exit code, and what came on stdout and stderr.
Call = Callable[..., tuple[int, str, str]]


def said(call: Call, *arguments: str, code: int = 0) -> str:
    """All that a command says that ends with an exit code."""
    ended, printed, errors = call(*arguments)
    assert ended == code, errors
    return printed + errors


def document(call: Call, *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a command prints with `--json`: one document, and nothing else."""
    ended, printed, errors = call(*arguments, "--json")
    assert ended == code, errors
    return json.loads(printed)
