"""The parts of a run's configuration that every method shares, each default beside its source."""

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from forever.errors import InputError

Positive = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Scalar = str | int | float | bool


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
    adapter: dict[str, JsonValue] = {}
    """Any fields of a PEFT configuration, such as `peft_type`, `use_dora` or `modules_to_save`.

    It is for methods that train one adapter. What it leaves open follows from the four short names
    above: all of them for LoRA, `targets` for other kinds.
    """
    max_length: Annotated[int, Field(ge=16)] = 1024
    """Tokens of prompt plus answer.

    1024 is the default of the authors' code; its scripts use 512, which cuts two thirds of the
    prompts of task002 (docs/protocol.md#data).
    """
    packing: Literal["shared", "padded"] = "shared"
    """Whether the examples of a batch share what they begin with, or are padded to one length.

    Loss and gradient are the same, but for dropout: a shared token has one draw for all examples
    that share it (docs/protocol.md#packing).
    """
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen weights: auto is bf16 on a GPU and fp32 on a CPU."""

    @model_validator(mode="after")
    def _adapters_only_with_adapters(self) -> "ModelConfig":
        if self.adapter and self.tuning == "full":
            raise InputError("model.adapter needs model.tuning='lora'; 'full' trains no adapter")
        return self


class ColumnsConfig(_Part):
    """Where a dataset's instruction, input and output come from.

    A single word is a column's name. In a text of several words, `{column}` stands for what the
    column holds, and there need be none.
    """

    instruction: str
    input: str = ""
    output: str


class DatasetConfig(_Part):
    """A task from a dataset that `datasets.load_dataset` reads."""

    path: str
    """A hub name, or a folder of parquet, Arrow, CSV or JSON files.

    A folder is relative to `data.root` if it is there. Its place is no part of a run's fingerprint,
    only its last name is.
    """
    name: str | None = None
    """Which of the dataset's configurations, such as a language."""
    columns: ColumnsConfig
    train: str = "train"
    test: str = "test"
    """Splits, also parts of one: train[:90%] and train[90%:]."""
    filter: dict[str, Scalar | list[Scalar]] = {}
    """Only rows whose column holds this value, or one of these; labels go by their names."""
    train_rows: Positive | None = None
    test_rows: Positive | None = None
    """At most so many examples, the same ones in every run; None is all."""

    @property
    def is_path(self) -> bool:
        """Whether `path` can be no hub name, which is `name` or `owner/name`."""
        return self.path.startswith((".", "/", "~")) or self.path.count("/") > 1

    def identity(self) -> dict[str, Any]:
        """What decides the result, as JSON values."""
        values = self.model_dump(mode="json")
        return values | {"path": PurePath(self.path).name if self.is_path else self.path}


class DataConfig(_Part):
    """The benchmark, its order, and how much of it is used."""

    benchmark: str = "mini"
    order: str | tuple[str, ...] = ""
    """A numbered order of the paper, or task names; empty is the benchmark's first order."""
    datasets: dict[str, DatasetConfig] = {}
    """Where each task comes from, for a benchmark of your own that is no folder of tasks."""
    root: str | None = None
    """Folder with the benchmarks' folders.

    It says where, not what, so it is no part of a run's fingerprint.
    """
    train_rows: Positive | None = None
    test_rows: Positive | None = None
    """At most so many examples a task, the same ones in every run; None is all."""
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each task's training examples that is scored in the place of the test examples.

    The test examples are then not used at all. It is for choices such as a search, since test
    examples must not choose anything.
    """
    metrics: dict[str, Literal["exact_match", "rouge_l"]] = {}
    """Metric by task, for benchmarks of your own.

    Otherwise it is exact match if the answers look like labels.
    """

    @field_validator("order", mode="before")
    @classmethod
    def _number_is_a_name(cls, value: Any) -> Any:
        # Order 7, as YAML reads it, is the order called "7".
        return str(value) if isinstance(value, int) else value

    @field_validator("order")
    @classmethod
    def _each_task_once(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(value, str):
            return value
        for name in value:
            if value.count(name) > 1:
                raise InputError(f"task {name!r} occurs twice; a task is learned once")
        return value


class OptimConfig(_Part):
    """AdamW, fresh for each task: every lab script starts a new process per task."""

    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3e-4
    batch_size: Positive = 8
    """Global, not per device: the only reading in which day 7 falls on the published updates."""
    epochs: Positive = 10
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["constant", "linear"] = "constant"
    """The paper is silent.

    Linear decay contradicts its trigger steps and would void late replays
    (docs/protocol.md#optimiser).
    """
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class MemoryConfig(_Part):
    """Episodic memory."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of each task's training examples that is kept, at least one; 0 keeps none."""


class EvaluationConfig(_Part):
    """Greedy decoding of the test examples."""

    max_new_tokens: Positive = 128
    forward_transfer: bool = False
    """Also score all tasks before training, and the next task after each stage. FWT needs it."""


class RunParts(_Part):
    """Everything of a run but its method; a method's hyper-parameters are checked against it."""

    seed: Annotated[int, Field(ge=0)] = 0
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    memory: MemoryConfig = MemoryConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
