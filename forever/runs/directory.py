"""A run's files: the truth of a run. Trackers and reports read from here.

Beside those in `RunDirectory` there are predictions/<stage>/<task>.jsonl (both from 1; stage 0 is
before training) and stages/<stage>/ (weights after a stage, kept on request).
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from forever.config.overrides import difference_lines
from forever.config.run import RunConfig
from forever.errors import InputError


class RunDirectory:
    """The folder of one run, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.steps = self.path / "steps.jsonl"
        self.events = self.path / "events.jsonl"
        self.result = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.ended = self.path / "ended.json"  # why there is no result
        self.fork = self.path / "fork.json"  # which run's stage it began from
        self.shared = self.path / "shared.json"  # which run of the sweep trained its first task

    def weights(self, stage: int) -> Path:
        """The checkpoint of a trained stage (from 0), if it was kept."""
        return self.path / "stages" / str(stage + 1)

    def predictions(self, stage: int, task: int) -> Path:
        """The file with the answers to a task after a stage (both from 0)."""
        return self.path / "predictions" / str(stage + 1) / f"{task + 1}.jsonl"

    def read_config(self) -> RunConfig:
        """The configuration of a run that has begun; InputError if it is damaged."""
        try:
            return RunConfig.parse(yaml.safe_load(self.config.read_text(encoding="utf-8")))
        except (yaml.YAMLError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{self.config} cannot be read ({reason}); give another run, or another --out"
            ) from None

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuse to mix two runs in one folder, by an InputError, without touching anything."""
        if not self.config.is_file():
            return
        saved = self.read_config().identity()
        if saved != config.identity():
            differing = ", ".join(difference_lines(saved, config.identity())[:3])
            raise InputError(
                f"{self.path} holds a run of another configuration ({differing}); "
                "give another --out"
            )
        if not self.result.is_file() and not resume:
            raise InputError(
                f"{self.path} holds an unfinished run; go on with it by --resume, "
                "or give another --out"
            )

    def create(self, config: RunConfig, environment: Mapping[str, Any]) -> None:
        """Write what describes the run, and as `resumed` where it goes on, if that is new."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.config.is_file():
            write_text(self.environment, json.dumps(environment, indent=2) + "\n")
            write_text(self.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        elif self.environment.is_file():
            first = read_json(self.environment)
            resumed = first.get("resumed", [])
            last = resumed[-1] if resumed else first
            # The command differs always: it says --resume.
            if any(last.get(key) != environment[key] for key in environment.keys() - {"argv"}):
                content = {**first, "resumed": [*resumed, environment]}
                write_text(self.environment, json.dumps(content, indent=2) + "\n")

    def accept(self, changes: Sequence[str]) -> None:
        """Note, as `resumed`, that the run goes on although something of it changed."""
        first = read_json(self.environment) if self.environment.is_file() else {}
        resumed = first.get("resumed", [])
        last = resumed[-1] if resumed else first
        content = {**first, "resumed": [*resumed, {**last, "accepted": list(changes)}]}
        write_text(self.environment, json.dumps(content, indent=2) + "\n")

    def finished(self) -> dict[str, Any] | None:
        """The result, if the run is over."""
        return read_json(self.result) if self.result.is_file() else None

    def end(self, state: Literal["failed", "stopped"], reason: str) -> None:
        """Say that the run is over without a result: failed for good, or stopped by a search."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"state": state, "reason": reason, "time": time}
        write_text(self.ended, json.dumps(content) + "\n")

    def end_without_result(self) -> dict[str, str] | None:
        """What `end` wrote, if the run is over without a result."""
        if self.result.is_file() or not self.ended.is_file():
            return None
        return read_json(self.ended)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; InputError if it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path} cannot be read ({error}); remove it, or take it from a backup"
        ) from None
    if not isinstance(content, dict):
        raise InputError(
            f"{path} cannot be read: it holds {type(content).__name__}, not named fields"
        )
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, if it exists, without a last line that was cut off."""
    if not path.is_file():
        return []
    # Not splitlines: it also breaks at U+2028 and others, which JSON leaves inside of a text.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def last_line(path: Path) -> dict[str, Any] | None:
    """The last complete object of a JSON-lines file, if there is one."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return json.loads(lines[-1]) if lines else None


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSON-lines file as a whole."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def keep_lines(path: Path, count: int) -> None:
    """Cut a JSON-lines file after `count` lines."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        write_text(path, "".join(line + "\n" for line in lines[:count]))


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    _make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)  # otherwise a power cut could take the name away


def _make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that a power cut does not take them away."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
