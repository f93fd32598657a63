"""The first task of a sweep's runs is trained once for all that agree until its end.

Before there is a memory many methods do what fine-tuning does (`MethodConfig.plain_beginning`),
and a sweep varies what comes later. The run that trains the task first leaves it in the sweep's
folder; the others are planted after it, and end as if each had trained it itself (see `runs.fork`).
"""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.runs.directory import RunDirectory
from forever.runs.progress import is_run, stage_scores
from forever.sweeps.sweep import Trial

SHARED = ".shared"
_LOOK_EVERY_S = 0.2


def trainers_first(trials: Sequence[Trial]) -> list[Trial]:
    """Put those that train a first task before those that take it; seeds stay in order.

    The second one to ask for the same task could only wait.
    """
    known: set[str] = set()
    takers: dict[str, bool] = {}
    for trial in trials:
        key = first_task_key(trial.config, None) or trial.key
        takers[trial.key] = key in known
        known.add(key)
    seeds = list(dict.fromkeys(trial.seed for trial in trials))
    return sorted(trials, key=lambda trial: (seeds.index(trial.seed), takers[trial.key]))


def first_task_key(config: RunConfig, benchmark: Benchmark | None, *place: Any) -> str | None:
    """What runs must have in common to share their first task; None for a method that cannot.

    `place` is what else decides the last bits, as JSON values: the device, how batches are divided,
    the code, the model's files. Without a benchmark the data are taken to be the same.
    """
    if not config.method.plain_beginning:
        return None
    identity = config.identity()
    del identity["method"], identity["memory"]
    identity.pop("budget", None)
    digests = [task.digest() for task in benchmark.tasks] if benchmark else []
    known = [identity, digests, place]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]


@contextmanager
def first_task(key: str | None, directory: RunDirectory) -> Iterator[Path | None]:
    """Plant a run after the first task that another left, also if that is still being trained.

    Yields where the run leaves its own first task; None if it need not. Whoever is to leave it
    holds a lock meanwhile, which goes away with the process. So if that dies, the next one trains.
    """
    begun = is_run(directory.path)
    if key is None or (begun and stage_scores(directory)):
        yield None
        return
    left = directory.path.parent / SHARED / key
    left.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{left}.lock", fallback_to_soft=False)
    try:
        leaves = _is_to_leave(left, lock, begun)
        if left.is_dir() and not directory.path.exists():
            from forever.runs.fork import plant_first_task  # with torch, which takes a second

            plant_first_task(left, directory)
        yield left if leaves else None
    finally:
        lock.release()


def _is_to_leave(left: Path, lock: FileLock, begun: bool) -> bool:
    """Wait until the task is there, or the lock is free: then this run trains it for all.

    A run that has begun goes on with its own and waits for no other.
    """
    while not left.is_dir():
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if begun:
                return False
            time.sleep(_LOOK_EVERY_S)
        except OSError:  # a file system without locks: each run trains alone
            return False
        else:
            return not left.is_dir()  # it may have come just before the lock was free
    return False
