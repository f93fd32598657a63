"""Loading a causal language model: the embedded one, a hub name, a folder or a GGUF file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forever.errors import InputError, one_line
from forever.models import attention
from forever.models.identity import digests
from forever.models.loading import (
    check_causal,
    check_report,
    check_size,
    check_tokens,
    ends_of,
    explained,
    load_empty,
    read_tokenizer,
    source,
)
from forever.models.location import fetch

_LAST_LAYER = "_forever_last_layer"
_USUAL_PARTS = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}


@dataclass
class Backbone:
    """A causal language model with its tokenizer, ready to train and to decode."""

    model: Any  # a transformers PreTrainedModel; its classes are too dynamic to be typed
    tokenizer: Any  # a transformers PreTrainedTokenizerFast
    unpackable: str | None = "it was not tried"  # why examples cannot be packed for it
    digests: Mapping[str, str] = field(default_factory=dict)  # of its files, see `models.identity`

    # Answers that are decoded at once, if memory has run out: from a queue, and in a padded batch.
    queued: int | None = None
    padded: int | None = None

    @property
    def at_once(self) -> int | None:
        """The least that memory had room for; None if it has not run out."""
        return min((most for most in (self.queued, self.padded) if most), default=None)

    @property
    def device(self) -> torch.device:
        return self.model.device


def load(name: str, dtype: torch.dtype, device: torch.device) -> Backbone:
    """Load a backbone in evaluation mode, with frozen weights of type `dtype`.

    `name` is "tiny", a folder, a hub name, or a `.gguf` file, which is dequantised and has its own
    tokenizer.

    InputError if it cannot be loaded; the message says why.
    """
    # 4 s to import: not at the top.
    from transformers import AutoModelForCausalLM, GenerationConfig

    path = fetch(name)
    where, options = source(path)
    with explained("model.name", name):
        tokenizer = read_tokenizer(path)
        if path.is_dir():
            check_size("model.name", path, load_empty(name))
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where,
            dtype=dtype,
            use_safetensors=True,  # never unpickle weights
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report has them
            **options,
        )
    model, report = loaded
    check_report("model.name", path, report)
    # Of a model's own generation settings only the tokens are kept at which an answer ends: the
    # others may sample or penalise repetition.
    ends = ends_of(tokenizer, model)
    used = ends if tokenizer.pad_token_id is None else [tokenizer.pad_token_id, *ends]
    with explained("model.name", name):
        check_tokens("model.name", path, model, used)
        check_causal("model.name", path, model)
    if path.suffix == ".gguf":  # whose weights are not quantised any more, and can be saved
        model.hf_quantizer.remove_quantization_config(model)
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
    )
    model = model.to(device).requires_grad_(False).eval()
    unpackable = attention.register(model)
    find_last_layer(model)
    return Backbone(model, tokenizer, unpackable, digests(path))


def recompute_layers(model: Any) -> None:
    """Let layers compute again, when their gradient is computed, what they then do not keep.

    The last layer keeps it: what `only_at` does to that is over by then.
    """
    try:
        # As transformers called it before 5.20 or so.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    except ValueError as error:
        raise InputError(f"model.gradient_checkpointing: {one_line(error)}") from error
    layer = getattr(model, _LAST_LAYER, None)
    if layer is not None:
        layer.gradient_checkpointing = False


@contextmanager
def only_at(model: Any, places: Tensor) -> Iterator[None]:
    """Within this context the model computes logits only at n `places` among all B T.

    They have the shape [1, n, V]; what the model does to its logits (scaling, soft-capping) still
    happens. Nobody reads the last layer anywhere else, so one that `find_last_layer` has tried is
    computed there alone once its tokens have attended (on a CPU with a mask, no others attend).
    Where an adapter is trained behind the attention all tokens are computed, as in other layers.
    """
    layer = getattr(model, _LAST_LAYER, None)
    if layer is None or _trained(layer.self_attn.o_proj) or _trained(layer.mlp):
        with _called_at(model.get_output_embeddings(), places):
            yield
        return

    def forward(hidden_states: Tensor, **options: Any) -> Tensor:
        normed = layer.input_layernorm(hidden_states)
        attended, *_ = layer.self_attn(hidden_states=normed, **options)
        hidden = _at(hidden_states, places) + attended  # [1, n, D]
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    layer.forward, layer.self_attn.read_at = forward, places
    try:
        with _called_at(layer.self_attn.o_proj, places):
            yield
    finally:
        del layer.forward, layer.self_attn.read_at


@contextmanager
def _called_at(module: nn.Module, places: Tensor) -> Iterator[None]:
    """Within this context a module is given what it would be given at these places alone."""
    handle = module.register_forward_pre_hook(lambda _, inputs: (_at(inputs[0], places),))
    try:
        yield
    finally:
        handle.remove()


def _at(states: Tensor, places: Tensor) -> Tensor:
    """From [B, T, D] to [1, n, D]."""
    return states.flatten(0, 1)[places][None]


def _trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def find_last_layer(model: Any) -> None:
    """Note the last layer of a model for `only_at`, if it is of the usual kind.

    That is attention and then a network, with a norm before each, and both are added to what came
    in. Whether they are added as they are, a trial shows.
    """
    layers = getattr(model.base_model, "layers", None)
    if not layers or {name for name, _ in layers[-1].named_children()} != _USUAL_PARTS:
        return
    if hasattr(layers[-1].self_attn, "o_proj"):
        object.__setattr__(model, _LAST_LAYER, layers[-1])  # not as a module: it is one already
        if not _keeps_logits(model):
            object.__delattr__(model, _LAST_LAYER)


@torch.no_grad()
def _keeps_logits(model: Any) -> bool:
    """Whether a few logits are the same within `only_at` as without it, up to rounding."""
    ids = torch.tensor([[0, 1, 1], [1, 0, 1]], device=model.device)  # of any vocabulary
    places = torch.tensor([1, 2, 5], device=model.device)
    whole = model(input_ids=ids, use_cache=False).logits.flatten(0, 1)[places].float()
    try:
        with only_at(model, places):
            at_places = model(input_ids=ids, use_cache=False).logits[0].float()
    except (RuntimeError, TypeError, ValueError):  # it passes other things between its parts
        return False
    return bool((at_places - whole).norm() < 0.02 * whole.norm())  # bf16 has two digits
