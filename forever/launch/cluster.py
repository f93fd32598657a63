"""A Ray cluster to run on: joined or started, and quiet; its room; why something failed on it."""

import logging
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

import ray
from ray.util import placement_group_table

from forever.errors import InputError
from forever.format import plural
from forever.launch.resources import Allocation
from forever.runs.environment import code
from forever.stopping import listening
from forever.text import without_credentials

CODE = "FOREVER_CODE"  # in the environment of a job: the digest of the code that it was given
START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
# What Ray is told unless the user says otherwise.
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # with verbose=0: 3 lines a sweep instead of 70; the table is ours
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    # No CSV, JSON and TensorBoard copies of what the journal holds.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Tune would save a state that nobody restores, and return as if all were well.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Ray's memory monitor ends a whole sweep for one trial that takes too much. The kernel kills
    # that one trial only, which is a failure like any other.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # A spot node takes minutes to come up; the default gives a worker group one.
    START_TIMEOUT: "900",
}
# A cluster that grows begins without GPUs, and Ray has no public function that tells what it may
# grow to. Its head node says it by a resource of this name: see cluster.yaml.
_LATER_GPUS = "later_gpus"
_DASHBOARD = "RAY_API_SERVER_ADDRESS"
# Above those of Ray's workers, below those that Linux and macOS give to whoever asks for any.
_PORTS = range(20_000, 30_000)
# How long what fits on the cluster waits for room that others hold.
PATIENCE_S = 50.0
PREEMPTIONS = 100  # a spot machine that is taken away is nobody's fault
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.MULTILINE)


