"""Several folders in one report: `forever report A B C`.

Their runs pair as those of one folder do, by order, test rows and seed. A variant that an earlier
folder has, too, is compared with it there; every other one with the reference of the first folder,
or, on other benchmarks, with that of its own.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from forever.errors import InputError
from forever.report.facts import machine
from forever.report.format import distinct, listed
from forever.report.run import Run
from forever.report.study import Study, read_study, refuse_versions
from forever.sweeps.sweep import MANIFEST, slug

REPORTS = Path("reports")  # where comparisons are written
_NAMED = 3  # folders in the name of a comparison's own


@dataclass(frozen=True)
class _Variant:
    """A variant of one of the folders."""

    name: str  # there
    shown: str  # in the report of all
    benchmarks: frozenset[str]


def read_studies(folders: Sequence[Path], to: Path) -> Study:
    """The runs of several folders as one study, which is reported in the folder `to`.

    Raises:
        InputError: as by `read_study`; or the folders hold different versions of a benchmark.
    """
    studies = [read_study(folder) for folder in folders]
    labels = names_of(folders)
    variants = _variants(studies, labels)
    start = studies[0]
    by_name = {variant.name: variant for variant in variants[0]}
    main = by_name.get(start.reference or "") or by_name[start.example.variant]
    references: dict[str, str] = {}
    paper_names: dict[str, str] = {}
    runs: list[Run] = []
    for number, study in enumerate(studies):
        earlier = [variant for known in variants[:number] for variant in known]
        shown = {variant.name: variant.shown for variant in variants[number]}
        for variant in variants[number]:
            own = study.references.get(variant.name, study.reference or variant.name)
            beside = None if study is start else _beside(variant, earlier, main)
            references[variant.shown] = beside.shown if beside else shown.get(own, own)
            paper_names[variant.shown] = study.paper_names.get(variant.name, variant.name)
        for run in study.runs:
            run.variant, run.source = shown[run.variant], labels[number]
            runs.append(run)
    refuse_versions([run for run in runs if run.result is not None])
    file = start.file if all(study.file == start.file for study in studies) else None
    name = f"{', '.join(labels[:-1])} and {labels[-1]}"
    about = paper_names, references, file, _stopping(studies, runs), labels
    return Study(name, to, runs, main.shown, *about)


def _variants(studies: Sequence[Study], labels: Sequence[str]) -> list[list[_Variant]]:
    """The variants of each folder; those that several have are told apart by the folder's name."""
    known: list[dict[str, set[str]]] = []
    holders = Counter[str]()
    for study in studies:
        benchmarks: dict[str, set[str]] = defaultdict(set)
        for run in study.runs:
            benchmarks[run.variant].add(run.benchmark)
        holders.update(benchmarks.keys())
        known.append(benchmarks)
    variants: list[list[_Variant]] = []
    for label, benchmarks in zip(labels, known, strict=True):
        of_folder: list[_Variant] = []
        for name, places in benchmarks.items():
            shown = f"{name} ({label})" if holders[name] > 1 else name
            of_folder.append(_Variant(name, shown, frozenset(places)))
        variants.append(of_folder)
    return variants


def _beside(variant: _Variant, earlier: Sequence[_Variant], main: _Variant) -> _Variant | None:
    """With whom a variant of a later folder is compared; None if nobody ran what it ran."""
    namesakes = [other for other in earlier if other.name == variant.name]
    for other in (*namesakes, main):
        if other.benchmarks & variant.benchmarks:
            return other
    return None


def _stopping(studies: Sequence[Study], runs: Sequence[Run]) -> dict[str, Any] | None:
    """The rule of a folder in rounds is that of all: for as many comparisons as there are now, and
    no fewer than those by which seeds were added."""
    rules = [study.stopping for study in studies if study.stopping is not None]
    if not rules:
        return None
    alpha = min(rule["alpha"] for rule in rules)
    compared = {(run.variant, run.benchmark) for run in runs}
    comparisons = max(len(compared), *(rule["comparisons"] for rule in rules))
    return {"alpha": alpha, "comparisons": comparisons, "points": rules[0]["points"]}


