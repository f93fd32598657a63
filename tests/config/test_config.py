"""Bad input ends in one line that names the value, the rule and the nearest valid name; a run is a
stable value."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from forever.config.overrides import dotted_keys, joined_lines, parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.methods.registry import METHODS

TASK = {"path": "mine", "columns": {"instruction": "i", "output": "o"}}
# Dotted changes of a run, and what is said about them.
BAD: list[tuple[dict[str, Any], str]] = [
    # unknown names, with the nearest
    ({"optimizer": {}}, "unknown key 'optimizer'; did you mean 'optim.lr'?"),
    ({"optim.lrr": 1}, "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
    ({"optimm.lr": 1}, "unknown key 'optimm'; did you mean 'optim.lr'?"),
    ({"optim.lr.value": 1}, "unknown key 'optim.lr.value'; did you mean 'optim.lr'?"),
    ({"method.name": "forevr"}, "unknown method 'forevr'; did you mean 'forever'?"),
    ({"method.name": "xyz"}, "unknown method 'xyz'; valid: aimmerging, ewc, "),
    ({"method.gama": 1}, "unknown key 'method.gama'; did you mean 'method.gamma'?"),
    (
        {"method.name": "finetune", "method.days": [1]},
        "unknown key 'method.days'; did you mean 'method.name'?",
    ),
    (
        {"method.days": "ebinghaus"},
        "method.days: unknown schedule 'ebinghaus'; did you mean 'ebbinghaus'?",
    ),
    (
        {"data.datasets": {"a": {**TASK, "trian": "x"}}},
        "unknown key 'data.datasets.a.trian'; did you mean 'data.datasets.a.train'?",
    ),
    # missing or of the wrong type; a field of several types says what each would take
    ({"method": {}}, "method: field 'name' is missing; valid: aimmerging, ewc, "),
    ({"method": "forever"}, "method='forever': "),
    ({"data.datasets": {"a": {"path": "mine"}}}, "data.datasets.a.columns={'path': 'mine'}: field"),
    ({"optim": 3}, "optim=3: "),
    ({"optim.lr": "fast"}, "optim.lr='fast': input should be a valid number"),
    ({"optim.epochs": 1.5}, "optim.epochs=1.5: input should be a valid integer"),
    ({"model.targets": "q_proj"}, "model.targets='q_proj': input should be a valid tuple"),
    ({"optim.betas": [0.9]}, "optim.betas"),
    (
        {"method.days": 7},
        "method.days=7: input should be a valid string; or input should be a valid list",
    ),
    # out of range
    ({"seed": -1}, "seed=-1: input should be greater than or equal to 0"),
    ({"memory.fraction": 1.01}, "memory.fraction=1.01: input should be less than or equal to 1"),
    ({"memory.fraction": float("nan")}, "memory.fraction=nan: "),
    ({"optim.lr": 0}, "optim.lr=0: input should be greater than 0"),
    ({"optim.lr": float("inf")}, "optim.lr=inf: input should be a finite number"),
    ({"optim.betas": [0.9, 1.0]}, "optim.betas.1=1.0: input should be less than 1"),
    (
        {"optim.schedule": "cosine"},
        "optim.schedule='cosine': input should be 'constant' or 'linear'",
    ),
    ({"model.max_length": 8}, "model.max_length=8: input should be greater than or equal to 16"),
    (
        {"data.metrics": {"a": "bleu"}},
        "data.metrics.a='bleu': input should be 'exact_match' or 'rouge_l'",
    ),
    ({"data.order": ["a", "b", "a"]}, "data.order: task 'a' occurs twice"),
    (
        {"model.tuning": "full", "model.adapter": {"r": 1}},
        "model: model.adapter needs model.tuning",
    ),
    ({"method.warmup_steps": 0}, "method.warmup_steps=0: input should be greater than or equal"),
    ({"method.days": [1, 0, "x"]}, "method.days.1=0: input should be greater than 0"),
    (
        {"method.consolidation_epochs": "match"},
        "method.consolidation_epochs='match': input should be a valid integer, unable to parse "
        "string as an integer; or input should be 'matched'",
    ),
    (
        {"method.regularizer": "ewc"},
        "method.regularizer='ewc': input should be 'none', 'intensity'",
    ),
    ({"budget.examples": 0}, "budget.examples=0: input should be greater than or equal to 1"),
    ({"budget.seconds": 0}, "budget.seconds=0: input should be greater than 0"),
    (
        {"budget.examples": 8, "budget.seconds": 9.5},
        "budget: examples=8 and seconds=9.5 are two budgets, and a run has one; set one of them to",
    ),
    (
        {"method.memory_epochs": "share"},
        "method forever: memory_epochs='share' divides a budget, and there is none",
    ),
    ({"method.min_strength": 4}, "method: min_strength=4.0 is above max_strength=3.0"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        RunConfig.parse({}).override(changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize("values", [[], None, "optim.lr"])
def test_a_configuration_is_a_mapping(values: Any) -> None:
    with pytest.raises(InputError, match="a configuration is a mapping of keys to values, not "):
        RunConfig.parse(values)


# ---- defaults


def test_defaults_are_the_papers() -> None:
    config = RunConfig.parse({})
    assert (config.model.rank, config.model.alpha, config.model.dropout) == (8, 32, 0.05)
    assert config.model.targets == ("q_proj", "v_proj")
    assert config.memory.fraction == 0.02
    assert config.optim.model_dump() == {
        "lr": 3e-4, "batch_size": 8, "epochs": 10, "betas": (0.9, 0.999), "eps": 1e-8,
        "weight_decay": 0, "clip": 1, "schedule": "constant", "warmup_steps": 0,
        "nonfinite_skips": 0,
    }  # fmt: skip
    assert config.method.model_dump() == {
        "name": "forever", "clock": "model", "days": "ebbinghaus", "warmup_steps": 24,
        "source": "memory",
        "smoothing": 0.05, "memory_epochs": 2, "consolidation_epochs": 1,
        "regularizer": "intensity", "beta": 1e-3, "gamma": 1,
        "min_strength": 0.5, "max_strength": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("benchmark", "order"),
    [("mini", "1"), ("standard", "1"), ("long", "4"), ("superni", "7"), ("own", "1")],
)
def test_first_order_of_a_benchmark(benchmark: str, order: str) -> None:
    assert RunConfig.parse({"data": {"benchmark": benchmark}}).data.order == order


def test_a_configuration_is_frozen() -> None:
    config = RunConfig.parse({})
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1  # type: ignore[misc]


# ---- overrides


@pytest.fixture
def base() -> RunConfig:
    data = {"benchmark": "long", "order": "5", "root": "/data", "train_rows": 10}
    return RunConfig.parse({"data": data, "method": {"name": "forever", "warmup_steps": 3}})


def test_override_changes_one_thing(base: RunConfig) -> None:
    changed = base.override({"optim.lr": 0.1})
    assert changed.optim.lr == 0.1
    assert changed.override({"optim.lr": base.optim.lr}) == base.override({}) == base


def test_a_new_method_or_benchmark_starts_from_its_defaults(base: RunConfig) -> None:
    changed = base.override({"method.name": "fixed_interval", "method.memory_epochs": 5})
    defaults = RunConfig.parse({"method": {"name": "fixed_interval", "memory_epochs": 5}})
    assert changed.method == defaults.method
    data = base.override({"data.benchmark": "superni"}).data
    assert (data.order, data.train_rows, data.root) == ("7", None, "/data")
    assert base.override({"method.name": "forever", "data.benchmark": "long"}) == base


def test_assignments_are_yaml() -> None:
    """YAML 1.1 reads 1e-3 as text and 7 as a number; the configuration must not."""
    values = ["optim.lr=1e-3", "method.days=[1,2,4]", "data.order=7", "data.root=/a=b"]
    changes = parse_assignments([*values, "data.train_rows=null", "data.benchmark=superni"])
    config = RunConfig.parse({}).override(changes)
    assert config.optim.lr == 1e-3
    assert config.method.model_dump()["days"] == [1.0, 2.0, 4.0]
    assert (config.data.order, config.data.root, config.data.train_rows) == ("7", "/a=b", None)


@pytest.mark.parametrize(
    ("argument", "message"),
    [("optim.lr", "not of the form key=value"), ("a=[1,", "not valid YAML")],
)
def test_bad_assignments(argument: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_assignments([argument])


def test_dotted_keys_name_every_field_once() -> None:
    keys = dotted_keys(RunConfig)
    assert len(keys) == len(set(keys))
    assert {*keys} >= {"seed", "optim.lr", "data.root", "method.days", "method.interval"}


# ---- identity


def test_fingerprint_is_stable() -> None:
    """Recorded, so folders of earlier versions are found; hashes of a process are salted anew."""
    code = "from forever.config.run import RunConfig; print(RunConfig.parse({}).fingerprint())"
    command = [sys.executable, "-c", code]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert fresh == RunConfig.parse({}).fingerprint() == "0cf02536b8a9"
    assert RunConfig.parse({"budget": {"examples": 8}}).fingerprint() == "3d30a97a2fcf"


def test_fingerprint_sees_everything_but_the_place_of_the_data(base: RunConfig) -> None:
    changes = [{"seed": 1}, {"optim.lr": 1}, {"data.train_rows": 11}, {"method.beta": 0}]
    changes += [{"model.name": "tiny"}, {"data.order": "6"}, {"model.adapter": {"r": 2}}]
    changes += [{"method.source": "task"}, {"budget.examples": 8}, {"budget.seconds": 8}]
    prints = {base.override(change).fingerprint() for change in changes}
    assert len(prints - {base.fingerprint()}) == 10
    assert base.override({"data.root": "/elsewhere"}).fingerprint() == base.fingerprint()


def test_written_defaults_are_the_same_run() -> None:
    written = {"optim": {"lr": 3e-4}, "method": {"name": "forever"}, "data": {"order": 1}}
    assert RunConfig.parse(written).fingerprint() == RunConfig.parse({}).fingerprint()


def test_key_names_the_run(base: RunConfig) -> None:
    assert base.key() == f"long-5-forever-s0-{base.fingerprint()[:8]}"
    custom = base.override({"data.order": ["cb", "copa"], "seed": 3})
    assert custom.key() == f"long-custom-forever-s3-{custom.fingerprint()[:8]}"
    assert "/" not in RunConfig.parse({"data": {"benchmark": "a/b"}}).key()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_round_trip_through_yaml(base: RunConfig, name: str) -> None:
    config = base.override({"method.name": name, "data.order": ["cb", "copa"]})
    again = RunConfig.parse(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config
    assert again.fingerprint() == config.fingerprint()


def test_a_message_says_how_many_differences_it_has_no_room_for() -> None:
    assert joined_lines(["a is 1 there, 2 here", "b is 1 there, 2 here"]).count(";") == 1
    assert joined_lines([str(number) for number in range(15)], most=3) == "0; 1; 2; and 12 more"
