"""Compute the main effects of a sweep of two factors from its scores, and compare them with those
of its report. No code is shared with the report: intervals are found by bisection.

    python -m scripts.effects experiments/results/when_how-mini
    python -m scripts.effects runs/when_how runs/when_how-linear --report reports/both/report.json
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd
import yaml

PAIRS = ("seed", "data.order", "data.root")  # what pairs runs, and where they lay


def runs_of(folder: Path) -> tuple[Any, dict[str, tuple[Any, float]]]:
    """Read sweep.json and, by key, the settings and OP of all finished runs: of a committed sweep,
    or of a folder of runs."""
    runs: dict[str, tuple[Any, float]] = {}
    if (folder / "runs.jsonl").is_file():
        first, *lines = map(json.loads, (folder / "runs.jsonl").read_text("utf-8").splitlines())
        for line in lines:
            last = len((first["shared"]["result"] | line["result"])["stages"])
            final = [each for cell, each in line["scores"].items() if cell.endswith(f".{last}")]
            op = 100 * mean(mean(map(float, scores)) for scores in final)
            runs[line["key"]] = first["shared"]["config"] | line["config"], op
        return json.loads(first["files"]["sweep.json"]), runs
    for path in folder.glob("*/result.json"):
        config = yaml.safe_load(path.with_name("config.yaml").read_text("utf-8"))
        runs[path.parent.name] = config, json.loads(path.read_text("utf-8"))["op"]
    return json.loads((folder / "sweep.json").read_text("utf-8")), runs


def half_width(differences: Any, alpha: float) -> float:
    """Bisect for the distance from the mean at which e = 1 / alpha, as in the docstring of
    forever/stats/sequential.py."""
    n, g, low, high = len(differences), 10.0, 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        t2 = n * middle**2 / float(differences.var())
        ratio = (1 + t2 / (n - 1)) / (1 + t2 / ((1 + n * g) * (n - 1)))
        log_e = n / 2 * math.log(ratio) - math.log(1 + n * g) / 2
        low, high = (middle, high) if log_e < -math.log(alpha) else (low, middle)
    return high


def blocks_of(folders: Sequence[Path]) -> tuple[Any, dict[str, str], Any]:
    """Return OP by block and cell, the reference's levels, and the planned levels of each factor.

    A block is named by its kind, that is order and settings such as a schedule, and its seed.
    """
    records: list[dict[str, Any]] = []
    found = [*map(runs_of, folders)]
    first = found[0][0]
    factors = first["factors"]
    reference = {name: levels[first["reference"]] for name, levels in factors.items()}
    for manifest, runs in found:
        for trial in manifest["trials"]:
            cell = {name: levels.get(trial["variant"]) for name, levels in factors.items()}
            config, op = runs.get(trial["key"], ({}, math.nan))
            (flat,) = pd.json_normalize(config).to_dict("records") if config else [{}]
            flat = {key: str(value) for key, value in flat.items()}
            block = {"seed": trial["seed"], "order": trial["order"]}
            records.append({**flat, **cell, **block, "op": op})
    frame: Any = pd.DataFrame(records).dropna(subset=[*factors])
    planned = [frame[name].unique() for name in factors]
    # A setting that differs between runs of the reference's cell makes another block, but for one
    # that older runs do not have yet.
    known: Any = frame[frame["op"].notna()]
    settings: Any = known.drop(columns=["op", "order", *factors, *PAIRS], errors="ignore")
    cells = [known[name] for name in factors]
    differs = settings[(known[[*factors]] == pd.Series(reference)).all(axis=1)].nunique() > 1
    index = [known["order"], *(settings[key].fillna("") for key in settings.columns[differs])]
    index.append(known["seed"])
    blocks: Any = pd.crosstab(index, cells, known["op"], aggfunc="first")
    cell_names = pd.MultiIndex.from_product(planned, names=[*factors])
    return blocks.reindex(columns=cell_names).dropna(), reference, planned


def table_of(folders: Sequence[Path]) -> dict[str, str]:
    """Write OP of each level and, but for the reference's, the difference and its interval."""
    blocks, reference, planned = blocks_of(folders)
    alpha = 0.05 / (sum(map(len, planned)) - 2)
    table: dict[str, str] = {}
    for name, levels in zip(reference, planned, strict=True):
        means = blocks.T.groupby(level=name).mean().T
        for level in levels:
            numbers, apart = [means[level].mean()], means[level] - means[reference[name]]
            if level != reference[name]:
                value, half = apart.mean(), half_width(apart, alpha)
                numbers += [value, max(value - half, -100.0), min(value + half, 100.0)]
            table[f"{name}: {level}"] = written(numbers)
    return table


def by_kind(folders: Sequence[Path]) -> Any:
    """Tabulate each level's difference, and its standard error, by the kind of block: exploratory,
    since no rule was written for it."""
    blocks, reference, planned = blocks_of(folders)
    columns: dict[str, Any] = {}
    for name, levels in zip(reference, planned, strict=True):
        means = blocks.T.groupby(level=name).mean().T
        for level in levels:
            if level != reference[name]:
                columns[f"{name}: {level}"] = means[level] - means[reference[name]]
    apart = pd.DataFrame(columns)
    names = [name for name in apart.index.names if name not in ("seed", "budget.examples")]
    kinds: Any = apart.groupby(level=names)
    both: Any = kinds.mean().map("{:+.2f}".format) + kinds.sem().map(" ±{:.2f}".format)
    return both.T


def reported(path: Path) -> dict[str, str]:
    """Write the same from report.json."""
    (part,) = json.loads(path.read_text("utf-8"))["parts"]
    table: dict[str, str] = {}
    for effect in part["analyses"]["main_effects"]["effects"]:
        apart = effect["difference"] or {}
        ends = [apart[key] for key in ("value", "low", "high") if apart]
        table[f"{effect['factor']}: {effect['level']}"] = written([effect["score"], *ends])
    return table


def written(numbers: Sequence[float]) -> str:
    """Write numbers with the digits of the report, which are those of report.json's six."""
    return " ".join(f"{round(number, 6):.2f}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute main effects without the report's code.")
    parser.add_argument("folders", nargs="+", type=Path, help="committed sweeps or folders of runs")
    parser.add_argument("--report", type=Path, help="report.json, if not that of the first folder")
    options = parser.parse_args()
    ours = table_of(options.folders)
    theirs = reported(options.report or options.folders[0] / "report.json")
    print("\n".join(f"{name}: {numbers}" for name, numbers in ours.items()))
    print("\nby order and other settings of a block, exploratory, ± a standard error")
    print(by_kind(options.folders).to_string(), "\n")
    if ours != theirs:
        sys.exit(f"the report differs: {theirs}")
    print("as in the report, to the last printed digit")


if __name__ == "__main__":
    main()
