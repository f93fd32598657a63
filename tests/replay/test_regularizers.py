"""The strength of a replay at pace r: beta_base s, with s = clip(1 + gamma (r - 1), low, high)."""

import pytest

from forever.replay.regularizers import Regularizer, RegularizerName


def paper(name: RegularizerName = "intensity", gamma: float = 1.0) -> Regularizer:
    return Regularizer(name, 1e-3, gamma, low=0.5, high=3.0)


PACES = [
    (0.0, 5e-4), (0.3, 5e-4), (0.5, 5e-4), (0.75, 7.5e-4),
    (1.0, 1e-3), (2.2, 2.2e-3), (3.0, 3e-3), (1e9, 3e-3),
]  # fmt: skip


@pytest.mark.parametrize(("pace", "strength"), PACES)
def test_strength_at_a_pace(pace: float, strength: float) -> None:
    assert paper().strength(pace) == pytest.approx(strength, rel=1e-12)
    assert paper("intensity_importance").strength(pace) == pytest.approx(strength, rel=1e-12)
    # Without intensity it is constant.
    assert paper(gamma=0.0).strength(pace) == paper("importance").strength(pace) == 1e-3
    assert paper("none").strength(pace) == 0


@pytest.mark.parametrize(("gamma", "factor"), [(0.0, 1.0), (0.5, 1.25), (2.0, 2.0), (10.0, 3.0)])
def test_gamma_is_the_slope(gamma: float, factor: float) -> None:
    assert paper(gamma=gamma).factor(1.5) == pytest.approx(factor, rel=1e-12)
    assert paper(gamma=gamma).strength(1.0) == 1e-3


def test_which_regularisers_weigh_parameters() -> None:
    assert not paper("none").weighted
    assert not paper("intensity").weighted
    assert paper("importance").weighted
    assert paper("intensity_importance").weighted
