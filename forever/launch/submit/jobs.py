"""A submission on a cluster: a job that goes on or is done is joined, any other is started."""

import logging
import os
import re
import tempfile
from pathlib import Path

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from forever.errors import InputError
from forever.launch.submit.follow import refused
from forever.launch.submit.packing import pack
from forever.launch.submit.submission import Submission
from forever.sweeps.table import FRAMES

_NOT_AGAIN = (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED)


def connect(address: str) -> JobSubmissionClient:
    """The job server of the cluster at an address.

    Raises:
        InputError: none answers there, or it refuses this user.
    """
    if not re.fullmatch(r"https?://\S+", address):
        rule = "the dashboard's URL is expected, e.g. http://127.0.0.1:8265"
        raise InputError(f"--address {address!r}: {rule}")
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)
    # They would be stronger than the address that was given.
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        raise refused(address) from None
    except (ConnectionError, requests.RequestException):
        raise InputError(
            f"--address {address}: no cluster answers there; is it up, and its dashboard "
            "forwarded, as by `ray dashboard cluster.yaml`?"
        ) from None


def start_or_join(
    client: JobSubmissionClient, submission: Submission, folder: Path
) -> tuple[str, bool]:
    """The id of the job that does what is submitted, and whether this call has started it.

    A job that failed or was stopped is followed by another, whose id has the next number.
    """
    earlier = _attempts(client, submission)
    if earlier and earlier[-1].status in _NOT_AGAIN:
        return str(earlier[-1].submission_id), False
    job = submission.id if not earlier else f"{submission.id}-{len(earlier) + 1}"
    variables = {**submission.environment, FRAMES: "1"}
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "forever.zip"
        pack(folder, archive)
        try:
            client.submit_job(
                entrypoint=submission.entrypoint,
                submission_id=job,
                runtime_env={"working_dir": str(archive), "env_vars": variables},
                metadata={"sweep": submission.name},
            )
        except RuntimeError as error:
            # Another call was faster.
            if not any(each.submission_id == job for each in _attempts(client, submission)):
                raise error
            return job, False
    return job, True


def _attempts(client: JobSubmissionClient, submission: Submission) -> list[JobDetails]:
    """The jobs of a submission that the cluster knows, the last one last."""
    numbered = re.compile(rf"{re.escape(submission.id)}(?:-(\d+))?")
    known: dict[int, JobDetails] = {}
    for job in client.list_jobs():
        match = numbered.fullmatch(job.submission_id or "")
        if match:
            known[int(match[1] or 1)] = job
    return [known[number] for number in sorted(known)]
