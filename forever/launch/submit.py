"""A sweep as a job of a Ray cluster, by Ray's own client: `forever submit`.

Ray packs and uploads the working directory, runs the job and streams its log. Ours are the job's
name, by which the same command finds the job again, and what must not travel with it.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import aiohttp
import requests
from ray._private.runtime_env.packaging import (
    _get_excludes,
    create_package,
    get_excludes_from_ignore_files,
)
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from forever.config.run import RunConfig
from forever.errors import InputError, one_line
from forever.launch.ray_cluster import CODE
from forever.runs.environment import code
from forever.sweeps.files import SweepFile, shipped_folders
from forever.sweeps.sweep import slug
from forever.text import holds_secret, visible_lines, without_credentials

SECRETS = (".env*", ".netrc", ".npmrc", ".pypirc", ".ssh", ".aws", ".kube", "*.pem", "*.key")
SECRETS += ("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")
# What runs and installations leave in a folder, whatever .gitignore says.
_LEFT_BEHIND = [".git", ".venv", "venv", "__pycache__"]
_LEFT_BEHIND += ["/runs", "/mlruns", "/mlartifacts", "/mlflow.db", "/.mlflow.db.*"]
_PACKAGE = Path(__file__).parents[1]
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # Runs get the time to save when the job is stopped; Ray would kill them after three seconds.
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
}


# ---- what a job takes along


def travelling(folder: Path) -> tuple[set[str], list[str]]:
    """Walk over what Ray would send of a folder, before it does.

    Returns:
        The files that a job takes along, and what must stay: secrets, and links, except those to a
        file that travels anyway. (Ray sends what a link leads to, even if that itself is excluded.)
    """
    folder = folder.absolute()
    root, sent, stays, links = folder.resolve(), set[str](), list[str](), list[Path]()

    def walk(directory: Path, rules: Sequence[Callable[[Path], bool]]) -> None:
        rules = [*rules, *get_excludes_from_ignore_files(directory, include_gitignore=True)]
        for path in sorted(directory.iterdir()):
            name = path.relative_to(folder).as_posix()
            if any(rule(path) for rule in rules):
                continue
            if _is_secret(path):
                stays.append(name)
            elif path.is_symlink():
                links.append(path)
            elif path.is_dir():
                walk(path, rules)
            else:
                sent.add(name)

    walk(folder, [_get_excludes(folder, _LEFT_BEHIND)])
    safe = {root / name for name in sent}
    for link in links:
        name = link.relative_to(folder).as_posix()
        if link.resolve() in safe:
            sent.add(name)
        else:
            stays.append(name)
    return sent, sorted(stays)


def _is_secret(path: Path) -> bool:
    """Whether a file or a folder usually holds keys or passwords."""
    name = path.name.lower()
    if any(fnmatch(name, pattern) for pattern in SECRETS):
        return True
    return name.endswith(".json") and path.is_file() and b'"private_key"' in path.read_bytes()


def pack(folder: Path, archive: Path) -> list[str]:
    """Pack a working directory and this program with Ray's own function; returns what stays here.

    Raises:
        InputError: Ray would send what must stay.
    """
    sent, stays = travelling(folder)
    has_program = folder.resolve() == _PACKAGE.parent
    excludes = _LEFT_BEHIND + ([] if has_program else [f"/{_PACKAGE.name}"])
    excludes += ["/" + re.sub(r"[\\*?\[]", r"\\\g<0>", name) for name in stays]
    create_package(str(folder), archive, include_gitignore=True, excludes=excludes)
    with ZipFile(archive, "a", ZIP_DEFLATED) as package:
        packed = {name for name in package.namelist() if not name.endswith("/")}
        for name in sorted(packed - sent):
            raise InputError(f"{name!r}: Ray would send this secret; move or rename it")
        if not has_program:
            _add_program(package)
    return stays


def _add_program(package: ZipFile) -> None:
    """Add this program and its sweeps, as an installed copy has them."""
    files = {path.relative_to(_PACKAGE.parent).as_posix(): path for path in _PACKAGE.rglob("*.*")}
    for folder in shipped_folders():
        for path in folder.glob("*.yaml"):
            files[f"{_PACKAGE.name}/sweeps/shipped/{folder.name}/{path.name}"] = path
    for name, path in sorted(files.items()):
        if path.is_file() and "__pycache__" not in path.parts:
            package.write(path, name)


# ---- the job


@dataclass(frozen=True)
class Job:
    """What a cluster is given to do; its name changes with anything that it does."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


