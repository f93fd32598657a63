"""All trainable tensors as views of one flat fp32 buffer, and their gradients as views of another.

So the update norm is one pass, the all-reduce one call, a snapshot one copy, a merge one
expression, and the replay penalty one dot product. N is the number of trainable parameters.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class FlatParameters:
    """The trainable parameters Theta of a model as one vector of shape [N].

    Each parameter's data and gradient become views into `flat` and `flat.grad`. Assigning a new
    tensor to a parameter (instead of copying into it) would break the tie. A parameter under two
    names (tied weights) counts once.

    Raises:
        ValueError: a parameter is not fp32; updates of 1e-4 vanish in bf16.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        first_names: dict[nn.Parameter, str] = {}
        for name, parameter in named:
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"trainable parameter {name} is {parameter.dtype}; only fp32 can be trained"
                )
            first_names.setdefault(parameter, name)
        self.named = {name: parameter for parameter, name in first_names.items()}
        count = sum(parameter.numel() for parameter in self.named.values())
        device = next((p.device for p in self.named.values()), torch.device("cpu"))
        self.flat = nn.Parameter(torch.zeros(count, device=device))
        self.flat.grad = torch.zeros_like(self.flat)
        offset = 0
        for parameter in self.named.values():
            end = offset + parameter.numel()
            view = self.flat.data[offset:end].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.flat.grad[offset:end].view(parameter.shape)
            offset = end

    @property
    def grad(self) -> Tensor:
        """The gradient, shape [N]. Always allocated; zeroed in place."""
        assert self.flat.grad is not None
        return self.flat.grad

    def snapshot(self) -> Tensor:
        """A copy of Theta, shape [N]."""
        return self.flat.detach().clone()

    @torch.no_grad()
    def load(self, values: Tensor) -> None:
        """Set Theta to `values`, shape [N]."""
        self.flat.copy_(values)

    @contextmanager
    def at(self, values: Tensor) -> Iterator[None]:
        """Let Theta be `values`, shape [N], for a while."""
        now = self.snapshot()
        self.load(values)
        try:
            yield
        finally:
            self.load(now)

    def merge(
        self, start: Tensor, middle: Tensor, w_in: Tensor | float, w_out: Tensor | float
    ) -> None:
        """Set Theta <- start + w_in (middle - start) + w_out (Theta - middle), all [N]."""
        self.load(start + w_in * (middle - start) + w_out * (self.flat.detach() - middle))

    def distance(self, other: Tensor) -> Tensor:
        """||Theta - other||_2 as an fp64 scalar, left on the device."""
        return torch.linalg.vector_norm(self.flat.detach() - other, dtype=torch.float64)

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """`values` of shape [N] as one tensor a parameter, by name."""
        sizes = [p.numel() for p in self.named.values()]
        parts = torch.split(values, sizes) if sizes else ()
        shaped: dict[str, Tensor] = {}
        for (name, parameter), part in zip(self.named.items(), parts, strict=True):
            shaped[name] = part.view(parameter.shape)
        return shaped
