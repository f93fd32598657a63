"""What to run, as a frozen value. Nothing here says where: output folder, device and workers are launch options.

Keys are written with dots everywhere (files, command line, sweeps): `optim.lr`, `method.days`. Defaults are the
paper's implementation details unless the line says otherwise.
"""

import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from forever.data.benchmarks import default_order
from forever.errors import InputError, unknown
from forever.methods.forever import ForeverConfig
from forever.methods.registry import METHODS, AnyMethodConfig

Positive = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(_Part):
    """The backbone and what of it is trained."""

    name: str = "Qwen/Qwen3-0.6B"
    """"tiny", a folder, a .gguf file, or a Hugging Face name."""
    tuning: Literal["lora", "full"] = "lora"
    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    max_length: Annotated[int, Field(ge=16)] = 1024
    """Tokens of prompt plus answer. 1024 is the lab code's default, its scripts use 512, which cuts two thirds of
    the prompts of task002 (docs/protocol.md)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen weights: auto is bf16 on a GPU and fp32 on a CPU."""


class DataConfig(_Part):
    """The benchmark, its order, and how much of it is used."""

    benchmark: str = "mini"
    order: str | tuple[str, ...] = ""
    """A numbered order of the paper, or task names; empty is the benchmark's first order."""
    root: str | None = None
    """Folder with the benchmarks' folders. It says where, not what, so it is no part of a run's fingerprint."""
    train_rows: Positive | None = None
    test_rows: Positive | None = None
    """At most so many rows a task, the same ones in every run; None is all."""
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each task's training rows that is held out and scored in the place of the test rows, which are then not
    used at all: for choices such as a search, since the test rows must not choose anything."""
    metrics: dict[str, Literal["exact_match", "rouge_l"]] = {}
    """Metric by task, for benchmarks of your own; otherwise exact match if the answers look like labels."""

    @field_validator("order", mode="before")
    @classmethod
    def _number_is_a_name(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) else value  # order 7, as YAML reads it, is the order called "7"

    @field_validator("order")
    @classmethod
    def _each_task_once(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        twice = [] if isinstance(value, str) else [name for name in value if value.count(name) > 1]
        if twice:
            raise InputError(f"task {twice[0]!r} occurs twice; a task is learned once")
        return value


class OptimConfig(_Part):
    """AdamW, fresh for each task: every lab script starts a new process per task (docs/protocol.md)."""

    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3e-4
    batch_size: Positive = 8
    """Global, not per device: the only reading in which day 7 falls on the published updates (A27)."""
    epochs: Positive = 10
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["constant", "linear"] = "constant"
    """The paper is silent; linear decay contradicts its trigger steps and would void late replays (A11, A12)."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class MemoryConfig(_Part):
    """Episodic memory."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Of each task's training rows, at least one row; 0 keeps none."""


class EvaluationConfig(_Part):
    """Greedy decoding of the test rows."""

    max_new_tokens: Positive = 128
    forward_transfer: bool = False
    """Also score all tasks before training, and the next task after each stage: needed for FWT, costs decoding."""


class RunConfig(_Part):
    """One run."""

    seed: Annotated[int, Field(ge=0)] = 0
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    memory: MemoryConfig = MemoryConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    method: AnyMethodConfig = ForeverConfig()

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "RunConfig":
        """A configuration from nested values.

        Raises:
            InputError: unknown key, method or schedule, a value of the wrong type or out of range, or a method that
                cannot run like that; one line.
        """
        if not isinstance(values, Mapping):  # a YAML file may hold anything
            raise InputError(f"a configuration is a mapping of keys to values, not {values!r}")
        try:
            config = cls.model_validate(values)
        except ValidationError as error:
            raise _explain(error, values) from None
        if not config.data.order:
            order = default_order(config.data.benchmark)
            config = config.model_copy(update={"data": config.data.model_copy(update={"order": order})})
        config.method.check(config)
        return config

    def override(self, changes: Mapping[str, Any]) -> "RunConfig":
        """This configuration with dotted keys changed. A new `method.name` starts from that method's defaults."""
        values = self.model_dump(mode="json")
        if changes.get("method.name", self.method.name) != self.method.name:
            values["method"] = {}
        if changes.get("data.benchmark", self.data.benchmark) != self.data.benchmark:
            values["data"] = {"root": self.data.root}  # order, rows and metrics belonged to the other benchmark
        for key, value in changes.items():
            *parents, last = key.split(".")
            place: Any = values
            for parent in parents:
                place = place.setdefault(parent, {}) if isinstance(place, dict) else None
            if not isinstance(place, dict):
                raise unknown("key", key, dotted_keys())
            place[last] = value
        return RunConfig.parse(values)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON values."""
        values = self.model_dump(mode="json")
        del values["data"]["root"]
        return values

    def fingerprint(self) -> str:
        """Twelve hex digits of the SHA-256 of `identity`."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def key(self) -> str:
        """A name for the run directory, unique and stable: benchmark, order, method, seed, fingerprint."""
        order = self.data.order if isinstance(self.data.order, str) else "custom"
        parts = (self.data.benchmark, order, self.method.name, f"s{self.seed}", self.fingerprint()[:8])
        return "-".join(part.replace("/", "_") for part in parts)


