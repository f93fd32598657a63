"""A search as pure data: a base run and a space around it. Optuna and Ray are not known here."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.files import SweepFile
from forever.sweeps.parts import Axis, value_of
from forever.sweeps.sweep import Sweep, Trial

BASE = "base"
# Of the training examples, for what is scored while searching: the test examples must not choose.
VALIDATION = 0.2


@dataclass(frozen=True)
class Search:
    """Runs that are found while they run, `trials` of them in all if nobody says otherwise.

    They have the seed of `base`. `name` and `source` are as in `Sweep`.
    """

    name: str
    base: RunConfig
    space: tuple[Axis, ...]
    trials: int
    source: str = ""

    def ask(self, trial: Any) -> dict[str, Any]:
        """A point of the space from an Optuna trial, as dotted keys."""
        return self._point(lambda axis: axis.ask(trial))

    def _point(self, choose: Callable[[Axis], Any]) -> dict[str, Any]:
        point: dict[str, Any] = {}
        for axis in self.space:
            if axis.acts(point):
                point[axis.key] = choose(axis)
        return point

    @cached_property
    def own_point(self) -> dict[str, Any] | None:
        """Where the base, with which the others are compared, lies in the space; None: outside."""
        point = self._point(lambda axis: value_of(axis.key, self.base))
        inside = all(axis.holds(point[axis.key]) for axis in self.space if axis.key in point)
        return point if inside else None

    def sweep(self, point: Mapping[str, Any]) -> Sweep:
        """A point as a sweep of one run."""
        name = BASE
        if self.base.override(point) != self.base:
            labels = {axis.key: axis.label for axis in self.space}
            name = " ".join(f"{labels[key]}{_text(value)}" for key, value in point.items())
        reference = "" if self.own_point is None else BASE
        seeds, variants = (self.base.seed,), {name: point}
        return Sweep(self.name, self.base, variants, seeds, reference=reference, source=self.source)

    def trial(self, point: Mapping[str, Any]) -> Trial:
        """The run of a point; its key is stable.

        Raises:
            InputError: the run cannot be.
        """
        return self.sweep(point).trials()[0]

    def study_name(self) -> str:
        """Name of the study: another base or another space in the same folder has another one."""
        space = json.dumps([axis.model_dump() for axis in self.space], default=str)
        digest = hashlib.sha256((self.base.fingerprint() + space).encode()).hexdigest()
        return f"{self.base.key()}, space {digest[:6]}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def find_search(file: SweepFile, base: RunConfig, seeds: Sequence[int] | None = None) -> Search:
    """The search that a file describes around a base run.

    Args:
        seeds: the one seed of all its runs; None for the base's own.

    Raises:
        InputError: there are several seeds, or the file has no space of the base's method.
    """
    if seeds and len(seeds) > 1:
        raise InputError(
            "search compares all its runs on one seed; run the best ones again with the others"
        )
    if seeds:
        base = base.override({"seed": seeds[0]})
    if base.data.validation is None:
        base = base.override({"data.validation": VALIDATION})
    method = base.method.name
    axes = file.space if file.method in (None, method) else file.spaces.get(method, {})
    if not axes:
        raise InputError(
            f"{file.name} has no space of {method!r}; give it one under `spaces`, or a base run "
            f"of {file.method!r}"
        )
    space = tuple(axis.around(base, key) for key, axis in axes.items())
    return Search(file.name, base, space, file.trials, file.source)
