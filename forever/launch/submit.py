"""A sweep as a job of a Ray cluster, by Ray's own client: `forever submit`.

Ray packs and uploads a folder, runs the job and streams its log. Ours are the job's name, by which
the same command finds the job again, and the choice of the files that travel.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import aiohttp
import requests
from pathspec import GitIgnoreSpec
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from forever.config.run import RunConfig
from forever.errors import InputError, one_line
from forever.launch.cluster import CODE
from forever.runs.environment import code
from forever.sweeps.files import SweepFile, shipped_folders
from forever.sweeps.sweep import slug
from forever.text import holds_secret, visible_lines, without_credentials

SECRETS = (".env*", ".netrc", ".npmrc", ".pypirc", ".ssh", ".aws", ".kube", "*.pem", "*.key")
SECRETS += ("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")
SECRETS += ("*credentials*.json", ".git-credentials", "gcloud")
# What runs and installations leave in a folder, whatever .gitignore says.
_LEFT_BEHIND = [".git", ".venv", "venv", "__pycache__"]
_LEFT_BEHIND += ["/runs", "/mlruns", "/mlartifacts", "/mlflow.db", "/.mlflow.db.*"]
_IGNORE_FILES = (".gitignore", ".rayignore")
_PACKAGE = Path(__file__).parents[1]
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # Runs get the time to save when the job is stopped; Ray would kill them after three seconds.
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
}


# ---- what a job takes along


def travelling(folder: Path) -> tuple[set[str], list[str]]:
    """Choose the files of a working directory that a job takes along.

    Returns:
        Those files, and what stays here: secrets, and links, except those to a file that travels
        anyway. (Ray would send what a link leads to, even if that itself is excluded.)
    """
    root, sent, stays, links = folder.resolve(), set[str](), list[str](), list[Path]()

    def walk(directory: Path, rules: Sequence[tuple[Path, GitIgnoreSpec]]) -> None:
        for name in _IGNORE_FILES:
            if (directory / name).is_file():
                lines = (directory / name).read_text(encoding="utf-8", errors="replace")
                rules = [*rules, (directory, GitIgnoreSpec.from_lines(lines.splitlines()))]
        for path in sorted(directory.iterdir()):
            end = "/" if path.is_dir() else ""
            if any(rule.match_file(f"{path.relative_to(top)}{end}") for top, rule in rules):
                continue
            if _is_secret(path):
                stays.append(path.relative_to(folder).as_posix())
            elif path.is_symlink():
                links.append(path)
            elif path.is_dir():
                walk(path, rules)
            elif path.is_file() and path.name not in _IGNORE_FILES:
                sent.add(path.relative_to(folder).as_posix())

    walk(folder, [(folder, GitIgnoreSpec.from_lines(_LEFT_BEHIND))])
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


def stage(folder: Path, target: Path) -> list[str]:
    """Copy what travels of a working directory, and this program; returns what stays here.

    Ray packs the copy, which has no secret and no link that it could send.
    """
    sent, stays = travelling(folder)
    files = {name: folder / name for name in sent}
    # A checkout has the program and its sweeps; else they travel as an installed copy has them.
    if folder.resolve() != _PACKAGE.parent:
        for path in _PACKAGE.rglob("*.*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files[path.relative_to(_PACKAGE.parent).as_posix()] = path
        for sweeps in shipped_folders():
            for path in sweeps.glob("*.yaml"):
                files[f"{_PACKAGE.name}/sweeps/shipped/{sweeps.name}/{path.name}"] = path
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / name)
    return stays


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
        stays = stage(folder, Path(scratch))
        if stays:
            print(visible_lines(f"not sent  {', '.join(stays)}"), flush=True)
        with _asking(client.get_address()):
            try:
                client.submit_job(
                    entrypoint=shlex.join(job.command),
                    submission_id=name,
                    runtime_env={"working_dir": scratch, "env_vars": dict(job.environment)},
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
            print(visible_lines(text.expandtabs()), end="", flush=True)

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
