"""A run's files: the truth of a run. Trackers and reports read from here.

Beside those in `RunDirectory` there are predictions/<stage>/<task>.jsonl (both from 1; stage 0 is
before training) and stages/<stage>/ (weights after a stage, kept on request).

Nothing of a run counts that is not what was written: files that are written once have a line in
SHA256SUMS, checkpoints a manifest, and the journal's digests are in each checkpoint and in the
result (docs/faults.md).
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from forever.config.overrides import difference_lines, joined_lines
from forever.config.run import RunConfig
from forever.errors import InputError, one_line
from forever.files import (
    DAMAGED,
    SUMS,
    Shape,
    as_fields,
    as_lines,
    check_noted,
    json_lines,
    note,
    read_bytes,
    read_lines,
    read_noted,
    read_sealed,
    read_sums,
    sha256,
    shaped,
    sync,
    sync_folder,
    write_noted,
    write_sealed,
    writing,
)
from forever.reading import check_links
from forever.runs.shapes import (
    Answer,
    Ended,
    Environment,
    Fork,
    Line,
    Result,
    Settings,
    check_digest,
    check_version,
)
from forever.text import complain
from forever.yaml_file import read_value


class RunDirectory:
    """The folder of one run, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # without .., which leads through other folders
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.steps = self.path / "steps.jsonl"
        self.events = self.path / "events.jsonl"
        self.result = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.ended = self.path / "ended.json"  # why there is no result
        self.fork = self.path / "fork.json"  # which run's stage it began from

    def weights(self, stage: int) -> Path:
        """The checkpoint of a trained stage (from 0), if it was kept."""
        return self.path / "stages" / str(stage + 1)

    def predictions(self, stage: int, task: int) -> Path:
        """The file with the answers to a task after a stage (both from 0)."""
        return self.path / "predictions" / str(stage + 1) / f"{task + 1}.jsonl"

    # ---- reading: what is not what was written is refused by an InputError that names it

    def read_config(self) -> RunConfig:
        """The configuration of a run that has begun; InputError if it is damaged."""
        values = self.read_settings()
        try:
            return RunConfig.written(values)
        except ValueError as error:
            problem = f"{self.config} cannot be read ({one_line(error)})"
            raise InputError(f"{problem}; give another run, or another --out") from None

    def read_settings(self) -> dict[str, Any]:
        """The configuration as plain data, which may be of an earlier release."""
        return self._read(self.config, Settings, read_value)

    def read_environment(self) -> dict[str, Any]:
        """Where the run was trained first, and under `resumed` where it went on."""
        return self._read(self.environment, Environment)

    def read_lives(self) -> list[dict[str, Any]]:
        """Where it was trained: more than one if it went on elsewhere or with other code."""
        first = self.read_environment()
        return [first, *first.get("resumed", [])]

    def read_fork(self) -> dict[str, Any] | None:
        """Which run's stage it began from, if it is a fork."""
        return self._read(self.fork, Fork) if self.fork.is_file() else None

    def finished(self) -> dict[str, Any] | None:
        """The result, if the run is over."""
        if not self.result.is_file():
            return None
        result = as_fields(self.result, self.read(self.result))
        check_version(self.result, result.get("schema_version"))
        shaped(self.result, result, Result)
        if result["schema_version"] > 1 and read_sums(self.path) is None:
            raise InputError(f"{self.path / SUMS} is missing; {DAMAGED}")
        rows, columns = len(result.get("tasks", ())), len(result.get("stages", ()))
        matrix = result.get("matrix", ())
        if len(matrix) != rows or any(len(row) != columns for row in matrix):
            raise InputError(f"{self.result}: its matrix has not a row a task, a column a stage")
        if not result.get("rows", {}).keys() >= {*result.get("tasks", ())}:
            raise InputError(f"{self.result} does not say how many rows each task has; {DAMAGED}")
        return result

    def read_answers(self, stage: int, task: int) -> list[dict[str, Any]]:
        """The answers to a task after a stage (both from 0)."""
        path = self.predictions(stage, task)
        answers = as_lines(path, self.read(path))
        for answer in answers:
            shaped(path, answer, Answer)
        if not answers:
            raise InputError(f"{path} holds no answers; {DAMAGED}")
        return answers

    def sound_answers(self, stage: int, task: int) -> list[dict[str, Any]] | None:
        """As `read_answers`; None if they are missing or damaged."""
        try:
            return self.read_answers(stage, task)
        except InputError:
            return None

    def has_steps(self) -> bool:
        """Whether updates were written down."""
        return self.steps.is_file() and self.steps.stat().st_size > 0

    def read_steps(self) -> list[dict[str, Any]]:
        """The updates so far; none if their file was not kept."""
        return [shaped(self.steps, line, Line) for line in read_lines(self.steps)]

    def read_events(self) -> list[dict[str, Any]]:
        """The replays and looks so far; none if their file was not kept."""
        return [shaped(self.events, line, Line) for line in read_lines(self.events)]

    def verify(self, complete: bool = True) -> dict[str, Any] | None:
        """The result, if the run is over; the journal of another is left to who goes on with it.

        Raises:
            InputError: a file is not what was written, leads out of the folder, or is missing from
                a result that must be `complete`.
        """
        check_links(self.path)
        result, sums = self.finished(), read_sums(self.path)
        check_noted(self.path, complete and result is not None)
        if result is None:
            return None
        for path in self._needed(result):
            name = path.relative_to(self.path).as_posix()
            if sums is not None and name not in sums and (complete or path.is_file()):
                raise InputError(f"{path} has no line in {SUMS}, which is damaged; {DAMAGED}")
        if result["schema_version"] > 1:
            journal: dict[str, str] = result.get("journal", {})
            for path in (self.steps, self.events):
                if complete or path.is_file():
                    check_digest(path, read_bytes(path), journal.get(path.name))
        return result

    def _needed(self, result: Mapping[str, Any]) -> Iterator[Path]:
        """The files without which a result says nothing."""
        yield from (self.config, self.environment)
        for task, row in enumerate(result.get("matrix", ())):
            for stage, score in enumerate(row):
                if score is not None:
                    yield self.predictions(stage, task)

    def read(self, path: Path) -> bytes:
        """The content of a file that has a line in SHA256SUMS, if the run's files have."""
        name = path.relative_to(self.path).as_posix()
        return read_noted(self.path, name, read_sums(self.path))

    def _read(self, path: Path, shape: type[Shape], parse: Any = json.loads) -> dict[str, Any]:
        return shaped(path, as_fields(path, self.read(path), parse), shape)

    # ---- writing

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuse to mix two runs in one folder, by an InputError, without touching anything."""
        check_links(self.path)
        if not self.config.is_file():
            noted = (read_sums(self.path) or {}).get(self.config.name)
            # A fork that was planted has a journal before it begins, which is when `create` notes
            # the configuration and then writes it.
            begins = noted is None or sha256(config.text().encode()) in noted
            if self.steps.is_file() and not (self.fork.is_file() and begins):
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
                f"{self.path} holds an unfinished run; go on with it by --resume, "
                "or give another --out"
            )

    def create(self, config: RunConfig, environment: Mapping[str, Any]) -> None:
        """Write what describes the run, and as `resumed` where it goes on, if that is new."""
        if read_sums(self.path) is None:  # it was begun, or planted, by an earlier release
            self.adopt(self.config, self.environment, self.fork)
        self._write_environment(environment)
        if not self.config.is_file():
            self.write(self.config, config.text())

    def _write_environment(self, environment: Mapping[str, Any]) -> None:
        lives: list[Mapping[str, Any]] = []
        if self.environment.is_file():
            try:
                lives += self.read_lives()
            except InputError as error:  # no number was computed from it
                complain(f"{error}; it is written anew")
        # The command differs always: it says --resume.
        asked = [key for key in environment if key != "argv"]
        if not lives or any(lives[-1].get(key) != environment[key] for key in asked):
            self._write_lives([*lives, environment])

    def _write_lives(self, lives: Sequence[Mapping[str, Any]]) -> None:
        first, *resumed = lives
        content = {**first, "resumed": resumed} if resumed else {**first}
        self.write(self.environment, json.dumps(content, indent=2) + "\n")

    def write(self, path: Path, text: str) -> None:
        """Write a file of the run after its line in SHA256SUMS."""
        write_noted(self.path, path.relative_to(self.path).as_posix(), text)

    def write_answers(self, stage: int, task: int, answers: Iterable[Mapping[str, Any]]) -> None:
        """Write the answers to a task after a stage (both from 0).

        They are on the disk itself after `sync_answers`. What a power cut takes before is damaged
        or missing, and is given again by the weights of the stage.
        """
        name = self.predictions(stage, task).relative_to(self.path).as_posix()
        write_noted(self.path, name, json_lines(answers), durable=False)

    def sync_answers(self, stages: Iterable[int]) -> None:
        """Bring the answers after some stages (from 0) to the disk itself."""
        with writing(self.path):
            for stage in stages:
                sync_folder(self.predictions(stage, 0).parent)
            sync(self.path / SUMS)

    def adopt(self, *paths: Path) -> None:
        """List files as they are, which came from another folder or an earlier release."""
        sums, contents = read_sums(self.path) or {}, dict[str, bytes]()
        for path in paths:
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and name not in sums:
                contents[name] = read_bytes(path)
        note(self.path, contents)

    def all_answers(self) -> list[Path]:
        """The files of all answers."""
        return sorted(self.path.glob("predictions/*/*.jsonl"))

    def accept(self, changes: Sequence[str]) -> None:
        """Note, as `resumed`, that the run goes on although something of it changed."""
        lives = self.read_lives()
        self._write_lives([*lives, {**lives[-1], "accepted": list(changes)}])

    def end(self, state: Literal["failed", "stopped"], reason: str) -> None:
        """Say that the run is over without a result: failed for good, or stopped by a search."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        write_sealed(self.ended, {"state": state, "reason": reason, "time": time})

    def end_without_result(self) -> dict[str, Any] | None:
        """What `end` wrote, if the run is over without a result."""
        if self.result.is_file() or not self.ended.is_file():
            return None
        return shaped(self.ended, read_sealed(self.ended), Ended)
