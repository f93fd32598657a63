"""Soak: short runs and small sweeps that are killed, find the disk full and lose their trackers at
random points, until the time is over: `make soak`.

Each is repeated by its command until it is done, and then compared with a clean run of the same
configuration, byte by byte. The injector of the tests, tests/faults, brings the faults about.

    python -m benchmarks.soak [--minutes 60] [--seed 0] [--folder DIR]
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import typer

from benchmarks.dying_server import DYING, dying_server
from forever.config.methods import METHOD_CONFIGS
from forever.runs.environment import describe

SUMMARY = Path(__file__).with_name("soak.json")
INJECTOR = Path(__file__).parents[1] / "tests" / "faults"
FOREVER = [sys.executable, "-m", "forever.cli.main"]
SMALL = ["data.order=[topic,rain,opening]", "data.train_rows=16", "data.test_rows=8"]
SWEEP = "sweep"  # the target that is no method
SWEEP_FILE = """
title: Soak
question: Is anything lost?
variants:
  base: {}
  none: {method.regularizer: none}
  mix: {method.name: mix_replay}
"""
WRITES = ("journal", "checkpoint", "answers", "adapter", "result")
# What differs between two clean runs of a configuration, too.
MACHINE = ("seconds", "peak_memory_bytes", "world_size")
COMMAND_S = 400.0  # longer than any command takes
LIVES = 12  # no case has as many faults
AGENTS_S = 10.0  # by so much may processes outlive a driver


@dataclass
class Tally:
    """What happened, for the summary."""

    seed: int
    cases: Counter[str] = field(default_factory=Counter)  # runs by method, and sweeps
    lives: int = 0  # commands that were started for them
    faults: Counter[str] = field(default_factory=Counter)  # that happened, by kind
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A run of a method, or the sweep, and what happens to it."""

    name: str
    target: str  # a method, or SWEEP
    faults: tuple[str, ...]  # by phase: "kill replay"
    places: tuple[int, ...]  # at which point of the phase, counted in each process
    server: str  # of the tracker; "" is none
    driver_dies_at: int  # so many updates of a sweep; 0: it lives

    def __str__(self) -> str:
        words = [f"{fault} {place}" for fault, place in zip(self.faults, self.places, strict=True)]
        words += [f"tracker {self.server}"] if self.server else []
        words += [f"kill driver at {self.driver_dies_at}"] if self.driver_dies_at else []
        return f"{self.name} {self.target}: {', '.join(words)}"


def main(
    minutes: float = 60.0, seed: int = 0, folder: Path | None = None, summary: Path = SUMMARY
) -> None:
    """Soak, print each case and write the summary; exit with 1 if anything differs."""
    with tempfile.TemporaryDirectory() as temporary:
        soak, number = Soak(folder or Path(temporary), Tally(seed)), 0
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            case = soak.draw(number)
            print(case, flush=True)
            soak.happen(case)
            number += 1
    tally = soak.tally
    about = {key: describe()[key] for key in ("packages", "revision", "cpu", "cores")}
    content = {"minutes": minutes, **vars(tally), **about}
    summary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{number} cases, {tally.faults.total()} faults, differences: {tally.differences}")
    raise typer.Exit(int(bool(tally.differences)))


