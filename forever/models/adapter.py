"""The one trained adapter of most methods, of any kind that PEFT knows: LoRA, DoRA, IA3, VeRA, OSF.

PEFT puts it into the layers of the backbone, in place, so the rest of the program sees nothing but
trainable tensors. Methods that freeze, stack or mix adapters have banks (forever/models/lora.py).
"""

import copy
import dataclasses
import math
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from forever.config.parts import ALL_LINEAR, ModelConfig
from forever.config.run import RunConfig
from forever.errors import InputError, one_line, shown, unknown
from forever.files import read_json
from forever.models.location import ADAPTER, fetch_adapter, looks_like_path, read_object
from forever.seeding import derive

_HANDLE = "_forever_adapter"
_NAME = "default"  # PEFT's name for an adapter that nobody named
# Fields that say where a model comes from, or what it is for, and not what is trained.
_NO_CHOICE = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version"}
_NO_CHOICE |= {"revision", "runtime_config", "task_type"}
_NO_CHOICE |= {"megatron_config", "megatron_core"}  # which names a module that PEFT would import
# These want a training loop of their own, inputs of their own, or another class of model.
_REFUSED = {"ADALORA", "ADAPTION_PROMPT", "POLY", "SHADOW", "TRAINABLE_TOKENS", "XLORA"}
# PEFT's names for what `model` has of an adapter.
_SHORT = {
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "targets": "target_modules",
}
# The other starts change the frozen weights, or want to see data: the saved adapter alone would
# not be the trained model.
_STARTS = (True, False, "gaussian", "orthogonal")


