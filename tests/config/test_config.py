"""Bad input ends in one line that names the value, the rule and the nearest valid name; a run is a
stable value."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from forever.config.methods import METHOD_CONFIGS
from forever.config.overrides import dotted_keys, joined_lines, parse_assignments
from forever.config.run import RunConfig, in_todays_names
from forever.errors import InputError
from forever.methods.registry import METHODS

TASK = {"path": "mine", "columns": {"instruction": "i", "output": "o"}}
# Dotted changes of a run, the key of the error, and the nearest valid name.
UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"optimizer": {}}, "optimizer", "optim.lr"),
    ({"optim.lrr": 1}, "optim.lrr", "optim.lr"),
    ({"optimm.lr": 1}, "optimm", "optim.lr"),
    ({"optim.lr.value": 1}, "optim.lr.value", "optim.lr"),
    ({"method.name": "forevr"}, "method.name", "forever"),
    ({"method.gama": 1}, "method.gama", "method.gamma"),
    ({"method.name": "finetune", "method.days": [1]}, "method.days", "method.name"),
    ({"method.days": "ebinghaus"}, "method.days", "ebbinghaus"),
    (
        {"data.datasets": {"a": {**TASK, "trian": "x"}}},
        "data.datasets.a.trian",
        "data.datasets.a.train",
    ),
]
# Dotted changes, and the key of the error.
BAD: list[tuple[dict[str, Any], str]] = [
    # missing or of the wrong type
    ({"method": {}}, "method.name"),
    ({"method.name": "xyz"}, "method.name"),
    ({"method": "forever"}, "method"),
    ({"data.datasets": {"a": {"path": "mine", "columns": {}}}}, "data.datasets.a.columns"),
    ({"optim": 3}, "optim"),
    ({"optim.lr": "fast"}, "optim.lr"),
    ({"optim.epochs": 1.5}, "optim.epochs"),
    ({"model.targets": "q_proj"}, "model.targets"),
    ({"optim.betas": [0.9]}, "optim.betas.1"),
    ({"method.days": 7}, "method.days"),
    # out of range
    ({"seed": -1}, "seed"),
    ({"memory.fraction": 1.01}, "memory.fraction"),
    ({"memory.fraction": float("nan")}, "memory.fraction"),
    ({"optim.lr": 0}, "optim.lr"),
    ({"optim.lr": float("inf")}, "optim.lr"),
    ({"optim.betas": [0.9, 1.0]}, "optim.betas.1"),
    ({"optim.schedule": "cosine"}, "optim.schedule"),
    ({"model.max_length": 8}, "model.max_length"),
    ({"data.metrics": {"a": "bleu"}}, "data.metrics.a"),
    ({"data.order": ["a", "b", "a"]}, "data.order"),
    ({"model.tuning": "full", "model.adapter": {"r": 1}}, "model"),
    ({"method.day_steps": 0}, "method.day_steps"),
    ({"method.days": [1, 0, "x"]}, "method.days.1"),
    ({"method.consolidation_epochs": "match"}, "method.consolidation_epochs"),
    ({"method.regularizer": "ewc"}, "method.regularizer"),
    ({"budget.examples": 0}, "budget.examples"),
    ({"budget.seconds": 0}, "budget.seconds"),
    ({"budget.examples": 8, "budget.seconds": 9.5}, "budget"),
    ({"method.memory_epochs": "share"}, ""),  # without a budget
    ({"method.min_strength": 4}, "method"),  # above max_strength
]


@pytest.mark.parametrize(("changes", "key", "near"), UNKNOWN, ids=[key for _, key, _ in UNKNOWN])
def test_an_unknown_name_is_answered_with_the_nearest(
    changes: dict[str, Any], key: str, near: str
) -> None:
    with pytest.raises(InputError, match=f"did you mean '{near}'") as refused:
        RunConfig.parse({}).override(changes)
    assert refused.value.key == key


@pytest.mark.parametrize(("changes", "key"), BAD, ids=[str(changes) for changes, _ in BAD])
def test_bad_input_is_one_line(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as refused:
        RunConfig.parse({}).override(changes)
    assert refused.value.key == key
    assert "\n" not in str(refused.value)
    assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize("values", [[], None, "optim.lr"])
def test_a_configuration_is_a_mapping(values: Any) -> None:
    with pytest.raises(InputError):
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
        "name": "forever", "clock": "model", "days": "ebbinghaus", "day_steps": 24,
        "source": "memory",
        "smoothing": 0.05, "memory_epochs": 2, "consolidation_epochs": 1,
        "regularizer": "intensity", "beta": 1e-3, "gamma": 1,
        "min_strength": 0.5, "max_strength": 3,
        "penalty_scale": "update", "logits": None, "end_rate": "whole",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["forever", "fixed_interval", "vbm"])
def test_days_by_their_old_name(name: str) -> None:
    """A person gets the new name; what an earlier version wrote is read, and keeps its key."""
    old, new = {"name": name, "warmup_steps": 9}, {"name": name, "day_steps": 9}
    with pytest.raises(InputError, match="day_steps"):
        RunConfig.parse({"method": old})
    with pytest.raises(InputError, match="day_steps"):
        RunConfig.parse({"method": new}).override({"method.warmup_steps": 3})
    with pytest.raises(ValueError, match="day_steps"):
        METHOD_CONFIGS[name](**old)
    whole = METHOD_CONFIGS[name](**new).model_dump()
    whole["warmup_steps"] = whole.pop("day_steps")
    config = RunConfig.parse(in_todays_names({"method": whole}))
    assert config == RunConfig.parse({"method": new})
    assert config.identity()["method"]["warmup_steps"] == 9
    assert "day_steps" not in config.identity()["method"]


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
    return RunConfig.parse({"data": data, "method": {"name": "forever", "day_steps": 3}})


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
    """1e-3 is a number, and the order 7 is a name."""
    values = ["optim.lr=1e-3", "method.days=[1,2,4]", "data.order=7", "data.root=/a=b"]
    changes = parse_assignments([*values, "data.train_rows=null", "data.benchmark=superni"])
    config = RunConfig.parse({}).override(changes)
    assert config.optim.lr == 1e-3
    assert config.method.model_dump()["days"] == [1.0, 2.0, 4.0]
    assert (config.data.order, config.data.root, config.data.train_rows) == ("7", "/a=b", None)


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
