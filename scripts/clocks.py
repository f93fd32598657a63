"""Ask of each clock how well it predicts forgetting: R^2 of the rise of losses on earlier tasks,
under fine-tuning, against updates, tau, the distance to Theta* and KL.

    python -m scripts.clocks experiments/results/forgetting_rate-mini

Two models of the rise, each fitted seed by seed: a line of its own for each task forgotten in each
stage, which asks whether forgetting is even on that clock; and one non-decreasing curve, fitted to
all but one of them, which asks whether the clock alone tells how much of that one is forgotten.
Intervals are t-intervals over seeds; the last column is the paired difference to tau. KL is
measured on the very examples whose loss is predicted, so it is a bound rather than a rival.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import t

CLOCKS = ("updates", "tau", "distance", "kl")
Array = Any  # of NumPy
Curve = tuple[dict[str, Array], Array]  # readings of each clock, and the rise of the loss


def probes(folder: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the seed and the probes of each fine-tuned run of a committed sweep."""
    first, *runs = map(json.loads, (folder / "runs.jsonl").read_text("utf-8").splitlines())
    for run in runs:
        config = first["shared"]["config"] | run["config"]
        if config["method"]["name"] == "finetune":
            yield config["seed"], run["looks"]


def curves(events: Sequence[dict[str, Any]], only_previous: bool) -> list[Curve]:
    """Return a curve for each task and stage after it, or only for the stage right after it."""
    stages: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        stages[event["task"]].append(event)
    found: list[Curve] = []
    for probed in stages.values():
        earlier = [*probed[0]["losses"]]  # in the order in which they were learned
        for task in earlier[-1:] if only_previous else earlier:
            losses = np.array([event["losses"][task] for event in probed])
            clocks = {
                "updates": np.array([event["step"] for event in probed], float),
                "tau": np.array([event["tau"] for event in probed]),
                "distance": np.array([event["distance"] for event in probed]),
                "kl": np.array([event["kl"][task] for event in probed]),
            }
            found.append((clocks, losses - losses[0]))
    return found


def line_each(clock: str, found: Sequence[Curve]) -> float:
    """R^2 of a line through zero for each curve; what is to be explained is the squared rise."""
    left = total = 0.0
    for clocks, rise in found:
        x = clocks[clock]
        left += np.square(rise - x * (x @ rise) / (x @ x)).sum()
        total += np.square(rise).sum()
    return 1 - left / total


def one_curve(clock: str, found: Sequence[Curve]) -> float:
    """R^2 of one non-decreasing curve for all: of each, as predicted by a fit to the others."""
    left = total = 0.0
    for left_out, (clocks, rise) in enumerate(found):
        others = [*found[:left_out], *found[left_out + 1 :]]
        x = np.concatenate([clocks[clock] for clocks, _ in others])
        y = np.concatenate([rise for _, rise in others])
        # Readings that are equal, such as numbers of updates, have one value of the curve.
        readings, place, count = np.unique(x, return_inverse=True, return_counts=True)
        fitted = isotonic_regression(np.bincount(place, y) / count, weights=count).x
        left += np.square(rise - np.interp(clocks[clock], readings, fitted)).sum()
        total += np.square(rise - y.mean()).sum()
    return 1 - left / total


def interval(values: Array) -> str:
    """Mean and 95 % t-interval."""
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():6.2f} [{values.mean() - half:5.2f}, {values.mean() + half:5.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="R^2 of forgetting on each clock.")
    parser.add_argument("folder", type=Path, help="a committed sweep of forgetting_rate")
    runs = dict(probes(parser.parse_args().folder))
    models: dict[str, Callable[[str, Sequence[Curve]], float]] = {
        "a line for each task": line_each,
        "one curve of the others": one_curve,
    }
    for whose in ("previous", "all earlier"):
        found = [curves(events, whose == "previous") for events in runs.values()]
        for name, model in models.items():
            print(f"\n{whose} tasks, {name} ({len(runs)} seeds): R^2, and less that of tau")
            scores = {clock: np.array([model(clock, each) for each in found]) for clock in CLOCKS}
            for clock, values in scores.items():
                print(f"  {clock:9}{interval(values)}  {interval(values - scores['tau'])}")


if __name__ == "__main__":
    main()
