"""A run's files: the truth of a run. Trackers and reports read from here.

Beside the files in `RunDirectory` there are predictions/<stage>/<task>.jsonl (both from 1; stage 0
is before training) and stages/<stage>/ (weights after a stage, kept on request).

A finished run has manifest.json with the digests of its files; the checkpoints of an unfinished one
have the digests of its past. The folder's name, config.yaml and result.json carry one fingerprint,
so no run is taken for another (docs/faults.md).
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from forever.config.overrides import difference_lines, joined_lines
from forever.config.run import RunConfig, in_todays_names
from forever.errors import InputError, one_line, shown
from forever.files import (
    DAMAGED,
    as_fields,
    as_lines,
    check_digest,
    file_digest,
    json_lines,
    read_bytes,
    read_json,
    read_lines,
    sha256,
    sync_folder,
    write_text,
    writing,
)
from forever.yaml_file import read_value

SCHEMA_VERSION = 3  # of a run's folder and a sweep's
# The names of folders that are keys (`RunConfig.key`, `Trial.key`), also of forks (`Origin.key`).
_KEY = re.compile(r".*?-([0-9a-f]{8})(-after\d+-[0-9a-f]{8})?")
_FINGERPRINT = re.compile(r"# fingerprint: ([0-9a-f]{12})$", re.MULTILINE)
_TEMPORARY = re.compile(r"\..+\.\d+")  # what a killed process wrote by half
_WEIGHTS = ("adapter/", "model/")  # large, or not kept: who reads them checks them


class RunDirectory:
    """The folder of one run, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # without .., which leads through other folders
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.steps = self.path / "steps.jsonl"
        self.events = self.path / "events.jsonl"
        self.result = self.path / "result.json"
        self.manifest = self.path / "manifest.json"  # of a finished run: digests by file
        self.checkpoints = self.path / "checkpoints"
        self.ended = self.path / "ended.json"  # why there is no result
        self.fork = self.path / "fork.json"  # which run's stage it began from

    def weights(self, stage: int) -> Path:
        """The checkpoint of a trained stage (from 0), if it was kept."""
        return self.path / "stages" / str(stage + 1)

    def constants(self, stage: int) -> Path:
        """What the method computed for good after a stage (from 0)."""
        return self.path / "constants" / f"{stage + 1}.safetensors"

    def memory(self, stage: int) -> Path:
        """The examples that were kept of a stage's task (from 0), for a run that grows from it."""
        return self.path / "memory" / f"{stage + 1}.jsonl"

    def predictions(self, stage: int, task: int) -> Path:
        """The file with the answers to a task after a stage (both from 0)."""
        return self.path / "predictions" / str(stage + 1) / f"{task + 1}.jsonl"

    def name(self, path: Path) -> str:
        """How manifests call a file of the run."""
        return path.relative_to(self.path).as_posix()

    # ---- reading: damaged files are refused by an InputError that names them

    def read_config(self) -> RunConfig:
        """Return the configuration of a run that has begun."""
        values = self.read_settings()
        try:
            config = RunConfig.parse(values)
        except ValueError as error:
            problem = f"{self.config} cannot be read ({one_line(error)})"
            raise InputError(f"{problem}; give another run, or another --out") from None
        # Committed runs have paths without folders, and their manifests for certainty.
        stored = self._fingerprint()
        if stored and not self.result.is_file() and stored != config.fingerprint():
            raise InputError(f"{self.config} was edited since the run began; {DAMAGED}")
        return config

    def read_settings(self) -> dict[str, Any]:
        """Return the configuration as plain data, without judging its values."""
        settings = as_fields(self.config, read_bytes(self.config), read_value)
        self._check_fingerprints(self._fingerprint())
        return in_todays_names(settings)

    def _fingerprint(self) -> str | None:
        """Return the fingerprint that config.yaml carries in a comment."""
        if not self.config.is_file():
            return None
        found = _FINGERPRINT.match(read_bytes(self.config).decode("utf-8", errors="replace"))
        return found[1] if found else None

    def _check_fingerprints(self, *stored: str | None) -> None:
        """Refuse a folder with parts of several runs: each of its parts carries one fingerprint."""
        key = _KEY.fullmatch(self.path.name)
        known = {fingerprint[:8] for fingerprint in stored if fingerprint}
        if len(known | ({key[1]} if key else set())) > 1:
            raise InputError(
                f"{self.path} holds the files of another run ({', '.join(sorted(known))}); its "
                "name, config.yaml and result.json must have one fingerprint: put each run back "
                "into the folder of its name"
            )

    def read_environment(self) -> dict[str, Any]:
        """Return where the run was trained first, and under `resumed` where it was resumed."""
        return read_json(self.environment)

    def read_lives(self) -> list[dict[str, Any]]:
        """Return where it was trained: several places if it was resumed elsewhere or changed."""
        first = self.read_environment()
        return [first, *first.get("resumed", [])]

    def mixed_tests(self) -> list[str]:
        """Return the tasks that were scored on other test examples before the run was resumed."""
        lives = self.read_lives() if self.environment.is_file() else []
        return sorted({task for life in lives for task in life.get("mixed_tests", ())})

    def why_no_bwt(self) -> str:
        """Return in words why a run of several tasks has no BWT; "" if it has one."""
        if tasks := ", ".join(self.untested().values()):
            return (
                f"no BWT: the test examples of {tasks} were not at hand when it grew from another "
                "run, so OP is that of the other tasks"
            )
        if not (tasks := ", ".join(self.mixed_tests())):
            return ""
        return (
            f"no BWT: it was resumed with --accept-changes and other test examples of {tasks}, so "
            "early and late scores are on different ones"
        )

    def read_fork(self) -> dict[str, Any] | None:
        """Return which run's stage it began from, if it is a fork."""
        return read_json(self.fork) if self.fork.is_file() else None

    def learned(self) -> dict[str, dict[str, Any]]:
        """Return what a fork knows of the tasks before it, in their order: fields of `Learned`."""
        return (self.read_fork() or {}).get("learned", {})

    def untested(self) -> dict[int, str]:
        """Return the tasks without test examples at hand, by number from 0."""
        tasks = enumerate(self.learned().items())
        return {number: name for number, (name, task) in tasks if not task["tested"]}

    def finished(self) -> dict[str, Any] | None:
        """Return the result, if the run is over."""
        if not self.result.is_file():
            return None
        result = read_json(self.result)
        check_version(self.result, result.get("schema_version"))
        manifest = read_json(self.manifest)
        for path in (self.result, self.config):
            if self.name(path) in manifest:
                check_digest(path, manifest[self.name(path)])
        self._check_fingerprints(self._fingerprint(), result.get("fingerprint"))
        return result

    def verify(self, complete: bool = True) -> dict[str, Any] | None:
        """Return the result, if the run is over, and refuse it if one of its files has changed.

        Args:
            complete: whether missing files are refused, too. Weights may always be missing.
        """
        result = self.finished()
        if result is not None:
            self.check_files(read_json(self.manifest), complete)
        elif self.config.is_file():
            self.read_settings()
        return result

    def check_files(self, digests: Mapping[str, str], complete: bool = True) -> None:
        """Refuse files that do not have these digests; those of weights are not computed."""
        for name, digest in digests.items():
            if not name.startswith(_WEIGHTS) and (complete or (self.path / name).is_file()):
                check_digest(self.path / name, digest)

    def check_weights(self, complete: bool = False) -> None:
        """Refuse trained weights that are not those that the finished run wrote."""
        for name, digest in read_json(self.manifest).items():
            if name.startswith(_WEIGHTS) and (complete or (self.path / name).is_file()):
                check_digest(self.path / name, digest)

    def read_answers(self, stage: int, task: int) -> list[dict[str, Any]]:
        """Return the answers to a task after a stage (both from 0)."""
        path = self.predictions(stage, task)
        answers = as_lines(path, read_bytes(path))
        if not answers:
            raise InputError(f"{path} holds no answers; {DAMAGED}")
        return answers

    def sound_answers(self, stage: int, task: int) -> list[dict[str, Any]] | None:
        """As `read_answers`; None if they are missing or damaged."""
        try:
            return self.read_answers(stage, task)
        except InputError:
            return None

    def all_answers(self) -> list[Path]:
        """Return the files of all answers."""
        return sorted(self.path.glob("predictions/*/*.jsonl"))

    def read_steps(self) -> list[dict[str, Any]]:
        """Return the updates so far; none if their file was not kept."""
        return read_lines(self.steps)

    def read_events(self) -> list[dict[str, Any]]:
        """Return the replay events and probes so far; none if their file was not kept."""
        return read_lines(self.events)

    def is_fork(self) -> bool:
        """Whether it begins from a stage of another run, by its file or by the folder's name."""
        key = _KEY.fullmatch(self.path.name)
        return self.fork.is_file() or bool(key and key[2])

    def end_without_result(self) -> dict[str, Any] | None:
        """Return what `end` wrote, if the run is over without a result."""
        if self.result.is_file() or not self.ended.is_file():
            return None
        return read_json(self.ended)

    # ---- writing

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuse to mix two runs in one folder, by an InputError, without touching anything."""
        if not self.config.is_file():
            # A fork that was planted has a journal before its configuration is written.
            if self.steps.is_file() and not self.fork.is_file():
                raise InputError(f"{self.config} is missing; {DAMAGED}")
            return
        saved = self.read_config().identity()
        if saved != config.identity():
            differing = joined_lines(difference_lines(saved, config.identity()))
            raise InputError(
                f"{self.path} holds a run of another configuration ({differing}); "
                "give another --out"
            )
        if not self.result.is_file() and not resume:
            raise InputError(
                f"{self.path} holds an unfinished run; resume it with --resume, "
                "or give another --out"
            )

    def create(self, config: RunConfig, environment: Mapping[str, Any]) -> None:
        """Write what describes the run, and as `resumed` where it is resumed, if that is new."""
        lives = self.read_lives() if self.environment.is_file() else []
        # The command always differs: it says --resume.
        keys = [key for key in environment if key != "argv"]
        if not lives or any(lives[-1].get(key) != environment[key] for key in keys):
            self._write_lives([*lives, environment])
        if not self.config.is_file():
            self.write_config(config.text(), config.fingerprint())

    def clear(self) -> None:
        """Remove what was written of a run that could not begin; the lock stays, which is held."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()

    def write_config(self, text: str, fingerprint: str) -> None:
        """Write a configuration, with the fingerprint that it had when the run began."""
        write_text(self.config, f"# fingerprint: {fingerprint}\n{text}")

    def accept(self, changes: Sequence[str], mixed_tests: Sequence[str]) -> None:
        """Note, as `resumed`, that the run is resumed although something of it changed: for tasks
        that were scored already, perhaps their test examples."""
        lives, notes = self.read_lives(), {"accepted": list(changes)}
        if mixed_tests:
            notes["mixed_tests"] = list(mixed_tests)
        self._write_lives([*lives, {**lives[-1], **notes}])

    def _write_lives(self, lives: Sequence[Mapping[str, Any]]) -> None:
        first, *resumed = lives
        content = {**first, "resumed": resumed} if resumed else {**first}
        write_text(self.environment, json.dumps(content, indent=2) + "\n")

    def write_answers(self, stage: int, task: int, answers: Iterable[Mapping[str, Any]]) -> str:
        """Write the answers to a task after a stage (both from 0), and return their digest.

        They are on the disk itself after `sync_answers`. What a power cut takes before is damaged
        or missing, and is given again by the weights of the stage.
        """
        text = json_lines(answers)
        write_text(self.predictions(stage, task), text, durable=False)
        return sha256(text.encode())

    def sync_answers(self, stages: Iterable[int]) -> None:
        """Bring the answers after some stages (from 0) to the disk itself."""
        with writing(self.path):
            for stage in stages:
                sync_folder(self.predictions(stage, 0).parent)

    def drop_answers(self, after: int) -> None:
        """Remove the answers after later stages than the first `after`."""
        with writing(self.path):
            for folder in (self.path / "predictions").glob("*"):
                if folder.name.isdigit() and int(folder.name) > after:
                    shutil.rmtree(folder)

    def clean(self) -> None:
        """Remove what a killed process wrote by half; the caller holds the folder's lock."""
        with writing(self.path):
            for path in sorted(self.path.rglob(".*")):
                if _TEMPORARY.fullmatch(path.name) and path.is_dir():
                    shutil.rmtree(path)
                elif _TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def finish(self, result: Mapping[str, Any], digests: Mapping[str, str] = {}) -> None:
        """Write the result of the run, after the manifest of its files.

        Args:
            digests: those of files as they were written; of others they are computed now.

        Raises:
            InputError: a file has no longer the digest that it was written with.
        """
        self.check_files(digests)
        manifest = dict(digests)
        paths = [self.config, self.environment, self.fork, self.steps, self.events]
        paths += sorted(self.path.glob("memory/*.jsonl"))
        paths += [path for name in _WEIGHTS for path in (self.path / name).rglob("*")]
        for path in (*paths, *self.all_answers()):
            if path.is_file():
                manifest.setdefault(self.name(path), file_digest(path))
        text = json.dumps(result, indent=1) + "\n"
        manifest[self.name(self.result)] = sha256(text.encode())
        write_text(self.manifest, json.dumps(manifest, indent=1) + "\n")
        write_text(self.result, text)

    def end(self, state: Literal["failed", "stopped"], reason: str) -> None:
        """Say that the run is over without a result: failed for good, or stopped by a search."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"state": state, "reason": reason, "time": time}
        write_text(self.ended, json.dumps(content) + "\n")


def check_version(path: Path, version: Any) -> None:
    """Refuse the file of another release, by an InputError."""
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema_version {shown(version)}, and this release reads {SCHEMA_VERSION}; "
            "read it with the release that wrote it, or run again into another --out"
        )
