"""`forever submit` on a cluster: started once, joined, followed over a broken connection, ended."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray")
from helpers import wait_until
from machines import Head
from marks import ON_RAY
from ray_commands import FOREVER, sweep_command

from forever.config.run import RunConfig
from forever.launch.submit.packing import pack
from forever.runs.environment import code

pytestmark = [*ON_RAY, pytest.mark.slow]


class Wire:
    """Connections to the port of a server, which can be cut."""

    def __init__(self, port: int) -> None:
        self.target, self.open = port, list[socket.socket]()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.server.accept()
                there = socket.create_connection(("127.0.0.1", self.target))
                self.open += [here, there]
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections; new ones are made again."""
        for end in self.open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()


@pytest.fixture
def wire(head: Head) -> Iterator[Wire]:
    address = head.environment["RAY_API_SERVER_ADDRESS"]
    wire = Wire(int(address.rpartition(":")[2]))
    yield wire
    wire.cut()
    wire.server.close()


class Project:
    """A folder with a sweep of two runs, from which it is submitted as by several users."""

    def __init__(self, folder: Path, base: RunConfig, head: Head) -> None:
        folder.mkdir()
        variants = {"one": {"optim.epochs": 40}, "two": {"optim.lr": 1e-3}}
        words = sweep_command(folder, None, base, variants)[len(FOREVER) + 1 :]
        # What is sent along is named as it is called there.
        self.words = [word.replace(f"{folder}/", "") if "yaml" in word else word for word in words]
        self.folder, self.environment = folder, {**head.environment, "PYTHONUNBUFFERED": "1"}
        self.address = self.environment.pop("RAY_API_SERVER_ADDRESS")

    def change_code(self) -> str:
        """Put a copy of this program beside the sweep, with a line more; returns its digest."""
        archive = self.folder.with_suffix(".zip")
        pack(self.folder, archive)
        shutil.unpack_archive(archive, self.folder)
        with (self.folder / "forever/__init__.py").open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        command = [sys.executable, "-c", "from forever.runs.environment import code; print(code())"]
        return subprocess.check_output(command, cwd=self.folder, text=True).strip()

    def submit(self, *more: str, address: str = "", **variables: str) -> "subprocess.Popen[str]":
        """`forever submit`, which goes on."""
        return subprocess.Popen(
            [*FOREVER, "submit", *self.words, "--address", address or self.address, *more],
            cwd=self.folder, env={**self.environment, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ended(self, *more: str, **variables: str) -> tuple[int, str, str]:
        """The exit code of `forever submit`, and what it said."""
        process = self.submit(*more, **variables)
        out, errors = process.communicate(timeout=120)
        return process.returncode, out, errors


def test_a_sweep_is_submitted_joined_and_followed(
    head: Head, wire: Wire, tmp_path: Path, small_config: RunConfig
) -> None:
    """By three at once: one whose connection breaks, one, and one who leaves. All processes run the
    copy of the code in the folder that is submitted, and not the one that is installed."""
    project = Project(tmp_path / "project", small_config, head)
    digest = project.change_code()
    assert digest != code()
    head.await_nodes(1)
    first = project.submit(address=f"http://127.0.0.1:{wire.port}")
    wait_until(lambda: first.poll() or [*project.folder.glob("out/*/one*/steps.jsonl")], 120)
    assert first.poll() is None, first.communicate()
    second, third = project.submit(), project.submit()
    wire.cut()
    assert third.stdout is not None
    assert third.stdout.readline().startswith("joined")
    third.send_signal(signal.SIGINT)
    outs = [process.communicate(timeout=180) for process in (first, second, third)]
    assert (first.returncode, second.returncode) == (0, 0), outs
    assert third.returncode == 128 + signal.SIGINT, outs[2]
    assert "the job goes on, the same command follows it" in outs[2][1]
    for shown, _ in outs[:2]:
        assert shown.count("] two, order custom, seed 0: done") == 1, shown
        assert shown.count("] one, order custom, seed 0: done") == 1, shown
        assert "report  " in shown
        assert "\x1e" not in shown
    assert "the connection is lost" in outs[0][0]
    assert "started  forever-toys-" in outs[0][0]
    assert "joined  forever-toys-" in outs[1][0]
    assert digest in outs[0][0]
    for run in project.folder.glob("out/*/*/environment.json"):
        assert json.loads(run.read_text())["code"] == digest
    logs = [path.read_text() for path in project.folder.glob("out/*/*/logs/rank-0.log")]
    assert len(logs) == 2
    assert all(f"code {digest}" in text.splitlines()[0] for text in logs)


def test_what_a_cluster_refuses_and_a_job_that_fails(
    head: Head, tmp_path: Path, small_config: RunConfig
) -> None:
    """The exit code is the job's; what failed is started again, with the next number."""
    project = Project(tmp_path / "project", small_config, head)
    head.await_nodes(1)
    number, _, errors = project.ended(RAY_AUTH_TOKEN="0" * 64)
    assert number == 2, errors
    assert "refuses this user; set RAY_AUTH_MODE=token" in errors
    for ending in ("", "-2"):
        number, shown, errors = project.ended("data.root=/nowhere")
        assert number == 2, (shown, errors)
        assert "nowhere" in shown
        assert f"{ending} (code" in shown.splitlines()[0]
