"""Whatever MLflow does, a run is held up for seconds at most and loses nothing."""

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import wait_until
from made_up import base_run, make_up
from marks import MLFLOW_WARNS
from stored import histories, runs

pytest.importorskip("mlflow")
from mlflow import MlflowClient

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError
from forever.launch.local import run_local
from forever.launch.mlflow import sync as mlflow_sync
from forever.launch.mlflow import tracker as mlflow_tracker
from forever.launch.mlflow.sync import sync
from forever.launch.mlflow.tracker import mirrored_run, mirrored_sweep, show_sweep
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep

pytestmark = [*MLFLOW_WARNS, pytest.mark.slow]

Answer = Callable[[socket.socket, threading.Event], None]


class Server:
    """A server on this machine that answers every request alike, and notes that there was one."""

    def __init__(self, answer: Answer) -> None:
        self.asked, self.over, self._answer = threading.Event(), threading.Event(), answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._treat, args=(connection,), daemon=True).start()

    def _treat(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            self.asked.set()
            self._answer(connection, self.over)

    def close(self) -> None:
        self.over.set()
        self._listener.close()


def fail(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")


def hang(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def drip(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.2):  # each byte comes before a client that waits for one gives up
        connection.sendall(b" ")


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()


def sent_once(uri: str, folder: Path, steps: int) -> None:
    """`sync` sends the rest, once."""
    assert sync(folder, uri) == sync(folder, uri) == 1
    (run,) = runs(uri)
    assert run.info.status == "FINISHED"
    for key, points in histories(uri, run).items():
        assert len({step for step, _ in points}) == len(points), key
    assert len(histories(uri, run)["train/loss"]) == steps


@pytest.mark.parametrize("answer", [fail, hang, drip])
def test_a_server_that_fails_holds_no_run_and_loses_nothing(
    answer: Answer,
    uri: str,
    tmp_path: Path,
    base_config: RunConfig,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "r"
    with serving(answer) as server:
        with mirrored_run(folder, server.uri) as tracker:
            result = run_local(base_config, folder, trackers=[tracker])
            assert server.asked.wait(60)
            ended = time.monotonic()
        held = time.monotonic() - ended
    assert held < mlflow_tracker._PATIENCE_S + 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "MLflow" in line)
    assert f"forever sync {folder}" in line
    assert result["matrix"] == json.loads((finished / "result.json").read_text())["matrix"]
    sent_once(uri, folder, result["updates"]["task"])


def test_the_process_ends_however_the_server_hangs(tmp_path: Path, small_config: RunConfig) -> None:
    """The thread that waits for it does not keep the process, or break its end."""
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(small_config.model_dump(mode="json")), encoding="utf-8")
    with serving(drip) as server:
        command = [sys.executable, "-m", "forever.cli.main", "run", str(path)]
        command += ["--out", str(tmp_path / "out"), "--mlflow", server.uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "forever sync" in line


def test_training_never_touches_the_tracker(
    tmp_path: Path, small_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contact that never returns begins with the run, which ends all the same."""
    begun, released = threading.Event(), threading.Event()
    senders: set[threading.Thread] = set()

    def push(*arguments: object) -> None:
        senders.add(threading.current_thread())
        begun.set()
        released.wait()

    monkeypatch.setattr(mlflow_tracker, "push_run", push)
    monkeypatch.setattr(mlflow_tracker, "_PATIENCE_S", 0.1)
    with mirrored_run(tmp_path / "r", "") as tracker:
        assert run_local(small_config, tmp_path / "r", trackers=[tracker])
        assert begun.wait(60)
    assert threading.main_thread() not in senders
    assert all(sender.daemon for sender in senders)
    released.set()
    for sender in senders:
        sender.join(60)


def test_a_database_that_cannot_be_written_is_named_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow itself would try ten times, for 100 seconds."""
    naps: list[float] = []
    monkeypatch.setattr("mlflow.store.db.utils.time.sleep", naps.append)
    path = Path("/proc/none/mlflow.db")  # where nobody may write
    with pytest.raises(WriteError, match=str(path)):
        sync(folder, f"sqlite:///{path}")
    with mirrored_run(folder, f"sqlite:///{path}"):
        pass
    assert str(path) in capsys.readouterr().err
    assert naps == []


def test_a_disk_that_is_full_holds_no_run(
    uri: str, tmp_path: Path, base_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, database = tmp_path / "r", Path(uri.removeprefix("sqlite:///"))
    sizes = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The files of the run are smaller. SQLite gets an error as from a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (database.stat().st_size, sizes[1]))
    try:
        with mirrored_run(folder, uri) as tracker:
            result = run_local(base_config, folder, trackers=[tracker])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, sizes)
    assert f"forever sync {folder}" in capsys.readouterr().err
    sent_once(uri, folder, result["updates"]["task"])


@pytest.mark.parametrize("contact", ["create_run", "log_batch", "log_artifact", "log_inputs"])
def test_a_server_that_dies_in_mid_run_and_comes_back_has_everything_once(
    contact: str, uri: str, tmp_path: Path, base_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did what it was asked to, but its answer is lost; then it is away for a while."""
    left, whole = [3], getattr(MlflowClient, contact)

    def cut(*arguments: Any, **options: Any) -> Any:
        answer = whole(*arguments, **options)
        if left[0]:
            left[0] -= 1
            raise ConnectionError("the server went away")
        return answer

    monkeypatch.setattr(MlflowClient, contact, cut)
    monkeypatch.setattr(mlflow_tracker, "_PATIENCE_S", 60.0)
    for name in ("_EVERY_S", "_AGAIN_S", "_SHARE"):
        monkeypatch.setattr(mlflow_tracker, name, 0.0)
    folder = tmp_path / "r"
    with mirrored_run(folder, uri) as tracker:
        result = run_local(base_config, folder, trackers=[tracker])
    assert left[0] < 3
    left[0] = 0
    sent_once(uri, folder, result["updates"]["task"])


def test_sync_gives_up_on_a_server_that_drips(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_sync, "_SYNC_S", 2.0)
    with serving(drip) as server:
        with pytest.raises(InputError, match="TimeoutError"):
            sync(folder, server.uri)
        assert server.asked.is_set()


def test_a_sweep_outlives_a_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone for a while, also when a run ends."""
    tried: list[Path] = []

    def away(folder: Path, *others: object) -> None:
        tried.append(folder)
        raise ConnectionError("refused")

    monkeypatch.setattr(mlflow_tracker, "push_sweep", away)
    monkeypatch.setattr(mlflow_tracker, "close_sweep", away)
    said: list[str] = []
    with mirrored_sweep(tmp_path, "http://127.0.0.1:9", said.append) as tell:
        wait_until(lambda: bool(said))
        tell()
        time.sleep(0.2)
        assert len(tried) == 1
    assert len(tried) == 2  # at the end
    (line,) = said
    assert f"forever sync {tmp_path}" in line


def test_a_server_that_hangs_holds_the_end_of_a_sweep_for_two_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for what is left of its runs, which were over before, and one for its table."""
    folder = make_up(tmp_path / "toy", Sweep("toy", base_run(), {"base": {}}))
    monkeypatch.setattr(mlflow_tracker, "_SWEEP_PATIENCE_S", 1.0)
    said: list[str] = []
    with serving(hang) as server:
        with mirrored_sweep(folder, server.uri, said.append):
            assert server.asked.wait(60)
            ended = time.monotonic()
        show_sweep(folder, server.uri, read_study(folder), said.append)
        assert time.monotonic() - ended < 2 * 1.0 + 2
    assert all(f"forever sync {folder}" in line for line in said)
