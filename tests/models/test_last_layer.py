"""The last layer is computed where its output is read, and nothing else changes by that."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from forever.config.parts import ModelConfig
from forever.data import collation
from forever.data.collation import Collated, pack, pad
from forever.data.encoding import Encoded
from forever.models import adapter, attention
from forever.models.backbone import find_last_layer, only_at

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.5,
}
LLAMA, QWEN3 = LlamaConfig(**SIZES), Qwen3Config(**SIZES)
# The first two have one prompt, so what comes after its last token is read twice.
EXAMPLES = [
    Encoded((1, 2, 3, 4), (5, 9), False),
    Encoded((1, 2, 3, 4), (6, 9), False),
    Encoded((1, 2, 7), (8, 3, 9), False),
]
LAYOUTS: dict[str, Callable[[], Collated]] = {
    "packed": lambda: pack(EXAMPLES, [0, 0, 0], CPU),
    "padded": lambda: pad(EXAMPLES, 0, CPU),
}


def model_of(config: PreTrainedConfig, *targets: str, dropout: float = 0.0) -> Any:
    """A model with drawn weights, and perhaps with an adapter that has learned something."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).requires_grad_(False)
    attention.register(model)
    find_last_layer(model)
    if targets:
        adapter.attach(model, ModelConfig(rank=2, targets=targets, dropout=dropout), seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.5)
    return model.train()


def logits_and_gradient(model: Any, batch: Collated) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)  # of dropout
    with only_at(model, batch.predicts):
        logits = model(**batch.inputs, use_cache=False).logits[0]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(F.cross_entropy(logits, batch.targets), trained)
    return logits.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def rows_of(module: torch.nn.Module, model: Any, batch: Collated) -> int:
    """How many tokens a module sees."""
    seen: list[int] = []
    handle = module.register_forward_hook(
        lambda _, inputs, output: seen.append(output.shape[:-1].numel())
    )
    with only_at(model, batch.predicts), torch.no_grad():
        model(**batch.inputs, use_cache=False)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("few_tokens", [256, 0], ids=["mask", "rows"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_logits_gradients_and_dropout_are_those_of_a_whole_layer(
    config: PreTrainedConfig, layout: str, few_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collation, "_FEW_TOKENS", few_tokens)
    model = model_of(config, "q_proj", "v_proj", dropout=0.3)
    batch = LAYOUTS[layout]()
    logits, gradient = logits_and_gradient(model, batch)
    assert rows_of(model.model.layers[1].mlp, model, batch) == len(batch.predicts) == 7
    object.__delattr__(model, "_forever_last_layer")
    whole, whole_gradient = logits_and_gradient(model, batch)
    assert rows_of(model.model.layers[1].mlp, model, batch) == batch.owners.numel()
    assert (logits - whole).norm() < 1e-5 * whole.norm()
    assert (gradient - whole_gradient).norm() < 1e-5 * whole_gradient.norm()


@pytest.mark.parametrize("target", ["o_proj", "down_proj"])
def test_an_adapter_behind_the_last_attention_sees_all_tokens(target: str) -> None:
    model, batch = model_of(QWEN3, "q_proj", target), LAYOUTS["packed"]()
    (adapted,) = (
        module for name, module in model.model.layers[1].named_modules() if name.endswith(target)
    )
    assert rows_of(adapted, model, batch) == batch.owners.numel()


def test_what_is_put_in_place_is_taken_away() -> None:
    model, batch = model_of(QWEN3), LAYOUTS["packed"]()
    before = model(**batch.inputs, use_cache=False).logits
    with pytest.raises(ZeroDivisionError), only_at(model, batch.predicts):
        raise ZeroDivisionError
    assert torch.equal(model(**batch.inputs, use_cache=False).logits, before)


@pytest.mark.parametrize(
    "config",
    # Granite scales what its layers add; Gemma has four norms in a layer.
    [GraniteConfig(**SIZES, residual_multiplier=0.2), Gemma2Config(**SIZES)],
    ids=["granite", "gemma2"],
)
def test_a_layer_of_another_kind_is_left_whole(config: PreTrainedConfig) -> None:
    model, batch = model_of(config).eval(), LAYOUTS["padded"]()
    whole = model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.predicts]
    with only_at(model, batch.predicts):
        logits = model(**batch.inputs, use_cache=False).logits[0]
    assert rows_of(model.model.layers[1].mlp, model, batch) == batch.owners.numel()
    torch.testing.assert_close(logits, whole)
