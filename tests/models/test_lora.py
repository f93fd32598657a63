"""LoraBank against PEFT and against its formula: y = W x + s sum_e g_e B_e A_e drop(x)."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import lora_tensors, save_kind
from peft import PeftModel
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


def draw_b(model: Any, stream: torch.Generator) -> None:
    for _, bank in banks(model):
        bank.B.data.normal_(0, 0.3, generator=stream)


def adapted(folder: Path, adapters: int = 1, seed: int = 0, dropout: float = 0.0) -> Any:
    """The toy backbone with rank 4, alpha 8 and B drawn at random."""
    model = backbone(folder)
    adapt(model, ModelConfig(rank=4, alpha=8.0, dropout=dropout), seed, adapters)
    draw_b(model, torch.Generator().manual_seed(seed))
    return model


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def learn(model: Any) -> None:
    model(input_ids=IDS).logits.square().sum().backward()


# ---- formula and gates


@pytest.fixture
def bank() -> LoraBank:
    """Three adapters of rank 2 with s = 6 / 2."""
    torch.manual_seed(1)
    made = LoraBank(nn.Linear(5, 7), rank=2, alpha=6.0, dropout=0.0, adapters=3)
    nn.init.normal_(made.A)
    nn.init.normal_(made.B)
    return made


X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(2))


def by_hand(bank: LoraBank, gate: Tensor) -> Tensor:
    """The formula row by row: `gate` is [B, T, E]."""
    y = bank.base(X)
    for i in range(X.shape[0]):
        for t in range(X.shape[1]):
            for e in range(bank.A.shape[0]):
                y[i, t] = y[i, t] + 3.0 * gate[i, t, e] * (bank.B[e] @ (bank.A[e] @ X[i, t]))
    return y


@pytest.mark.parametrize(
    ("gate", "full"),
    [
        (None, torch.ones(3)),
        (torch.ones(3), torch.ones(3)),
        (torch.eye(3)[1], torch.eye(3)[1]),
        (torch.tensor([0.2, 0.7, 0.4]), torch.tensor([0.2, 0.7, 0.4])),
        (X[:, 0, :3], X[:, :1, :3]),  # a row for a sample
        (X[..., :3], X[..., :3]),  # a row for a token
    ],
)
def test_gate(bank: LoraBank, gate: Tensor | None, full: Tensor) -> None:
    bank.gate = gate
    torch.testing.assert_close(bank(X), by_hand(bank, full.expand(4, 6, 3)))


def test_only_the_chosen_adapter_gets_a_gradient(bank: LoraBank) -> None:
    bank.gate = torch.eye(3)[1]
    bank(X).sum().backward()
    assert bank.A.grad is not None
    assert [bool(grad.any()) for grad in bank.A.grad] == [False, True, False]


def test_dropout_acts_on_the_adapter_in_training_only(bank: LoraBank) -> None:
    bank.dropout = 0.5
    outputs: list[Tensor] = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        outputs.append(bank(X))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(bank.eval()(X), by_hand(bank, torch.ones(4, 6, 3)))


def test_half_precision_base_keeps_its_dtype_and_adapters_stay_fp32() -> None:
    bank = LoraBank(nn.Linear(5, 7).bfloat16(), 2, 4.0, 0.0)
    assert bank.A.dtype == bank.B.dtype == torch.float32
    assert bank(torch.randn(2, 3, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16


# ---- a model's adapters


def test_only_adapters_train_and_the_base_is_frozen(backbone_folder: Path) -> None:
    model = adapted(backbone_folder)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {f"{name}.{side}" for name, _ in banks(model) for side in "AB"}
    assert [name.split(".")[-1] for name, _ in banks(model)] == ["q_proj", "v_proj"] * 2
    learn(model)
    for name, p in model.named_parameters():
        assert (p.grad is not None and bool(p.grad.any())) == (name in trainable)


def test_an_adapter_starts_as_pefts_does(backbone_folder: Path) -> None:
    model = backbone(backbone_folder)
    adapt(model, ModelConfig(rank=64), seed=0)
    assert torch.equal(logits(model), logits(backbone(backbone_folder)))
    for _, bank in banks(model):
        bound = 32**-0.5  # kaiming-uniform with a = sqrt 5 on an input of width 32
        assert not bank.B.any()
        assert bank.A.abs().max() <= bound
        assert bank.A.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert abs(bank.A.mean().item()) < 0.02


def test_each_adapter_starts_from_a_stream_of_its_own(backbone_folder: Path) -> None:
    """It is named by seed, layer and number, whatever else is adapted, and frozen before."""

    def starts(*targets: str, seed: int = 0, adapters: int = 1) -> dict[str, Tensor]:
        model = backbone(backbone_folder)
        adapt(model, ModelConfig(targets=targets, rank=4), seed, adapters)
        return {name: bank.A.detach().clone() for name, bank in banks(model)}

    first = starts("q_proj", "v_proj", adapters=3)
    more = starts("k_proj", "v_proj", "q_proj")
    model = adapted(backbone_folder)
    for number in range(3):
        for name, bank in banks(model):
            assert torch.equal(first[name][number], bank.A[0])
        freeze(model, seed=0)
    draws = [*starts("q_proj", "v_proj", seed=1).values()]
    for name, start in first.items():
        assert torch.equal(start[:1], more[name])
        draws += [start[:1], start[1:2], start[2:]]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == len(draws)


def test_banks_adapt_gpt2_as_peft_does(backbone_folder: Path, tmp_path: Path) -> None:
    """Its layers have the weights of linear ones transposed, [D, O]."""
    folder = save_kind(tmp_path / "gpt2", "gpt2", backbone_folder, n_positions=40)
    part = ModelConfig(targets=("c_attn", "c_proj"), rank=4, dropout=0.0)
    model, plain = backbone(folder), backbone(folder)
    adapt(model, part, seed=0)
    draw_b(model, torch.Generator().manual_seed(0))
    assert len(list(banks(model))) == 6  # two of the name c_proj in each layer
    save_peft(model, tmp_path / "adapter", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PEFT would say that it changes fan_in_fan_out
        warnings.filterwarnings("ignore", category=FutureWarning)
        theirs = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    assert not torch.allclose(logits(model), logits(backbone(folder)), atol=1e-2)
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["embed_tokens", "mlp", "self_attn.q_proj"])
def test_a_target_that_no_bank_can_wrap_is_refused(target: str, backbone_folder: Path) -> None:
    with pytest.raises(InputError) as refused:
        adapt(backbone(backbone_folder), ModelConfig(targets=("q_proj", target)), 0)
    assert refused.value.key == "model.targets"
    assert target in str(refused.value)


def test_unknown_target_names_what_exists(backbone_folder: Path) -> None:
    with pytest.raises(InputError, match=r"is called 'query'; this model has .*q_proj.*v_proj"):
        adapt(backbone(backbone_folder), ModelConfig(targets=("q_proj", "query")), 0)


def test_gate_reaches_every_bank_and_is_taken_back(backbone_folder: Path) -> None:
    model = adapted(backbone_folder, adapters=2)
    both, base = logits(model), logits(backbone(backbone_folder))
    assert not torch.equal(both, base)
    for closed in (mixed(model, torch.zeros(2)), disabled(model)):
        with closed:
            assert torch.equal(logits(model), base)
        assert torch.equal(logits(model), both)


# ---- frozen adapters


def frozen_stack(folder: Path, dropout: float = 0.0) -> tuple[Any, list[dict[str, Tensor]]]:
    """A model whose adapters of three finished tasks are frozen, and what each adapter was."""
    model = adapted(folder, dropout=dropout)
    stream = torch.Generator().manual_seed(5)
    kept: list[dict[str, Tensor]] = []
    for _ in range(3):
        draw_b(model, stream)
        kept.append({name: tensor.clone() for name, tensor in lora_tensors(model).items()})
        freeze(model, seed=0)
    return model, kept


def test_freezing_leaves_what_the_model_computes(backbone_folder: Path) -> None:
    model = adapted(backbone_folder)
    before = logits(model)
    freeze(model, seed=0)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    assert not any(bank.B.any() for _, bank in banks(model))


@pytest.mark.parametrize("gate", [None, torch.tensor([0.2, 0.0, 0.7, 0.1])])
def test_frozen_adapters_add_up(backbone_folder: Path, gate: Tensor | None) -> None:
    """The branch equals the sum of separate adapters; a gate weighs the oldest first."""
    model, kept = frozen_stack(backbone_folder)
    weights = torch.ones(4) if gate is None else gate
    plain = backbone(backbone_folder)
    for name, _ in banks(model):
        for weight, tensors in zip(weights[:3], kept, strict=True):
            delta = tensors[f"{name}.B"][0] @ tensors[f"{name}.A"][0]
            plain.get_submodule(name).weight.data += 2.0 * weight * delta
    with mixed(model, gate):
        torch.testing.assert_close(logits(model), logits(plain), rtol=1e-4, atol=1e-5)


def test_frozen_adapters_get_no_gradient_and_no_dropout(backbone_folder: Path) -> None:
    model, kept = frozen_stack(backbone_folder, dropout=0.5)
    model.train()
    # The new branch is zero, the frozen ones see no dropout.
    assert torch.equal(logits(model), logits(model))
    learn(model)
    for name, tensor in frozen(model).items():
        assert not tensor.requires_grad
        assert torch.equal(tensor, torch.cat([tensors[name] for tensors in kept]))


def test_gradient_through_frozen_adapters_can_be_cut(backbone_folder: Path) -> None:
    """The lower layer's adapter feels the frozen ones of the upper layer, unless detached."""
    grads: list[dict[str, Tensor]] = []
    for cut in (False, True):
        model, _ = frozen_stack(backbone_folder)
        for _, bank in banks(model):
            bank.B.data.fill_(0.1)
            bank.detach_frozen = cut
        learn(model)
        grads.append({name: bank.A.grad for name, bank in banks(model) if bank.A.grad is not None})
    for name, whole in grads[0].items():
        rtol = 1e-3 if "layers.0." in name else 1e-5
        assert torch.allclose(whole, grads[1][name], rtol, 1e-6) == ("layers.1." in name)