def names_of(folders: Sequence[Path]) -> list[str]:
    """What tells folders apart: their names, with those of the folders around them if need be.

    Raises:
        InputError: a folder is given twice, or lies in another one.
    """
    places = [Path(folder).resolve() for folder in folders]
    for number, place in enumerate(places):
        for other in places[:number]:
            if place.is_relative_to(other) or other.is_relative_to(place):
                raise InputError(
                    f"{place} and {other} share runs; give folders that lie beside each other"
                )
    depth = 1
    while len({place.parts[-depth:] for place in places}) < len(places):
        depth += 1
    return ["/".join(place.parts[-depth:]) for place in places]


def destination(folders: Sequence[Path], to: Path | None) -> Path:
    """Where a comparison is written: never over a report of runs.

    Raises:
        InputError: `to` holds runs.
    """
    labels = names_of(folders)
    if to is None:
        more = [f"and_{len(labels) - _NAMED}_more"] if len(labels) > _NAMED else []
        to = REPORTS / slug("-".join([*labels[:_NAMED], *more]).replace("/", "_"))
    to = to.absolute()
    has_runs = (to / MANIFEST).is_file() or any(to.glob("config.yaml"))
    if has_runs or any(to.glob("*/config.yaml")):
        raise InputError(f"{to} holds runs, whose own report would be lost; give another --to")
    return to


# ---- what a report says of the folders


def folder_table(study: Study) -> pd.DataFrame:
    """From which machine and revision the runs of each folder came."""
    rows: list[tuple[str, ...]] = []
    for label in study.folders:
        runs = [run for run in study.runs if run.source == label]
        finished = [run for run in runs if run.result is not None]
        rows.append((label, f"{len(finished)} of {len(runs)}", *_origin(finished)))
    return pd.DataFrame(rows, columns=["folder", "runs", "machine", "revision", "version"])


def _origin(runs: Sequence[Run]) -> tuple[str, str, str]:
    machines: list[str] = []
    versions: list[str | None] = []
    for run in runs:
        for where in run.environments:
            machines.append(machine(where))
            versions.append(where.get("packages", {}).get("forever-cl"))
    revisions = listed(_revisions(runs))
    return listed(distinct(machines)), revisions, listed(distinct(versions))


def _revisions(runs: Sequence[Run]) -> list[str]:
    revisions: list[str] = []
    for run in runs:
        revisions += [where.get("revision") or "unknown" for where in run.environments]
    return sorted({*revisions})


def warnings(study: Study) -> list[str]:
    """Why differences between the folders may come from elsewhere than from their variants."""
    revisions: dict[str, list[str]] = {}
    for label in study.folders:
        revisions[label] = _revisions([run for run in study.finished if run.source == label])
    told: list[str] = []
    if not revisions:
        return told
    if len({tuple(names) for names in revisions.values()}) > 1:
        each = [f"{label} at {listed(names)}" for label, names in revisions.items()]
        told.append(f"Code differs between the folders: {'; '.join(each)}.")
    for benchmark, (order, seed) in _other_data(study.finished).items():
        told.append(
            f"Data of {benchmark} differ between the folders (order {order}, seed {seed}): it is "
            "of another version, or its rows are others. Runs pair where test rows are the same."
        )
    return told


def _other_data(runs: Sequence[Run]) -> dict[str, tuple[str, int]]:
    """By benchmark, the first order and seed of which folders have other data, with settings alike;
    a variant may ask for other rows."""
    known: dict[tuple[str, str, int, str], dict[str, set[str]]] = defaultdict(dict)
    for run in runs:
        asked = {key: value for key, value in run.settings.items() if key.startswith("data.")}
        key = run.benchmark, run.outcome["order"], run.seed, str(asked)
        digests = json.dumps([run.outcome.get("data"), repr(run.unit)], sort_keys=True)
        known[key].setdefault(run.source, set()).add(digests)
    found: dict[str, tuple[str, int]] = {}
    for (benchmark, order, seed, _), by_folder in known.items():
        if len({frozenset(digests) for digests in by_folder.values()}) > 1:
            found.setdefault(benchmark, (order, seed))
    return found
