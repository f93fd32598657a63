"""Output that nobody reads must not end a training.

It may go to a closed pipe (`forever run ... | head -1`), a full disk, a terminal that is gone, or
one that lacks the letters.
"""

import io
import os
import sys
from typing import Any


def shield_output() -> None:
    """Let stdout and stderr of this process take everything, and drop what cannot be written.

    What replaced them already, as a test does to look at them, stays as it is.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - to the end
        elif stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _shielded(stream))


class _ShieldedFile(io.FileIO):
    """An open file that leads to nowhere after the first write that failed.

    Its descriptor does, so that what others write there does no harm, nor the interpreter's flush.
    """

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError:  # no reader any more, no space left, the terminal is gone
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def _shielded(stream: Any) -> io.TextIOWrapper:
    """The same stream, at a file that can be written to at any time."""
    stream.flush()
    file = _ShieldedFile(stream.fileno(), "w", closefd=False)
    # A stream without a buffer (`python -u`) stays so.
    buffer: Any = file if stream.write_through else io.BufferedWriter(file)
    options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
    # A path may have letters that the terminal's encoding lacks.
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(buffer, stream.encoding, errors, **options)
