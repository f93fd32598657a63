"""A Ray cluster to run on: joined or started, and quiet; its room; why something failed on it."""

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

import ray

from forever.errors import InputError
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
                options: dict[str, Any] = {"log_to_driver": logs, "logging_level": logging.ERROR}
                ray.init(**options, **({} if os.environ.get("RAY_ADDRESS") else local(dashboard)))
            # `ray job stop` sends SIGTERM. Ray's own handler would leave everything open.
            with listening():
                yield
        finally:
            if ours:
                ray.shutdown()
                os.environ.pop(_DASHBOARD, None)


def local(dashboard: bool) -> dict[str, Any]:
    """Options of `ray.init` for a cluster of this process.

    Its processes know the address of its dashboard, by which Ray Train asks whether the controller
    of a run lives. Without an address it would ask the first cluster that it finds on this machine:
    it would take away the workers of a run that lives in another one, or let those of a dead one
    keep their place for ever.
    """
    # Nothing large travels through the object store, and its default is a third of the memory.
    options: dict[str, Any] = {"object_store_memory": 200 * 2**20, "address": "local"}
    if not dashboard:
        return {**options, "include_dashboard": False}
    port = free_port()
    os.environ[_DASHBOARD] = f"http://127.0.0.1:{port}"
    options |= {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": port}
    return options


def free_port() -> int:
    """A port at which nobody listens, and that nobody is given who asks the system for any port.

    One that the system gave may be gone when the dashboard begins: a dozen servers of Ray, which
    ask for any, begin before it.
    """
    while True:
        port = SystemRandom().choice(_PORTS)  # whatever seeds a run has
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


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


def await_room(needed: Mapping[str, float], processes: int = 1) -> None:
    """Wait until a run has room, which others may hold, unless the cluster grows.

    Args:
        needed: by each of its processes.

    Raises:
        InputError: there is none for PATIENCE_S.
    """
    give_up = time.monotonic() + PATIENCE_S
    while not grows():
        free, total = ray.available_resources(), ray.cluster_resources()
        short = [name for name, each in needed.items() if free.get(name, 0) < processes * each]
        if not short:
            return
        if time.monotonic() > give_up:
            raise InputError(
                f"no room for a run: {processes * needed[short[0]]:g} {short[0]} are needed, and "
                f"of the cluster's {total.get(short[0], 0):g} only {free.get(short[0], 0):g} are "
                "free; end what holds the others, or try again later"
            )
        time.sleep(1)


def reason(error: BaseException) -> str:
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
