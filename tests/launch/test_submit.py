"""What a job takes along, its name, its forms, and a view of it that outlives connections."""

import io
import json
import os
import shlex
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus
from rich.console import Console
from typer.testing import CliRunner

from forever.cli.main import app
from forever.cli.options import Launch, parse_workers
from forever.errors import InputError
from forever.launch.fleet import Fleet, Share
from forever.launch.ray_cluster import Setting, cluster
from forever.launch.submit import follow as following
from forever.launch.submit import jobs, packing
from forever.launch.submit.follow import Screen, follow
from forever.launch.submit.jobs import connect, start_or_join
from forever.launch.submit.packing import LIMIT, pack
from forever.launch.submit.pinned import CODE, check_code
from forever.launch.submit.submission import Submission
from forever.runs.environment import code
from forever.sweeps.sweep import Sweep
from forever.sweeps.table import FRAME, FRAMES, SweepTable

ROOT = Path(__file__).parents[2]
SUBMISSION = Submission("toys", ("toys.yaml",), "0123456789ab", "c0de")


# ---- the archive


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with sweeps, and with what no job needs."""
    files = {
        "mine.yaml": "x", "data/a.json": "{}", "data/raw/b.bin": "b" * 9, "note.txt": "n",
        ".git/HEAD": "h", ".venv/bin/python": "p", "runs/a/result.json": "r", "mlflow.db": "m",
        "mlartifacts/a": "a", "code/__pycache__/x.pyc": "c", "code/x.py": "", "code/keep.tmp": "",
        "code/drop.tmp": "", ".gitignore": "note.txt\n*.tmp\n", "code/.gitignore": "!keep.tmp\n",
        "data/.gitignore": "/raw\n",
    }  # fmt: skip
    folder = tmp_path / "project"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as content:
        return {*content.namelist()}


def test_a_job_takes_along_what_it_needs(project: Path, tmp_path: Path) -> None:
    """The same files make the same bytes, whenever and in whatever order they were written."""
    pack(project, tmp_path / "a.zip")
    known = names(tmp_path / "a.zip")
    mine = {name for name in known if not name.startswith("forever/")}
    kept = {"mine.yaml", "data/a.json", "code/x.py"}
    assert mine - {".gitignore", "code/.gitignore", "data/.gitignore"} == kept
    (project / "mine.yaml").write_text("x")
    pack(project, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_linked_folder_stays_here_and_is_named(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What .gitignore names is not missed."""
    for name in ("linked", "dropped.tmp"):
        (project / name).symlink_to(project / "data")
    (project / "linked.json").symlink_to(project / "data/a.json")
    pack(project, tmp_path / "a.zip")
    assert "linked folders do not travel with the job: linked;" in capsys.readouterr().err
    assert {name for name in names(tmp_path / "a.zip") if "linked" in name} == {"linked.json"}


