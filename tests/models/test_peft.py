"""Adapters that PEFT makes: any kind of them is trained, resumed, shared by ranks and saved."""

import gc
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import Call
from helpers import KILLED_CLOSES_NO_FILES, begin, execute, lines, outcome, start, toy, update
from peft import PeftModel, get_peft_config, get_peft_model
from safetensors.torch import load_file, save_file

from forever.config.parts import ModelConfig
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import Placement, prepare, run_local
from forever.methods.registry import build_method
from forever.models import lora
from forever.models.adapter import attach, attached, begun, describe, restore, save
from forever.models.backbone import load
from forever.training import loop
from forever.training.build import build_learner
from forever.world import World

pytestmark = [
    *KILLED_CLOSES_NO_FILES,
    # PEFT 0.21 reads a property that transformers 5.23 renamed; `from_pretrained` says so.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    # PEFT would tie what is adapted; `forever export --merged` unties.
    pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings=True.:UserWarning"),
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
    "LoRA of embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
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


# ---- model.init: a run begins from an adapter that exists


def trained_by_peft(config: RunConfig, folder: Path, **description: Any) -> dict[str, torch.Tensor]:
    """Save an adapter as a script with PEFT does, drawn anew as if it were trained."""
    model = backbone(config.model.name)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", **description}
    theirs = get_peft_model(model, get_peft_config(settings))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in trained(theirs):
            parameter.copy_(torch.randn_like(parameter) / 10)
    with warnings.catch_warnings(
        action="ignore"
    ):  # PEFT saves the embedding beside an adapter of it
        theirs.save_pretrained(folder)
    return load_file(folder / "adapter_model.safetensors")


def beginning(config: RunConfig, folder: Path, **model: Any) -> RunConfig:
    """A run from an adapter that says nothing of its own about it."""
    values = config.model_dump(mode="json")
    kept = {name: values["model"][name] for name in ("name", "max_length", "dtype")}
    return RunConfig.parse(values | {"model": {**kept, "init": str(folder), **model}})


@pytest.mark.parametrize("name", ["LoRA", *ADAPTERS])
def test_an_adapter_of_peft_comes_back_as_it_was(
    name: str, small_config: RunConfig, tmp_path: Path
) -> None:
    made = {"r": 3, "lora_alpha": 5, "lora_dropout": 0.25, "target_modules": ["o_proj", "v_proj"]}
    if name in ADAPTERS:
        made = {"target_modules": ["q_proj"], **ADAPTERS[name]}
    tensors = trained_by_peft(small_config, tmp_path / "trl", **made)
    config = beginning(small_config, tmp_path / "trl")
    learner = build_learner(config, build_method(config.method), World())
    lora.save_peft(learner.backbone.model, tmp_path / "back", config.model.name)
    back = load_file(tmp_path / "back" / "adapter_model.safetensors")
    assert back.keys() == {key for key in tensors if "base_layer" not in key}
    assert all(torch.equal(tensors[key], tensor) for key, tensor in back.items())
    then, now = (
        json.loads((tmp_path / folder / "adapter_config.json").read_text("utf-8"))
        for folder in ("trl", "back")
    )
    assert {key for key in then if then[key] != now[key]} <= {"target_modules"}  # of a set
    assert sorted(then["target_modules"]) == now["target_modules"]


def test_an_adapter_with_another_embedding_is_refused(
    small_config: RunConfig, tmp_path: Path
) -> None:
    tensors = trained_by_peft(small_config, tmp_path, **ADAPTERS["LoRA of embeddings"])
    (name,) = [key for key in tensors if "base_layer" in key]
    save_file(tensors | {name: tensors[name] + 1}, tmp_path / "adapter_model.safetensors")
    config = beginning(small_config, tmp_path)
    with pytest.raises(InputError, match=r"other weights of .*embed_tokens"):
        build_learner(config, build_method(config.method), World())


def test_a_run_goes_on_with_an_adapter_and_exports_it(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    """The digest of the adapter's files is kept: with other files it is another run."""
    tensors = trained_by_peft(small_config, tmp_path / "trl", r=3, target_modules=["o_proj"])
    config, run = beginning(small_config, tmp_path / "trl"), tmp_path / "run"
    result = execute(config, run)
    assert call("export", str(run), "--to", str(tmp_path / "out"))[0] == 0
    after = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert after.keys() == tensors.keys()
    assert any(not torch.equal(after[key], tensor) for key, tensor in tensors.items())
    theirs = PeftModel.from_pretrained(backbone(config.model.name), tmp_path / "out")
    ours = backbone(config.model.name)
    restore(ours, run / "adapter")
    torch.testing.assert_close(logits(theirs), logits(ours))
    assert "init" in result["model"]
    assert RunConfig.parse(yaml.safe_load(config.text())).key() == config.key()
    trained_by_peft(small_config, tmp_path / "trl", r=3, target_modules=["v_proj"])
    with pytest.raises(InputError, match="init"):
        prepare(config, run)


def test_olora_keeps_the_adapter_frozen_before_its_own(
    small_config: RunConfig, tmp_path: Path
) -> None:
    made = {"r": 3, "lora_alpha": 5, "target_modules": ["o_proj", "v_proj"]}
    tensors = trained_by_peft(small_config, tmp_path / "trl", **made)
    config = beginning(small_config.override({"method.name": "olora"}), tmp_path / "trl")
    learner = build_learner(config, build_method(config.method), World())
    theirs = PeftModel.from_pretrained(backbone(config.model.name), tmp_path / "trl")
    torch.testing.assert_close(logits(learner.backbone.model), logits(theirs))
    execute(config, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        side = 0 if "lora_A" in name else 1
        assert saved[name].shape[side] == 3 * 4  # its rank, and that of three tasks
        assert torch.equal(saved[name].narrow(side, 0, 3), tensor)


@pytest.mark.parametrize(
    ("made", "changes", "named"),
    [
        ({}, {"rank": 8}, r"r=3, and the run wants 8"),
        ({}, {"targets": ["q_proj"]}, "target_modules"),
        ({}, {"adapter": {"use_dora": True}}, "use_dora=False"),
        ({"init_lora_weights": "pissa"}, {}, "pissa"),
        ({"use_dora": True}, {"method": "olora"}, "use_dora=True"),
        ({"peft_type": "IA3", "feedforward_modules": []}, {"method": "olora"}, "IA3"),
        ({}, {"method": "sapt"}, "sapt"),
        ({}, {"tuning": "full"}, "merge it"),
        ({}, {"name": "owner/other"}, "model.name=owner/base"),
    ],
)
def test_a_beginning_that_contradicts_the_run_is_refused(
    made: dict[str, Any],
    changes: dict[str, Any],
    named: str,
    small_config: RunConfig,
    tmp_path: Path,
) -> None:
    whole = made if "peft_type" in made else {"r": 3}
    trained_by_peft(small_config, tmp_path, target_modules=["v_proj"], **whole)
    file = tmp_path / "adapter_config.json"
    description = json.loads(file.read_text("utf-8")) | made
    description["base_model_name_or_path"] = "owner/base"
    file.write_text(json.dumps(description), encoding="utf-8")
    config = small_config.override({"method.name": changes.get("method", "forever")})

    def build() -> None:
        described = {name: value for name, value in changes.items() if name != "method"}
        run = beginning(config, tmp_path, **described)
        begun(run)
        build_learner(run, build_method(run.method), World())

    with pytest.raises(InputError, match=named):
        build()


def test_files_that_are_no_adapter_of_the_model_are_refused(
    small_config: RunConfig, tmp_path: Path
) -> None:
    config, weights = beginning(small_config, tmp_path), tmp_path / "adapter_model.safetensors"
    with pytest.raises(InputError, match=r"adapter_config\.json"):
        prepare(config, tmp_path / "run")
    tensors = trained_by_peft(small_config, tmp_path, r=3, target_modules=["v_proj"])
    save_file({name: tensor[:, :5].clone() for name, tensor in tensors.items()}, weights)
    with pytest.raises(InputError, match=r"\[3, 5\], and the model needs \[3, 32\]"):
        build_learner(config, build_method(config.method), World())
    weights.write_text("version https://git-lfs.github.com/spec/v1", encoding="utf-8")
    with pytest.raises(InputError, match="git lfs pull") as refused:
        build_learner(config, build_method(config.method), World())
    assert refused.value.path == weights
    (tmp_path / "adapter_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="download it again") as refused:
        prepare(config, tmp_path / "run")
    assert refused.value.key == "model.init"
    weights.rename(tmp_path / "adapter_model.bin")
    with pytest.raises(InputError, match="pickle"):
        prepare(config, tmp_path / "run")


# ---- every linear layer, and layers that are computed twice


def test_all_linear_is_what_peft_takes_for_it(small_config: RunConfig, tmp_path: Path) -> None:
    part = small_config.override({"model.targets": "all-linear"}).model
    theirs, ours = backbone(part.name), backbone(part.name)
    attach(theirs, part, seed=0)
    lora.adapt(ours, part, seed=0)
    chosen = attached(theirs).peft_config["default"].target_modules
    assert chosen == {name for name, _ in lora.banks(ours)}
    assert {name.rpartition(".")[2] for name in chosen} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    (tmp_path / "adapter_config.json").write_text('{"target_modules": "all-linear", "r": 3}')
    (tmp_path / "adapter_model.safetensors").touch()
    config = beginning(small_config, tmp_path, targets="all-linear")
    assert begun(config).model.targets == ("all-linear",)


@pytest.mark.parametrize("packing", ["shared", "padded"])
def test_layers_that_are_computed_again_give_the_same_gradient(
    packing: str, small_config: RunConfig
) -> None:
    """With dropout. All but the last layer are computed twice."""
    config = small_config.override({"model.packing": packing, "model.dropout": 0.2})
    gradients: list[torch.Tensor] = []
    for again in (False, True):
        changes = {"model.gradient_checkpointing": again}
        assert config.override(changes).key() == config.key()
        learner, method = begin(config.override(changes), {"name": "finetune"})
        calls = list[int]()
        first = learner.backbone.model.model.layers[0].self_attn.q_proj
        first.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        update(learner, method, start(learner, method, toy(config)[0]))
        gradients.append(learner.parameters.grad.clone())
        assert len(calls) == 1 + again
    assert gradients[0].any()
    assert torch.equal(*gradients)
    with pytest.raises(InputError, match="gradient_checkpointing"):
        config.override({"model.gradient_checkpointing": True, "method.name": "moelora"})