class Soak:
    """Cases in a folder; a case is known by seed and number."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self.tally = folder, tally
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{SWEEP}.yaml").write_text(SWEEP_FILE, encoding="utf-8")

    def draw(self, number: int) -> Case:
        """Draw a case, with faults in phases that its clean run comes past."""
        draw = random.Random(f"{self.tally.seed} {number}")
        target = SWEEP if draw.random() < 0.2 else draw.choice(sorted(METHOD_CONFIGS))
        points = self._points(target)
        faults: list[str] = []
        places: list[int] = []
        for _ in range(draw.randint(1, 3)):
            full = target != SWEEP and draw.random() < 0.3
            phase = draw.choice(WRITES if full else sorted(points))
            faults.append(f"{'full' if full else 'kill'} {phase}")
            places.append(draw.randint(1, min(points[phase], 8)))
        server = draw.choice(DYING) if draw.random() < 0.25 else ""
        dies_at = draw.randint(1, 60) if target == SWEEP and draw.random() < 0.5 else 0
        return Case(f"case{number}", target, tuple(faults), tuple(places), server, dies_at)

    def happen(self, case: Case) -> None:
        """Let a case happen, and compare what came of it with its clean run."""
        marks = [self.folder / f"{case.name}.{number}" for number in range(len(case.faults))]
        lines: list[str] = []
        for fault, place, mark in zip(case.faults, case.places, marks, strict=True):
            action, _, phase = fault.partition(" ")
            lines.append(f"{action} 'phase={phase}' nth={place} 'once={mark}'")
        (self.folder / f"{case.name}.faults").write_text("\n".join(lines), encoding="utf-8")
        before = len(self.tally.differences)
        with dying_server(case.server) as address:
            self._until_done(case, address or "off")
        self.tally.cases[case.target] += 1
        for fault, mark in zip(case.faults, marks, strict=True):
            self.tally.faults[fault] += mark.exists()
        if case.server:
            self.tally.faults[f"tracker {case.server}"] += 1
        found = differences(self.folder / f"clean-{case.target}", self.folder / case.name)
        self.tally.differences += [f"{case}: {what}" for what in found]
        if len(self.tally.differences) == before:
            shutil.rmtree(self.folder / case.name)

    def _points(self, target: str) -> Counter[str]:
        """The points of the clean run by phase; it is trained when it is asked for first."""
        points = self.folder / f"clean-{target}.points"
        if not points.exists():
            (self.folder / f"clean-{target}.faults").write_text(f"count 'once={points}'")
            command = self._command(target, f"clean-{target}", "off")
            if self._live(command, f"clean-{target}", 0) != 0:
                raise RuntimeError(f"a clean run of {target} failed; see {self.folder}")
        return Counter(line.split(" ", 3)[3] for line in points.read_text().splitlines())

    def _command(self, target: str, name: str, mlflow: str) -> list[str]:
        options = ["--mlflow", mlflow, "--out", str(self.folder / name), "--device", "cpu"]
        options += ["--checkpoint-every", "0"]
        if target == SWEEP:
            file = str(self.folder / f"{SWEEP}.yaml")
            return [*FOREVER, "sweep", file, *SMALL, *options, "--retry-failed"]
        return [*FOREVER, "run", f"mini/{target}", *SMALL, *options, "--resume"]

    def _until_done(self, case: Case, mlflow: str) -> None:
        """Give the command again and again, as somebody would who finds it dead."""
        command = self._command(case.target, case.name, mlflow)
        for life in range(LIVES):
            self.tally.lives += 1
            if self._live(command, case.name, case.driver_dies_at if life == 0 else 0) == 0:
                return
        self.tally.differences.append(f"{case}: not done after {LIVES} lives")

    def _live(self, command: Sequence[str], name: str, dies_at: int) -> int:
        """One process with its descendants; its driver is killed when so many updates are done."""
        paths = [str(INJECTOR), os.environ.get("PYTHONPATH", "")]
        faults = {"FOREVER_FAULTS": str(self.folder / f"{name}.faults")}
        environment = os.environ | faults | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with (self.folder / f"{name}.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            give_up = time.monotonic() + COMMAND_S
            while process.poll() is None and time.monotonic() < give_up:
                if dies_at and updates(self.folder / name) >= dies_at:
                    process.kill()
                    self.tally.faults["kill driver"] += 1
                    break
                time.sleep(0.1)
        self._end_all(process, name, hangs=time.monotonic() >= give_up)
        return process.wait()

    def _end_all(self, process: "subprocess.Popen[bytes]", name: str, hangs: bool) -> None:
        """Wait for the processes that a driver started; the slow ones are noted, and killed."""
        if hangs:
            self.tally.differences.append(f"{name}: hangs")
            process.kill()
        process.wait()
        give_up = time.monotonic() + AGENTS_S
        while (living := session(process.pid)) and time.monotonic() < give_up:
            time.sleep(0.1)
        for pid in living:
            self.tally.differences.append(f"{name}: process {pid} outlives its driver")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def updates(folder: Path) -> int:
    """How many updates are in the journals of a folder of runs."""
    count = 0
    for place, _, names in os.walk(folder):  # which passes over folders that go meanwhile
        if "steps.jsonl" in names:
            with suppress(FileNotFoundError):
                count += Path(place, "steps.jsonl").read_bytes().count(b"\n")
    return count


def session(leader: int) -> list[int]:
    """The processes that `leader` and its descendants started."""
    members: list[int] = []
    for name in os.listdir("/proc"):
        with suppress(ProcessLookupError, ValueError):
            if os.getsid(int(name)) == leader:
                members.append(int(name))
    return members


def differences(clean: Path, other: Path) -> list[str]:
    """The files of all runs in a folder that are not those of the clean one."""
    patterns = ("steps.jsonl", "events.jsonl", "predictions/*/*.jsonl", "adapter/*.safetensors")
    found: list[str] = []
    for result in sorted(clean.glob("**/result.json")):
        place = other / result.parent.relative_to(clean)
        if facts(result) != facts(place / "result.json"):
            found.append(f"{place.name}/result.json")
        for pattern in patterns:
            names = {path.relative_to(result.parent) for path in result.parent.glob(pattern)}
            names |= {path.relative_to(place) for path in place.glob(pattern)}
            for name in sorted(names):
                if bytes_of(result.parent / name) != bytes_of(place / name):
                    found.append(f"{place.name}/{name}")
    return found


def facts(result: Path) -> dict[str, object]:
    """A result without what depends on the machine."""
    if not result.is_file():
        return {}
    content = json.loads(result.read_text(encoding="utf-8"))
    return {key: value for key, value in content.items() if key not in MACHINE}


def bytes_of(path: Path) -> bytes | None:
    """The bytes of a file; None if it is missing."""
    return path.read_bytes() if path.is_file() else None


if __name__ == "__main__":
    typer.run(main)