def quiet() -> None:
    """Set Ray's options for this process and those that it starts."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # They print a traceback for each failed trial; the outcome has a line.
    for chatty in ("ray.tune", "ray.train"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


def check_code() -> None:
    """Check that this process runs the code that its job was given, if it is part of one.

    Raises:
        InputError: it runs other code, as where an image or an installation is older.
    """
    expected = os.environ.get(CODE)
    if expected and expected != code():
        raise InputError(
            f"code {code()} runs here, and the job was submitted with {expected}; give all "
            "machines the same copy: forever submit sends it along, or an image holds it"
        )


@contextmanager
def connected(dashboard: bool, logs: bool = False) -> Iterator[None]:
    """Ray for the duration of the block, which SIGTERM and SIGHUP leave as Ctrl-C does.

    It is the Ray of this process, if one runs. Else it is the cluster that RAY_ADDRESS names, as
    under `ray job submit`, or one on this machine that ends with the block.

    Args:
        dashboard: Ray Train needs it: without it the workers of a killed trial keep their place
            for ever.
        logs: what Ray's processes print is shown here.

    Raises:
        InputError: this process runs other code than the job was submitted with.
    """
    check_code()
    quiet()
    ours = not ray.is_initialized()
    with listening():  # afterwards handlers are as before, also those that Ray sets
        try:
            if ours:
                _join_or_start(dashboard, logs)
            # `ray job stop` sends SIGTERM. Ray's own handler would leave everything open.
            with listening():
                yield
        finally:
            if ours:
                ray.shutdown()
                os.environ.pop(_DASHBOARD, None)


def _join_or_start(dashboard: bool, logs: bool) -> None:
    """Begin to use Ray, on the cluster that RAY_ADDRESS names or on one of this process."""
    options: dict[str, Any] = {"log_to_driver": logs, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**options)
        return
    # Nothing large travels through the object store, and its default is a third of the memory.
    options |= {"object_store_memory": 200 * 2**20, "address": "local"}
    options |= known_dashboard() if dashboard else {"include_dashboard": False}
    _have_token()
    ray.init(**options)


def _have_token() -> None:
    """Give a cluster of this process a token of its own where Ray, which keeps one in the home
    directory, cannot write it."""
    if "RAY_AUTH_TOKEN_PATH" in os.environ:
        return  # the user's own place
    folder = Path(os.path.expanduser("~"), ".ray")  # of a user without a home it is "~" itself
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    if not os.access(folder / "auth_token", os.R_OK) and not os.access(folder, os.W_OK):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def known_dashboard() -> dict[str, Any]:
    """Options of `ray.init` for a dashboard whose address all processes of the cluster will know.

    By it Ray Train asks whether the controller of a run lives. Without an address it would ask the
    first cluster that it finds on this machine: it would take away the workers of a run that lives
    in another one, or let those of a dead one keep their place for ever.
    """
    port = lasting_port()
    os.environ[_DASHBOARD] = f"http://127.0.0.1:{port}"
    return {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": port}


def lasting_port() -> int:
    """A port at which nobody listens, and that nobody is given who asks the system for any port.

    One that the system gave may be gone when the dashboard begins: a dozen servers of Ray, which
    ask for any, begin before it.

    Raises:
        InputError: there is none.
    """
    # Whatever seeds a run has, two processes must not draw the same port.
    for port in SystemRandom().sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    rule = f"Ray needs a port of 127.0.0.1 from {_PORTS.start} to {_PORTS.stop - 1}"
    raise InputError(f"{rule}, and none may be used; end other servers, or set RAY_ADDRESS")


def prepare_process(allocation: Allocation) -> None:
    """Make a process that Ray started work in the folder of the user's command, and name it.

    Raises:
        InputError: it runs other code than the job was submitted with.
    """
    check_code()
    quiet()
    if Path(allocation.cwd).is_dir():
        os.chdir(allocation.cwd)
    sys.argv = list(allocation.argv)


def capacity() -> tuple[dict[str, float], int]:
    """What the cluster has, or may grow to, and on how many machines."""
    total: dict[str, float] = dict(ray.cluster_resources())
    machines = sum(node["Alive"] for node in ray.nodes())
    later = total.get(_LATER_GPUS, 0)
    if later > total.get("GPU", 0):
        total["GPU"] = later
        machines += 1
    return total, machines


def grows() -> bool:
    """Whether the cluster may have more GPUs later than it has now."""
    total = ray.cluster_resources()
    return total.get(_LATER_GPUS, 0) > total.get("GPU", 0)


def waiting_groups() -> bool:
    """Whether something on the cluster waits for room."""
    return any(group["state"] == "PENDING" for group in placement_group_table().values())


def no_room(needed: Mapping[str, float], groups: int = 1) -> str:
    """Say what is short for `groups` processes that need so much each; "" if nothing is."""
    free, total = ray.available_resources(), ray.cluster_resources()
    for name, amount in needed.items():
        name = name.upper() if name in ("cpu", "gpu") else name
        if free.get(name, 0) < groups * amount:
            return (
                f"{groups * amount:g} {name} are needed, and of the cluster's "
                f"{total.get(name, 0):g} only {free.get(name, 0):g} are free; end what holds the "
                "others, or try again later"
            )
    return ""


def await_room(allocation: Allocation) -> None:
    """Wait until the workers of a run have room, which others may hold, unless the cluster grows.

    Raises:
        InputError: there is none for PATIENCE_S.
    """
    give_up = time.monotonic() + PATIENCE_S
    needed = allocation.least or allocation.workers
    while not grows() and (short := no_room(allocation.resources, needed)):
        if time.monotonic() > give_up:
            raise InputError(f"no room for {plural(needed, 'worker')}: {short}")
        time.sleep(1)


def one_line(error: BaseException) -> str:
    """The first cause of an error, without Ray's wrapping, tracebacks and credentials."""
    cause = first_cause(error)
    text = without_credentials(str(cause)).strip().partition("\n")[0]
    return text if isinstance(cause, InputError) else f"{type(cause).__name__}: {text}"


def first_cause(error: BaseException) -> BaseException:
    """What was raised in the beginning: in a worker, an actor, or here."""
    # Ray Train keeps a worker's exception under a private name; its text is the traceback.
    names = ("controller_failure", "cause", "_base_exc", "__cause__")
    inner = [*(getattr(error, "worker_failures", None) or {}).values()]
    inner += [getattr(error, name, None) for name in names]
    for candidate in inner:
        if isinstance(candidate, BaseException):
            return first_cause(candidate)
    return error


def last_error(file: str | None) -> str:
    """The last exception in the tracebacks that Tune keeps of a trial, in one line."""
    try:
        text = without_credentials(Path(file or "").read_text(encoding="utf-8"))
    except OSError:
        text = ""
    lines = _RAISED.findall(text) or text.strip().splitlines() or ["ended by an error"]
    return lines[-1].strip()
