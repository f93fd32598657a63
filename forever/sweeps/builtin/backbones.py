"""Four methods on four backbones, SuperNI; at a smaller scale on the base's own backbone."""

from typing import Any

from forever.config.run import RunConfig
from forever.sweeps.named_runs import method_settings, orders, scale_of
from forever.sweeps.sweep import Sweep

MODELS = (
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-4B",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-2-13b-hf",
)
METHODS = ("mix_replay", "aimmerging", "vbm", "forever")


def backbones(base: RunConfig, seeds: tuple[int, ...] = (0, 1, 2)) -> Sweep:
    """Every method on every backbone."""
    places = orders(base, "superni")
    return Sweep(
        "backbones",
        base,
        variants(base),
        seeds,
        places,
        reference(base),
        references=references(base),
    )


def variants(base: RunConfig) -> dict[str, dict[str, Any]]:
    """By the names of method and backbone."""
    return {
        f"{method}, {_short(model)}": {**method_settings(base, method), "model.name": model}
        for model in _models(base)
        for method in METHODS
    }


def reference(base: RunConfig) -> str:
    """FOREVER on the first backbone."""
    return f"forever, {_short(_models(base)[0])}"


def references(base: RunConfig) -> dict[str, str]:
    """FOREVER on the same backbone: what another backbone gains or loses is not the method's."""
    return {
        f"{method}, {_short(model)}": f"forever, {_short(model)}"
        for model in _models(base)
        for method in METHODS
    }


def _models(base: RunConfig) -> tuple[str, ...]:
    return MODELS if scale_of(base) == "paper" and base.model.name in MODELS else (base.model.name,)


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1]
