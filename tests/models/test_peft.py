"""Adapters that PEFT makes: any kind of them is trained, resumed, shared by ranks and saved."""

import gc
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
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
SHARED = ("DoRA", "IA3")  # of these, runs with two ranks
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


def process(rank: int, folder: Path, config: RunConfig) -> None:
    """One of two ranks, which learns with every adapter."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for name in SHARED:
        alike = configured(config, name, dropout=0)
        run_local(alike, folder / name, placement=Placement("cpu"), world=World(rank, 2, CPU))
    dist.destroy_process_group()


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


def test_repeats_bit_for_bit(finished: Finished, tmp_path: Path) -> None:
    config, path = finished
    torch.manual_seed(5)  # whatever was drawn before
    execute(config, tmp_path)
    assert outcome(path).differences(outcome(tmp_path)) == []
    steps = lines(tmp_path / "steps.jsonl")
    assert {step["kind"] for step in steps} == {"task", "replay", "consolidation"}
    assert all(step["update_norm"] > 0 for step in steps)


def test_goes_on_after_a_kill(finished: Finished, tmp_path: Path) -> None:
    config, path = finished
    killed(config, tmp_path, World())
    run_local(config, tmp_path, resume=True, placement=Placement("cpu"))
    assert outcome(path).differences(outcome(tmp_path)) == []


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


@pytest.mark.slow
def test_two_ranks_equal_one(small_config: RunConfig, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (tmp_path, small_config), nprocs=2)
    for name in SHARED:
        path = tmp_path / f"{name} alone"
        execute(configured(small_config, name, dropout=0), path)
        alone, shared = outcome(path), outcome(tmp_path / name)
        torch.testing.assert_close(shared.adapter, alone.adapter, rtol=1e-3, atol=1e-4)


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

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]
LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


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


def settings(**changes: Any) -> Change:
    return lambda config, tensors: config.update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config, tensors: tensors.update({LORA_A: tensors[LORA_A][:, :3]}),
         r"q_proj.lora_A.weight is torch.float32 \[4, 3\], in this model torch.float32 \[4, "),
        (lambda config, tensors: tensors.pop(LORA_A), "q_proj.lora_A.weight is missing, in this"),
        (lambda config, tensors: tensors.update(strange=torch.zeros(3)),
         r"strange is torch.float32 \[3\], in this model missing"),
        (lambda config, tensors: tensors[LORA_A].fill_(math.nan), "numbers that are not finite"),
        (lambda config, tensors: tensors.update({LORA_A: tensors[LORA_A].half()}),
         "q_proj.lora_A.weight is torch.float16"),
        (settings(r=10**9), "adapter_config.json has r=1000000000, and no tensor has that size"),
        (settings(lora_alpha=math.nan), "adapter_config.json: "),
        # What would load other files, or import other modules, when the adapter is put in.
        (settings(peft_type="PROMPT_TUNING", prompt_tuning_init="TEXT"), "cannot be trained here"),
        (settings(init_lora_weights="loftq"), "would change the frozen weights"),
        (settings(target_modules=["nothing"]), "no linear layer is called 'nothing'"),
        (settings(strange=1), "unknown field of model.adapter 'strange'"),
    ],
)  # fmt: skip
def test_an_adapter_of_a_strange_hand_is_refused(
    change: Change, message: str, small_config: RunConfig, tmp_path: Path
) -> None:
    part = small_config.model
    model = backbone(part.name)
    attach(model, part, seed=0)
    save(model, tmp_path, part.name)
    file, weights = tmp_path / "adapter_config.json", tmp_path / "adapter_model.safetensors"
    config, tensors = json.loads(file.read_text("utf-8")), load_file(weights)
    change(config, tensors)
    file.write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights)
    with pytest.raises(InputError, match=message) as refused:
        restore(backbone(part.name), tmp_path)
    assert "\n" not in str(refused.value)


def test_a_strange_file_imports_no_module(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT imports what `megatron_core` names: a run refuses it, a file's is passed over."""
    trap = tmp_path / "modules" / "trapped_megatron.py"
    trap.parent.mkdir()
    trap.write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(trap.parent)
    named = {"megatron_config": {"a": 1}, "megatron_core": "trapped_megatron"}
    part = small_config.model
    with pytest.raises(InputError, match=r"unknown field of model\.adapter 'megatron_con?[a-z]*'"):
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
    ("adapter", "message"),
    [
        ({"use_dorra": True}, "unknown field of model.adapter 'use_dorra'; did you mean 'use_dora"),
        ({"peft_type": "LORRA"}, "model.adapter.peft_type 'LORRA'; did you mean 'LORA'"),
        ({"peft_type": "PROMPT_TUNING"}, "peft_type='PROMPT_TUNING' cannot be trained here"),
        ({"peft_type": "XLORA"}, "peft_type='XLORA' cannot be trained here"),
        ({"r": "many"}, "model.adapter.r='many': input should be a valid integer"),
        ({"task_type": "SEQ_CLS"}, "unknown field of model.adapter 'task_type'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' would change the frozen"),
        ({**IA3, "feedforward_modules": ["up_proj"]}, "PEFT refuses it: `feedforward_modules`"),
    ],
)
def test_a_bad_adapter_is_one_line(
    adapter: dict[str, Any], message: str, small_config: RunConfig, tmp_path: Path
) -> None:
    """Before the model is loaded."""
    config = small_config.override({"model.adapter": adapter})
    with pytest.raises(InputError, match=message) as refused:
        prepare(config, tmp_path / "run")
    assert "\n" not in str(refused.value)


WHOLE_LAYER = ADAPTERS["LoRA and a whole layer"]


@pytest.mark.parametrize(
    ("adapter", "dtype", "message"),
    [
        ({"target_modules": ["q_proj", "query"]}, "auto", "no linear layer is called 'query'; .*"),
        ({"target_modules": "query"}, "auto", "PEFT refuses it: Target modules"),
        ({"r": 0}, "auto", "PEFT refuses it: `r` should be a positive integer"),
        (WHOLE_LAYER, "bfloat16", "only fp32 can be trained; set model.dtype=float32"),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_is_one_line(
    adapter: dict[str, Any], dtype: str, message: str, small_config: RunConfig
) -> None:
    config = small_config.override({"model.adapter": adapter, "model.dtype": dtype})
    method = build_method(config.method)
    with pytest.raises(InputError, match=message) as refused:
        build_learner(config, method, World())
    assert "\n" not in str(refused.value)


def test_methods_that_stack_adapters_take_none_of_pefts(small_config: RunConfig) -> None:
    values = small_config.override({"model.adapter": {"use_dora": True}}).model_dump(mode="json")
    for method in ("olora", "moelora", "sapt", "migu"):
        with pytest.raises(InputError, match=f"method {method} lays LoRA adapters of its own"):
            RunConfig.parse(values | {"method": {"name": method}})
    with pytest.raises(InputError, match=r"model.adapter needs model.tuning='lora'"):
        small_config.override({"model.adapter": {"r": 2}, "model.tuning": "full"})


def test_an_adapter_is_part_of_the_fingerprint_only_if_it_is_set(small_config: RunConfig) -> None:
    assert "adapter" not in small_config.identity()["model"]
    dora = small_config.override({"model.adapter.use_dora": True})
    assert dora.model.adapter == {"use_dora": True}
    assert dora.fingerprint() != small_config.fingerprint()
    assert small_config.override({"model.adapter": {}}).fingerprint() == small_config.fingerprint()
    assert RunConfig.parse({}).fingerprint() == "0cf02536b8a9"
