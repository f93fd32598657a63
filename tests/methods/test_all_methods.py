"""What holds for many methods and needs no whole run: ranks that share an update, what is refused,
and fields that earlier versions had."""

from typing import Any

import pytest
import torch
from helpers import begin, learn, start, theta, together, toy, update
from torch import Tensor

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.training.learner import Learner
from forever.world import World

SHARED: dict[str, dict[str, Any]] = {
    "ewc": {"name": "ewc", "strength": 1e6},
    "olora": {"name": "olora", "norm": 0.1},
    "moelora": {"name": "moelora", "balance": 0.0, "contrast": 0.0},
    "sapt": {"name": "sapt", "hidden": 5},
    "migu": {"name": "migu", "masked": 0.5},
    "vbm": {"name": "vbm", "views": 2},
}
# Method, field, its only value that is still understood, and another one.
RETIRED = [
    ("ewc", "fisher_labels", "gold", "sampled"),
    ("sapt", "memory_prompts", "real", "pseudo"),
    ("sapt", "generator_steps", 5000, 2),
    ("migu", "hard_mask", False, True),
    ("aimmerging", "true_gap", False, True),
    ("vbm", "variant", "interval", "mix"),
]


@pytest.mark.parametrize("name", SHARED)
def test_an_update_does_not_depend_on_accumulation_or_ranks(
    small_config: RunConfig, name: str
) -> None:
    """Penalties and masks belong to the weights and count once an update, not once a part of it.

    Batches of two leave nothing for the third rank.
    """
    tasks = toy(small_config)

    def build(world: World, micro: int | None = None) -> tuple[Learner, Any]:
        return begin(small_config, SHARED[name], world, micro, optim__batch_size=2)

    source, first = build(World())
    learn(source, first, tasks[0])

    def run(built: tuple[Learner, Any]) -> tuple[float, Tensor]:
        learner, method = built
        learner.parameters.load(theta(source))
        learner.memory.add(tasks[0])
        method.tensors |= {key: tensor.clone() for key, tensor in first.tensors.items()}
        steps = start(learner, method, tasks[1])
        learner.parameters.flat.data += 0.01  # where penalties are not zero
        record = update(learner, method, steps)
        return record.penalty, learner.parameters.grad.clone()

    penalty, gradient = run(build(World()))
    assert (penalty > 0) == (name in ("ewc", "olora", "sapt"))
    for other in (run(build(World(), micro=1)), *together(3, build, run)):
        assert other[0] == pytest.approx(penalty, rel=1e-5)
        torch.testing.assert_close(other[1], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["olora", "moelora", "sapt", "migu", "ssr"])
def test_without_adapters_it_is_refused(name: str) -> None:
    message = f"method {name} works on LoRA adapters; model.tuning='full' has none, use 'lora'"
    with pytest.raises(InputError, match=message):
        RunConfig.parse({"method": {"name": name}, "model": {"tuning": "full"}})


@pytest.mark.parametrize(("name", "field", "default", "other"), RETIRED)
def test_a_field_of_an_earlier_version_is_read_at_its_default_and_refused_otherwise(
    name: str, field: str, default: Any, other: Any
) -> None:
    """Runs of earlier versions keep their fingerprints, and so their folders."""
    plain = RunConfig.parse({"method": {"name": name}})
    old = RunConfig.parse({"method": {"name": name, field: default}})
    assert old.fingerprint() == plain.fingerprint()
    with pytest.raises(InputError, match=f"method: {field}={other!r} was removed.*leave out"):
        RunConfig.parse({"method": {"name": name, field: other}})
