"""How far FOREVER's hyper-parameters can be moved to advantage: a space for OP, BWT and time at
once.

| key           | range         | why                                                                              |
|---------------|---------------|----------------------------------------------------------------------------------|
| days          | six spacings  | the families of the spacing and component ablations                              |
| warmup_steps  | S/4 to 4 S    | S of the base; fewer updates say little of the pace, with more few days come     |
| memory_epochs | 1 to 4        | paper: 2; time grows with it, and a small memory is known by heart after a few   |
| regularizer   | all four      | the component ablation                                                           |
| beta          | 1e-5 to 1e-1  | paper: 1e-3, and two decades either way; asked if there is a regulariser         |
| gamma         | 0.25 to 4     | ours: 1 (A5); at 4 nearly every pace meets a bound of s; asked with intensity    |
| smoothing     | 0.01 to 0.5   | lambda, paper: 0.05; a memory of 100 to 2 updates; asked with intensity          |

What is searched for is scored on rows held out from training (`data.validation`), never on the test
rows: the settings that are chosen are then run as any other, without it.

The bounds of s stay as published: gamma already moves where they are met. Values have two digits: a
third is below what one run can tell, and two digits make equal runs equal.
"""

from collections.abc import Mapping
from typing import Any, get_args

from forever.config.methods.replay import ForeverConfig
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.replay.regularizers import RegularizerName
from forever.sweeps.search import Search, Suggests

# Mini: an hour on two cores at most; ten of them are drawn at random before the sampler learns.
TRIALS = 24
# Of the training rows: 200 of 1000 and 40 of mini's 200; the test rows must not choose.
VALIDATION = 0.2
_REGULARIZERS = {
    "none": "-IAR",
    "intensity": "IAR",
    "importance": "PIR",
    "intensity_importance": "IAR&PIR",
}
SPACINGS = ("ebbinghaus", "exponential", "polynomial", "uniform", "fixed_interval", "decreasing")


def search(base: RunConfig, seeds: tuple[int, ...] | None = None) -> Search:
    """The search around any FOREVER run.

    Args:
        seeds: the one seed of all its runs; None for the base's own.

    Raises:
        InputError: the base is another method, or there are several seeds.
    """
    method = base.method
    if seeds and len(seeds) > 1:
        raise InputError(
            "search compares all its runs on one seed; run the best ones again with the others"
        )
    if seeds:
        base = base.override({"seed": seeds[0]})
    if not isinstance(method, ForeverConfig):
        raise InputError(
            f"search varies the hyper-parameters of forever; the base run's method is {method.name!r}"
        )
    if base.data.validation is None:
        base = base.override({"data.validation": VALIDATION})
    return Search("search", base, lambda trial: space(trial, method.warmup_steps), label)


def space(trial: Suggests, warmup_steps: int) -> dict[str, Any]:
    """Differences from the base, asked of `trial` one by one.

    Args:
        warmup_steps: S of the base, which goes with the length of its tasks.
    """
    found: dict[str, Any] = {
        "method.days": trial.suggest_categorical("method.days", SPACINGS),
        "method.warmup_steps": trial.suggest_int(
            "method.warmup_steps", max(1, warmup_steps // 4), 4 * warmup_steps, log=True
        ),
        "method.memory_epochs": trial.suggest_int("method.memory_epochs", 1, 4),
        "method.regularizer": trial.suggest_categorical(
            "method.regularizer", get_args(RegularizerName)
        ),
    }
    if found["method.regularizer"] != "none":
        found["method.beta"] = _two_digits(trial.suggest_float("method.beta", 1e-5, 1e-1, log=True))
    if "intensity" in found["method.regularizer"]:
        found["method.gamma"] = _two_digits(
            trial.suggest_float("method.gamma", 0.25, 4.0, log=True)
        )
        found["method.smoothing"] = _two_digits(
            trial.suggest_float("method.smoothing", 0.01, 0.5, log=True)
        )
    return found


def label(changes: Mapping[str, Any]) -> str:
    """A point in a few words, e.g. "uniform S8 E2 IAR β0.001 γ1 λ0.05"; regularisers as in the
    component ablation."""
    start = f"{changes['method.days']} S{changes['method.warmup_steps']} E{changes['method.memory_epochs']}"
    signs = {"method.beta": "β", "method.gamma": "γ", "method.smoothing": "λ"}
    values = [f"{sign}{changes[key]:g}" for key, sign in signs.items() if key in changes]
    return " ".join([start, _REGULARIZERS[changes["method.regularizer"]], *values])


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")
