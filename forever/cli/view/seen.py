"""A run as its folder tells of it, finished or not, whole or with files that were not kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from forever.config.overrides import flatten
from forever.config.run import RunConfig
from forever.data.benchmarks import find_source
from forever.data.tasks import Example
from forever.errors import InputError
from forever.evaluation.metrics import PerformanceMatrix
from forever.launch.copies import bring
from forever.runs.directory import RunDirectory
from forever.storage.address import portable

_MOST_NAMED = 3


@dataclass(eq=False)
class Seen:
    """A run that has begun; see `look`."""

    directory: RunDirectory

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration under dotted keys, as it was written down."""
        return flatten(self.directory.read_settings())

    @cached_property
    def config(self) -> RunConfig:
        """The configuration; InputError if this release does not know one of its keys."""
        return self.directory.read_config()

    @cached_property
    def finished(self) -> Mapping[str, Any] | None:
        """The content of result.json; None if the run is not over."""
        return self.directory.finished()

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """The content of result.json, or what a run that is not over has of it so far."""
        return self.finished or _so_far(self)

    @cached_property
    def state(self) -> str:
        """Whether it is over, and how it ended."""
        if self.finished:
            return "finished"
        if ended := self.directory.end_without_result():
            return f"{ended['state']}: {ended['reason']}"
        return f"unfinished, {len(self.result['stages'])} tasks are scored; --resume goes on"

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The updates; none if their file was not kept."""
        return self.directory.read_steps()

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The replays and looks; none if their file was not kept."""
        return self.directory.read_events()

    @cached_property
    def answers(self) -> dict[str, list[dict[str, Any]]]:
        """The last answers to each task, without tasks whose answers were not kept."""
        last = len(self.result["stages"]) - 1
        answers: dict[str, list[dict[str, Any]]] = {}
        for number, task in enumerate(self.result["tasks"]):
            if self.directory.predictions(last, number).is_file():
                answers[task] = self.directory.read_answers(last, number)
        return answers

    def questions(self, task: str) -> dict[str, Example]:
        """The test examples of a task by their ids, from its data.

        Raises:
            InputError: the data are not here, or are not those that the run was scored on.
        """
        found = find_source(self.config.data).task(task)
        noted = self.result.get("data", {}).get(task)
        if noted not in (None, found.digest()):
            raise InputError(f"its data have changed since ({found.digest()}, the run had {noted})")
        return {example.id: example for example in found.test}


def look(path: Path) -> Seen:
    """Find a run in a folder, which may stand for an address.

    Raises:
        InputError: there is none, or a file of it is not what was written.
    """
    bring(path)
    directory = RunDirectory(path)
    if directory.config.is_file():
        directory.verify(complete=False)
        return Seen(directory)
    inside = sorted(file.parent.name for file in directory.path.glob("*/config.yaml"))
    rule = "a run's folder has a config.yaml"
    if inside:
        more = ", ..." if len(inside) > _MOST_NAMED else ""
        rule = f"give one of the runs in it: {', '.join(inside[:_MOST_NAMED])}{more}"
    raise InputError(f"{portable(path)} holds no run; {rule}")


def _so_far(seen: Seen) -> dict[str, Any]:
    """What result.json would say of the stages that are scored."""
    config, directory = seen.config, seen.directory
    order = find_order(seen)
    matrix = PerformanceMatrix(tuple(order), tuple(order))
    stages = 0
    while stages < len(order) and directory.sound_answers(stages, stages):
        for task in range(stages + 1):
            answers = directory.sound_answers(stages, task) or []
            if answers:
                matrix.items[task, stages] = [answer["score"] for answer in answers]
        stages += 1
    matrix = matrix.until(stages - 1)
    complete = all((task, stages - 1) in matrix.items for task in range(stages)) and stages > 0
    return {
        "method": config.method.name,
        "seed": config.seed,
        "benchmark": config.data.benchmark,
        "tasks": list(matrix.tasks),
        "stages": list(matrix.stages),
        "matrix": matrix.rows(),
        "op": matrix.overall() if complete else None,
        "bwt": matrix.backward_transfer() if complete else None,
    }


def find_order(seen: Seen) -> list[str]:
    """The tasks in the order in which they are trained, by the journal if it has begun."""
    if not isinstance(seen.config.data.order, str):
        return list(seen.config.data.order)
    return list(dict.fromkeys(line["task"] for line in seen.steps))
