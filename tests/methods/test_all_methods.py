"""What holds for many methods and needs no whole run: ranks that share an update, what is refused,
and fields that earlier versions had."""

from typing import Any

import pytest
import torch
from helpers import begin, learn, start, theta, together, toy, update
from torch import Tensor

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig, in_todays_names
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


def test_fields_of_earlier_versions_are_read_from_their_runs_alone() -> None:
    """They keep their fingerprints, and so their folders."""
    for name, config in METHOD_CONFIGS.items():
        run = {"method": {"name": name, **config.retired}}
        plain = RunConfig.parse({"method": {"name": name}})
        assert plain.identity()["method"].items() >= config.retired.items()
        assert RunConfig.parse(in_todays_names(run)).method.name == name
        if config.retired:
            with pytest.raises(InputError, match=next(iter(config.retired))):
                RunConfig.parse(run)
