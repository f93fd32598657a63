"""Ends what a killed driver's Ray leaves behind.

Ray's servers end with the driver that started them. Their agents notice, and then try for a minute
to tell a server that is gone. A process of ours, which is this file, waits for the driver's end and
ends them. It needs /proc; where there is none, the agents end after their minute.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_GRACE_S = 4.0  # workers end by themselves in less
_LOOK_EVERY_S = 0.2


def descendants() -> dict[int, str]:
    """The processes that this one started, and those that they started, with their start times."""
    parents: dict[int, int] = {}
    times: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(folder.name)
        if fields:
            parents[int(folder.name)], times[int(folder.name)] = int(fields[1]), fields[19]
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {pid: times[pid] for pid in ours - {os.getpid()}}


def _fields(pid: int | str) -> list[str]:
    """The state, the parent and so on of a process; nothing if there is none or it is a zombie."""
    with suppress(OSError):
        # The name before them may hold anything, also blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[0] != "Z":
            return fields
    return []


class Guard:
    """Lets processes outlive this one by seconds only, however it ends."""

    def __init__(self, processes: dict[int, str]) -> None:
        command = [sys.executable, "-E", "-S", __file__]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=null, stderr=null, cwd="/"
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(processes).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """See to it that they are gone, now that they should be."""
        self._process.communicate()


def _wait_and_end() -> None:
    """Be the guard's process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the driver
        signal.signal(number, signal.SIG_IGN)
    processes: dict[str, str] = json.loads(sys.stdin.readline() or "{}")
    sys.stdin.read()  # returns when the driver is gone, or calls `end`
    give_up = time.monotonic() + _GRACE_S
    while living := [pid for pid, begun in processes.items() if _fields(pid)[19:20] == [begun]]:
        if time.monotonic() > give_up:
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            break
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    _wait_and_end()
