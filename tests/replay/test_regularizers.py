"""The strength of a replay at pace r: beta_base s, with s = clip(1 + gamma (r - 1), low, high)."""

import pytest

from forever.replay.regularizers import Regularizer, RegularizerName, scaled


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


def test_the_scale_of_beta() -> None:
    """Three of a batch of eight, in an event of five updates."""
    assert scaled(0.4, "update", replayed=3, batch_size=8, updates=5) == 0.4
    assert scaled(0.4, "event", replayed=3, batch_size=8, updates=5) == pytest.approx(0.08)
    assert scaled(0.4, "batch", replayed=3, batch_size=8, updates=5) == pytest.approx(0.15)


def test_answers_are_held_at_a_constant_strength() -> None:
    for name in ("kl", "logits"):
        assert paper(name).holds_answers
        assert not paper(name).weighted
        assert paper(name).strength(3.0) == 1e-3
    assert not paper("intensity").holds_answers
