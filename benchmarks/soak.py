"""Soak: runs of every method, sweeps and searches, killed at 30 random moments: `make soak`.

Each is started again by its command until it is over, and then compared, byte by byte, with a run
that nobody killed.

    python -m benchmarks.soak [--kills 30] [--seed 0] [--folder DIR]
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import typer

from forever.config.methods import METHOD_CONFIGS

SMALL = ["data.order=[topic,rain,opening]", "data.train_rows=16", "data.test_rows=8"]
VARIANTS = "variants: {base: {}, none: {method.regularizer: none}, mix: {method.name: mix_replay}}"
FILES = {
    "sweep": f"title: Soak\nquestion: Is anything lost?\n{VARIANTS}\n",
    "search": "title: Soak\nquestion: Is anything lost?\nmethod: forever\ntrials: 3\n"
    "space: {optim.lr: {from: {times: 0.5}, to: {times: 2}, log: true}}\n",
}
COMPARED = ("steps.jsonl", "events.jsonl", "predictions/*/*.jsonl", "adapter/*.safetensors")
MACHINE = ("seconds", "peak_memory_bytes", "world_size")  # differ between two clean runs, too
LONGEST_S = 1200.0  # that a command takes on a busy machine


def main(kills: int = 30, seed: int = 0, folder: Path | None = None) -> None:
    """Kill and compare; exit with 1 if anything differs."""
    folder = folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    draw = random.Random(seed)
    clean_s: dict[str, float] = {}  # what each takes if nobody kills it
    killed, found = 0, list[str]()
    targets = cycle(draw.sample([*METHOD_CONFIGS, *FILES], len(METHOD_CONFIGS) + len(FILES)))
    for number, target in enumerate(targets):
        if killed >= kills:
            break
        clean, other = folder / f"clean-{target}", folder / f"{number}-{target}"
        if target not in clean_s:
            began = time.monotonic()
            if not ends(target, clean, LONGEST_S):
                raise RuntimeError(f"a clean {target} did not end; see {clean}.log")
            clean_s[target] = time.monotonic() - began
        moments = list[float]()
        while not ends(target, other, moment := draw.uniform(0, clean_s[target])):
            moments.append(round(moment, 1))
        killed += len(moments)
        differing = differences(clean, other)
        found += [f"{other.name}/{name}" for name in differing]
        print(f"{other.name}: killed after {moments} s; differs: {differing}", flush=True)
    print(f"{killed} kills, {len(found)} files differ; all is in {folder}")
    raise typer.Exit(int(bool(found)))


def ends(target: str, out: Path, seconds: float) -> bool:
    """Run the command of a target, which kills it with all its processes after some seconds.

    Returns:
        Whether it ended before.

    Raises:
        RuntimeError: it failed, although nobody had killed it.
    """
    options = ["--mlflow", "off", "--out", str(out), "--device", "cpu", "--checkpoint-every", "0"]
    command = [sys.executable, "-m", "forever.cli.main"]
    if target in FILES:
        file = str(out.parent / f"{target}.yaml")
        command += ["sweep", file, *SMALL, *options, "--retry-failed", "--concurrent", "1"]
    else:
        command += ["run", f"mini/{target}", *SMALL, *options, "--resume"]
    with Path(f"{out}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        # As when a machine dies: the processes that the command started die with it.
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(ProcessLookupError):
                if os.getsid(int(name)) == process.pid:
                    os.kill(int(name), signal.SIGKILL)
        process.wait()
        return False
    if code:
        raise RuntimeError(f"the command ended with {code}; see {out}.log")
    return True


def differences(clean: Path, other: Path) -> list[str]:
    """Return the files of all runs in a folder that are not those of the clean one.

    A search that was killed may draw other points: it has as many runs, and those that both have
    are equal.
    """
    there = {path.relative_to(clean) for path in clean.rglob("result.json")}
    here = {path.relative_to(other) for path in other.rglob("result.json")}
    results = there | here
    if any(clean.rglob("study.log")) and len(there) == len(here):
        results = there & here
    found: list[str] = []
    for result in sorted(results):
        if facts(clean / result) != facts(other / result):
            found.append(str(result))
        runs = (clean / result.parent, other / result.parent)
        names = {p.relative_to(run) for run in runs for kind in COMPARED for p in run.glob(kind)}
        for name in sorted(names):
            one, two = (run / name for run in runs)
            if not (one.is_file() and two.is_file() and one.read_bytes() == two.read_bytes()):
                found.append(str(result.parent / name))
    return found


def facts(result: Path) -> dict[str, object]:
    """Return a result without what depends on the machine."""
    content = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    return {key: value for key, value in content.items() if key not in MACHINE}


if __name__ == "__main__":
    typer.run(main)