def test_a_job_takes_this_program_along(project: Path, tmp_path: Path) -> None:
    """With its sweeps and its digest; a checkout has it anyway."""
    pack(project, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as content:
        content.extractall(tmp_path / "there")
    ask = "from forever.runs.environment import code; from forever.sweeps.files import load_sweep; "
    ask += "import forever; print(code(), forever.__file__, load_sweep('components').name)"
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, '.'); {ask}"]
    said = subprocess.run(command, cwd=tmp_path / "there", capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    digest, file, sweep = said.stdout.split()
    assert (digest, sweep) == (code(), "components")
    assert Path(file).resolve().is_relative_to(tmp_path / "there")
    pack(ROOT, tmp_path / "checkout.zip")
    assert {"forever/__init__.py", "ablations/components.yaml"} <= names(tmp_path / "checkout.zip")
    assert not any("shipped" in name for name in names(tmp_path / "checkout.zip"))


def test_an_archive_that_is_too_large_names_the_largest_files(
    project: Path, tmp_path: Path
) -> None:
    (project / "data/large.bin").write_bytes(bytes(3 * 2**20))
    (project / "data/larger.bin").write_bytes(bytes(5 * 2**20))
    largest = r"data/larger.bin \(5.0 MiB\), .*data/large.bin \(3.0 MiB\)"
    with pytest.raises(
        InputError, match=rf"a cluster takes 0.0 MiB; name in .gitignore.*{largest}"
    ):
        pack(project, tmp_path / "a.zip", limit=1000)
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE as taken

    assert taken == LIMIT  # Ray's dashboard refuses a body of so many bytes


# ---- the command


def submit(*words: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, ["submit", *words], env=env)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to submit from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("variants: {base: {}, late: {method.days: [4]}}")
    return tmp_path


SHARED = ("--out", "/shared/runs")
JOB = ("--render", "job")


def rendered_id(*words: str) -> str:
    done = submit(*words, *SHARED, "--render", "job")
    assert done.exit_code == 0, done.output
    return shlex.split(done.stdout)[6]


def test_the_name_follows_from_what_the_job_does(here: Path) -> None:
    first = rendered_id("mine.yaml", "--seeds", "0,1")
    assert first.startswith("forever-mine-")
    assert rendered_id("mine.yaml", "--seeds", "0,1") == first
    others = {rendered_id("mine.yaml"), rendered_id("mine.yaml", "--seeds", "0,1", "seed=3")}
    others.add(rendered_id("mine.yaml", "--seeds", "0,1", "--env", "A=1"))
    (here / "mine.yaml").write_text("variants: {base: {}, late: {method.days: [7]}}")
    others.add(rendered_id("mine.yaml", "--seeds", "0,1"))
    assert len(others | {first}) == 5


@pytest.mark.parametrize("out", ["/shared/runs", "s3://bucket/runs"])
def test_a_submission_as_the_plain_command(here: Path, out: str) -> None:
    address = ("--address", "http://127.0.0.1:1")
    words = ("mine.yaml", "--seeds", "0,1", "--out", out, "optim.lr=1e-3")
    done = submit(*words, "--env", "A=b c", "--render", "job", *address)
    assert done.exit_code == 0, done.output
    command = shlex.split(done.stdout)
    begin = ["ray", "job", "submit", *address, "--submission-id", command[6]]
    assert command[:7] == begin
    variables = json.loads(command[command.index("--runtime-env-json") + 1])["env_vars"]
    assert variables[CODE] == code()
    assert variables["A"] == "b c"
    job = command[command.index("--") + 1 :]
    assert job[:4] == ["python", "-m", "forever.cli.start", "sweep"]
    assert job[4:] == [*words]


def test_a_submission_as_a_file_for_sbatch(here: Path) -> None:
    done = submit("mine.yaml", *SHARED, "--env", "A=it's", "--render", "slurm")
    assert done.exit_code == 0, done.output
    (here / "job.sh").write_text(done.stdout)
    subprocess.run(["bash", "-n", "job.sh"], check=True)
    # What srun would start, with Slurm's commands played by functions.
    played = "scontrol() { echo one; echo two; }\nsrun() { printf '<%s>' \"$@\"; echo; echo $A; "
    played += "echo $SRUN_CPUS_PER_TASK; }\n"
    text = done.stdout.replace("set -euo pipefail\n", f"set -euo pipefail\n{played}")
    environment = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_NUM_NODES": "2", "PATH": "/usr/bin:/bin"}
    environment["SLURM_CPUS_PER_TASK"] = "8"
    out = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    started, variable, cores = out.stdout.splitlines()
    assert started.startswith("<ray><symmetric-run><--address><one:6379><--min-nodes><2>")
    job = started.partition("<-->")[2]
    assert job.startswith("<env><RAY_ADDRESS=one:6379>")  # else it would start another Ray
    assert "><python><-m>" in job
    assert job.endswith("<sweep><mine.yaml><--out></shared/runs>")
    assert (variable, cores) == ("it's", "8")


def test_slurms_signal_reaches_the_sweep(here: Path) -> None:
    """srun, told to end, kills what it started at once; so the sweep alone is told, and saves."""
    text = submit("mine.yaml", *SHARED, "--render", "slurm").stdout
    played = """
        scontrol() { echo one; }
        srun() {
            while [ "$1" != -- ]; do shift; done; shift
            "$@" & started=$!
            trap 'kill -KILL "$started"' TERM
            wait "$started"
        }
        """
    options = "set -euo pipefail\n"
    (here / "job.sh").write_text(text.replace(options, options + played))
    os.mkfifo(here / "go")
    save = "echo told; read -t 20 < <(cat go); echo saved; exit"
    (here / "python").write_text(f"#!/bin/bash\ntrap '{save}' TERM\necho runs\nsleep 60 & wait\n")
    (here / "python").chmod(0o755)
    environment = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_NUM_NODES": "1", "TMPDIR": str(here)}
    environment["PATH"] = f"{here}:/usr/bin:/bin"
    with subprocess.Popen(
        ["bash", "job.sh"], env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "runs\n"
        job.terminate()
        assert job.stdout.readline() == "told\n"
        with pytest.raises(subprocess.TimeoutExpired):  # Slurm would end what is left
            job.wait(1)
        (here / "go").write_text("\n")
        assert job.stdout.readline() == "saved\n"


def test_slurms_signal_before_the_sweep_has_begun_ends_the_job(here: Path) -> None:
    text = submit("mine.yaml", *SHARED, "--render", "slurm").stdout
    played = "scontrol() { echo one; }\nsrun() { echo starts; exec sleep 60; }\n"
    options = "set -euo pipefail\n"
    (here / "job.sh").write_text(text.replace(options, options + played))
    environment = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_NUM_NODES": "1", "TMPDIR": str(here)}
    with subprocess.Popen(
        ["bash", "job.sh"], env={**environment, "PATH": "/usr/bin:/bin"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stderr is not None
        assert job.stdout.readline() == "starts\n"
        job.terminate()
        assert job.wait(20) != 0
        assert "kill:" not in job.stderr.read()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["mine.yaml"], "such as --out /shared/runs, or an address such as s3://bucket/runs"),
        (["/etc/x.yaml", *SHARED], "/etc/x.yaml"),
        (["mine.yaml", *SHARED], "submit needs --address URL"),
        (["mine.yaml", *SHARED, "--address", "127.0.0.1:6379"], "the dashboard's URL is expected"),
        (["mine.yaml", *SHARED, "--address", "http://127.0.0.1:9"], "no cluster answers there"),
        (["mine.yaml", *SHARED, "--render", "jop"], "unknown form 'jop'"),
        (["mine.yaml", *SHARED, "--env", "A"], "NAME=VALUE is expected"),
        (["mine.yaml", *SHARED, "optim.lrr=1"], "lrr"),
        (["mine.yaml", *SHARED, "--seeds", "a"], "whole numbers"),
        (["--list", *SHARED], "submit needs a sweep"),
        (["mine.yaml", *SHARED, "--workers", "abc", *JOB], "--workers 'abc': a number"),
        (["mine.yaml", *SHARED, "--workers", "4-1", *JOB], "--workers '4-1': a number"),
        (["mine.yaml", *SHARED, "--device", "foo", *JOB], "unknown device 'foo'"),
        (
            ["mine.yaml", *SHARED, "--workers", "1-4", "--gpus-per-run", "0.5", *JOB],
            "workers of one run cannot share a GPU",
        ),
        (["mine.yaml", *SHARED, *JOB, "--address", "127.0.0.1:8265"], "dashboard's URL is expect"),
        (["mine.yaml", *SHARED, *JOB, "--values", "mine.yaml"], "--render rayjob alone"),
        (["mine.yaml", *SHARED, *JOB, "--env", "FOREVER_CODE="], "--env FOREVER_CODE: the job's"),
        (["mine.yaml", *SHARED, *JOB, "--env", "X=http://me:pw@h"], "X=http://***@h: what is"),
        (["mine.yaml", *SHARED, *JOB, "--env", "MY_PASSWORD=x"], "MY_PASSWORD=***: what is"),
        (["mine.yaml", *SHARED, *JOB, "--mlflow", "sqlite:///m.db"], "--mlflow sqlite:///m.db: it"),
        (["mine.yaml", *SHARED, *JOB, "--mlflow", "mlruns"], "set MLFLOW_TRACKING_URI on the"),
        (
            ["components", "--out", "/data/runs", "--render", "rayjob"],
            "--out /data/runs: a RayJob's pods share /shared alone",
        ),
        (
            ["mine.yaml", *SHARED, "--mlflow", "http://me:pw@host", "--render", "job"],
            "http://***@host: what is shown as *** looks like a password",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    here: Path, words: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    done = submit(*words)
    assert isinstance(done.exception, InputError), done.output
    assert line in str(done.exception)


def test_a_path_that_is_not_sent_along_is_refused(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub/other.yaml").write_text("variants: {base: {}, late: {method.days: [4]}}")
    for words in (["mine.yaml", "--working-dir", "sub"], [str(here / "mine.yaml")]):
        done = submit(*words, *SHARED, "--render", "job")
        assert "is not sent along" in str(done.exception), words
    done = submit("sub/other.yaml", *SHARED, *JOB, "--working-dir", ".")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("place", ["runs/other.yaml", "kept.yaml"])
def test_a_sweep_that_is_not_packed_is_refused(here: Path, place: str) -> None:
    """Slurm's file sends nothing along, so there it is found."""
    (here / "runs").mkdir()
    (here / ".gitignore").write_text("kept.yaml\n")
    (here / "mine.yaml").rename(here / place)
    assert "is not sent along" in str(submit(place, *SHARED, *JOB).exception)
    done = submit(place, *SHARED, "--render", "slurm")
    assert done.exit_code == 0, done.output


def test_a_rayjob_may_write_to_an_address(here: Path) -> None:
    for out in ("s3://bucket/runs", "/shared"):
        done = submit("components", "--out", out, "--render", "rayjob")
        assert done.exit_code == 0, done.output


def test_mlflow_may_be_an_address_or_a_file_that_all_machines_share(here: Path) -> None:
    for store in ("off", "sqlite:////shared/m.db", "/shared/mlruns", "http://host:5000"):
        done = submit("mine.yaml", *SHARED, *JOB, "--mlflow", store)
        assert done.exit_code == 0, done.output


def test_the_plain_command_has_the_folder_that_was_given(here: Path) -> None:
    (here / "sub").mkdir()
    command = shlex.split(submit("components", *SHARED, *JOB, "--working-dir", "sub").stdout)
    assert command[command.index("--working-dir") + 1] == "sub"


def test_other_code_than_the_jobs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver, and by each process that Ray starts for a run."""
    monkeypatch.delenv(CODE, raising=False)
    check_code()
    monkeypatch.setenv(CODE, code())
    check_code()
    monkeypatch.setenv(CODE, "0ther")
    refusal = "runs here, and the job was submitted with 0ther; give all machines the same"
    with pytest.raises(InputError, match=refusal), cluster(dashboard=False):
        pass
    with pytest.raises(InputError, match=refusal):
        Setting(Fleet(), Share(1, 0, "cpu", {}, 1)).enter()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, (None, None)), ("0", (0, None)), ("3", (3, None)), ("1-4", (4, 1)), ("2-2", (2, None))],
)
def test_workers_are_a_number_or_a_range(text: str | None, expected: tuple[Any, Any]) -> None:
    fleet = Launch(workers=text, gpus_per_run=None, ray_logs=False, device="cpu").fleet()
    assert (fleet.workers, fleet.least) == expected


@pytest.mark.parametrize("text", ["-1", "a", "4-1", "0-3", "1-", "1-2-3", ""])
def test_no_number_of_workers(text: str) -> None:
    with pytest.raises(InputError, match=f"--workers '{text}': a number of workers"):
        parse_workers(text)


# ---- jobs that are there


def job(number: str, status: JobStatus, exit_code: int | None = None) -> Any:
    return SimpleNamespace(
        submission_id=f"{SUBMISSION.id}{number}", status=status, driver_exit_code=exit_code,
        message="it failed",
    )  # fmt: skip


class Server:
    """A cluster's job server, as far as a submission asks it."""

    def __init__(self, *known: Any) -> None:
        self.known, self.submitted = [*known], list[Any]()

    def get_address(self) -> str:
        return "http://head"

    def list_jobs(self) -> list[Any]:
        return self.known

    def submit_job(self, **request: Any) -> None:
        if any(each.submission_id == request["submission_id"] for each in self.known):
            raise RuntimeError("already exists")
        self.submitted.append(request)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], ("", "started")),
        ([job("", JobStatus.RUNNING)], ("", "joined")),
        ([job("", JobStatus.PENDING)], ("", "joined")),
        ([job("", JobStatus.SUCCEEDED)], ("", "done")),
        ([job("", JobStatus.FAILED)], ("-2", "started")),
        ([job("-2", JobStatus.STOPPED), job("", JobStatus.FAILED)], ("-3", "started")),
        ([job("-2", JobStatus.RUNNING), job("", JobStatus.FAILED)], ("-2", "joined")),
        ([job("0", JobStatus.RUNNING), job("-x", JobStatus.RUNNING)], ("", "started")),
    ],
)
def test_what_runs_or_is_done_is_joined_and_what_failed_goes_on(
    known: list[Any], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jobs, "pack", lambda folder, archive: archive.touch())
    server: Any = Server(*known)
    number, how = expected
    assert start_or_join(server, SUBMISSION, tmp_path) == (f"{SUBMISSION.id}{number}", how)
    assert len(server.submitted) == (how == "started")


def test_of_two_calls_at_once_one_joins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server: Any = Server()

    def slow(folder: Path, archive: Path) -> None:
        server.known.append(job("", JobStatus.RUNNING))  # the other one was faster

    monkeypatch.setattr(jobs, "pack", slow)
    assert start_or_join(server, SUBMISSION, tmp_path) == (SUBMISSION.id, "joined")


def test_of_a_job_that_is_done_the_way_to_run_it_again_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Ended(JobStatus.SUCCEEDED, "done", "table\n")
    monkeypatch.setattr(jobs, "connect", lambda address: job)
    monkeypatch.setattr(jobs, "start_or_join", lambda *arguments: ("x", "done"))
    done = submit("components", *SHARED, "--address", "http://head")
    assert done.exit_code == 0, done.output
    assert "after `ray job delete x --address http://head` the same command" in done.stdout
    assert done.stdout.endswith("table\n")


# ---- what answers at an address

VERSION = {"GET /api/version": (200, '{"ray_version": "2.60.0"}')}
EMPTY = {**VERSION, "GET /api/jobs/": (200, "[]")}
Answers = Mapping[str, tuple[int, str]]


class Web:
    """A web server with few answers, one of which may be a connection that ends; 404 else."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        web = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = f"{self.command} {self.path}"
                found = [a for begin, a in web.answers.items() if asked.startswith(begin)]
                status, text = found[0] if found else (404, "not here")
                self.close_connection = True
                if status:
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    web = Web()
    yield web
    web.server.shutdown()
    web.server.server_close()


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ({}, "no Ray dashboard is there"),
        ({"GET /": (200, "<html>")}, "no Ray dashboard is there"),
        ({"GET /": (200, "{}")}, "no Ray dashboard is there"),
        ({"GET /": (502, "")}, "no Ray dashboard is there"),
        ({"GET /": (0, "")}, "no cluster answers there"),
        ({**VERSION, "GET /api/jobs/": (0, "")}, "does not answer .*; the same command goes on"),
        ({**VERSION, "GET /api/jobs/": (500, "")}, "does not answer .*; the same command goes on"),
        ({**VERSION, "GET /api/jobs/": (400, "")}, "refuses the job .*400"),
        ({**EMPTY, "PUT /": (413, "")}, r"takes less; name in .gitignore.*: mine.yaml \(0.0 MiB"),
        ({**EMPTY, "PUT /": (0, "")}, "does not answer .*; the same command goes on"),
    ],
)
def test_a_connection_or_a_server_at_fault_is_named_in_a_line(
    web: Web, here: Path, answers: Answers, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_program", dict)
    web.answers = answers
    with pytest.raises(InputError, match=line) as raised:
        start_or_join(connect(web.address), SUBMISSION, here)
    assert web.address in str(raised.value)
    assert "\n" not in str(raised.value)


# ---- the view

LOG = (
    "[1/2] base: done\n"
    + f"{FRAME}{json.dumps({'running': [['late', 'running']], 'summary': '1 done'})}\n"
)
LOG += "[2/2] late: done\n"


class Stream:
    """A log of which each connection shows more, cut anywhere, and then breaks."""

    def __init__(self, *ends: Any) -> None:
        self.ends, self.calls = [*ends], 0

    def get_address(self) -> str:
        return "http://head"

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        end = self.ends[self.calls]
        self.calls += 1
        if isinstance(end, Exception):
            raise end
        for start in range(0, end, 7):
            yield LOG[start : min(start + 7, end)]
        if end < len(LOG):
            raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")

    def get_job_logs(self, name: str) -> str:
        return LOG

    def get_job_info(self, name: str) -> Any:
        return job("", JobStatus.FAILED, 3)


class Ended(Stream):
    """A job that ended before its log was read."""

    def __init__(self, status: JobStatus, message: str, log: str | Exception = "") -> None:
        super().__init__()
        self.details = job("", status)
        self.details.message, self.log = message, log

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield ""

    def get_job_logs(self, name: str) -> str:
        if isinstance(self.log, Exception):
            raise self.log
        return self.log

    def get_job_info(self, name: str) -> Any:
        return self.details


def watch(monkeypatch: pytest.MonkeyPatch, stream: Any, terminal: bool = False) -> tuple[int, str]:
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    time = SimpleNamespace(sleep=sleep, monotonic=lambda: clock.now)
    monkeypatch.setattr(following, "time", time)
    text = io.StringIO()
    with Screen(Console(file=text, force_terminal=terminal, width=80)) as screen:
        return follow(stream, "x", screen), text.getvalue()


def test_a_view_goes_on_where_the_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a line, and of what was already shown; each line comes once."""
    refused = ConnectionError("refused")
    stream = Stream(9, refused, 5, 40, refused, RuntimeError("status code 502"), len(LOG))
    exit_code, text = watch(monkeypatch, stream)
    shown = [line for line in text.splitlines() if "the connection is lost" not in line]
    assert (exit_code, shown) == (
        3,
        ["[1/2] base: done", "[2/2] late: done", "failed  x: it failed"],
    )
    assert text.count("the connection is lost") == 1


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (Ended(JobStatus.SUCCEEDED, "done", "a\nb"), (0, "a\nb\n")),
        (Ended(JobStatus.FAILED, "No space\nleft"), (1, "failed  x: No space left\n")),
        (Ended(JobStatus.STOPPED, "told", "a\nb"), (1, "a\nb\nstopped  x: told\n")),
        (
            Ended(JobStatus.FAILED, "gone", RuntimeError("status code 500")),
            (1, "the end of the log cannot be read: status code 500\nfailed  x: gone\n"),
        ),
    ],
)
def test_how_a_job_ended_is_shown(
    stream: Any, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its log, and why it failed, also where it has written none."""
    assert watch(monkeypatch, stream) == expected


def test_on_a_terminal_the_trials_that_run_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = watch(monkeypatch, Stream(len(LOG)), terminal=True)
    assert "late  running" in text
    assert FRAME not in text


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("status code 404: Job x does not exist"), "no longer knows x; the same"),
        (RuntimeError("status code 404: <html>"), "does not show x .*; the same command follows"),
        (AuthenticationError("no"), "http://head refuses this user; set RAY_AUTH_MODE=token"),
    ],
)
def test_a_job_that_cannot_be_followed(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=line):
        watch(monkeypatch, Stream(error))


def test_a_cluster_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(*[ConnectionError("refused")] * 1000)
    with pytest.raises(InputError, match="http://head has not answered for 600 s; the"):
        watch(monkeypatch, stream)


def test_a_sweep_tells_its_state_to_who_follows(
    base_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes is what a view understands."""
    monkeypatch.setenv(FRAMES, "1")
    (trial,) = Sweep("toys", base_config, {"base": {}}).trials()
    text = io.StringIO()
    with SweepTable([trial], console=Console(file=text, width=120)) as table:
        table.started(trial.key)
        table.advanced(trial.key, 1, 3, 50.0, 2)
        table.ended(trial.key, "done")
    lines = [line for line in text.getvalue().split("\n") if line.startswith(FRAME)]
    states = [json.loads(line[1:]) for line in lines]
    assert [state["running"][0][1:4] for state in states[:2]] == [
        ["running", "", ""],
        ["running", "stage 1/3", "OP 50.0, 2 replays"],
    ]
    assert states[2] == {"running": [], "summary": "1 done"}
    shown = io.StringIO()
    with Screen(Console(file=shown, force_terminal=True, width=120)) as screen:
        screen.show(0, text.getvalue())
    assert "stage 1/3" in shown.getvalue()
