"""The main settings of every method, tuned with up to as many trials on held-out examples.

    python -m benchmarks.tuning --out DIR

For each method it is `forever sweep search --on mini/METHOD`; what is finished is not run again.
benchmarks/tuning.json keeps all trials that came to an end.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import forever
from forever.report.study import read_study
from forever.runs.environment import describe
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import load_run
from forever.sweeps.search import BASE, find_search

RESULTS = Path(__file__).with_name("tuning.json")


def main(out: Annotated[Path, typer.Option(help="Folder for the searches.")]) -> None:
    """Search for each method in turn, and write down what was tried."""
    file = load_sweep("search")
    found: dict[str, Any] = {}
    for method in (str(file.method), *file.spaces):
        found[method] = search(method, out.absolute() / method)
        content = describe() | {"argv": ["tuning.py"], "methods": found}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        best = found[method]["best"]
        print(f"{method}: {best['op']:.1f} with {best['settings']}", flush=True)


def search(method: str, folder: Path) -> dict[str, Any]:
    """The trials of a method: settings, and OP on held-out examples.

    The method's default stands first, if it lies in the space; the `best` is the first trial with
    the highest OP. A trial that a search gave up early has no OP, and is only counted.
    """
    base = f"mini/{method}"
    space = find_search(load_sweep("search"), load_run(base)).space
    study = read_study(forever.sweep("search", on=base, out=folder).folder)
    trials: dict[str, dict[str, Any]] = {}
    for run in sorted(study.finished, key=lambda run: run.variant != BASE):
        settings = {axis.key: run.settings[axis.key] for axis in space if axis.acts(run.settings)}
        trials[run.variant] = {"op": round(run.outcome["op"], 2), "settings": settings}
    best = max(trials.values(), key=lambda trial: trial["op"])
    default = trials[BASE]["op"] if BASE in trials else None
    tried = len(study.runs)
    return {"tried": tried, "default": default, "best": best, "trials": [*trials.values()]}


if __name__ == "__main__":
    typer.run(main)
