"""Adapters that PEFT makes: any kind of them is trained, resumed, shared by ranks and saved."""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import KILLED_CLOSES_NO_FILES, execute, lines, outcome
from peft import PeftModel
from safetensors.torch import load_file, save_file

from forever.config.parts import ModelConfig
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement, prepare, run_local
from forever.methods.registry import build_method
from forever.models import lora
from forever.models.adapter import attach, attached, describe, restore, save
from forever.models.backbone import load
from forever.training import loop
from forever.training.build import build_learner
from forever.world import World

pytestmark = [
    *KILLED_CLOSES_NO_FILES,
    # PEFT 0.21 reads a property that transformers 5.23 renamed; `from_pretrained` says so.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

IA3 = {
    "peft_type": "IA3",
    "target_modules": ["k_proj", "v_proj", "down_proj"],
    "feedforward_modules": ["down_proj"],
}
# How FOREVER's adapter is changed.
ADAPTERS: dict[str, dict[str, Any]] = {
    "DoRA": {"use_dora": True},
    "rsLoRA": {"use_rslora": True},
    "IA3": IA3,
    "VeRA": {"peft_type": "VERA", "r": 8, "projection_prng_key": 3},
    "OSF": {"peft_type": "OSF", "effective_rank": 8},
    "LoRA and a whole layer": {"modules_to_save": ["model.layers.1.mlp.up_proj"], "r": 2},
}
KILL_AT = 9
CPU = torch.device("cpu")
IDS = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(0))


class Killed(BaseException):
    """Ends a run in the middle."""


def configured(config: RunConfig, name: str, dropout: float = 0.1) -> RunConfig:
    """FOREVER with this adapter, strong enough that every part of it does something."""
    changes: dict[str, Any] = {"method.regularizer": "intensity_importance", "method.beta": 0.05}
    changes |= {"model.adapter": ADAPTERS[name], "model.dropout": dropout}
    return config.override(changes)


def killed(config: RunConfig, path: Path, world: World) -> None:
    """A run that dies after KILL_AT actions, with a checkpoint after each."""
    perform, actions = loop.perform, iter(range(KILL_AT))

    def die(*arguments: Any) -> Any:
        if next(actions, None) is None:
            raise Killed
        return perform(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "perform", die)
        with pytest.raises(Killed):
            run_local(config, path, placement=Placement("cpu", checkpoint_s=0.0), world=world)
    gc.collect()


Finished = tuple[RunConfig, Path]


