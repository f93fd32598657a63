"""The optimiser, its learning rate, and the norm of the applied update."""

import torch
from torch import Tensor

from forever.config.parts import OptimConfig
from forever.errors import InputError
from forever.models.parameters import FlatParameters


def build_optimizer(parameters: FlatParameters, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with fresh moments on the flat vector, which equals it on the separate tensors."""
    return torch.optim.AdamW(
        [parameters.flat],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=parameters.flat.is_cuda,
    )


def load_moments(optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    """Put back what an AdamW on the flat vector had; InputError if its names or shapes differ."""
    size = optimizer.param_groups[0]["params"][0].shape
    expected = {"step": torch.Size(), "exp_avg": size, "exp_avg_sq": size}
    found = {name: tensor.shape for name, tensor in moments.items()}
    if found != expected:
        raise InputError(f"the checkpoint has moments of AdamW {found}, not {expected}")
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: moments}})


def learning_rate(config: OptimConfig, step: int, planned_steps: int) -> float:
    """The rate of the task update that follows `step` earlier ones, of `planned_steps` in all.

    Warm-up rises linearly over `warmup_steps`: lr * (step + 1) / warmup_steps. Then constant, or
    linear to zero at the end of the task, after which updates have the whole rate again. Replay
    updates use the current rate and do not advance it (docs/protocol.md#optimiser).
    """
    if step >= planned_steps:
        return config.lr
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    return config.lr * (planned_steps - step) / (planned_steps - config.warmup_steps)


def clip_gradient(parameters: FlatParameters, clip: float) -> Tensor:
    """Clip the gradient, which stays where it is; returns its norm before, an fp64 scalar."""
    return torch.nn.utils.clip_grad_norm_([parameters.flat], clip).double()


def apply_update(parameters: FlatParameters, optimizer: torch.optim.Optimizer, lr: float) -> Tensor:
    """Step by the gradient; returns Delta = ||Theta_t - Theta_{t-1}||_2, an fp64 scalar."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    before = parameters.snapshot()
    optimizer.step()
    return parameters.distance(before)
