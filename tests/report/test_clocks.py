"""How well a clock predicts forgetting, against values worked by hand."""

import pytest

from scripts.clocks import curves, line_each, one_curve


def probe(task: str, step: int, losses: dict[str, float], tau: float) -> dict[str, object]:
    return {
        "task": task,
        "step": step,
        "losses": losses,
        "tau": tau,
        "distance": tau / 2,
        "kl": dict.fromkeys(losses, tau**2),
    }


# The loss on `a` rises by tau while `b` is learned, and by tau / 2 during `c`; that on `b` by tau.
EVENTS = [
    probe("b", 0, {"a": 1.0}, 0.0),
    probe("b", 5, {"a": 3.0}, 2.0),
    probe("b", 10, {"a": 4.0}, 3.0),
    probe("c", 0, {"a": 4.0, "b": 1.0}, 0.0),
    probe("c", 5, {"a": 5.0, "b": 3.0}, 2.0),
    probe("c", 10, {"a": 6.0, "b": 5.0}, 4.0),
]
# Squares of 0, 2, 3 about 2, the mean of the other curve, and of 0, 2, 4 about 5 / 3.
TOTAL = 5 + (25 + 1 + 49) / 9


def test_a_curve_is_the_rise_since_the_start_of_the_stage() -> None:
    previous, every = curves(EVENTS, only_previous=True), curves(EVENTS, only_previous=False)
    assert [rise.tolist() for _, rise in previous] == [[0, 2, 3], [0, 2, 4]]
    assert [rise.tolist() for _, rise in every] == [[0, 2, 3], [0, 1, 2], [0, 2, 4]]
    assert previous[1][0]["kl"].tolist() == [0, 4, 16]


def test_a_line_for_each_task_and_one_curve_for_all() -> None:
    previous, every = curves(EVENTS, only_previous=True), curves(EVENTS, only_previous=False)
    assert line_each("tau", every) == pytest.approx(1)
    # By hand, in updates: 2, 3 at 5, 10 has slope 40 / 125, which leaves 13 - 40^2 / 125 = 0.2.
    assert line_each("updates", previous) == pytest.approx(1 - 0.2 / 33)
    # By tau, 3 at 3 lies between 2 and 4, but beyond 3 the other curve does not go.
    assert one_curve("tau", previous) == pytest.approx(1 - 1 / TOTAL)
    # Each by the other: after ten updates both err by one.
    assert one_curve("updates", previous) == pytest.approx(1 - 2 / TOTAL)
