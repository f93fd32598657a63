"""A submission on a cluster: a job that goes on or is done is joined, any other is started."""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from forever.errors import InputError, one_line
from forever.launch.submit.follow import LOST, is_lost, refused
from forever.launch.submit.packing import pack, too_large
from forever.launch.submit.submission import Submission
from forever.sweeps.table import FRAMES

_NOT_AGAIN = (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED)


def connect(address: str) -> JobSubmissionClient:
    """The job server of the cluster at an address.

    Raises:
        InputError: none answers there, or it refuses this user.
    """
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)
    # They would be stronger than the address that was given.
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        raise refused(address) from None
    except (ConnectionError, requests.ConnectionError, requests.Timeout):
        raise InputError(
            f"--address {address}: no cluster answers there; is it up, and its dashboard "
            "forwarded, as by `ray dashboard cluster.yaml`?"
        ) from None
    # What answers may be anything.
    except (requests.RequestException, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--address {address}: no Ray dashboard is there ({one_line(error)}); give that of a "
            "cluster, e.g. http://127.0.0.1:8265"
        ) from None


@contextmanager
def _asking(client: JobSubmissionClient) -> Iterator[None]:
    """Say in one line why a request did not do what was asked.

    Raises:
        InputError: whatever the server, a proxy or the connection did.
    """
    try:
        yield
    except AuthenticationError:
        raise refused(client.get_address()) from None
    except (*LOST, RuntimeError) as error:
        said = f"({one_line(error)})"
        if is_lost(error):
            said = f"does not answer {said}; the same command goes on"
        else:
            said = f"refuses the job {said}; are Ray's versions here and there the same?"
        raise InputError(f"{client.get_address()} {said}") from None


def start_or_join(
    client: JobSubmissionClient, submission: Submission, folder: Path
) -> tuple[str, str]:
    """The id of the job that does what is submitted, and whether this call has `started` it or
    `joined` it, or it was `done` before.

    A job that failed or was stopped is followed by another, whose id has the next number.

    Raises:
        InputError: the archive is too large, the connection broke, or the cluster refuses the job.
    """
    earlier = _attempts(client, submission)
    if earlier and earlier[-1].status in _NOT_AGAIN:
        done = earlier[-1].status == JobStatus.SUCCEEDED
        return str(earlier[-1].submission_id), "done" if done else "joined"
    job = submission.id if not earlier else f"{submission.id}-{len(earlier) + 1}"
    variables = {**submission.environment, FRAMES: "1"}
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "forever.zip"
        pack(folder, archive)
        try:
            with _asking(client):
                client.submit_job(
                    entrypoint=submission.entrypoint,
                    submission_id=job,
                    runtime_env={"working_dir": str(archive), "env_vars": variables},
                    metadata={"sweep": submission.name},
                )
        except InputError as error:
            if "status code 413" in str(error):  # a proxy takes less than Ray
                raise too_large(folder, archive, f"{client.get_address()} takes less") from None
            # Another call was faster.
            if not any(each.submission_id == job for each in _attempts(client, submission)):
                raise error
            return job, "joined"
    return job, "started"


def _attempts(client: JobSubmissionClient, submission: Submission) -> list[JobDetails]:
    """The jobs of a submission that the cluster knows, the last one last."""
    numbered = re.compile(rf"{re.escape(submission.id)}(?:-(\d+))?")
    known: dict[int, JobDetails] = {}
    with _asking(client):
        jobs = client.list_jobs()
    for job in jobs:
        match = numbered.fullmatch(job.submission_id or "")
        if match:
            known[int(match[1] or 1)] = job
    return [known[number] for number in sorted(known)]
