"""The parts of a run's configuration that every method shares, each default beside its source."""

from collections import Counter
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    Strict,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from forever.errors import InputError, shown, unknown
from forever.reading import path_of, read_text
from forever.scores import known_metric

PROMPTS = ("alpaca", "chat", "none")
_LARGEST_TEMPLATE = 2**17  # bytes


def is_template(prompt: str) -> bool:
    """Return whether a prompt is the text of a template, not the name of one."""
    return "{{" in prompt or "{%" in prompt


def _no_truth(value: Any) -> Any:
    """Refuse true and false, which pydantic would read as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "input should be a number")
    return value


def at_most(limit: float) -> AfterValidator:
    """A bound above which a number can only be a slip of the pen or an attack.

    It is not `le`, since a search goes over the whole range of a field that has one.
    """

    def check(number: float) -> float:
        if number > limit:
            raise PydanticCustomError(
                "absurd", "input should be at most {limit}", {"limit": f"{limit:g}"}
            )
        return number

    return AfterValidator(check)


# Bounds are next to their type: behind a validator they would be in no JSON schema.
NUMBER = BeforeValidator(_no_truth)
_MOST = at_most(1e9)
Integer = Annotated[int, NUMBER]
Real = Annotated[float, NUMBER]
Natural = Annotated[int, Field(ge=1), NUMBER]
Count = Annotated[Natural, _MOST]
Whole = Annotated[int, Field(ge=0), NUMBER, _MOST]
AboveZero = Annotated[float, Field(gt=0), NUMBER, _MOST]
NotNegative = Annotated[float, Field(ge=0), NUMBER, _MOST]
Share = Annotated[float, Field(ge=0, le=1), NUMBER]
Decay = Annotated[float, Field(ge=0, lt=1), NUMBER]
Seed = Annotated[int, Field(ge=0), NUMBER, at_most(2**32 - 1)]  # NumPy and scikit-learn take these
Flag = Annotated[bool, Strict()]
Tokens = Annotated[Natural, at_most(2**20)]
Name = Annotated[str, Field(max_length=100)]  # part of a folder's name
Scalar = str | int | float | bool


class Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


OF_ADAPTER = {"rank", "alpha", "dropout", "targets", "adapter"}  # what describes an adapter
ALL_LINEAR = "all-linear"  # PEFT's word for every linear layer but the head


def _in_a_list(value: Any) -> Any:
    """Take the one word that stands for a list of layers."""
    return (ALL_LINEAR,) if value == ALL_LINEAR else value


class ModelConfig(Part):
    """The backbone and what of it is trained."""

    name: str = "Qwen/Qwen3-0.6B"
    """"tiny", a folder, a .gguf file, or a Hugging Face name."""
    tuning: Literal["lora", "full"] = "lora"
    """Trains LoRA's matrices, or all weights."""
    init: str | None = None
    """An adapter to begin from, as PEFT and TRL save it: a folder, or a Hugging Face name. Where
    rank, alpha, dropout, targets and adapter are left out, they are its own."""
    rank: Annotated[Natural, at_most(2**14)] = 8
    """LoRA's r."""
    alpha: AboveZero = 32.0
    """LoRA's scale is alpha / rank."""
    dropout: Decay = 0.05
    """Before LoRA's matrices, while training."""
    targets: Annotated[tuple[str, ...], BeforeValidator(_in_a_list)] = ("q_proj", "v_proj")
    """The layers that get LoRA's matrices, by the ends of their names; `all-linear` is every linear
    layer but the head."""
    adapter: dict[str, JsonValue] = {}
    """Fields of a PEFT configuration, such as `peft_type`, for methods that train one adapter.
    What it leaves open follows from the names above: all four for LoRA, `targets` for others."""
    max_length: Annotated[int, Field(ge=16), NUMBER, at_most(2**20)] = 1024
    """Tokens of prompt plus answer: as in the authors' code, whose scripts have 512."""
    packing: Literal["shared", "padded"] = "shared"
    """Whether examples of a batch share what they begin with, or are padded to one length. A shared
    token has one draw of dropout (docs/protocol.md#packing); all else is equal."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen weights: auto is bf16 on a GPU and fp32 on a CPU."""
    gradient_checkpointing: Flag = False
    """Computes a layer again when its gradient is computed, instead of keeping what it computed:
    less memory, about a third more time, and the same bits. No part of the fingerprint."""

    @model_validator(mode="after")
    def _something_is_trained(self) -> "ModelConfig":
        if self.tuning == "full" and self.adapter:
            raise InputError("model.adapter needs model.tuning='lora'; 'full' trains no adapter")
        if self.tuning == "full" and self.init:
            raise InputError(
                "model.init needs model.tuning='lora'; 'full' trains no adapter, so merge it into "
                "the model and give that as model.name"
            )
        if self.tuning == "lora" and not self.targets:
            raise InputError("targets names no layer to train; name some, e.g. [q_proj, v_proj]")
        return self

    @model_serializer(mode="wrap")
    def _leave_to_init(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write no default where the adapter of `init` decides, or a reader would take it for a
        choice."""
        values = write(self)
        if self.init:
            for name in OF_ADAPTER - self.model_fields_set:
                values.pop(name, None)
        return values


class ColumnsConfig(Part):
    """A column's name for each field of an example, or a text of several words with `{column}`s."""

    instruction: str = ""
    """What to do."""
    input: str = ""
    """With what; empty is nothing."""
    output: str = ""
    """The right answer."""
    messages: str = ""
    """Instead of the others: the column with a list of messages, as `role` and `content`."""

    @model_validator(mode="after")
    def _one_way_to_read(self) -> "ColumnsConfig":
        fields = self.instruction or self.input, self.output
        if any(fields) if self.messages else not (self.instruction and self.output):
            raise InputError("name the columns of instruction and output, or that of messages")
        return self


class DatasetConfig(Part):
    """A task from a dataset that `datasets.load_dataset` reads."""

    path: str
    """A hub name, or a file or folder of parquet, Arrow, CSV or JSON, perhaps in `data.root`."""
    name: str | None = None
    """Which of the dataset's configurations, such as a language."""
    columns: ColumnsConfig | None = None
    """The columns of each field; without it they go by their names, as in a file of rows."""
    train: str = "train"
    """The split to learn, also a part of one: train[:90%]."""
    test: str = "test"
    """The split to be scored on, likewise: train[90%:]."""
    filter: dict[str, Scalar | list[Scalar]] = {}
    """Only rows whose column holds this value, or one of these; labels go by their names."""
    train_rows: Count | None = None
    """At most N training examples, the same ones in every run; without it, all."""
    test_rows: Count | None = None
    """Likewise of the test examples."""

    @property
    def is_path(self) -> bool:
        """Whether `path` can be no hub name, which is `name` or `owner/name`."""
        return self.path.startswith((".", "/", "~")) or self.path.count("/") > 1

    def identity(self) -> dict[str, Any]:
        """What decides the result, as JSON values: of a folder's place only its last name."""
        values = self.model_dump(mode="json")
        if self.columns and not self.columns.messages:  # as in earlier versions
            del values["columns"]["messages"]
        return values | {"path": PurePath(self.path).name if self.is_path else self.path}


class DataConfig(Part):
    """The benchmark, its order, and how much of it is used."""

    benchmark: Name = "mini"
    """One of the paper's, or the name of a folder in `root`."""
    order: Annotated[Name, Field(coerce_numbers_to_str=True)] | tuple[str, ...] = ""
    """A numbered order of the paper, or task names; empty is the benchmark's first order."""
    datasets: dict[str, DatasetConfig] = {}
    """Where each task comes from, for a benchmark of your own that is not a folder of tasks."""
    root: str | None = None
    """Folder with the benchmarks' folders: where, not what, so no part of the fingerprint."""
    train_rows: Count | None = None
    """At most N training examples per task, the same ones in every run; without it, all."""
    test_rows: Count | None = None
    """Likewise of the test examples."""
    validation: Annotated[float, Field(gt=0, lt=1), NUMBER] | None = None
    """Share of the training examples that is scored in the place of the test examples, which must
    not choose anything, for example in a search."""
    metrics: dict[str, Annotated[str, AfterValidator(known_metric)]] = {}
    """Metric by task: exact_match, rouge_l, token_f1, edit_similarity, numeric, choice,
    label_likelihood, text_likelihood, or `module:function` of your own. Otherwise it is exact match
    if the answers look like labels, else ROUGE-L."""
    prompt: str = "alpaca"
    """How an example is shown: alpaca; chat, by the template of the model's tokenizer; none, as it
    is; or FILE.jinja, a chat template, whose text stands here from then on."""
    supervise: Literal["last", "all"] = "last"
    """Which of the assistant's turns in a conversation are learned; the last one is scored."""

    @field_validator("benchmark")
    @classmethod
    def _inside_the_root(cls, value: str) -> str:
        path = PurePath(value)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InputError(f"{shown(value)} is not a folder in data.root; give the name of one")
        return value

    @field_validator("prompt")
    @classmethod
    def _template_of_file(cls, value: str) -> str:
        if value in PROMPTS or is_template(value):
            return value
        if not value.endswith(".jinja"):
            raise unknown("prompt", value, [*PROMPTS, "FILE.jinja"])
        text = read_text(path_of(value, "data.prompt"), _LARGEST_TEMPLATE)
        if not is_template(text):
            raise InputError(f"{value} is not a chat template: it has no {{{{ }}}} and no {{% %}}")
        return text

    @model_validator(mode="after")
    def _turns_to_supervise(self) -> "DataConfig":
        if self.supervise == "all" and self.prompt in ("alpaca", "none"):
            raise InputError(
                f"supervise=all needs a conversation, and prompt={self.prompt} shows none; set "
                "prompt=chat or leave supervise out"
            )
        return self

    @field_validator("order")
    @classmethod
    def _each_task_once(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for name, times in Counter(value if isinstance(value, tuple) else ()).items():
            if times > 1:
                raise InputError(f"task {shown(name)} occurs twice; a task is learned once")
        return value


class OptimConfig(Part):
    """AdamW, fresh for each task: every lab script starts a new process per task."""

    lr: Annotated[float, Field(gt=0), NUMBER, at_most(10)] = 3e-4
    """The learning rate."""
    batch_size: Annotated[Natural, at_most(2**20)] = 8
    """Global, not per device: the only reading in which day 7 falls on the published updates."""
    epochs: Annotated[Natural, at_most(100_000)] = 10
    """Passes over the training examples of each task."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """How slowly AdamW's two averages move."""
    eps: AboveZero = 1e-8
    """AdamW's term against a division by zero; PyTorch's default."""
    weight_decay: NotNegative = 0.0
    """AdamW's decay of the weights."""
    clip: Annotated[float, Field(gt=0), NUMBER] = 1.0
    """The largest norm of a gradient; longer ones are cut to it."""
    schedule: Literal["constant", "linear"] = "constant"
    """The paper is silent; named runs of its scale have 50 updates of warm-up and a linear decay:
    so its days come where it has them (docs/protocol.md#replay-times)."""
    warmup_steps: Whole = 0
    """Updates of each task in which the learning rate rises to `lr`."""
    nonfinite_skips: Whole = 0
    """Updates of a task that are left out, and said, if loss or gradient is not finite. One
    more ends the run; with 0, the first does. Ours."""


class MemoryConfig(Part):
    fraction: Share = 0.02
    """Share of each task's training examples that is kept, at least one; 0 keeps none."""


class BudgetConfig(Part):
    """What a method replays in each task that has a memory: its last event is cut short, and what
    is left is spent at the task's end. Without either field it is as much as the method takes. A
    method that cannot keep to a budget is marked in the result."""

    examples: Count | tuple[Count, ...] | None = None
    """Replayed examples, views counted: one number for all tasks, or one for each after the first,
    such as those that another run replayed."""
    seconds: AboveZero | None = None
    """Seconds of updates on replayed examples, as they are measured. So no two runs are equal bit
    for bit (docs/protocol.md#budgets)."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "BudgetConfig":
        if self.examples is not None and self.seconds is not None:
            raise InputError(
                f"examples={self.examples} and seconds={self.seconds:g} are two budgets, and a run "
                "has one; set one of them to null"
            )
        return self

    def of(self, stage: int) -> int | None:
        """Return how many examples the task of a stage, from 0, may replay; None if any number."""
        if isinstance(self.examples, tuple):
            return self.examples[stage - 1] if stage else 0
        return self.examples

    def check(self, tasks: int) -> None:
        """Refuse a list that does not fit the number of tasks."""
        if isinstance(self.examples, tuple) and len(self.examples) != tasks - 1:
            raise InputError(
                f"budget.examples has {len(self.examples)} numbers, and there are {tasks} tasks; "
                f"give {tasks - 1}, one for each task after the first, or a single number",
                key="budget.examples",
            )


class EvaluationConfig(Part):
    max_new_tokens: Tokens = 128
    """The longest answer that is decoded."""
    forward_transfer: Flag = False
    """Also score all tasks before training, and the next task after each stage. FWT needs it."""


class RunParts(Part):
    """Everything of a run but its method; a method's hyper-parameters are checked against it."""

    seed: Seed = 0
    """Of everything random: adapters, order of examples, dropout, choice of memory."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    memory: MemoryConfig = MemoryConfig()
    budget: BudgetConfig = BudgetConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
