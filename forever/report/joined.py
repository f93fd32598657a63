"""Several folders in one report: `forever report A B C`.

Their runs are paired as those of one folder are, by order, test examples and seed. On each
benchmark a variant is compared with its namesake in an earlier folder, if there is one, or else
with the reference of the first folder, or else with that of its own.
"""

from __future__ import annotations

import json
from collections import Counter
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
    labels, studies = names_of(folders), [read_study(folder) for folder in folders]
    refuse_versions([run for study in studies for run in study.finished])
    main = studies[0].reference or studies[0].example.variant
    # Variants that several folders have get the folder's name.
    holders = Counter(name for study in studies for name in {run.variant for run in study.runs})
    known: dict[tuple[str, str], str] = {}  # the first name by benchmark and name in the folder
    runs: list[Run] = []
    for label, study in zip(labels, studies, strict=True):
        earlier = dict(known)
        for run in study.runs:
            name, own = run.variant, run.reference or run.variant
            named = {n: f"{n} ({label})" if holders[n] > 1 else n for n in (name, own)}
            others = [earlier.get((run.benchmark, other)) for other in (name, main)]
            run.source, run.variant = label, named[name]
            run.reference = next(filter(None, others), named[own])
            known.setdefault((run.benchmark, name), run.variant)
            runs.append(run)
    # The rule of a folder in rounds is that of all: for as many comparisons as there are now, and
    # no fewer than those by which seeds were added.
    rules = [study.stopping for study in studies if study.stopping is not None]
    stopping: dict[str, Any] | None = None
    if rules:
        compared = {(run.variant, run.benchmark) for run in runs}
        comparisons = max(len(compared), *(rule["comparisons"] for rule in rules))
        stopping = {**rules[0], "alpha": min(rule["alpha"] for rule in rules)}
        stopping["comparisons"] = comparisons
    file = studies[0].file if all(study.file == studies[0].file for study in studies) else None
    name = f"{', '.join(labels[:-1])} and {labels[-1]}"
    reference = f"{main} ({labels[0]})" if holders[main] > 1 else main
    return Study(name, to, runs, reference, file, stopping, labels)


def names_of(folders: Sequence[Path]) -> list[str]:
    """Different names for folders: their own, with those of the folders around them if need be.

    Raises:
        InputError: a folder is given twice, or lies in another one.
    """
    places = [Path(folder).resolve() for folder in folders]
    for number, place in enumerate(places):
        for other in places[:number]:
            if place.is_relative_to(other) or other.is_relative_to(place):
                raise InputError(
                    f"{place} and {other} share runs; give folders that are next to each other"
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
    # By order, seed and settings of data, since a variant may ask for other examples: the digests
    # by folder.
    digests: dict[tuple[str, str, int, str], dict[str, set[str]]] = {}
    for run in study.finished:
        settings = {key: value for key, value in run.settings.items() if key.startswith("data.")}
        place = run.benchmark, run.outcome["order"], run.seed, str(settings)
        digest = json.dumps([run.outcome.get("data"), repr(run.unit)], sort_keys=True)
        digests.setdefault(place, {}).setdefault(run.source, set()).add(digest)
    differ: dict[str, str] = {}  # the first place by benchmark
    for (benchmark, order, seed, _), by_folder in digests.items():
        if any(known != next(iter(by_folder.values())) for known in by_folder.values()):
            differ.setdefault(benchmark, f"order {order}, seed {seed}")
    for benchmark, place in differ.items():
        messages.append(
            f"Data of {benchmark} differ between the folders ({place}): another version, or other "
            "examples. Runs are paired where test examples are the same."
        )
    weights: dict[str, set[str]] = {}
    for run in study.finished:
        if digest := run.outcome.get("model", {}).get("weights"):
            weights.setdefault(run.settings["model.name"], set()).add(digest)
    messages += [
        f"The weights of model {name} differ between the folders."
        for name, digests_of_name in weights.items()
        if len(digests_of_name) > 1
    ]
    return messages
