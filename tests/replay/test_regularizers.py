"""Strength of a replay as a function of the pace r: s = clip(1 + gamma (r - 1), low, high), beta =
beta_base s."""

import pytest

from forever.replay.regularizers import Regularizer


def paper(name: str = "intensity", gamma: float = 1.0) -> Regularizer:
    return Regularizer.named(name, 1e-3, gamma, 0.5, 3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pace", "strength"),
    [
        (0.0, 5e-4),
        (0.3, 5e-4),
        (0.5, 5e-4),
        (0.75, 7.5e-4),
        (1.0, 1e-3),
        (2.2, 2.2e-3),
        (3.0, 3e-3),
        (1e9, 3e-3),
    ],
)
def test_intensity_follows_the_pace_within_its_bounds(pace: float, strength: float) -> None:
    assert paper().strength(pace) == pytest.approx(strength, rel=1e-12)
    assert paper("intensity_importance").strength(pace) == pytest.approx(strength, rel=1e-12)


@pytest.mark.parametrize(("gamma", "factor"), [(0.5, 1.25), (2.0, 2.0), (10.0, 3.0)])
def test_gamma_is_the_slope(gamma: float, factor: float) -> None:
    assert paper(gamma=gamma).factor(1.5) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 7.0])
def test_pace_one_gives_beta_base_for_any_gamma(gamma: float) -> None:
    assert paper(gamma=gamma).strength(1.0) == 1e-3


@pytest.mark.parametrize("pace", [0.0, 0.2, 1.0, 5.0, 1e12])
def test_without_intensity_the_strength_is_constant(pace: float) -> None:
    assert paper(gamma=0.0).strength(pace) == 1e-3
    assert paper("importance").strength(pace) == 1e-3
    assert paper("none").strength(pace) == 0


def test_which_regularisers_weigh_parameters() -> None:
    weighted = {
        name
        for name in ("none", "intensity", "importance", "intensity_importance")
        if paper(name).weighted
    }
    assert weighted == {"importance", "intensity_importance"}
