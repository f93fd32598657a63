"""How many seeds show a difference: against simulation and a textbook, and as `plan` says it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import base_run, put_result
from pages import printed
from scipy import stats

from forever.runs.directory import RunDirectory
from forever.stats.power import power, seeds_needed, spread_interval
from forever.sweeps.rounds import detection_table
from forever.sweeps.sweep import Sweep


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_seeds_of_the_textbook(effect: float, seeds: int) -> None:
    """A paired t-test at 5 % with 80 % power (Cohen 1988; G*Power gives these for d_z)."""
    assert seeds_needed(effect, 0.05) == seeds
    assert power(seeds - 1, effect, 0.05) < 0.8 <= power(seeds, effect, 0.05)


@pytest.mark.parametrize(("seeds", "effect", "alpha"), [(3, 4.0, 0.05), (8, 1.5, 0.05 / 7)])
def test_power_is_what_simulated_tests_have(seeds: int, effect: float, alpha: float) -> None:
    drawn = np.random.default_rng(0).normal(effect, 1.0, (20_000, seeds))
    shown = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue <= alpha
    assert power(seeds, effect, alpha) == pytest.approx(shown.mean(), abs=0.015)


def test_extremes() -> None:
    """What is far beyond the spread takes two seeds; what is far below it, very many."""
    assert seeds_needed(1000.0, 0.05 / 7) == 2
    assert seeds_needed(0.01, 0.05) == pytest.approx((1.96 + 0.8416) ** 2 / 0.01**2, rel=1e-3)


def test_the_spread_of_few_seeds_is_hardly_known() -> None:
    """Three numbers with a standard deviation of 1: from 0.52 to 6.28."""
    assert spread_interval(1.0, 3) == pytest.approx((0.5207, 6.2847), abs=1e-4)
    drawn = np.random.default_rng(0).normal(0.0, 2.0, (4000, 4)).std(axis=1, ddof=1)
    ends = np.array([spread_interval(value, 4) for value in drawn])
    assert ((ends[:, 0] <= 2.0) & (ends[:, 1] >= 2.0)).mean() == pytest.approx(0.95, abs=0.015)


def shown(sweep: Sweep, folder: Path, points: float = 2.0, name: str = "toy") -> str:
    return " ".join(printed(detection_table(sweep, folder, points, name), 150).split())


def test_a_plan_says_what_it_takes_to_see_a_difference(tmp_path: Path) -> None:
    """Differences of 3, 5 and 4 points: a standard deviation of 1, so two points are two of them.
    At 2.5 % a comparison that takes six seeds; a seed takes 200 s and 100 s. Seeds of an earlier
    call count."""
    variants = {"base": {}, "far": {"method.days": "uniform"}, "new": {"method.clock": "steps"}}
    sweep = Sweep("toy", base_run(), variants, seeds=(0, 1, 5))
    for trial in sweep.trials():
        op = 50.0 + 10 * trial.seed + {0: 3, 1: 5, 5: 4}[trial.seed] * (trial.variant == "far")
        result: dict[str, Any] = {"op": op}
        result |= {"seconds": {"task": 150.0 if trial.variant == "far" else 90.0}}
        result["rows"] = {"a": {"test": 100_000}}
        result["seconds"]["evaluation"] = 50.0 if trial.variant == "far" else 10.0
        directory = RunDirectory(tmp_path / trial.key)
        if trial.variant != "new":
            put_result(directory.path, result)
    sweep.write_manifest(tmp_path)
    text = shown(Sweep("toy", base_run(), variants), tmp_path)
    assert seeds_needed(2.0, 0.025) == 6
    few, many = (seeds_needed(2.0 / spread, 0.025) for spread in spread_interval(1.0, 3))
    assert f"far less base, toy 3 1.0 [0.5, 6.3] 6 [{few}, {many}] 0.50 [" in text
    assert "new less base, toy 0 – – –" in text
    assert (
        "80 % power of the paired two-sided t-test at 5 % over 2 comparisons on a benchmark" in text
    )
    assert "needs a pilot, `forever sweep toy --seeds 0,1,2` with the same options" in text
    mine = shown(Sweep("toy", base_run(), variants), tmp_path, 0.001, "my/toy.yaml")
    assert "far less base, toy 3 1.0 [0.5, 6.3] >1,000,000 [>1,000,000, >1,000,000] >" in mine
    assert "`forever sweep my/toy.yaml --seeds 0,1,2`" in mine
    # Holm's correction is that of a benchmark.
    orders = {"1": {}, "2": {"data.benchmark": "other"}}
    both = Sweep("toy", base_run(), variants, orders=orders)
    assert "over 2 comparisons on a benchmark" in shown(both, tmp_path)