def test_frozen_adapters_are_put_back(backbone_folder: Path) -> None:
    model, _ = frozen_stack(backbone_folder)
    saved, expected = {n: t.clone() for n, t in frozen(model).items()}, logits(model)
    freeze(model, seed=0)
    load_frozen(model, saved)
    assert torch.equal(logits(model), expected)
    load_frozen(model, {})
    assert torch.equal(logits(model), logits(backbone(backbone_folder)))
    assert frozen(model) == {}


# ---- PEFT


def test_logits_and_gradients_are_pefts(backbone_folder: Path, tmp_path: Path) -> None:
    """The adapter is saved and loaded by PEFT on a fresh backbone, trainable."""
    ours, base = adapted(backbone_folder), backbone(backbone_folder)
    assert (logits(ours) - logits(base)).abs().max() > 0.01  # the adapter does something
    save_peft(ours, tmp_path, str(backbone_folder))
    theirs = PeftModel.from_pretrained(base, tmp_path, is_trainable=True).eval()
    torch.testing.assert_close(logits(theirs), logits(ours), rtol=1e-5, atol=1e-6)
    for model in (ours, theirs):
        model(input_ids=IDS, labels=IDS).loss.backward()
    their = dict(theirs.named_parameters())
    for name, bank in banks(ours):
        for side, parameter in (("A", bank.A), ("B", bank.B)):
            other = their[f"base_model.model.{name}.lora_{side}.default.weight"]
            assert parameter.grad is not None
            assert parameter.grad.any()
            torch.testing.assert_close(parameter.grad[0], other.grad, rtol=1e-4, atol=1e-7)


def description(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))


def test_sum_of_adapters_is_one_adapter_for_peft(backbone_folder: Path, tmp_path: Path) -> None:
    model, _ = frozen_stack(backbone_folder)
    draw_b(model, torch.Generator().manual_seed(9))
    save_peft(model, tmp_path, str(backbone_folder))
    theirs = PeftModel.from_pretrained(backbone(backbone_folder), tmp_path).eval()
    assert description(tmp_path)["r"] == 16
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-4, atol=1e-5)
