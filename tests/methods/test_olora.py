"""O-LoRA against its formula: the penalty and its gradient, the frozen stack, and what it must
leave alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import begin, execute, learn, start, theta, toy
from torch import Tensor

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import check
from forever.methods.base import Method
from forever.methods.olora import OLora
from forever.models import location, lora
from forever.models.backbone import load
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import refused
from forever.sweeps.sweep import Sweep
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.steps import Forward
from forever.training.world import World

IDS = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(0))


def logits(learner: Learner) -> Tensor:
    learner.backbone.model.eval()
    with torch.no_grad():
        return learner.backbone.model(input_ids=IDS).logits


def second_task(config: RunConfig, tasks: int = 1, **fields: Any) -> tuple[Learner, Any]:
    """A learner at the start of the task after the first `tasks`."""
    learner, method = begin(config, {"name": "olora", **fields})
    learn(learner, method, *toy(config)[:tasks])
    start(learner, method, toy(config)[tasks])
    return learner, method


def added(learner: Learner, method: Any, share: float = 1.0) -> Tensor:
    """The penalty alone."""
    return method.loss(learner, Forward(torch.zeros(()), share, [], torch.empty(0)))


def by_hand(learner: Learner, power: int, orthogonality: float, norm: float) -> float:
    """The penalty entry by entry, in double precision."""
    total = 0.0
    for _, bank in lora.banks(learner.backbone.model):
        for old in bank.frozen_A.double().flatten(0, 1):
            for new in bank.A[0].detach().double():
                total += orthogonality * abs(float(old @ new)) ** power
        total += norm * sum(
            float((t.detach().double() ** 2).sum() ** 0.5) for t in (bank.A, bank.B)
        )
    return total


# ---- settings in which it is something else


def test_without_penalty_it_trains_one_adapter_after_another(small_config: RunConfig) -> None:
    """l1 = l2 = 0 is IncLoRA: cross-entropy alone, a fresh adapter on top of the sum of the old
    ones."""

    class IncLora(OLora):
        loss = Method.loss

    runs = []
    for kind in (OLora, IncLora):
        learner, method = begin(small_config, {"name": "olora", "orthogonality": 0.0})
        method = kind(method.config)
        records = learn(learner, method, *toy(small_config))
        runs.append((learner, records))
    assert runs[0][1] == runs[1][1]
    assert torch.equal(theta(runs[0][0]), theta(runs[1][0]))
    pushed, method = begin(small_config, {"name": "olora"})
    assert all(r.penalty > 0 for r in learn(pushed, method, *toy(small_config))[4:])
    assert not torch.equal(theta(runs[0][0]), theta(pushed))


# ---- the penalty


@pytest.mark.parametrize(("form", "power"), [("l1", 1), ("sq", 2)])
def test_penalty_against_its_entries(small_config: RunConfig, form: str, power: int) -> None:
    fields: dict[str, Any] = {"orthogonality": 0.7, "norm": 0.3, "orth_norm": form}
    learner, method = second_task(small_config, 2, **fields)
    for _, bank in lora.banks(learner.backbone.model):
        bank.B.data.fill_(0.1)
    assert added(learner, method).item() == pytest.approx(
        by_hand(learner, power, 0.7, 0.3), rel=1e-5
    )
    assert added(learner, method, 0.25).item() == pytest.approx(
        by_hand(learner, power, 0.7, 0.3) / 4, rel=1e-5
    )


def test_norms_have_a_finite_gradient_where_b_is_zero(small_config: RunConfig) -> None:
    learner, method = second_task(small_config, orthogonality=0.0, norm=2.0)
    learner.parameters.grad.zero_()
    added(learner, method).backward()
    for _, bank in lora.banks(learner.backbone.model):
        assert bank.A.grad is not None
        assert bank.B.grad is not None
        torch.testing.assert_close(bank.A.grad, 2 * bank.A.detach() / bank.A.detach().norm())
        assert not bank.B.grad.any()


# ---- the stack


def test_what_was_learned_is_not_touched_again(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {"name": "olora"})
    model, seen, earlier = learner.backbone.model, [], {}
    for stage, task in enumerate(toy(small_config)):
        learn(learner, method, task)
        frozen = {name: t.clone() for name, t in lora.frozen(model).items()}
        assert {len(t) for t in frozen.values()} == ({stage} if stage else set())
        if stage:
            for (name, bank), (a, b) in zip(lora.banks(model), seen[-1], strict=True):
                assert torch.equal(frozen[f"{name}.A"][-1:], a)  # as it was at the end of its task
                assert torch.equal(frozen[f"{name}.B"][-1:], b)
                assert bank.B.any()
        if stage == 2:
            assert all(torch.equal(t[:1], earlier[name]) for name, t in frozen.items())
        earlier = frozen
        seen.append(
            [(bank.A.detach().clone(), bank.B.detach().clone()) for _, bank in lora.banks(model)]
        )
    fresh = load(small_config.model.name, torch.float32, torch.device("cpu")).model.state_dict()
    base = {
        name.replace(".base.", "."): t
        for name, t in model.state_dict().items()
        if name.split(".")[-1] not in "AB"
    }
    assert base.keys() == fresh.keys()
    assert all(torch.equal(t, fresh[name]) for name, t in base.items())


def test_a_task_begins_where_the_last_one_ended(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {"name": "olora"})
    learn(learner, method, toy(small_config)[0])
    before = logits(learner)
    start(learner, method, toy(small_config)[1])
    after = logits(learner)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    # Without the new branch, which is zero.
    with lora.mixed(learner.backbone.model, torch.tensor([1.0, 0.0])):
        assert torch.equal(logits(learner), after)
    with lora.disabled(learner.backbone.model):
        assert not torch.allclose(logits(learner), before, atol=1e-3)


def test_merged_equals_unmerged(small_config: RunConfig) -> None:
    learner, method = begin(small_config, {"name": "olora"})
    learn(learner, method, *toy(small_config))
    plain = load(small_config.model.name, torch.float32, torch.device("cpu")).model
    for name, bank in lora.banks(learner.backbone.model):
        pairs = zip((*bank.frozen_A, bank.A[0]), (*bank.frozen_B, bank.B[0]), strict=True)
        plain.get_submodule(name).weight.data += torch.stack(
            [2.0 * (B @ A).detach() for A, B in pairs]
        ).sum(0)
    with torch.no_grad():
        torch.testing.assert_close(
            plain(input_ids=IDS).logits, logits(learner), rtol=1e-4, atol=1e-5
        )


# ---- refusals and resuming


def test_more_directions_than_a_layer_has_are_refused(
    small_config: RunConfig, tmp_path: Path
) -> None:
    """Three tasks of rank 11 need 33 of 32 dimensions; of rank 10 they fit."""
    changed = RunConfig.parse(small_config.model_dump(mode="json") | {"method": {"name": "olora"}})
    wide = changed.override({"model.rank": 11})
    with pytest.raises(
        InputError,
        match=r"3 tasks of rank 11 cannot be orthogonal in the 32 dimensions of .*q_proj",
    ):
        execute(wide, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for rank, tasks, fits in ((10, 3, True), (8, 4, True), (8, 5, False)):
        config = changed.override({"model.rank": rank})
        if fits:
            build_learner(config, World(), method=OLora(config.method), tasks=tasks)  # type: ignore[arg-type]
        else:
            with pytest.raises(InputError, match=f"{tasks} tasks of rank {rank}"):
                build_learner(config, World(), method=OLora(config.method), tasks=tasks)  # type: ignore[arg-type]


def test_it_is_refused_before_a_local_model_is_loaded(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the width in config.json, where it is that of the layers; of other layers the model itself
    knows."""
    ranks = {f"r = {rank}": {"method.name": "olora", "model.rank": rank} for rank in (10, 11)}
    fits, too_wide = Sweep("ranks", small_config, ranks).trials()
    problems = refused([fits, too_wide])
    assert problems.keys() == {too_wide.key}
    assert "3 tasks of rank 11" in problems[too_wide.key]
    wide = small_config.override({"method.name": "olora", "model.rank": 11})
    inner = wide.override({"model.targets": ["down_proj"]})  # 64 wide
    check(inner, RunDirectory(tmp_path / "run"), resume=False)
    build_learner(inner, World(), method=OLora(inner.method), tasks=3)  # type: ignore[arg-type]
    tiny = RunConfig.parse({"model": {"name": "tiny", "rank": 26}, "method": {"name": "olora"}})
    with pytest.raises(
        InputError, match="5 tasks of rank 26 cannot be orthogonal in the 128 dimensions of q_proj"
    ):
        check(tiny, RunDirectory(tmp_path / "run"), resume=False)
    for config_json in ("[]", "{", '{"hidden_size": "32"}'):  # whoever loads it says what is wrong
        (tmp_path / "config.json").write_text(config_json, encoding="utf-8")
        assert location.width(str(tmp_path)) is None
    assert location.width("owner/name") is None