@pytest.fixture(scope="module", params=ADAPTERS)
def finished(
    request: pytest.FixtureRequest,
    small_config: RunConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> Finished:
    """A whole run with each adapter."""
    config, path = configured(small_config, request.param), tmp_path_factory.mktemp("run")
    execute(config, path)
    return config, path


def test_resumes_after_a_kill_bit_for_bit(finished: Finished, tmp_path: Path) -> None:
    config, path = finished
    torch.manual_seed(5)  # whatever was drawn before
    killed(config, tmp_path, World())
    run_local(config, tmp_path, resume=True, placement=Placement("cpu"))
    assert outcome(path).differences(outcome(tmp_path)) == []
    steps = lines(tmp_path / "steps.jsonl")
    assert {step["kind"] for step in steps} == {"task", "replay", "consolidation"}
    assert all(step["update_norm"] > 0 for step in steps)


def test_peft_reads_what_was_saved(finished: Finished) -> None:
    """The weights at the end of the run, from its last checkpoint, and PEFT's file of them."""
    config, path = finished
    learner = build_learner(config, build_method(config.method), World())
    model, plain = learner.backbone.model, backbone(config.model.name)
    fresh = logits(model)
    last = sorted((path / "checkpoints").iterdir())[-1]
    learner.parameters.load(load_file(last / "tensors.safetensors")["theta"])
    expected = logits(model)
    assert (expected - fresh).abs().max() > 1e-3
    with lora.disabled(model):
        torch.testing.assert_close(logits(model), logits(plain), rtol=1e-5, atol=1e-5)
    theirs = PeftModel.from_pretrained(plain, path / "adapter").eval()
    torch.testing.assert_close(logits(theirs), expected, rtol=1e-5, atol=1e-6)
    description = json.loads((path / "adapter" / "adapter_config.json").read_text("utf-8"))
    assert description["base_model_name_or_path"] == config.model.name
    assert description["inference_mode"]


# ---- what is made


def backbone(folder: str) -> Any:
    return load(folder, torch.float32, CPU).model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def trained(model: Any) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def test_plain_lora_starts_where_a_bank_starts(small_config: RunConfig) -> None:
    """The same numbers, in the same order, of the same shapes but for the bank's number of one."""
    part = small_config.model
    theirs, ours = backbone(part.name), backbone(part.name)
    state = torch.get_rng_state()
    attach(theirs, part, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    lora.adapt(ours, part, seed=3)
    pairs = list(zip(trained(theirs), trained(ours), strict=True))
    assert all(torch.equal(a[None], b) for a, b in pairs)
    for their_b, our_b in pairs[1::2]:
        their_b.data.fill_(0.1)
        our_b.data.fill_(0.1)
    assert torch.equal(logits(theirs), logits(ours))
    assert list(lora.banks(theirs)) == []


def test_short_names_are_fields_of_lora(small_config: RunConfig) -> None:
    changes: dict[str, Any] = {"model.alpha": 6.0, "model.targets": ["k_proj"]}
    part = small_config.override({**changes, "model.adapter": {"r": 2, "use_rslora": True}}).model
    model = backbone(part.name)
    attach(model, part, seed=0)
    config = attached(model).peft_config["default"]
    assert (config.r, config.lora_alpha, config.target_modules) == (2, 6.0, {"k_proj"})
    other = backbone(part.name)
    attach(other, ModelConfig(adapter={"peft_type": "vera"}), seed=0)
    assert attached(other).peft_config["default"].r == 256  # PEFT's own default
    assert attached(other).peft_config["default"].target_modules == {"q_proj", "v_proj"}


# ---- what is written


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_written_adapter_is_put_back(name: str, small_config: RunConfig, tmp_path: Path) -> None:
    part = configured(small_config, name).model
    model, other = backbone(part.name), backbone(part.name)
    attach(model, part, seed=0)
    for parameter in trained(model):
        parameter.data += 0.1
    save(model, tmp_path, part.name)
    restore(other, tmp_path)
    torch.testing.assert_close(logits(other), logits(model))


def test_an_adapter_that_does_not_fit_is_refused(small_config: RunConfig, tmp_path: Path) -> None:
    part = small_config.model
    model = backbone(part.name)
    attach(model, part, seed=0)
    save(model, tmp_path, part.name)
    weights = tmp_path / "adapter_model.safetensors"
    tensors = load_file(weights)
    name = min(tensors)
    save_file(tensors | {name: tensors[name][:, :3].contiguous()}, weights)
    with pytest.raises(InputError) as refused:
        restore(backbone(part.name), tmp_path)
    assert refused.value.path == weights


def test_an_adapter_imports_no_module(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT imports what `megatron_core` names: a run refuses it, a file's is ignored."""
    trap = tmp_path / "modules" / "trapped_megatron.py"
    trap.parent.mkdir()
    trap.write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(trap.parent)
    named = {"megatron_config": {"a": 1}, "megatron_core": "trapped_megatron"}
    part = small_config.model
    with pytest.raises(InputError, match="megatron_c"):
        describe(small_config.override({"model.adapter": named}).model)
    model, other = backbone(part.name), backbone(part.name)
    attach(model, part, seed=0)
    save(model, tmp_path, part.name)
    file = tmp_path / "adapter_config.json"
    config = json.loads(file.read_text("utf-8")) | named
    file.write_text(json.dumps(config), encoding="utf-8")
    restore(other, tmp_path)
    assert "trapped_megatron" not in sys.modules


# ---- what is refused


@pytest.mark.parametrize(
    ("adapter", "named"),
    [
        ({"use_dorra": True}, "'use_dora"),
        ({"peft_type": "LORRA"}, "'LORA'"),
        ({"peft_type": "PROMPT_TUNING"}, "'PROMPT_TUNING'"),
        ({"peft_type": "XLORA"}, "'XLORA'"),
        ({"r": "many"}, "model.adapter.r='many'"),
        ({"init_lora_weights": "pissa"}, "'pissa'"),
        ({**IA3, "feedforward_modules": ["up_proj"]}, "feedforward_modules"),
    ],
)
def test_a_bad_adapter_is_refused_before_the_model_is_loaded(
    adapter: dict[str, Any], named: str, small_config: RunConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=named):
        prepare(small_config.override({"model.adapter": adapter}), tmp_path / "run")


@pytest.mark.parametrize(
    ("adapter", "dtype", "named"),
    [
        ({"target_modules": ["q_proj", "query"]}, "auto", "'query'"),
        ({"target_modules": "query"}, "auto", "Target modules"),
        ({"r": 0}, "auto", "`r`"),
        (ADAPTERS["LoRA and a whole layer"], "bfloat16", "model.dtype=float32"),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_names_its_field(
    adapter: dict[str, Any], dtype: str, named: str, small_config: RunConfig
) -> None:
    config = small_config.override({"model.adapter": adapter, "model.dtype": dtype})
    method = build_method(config.method)
    with pytest.raises(InputError, match=named):
        build_learner(config, method, World())


def test_methods_that_stack_adapters_take_none_of_pefts(small_config: RunConfig) -> None:
    values = small_config.override({"model.adapter": {"use_dora": True}}).model_dump(mode="json")
    for method in ("olora", "moelora", "sapt", "migu"):
        with pytest.raises(InputError, match=method):
            RunConfig.parse(values | {"method": {"name": method}})
    with pytest.raises(InputError, match=r"model\.tuning"):
        small_config.override({"model.adapter": {"r": 2}, "model.tuning": "full"})


def test_an_adapter_is_part_of_the_fingerprint_only_if_it_is_set(small_config: RunConfig) -> None:
    assert "adapter" not in small_config.identity()["model"]
    dora = small_config.override({"model.adapter.use_dora": True})
    assert dora.model.adapter == {"use_dora": True}
    assert dora.fingerprint() != small_config.fingerprint()
    assert small_config.override({"model.adapter": {}}).fingerprint() == small_config.fingerprint()
    assert RunConfig.parse({}).fingerprint() == "0cf02536b8a9"
