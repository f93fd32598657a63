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
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from forever.config.parts import ALL_LINEAR, ModelConfig
from forever.errors import InputError
from forever.models import adapter as plain
from forever.models.location import ADAPTER, fetch_adapter

_BANKS = "forever_banks"


class LoraBank(nn.Module):
    """A frozen linear layer with low-rank adapters A [E, R, D] and B [E, O, R] in fp32.

    The first F adapters are frozen, the others are trained. The scale is alpha / rank, never
    divided by E.

    Args:
        base: the layer to adapt, linear or GPT-2's Conv1D, which is one with W transposed; it is
            frozen and keeps its dtype.
        adapters: how many are trained.
    """

    def __init__(
        self, base: nn.Module, rank: int, alpha: float, dropout: float, adapters: int = 1
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        weight = cast(Tensor, base.weight)
        width_out, width_in = weight.shape if isinstance(base, nn.Linear) else weight.T.shape
        self.scale = alpha / rank
        self.dropout = dropout
        options = {"dtype": torch.float32, "device": weight.device}
        self.A = nn.Parameter(torch.zeros(adapters, rank, width_in, **options))
        self.B = nn.Parameter(torch.zeros(adapters, width_out, rank, **options))
        # The adapters of finished tasks, [F, R, D] and [F, O, R].
        self.frozen_A, self.frozen_B = self.A.data[:0].clone(), self.B.data[:0].clone()
        # The weights of all E adapters, None is all ones; or what computes them from the input.
        self.gate: Tensor | None = None
        self.router: Callable[[LoraBank, Tensor], Tensor] | None = None
        # Where the examples' tokens stand, see `data.collation.Collated`; None if unknown.
        self.places: Tensor | None = None
        self.counts: Tensor | None = None
        # Called in training with the bank, A x [B, T, E*R] before the gate, the output [B, T, O].
        self.observe: Callable[[LoraBank, Tensor, Tensor], None] | None = None
        self.detach_frozen = False  # no gradient flows to the input through frozen adapters
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
    """The layers that `adapt` adapted with their names, in module order; none if PEFT did."""
    return iter(getattr(model, _BANKS, ()))


def adapt(model: nn.Module, part: ModelConfig, seed: int, adapters: int = 1) -> None:
    """Freeze `model` and put a `LoraBank` around every layer that `part.targets` names, in place.

    Each adapter is drawn from a stream of its own name, as in `models.adapter.attach`. That of
    `part.init` is the first frozen one; `part` is then that of `models.adapter.begun`.

    Raises:
        InputError: a target matches no layer of the model or one that is not linear, or the adapter
            of `part.init` is not a plain LoRA for them.
    """
    from transformers.pytorch_utils import Conv1D

    model.requires_grad_(False)
    whole = part.targets == (ALL_LINEAR,)
    if not whole:
        plain.check_targets(model, part.targets)
    if part.init is not None:
        plain.check_plain(part)
    if dotted := [target for target in part.targets if "." in target]:
        raise InputError(
            f"model.targets: {dotted[0]} has a dot, and this method finds layers by the last part "
            "of their names; give that, or take a method with one adapter",
            key="model.targets",
        )
    head = model.get_output_embeddings()  # type: ignore[operator]
    adapted: list[tuple[str, LoraBank]] = []
    for name, layer in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        linear = isinstance(layer, nn.Linear | Conv1D)
        if last in part.targets and not linear:
            raise InputError(
                f"model.targets: {name} is not a linear layer ({type(layer).__name__}), and this "
                "method adapts no others; leave it out, or take a method with one adapter",
                key="model.targets",
            )
        if last in part.targets or (whole and linear and layer is not head):
            bank = LoraBank(layer, part.rank, part.alpha, part.dropout, adapters)
            for adapter in range(adapters):
                bank.redraw(plain.lora_stream(seed, adapter, name), adapter)
            setattr(model.get_submodule(parent), last, bank)
            adapted.append((name, bank))
    # In a list, since a walk through all modules takes a millisecond.
    setattr(model, _BANKS, adapted)
    if part.init is not None:
        _begin_from(model, fetch_adapter(part.init) / ADAPTER[1])


def _begin_from(model: nn.Module, path: Path) -> None:
    """Let the adapter in a file of PEFT's be the first frozen one of every bank."""
    expected: dict[str, Tensor] = {}
    for name, bank in banks(model):
        expected[f"base_model.model.{name}.lora_A.weight"] = bank.A.data[0]
        expected[f"base_model.model.{name}.lora_B.weight"] = bank.B.data[0]
    tensors = plain.read_tensors(path, expected)
    for name, bank in banks(model):
        A, B = (tensors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
        bank.frozen_A, bank.frozen_B = A[None].to(bank.A), B[None].to(bank.B)


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
    by_peft = plain.attached(model)
    if by_peft is not None:
        with by_peft.disable_adapter():
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
    """Put copies of what `frozen` gave back: sums over a file's own memory round differently.

    InputError if the adapters are not of this model's shapes.
    """
    for name, bank in banks(model):
        A, B = tensors.get(f"{name}.A", bank.A[:0]), tensors.get(f"{name}.B", bank.B[:0])
        count = A.shape[:1]
        if (A.shape, B.shape) != ((*count, *bank.A.shape[1:]), (*count, *bank.B.shape[1:])):
            raise InputError(
                f"the checkpoint's frozen adapters of {name} have shapes {list(A.shape)} and "
                f"{list(B.shape)}, which are not of this model"
            )
        bank.frozen_A = A.detach().to(bank.A.device, copy=True)
        bank.frozen_B = B.detach().to(bank.B.device, copy=True)


def save_peft(model: nn.Module, folder: Path, base_name: str, adapter: int | None = None) -> None:
    """Write what was trained so that `peft.PeftModel.from_pretrained` reads it.

    It is PEFT's adapter, or one adapter of the banks, or the sum of all of them. The sum of E
    adapters of rank R is one adapter of rank E R:

        sum_e B_e A_e = [B_1 ... B_E] [A_1; ...; A_E]
    """
    if plain.attached(model) is not None:
        plain.save(model, folder, base_name)
        return
    from peft import LoraConfig

    chosen = slice(None) if adapter is None else slice(adapter, adapter + 1)
    tensors: dict[str, Tensor] = {}
    options: dict[str, Any] = {}
    for name, bank in banks(model):
        A = torch.cat([bank.frozen_A, bank.A.detach()])[chosen].flatten(0, 1)  # [E*R, D]
        B = torch.cat([bank.frozen_B, bank.B.detach()])[chosen].permute(1, 0, 2).flatten(1)
        tensors[f"base_model.model.{name}.lora_A.weight"] = A
        tensors[f"base_model.model.{name}.lora_B.weight"] = B  # [O, E*R]
        options = {"r": len(A), "lora_alpha": bank.scale * len(A), "lora_dropout": bank.dropout}
        options["fan_in_fan_out"] = not isinstance(bank.base, nn.Linear)
    targets = sorted({name.split(".")[-1] for name, _ in banks(model)})
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=targets, **options)
    plain.write(folder, tensors, config, base_name)


def save_mixture(
    model: nn.Module, folder: Path, base_name: str, tensors: Mapping[str, Tensor]
) -> None:
    """Write adapters that are weighed by the input: each in PEFT's format, in a numbered folder.

    mixture.safetensors holds what computes the weights: the model's other trained parameters, and
    `tensors`.
    """
    adapted = dict(banks(model))
    for number in range(max(len(bank.frozen_A) + len(bank.A) for bank in adapted.values())):
        save_peft(model, folder / str(number), base_name, number)
    adapters = {f"{name}.{side}" for name in adapted for side in "AB"}
    mixture = dict(tensors)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in adapters:
            mixture.setdefault(name, parameter.detach())
    mixture = {name: tensor.cpu().clone() for name, tensor in mixture.items()}
    save_file(mixture, folder / "mixture.safetensors")
