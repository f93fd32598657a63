"""RESULTS.md: one row a committed run, written from its files and from nothing else.

    python -m experiments.ledger

A run is committed by copying config.yaml, environment.json, result.json and events.jsonl of its directory to
experiments/results/<group>/<name>/. A group's README.md, if there is one, is put above its table.
"""

import json
import shlex
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
LEDGER = Path(__file__).parent / "RESULTS.md"

HEAD = """# Results

Every number here comes from a result file in `experiments/results/`; this page is written by
`python -m experiments.ledger`. OP, BWT and forgetting in percent points; one row a run, so a row has no interval.
"""
COLUMNS = ("run", "seed", "OP", "BWT", "forgetting", "replays", "updates", "minutes", "revision", "hardware")


def main() -> None:
    """Write the page."""
    groups = sorted(folder for folder in FOLDER.glob("*") if folder.is_dir())
    LEDGER.write_text("\n".join([HEAD, *(section(group) for group in groups)]), encoding="utf-8")


def section(group: Path) -> str:
    """The heading, the explanation, the table and the commands of one group."""
    runs = [_read(path.parent) for path in sorted(group.glob("*/result.json"))]
    rows = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    rows += ["| " + " | ".join(_cells(run)) + " |" for run in runs]
    commands = ["```", *dict.fromkeys(run["command"] for run in runs), "```"]
    note = group / "README.md"
    about = [note.read_text(encoding="utf-8").strip(), ""] if note.is_file() else [f"## {group.name}", ""]
    return "\n".join([*about, *rows, "", *commands, ""])


def _read(folder: Path) -> dict[str, Any]:
    result, where = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("result", "environment"))
    return {**result, **where, "name": folder.name, "command": shlex.join(where["argv"])}


def _cells(run: dict[str, Any]) -> list[str]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    replays = sum(count for kinds in run["events"].values() for count in kinds.values())
    hardware = f"{run['gpus'][0] if run['gpus'] else run['cpu']}, {run['cores']} cores"
    scores = [number(run[key]) for key in ("op", "bwt", "forgetting")]
    counts = [str(replays), str(sum(run["updates"].values())), f"{sum(run['seconds'].values()) / 60:.1f}"]
    return [run["name"], str(run["seed"]), *scores, *counts, run["revision"] or "-", hardware]


if __name__ == "__main__":
    main()
