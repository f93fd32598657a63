"""`forever submit`: what travels with a job, how it is called, and how it is followed."""

import shlex
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")
from ray._private.runtime_env.packaging import create_package
from ray.job_submission import JobStatus
from typer.testing import CliRunner

from forever.cli.main import app
from forever.errors import InputError
from forever.launch.cluster import CODE, check_code
from forever.launch.submit import stage
from forever.runs.environment import code

ROOT = Path(__file__).parents[2]
SECRETS = [".env", ".env.local", "code/.netrc", ".npmrc", ".pypirc", ".ssh/config", ".kube/config"]
SECRETS += ["code/.aws/credentials", "a.pem", "code/b.KEY", "c[1]*.pem", "id_rsa", "id_dsa.old"]
SECRETS += ["id_ecdsa", "id_ed25519", "my_credentials.json", ".git-credentials", "gcloud/token"]
WANTED = {"mine.yaml", "data/a.json", "code/x.py", "code/keep.tmp", "key.txt"}


# ---- what travels: by Ray's own packaging


def write(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a sweep, what no job needs, and secrets of each kind."""
    folder = tmp_path / "project"
    write(folder, *WANTED, *SECRETS, "runs/a/result.json", ".git/HEAD", "note.txt", "code/drop.tmp")
    write(folder, ".gitignore", text="note.txt\n")
    write(folder, "code/.gitignore", text="*.tmp\n!keep.tmp\n")
    write(folder, "data/account.json", text='{"type": "service", "private_key": "k"}')
    return folder


def ray_sends(folder: Path, *excludes: str) -> set[str]:
    """What Ray packs of a folder, this program aside."""
    archive = folder.with_suffix(".zip")
    archive.unlink(missing_ok=True)
    create_package(str(folder), archive, include_gitignore=True, excludes=[*excludes])
    with zipfile.ZipFile(archive) as content:
        return {name for name in content.namelist() if not name.startswith("forever/")}


def test_a_job_takes_along_the_folder_without_secrets(project: Path, tmp_path: Path) -> None:
    write(project, ".env ")  # no pattern of Ray's matches a name that ends with a space
    stays = stage(project, tmp_path / "staged")
    assert ray_sends(tmp_path / "staged") == WANTED
    folders = {".ssh/config": ".ssh", ".kube/config": ".kube", "code/.aws/credentials": "code/.aws"}
    folders["gcloud/token"] = "gcloud"
    assert set(stays) == {folders.get(name, name) for name in SECRETS} | {
        "data/account.json",
        ".env ",
    }


def test_links_stay_unless_they_lead_to_a_file_that_travels(project: Path, tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/passwords")
    links = {"out.txt": tmp_path / "elsewhere/passwords", "out": tmp_path / "elsewhere"}
    links |= {"env.txt": ".env", "head": ".git/HEAD", "loop": ".", "data/up": "..", "gone": "none"}
    for name, target in {**links, "fine.json": "data/a.json"}.items():
        (project / name).symlink_to(target)
    # Ray itself sends an excluded file by a link that leads to it.
    by_ray = ray_sends(project, "/.env", "/loop", "/data/up")
    assert {"env.txt", "out/passwords"} <= by_ray
    assert ".env" not in by_ray
    assert {*links} <= {*stage(project, tmp_path / "staged")}
    assert ray_sends(tmp_path / "staged") == WANTED | {"fine.json"}


def test_the_rayignore_that_is_shipped_keeps_secrets_back(project: Path, tmp_path: Path) -> None:
    """With `ray job submit`; only what stands inside of files is not seen."""
    write(project, ".rayignore", text=(ROOT / ".rayignore").read_text())
    (project / "code/b.KEY").unlink()  # patterns of Ray's know lower case from upper case
    ignore_files = {".gitignore", "code/.gitignore", ".rayignore"}
    assert ray_sends(project, ".git") == WANTED | ignore_files | {"data/account.json"}


def test_a_job_takes_this_program_along(project: Path, tmp_path: Path) -> None:
    """With its sweeps, and instead of another folder of this name; a checkout has it anyway."""
    write(project, "forever/__init__.py", text="raise SystemExit(3)")
    stage(project, tmp_path / "job")
    ask = "from forever.runs.environment import code; from forever.sweeps.files import load_sweep; "
    ask += "print(code(), load_sweep('components').name)"
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, '.'); {ask}"]
    done = subprocess.run(command, cwd=tmp_path / "job", capture_output=True, text=True)
    assert done.stdout.split() == [code(), "components"], done.stderr
    stage(ROOT, tmp_path / "checkout")
    assert (tmp_path / "checkout/ablations/components.yaml").is_file()
    assert not (tmp_path / "checkout/forever/sweeps/shipped").exists()


# ---- the command, with a cluster that is played

ADDRESS = "http://127.0.0.1:9"  # at which nobody listens
SHARED = ("--out", "/shared/runs")


class Cluster:
    """Ray's client for a cluster of which the log and the end of a job are known."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.log = ["[1/2] base", ": done\n", "\x1b[2J\n"]
        self.end: tuple[JobStatus, int | None] = (JobStatus.SUCCEEDED, 0)

    def get_address(self) -> str:
        return ADDRESS

    def list_jobs(self) -> list[Any]:
        return [*self.jobs.values()]

    def submit_job(self, *, submission_id: str, **given: Any) -> None:
        given["status"] = JobStatus.RUNNING
        self.jobs[submission_id] = SimpleNamespace(submission_id=submission_id, **given)
        self.names = ray_sends(Path(given["runtime_env"]["working_dir"]))

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for text in self.log:
            yield text

    def get_job_info(self, job: str) -> Any:
        details = self.jobs.setdefault(job, SimpleNamespace(submission_id=job))
        details.status, details.driver_exit_code = self.end
        details.message = "it was\nkilled"
        return details


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Such a cluster, and a folder to submit a sweep from."""
    cluster = Cluster()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forever.launch.submit.connect", lambda address: cluster)
    write(tmp_path, "mine.yaml", text="variants: {base: {}, late: {method.days: [4]}}")
    return cluster


def submit(*words: str) -> Any:
    return CliRunner().invoke(app, ["submit", *words, "--address", ADDRESS])


def test_options_of_the_sweep_and_variables_reach_the_job(cluster: Cluster) -> None:
    write(Path(), ".env")
    words = ("mine.yaml", "--seeds", "0,1", "--out", "s3://bucket/runs", "optim.lr=1e-3")
    done = submit(*words, "--env", "A=b c")
    assert done.exit_code == 0, done.output
    ((name, job),) = cluster.jobs.items()
    assert shlex.split(job.entrypoint) == ["python", "-m", "forever.cli.start", "sweep", *words]
    variables = job.runtime_env["env_vars"]
    assert (variables["A"], variables[CODE]) == ("b c", code())
    assert cluster.names == {"mine.yaml"}
    first, second, *log = done.output.splitlines()
    assert first.split()[-1] == ".env"
    assert second.split() == ["started", name]
    assert log == ["[1/2] base: done", r"\x1b[2J"]  # and not what clears the screen


def test_the_name_follows_from_what_the_job_does(cluster: Cluster) -> None:
    for more in ([], [], ["optim.lr=1e-3"], ["--env", "A=1"]):
        assert submit("mine.yaml", *SHARED, *more).exit_code == 0
    write(Path(), "mine.yaml", text="variants: {base: {}, late: {method.days: [7]}}")
    submit("mine.yaml", *SHARED)
    assert len(cluster.jobs) == 4
    assert all(name.startswith("forever-mine-") for name in cluster.jobs)


def test_a_job_that_runs_is_joined_and_one_that_failed_is_followed_by_another(
    cluster: Cluster,
) -> None:
    """The exit code is the job's, or 1 where it has none."""
    for end, exit_code, how in [
        ((JobStatus.FAILED, 3), 3, "started"),
        ((JobStatus.STOPPED, None), 1, "started"),
        ((JobStatus.RUNNING, None), None, "started"),
        ((JobStatus.SUCCEEDED, 0), 0, "joined"),
        ((JobStatus.SUCCEEDED, 0), 0, "done"),
    ]:
        cluster.end = end
        done = submit("mine.yaml", *SHARED)
        assert done.output.split()[0] == how
        assert ("it was killed" in done.output) == bool(exit_code)  # why, in one line
        if exit_code is None:  # the connection ended, and not the job
            assert isinstance(done.exception, InputError)
        else:
            assert done.exit_code == exit_code
    first = next(iter(cluster.jobs))
    assert [*cluster.jobs] == [first, f"{first}-2", f"{first}-3"]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["mine.yaml"], "--out runs"),
        (["mine.yaml", *SHARED, "--mlflow", "sqlite:///m.db"], "sqlite:///m.db"),
        (["mine.yaml", *SHARED, "--env", "A"], "'A'"),
        (["mine.yaml", *SHARED, "optim.lrr=1"], "lrr"),
        (["mine.yaml", *SHARED, "--workers", "4-1"], "4-1"),
        (["--list", *SHARED], "sweep"),
        (["mine.yaml", *SHARED, "--env", "X=http://me:pw@h"], r"\*\*\*@h"),
        (["mine.yaml", *SHARED, "--env", "MY_PASSWORD=x"], r"MY_PASSWORD=\*\*\*"),
        (["mine.yaml", *SHARED, "--mlflow", "http://me:pw@host"], r"\*\*\*@host"),
        (["mine.yaml", *SHARED, "--working-dir", "sub"], "mine.yaml"),
        (["runs/mine.yaml", *SHARED], "runs/mine.yaml"),
        (["kept.yaml", *SHARED], "kept.yaml"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    cluster: Cluster, words: list[str], value: str
) -> None:
    text = Path("mine.yaml").read_text()
    write(Path(), "sub/other.yaml", "runs/mine.yaml", "kept.yaml", text=text)
    write(Path(), ".gitignore", text="kept.yaml")
    done = submit(*words)
    assert isinstance(done.exception, InputError), done.output
    with pytest.raises(InputError, match=value):
        raise done.exception
    assert not cluster.jobs
    assert "pw" not in str(done.exception)


def test_a_cluster_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for address in (ADDRESS, "127.0.0.1:9"):
        words = ["submit", "components", *SHARED, "--address", address]
        done = CliRunner().invoke(app, [*words, "--working-dir", str(tmp_path)])
        assert isinstance(done.exception, InputError)
        assert address in str(done.exception)


def test_a_process_with_other_code_than_the_job_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODE, code())
    check_code()
    monkeypatch.setenv(CODE, "0" * 12)
    with pytest.raises(InputError, match=code()):
        check_code()
