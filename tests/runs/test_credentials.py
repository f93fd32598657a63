"""A password in the address of a tracking server gets into no file, no message and no traceback."""

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import saved

from forever.config.run import RunConfig
from forever.runs.tracking import Tracker, tell
from forever.text import without_credentials

SECRET = "s3cret-pw"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://me:s3cret-pw@host:5000/x", "http://***@host:5000/x"),
        ("--mlflow=https://me:s3cret-pw@host", "--mlflow=https://***@host"),
        ("postgresql+psycopg2://me:s3cret-pw@host/db", "postgresql+psycopg2://***@host/db"),
        ("http://me:p@s3cret-pw/s3cret-pw@host/x", "http://***@host/x"),
        ("http://s3cret-pw@host", "http://***@host"),
        (f"http://me:{'s3cret-pw' * 50}@host", "http://***@host"),
        ("pg://h/db?user=me&password=s3cret-pw&ssl=1", "pg://h/db?user=me&password=***&ssl=1"),
        (
            "a (http://me:s3cret-pw@a/b) and http://me:s3cret-pw@c",
            "a (http://***@a/b) and http://***@c",
        ),
        ("me:s3cret-pw@host:5000", "***@host:5000"),
        ("--mlflow=me:p@s3cret-pw@host", "--mlflow=***@host"),
        ("https://h/x?X-Amz-Signature=s3cret-pw&a=1", "https://h/x?X-Amz-Signature=***&a=1"),
        ("https://h/x?sig=s3cret-pw;b", "https://h/x?sig=***;b"),
        ("https://h/x?a=1&access_token=s3cret-pw", "https://h/x?a=1&access_token=***"),
        ("HF_TOKEN=s3cret-pw forever", "HF_TOKEN=*** forever"),
        ("Invalid token hf_s3cretpws3cretpw!", "Invalid token ***!"),
        ("Authorization: Bearer s3cret-pw", "Authorization: Bearer ***"),
        ("evaluation.max_new_tokens=3 method.max_tokens=100 RUN@TASK out/a:b@2", None),
        ("models/hf_llama_2_7b_converted", None),
        ("Basic reasoning. {q}", None),
        ("nothing: http://host/x?y=1, sqlite:///a.db runs/x@2", None),
    ],
)
def test_addresses_lose_their_credentials(text: str, clean: str | None) -> None:
    assert without_credentials(text) == (text if clean is None else clean)


def test_what_the_environment_keeps_secret_is_known_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "nothing-secret")
    text = f"request failed: key {SECRET}, nothing-secret"
    assert without_credentials(text) == "request failed: key ***, nothing-secret"


def test_the_error_of_a_tracker_is_told_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(Tracker):
        def step(self, line: object) -> None:
            raise RuntimeError(f"no answer from http://me:{SECRET}@host/api")

    tell([Failing()], "step", {})
    assert "no answer from http://***@host/api" in capsys.readouterr().err


class Refusing(BaseHTTPRequestHandler):
    """Answers everything with 401 and keeps who asked."""

    asked: list[str | None] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization"))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    """The host and port of a server that refuses everything."""
    Refusing.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def forever(folder: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """The exit code and all output."""
    command = [sys.executable, "-m", "forever.cli.main", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
@pytest.mark.slow
@pytest.mark.parametrize(("by", "answers"), [("option", True), ("environment", False)])
def test_a_run_leaves_no_password(
    small_config: RunConfig, tmp_path: Path, server: str, by: str, answers: bool
) -> None:
    saved(small_config, tmp_path / "toy.yaml")
    address = server if answers else "127.0.0.1:9"
    uri = f"http://somebody:{SECRET}@{address}"
    options = ["--mlflow", uri] if by == "option" else []
    environment = {} if by == "option" else {"MLFLOW_TRACKING_URI": uri}
    run = ["run", "toy.yaml", "--out", "out", *options]
    code, printed = forever(tmp_path, environment, *run)
    assert code == 0, printed
    assert "`forever sync " in printed
    assert SECRET not in printed
    (folder,) = (tmp_path / "out").iterdir()
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    assert (folder / "environment.json").is_file()

    code, printed = forever(tmp_path, environment, "sync", str(folder), *options)
    assert code == 2
    assert f"error: MLflow at http://***@{address} fails (MlflowException: " in printed
    assert SECRET not in printed
    assert "Traceback" not in printed
    token = base64.b64encode(f"somebody:{SECRET}".encode()).decode()
    assert {*Refusing.asked} == ({f"Basic {token}"} if answers else set())  # it still arrives


def test_a_traceback_has_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from forever.cli.main import main

    def fail(name: str) -> None:
        try:
            raise RuntimeError(f"inner http://me:{SECRET}@host")
        except RuntimeError as error:
            raise RuntimeError(f"outer http://me:{SECRET}@host") from error

    monkeypatch.setattr("forever.sweeps.named_runs.load_run", fail)
    monkeypatch.setattr(sys, "argv", ["forever", "run", "mini/forever"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "inner http://***@host" in printed
    assert "outer http://***@host" in printed
    assert SECRET not in printed
