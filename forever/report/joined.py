"""Several folders in one report: `forever report A B C`.

Their runs pair as those of one folder do, by order, test rows and seed. A variant that an earlier
folder has, too, is compared with it there; every other one with the reference of the first folder,
or, on other benchmarks, with that of its own.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from forever.errors import InputError
from forever.report.facts import origins
from forever.report.format import listed
from forever.report.run import Run
from forever.report.study import Study, read_study, refuse_versions
from forever.sweeps.sweep import MANIFEST, slug

REPORTS = Path("reports")  # where comparisons are written
_NAMED = 3  # folders in the name of a comparison's own


def read_studies(folders: Sequence[Path], to: Path) -> Study:
    """The runs of several folders as one study, which is reported in the folder `to`.

    Raises:
        InputError: as by `read_study`; or the folders hold different versions of a benchmark.
    """
    studies = [read_study(folder) for folder in folders]
    labels, start = names_of(folders), studies[0]
    refuse_versions([run for study in studies for run in study.finished])
    # A variant is a folder's number and the variant's name there.
    benchmarks: dict[tuple[int, str], set[str]] = defaultdict(set)
    for number, study in enumerate(studies):
        for run in study.runs:
            benchmarks[number, run.variant].add(run.benchmark)
    # Those that several folders have are told apart by the folder's name.
    holders = Counter(name for _, name in benchmarks)
    shown: dict[tuple[int, str], str] = {}
    for number, name in benchmarks:
        shown[number, name] = f"{name} ({labels[number]})" if holders[name] > 1 else name
    main = (0, start.reference or "")
    if main not in benchmarks:
        main = (0, start.example.variant)
    references: dict[str, str] = {}
    paper_names: dict[str, str] = {}
    for (number, name), places in benchmarks.items():
        study = studies[number]
        own = study.references.get(name, study.reference or name)
        beside = [(number, own)]
        if number:
            earlier = [variant for variant in benchmarks if variant[0] < number]
            others = [*(variant for variant in earlier if variant[1] == name), main]
            beside = [other for other in others if benchmarks[other] & places] + beside
        references[shown[number, name]] = shown.get(beside[0], own)
        paper_names[shown[number, name]] = study.paper_names.get(name, name)
    runs: list[Run] = []
    for number, study in enumerate(studies):
        for run in study.runs:
            run.variant, run.source = shown[number, run.variant], labels[number]
            runs.append(run)
    file = start.file if all(study.file == start.file for study in studies) else None
    name = f"{', '.join(labels[:-1])} and {labels[-1]}"
    about = paper_names, references, file, _stopping(studies, runs), labels
    return Study(name, to, runs, shown[main], *about)


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
        planned = sum(run.source == label for run in study.runs)
        finished = [run for run in study.finished if run.source == label]
        known = origins(finished)
        names = [name.partition(" ") for name in known["versions"]]
        versions = [version for package, _, version in names if package == "forever-cl"]
        texts = map(listed, (known["hardware"], sorted(known["revisions"]), versions))
        rows.append((label, f"{len(finished)} of {planned}", *texts))
    return pd.DataFrame(rows, columns=["folder", "runs", "machine", "revision", "version"])


def warnings(study: Study) -> list[str]:
    """Why differences between the folders may come from elsewhere than from their variants."""
    messages: list[str] = []
    table = folder_table(study)
    if len({*table["revision"]}) > 1:
        each = "; ".join(table["folder"] + " at " + table["revision"])
        messages.append(f"Code differs between the folders: {each}.")
    for benchmark, (order, seed) in _other_data(study.finished).items():
        messages.append(
            f"Data of {benchmark} differ between the folders (order {order}, seed {seed}): it is "
            "of another version, or its rows are others. Runs pair where test rows are the same."
        )
    return messages


def _other_data(runs: Sequence[Run]) -> dict[str, tuple[str, int]]:
    """By benchmark, the first order and seed of which folders have other data, with settings alike;
    a variant may ask for other rows."""
    known: dict[tuple[str, str, int, str], dict[str, set[str]]] = defaultdict(dict)
    for run in runs:
        data = {key: value for key, value in run.settings.items() if key.startswith("data.")}
        key = run.benchmark, run.outcome["order"], run.seed, str(data)
        digests = json.dumps([run.outcome.get("data"), repr(run.unit)], sort_keys=True)
        known[key].setdefault(run.source, set()).add(digests)
    found: dict[str, tuple[str, int]] = {}
    for (benchmark, order, seed, _), by_folder in known.items():
        if len({frozenset(digests) for digests in by_folder.values()}) > 1:
            found.setdefault(benchmark, (order, seed))
    return found
