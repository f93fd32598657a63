"""What the paper finds on forgetting, model days and time, and what our runs say to it.

A finding is answered by the analysis of the sweep that is named after it, in its report.json.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from forever.report.analyses import correlation
from forever.stats.compare import ALPHA
from forever.sweeps import published as paper
from scripts.claims import (
    CONTRADICTED,
    NOT_JUDGED,
    REPRODUCED,
    Answers,
    Claim,
    Report,
    Status,
    answered,
    interval,
    side,
    unshown,
)

_WEAK = 0.5  # a correlation that explains less than a quarter of the variance
NO_CORRELATION = Status("not reproduced: no correlation shown", "not shown")
TOO_FEW_TASKS = Status("cannot tell: too few tasks", "cannot tell")
MEASURED = Status("measured", "not judged")


def finding_claims(reports: Sequence[Report]) -> list[Claim]:
    """Every finding, once for each answer."""
    return answered(_claims(), reports, _answers)


def _claims() -> Iterator[Claim]:
    rates = paper.FORGETTING_RATE
    text = "forgetting slows down within a task: rate of the first phase less the last's (rates)"
    published = f"{rates[0] - rates[-1]:+.4f} ({_rates(rates)})"
    yield Claim(("forgetting_rate",), text, published)
    for name, numbers in paper.MODEL_DAY.items():
        text = f"correlation of tau_day with {name}"
        yield Claim(("model_day", name), text, correlation(*numbers))
    # Minutes depend on the machine; what a method costs beside MixReplay does so less.
    for backbone, minutes in paper.TRAINING_TIME.items():
        for method in minutes:
            if method != "mix_replay":
                text = f"an epoch of {method} as a multiple of mix_replay's, {backbone}"
                key = "training_time", backbone, method
                yield Claim(key, text, _multiple(minutes, method))


def _answers(report: Report) -> Answers:
    for part in report["parts"]:
        yield from _analysed(report, part)


def _analysed(report: Report, part: Mapping[str, Any]) -> Answers:
    """Answers of the analysis after which the sweep is named."""
    name, runs = report["name"], report["finished"]
    analysis, is_small = part["analyses"].get(name, {}), report["scale"] != "paper"
    if name == "forgetting_rate" and "finetune" in analysis:
        yield (name,), *_slowing(is_small, **analysis["finetune"]), runs
    if name == "model_day":
        for other, numbers in analysis.items():
            text = f"{correlation(numbers['r'], numbers['p'])}, {numbers['pairs']} pairs"
            yield (name, other), text, _correlated(*paper.MODEL_DAY[other], numbers), runs
    if name == "training_time":
        for own, minutes in analysis.items():
            for backbone, method in product(paper.TRAINING_TIME, minutes):
                if "mix_replay" in minutes and (own == backbone or is_small):
                    text = _multiple(minutes, method)
                    yield (name, backbone, method), text, MEASURED, runs


def _slowing(
    is_small: bool, rates: Sequence[float], fall: Mapping[str, float] | None
) -> tuple[str, Status]:
    """The whole of the paper's table at its scale; smaller tasks have fewer phases, of which two
    tell a direction."""
    ours, status = f"({_rates(rates)})", NOT_JUDGED
    if fall is not None:
        ours = f"{interval(fall, 4)} {ours}"
        if is_small or len(rates) == len(paper.FORGETTING_RATE):
            status = slows_down(fall)
    return ours, status


def slows_down(fall: Mapping[str, float]) -> Status:
    """Whether forgetting does, as `judged`; no difference in nats is so small that it is none."""
    shown = {"win": REPRODUCED, "loss": CONTRADICTED}
    published = paper.FORGETTING_RATE[0] - paper.FORGETTING_RATE[-1]
    return shown.get(side(fall)) or unshown(published, fall, digits=4)


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4f}" for rate in values)


def _correlated(r: float, p: float, ours: Mapping[str, float]) -> Status:
    """What ours says to the published r and p. Where no correlation is shown, the interval
    (Fisher's z) tells whether so few tasks could have shown the published one, or that there is
    none."""
    significant = p < ALPHA
    if ours["p"] < ALPHA:
        same_sign = (ours["r"] > 0) == (r > 0)
        return REPRODUCED if significant and same_sign else CONTRADICTED
    if ours["pairs"] <= 3:  # no width of an interval can be computed
        return TOO_FEW_TASKS
    half_width = 1.96 / math.sqrt(ours["pairs"] - 3)
    if significant:
        return NO_CORRELATION if half_width <= abs(math.atanh(r)) else TOO_FEW_TASKS
    farthest = abs(math.atanh(ours["r"])) + half_width
    return REPRODUCED if math.tanh(farthest) < _WEAK else TOO_FEW_TASKS


def _multiple(minutes: Mapping[str, float], method: str) -> str:
    return f"{minutes[method] / minutes['mix_replay']:.2f}"