def parse_assignments(arguments: Iterable[str]) -> dict[str, Any]:
    """`key=value` arguments as dotted changes; values are YAML, so `method.days=[1,2,4]` is a list.

    Raises:
        InputError: an argument without "=", or a value that is not YAML.
    """
    changes: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise InputError(f"{argument!r} is not of the form key=value, e.g. optim.lr=1e-3")
        try:
            changes[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"{argument!r}: the value is not valid YAML; quote it if it is text") from None
    return changes


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def dotted_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """All keys of a configuration; those of every method, since any may be chosen."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        parts = [t for t in _classes(field.annotation) if issubclass(t, BaseModel)]
        keys += [k for part in parts for k in dotted_keys(part, f"{prefix}{name}.")] or [prefix + name]
    return list(dict.fromkeys(keys))


def _classes(annotation: Any) -> list[type]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        return [t for part in typing.get_args(annotation) for t in _classes(part)]
    return [annotation] if isinstance(annotation, type) else []


def _explain(error: ValidationError, values: Mapping[str, Any]) -> InputError:
    """The first problem as one line: the key, the value and the rule."""
    problems = error.errors()
    first = problems[0]
    path = _path(first["loc"])
    if first["type"] == "union_tag_invalid":
        return unknown("method", str(first.get("ctx", {}).get("tag")), METHODS)
    if first["type"] == "union_tag_not_found":
        return InputError(f"method: field 'name' is missing; valid: {', '.join(sorted(METHODS))}")
    if first["type"] == "extra_forbidden":
        own = _method_keys(values) if path[0] == "method" else None
        return unknown("key", ".".join(path), own or dotted_keys())
    # A field that may be of several types has one error a type: say what got furthest into the value, or all rules.
    alike = [p for p in problems if _path(p["loc"])[: len(path)] == path]
    depth = max(len(_path(p["loc"])) for p in alike)
    alike = [p for p in alike if len(_path(p["loc"])) == depth]
    key = ".".join(_path(alike[0]["loc"]))
    cause = alike[0].get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return InputError(f"{key}: {cause}")
    rules = dict.fromkeys(p["msg"][0].lower() + p["msg"][1:] for p in alike)
    return InputError(f"{key}={alike[0]['input']!r}: {'; or '.join(rules)}")


def _path(location: tuple[int | str, ...]) -> list[str]:
    """The key of a problem, without what pydantic adds: the tag of the method's union, and names of types."""
    path = [str(part) for part in location]
    if path[0] == "method" and len(path) > 1 and path[1] in METHODS:
        del path[1]
    return [part for part in path if not part[:1].isupper() and "[" not in part and part not in _TYPE_NAMES]


_TYPE_NAMES = {"str", "int", "float", "list", "tuple", "bool", "constrained-int", "constrained-str", "none"}


def _method_keys(values: Mapping[str, Any]) -> list[str]:
    name = values["method"].get("name") if isinstance(values.get("method"), Mapping) else None
    for part in _classes(RunConfig.model_fields["method"].annotation):
        if issubclass(part, BaseModel) and part.model_fields["name"].default == name:
            return dotted_keys(part, "method.")
    return []
