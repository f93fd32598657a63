"""`forever` called in the process of a test."""

from collections.abc import Callable

# Arguments to the exit code, and what came on stdout and stderr.
Call = Callable[..., tuple[int, str, str]]