def describe(part: ModelConfig) -> Any:
    """Return PEFT's configuration of the adapter that a run trains.

    What `model.adapter` leaves open follows the short names: the rank, alpha and dropout of LoRA,
    and the target modules of any kind.

    Raises:
        InputError: PEFT has no such kind of adapter or no such field, refuses a value, or the kind
            cannot be trained here.
    """
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    given = dict(part.adapter)
    kind = str(given.pop("peft_type", "LORA")).upper()
    kinds = {str(name.value): config for name, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    if kind not in kinds:
        raise unknown("model.adapter.peft_type", kind, kinds.keys() - _REFUSED)
    if kind in _REFUSED or issubclass(kinds[kind], PromptLearningConfig):
        raise InputError(
            f"model.adapter.peft_type={shown(kind)} cannot be trained here: it needs inputs or a "
            "training loop of its own; take one that adds weights to layers, such as LORA or IA3"
        )
    fields = {field.name for field in dataclasses.fields(kinds[kind])} - _NO_CHOICE
    _check_values(kinds[kind], given, fields)
    settings: dict[str, Any] = {}
    if "target_modules" in fields:
        whole = part.targets == (ALL_LINEAR,)
        settings["target_modules"] = ALL_LINEAR if whole else list(part.targets)
    if kind == "LORA":
        settings |= {"r": part.rank, "lora_alpha": part.alpha, "lora_dropout": part.dropout}
    try:
        return kinds[kind](task_type="CAUSAL_LM", **{**settings, **given})
    except Exception as error:
        raise InputError(f"model.adapter: PEFT refuses it: {one_line(error)}") from error


def _check_values(kind: type, given: Mapping[str, Any], fields: set[str]) -> None:
    types = typing.get_type_hints(kind) | {"lora_alpha": float}  # PEFT says int, and divides
    options = ConfigDict(arbitrary_types_allowed=True)
    for name, value in given.items():
        if name not in fields:
            raise unknown("field of model.adapter", name, fields)
        try:
            TypeAdapter(types[name], config=options).validate_python(value)
        except ValidationError as error:
            rule = error.errors()[0]["msg"]
            raise InputError(
                f"model.adapter.{name}={shown(value)}: {rule[0].lower()}{rule[1:]}"
            ) from None
        except PydanticUserError:
            continue  # a class of PEFT's own; PEFT itself has to judge the value
    start = given.get("init_lora_weights", True)
    if start not in _STARTS:
        raise InputError(
            f"model.adapter.init_lora_weights={shown(start)} would change the frozen weights; "
            "valid: true, false, gaussian, orthogonal"
        )


def begun(config: RunConfig) -> RunConfig:
    """Return a run with its adapter described as the one of `model.init` is, if it has one.

    Raises:
        InputError: that cannot be trained here, is of another model, or is not what the run says.
    """
    part = config.model
    if part.init is None:
        return config
    folder = fetch_adapter(part.init)
    settings = read_object("model.init", folder / ADAPTER[0])
    fields = _fields(settings)
    _check_base(folder, str(settings.get("base_model_name_or_path") or ""), part.name)

    # Where the run says something of the adapter it must be so, but for dropout, which acts on
    # updates alone.
    is_lora = str(fields.get("peft_type", "LORA")).upper() == "LORA"
    wanted = dict(part.adapter)
    for name, field in _SHORT.items():
        if name in part.model_fields_set and (is_lora or name == "targets"):
            wanted.setdefault(field, getattr(part, name))
    if "lora_dropout" in wanted:
        fields["lora_dropout"] = wanted["lora_dropout"]
    for field, value in wanted.items():
        has: Any = fields.get(field)
        wants: Any = ALL_LINEAR if value == (ALL_LINEAR,) else value
        if isinstance(has, list) and isinstance(wants, list | tuple):
            has, wants = sorted(has), sorted(wants)
        if has != wants:
            raise InputError(
                f"model.init: {folder} has {field}={shown(has)}, and the run wants {shown(wants)}; "
                "leave that out to take what the adapter has",
                key="model.init",
            )

    part = part.model_copy(update={"adapter": fields})
    try:
        made = describe(part)
    except InputError as error:
        raise InputError(f"model.init: {folder}: {error}", key="model.init") from error
    if is_lora:
        values = {name: getattr(made, field) for name, field in _SHORT.items()}
        targets = values["targets"] or ()
        values["targets"] = (targets,) if isinstance(targets, str) else tuple(sorted(targets))
        part = part.model_copy(update=values)
    return config.model_copy(update={"model": part})


def _check_base(folder: Path, base: str, name: str) -> None:
    """Refuse an adapter that was trained on another model of a hub, `base`, than `name`."""
    theirs, ours = (other.lower().split("/") for other in (base, name))
    of_hubs = len(theirs) == len(ours) == 2 and not any(map(looks_like_path, (base, name)))
    if of_hubs and theirs[1] != ours[1]:
        raise InputError(
            f"model.init: {folder} is an adapter of {shown(base)}, and model.name is "
            f"{shown(name)}; give model.name={base} or, if their weights are the same, write "
            f"{name} into {ADAPTER[0]}",
            key="model.init",
        )


def check_plain(part: ModelConfig) -> None:
    """Refuse an adapter of `model.init` that is more than LoRA's two matrices in whole layers.

    `part` is that of `begun`.
    """
    from peft import LoraConfig

    made = describe(part)
    plain = LoraConfig(r=part.rank, lora_alpha=part.alpha, lora_dropout=part.dropout)  # type: ignore[arg-type]
    may_differ = _NO_CHOICE | {"target_modules", "init_lora_weights"}
    for field in dataclasses.fields(plain):
        has = getattr(made, field.name, None)
        if field.name not in may_differ and has != getattr(plain, field.name):
            raise InputError(
                f"model.init: {part.init} has {field.name}={shown(has)}, and a bank of adapters "
                "holds plain LoRA alone; take a method with one adapter",
                key="model.init",
            )


def attach(model: nn.Module, part: ModelConfig, seed: int) -> None:
    """Freeze `model` and put the adapter that `part` describes into its layers, in place.

    LoRA's A is drawn from a stream of the layer's own name, so the order of the layers does not
    matter. What other kinds draw comes from one stream of the run's seed.

    Raises:
        InputError: a target matches no layer, or PEFT cannot put this adapter into this model.
    """
    from peft import get_peft_model

    config = describe(part)
    check_targets(model, getattr(config, "target_modules", None))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(derive(seed, "adapter"))
        # PEFT reads a property of the model that transformers has renamed.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "fan_in_fan_out", UserWarning)  # which it sets itself
        # A run merges nothing, and the export unties first.
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        try:
            handle = get_peft_model(model, config)
        except Exception as error:
            raise InputError(f"model.adapter: PEFT refuses it: {one_line(error)}") from error
    # Not as a module: it would be one of its own parts.
    object.__setattr__(model, _HANDLE, handle)
    if getattr(config, "init_lora_weights", None) is True:
        for name, module in model.named_modules():
            sides = getattr(module, "lora_A", None)
            # That of an embedding is empty: PEFT has drawn what it has instead.
            side = sides[_NAME] if isinstance(sides, nn.ModuleDict) and len(sides) else None
            if isinstance(side, nn.Linear):
                draw(side.weight, lora_stream(seed, 0, name))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise InputError(
                f"model.adapter trains {name} itself, which is {parameter.dtype}, and only fp32 "
                "can be trained; set model.dtype=float32"
            )
    if part.init is not None:
        _load(model, fetch_adapter(part.init))


@torch.no_grad()
def draw(A: Tensor, stream: torch.Generator) -> None:
    """Start LoRA's A [R, D] anew, as PEFT does: kaiming-uniform, U(-1/sqrt(D), 1/sqrt(D))."""
    bound = 1 / math.sqrt(A.shape[-1])
    A.copy_(torch.empty(A.shape).uniform_(-bound, bound, generator=stream))


def lora_stream(seed: int, adapter: int, layer: str) -> torch.Generator:
    """The random numbers from which LoRA adapter number `adapter` of a layer starts."""
    return torch.Generator().manual_seed(derive(seed, "lora", adapter, layer))


def check_targets(model: nn.Module, targets: Any) -> None:
    """Raise InputError if one of a list of targets matches no layer: PEFT would pass over it."""
    if isinstance(targets, str) or targets is None:  # a pattern is left to PEFT
        return
    layers = dict(model.named_modules())
    for target in sorted(targets):
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
            valid = sorted({name.split(".")[-1] for name in linear})
            raise InputError(
                f"model.targets: no linear layer is called {shown(target)}; this model has "
                f"{', '.join(valid)}"
            )


def attached(model: nn.Module) -> Any:
    """PEFT's own view of a model with an adapter of `attach`; None if it has none."""
    return getattr(model, _HANDLE, None)


def save(model: nn.Module, folder: Path, base_name: str) -> None:
    """Write the adapter of `attach` so that `peft.PeftModel.from_pretrained` reads it."""
    from peft import get_peft_model_state_dict

    handle = attached(model)
    tensors = get_peft_model_state_dict(handle, save_embedding_layers=False)
    write(folder, tensors, handle.peft_config[_NAME], base_name)


def restore(model: nn.Module, folder: Path) -> None:
    """Give `model` the adapter that a run wrote into `folder`.

    Raises:
        InputError: a run cannot train such an adapter, or its tensors are not of this model.
    """
    attach(model, ModelConfig(adapter=_fields(read_json(folder / ADAPTER[0]))), seed=0)
    _load(model, folder)


def _fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what adapter_config.json says of an adapter's shape; None leaves that to PEFT."""
    return {k: value for k, value in settings.items() if k not in _NO_CHOICE and value is not None}


def _load(model: nn.Module, folder: Path) -> None:
    """Put the tensors of a saved adapter into the one that `attach` made."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    handle, path = attached(model), folder / ADAPTER[1]
    expected = get_peft_model_state_dict(handle, save_embedding_layers=False)
    whole = get_peft_model_state_dict(handle, save_embedding_layers=True)
    base = {name: whole[name] for name in whole.keys() - expected.keys()}
    set_peft_model_state_dict(handle, read_tensors(path, expected, base))


def read_tensors(
    path: Path, expected: Mapping[str, Tensor], base: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return an adapter's tensors; InputError if not of the names and shapes expected.

    Args:
        base: weights of the model that the file may have, too, if they are the same: PEFT saves
            the embedding beside an adapter of it.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        rule = "is not a safetensors file"
        remedy = "download it again (git lfs pull)"
        raise InputError(f"{path} {rule} ({one_line(error)}); {remedy}", path=path) from None
    for name, tensor in (base or {}).items():
        if name in tensors and not torch.equal(tensors.pop(name), tensor.cpu()):
            raise InputError(
                f"{path} has other weights of {shown(name)} than the model; an embedding that was "
                "trained whole is not an adapter: give the model that has it",
                path=path,
            )
    for name in sorted(tensors.keys() | expected.keys()):
        has, needs = (
            list(some[name].shape) if name in some else "nothing" for some in (tensors, expected)
        )
        if has != needs:
            raise InputError(
                f"{path} is not an adapter of this model: of {shown(name)} it has {has}, and the "
                f"model needs {needs}; give the model that it was trained on",
                path=path,
            )
    return tensors


def write(folder: Path, tensors: Mapping[str, Tensor], config: Any, base_name: str) -> None:
    """Write tensors under PEFT's names, and PEFT's configuration of them."""
    folder.mkdir(parents=True, exist_ok=True)
    # Many are views of one vector; a file wants each on its own.
    apart = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    save_file(apart, folder / "adapter_model.safetensors")
    config = copy.copy(config)
    config.inference_mode, config.base_model_name_or_path = True, base_name
    if isinstance(getattr(config, "target_modules", None), set):
        config.target_modules = sorted(config.target_modules)  # the order of a set is luck
    config.save_pretrained(str(folder))
