"""MLflow's own server, with both databases that people use, and four writers at once."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from marks import MLFLOW_WARNS
from stored import client, histories, runs

pytest.importorskip("mlflow")

from forever.launch.mlflow.notes import NOTE
from forever.launch.mlflow.pages import free_port, served

pytestmark = [*MLFLOW_WARNS, pytest.mark.slow]


def program(name: str) -> str:
    """A program of Postgres, which Debian keeps off the PATH; skips the test if it is missing."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or next(map(str, reversed(kept)), None)
    if found is None or find_spec("psycopg2") is None:
        pytest.skip(f"{name} of Postgres, or psycopg2, is not installed")
    return found


def unprivileged() -> str | None:
    """The user that Postgres runs as, which must not be root; None: the one who runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("Postgres does not run as root, and there is no other user")


@contextmanager
def postgres() -> Iterator[str]:
    """An empty database of a server that listens to a socket in its own folder alone."""
    initdb, control, user = program("initdb"), program("pg_ctl"), unprivileged()
    folder = tempfile.mkdtemp(prefix="pg")  # where another user may go, and a socket's name fits
    if user is not None:
        shutil.chown(folder, user)

    def do(*command: str) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        subprocess.run(command, check=True, user=user, timeout=120, **quiet)

    try:
        data = f"{folder}/data"
        do(initdb, "-D", data, "-A", "trust", "-U", "forever", "--no-sync", "-E", "UTF8")
        do(control, "-D", data, "-w", "-o", f"-c listen_addresses='' -k {folder} -F", "start")
        try:
            yield f"postgresql+psycopg2://forever@/postgres?host={folder}"
        finally:
            do(control, "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_four_writers_at_once(
    database: str,
    uri: str,
    sweep_folder: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three runs of a sweep and one of its own: all is there, once."""
    monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", str(tmp_path / "kept"))
    writers = [*sorted(path.parent for path in sweep_folder.glob("*/config.yaml")), folder]
    assert len(writers) == 4
    with ExitStack() as open_ones:
        store = uri if database == "sqlite" else open_ones.enter_context(postgres())
        server, _ = open_ones.enter_context(served(store, free_port(0)))
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # of a machine with other work
        command = [sys.executable, "-m", "forever.cli.main", "sync", "--mlflow", server]
        started = [subprocess.Popen([*command, str(writer)]) for writer in writers]
        assert [process.wait(300) for process in started] == [0, 0, 0, 0]
        done = subprocess.run([*command, str(sweep_folder)], timeout=300)
        assert done.returncode == 0
        named = {run.info.run_name: run for run in runs(server)}
        assert len(named) == len(runs(server)) == 5
        assert {run.info.status for run in named.values()} == {"FINISHED"}
        assert all(NOTE in run.data.tags for run in named.values())
        parent = named.pop("parts").info
        for name, run in named.items():
            for key, points in histories(server, run).items():
                assert len({step for step, _ in points}) == len(points), (name, key)
            above = None if name == "forever on toy, seed 0" else parent.run_id
            assert run.data.tags.get("mlflow.parentRunId") == above
        experiments = {run.info.experiment_id for run in named.values()}
        models = client(server).search_logged_models([*experiments])
        assert {model.name for model in models} == {*named}
        assert len(models) == 4
