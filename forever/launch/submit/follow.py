"""What a job says, shown as if it ran here: its lines, and below them the trials that run."""

import asyncio
import json
import time

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from rich.console import Console
from rich.live import Live

from forever.errors import InputError, one_line
from forever.sweeps.table import FRAME, as_group
from forever.text import terminal

# A log may say nothing for long, and a connection that died may do so, too.
_SILENCE_S = 30.0
_AGAIN_S = 2.0
_GIVE_UP_S = 600.0
# What a request says of a cluster that does not answer. Ray's client wraps some in its own words.
LOST = (requests.RequestException, aiohttp.ClientError, ConnectionError, TimeoutError)
_LOST_WORDS = ("WebSocket", "status code 5")


class Screen:
    """Where the log of a job is shown. A text that comes in pieces, or again, is shown once."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._seen = 0  # characters of the log
        self._rest = ""  # of a line that has no end yet

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, start: int, text: str) -> None:
        """Show the part of the log that begins at character `start`, without what was shown."""
        new = text[max(0, self._seen - start) :]
        self._seen = max(self._seen, start + len(text))
        *lines, self._rest = (self._rest + new).split("\n")
        for line in lines:
            if line.startswith(FRAME):
                self._frame(line[1:])
            else:
                self.say(line)

    def end(self) -> None:
        """Show the last line, if it has no end."""
        if self._rest:
            self.show(self._seen, "\n")

    def say(self, line: str) -> None:
        """Show a line, which may be anybody's text."""
        self.console.print(terminal(line), soft_wrap=True)

    def _frame(self, text: str) -> None:
        if not self._live.is_started:
            return
        try:
            state = json.loads(text)
            self._live.update(as_group(state["running"], state["summary"]), refresh=True)
        except (ValueError, TypeError, KeyError):
            self.say(text)  # another version's


def follow(client: JobSubmissionClient, job: str, screen: Screen) -> int:
    """Show what a job says until it ends, also over connections that break; returns its exit code.

    Raises:
        InputError: the cluster does not answer any more, or no longer knows the job.
    """
    since: float | None = None
    while True:
        try:
            asyncio.run(_read(client, job, screen))
            details = client.get_job_info(job)
        except (*LOST, AuthenticationError, RuntimeError) as error:
            if not is_lost(error):
                raise _explained(error, client, job) from error
            now = time.monotonic()
            if since is None:
                since = now
                screen.say("the connection is lost; the job goes on, and so will this view of it")
            elif now - since > _GIVE_UP_S:
                where = f"{client.get_address()} has not answered for {_GIVE_UP_S:.0f} s"
                raise InputError(f"{where}; the same command follows the job again") from None
            time.sleep(_AGAIN_S)
            continue
        since = None
        if details.status.is_terminal():
            _show_end(client, job, details, screen)
            return exit_code(details)
        time.sleep(_AGAIN_S)  # a server that closes each connection is not to be asked in a circle


def _show_end(client: JobSubmissionClient, job: str, details: JobDetails, screen: Screen) -> None:
    """Show what a job said last, and what Ray says of one that did not succeed."""
    try:
        screen.show(0, client.get_job_logs(job))
    except (*LOST, RuntimeError) as error:  # where the machine is gone, so is its log
        screen.say(f"the end of the log cannot be read: {one_line(error)}")
    screen.end()
    if details.status != JobStatus.SUCCEEDED:
        screen.say(
            f"{details.status.value.lower()}  {job}: {' '.join(str(details.message).split())}"
        )


def exit_code(details: JobDetails) -> int:
    """The exit code of a job that is over; 1 if it had none, as when it was killed."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    return details.driver_exit_code or 1


async def _read(client: JobSubmissionClient, job: str, screen: Screen) -> None:
    """Show a log from its beginning until it ends, or nothing has come for a while."""
    parts = client.tail_job_logs(job)
    start = 0
    while True:
        try:
            text = await asyncio.wait_for(anext(parts), _SILENCE_S)
        except (TimeoutError, StopAsyncIteration):
            return
        screen.show(start, text)
        start += len(text)


def is_lost(error: Exception) -> bool:
    """Whether an error is that of a connection, which may be made again."""
    if isinstance(error, LOST):
        return True
    return any(words in str(error) for words in _LOST_WORDS)


def _explained(error: Exception, client: JobSubmissionClient, job: str) -> Exception:
    """The error to raise where one came that is no lost connection."""
    if isinstance(error, AuthenticationError):
        return refused(client.get_address())
    if "does not exist" in str(error):
        where = client.get_address()
        return InputError(f"{where} no longer knows {job}; the same command starts it again")
    if "status code" in str(error):
        said = f"{client.get_address()} does not show {job} ({one_line(error)})"
        return InputError(f"{said}; the same command follows it again")
    return error


def refused(address: str) -> InputError:
    """The error where a cluster does not take this user's token."""
    return InputError(
        f"{address} refuses this user; set RAY_AUTH_MODE=token and its token, by RAY_AUTH_TOKEN, "
        "RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
    )
