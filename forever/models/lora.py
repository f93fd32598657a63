"""LoRA (Hu et al. 2021) as a bank of E adapters for each linear layer, mixed by one gate.

    y = W x + s * sum_e g_e B_e A_e drop(x),    s = alpha / r

Every adapter method is a choice of gate g: none for one adapter, a vector [E] shared by all, [B, E]
a sample, [B, T, E] a token. Adapters of finished tasks can be frozen; they come first and see x
without dropout, which is there to regularise what is trained. B batch, T tokens, E adapters (F of
them frozen), R rank, D input width, O output width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from forever.config.parts import ModelConfig
from forever.models import adapter as plain

_KNOWN = "forever_banks"


class Router(Protocol):
    """Computes a bank's gate [B, T, E] from what comes in.

    `bank.places` says where the examples' tokens stand.
    """

    def __call__(self, bank: "LoraBank", x: Tensor) -> Tensor: ...


class LoraBank(nn.Module):
    """A frozen linear layer with low-rank adapters A [E, R, D] and B [E, O, R].

    The first of them are frozen, the others trainable.

    Args:
        base: the layer to adapt; it is frozen and keeps its dtype. Adapters are fp32.
        adapters: how many are trainable.
        rank, alpha, dropout: as in the LoRA paper; the scale is alpha / rank, never divided by E.

    Attributes:
        A, B: the trainable adapters.
        frozen_A, frozen_B: the adapters of finished tasks, [F, R, D] and [F, O, R].
        gate: the weights of all E adapters; None is all ones.
        router: computes the gate from the input instead.
        places, counts: where the examples' tokens stand, see `Collated`; None if unknown.
        observe: called in training with (bank, A x [B, T, E*R] before the gate, output [B, T, O]).
        detach_frozen: no gradient flows to the input through frozen adapters.
        enabled: whether the adapters act at all.
    """

    def __init__(
        self, base: nn.Linear, rank: int, alpha: float, dropout: float, adapters: int = 1
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.dropout = dropout
        options = {"dtype": torch.float32, "device": base.weight.device}
        self.A = nn.Parameter(torch.zeros(adapters, rank, base.in_features, **options))
        self.B = nn.Parameter(torch.zeros(adapters, base.out_features, rank, **options))
        self.frozen_A, self.frozen_B = self.A.data[:0].clone(), self.B.data[:0].clone()
        self.gate: Tensor | None = None
        self.router: Router | None = None
        self.places: Tensor | None = None
        self.counts: Tensor | None = None
        self.observe: Callable[[LoraBank, Tensor, Tensor], None] | None = None
        self.detach_frozen = False
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.enabled:
            return self.base(x)
        base = self.base(x)  # before the adapters, as PEFT does: then gradients add up in its order
        x_ = x.to(self.A.dtype)
        dropped = F.dropout(x_, self.dropout, self.training)
        A_x = F.linear(dropped, self.A.flatten(0, 1))  # [B, T, E*R]
        B = self.B
        if len(self.frozen_A):
            old = x_.detach() if self.detach_frozen else x_
            A_x = torch.cat([F.linear(old, self.frozen_A.flatten(0, 1)), A_x], dim=-1)
            B = torch.cat([self.frozen_B, B])
        gate = self.gate if self.router is None else self.router(self, x_)
        h = A_x
        if gate is not None:
            if gate.dim() == 2:
                gate = gate[:, None, :]  # an example's gate holds for its tokens
            h = (h.unflatten(-1, (len(B), -1)) * gate[..., None]).flatten(-2)
        y = F.linear(h, B.permute(1, 0, 2).flatten(1))  # [B, T, O]
        out = base + (self.scale * y).to(base.dtype)
        if self.observe is not None and self.training:
            self.observe(self, A_x, out)
        return out

    @torch.no_grad()
    def redraw(self, stream: torch.Generator, adapter: int = 0) -> None:
        """Start a trainable adapter anew, as PEFT does: A is drawn, B is zero."""
        plain.draw(self.A[adapter], stream)
        self.B[adapter].zero_()


def banks(model: nn.Module) -> Iterator[tuple[str, LoraBank]]:
    """The adapted layers of a model with their names, in module order; none if PEFT adapted it."""
    if plain.attached(model) is not None:
        return iter(())
    # By `adapt`: a walk through all modules takes a millisecond.
    adapted = getattr(model, _KNOWN, None)
    if adapted is not None:
        return iter(adapted)
    modules = model.named_modules()
    return ((name, module) for name, module in modules if isinstance(module, LoraBank))


def adapt(model: nn.Module, part: ModelConfig, seed: int, adapters: int = 1) -> None:
    """Freeze `model` and put a `LoraBank` around every layer that `part.targets` names, in place.

    Each adapter is drawn from a stream of its own name, as in `models.adapter.attach`.

    Raises:
        InputError: if a target matches no linear layer of the model.
    """
    model.requires_grad_(False)
    plain.check_targets(model, part.targets)
    for name, layer in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if last not in part.targets or not isinstance(layer, nn.Linear):
            continue
        bank = LoraBank(layer, part.rank, part.alpha, part.dropout, adapters)
        for adapter in range(adapters):
            bank.redraw(plain.lora_stream(seed, adapter, name), adapter)
        setattr(model.get_submodule(parent), last, bank)
    setattr(model, _KNOWN, None)  # of an adaptation before this one
    setattr(model, _KNOWN, list(banks(model)))


@contextmanager
def mixed(
    model: nn.Module,
    gate: Tensor | None,
    places: Tensor | None = None,
    counts: Tensor | None = None,
) -> Iterator[None]:
    """Within this context banks mix their adapters by `gate` and know where the tokens stand."""
    adapted = [bank for _, bank in banks(model)]
    for bank in adapted:
        bank.gate, bank.places, bank.counts = gate, places, counts
    try:
        yield
    finally:
        for bank in adapted:
            bank.gate = bank.places = bank.counts = None


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """Within this context the model is the one that was adapted, by banks or by PEFT."""
    if (adapted := plain.attached(model)) is not None:
        with adapted.disable_adapter():
            yield
        return
    for _, bank in banks(model):
        bank.enabled = False
    try:
        yield
    finally:
        for _, bank in banks(model):
            bank.enabled = True


@torch.no_grad()
def freeze(model: nn.Module, seed: int) -> None:
    """Freeze every bank's one trainable adapter behind the frozen ones, and start it anew."""
    for name, bank in banks(model):
        bank.frozen_A = torch.cat([bank.frozen_A, bank.A.data])
        bank.frozen_B = torch.cat([bank.frozen_B, bank.B.data])
        bank.redraw(plain.lora_stream(seed, len(bank.frozen_A), name))


