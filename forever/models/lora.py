"""LoRA (Hu et al. 2021) as a bank of E adapters a linear layer, mixed by one gate.

    y = W x + s * sum_e g_e B_e A_e drop(x),    s = alpha / r

Every adapter method is a choice of gate g: none for one adapter, a vector [E] shared by all, [B, E] a sample,
[B, T, E] a token. B batch, T tokens, E adapters, R rank, D input width, O output width.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from forever.errors import InputError
from forever.seeding import derive


class LoraBank(nn.Module):
    """A frozen linear layer with E trainable low-rank adapters A [E, R, D], B [E, O, R].

    Args:
        base: the layer to adapt; it is frozen and keeps its dtype. Adapters are fp32.
        adapters: E.
        rank, alpha, dropout: as in the LoRA paper; the scale is alpha / rank, never divided by E.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float, adapters: int = 1) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.dropout = dropout
        options = {"dtype": torch.float32, "device": base.weight.device}
        self.A = nn.Parameter(torch.zeros(adapters, rank, base.in_features, **options))
        self.B = nn.Parameter(torch.zeros(adapters, base.out_features, rank, **options))
        self.gate: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        adapters, rank, _ = self.A.shape
        h = F.dropout(x.to(self.A.dtype), self.dropout, self.training)
        h = F.linear(h, self.A.flatten(0, 1))  # [B, T, E*R]
        if self.gate is not None:
            gate = self.gate if self.gate.dim() != 2 else self.gate[:, None, :]  # a sample's gate holds for its tokens
            h = (h.unflatten(-1, (adapters, rank)) * gate[..., None]).flatten(-2)
        y = F.linear(h, self.B.permute(1, 0, 2).flatten(1))  # [B, T, O]
        base = self.base(x)
        return base + (self.scale * y).to(base.dtype)


def banks(model: nn.Module) -> Iterator[tuple[str, LoraBank]]:
    """The adapted layers of a model with their names, in module order."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraBank))


def adapt(
    model: nn.Module, targets: tuple[str, ...], rank: int, alpha: float, dropout: float, seed: int, adapters: int = 1
) -> None:
    """Freeze `model` and put a `LoraBank` around every linear layer whose last name is in `targets`, in place.

    Initialisation as in PEFT: A ~ U(-1/sqrt(D), 1/sqrt(D)) (kaiming-uniform with a = sqrt 5), B = 0, each A from a
    stream of its own name, so it depends neither on the order of the layers nor on the machine.

    Raises:
        InputError: if a target matches no linear layer of the model.
    """
    model.requires_grad_(False)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]  # before any is wrapped
    for target in dict.fromkeys(targets):
        found = [name for name in linear if name.split(".")[-1] == target]
        if not found:
            known = ", ".join(sorted({name.split(".")[-1] for name in linear}))
            raise InputError(f"model.targets: no linear layer is called {target!r}; this model has {known}")
        for name in found:
            parent = model.get_submodule(name.rpartition(".")[0])
            base = getattr(parent, target)
            bank = LoraBank(base, rank, alpha, dropout, adapters)
            bound = 1 / math.sqrt(base.in_features)
            for adapter in range(adapters):
                stream = torch.Generator().manual_seed(derive(seed, "lora", adapter, name))
                bank.A.data[adapter].copy_(torch.empty(bank.A.shape[1:]).uniform_(-bound, bound, generator=stream))
            setattr(parent, target, bank)


def set_gate(model: nn.Module, gate: Tensor | None) -> None:
    """Mix the adapters of every bank by `gate` ([E], [B, E] or [B, T, E]); None is all of them with weight one."""
    for _, bank in banks(model):
        bank.gate = gate


def save_peft(model: nn.Module, folder: Path, base_name: str, adapter: int = 0) -> None:
    """Write one adapter of the bank in PEFT's file format, readable by `peft.PeftModel.from_pretrained`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    targets: set[str] = set()
    rank, alpha, dropout = 0, 0.0, 0.0
    for name, bank in banks(model):
        tensors[f"base_model.model.{name}.lora_A.weight"] = bank.A.detach()[adapter].cpu().clone()
        tensors[f"base_model.model.{name}.lora_B.weight"] = bank.B.detach()[adapter].cpu().clone()
        targets.add(name.split(".")[-1])
        rank, alpha, dropout = bank.A.shape[1], bank.scale * bank.A.shape[1], bank.dropout
    save_file(tensors, folder / "adapter_model.safetensors")
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(targets),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def load_peft(model: nn.Module, folder: Path, adapter: int = 0) -> None:
    """Read an adapter that PEFT or `save_peft` wrote into one adapter of an already adapted model.

    Raises:
        InputError: if the file does not hold exactly the tensors that the model's banks need.
    """
    tensors = load_file(folder / "adapter_model.safetensors")
    needed = {f"base_model.model.{n}.lora_{side}.weight" for n, _ in banks(model) for side in "AB"}
    if needed != tensors.keys():
        odd = sorted(needed ^ tensors.keys())
        raise InputError(f"adapter {folder} does not fit this model: {len(odd)} tensors differ, the first is {odd[0]}")
    with torch.no_grad():
        for name, bank in banks(model):
            bank.A[adapter].copy_(tensors[f"base_model.model.{name}.lora_A.weight"])
            bank.B[adapter].copy_(tensors[f"base_model.model.{name}.lora_B.weight"])
