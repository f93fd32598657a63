"""Many runs as pure data: a base run x named differences x orders x seeds."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from forever.config.run import RunConfig
from forever.errors import InputError, unknown
from forever.files import read_json, write_text
from forever.runs.directory import SCHEMA_VERSION, check_version

MANIFEST = "sweep.json"
# Fine-tuning does nothing against forgetting and joint training has nothing to forget: what methods
# are seen between.
BOUNDS = {"finetune", "mtl"}
MOST_RUNS = 10_000  # which nobody has time for, and of which a list is made in seconds


@dataclass(frozen=True)
class Trial:
    """One run of a sweep. `key` names its directory and never changes for the same configuration
    and variant."""

    key: str
    variant: str
    order: str
    seed: int
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A family of runs: each variant (dotted keys that differ from the base, by name) on each order
    (likewise; none is the base's own) with each seed.

    Attributes:
        name: also the name of the MLflow experiment and of the folder.
        reference: the variant that the others are compared with in reports.
        paper: for variants that stand for one of the paper's under another name, that name.
        references: for variants that are compared with another than `reference`, its name; with
            themselves: with none.
        factors: where variants are the cells of two factors, by factor the level of each variant.
        selected: the variants to run now; None: all.
        source: the text of a file that is not shipped, which is kept beside the runs.
    """

    name: str
    base: RunConfig
    variants: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...] = (0,)
    orders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: str = "base"
    paper: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    selected: frozenset[str] | None = None
    source: str = ""

    COPY: ClassVar[str] = "sweep.yaml"

    def chosen(self) -> list[str]:
        """The names of the variants to run now, in order."""
        return [name for name in self.variants if self.selected is None or name in self.selected]

    def trials(self) -> list[Trial]:
        """All runs, seeds outermost, so that an interrupted sweep has compared all variants on the
        first seeds.

        Raises:
            InputError: a variant that does not fit the base, or too many runs.
        """
        order = self.base.data.order
        places = self.orders or {order if isinstance(order, str) else "custom": {}}
        check_count(self.name, len(self.seeds) * len(places) * len(self.chosen()))
        trials: list[Trial] = []
        for seed, (order, place), variant in product(self.seeds, places.items(), self.chosen()):
            try:
                changes = {**self.variants[variant], **place, "seed": seed}
                config = self.base.override(changes)
            except InputError as error:
                raise InputError(f"sweep {self.name}, variant {variant!r}: {error}") from None
            key = f"{slug(variant)}-o{slug(order)}-s{seed}-{config.fingerprint()[:8]}"
            trials.append(Trial(key, variant, order, seed, config))
        first: dict[str, str] = {}
        for trial in trials:
            if first.setdefault(trial.key, trial.variant) != trial.variant:
                names = f"{first[trial.key]!r} and {trial.variant!r}"
                raise InputError(f"sweep {self.name}: {names} have one folder; give another name")
        return trials

    def only(self, names: Sequence[str]) -> "Sweep":
        """The variants of these names and those that they are compared with; no names: all of them.

        Raises:
            InputError: a name that no variant has.
        """
        for name in names:
            if name not in self.variants:
                raise unknown(f"variant of {self.name}", name, self.variants)
        compared = {self.references.get(name, self.reference) for name in names}
        return replace(self, selected=frozenset({*names, *compared}) or None)

    def write_manifest(self, folder: Path) -> None:
        """Say in `folder` which run is which, for reports; runs of earlier invocations stay listed.

        Variants of one sweep are in its order, in whatever order they were run. Those of this
        invocation are the newest: of two runs with other settings, one has the variant's name.
        """
        before: dict[str, Any] = {"trials": [], "references": {}, "paper": {}}
        if (folder / MANIFEST).is_file():
            before = read_manifest(folder)
        trials = {trial["key"]: trial for trial in before["trials"]}
        newest = [trial.key for trial in self.trials()]
        for trial in self.trials():
            trials[trial.key] = {
                "key": trial.key,
                "variant": trial.variant,
                "benchmark": trial.config.data.benchmark,
                "order": trial.order,
                "seed": trial.seed,
            }
        listed = list(trials.values())
        rank = {variant: place for place, variant in enumerate(self.variants)}
        if all(trial["variant"] in rank for trial in listed):  # a search has one variant at a time
            listed.sort(key=lambda trial: (trial["seed"], rank[trial["variant"]]))
        content = {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "reference": self.reference,
            "references": {**before["references"], **self.references},
            "paper": {**before["paper"], **self.paper},
            "factors": self.factors,
            "newest": newest,
            "trials": listed,
        }
        write_text(folder / MANIFEST, json.dumps(content, indent=1) + "\n")
        if self.source:
            write_text(folder / self.COPY, self.source)


def check_count(name: str, runs: int) -> None:
    """Refuse, by an InputError, more runs than anybody can mean."""
    if runs > MOST_RUNS:
        raise InputError(
            f"{name}: {runs} runs are more than {MOST_RUNS}; give fewer seeds, variants or trials"
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` wrote.

    Raises:
        InputError: the folder holds no sweep, or one that is damaged or of a newer release.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} does not hold a sweep: it has no {MANIFEST}")
    manifest = read_json(path)
    check_version(path, manifest.get("schema_version"))
    return manifest


def slug(text: str) -> str:
    """A name that is safe in a path: "+IAR&PIR" becomes "plus_IAR_and_PIR"."""
    words = text.replace("+", "plus_").replace("&", "_and_")
    words = re.sub(r"^[-−]", "minus_", words)  # either minus sign
    return re.sub(r"[^A-Za-z0-9_.]+", "_", words)