def frozen(model: nn.Module) -> dict[str, Tensor]:
    """The frozen adapters by name; empty if there are none."""
    tensors: dict[str, Tensor] = {}
    for name, bank in banks(model):
        if len(bank.frozen_A):
            tensors |= {f"{name}.A": bank.frozen_A, f"{name}.B": bank.frozen_B}
    return tensors


def load_frozen(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put copies of what `frozen` gave back.

    They are copies because sums over a file's own memory, aligned otherwise, round differently.
    """
    for name, bank in banks(model):
        bank.frozen_A = tensors.get(f"{name}.A", bank.frozen_A[:0]).to(bank.A.device, copy=True)
        bank.frozen_B = tensors.get(f"{name}.B", bank.frozen_B[:0]).to(bank.B.device, copy=True)


def save_peft(model: nn.Module, folder: Path, base_name: str, adapter: int | None = None) -> None:
    """Write what was trained, in PEFT's format, readable by `peft.PeftModel.from_pretrained`.

    It is the adapter, or the sum of all adapters of the banks, or one of them.

    The sum of E adapters of rank R is one adapter of rank E R:

        sum_e B_e A_e = [B_1 ... B_E] [A_1; ...; A_E]
    """
    if plain.attached(model) is not None:
        plain.save(model, folder, base_name)
        return
    from peft import LoraConfig

    tensors: dict[str, Tensor] = {}
    targets: set[str] = set()
    rank, alpha, dropout = 0, 0.0, 0.0
    for name, bank in banks(model):
        A = torch.cat([bank.frozen_A, bank.A.detach()])
        B = torch.cat([bank.frozen_B, bank.B.detach()])
        chosen = slice(None) if adapter is None else slice(adapter, adapter + 1)
        A, B = A[chosen].flatten(0, 1), B[chosen].permute(1, 0, 2).flatten(1)  # [E*R, D], [O, E*R]
        tensors[f"base_model.model.{name}.lora_A.weight"] = A
        tensors[f"base_model.model.{name}.lora_B.weight"] = B
        targets.add(name.split(".")[-1])
        rank, alpha, dropout = len(A), bank.scale * len(A), bank.dropout
    options: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout}
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=sorted(targets), **options)
    plain.write(folder, tensors, config, base_name)


def save_mixture(
    model: nn.Module, folder: Path, base_name: str, tensors: Mapping[str, Tensor]
) -> None:
    """Write adapters that are weighed by the input.

    Each is in PEFT's format in a folder of its number. Whatever computes the weights (the model's
    other trained parameters, and `tensors`) is in mixture.safetensors.
    """
    adapted = dict(banks(model))
    sizes = {len(bank.frozen_A) + len(bank.A) for bank in adapted.values()}
    for number in range(max(sizes)):
        save_peft(model, folder / str(number), base_name, number)
    adapters = {f"{name}.{side}" for name in adapted for side in "AB"}
    mixture = dict(tensors)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in adapters:
            mixture.setdefault(name, parameter.detach())
    mixture = {name: tensor.cpu().clone() for name, tensor in mixture.items()}
    save_file(mixture, folder / "mixture.safetensors")
