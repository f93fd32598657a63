"""What a process of a run prints and logs is kept in the run's folder, wherever the process ran."""

import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from forever.launch.copies import log_sent
from forever.runs.environment import code
from forever.text import without_credentials

FOLDER = "logs"


class _Tee:
    """A stream of which a file gets a copy without credentials; what keeps the file from being
    written does not keep the stream. There may be no stream."""

    def __init__(self, stream: Any, copy: Any) -> None:
        self.stream, self.copy = stream, copy

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # a full disk, or a thread that outlives the run
            self.copy.write(without_credentials(text))
            self.copy.flush()
        return self.stream.write(text) if self.stream else len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def logged(run: Path, rank: int) -> Iterator[None]:
    """Copy what this process prints and logs during the block into `run/logs/rank-N.log`.

    Its first line names the code, so that ranks can be compared; an error is its last one.
    """
    name = f"{FOLDER}/rank-{rank}.log"
    with log_sent(run, name), _written(run / name, rank):
        yield


@contextmanager
def _written(path: Path, rank: int) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", errors="replace")
    except OSError:  # the run will say what is wrong with its folder
        yield
        return
    with file:
        messages: Any = _Tee(None, file)
        handler = logging.StreamHandler(messages)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)
        output: Any = _Tee(sys.stdout, file)
        errors: Any = _Tee(sys.stderr, file)
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                errors.write(f"{_about(rank)}\n")  # Ray Train has a `print` of its own, which logs
                yield
        except BaseException:
            file.write(without_credentials(traceback.format_exc()))
            raise
        finally:
            logging.getLogger().removeHandler(handler)


def _about(rank: int) -> str:
    """Which process this is, where, and of which code."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    host, process = socket.gethostname(), os.getpid()
    return f"{when} rank {rank} on {host}, process {process}, code {code()}"
