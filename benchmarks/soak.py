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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import typer

from benchmarks.dying_server import DYING, dying_server
from forever.config.methods import METHOD_CONFIGS
from forever.runs.environment import describe

SUMMARY = Path(__file__).with_name("soak.json")
INJECTOR = Path(__file__).parents[1] / "tests" / "faults"
FOREVER = [sys.executable, "-m", "forever.cli.main"]
SMALL = ["data.train_rows=16", "data.test_rows=8", "optim.epochs=2"]
VARIANTS = ("base", "none", "mix")
SWEEP = """
title: Soak
question: Is anything lost?
variants:
  base: {}
  none: {method.regularizer: none}
  mix: {method.name: mix_replay}
"""
KILLS = ("warm-up", "task", "replay", "consolidation", "probe", "reading", "journal", "event",
         "fisher", "merge", "synthesis", "selection", "memory", "end of task", "scoring",
         "answers", "checkpoint", "saved", "stage", "adapter", "result")  # fmt: skip
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
    cases: Counter[str] = field(default_factory=Counter)  # runs and sweeps
    lives: int = 0  # commands that were started for them
    planned: int = 0  # faults, of which some are never come past
    faults: Counter[str] = field(default_factory=Counter)  # that happened, by kind
    differences: list[str] = field(default_factory=list)


def main(
    minutes: float = 60.0, seed: int = 0, folder: Path | None = None, summary: Path = SUMMARY
) -> None:
    """Soak, print each case and write the summary; exit with 1 if anything differs."""
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(folder or Path(temporary), Tally(seed))
        until, number = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < until:
            soak.case(number)
            number += 1
            print(f"{number:4d}  {soak.last}", flush=True)
    tally = soak.tally
    about = {key: describe()[key] for key in ("packages", "revision", "cpu", "cores")}
    content = {"minutes": minutes, **asdict(tally), **about}
    summary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    happened = sum(tally.faults.values())
    print(f"{sum(tally.cases.values())} cases, {happened} faults, differences: {tally.differences}")
    raise typer.Exit(int(bool(tally.differences)))


class Soak:
    """Cases in a folder; a case is known by seed and number."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self.tally, self.last = folder, tally, ""
        (folder / "soak.yaml").write_text(SWEEP, encoding="utf-8")

    def case(self, number: int) -> None:
        """Draw a case, let it happen, and compare what came of it."""
        draw = random.Random(f"{self.tally.seed} {number}")
        name, kind = f"case{number}", "sweep" if draw.random() < 0.2 else "run"
        target = "soak" if kind == "sweep" else draw.choice(sorted(METHOD_CONFIGS))
        faults = self._draw_faults(draw, kind, name)
        self.last = f"{kind} {target}: {', '.join(faults)}"
        clean = self._clean(kind, target)
        out, before = self.folder / name, len(self.tally.differences)
        (self.folder / f"{name}.faults").write_text("\n".join(faults), encoding="utf-8")
        server = draw.choice(DYING) if draw.random() < 0.25 else ""
        driver_dies_at = draw.randint(1, 60) if kind == "sweep" and draw.random() < 0.5 else 0
        with dying_server(server) as address:
            self._until_done(kind, target, name, address or "off", driver_dies_at)
        self.tally.cases[kind] += 1
        self.tally.planned += len(faults) + bool(server) + bool(driver_dies_at)
        self.tally.faults.update([f"tracker {server}"] if server else [])
        for mark, line in enumerate(faults):
            if (self.folder / f"{name}.{mark}").exists():
                self.tally.faults[line.partition(" nth=")[0].replace("'phase=", "").strip("'")] += 1
        self.tally.differences += [f"{self.last}: {what}" for what in differences(clean, out)]
        if len(self.tally.differences) == before:
            shutil.rmtree(out)

    def _draw_faults(self, draw: random.Random, kind: str, name: str) -> list[str]:
        faults: list[str] = []
        for number in range(draw.randint(1, 3)):
            full = kind == "run" and draw.random() < 0.3
            phase = draw.choice(WRITES if full else KILLS)
            nth = draw.choice((1, 1, 2, 3, 5, 8))
            mark = self.folder / f"{name}.{number}"
            faults.append(f"{'full' if full else 'kill'} 'phase={phase}' nth={nth} 'once={mark}'")
        return faults

    def _command(self, kind: str, target: str, out: Path, mlflow: str) -> list[str]:
        options = ["--mlflow", mlflow, "--out", str(out), "--device", "cpu"]
        options += ["--checkpoint-every", "0"]
        if kind == "run":
            return [*FOREVER, "run", f"mini/{target}", *SMALL, *options, "--resume"]
        return [*FOREVER, "sweep", str(self.folder / "soak.yaml"), *SMALL, *options]

    def _clean(self, kind: str, target: str) -> Path:
        out = self.folder / f"clean-{kind}-{target}"
        if not out.exists():
            command = self._command(kind, target, out, "off")
            subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)
        return out

    def _until_done(self, kind: str, target: str, name: str, mlflow: str, dies_at: int) -> None:
        """Give the command again and again, as somebody would who finds it dead."""
        command = self._command(kind, target, self.folder / name, mlflow)
        if kind == "sweep":
            command.append("--retry-failed")
        for life in range(LIVES):
            self.tally.lives += 1
            code = self._live(command, name, dies_at if life == 0 else 0)
            if code == 0:
                return
        self.tally.differences.append(f"{self.last}: not done after {LIVES} lives")

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
        self._end_all(process, hangs=time.monotonic() >= give_up)
        return process.wait()

    def _end_all(self, process: "subprocess.Popen[bytes]", hangs: bool) -> None:
        """Wait for the processes that a driver started; the slow ones are noted, and killed."""
        if hangs:
            self.tally.differences.append(f"{self.last}: hangs")
            process.kill()
        process.wait()
        give_up = time.monotonic() + AGENTS_S
        while (living := session(process.pid)) and time.monotonic() < give_up:
            time.sleep(0.1)
        for pid in living:
            self.tally.differences.append(f"{self.last}: process {pid} outlives its driver")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def updates(folder: Path) -> int:
    """How many updates are in the journals of a folder of runs."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("**/steps.jsonl"))


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
            found += [f"{place.name}/{n}" for n in sorted(names) if differ(result.parent, place, n)]
    return found


def facts(result: Path) -> dict[str, object]:
    """A result without what depends on the machine."""
    if not result.is_file():
        return {}
    content = json.loads(result.read_text(encoding="utf-8"))
    return {key: value for key, value in content.items() if key not in MACHINE}


def differ(one: Path, other: Path, name: Path) -> bool:
    """Whether a file is missing in one of two folders, or has other bytes."""
    both = [folder / name for folder in (one, other)]
    return not all(path.is_file() for path in both) or both[0].read_bytes() != both[1].read_bytes()


if __name__ == "__main__":
    typer.run(main)
