"""LoraBank against PEFT and against its formula: y = W x + s sum_e g_e B_e A_e drop(x)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import load_adapter
from torch import Tensor, nn

from forever.config.parts import ModelConfig
from forever.errors import InputError
from forever.models.backbone import load
from forever.models.lora import (
    LoraBank,
    adapt,
    banks,
    disabled,
    freeze,
    frozen,
    load_frozen,
    mixed,
    save_peft,
)

# PEFT 0.21 reads a property that transformers 5.23 renamed; nothing of ours does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)

IDS = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(0))


def backbone(folder: Path) -> Any:
    return load(str(folder), torch.float32, torch.device("cpu")).model


def adapted(
    folder: Path, seed: int = 0, adapters: int = 1, zero_b: bool = False, dropout: float = 0.0
) -> Any:
    """The toy backbone with rank 4, alpha 8 and B drawn at random."""
    model = backbone(folder)
    part = ModelConfig(rank=4, alpha=8.0, dropout=dropout)
    adapt(model, part, seed, adapters)
    noise = torch.Generator().manual_seed(seed)
    for _, bank in banks(model):
        if not zero_b:
            bank.B.data.normal_(0, 0.3, generator=noise)
    return model


def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits


# ---- formula and gates


def bank(adapters: int = 3, dropout: float = 0.0) -> LoraBank:
    torch.manual_seed(1)
    made = LoraBank(nn.Linear(5, 7), rank=2, alpha=6.0, dropout=dropout, adapters=adapters)
    nn.init.normal_(made.A)
    nn.init.normal_(made.B)
    return made


def by_hand(b: LoraBank, x: Tensor, gate: Tensor) -> Tensor:
    """The formula row by row: `gate` is [B, T, E]."""
    y = b.base(x)
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            for e in range(b.A.shape[0]):
                y[i, t] = y[i, t] + 3.0 * gate[i, t, e] * (b.B[e] @ (b.A[e] @ x[i, t]))
    return y


@pytest.mark.parametrize("shape", ["none", "shared", "sample", "token"])
def test_gate(shape: str) -> None:
    b, x = bank(), torch.randn(4, 6, 5)
    gates = {
        "none": None,
        "shared": torch.rand(3),
        "sample": torch.rand(4, 3),
        "token": torch.rand(4, 6, 3),
    }
    b.gate = gate = gates[shape]
    full = torch.ones(3) if gate is None else gate[:, None] if gate.dim() == 2 else gate
    torch.testing.assert_close(b(x), by_hand(b, x, full.expand(4, 6, 3)))


def test_gate_of_ones_is_no_gate() -> None:
    b, x = bank(), torch.randn(4, 6, 5)
    plain = b(x)
    b.gate = torch.ones(3)
    torch.testing.assert_close(b(x), plain)


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_one_hot_gate_is_that_adapter_alone(chosen: int) -> None:
    b, x = bank(), torch.randn(4, 6, 5)
    alone = LoraBank(b.base, 2, 6.0, 0.0)
    alone.A.data, alone.B.data = (
        b.A.data[chosen : chosen + 1].clone(),
        b.B.data[chosen : chosen + 1].clone(),
    )
    b.gate = nn.functional.one_hot(torch.tensor(chosen), 3).float()
    torch.testing.assert_close(b(x), alone(x))
    b(x).sum().backward()
    assert b.A.grad is not None
    others = [e for e in range(3) if e != chosen]
    assert not b.A.grad[others].any()
    assert b.A.grad[chosen].any()


def test_rows_with_one_hot_gates_do_not_mix() -> None:
    """What drives several learners in lock-step: each row passes through its own adapter."""
    b, x = bank(), torch.randn(3, 6, 5)
    b.gate = torch.eye(3)
    mixed = b(x)
    for e in range(3):
        b.gate = torch.eye(3)[e]
        torch.testing.assert_close(mixed[e], b(x)[e])


def test_dropout_acts_on_the_adapter_in_training_only() -> None:
    b, x = bank(dropout=0.5), torch.randn(4, 6, 5)
    b.train()
    torch.manual_seed(0)
    first = b(x)
    torch.manual_seed(1)
    assert not torch.equal(first, b(x))
    torch.manual_seed(0)
    assert torch.equal(first, b(x))
    b.eval()
    torch.testing.assert_close(b(x), by_hand(b, x, torch.ones(4, 6, 3)))


def test_scale_is_alpha_over_rank_for_any_number_of_adapters() -> None:
    assert [bank(adapters=n).scale for n in (1, 5)] == [3.0, 3.0]


def test_half_precision_base_keeps_its_dtype_and_adapters_stay_fp32() -> None:
    b = LoraBank(nn.Linear(5, 7).bfloat16(), 2, 4.0, 0.0)
    assert b.A.dtype == b.B.dtype == torch.float32
    assert b(torch.randn(2, 3, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16


# ---- a model's adapters


def test_only_adapters_train_and_the_base_is_frozen(backbone_folder: Path) -> None:
    model = adapted(backbone_folder)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {f"{name}.{side}" for name, _ in banks(model) for side in "AB"}
    assert [name.split(".")[-1] for name, _ in banks(model)] == ["q_proj", "v_proj"] * 2
    model(input_ids=IDS).logits.square().sum().backward()
    for name, p in model.named_parameters():
        assert (p.grad is not None and bool(p.grad.any())) == (name in trainable)


def test_zero_b_gives_the_base_model(backbone_folder: Path) -> None:
    fresh = backbone(backbone_folder)
    adapt(fresh, ModelConfig(rank=4), seed=0)
    assert torch.equal(logits(fresh), logits(backbone(backbone_folder)))
    assert not torch.equal(logits(adapted(backbone_folder)), logits(backbone(backbone_folder)))


def test_initialisation_is_pefts_distribution(backbone_folder: Path) -> None:
    model = backbone(backbone_folder)
    adapt(model, ModelConfig(rank=64), seed=0)
    for _, b in banks(model):
        bound = 32**-0.5  # kaiming-uniform with a = sqrt 5 on an input of width 32
        assert not b.B.any()
        assert b.A.abs().max() <= bound
        assert b.A.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert abs(b.A.mean().item()) < 0.02


def test_initialisation_does_not_depend_on_the_order_of_layers(backbone_folder: Path) -> None:
    def start(targets: tuple[str, ...], seed: int = 0) -> dict[str, Tensor]:
        model = backbone(backbone_folder)
        adapt(model, ModelConfig(targets=targets, rank=4), seed)
        return {name: b.A.detach() for name, b in banks(model)}

    torch.manual_seed(5)
    one, other, more = (
        start(("q_proj", "v_proj")),
        start(("v_proj", "q_proj")),
        start(("k_proj", "v_proj", "q_proj")),
    )
    for name, a in one.items():
        assert torch.equal(a, other[name])
        assert torch.equal(a, more[name])
    assert not any(
        torch.equal(a, start(("q_proj", "v_proj"), seed=1)[name]) for name, a in one.items()
    )
    values = list(one.values())
    assert not any(torch.equal(values[0], a) for a in values[1:] if a.shape == values[0].shape)


def test_adapters_of_a_bank_start_differently(backbone_folder: Path) -> None:
    model = adapted(backbone_folder, adapters=2)
    assert all(not torch.equal(b.A[0], b.A[1]) for _, b in banks(model))


def test_unknown_target_names_what_exists(backbone_folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"no linear layer is called 'query'; this model has .*q_proj.*v_proj"
    ):
        adapt(backbone(backbone_folder), ModelConfig(targets=("q_proj", "query")), 0)


def test_gate_reaches_every_bank_and_is_taken_back(backbone_folder: Path) -> None:
    model = adapted(backbone_folder, adapters=2)
    both, base = logits(model), logits(backbone(backbone_folder))
    with mixed(model, torch.zeros(2)):
        assert torch.equal(logits(model), base)
    assert torch.equal(logits(model), both)
    with disabled(model):
        assert torch.equal(logits(model), base)
    assert torch.equal(logits(model), both)


# ---- frozen adapters


def frozen_stack(
    folder: Path, tasks: int = 3, dropout: float = 0.0
) -> tuple[Any, list[dict[str, Tensor]]]:
    """A model whose adapters of `tasks` finished tasks are frozen, and what each adapter was."""
    model = adapted(folder, zero_b=True, dropout=dropout)
    noise, kept = torch.Generator().manual_seed(5), []
    for _ in range(tasks):
        for _, b in banks(model):
            b.B.data.normal_(0, 0.3, generator=noise)
        sides = [
            (f"{n}.{side}", t) for n, b in banks(model) for side, t in (("A", b.A), ("B", b.B))
        ]
        kept.append({name: t.detach().clone() for name, t in sides})
        freeze(model, seed=0)
    return model, kept


def test_freezing_leaves_what_the_model_computes(backbone_folder: Path) -> None:
    model = adapted(backbone_folder)
    before = logits(model)
    freeze(model, seed=0)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    assert all(not b.B.any() and b.A.any() for _, b in banks(model))
    assert not torch.equal(before, logits(backbone(backbone_folder)))


def test_frozen_adapters_add_up(backbone_folder: Path) -> None:
    """The concatenated branch equals the sum of separate adapters; a gate weighs the oldest
    first."""
    model, kept = frozen_stack(backbone_folder)
    gate = torch.tensor([0.2, 0.0, 0.7, 0.1])
    for weights in (torch.ones(4), gate):
        plain = backbone(backbone_folder)
        for name, _ in banks(model):
            delta = sum(
                w * 2.0 * k[f"{name}.B"][0] @ k[f"{name}.A"][0]
                for w, k in zip(weights[:3], kept, strict=True)
            )
            plain.get_submodule(name).weight.data += delta
        with mixed(model, None if weights is not gate else gate):
            torch.testing.assert_close(logits(model), logits(plain), rtol=1e-4, atol=1e-5)


def test_frozen_adapters_get_no_gradient_and_no_dropout(backbone_folder: Path) -> None:
    model, kept = frozen_stack(backbone_folder, dropout=0.5)
    model.train()
    # The new branch is zero, the frozen ones see no dropout.
    assert torch.equal(logits(model), logits(model))
    model(input_ids=IDS).logits.square().sum().backward()
    assert {n.split(".")[-1] for n, p in model.named_parameters() if p.grad is not None} == {
        "A",
        "B",
    }
    for name, t in frozen(model).items():
        assert not t.requires_grad
        assert torch.equal(t, torch.cat([k[name] for k in kept]))


def test_gradient_through_frozen_adapters_can_be_cut(backbone_folder: Path) -> None:
    """The lower layer's adapter feels the frozen ones of the upper layer, unless they are
    detached."""
    grads = []
    for cut in (False, True):
        model, _ = frozen_stack(backbone_folder)
        for _, b in banks(model):
            b.B.data.fill_(0.1)
            b.detach_frozen = cut
        model(input_ids=IDS).logits.square().sum().backward()
        grads.append({n: b.A.grad.clone() for n, b in banks(model) if b.A.grad is not None})
    lower, upper = ([n for n in grads[0] if f"layers.{i}." in n] for i in (0, 1))
    assert all(not torch.allclose(grads[0][n], grads[1][n], rtol=1e-3) for n in lower)
    for n in upper:
        torch.testing.assert_close(grads[0][n], grads[1][n], rtol=1e-5, atol=1e-6)


def test_frozen_adapters_are_put_back(backbone_folder: Path) -> None:
    model, _ = frozen_stack(backbone_folder)
    saved, expected = {n: t.clone() for n, t in frozen(model).items()}, logits(model)
    freeze(model, seed=0)
    load_frozen(model, saved)
    assert torch.equal(logits(model), expected)
    load_frozen(model, {})
    assert torch.equal(logits(model), logits(backbone(backbone_folder)))
    assert frozen(model) == {}


def test_each_adapter_starts_from_its_own_stream(backbone_folder: Path) -> None:
    model = adapted(backbone_folder, zero_b=True)
    starts = [torch.cat([b.A.detach().flatten() for _, b in banks(model)])]
    for _ in range(2):
        freeze(model, seed=0)
        starts.append(torch.cat([b.A.detach().flatten() for _, b in banks(model)]))
    several = adapted(backbone_folder, zero_b=True, adapters=3)
    for e, start in enumerate(starts):
        assert torch.equal(torch.cat([b.A.detach()[e].flatten() for _, b in banks(several)]), start)
    assert not torch.equal(starts[0], starts[1])


def test_observer_sees_training_only(backbone_folder: Path) -> None:
    model, seen = adapted(backbone_folder), []
    name, b = next(banks(model))
    inputs = []
    model.get_submodule(name).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    b.observe = lambda bank, A_x, out: seen.append((bank, A_x, out))
    model.eval()
    logits(model)
    assert seen == []
    model.train()
    logits(model)
    assert seen[0][0] is b
    torch.testing.assert_close(seen[0][1], inputs[-1] @ b.A[0].T)
    torch.testing.assert_close(
        seen[0][2], b.base(inputs[-1]) + 2.0 * inputs[-1] @ b.A[0].T @ b.B[0].T
    )


# ---- PEFT


@pytest.fixture
def theirs(backbone_folder: Path, tmp_path: Path) -> Iterator[Any]:
    """The adapter of `adapted`, saved and loaded by PEFT on a fresh backbone, trainable."""
    from peft import PeftModel

    save_peft(adapted(backbone_folder), tmp_path / "ours", str(backbone_folder))
    return PeftModel.from_pretrained(
        backbone(backbone_folder), tmp_path / "ours", is_trainable=True
    )


def test_saved_adapter_loads_in_peft_with_equal_logits(backbone_folder: Path, theirs: Any) -> None:
    ours = logits(adapted(backbone_folder))
    theirs.eval()
    torch.testing.assert_close(logits(theirs), ours, rtol=1e-5, atol=1e-6)
    base = logits(backbone(backbone_folder))
    assert (ours - base).abs().max() > 0.01  # the adapter does something


def test_gradients_equal_pefts(backbone_folder: Path, theirs: Any) -> None:
    model = adapted(backbone_folder)
    for m in (model, theirs):
        m.eval()
        m(input_ids=IDS, labels=IDS).loss.backward()
    their = dict(theirs.named_parameters())
    for name, b in banks(model):
        for side, ours in (("A", b.A), ("B", b.B)):
            other = their[f"base_model.model.{name}.lora_{side}.default.weight"]
            assert ours.grad is not None
            assert ours.grad.any()
            torch.testing.assert_close(ours.grad[0], other.grad, rtol=1e-4, atol=1e-7)


def test_sum_of_adapters_is_one_adapter_for_peft(backbone_folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    model, _ = frozen_stack(backbone_folder)
    for _, b in banks(model):
        b.B.data.fill_(0.1)
    save_peft(model, tmp_path, str(backbone_folder))
    theirs = PeftModel.from_pretrained(backbone(backbone_folder), tmp_path).eval()
    assert json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))["r"] == 16
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-4, atol=1e-5)


def test_save_and_load_round_trip_each_adapter(backbone_folder: Path, tmp_path: Path) -> None:
    source, target = (
        adapted(backbone_folder, seed=1, adapters=2),
        adapted(backbone_folder, seed=2, adapters=2),
    )
    for adapter in (0, 1):
        save_peft(source, tmp_path / str(adapter), "base", adapter)
        load_adapter(target, tmp_path / str(adapter), adapter)
    for (_, a), (_, b) in zip(banks(source), banks(target), strict=True):
        assert torch.equal(a.A, b.A)
        assert torch.equal(a.B, b.B)
    description = json.loads((tmp_path / "0" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (description["r"], description["lora_alpha"], description["target_modules"]) == (
        4,
        8.0,
        ["q_proj", "v_proj"],
    )
