"""Bad input ends in one line that names the value, the rule and the nearest valid name; a run is a
stable value."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from forever.config.overrides import dotted_keys, parse_assignments
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.methods.registry import METHODS

FOREVER = {"name": "forever"}

BAD: list[tuple[Any, str]] = [
    # unknown names, with the nearest
    ({"optimizer": {}}, "unknown key 'optimizer'"),
    ({"optim": {"lrr": 1}}, "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
    ({"model": {"rnak": 1}}, "unknown key 'model.rnak'; did you mean 'model.rank'?"),
    ({"method": {"name": "forevr"}}, "unknown method 'forevr'; did you mean 'forever'?"),
    ({"method": {"name": "xyz"}}, "unknown method 'xyz'; valid: "),
    ({"method": {**FOREVER, "gama": 1}}, "unknown key 'method.gama'; did you mean 'method.gamma'?"),
    (
        {"method": {"name": "finetune", "days": [1]}},
        "unknown key 'method.days'; did you mean 'method.name'?",
    ),
    (
        {"method": {**FOREVER, "days": "ebinghaus"}},
        "unknown schedule 'ebinghaus'; did you mean 'ebbinghaus'?",
    ),
    # missing or of the wrong type
    ({"method": {}}, "method: field 'name' is missing; valid: "),
    ({"method": "forever"}, "method='forever': "),
    ({"method": None}, "method=None: "),
    ({"optim": 3}, "optim=3: "),
    ({"optim": {"lr": "fast"}}, "optim.lr='fast': input should be a valid number"),
    ({"optim": {"epochs": 1.5}}, "optim.epochs=1.5: input should be a valid integer"),
    ({"model": {"targets": "q_proj"}}, "model.targets='q_proj': input should be a valid tuple"),
    ({"optim": {"betas": [0.9]}}, "optim.betas"),
    ({"method": {**FOREVER, "days": 7}}, "method.days=7: "),
    ([], "a configuration is a mapping of keys to values, not []"),
    (None, "a configuration is a mapping of keys to values, not None"),
    ("optim.lr", "a configuration is a mapping of keys to values, not 'optim.lr'"),
    # out of range
    ({"seed": -1}, "seed=-1: input should be greater than or equal to 0"),
    (
        {"memory": {"fraction": -0.1}},
        "memory.fraction=-0.1: input should be greater than or equal to 0",
    ),
    (
        {"memory": {"fraction": 1.01}},
        "memory.fraction=1.01: input should be less than or equal to 1",
    ),
    ({"memory": {"fraction": float("nan")}}, "memory.fraction=nan: "),
    ({"optim": {"lr": 0}}, "optim.lr=0: input should be greater than 0"),
    ({"optim": {"lr": float("inf")}}, "optim.lr=inf: input should be a finite number"),
    (
        {"optim": {"batch_size": 0}},
        "optim.batch_size=0: input should be greater than or equal to 1",
    ),
    ({"optim": {"epochs": 0}}, "optim.epochs=0: input should be greater than or equal to 1"),
    ({"optim": {"clip": 0}}, "optim.clip=0: "),
    ({"optim": {"betas": [0.9, 1.0]}}, "optim.betas.1=1.0: input should be less than 1"),
    ({"optim": {"eps": 0}}, "optim.eps=0: input should be greater than 0"),
    (
        {"optim": {"schedule": "cosine"}},
        "optim.schedule='cosine': input should be 'constant' or 'linear'",
    ),
    ({"model": {"dropout": 1}}, "model.dropout=1: input should be less than 1"),
    ({"model": {"rank": 0}}, "model.rank=0: "),
    (
        {"model": {"max_length": 8}},
        "model.max_length=8: input should be greater than or equal to 16",
    ),
    ({"data": {"train_rows": 0}}, "data.train_rows=0: "),
    (
        {"data": {"metrics": {"a": "bleu"}}},
        "data.metrics.a='bleu': input should be 'exact_match' or 'rouge_l'",
    ),
    ({"data": {"order": ["a", "b", "a"]}}, "data.order: task 'a' occurs twice"),
    (
        {"method": {**FOREVER, "warmup_steps": 0}},
        "method.warmup_steps=0: input should be greater than or equal to 1",
    ),
    ({"method": {**FOREVER, "days": [1, 0]}}, "method.days.1=0: input should be greater than 0"),
    ({"method": {**FOREVER, "days": [-2]}}, "method.days.0=-2: input should be greater than 0"),
    ({"method": {**FOREVER, "smoothing": 0}}, "method.smoothing=0: input should be greater than 0"),
    (
        {"method": {**FOREVER, "smoothing": 1.5}},
        "method.smoothing=1.5: input should be less than or equal to 1",
    ),
    ({"method": {**FOREVER, "memory_epochs": 0}}, "method.memory_epochs=0: "),
    ({"method": {**FOREVER, "consolidation_epochs": -1}}, "method.consolidation_epochs=-1: "),
    (
        {"method": {**FOREVER, "consolidation_epochs": "match"}},
        "method.consolidation_epochs='match': ",
    ),
    (
        {"method": {**FOREVER, "clock": "step"}},
        "method.clock='step': input should be 'model' or 'steps'",
    ),
    (
        {"method": {**FOREVER, "regularizer": "ewc"}},
        "method.regularizer='ewc': input should be 'none', 'intensity'",
    ),
    ({"method": {**FOREVER, "beta": -1e-3}}, "method.beta=-0.001: "),
    (
        {"method": {**FOREVER, "min_strength": 4}},
        "method: min_strength=4.0 is above max_strength=3.0",
    ),
    ({"method": {"name": "fixed_interval", "interval": 0}}, "method.interval=0: "),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_is_one_line(values: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        RunConfig.parse(values)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert "pydantic" not in text


def test_alternatives_are_all_named() -> None:
    """A field of several types says what each would take."""
    with pytest.raises(InputError, match=r"valid integer.*'matched'"):
        RunConfig.parse({"method": {**FOREVER, "consolidation_epochs": "match"}})
    with pytest.raises(InputError, match=r"valid string.*valid list"):
        RunConfig.parse({"method": {**FOREVER, "days": 7}})


@pytest.mark.parametrize("fraction", [1e-9, 0.02, 0.5, 1])
def test_fractions_within_range(fraction: float) -> None:
    assert RunConfig.parse({"memory": {"fraction": fraction}}).memory.fraction == fraction


# ---- defaults


def test_defaults_are_the_papers() -> None:
    config = RunConfig.parse({})
    assert (config.model.rank, config.model.alpha, config.model.dropout) == (8, 32, 0.05)
    assert config.model.targets == ("q_proj", "v_proj")
    assert (config.optim.lr, config.optim.batch_size, config.optim.epochs, config.optim.clip) == (
        3e-4,
        8,
        10,
        1.0,
    )
    assert (config.optim.betas, config.optim.eps, config.optim.weight_decay) == (
        (0.9, 0.999),
        1e-8,
        0,
    )
    assert (config.optim.schedule, config.optim.warmup_steps) == ("constant", 0)
    assert config.memory.fraction == 0.02
    m: Any = config.method
    assert (m.name, m.clock, m.days, m.warmup_steps, m.smoothing) == (
        "forever",
        "model",
        "ebbinghaus",
        24,
        0.05,
    )
    assert (m.memory_epochs, m.consolidation_epochs, m.regularizer, m.beta) == (
        2,
        1,
        "intensity",
        1e-3,
    )
    assert (m.gamma, m.min_strength, m.max_strength) == (1.0, 0.5, 3.0)


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


def base() -> RunConfig:
    return RunConfig.parse(
        {
            "data": {"benchmark": "long", "order": "5", "root": "/data", "train_rows": 10},
            "method": {**FOREVER, "warmup_steps": 3},
        }
    )


def test_override_changes_one_thing() -> None:
    changed = base().override({"optim.lr": 0.1})
    assert changed.optim.lr == 0.1
    assert changed.override({"optim.lr": base().optim.lr}) == base()
    assert base().override({}) == base()


def test_override_of_the_method_starts_from_its_defaults() -> None:
    changed = base().override({"method.name": "fixed_interval", "method.memory_epochs": 5})
    assert changed.method.model_dump() == {
        "name": "fixed_interval",
        "warmup_steps": 24,
        "memory_epochs": 5,
        "consolidation_epochs": 1,
        "interval": None,
    }
    # The same method: nothing is lost.
    assert base().override({"method.name": "forever"}).method == base().method


def test_override_of_the_benchmark_forgets_order_and_rows_but_not_the_root() -> None:
    changed = base().override({"data.benchmark": "superni"})
    assert (changed.data.order, changed.data.train_rows, changed.data.root) == ("7", None, "/data")
    assert base().override({"data.benchmark": "long"}).data == base().data


@pytest.mark.parametrize(
    "key", ["optim.lrr", "optimm.lr", "optim.lr.value", "seed.x", "nothing", "method.name.x"]
)
def test_override_of_an_unknown_key(key: str) -> None:
    with pytest.raises(InputError, match="unknown key"):
        base().override({key: 1})


def test_override_is_checked() -> None:
    with pytest.raises(
        InputError, match=r"memory.fraction=2: input should be less than or equal to 1"
    ):
        base().override({"memory.fraction": 2})


def test_assignments() -> None:
    changes = parse_assignments(
        [
            "optim.lr=1e-3",
            "method.days=[1,2,4]",
            "data.order=7",
            "method.name=forever",
            "data.root=/a=b",
            "data.train_rows=null",
        ]
    )
    config = RunConfig.parse({"data": {"benchmark": "superni"}}).override(changes)
    assert config.optim.lr == 1e-3
    assert config.method.model_dump()["days"] == [1.0, 2.0, 4.0]
    assert config.data.order == "7"
    assert config.data.root == "/a=b"
    assert config.data.train_rows is None


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
    assert {
        "seed",
        "optim.lr",
        "data.root",
        "memory.fraction",
        "method.days",
        "method.interval",
        "method.name",
    } <= {*keys}
    assert all(
        RunConfig.parse({}).override({key: _value(key)})
        for key in keys
        if not key.startswith(("method", "data"))
    )


def _value(key: str) -> Any:
    values: Any = RunConfig.parse({}).model_dump()
    for part in key.split("."):
        values = values[part]
    return values


# ---- identity


def test_fingerprint_is_stable() -> None:
    """The same in a fresh process, whose hashes are salted differently."""
    code = "from forever.config.run import RunConfig; print(RunConfig.parse({}).fingerprint())"
    fresh = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert fresh == RunConfig.parse({}).fingerprint()
    assert len(fresh) == 12
    assert int(fresh, 16) >= 0


def test_fingerprint_sees_everything_but_the_place_of_the_data() -> None:
    prints = {base().fingerprint()}
    for change in (
        {"seed": 1},
        {"optim.lr": 1},
        {"data.train_rows": 11},
        {"method.beta": 0},
        {"model.name": "tiny"},
        {"data.order": "6"},
    ):
        prints.add(base().override(change).fingerprint())
    assert len(prints) == 7
    assert base().override({"data.root": "/elsewhere"}).fingerprint() == base().fingerprint()
    assert "root" not in base().identity()["data"]


def test_written_defaults_are_the_same_run() -> None:
    assert (
        RunConfig.parse({"optim": {"lr": 3e-4}, "method": FOREVER}).fingerprint()
        == RunConfig.parse({}).fingerprint()
    )
    assert (
        RunConfig.parse({"data": {"order": "1"}}).fingerprint() == RunConfig.parse({}).fingerprint()
    )


def test_key_names_the_run() -> None:
    config = base()
    assert config.key() == f"long-5-forever-s0-{config.fingerprint()[:8]}"
    custom = config.override({"data.order": ["cb", "copa"], "seed": 3})
    assert custom.key() == f"long-custom-forever-s3-{custom.fingerprint()[:8]}"
    assert "/" not in RunConfig.parse({"data": {"benchmark": "a/b"}}).key()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_round_trip_through_yaml(name: str) -> None:
    config = base().override(
        {"method.name": name, "data.order": ["cb", "copa"], "optim.betas": [0.8, 0.9]}
    )
    again = RunConfig.parse(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config
    assert again.fingerprint() == config.fingerprint()


def test_numbers_written_without_a_point_survive_yaml() -> None:
    """YAML 1.1 reads 1e-3 as text; the configuration must not."""
    assert RunConfig.parse(yaml.safe_load("optim: {lr: 1e-3}")).optim.lr == 1e-3


def test_an_order_may_be_written_as_a_number() -> None:
    assert RunConfig.parse({"data": {"benchmark": "superni", "order": 7}}).data.order == "7"