def make_job(
    file: SweepFile, base: RunConfig, words: Sequence[str], variables: Mapping[str, str]
) -> Job:
    """The job of `forever sweep WORDS`, which run this sweep on this base run.

    Raises:
        InputError: the words or a variable hold a password or a token.
    """
    assignments = [f"{name}={value}" for name, value in variables.items()]
    for text in (*words, *assignments):
        # What a variable with the name of a secret holds is masked, whatever it is.
        is_masked = text in assignments and "***" in without_credentials(text.split("=")[0] + "=0")
        if is_masked or holds_secret(text):
            raise InputError(
                f"{without_credentials(text)}: this looks like a password or a token, and all "
                "users of the cluster can read a job's command; set it on the cluster"
            )
    content = [list(words), dict(sorted(variables.items())), code()]
    content += [file.model_dump(mode="json"), base.model_dump(mode="json")]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r"[^a-z0-9]+", "-", slug(file.name).lower()).strip("-")
    # A module, since a console script could be that of another copy of the code.
    command = ["python", "-m", "forever.cli.start", "sweep", *words]
    return Job(f"forever-{name}-{digest}", command, {**_ENVIRONMENT, **variables, CODE: code()})


def connect(address: str) -> JobSubmissionClient:
    """Ray's client for the cluster whose dashboard has this address."""
    logging.getLogger("ray").setLevel(logging.WARNING)
    # Ray would prefer them to the address that is given.
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    with _asking(address):
        return JobSubmissionClient(address)


def start_or_join(client: JobSubmissionClient, job: Job, folder: Path) -> tuple[str, str]:
    """Start a job, unless it runs or is done.

    A job that failed or was stopped is started again under the next number.

    Returns:
        Its id, and whether this call `started` it, `joined` it, or found it `done`.

    Raises:
        InputError: the cluster does not answer, or refuses the job.
    """
    attempts = _attempts(client, job)
    if attempts and attempts[-1].status == JobStatus.SUCCEEDED:
        return str(attempts[-1].submission_id), "done"
    if attempts and not attempts[-1].status.is_terminal():
        return str(attempts[-1].submission_id), "joined"
    name = f"{job.name}-{len(attempts) + 1}" if attempts else job.name
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "job.zip"
        stays = pack(folder, archive)
        if stays:
            print(visible_lines(f"not sent  {', '.join(stays)}"), flush=True)
        with _asking(client.get_address()):
            try:
                client.submit_job(
                    entrypoint=shlex.join(job.command),
                    submission_id=name,
                    runtime_env={"working_dir": str(archive), "env_vars": dict(job.environment)},
                )
            except RuntimeError:
                # The same command elsewhere may have been faster.
                if name not in [each.submission_id for each in _attempts(client, job)]:
                    raise
                return name, "joined"
    return name, "started"


def _attempts(client: JobSubmissionClient, job: Job) -> list[JobDetails]:
    """The jobs of this name that the cluster knows, the last one last."""
    with _asking(client.get_address()):
        known = client.list_jobs()
    numbered = re.compile(rf"{re.escape(job.name)}(?:-\d+)?")
    attempts = [each for each in known if numbered.fullmatch(each.submission_id or "")]
    return sorted(attempts, key=lambda each: (len(each.submission_id or ""), each.submission_id))


def follow(client: JobSubmissionClient, name: str) -> int:
    """Show a job's log from its first line to its end; returns its exit code.

    Raises:
        InputError: the connection is lost; the job continues.
    """

    async def show() -> None:
        async for text in client.tail_job_logs(name):
            print(visible_lines(text), end="", flush=True)

    with _asking(client.get_address()):
        asyncio.run(show())
        details = client.get_job_info(name)
        if not details.status.is_terminal():
            raise ConnectionError(f"the log of {name} ended before the job")
    if details.status == JobStatus.SUCCEEDED:
        return 0
    message = " ".join(str(details.message).split())
    print(visible_lines(f"{details.status.lower()}  {name}: {message}"))
    return details.driver_exit_code or 1


@contextmanager
def _asking(address: str) -> Iterator[None]:
    """Say in one line what is wrong with a cluster, a proxy or a connection."""
    try:
        yield
    except AuthenticationError:
        raise InputError(
            f"{address} refuses this user; set RAY_AUTH_MODE=token and the cluster's token, by "
            "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
        ) from None
    # What answers may be any server, and Ray's client then fails in many ways.
    except (
        aiohttp.ClientError, requests.RequestException, OSError, RuntimeError, ValueError,
        KeyError, TypeError,
    ) as error:  # fmt: skip
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{address}: {one_line(error)}; check that it is a dashboard of this version of Ray. "
            "The same command follows a job that was started"
        ) from None
