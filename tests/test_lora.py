"""LoraBank against PEFT and against its formula: y = W x + s sum_e g_e B_e A_e drop(x)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forever.errors import InputError
from forever.models.backbone import load
from forever.models.lora import LoraBank, adapt, banks, load_peft, save_peft, set_gate

# PEFT 0.21 reads a property that transformers 5.23 renamed; nothing of ours does.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

TARGETS = ("q_proj", "v_proj")
IDS = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(0))


def backbone(folder: Path) -> Any:
    return load(str(folder), torch.float32, torch.device("cpu")).model


def adapted(folder: Path, seed: int = 0, adapters: int = 1, zero_b: bool = False, dropout: float = 0.0) -> Any:
    """The toy backbone with rank 4, alpha 8 and B drawn at random."""
    model = backbone(folder)
    adapt(model, TARGETS, rank=4, alpha=8.0, dropout=dropout, seed=seed, adapters=adapters)
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
    gates = {"none": None, "shared": torch.rand(3), "sample": torch.rand(4, 3), "token": torch.rand(4, 6, 3)}
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
    alone.A.data, alone.B.data = b.A.data[chosen : chosen + 1].clone(), b.B.data[chosen : chosen + 1].clone()
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
    adapt(fresh, TARGETS, rank=4, alpha=8.0, dropout=0.0, seed=0)
    assert torch.equal(logits(fresh), logits(backbone(backbone_folder)))
    assert not torch.equal(logits(adapted(backbone_folder)), logits(backbone(backbone_folder)))


def test_initialisation_is_pefts_distribution(backbone_folder: Path) -> None:
    model = backbone(backbone_folder)
    adapt(model, TARGETS, rank=64, alpha=8.0, dropout=0.0, seed=0)
    for _, b in banks(model):
        bound = 32**-0.5  # kaiming-uniform with a = sqrt 5 on an input of width 32
        assert not b.B.any()
        assert b.A.abs().max() <= bound
        assert b.A.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert abs(b.A.mean().item()) < 0.02


def test_initialisation_does_not_depend_on_the_order_of_layers(backbone_folder: Path) -> None:
    def start(targets: tuple[str, ...], seed: int = 0) -> dict[str, Tensor]:
        model = backbone(backbone_folder)
        adapt(model, targets, rank=4, alpha=8.0, dropout=0.0, seed=seed)
        return {name: b.A.detach() for name, b in banks(model)}

    torch.manual_seed(5)
    one, other, more = start(("q_proj", "v_proj")), start(("v_proj", "q_proj")), start(("k_proj", "v_proj", "q_proj"))
    for name, a in one.items():
        assert torch.equal(a, other[name])
        assert torch.equal(a, more[name])
    assert not any(torch.equal(a, start(TARGETS, seed=1)[name]) for name, a in one.items())
    values = list(one.values())
    assert not any(torch.equal(values[0], a) for a in values[1:] if a.shape == values[0].shape)


def test_adapters_of_a_bank_start_differently(backbone_folder: Path) -> None:
    model = adapted(backbone_folder, adapters=2)
    assert all(not torch.equal(b.A[0], b.A[1]) for _, b in banks(model))


def test_unknown_target_names_what_exists(backbone_folder: Path) -> None:
    with pytest.raises(InputError, match=r"no linear layer is called 'query'; this model has .*q_proj.*v_proj"):
        adapt(backbone(backbone_folder), ("q_proj", "query"), 4, 8.0, 0.0, 0)


def test_set_gate_reaches_every_bank(backbone_folder: Path) -> None:
    model = adapted(backbone_folder, adapters=2)
    both = logits(model)
    set_gate(model, torch.zeros(2))
    assert torch.equal(logits(model), logits(backbone(backbone_folder)))
    set_gate(model, None)
    assert torch.equal(logits(model), both)


# ---- PEFT


@pytest.fixture
def theirs(backbone_folder: Path, tmp_path: Path) -> Iterator[Any]:
    """The adapter of `adapted`, saved and loaded by PEFT on a fresh backbone, trainable."""
    from peft import PeftModel

    save_peft(adapted(backbone_folder), tmp_path / "ours", str(backbone_folder))
    return PeftModel.from_pretrained(backbone(backbone_folder), tmp_path / "ours", is_trainable=True)


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


def test_adapter_that_peft_wrote_can_be_read(backbone_folder: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(TARGETS), init_lora_weights=False, task_type="CAUSAL_LM")
    theirs = get_peft_model(backbone(backbone_folder), config).eval()
    theirs.save_pretrained(str(tmp_path))
    ours = adapted(backbone_folder, adapters=2)
    load_peft(ours, tmp_path, adapter=1)
    set_gate(ours, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=1e-5, atol=1e-6)


def test_save_and_load_round_trip_each_adapter(backbone_folder: Path, tmp_path: Path) -> None:
    source, target = adapted(backbone_folder, seed=1, adapters=2), adapted(backbone_folder, seed=2, adapters=2)
    for adapter in (0, 1):
        save_peft(source, tmp_path / str(adapter), "base", adapter)
        load_peft(target, tmp_path / str(adapter), adapter)
    for (_, a), (_, b) in zip(banks(source), banks(target), strict=True):
        assert torch.equal(a.A, b.A)
        assert torch.equal(a.B, b.B)
    description = json.loads((tmp_path / "0" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (description["r"], description["lora_alpha"], description["target_modules"]) == (
        4,
        8.0,
        ["q_proj", "v_proj"],
    )


def test_adapter_of_another_shape_of_model_is_refused(backbone_folder: Path, tmp_path: Path) -> None:
    save_peft(adapted(backbone_folder), tmp_path, "base")
    other = backbone(backbone_folder)
    adapt(other, ("q_proj",), 4, 8.0, 0.0, 0)
    with pytest.raises(InputError, match="does not fit this model: 4 tensors differ, the first is base_model"):
        load_peft(other, tmp_path)
