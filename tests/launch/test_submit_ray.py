"""`forever submit` on a cluster: started once, joined, followed over a broken connection, ended."""

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray")
from conftest import Head
from ray_commands import FOREVER, ON_RAY, sweep_command

from forever.config.run import RunConfig
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


def test_a_sweep_is_submitted_joined_and_followed(
    head: Head, wire: Wire, tmp_path: Path, small_config: RunConfig
) -> None:
    here = tmp_path / "project"
    here.mkdir()
    variants = {"one": {"optim.epochs": 40}, "two": {"optim.lr": 1e-3}}
    words = sweep_command(here, None, small_config, variants)[len(FOREVER) + 1 :]
    words = [word.replace(f"{here}/", "") if "yaml" in word else word for word in words]
    environment = {**head.environment, "PYTHONUNBUFFERED": "1"}
    address = environment.pop("RAY_API_SERVER_ADDRESS")

    def submit(*more: str, url: str = address) -> "subprocess.Popen[str]":
        command = [*FOREVER, "submit", *words, "--address", url, *more]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=here, env=environment, stdout=pipe, stderr=pipe, text=True
        )

    head.await_nodes(1)
    # Somebody without the token gets one line.
    other = environment | {"RAY_AUTH_TOKEN": "0" * 64}
    refused = subprocess.run(
        [*FOREVER, "submit", *words, "--address", address],
        cwd=here, env=other, capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 2, refused.stderr
    assert "refuses this user; set RAY_AUTH_MODE=token" in refused.stderr

    first = submit(url=f"http://127.0.0.1:{wire.port}")
    give_up = time.monotonic() + 120
    while not list(here.glob("out/*/one*/steps.jsonl")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.1)
    second = submit()
    third = submit()
    wire.cut()
    assert third.stdout is not None
    assert third.stdout.readline().startswith("joined")
    third.send_signal(signal.SIGINT)
    outs = [process.communicate(timeout=180) for process in (first, second, third)]
    assert first.returncode == second.returncode == 0, outs
    assert third.returncode == 128 + signal.SIGINT, outs[2]
    assert "the job goes on, the same command follows it" in outs[2][1]
    for process_out in outs[:2]:
        shown = process_out[0]
        assert shown.count("] two, order custom, seed 0: done") == 1, shown
        assert shown.count("] one, order custom, seed 0: done") == 1, shown
        assert "report  " in shown
        assert "\x1e" not in shown
    assert "the connection is lost" in outs[0][0]
    assert "started  forever-toys-" in outs[0][0]
    assert "joined  forever-toys-" in outs[1][0]
    assert code() in outs[0][0]
    for run in here.glob("out/*/*/environment.json"):
        assert json.loads(run.read_text())["code"] == code()
    logs = [path.read_text() for path in here.glob("out/*/*/logs/rank-0.log")]
    assert len(logs) == 2
    assert all(f"code {code()}" in text.splitlines()[0] for text in logs)

    # The exit code is the job's; what failed is started again, with the next number.
    for number in ("", "-2"):
        failed = submit("data.root=/nowhere", "--out", f"{here}/other")
        shown, _ = failed.communicate(timeout=120)
        assert failed.returncode == 2, shown
        assert "nowhere" in shown
        assert f"{number} (code" in shown.splitlines()[0]
