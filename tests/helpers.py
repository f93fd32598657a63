"""What tests share: a toy benchmark, a random backbone, runs, methods driven without a model."""

import json
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.prompts import ALPACA
from forever.data.tasks import Benchmark, Example, Task
from forever.launch.local import Placement, run_local
from forever.methods.registry import METHODS, build_method
from forever.models import lora
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.replay.schedules import CONTROLS, SCHEDULES
from forever.runs.tracking import Tracker
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.method import Method
from forever.training.optim import build_optimizer
from forever.training.step import perform
from forever.training.steps import Action, Step, StepRecord, Steps
from forever.training.steps import drive as drive_steps
from forever.world import World

T = TypeVar("T")
U = TypeVar("U")

WORDS = [
    "red", "green", "blue", "round", "square", "flat", "small", "large",
    "heavy", "light", "old", "new", "soft", "hard", "warm", "cold",
]  # fmt: skip


def make_task(
    name: str, question: str, labels: tuple[str, str], rows: int = 24, test: int = 6
) -> Task:
    """A task of rows of different lengths; its labels alternate."""

    def examples(split: str, count: int, offset: int) -> tuple[Example, ...]:
        found = []
        for i in range(count):
            words = [
                WORDS[(i + offset) % 16],
                WORDS[(3 * i + offset) % 16],
                WORDS[(7 * i + len(split)) % 16],
                str(i),
            ]
            words += WORDS[: 3 * i % 5]  # rows of different lengths, so that batches have padding
            found.append(
                Example(
                    f"{name}/{split}/{i}", question, f"{split} " + " ".join(words), labels[i % 2]
                )
            )
        return tuple(found)

    return Task(name, examples("train", rows, 0), examples("test", test, 5), "exact_match", labels)


def make_benchmark() -> Benchmark:
    return Benchmark.sequence(
        "toy",
        "1",
        [
            make_task("colour", "What colour is it? Options: red, blue.", ("red", "blue")),
            make_task(
                "shape", "What shape is it? Options: round, square.", ("round", "square"), rows=30
            ),
            make_task(
                "weight",
                "What weight is it? Options: heavy, not heavy.",
                ("heavy", "not heavy"),
                rows=20,
            ),
        ],
    )


@torch.no_grad()
def draw_weights(model: torch.nn.Module, seed: int, pad_token_id: int) -> None:
    """Draw every matrix of a model from N(0, 0.2), the same numbers on every processor.

    Torch's own `normal_` rounds differently with other vector units. These are drawn in fp64 and
    rounded once.
    """
    stream = np.random.default_rng(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # the scales of the norms stay at one
            # 0.2 is large enough that different prompts get different answers.
            parameter.copy_(torch.from_numpy(stream.normal(0, 0.2, tuple(parameter.shape))))
    model.get_input_embeddings().weight[pad_token_id] = 0


def save_backbone(folder: Path, benchmark: Benchmark, seed: int = 0) -> Path:
    """A random Qwen3 of two layers with a word-level tokenizer, as a Hugging Face folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    texts = [
        f"{ALPACA.text(e)}{e.output} {' '.join(WORDS)}"
        for t in benchmark.tasks
        for e in (*t.train, *t.test)
    ]
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<eos>"])
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    )
    model = Qwen3ForCausalLM(config)
    draw_weights(model, seed, fast.pad_token_id)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def save_kind(folder: Path, kind: str, tokenizer_from: Path, **settings: Any) -> Path:
    """A tiny random model of a kind of transformers', such as GPT2, with a tokenizer's files."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_from)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": len(tokenizer), **dict.fromkeys(names, tokenizer.eos_token_id)}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **settings})
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(path: Path, without: str = "") -> Path:
    """A Llama of one layer with drawn weights as a GGUF file, whose head is its embedding."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", b"a", b"b", b"ab"])
    writer.add_token_types([3, 3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    sizes = {"token_embd": (6, 16), "output_norm": (16,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        sizes[f"blk.0.{name}"] = 16, 16
    sizes |= {"blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,), "blk.0.ffn_down": (16, 24)}
    sizes |= {"blk.0.ffn_gate": (24, 16), "blk.0.ffn_up": (24, 16)}
    stream = np.random.default_rng(0)
    for name, size in sizes.items():
        if name != without:
            writer.add_tensor(f"{name}.weight", stream.normal(0, 0.2, size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def save_encoder(folder: Path, benchmark: Benchmark, pooler: bool = True) -> Path:
    """A tiny random sentence encoder, with the word-level tokenizer of the toy backbone."""
    import transformers

    save_backbone(folder, benchmark)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    (folder / "generation_config.json").unlink()
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    settings = transformers.BertConfig(
        hidden_size=16, max_position_embeddings=24, initializer_range=0.5, **tokens, **layers
    )
    torch.manual_seed(5)
    kind = transformers.BertModel if pooler else transformers.BertForMaskedLM
    kind(settings).save_pretrained(folder)
    return folder


def save_data(root: Path, benchmark: Benchmark) -> Path:
    """Write a benchmark into the folder `root`, in our own layout."""
    for task in benchmark.tasks:
        for split, rows in (("train", task.train), ("test", task.test)):
            path = root / benchmark.name / task.name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = (
                {"instruction": e.instruction, "input": e.input, "output": e.output} for e in rows
            )
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return root


def toy_config(backbone_folder: Path, data_root: Path) -> RunConfig:
    """A run on the toy benchmark that takes about a second."""
    return RunConfig.parse(
        {
            "model": {
                "name": str(backbone_folder),
                "rank": 4,
                "alpha": 8,
                "dropout": 0.0,
                "max_length": 256,
            },
            "data": {
                "benchmark": "toy",
                "order": ["colour", "shape", "weight"],
                "root": str(data_root),
                "metrics": {
                    "colour": "exact_match",
                    "shape": "exact_match",
                    "weight": "exact_match",
                },
            },
            "optim": {"lr": 1e-2, "batch_size": 4, "epochs": 3},
            "memory": {"fraction": 0.2},
            "evaluation": {"max_new_tokens": 3},
            "method": {"name": "forever", "day_steps": 3},
        }
    )


def small_toy_config(base_config: RunConfig) -> RunConfig:
    """Three tasks of four updates each, with one or two replays: a run of a third of a second."""
    return base_config.override(
        {"data.train_rows": 8, "data.test_rows": 2, "optim.epochs": 2, "method.day_steps": 1}
    )


def saved(config: RunConfig, path: Path) -> str:
    """A configuration as a file, for the command line."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    return str(path)


class Then(Tracker):
    """Counts the updates of a life, and does something after one of them, or after a stage."""

    def __init__(
        self, then: Callable[[], Any] = lambda: None, update: int = 0, after_stage: int = -1
    ) -> None:
        self.then, self.update, self.after_stage, self.updates = then, update, after_stage, 0

    def step(self, line: Any) -> None:
        self.updates += 1
        if self.updates == self.update:
            self.then()

    def stage(self, number: int, scores: Any) -> None:
        if number == self.after_stage:
            self.then()


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def execute(config: RunConfig, path: Path, **placement: Any) -> dict[str, Any]:
    """A run from beginning to end on the CPU; `placement` are fields of `Placement`."""
    return run_local(config, path, placement=Placement(device="cpu", **placement))


@dataclass
class Outcome:
    """What a run left behind, without what depends on the machine or the time."""

    adapter: dict[str, Tensor]
    files: dict[str, str]
    result: dict[str, Any]

    def differences(self, other: "Outcome") -> list[str]:
        """Names of all parts that are not equal bit for bit."""
        found = [
            f"file {name}"
            for name in sorted({*self.files, *other.files})
            if self.files.get(name) != other.files.get(name)
        ]
        found += [
            f"result {key}"
            for key in sorted({*self.result, *other.result})
            if self.result.get(key) != other.result.get(key)
        ]
        if self.adapter.keys() != other.adapter.keys():
            return [*found, "adapter names"]
        return found + [
            f"adapter {name}"
            for name, t in self.adapter.items()
            if not torch.equal(t, other.adapter[name])
        ]


# A killed process closes no files. Where a test only plays being killed, the collector finds those
# of the journal.
KILLED_CLOSES_NO_FILES = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
    ),
]


def lora_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The trained A [E, R, D] and B [E, O, R] of every layer, as the parameters' own memory.

    They are those of banks or of PEFT's LoRA, which has E = 1.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        layer, _, side = name.removesuffix(".default.weight").rpartition(".")
        if name.endswith(".default.weight") and side in ("lora_A", "lora_B"):
            tensors[f"{layer}.{side[-1]}"] = parameter.data[None]
    for name, bank in lora.banks(model):
        tensors |= {f"{name}.A": bank.A.data, f"{name}.B": bank.B.data}
    return tensors


def load_adapter(model: torch.nn.Module, folder: Path, adapter: int = 0) -> None:
    """Put a saved LoRA adapter into one adapter of a model that has room for exactly that."""
    saved = load_file(folder / "adapter_model.safetensors")
    own = lora_tensors(model)
    names = {f"base_model.model.{n[:-2]}.lora_{n[-1]}.weight": n for n in own}
    assert names.keys() == saved.keys()
    for name, tensor in saved.items():
        own[names[name]][adapter].copy_(tensor)


# The digests of `weights` are of files with paths and sets; their tensors are compared themselves.
MACHINE = ("seconds", "peak_memory_bytes", "world_size", "at_once", "weights")


def outcome(path: Path) -> Outcome:
    """Read a finished run's folder."""
    weights = {
        f"{file.parent.relative_to(path)} {name}": tensor
        for folder in ("adapter", "model")
        for file in sorted((path / folder).rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    assert weights
    names = [
        path / "steps.jsonl",
        path / "events.jsonl",
        *sorted((path / "predictions").glob("*/*.jsonl")),
    ]
    result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    return Outcome(
        weights,
        {str(name.relative_to(path)): name.read_text(encoding="utf-8") for name in names},
        {key: value for key, value in result.items() if key not in MACHINE},
    )


def canned_sample(
    backbone: Any,
    prompts: Sequence[Any],
    seeds: Sequence[int],
    max_new_tokens: int,
    sampling: Any,
    gate: Any = None,
) -> list[str]:
    """Stands for `decoding.sample`, whose words from a random model nobody could parse.

    The text depends on the seed and on the prompt alone, and SSR reads an example out of it.
    """
    numbers = [seed % 97 for seed in seeds]
    return [
        f"red {n} __inp__ blue {n} old\nOutput: new {len(p.prompt)}"
        for n, p in zip(numbers, prompts, strict=True)
    ]


def wait_until(happened: Callable[[], T], within_s: float = 60) -> T:
    """Ask again and again until the answer is true, which is returned."""
    give_up = time.monotonic() + within_s
    while not (answer := happened()):
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)
    return answer


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def rows_task(name: str, rows: int, labels: Sequence[str] = ("yes", "no")) -> Task:
    """A task of `rows` invented rows, labels in turn; for tests that need sizes and no model."""
    train = tuple(
        Example(f"{name}/train/{i}", "q", f"{name} {i}", labels[i % len(labels)])
        for i in range(rows)
    )
    test = (Example(f"{name}/test/0", "q", f"{name} test", labels[0]),)
    return Task(name, train, test, "exact_match", tuple(sorted(set(labels))))


def stub_learner(finished: Sequence[Task] = (), **changes: Any) -> Learner:
    """A learner without a model whose memory holds rows of `finished`.

    `changes` are dotted keys of its configuration.
    """
    config = RunConfig.parse(
        {"data": {"benchmark": "toy"}, "method": {"name": "finetune"}}
    ).override(changes)
    memory = Memory(config.memory.fraction, config.optim.batch_size, config.seed)
    for task in finished:
        memory.add(task)
    theta = FlatParameters([("theta", torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])))])
    empty = Backbone(torch.nn.Module(), tokenizer=None)
    nothing: Any = None
    return Learner(config, memory, backbone=empty, encoder=nothing, parameters=theta, world=World())


@dataclass
class Driven:
    """What a generator did when it was sent invented records.

    It is its actions, and the gauges after each task update.
    """

    actions: list[Action]
    gauges: list[dict[str, float | None]]
    learner: Learner

    @property
    def steps(self) -> list[Step]:
        return [action for action in self.actions if isinstance(action, Step)]

    def of_kind(self, kind: str) -> list[Step]:
        return [step for step in self.steps if step.kind == kind]

    @property
    def event_steps(self) -> list[int]:
        """After which task updates a replay fired."""
        return [event.step for event in self.learner.events if event.kind == "replay"]

    def ids(self, *kinds: str) -> list[tuple[str, ...]]:
        """Row ids of each batch of these kinds."""
        return [
            tuple(e.id for e in step.batch.examples) for step in self.steps if step.kind in kinds
        ]


def drive(
    method: Method,
    learner: Learner,
    task: Task,
    norm: Callable[[int], float] = lambda t: 1.0,
    replay_norm: float = 1e6,
    seconds: Callable[[Step], float] = lambda step: 0.0,
) -> Driven:
    """Run a method's generator on a task without a model.

    Task update t moves by norm(t), replays move by `replay_norm`; an update takes `seconds`.
    """
    learner.begin(len(learner.memory.kept), task)
    method.begin_task(learner, task)
    driven = Driven([], [], learner)

    def perform(action: Action) -> StepRecord:
        driven.actions.append(action)
        record = StepRecord(loss=1.0)
        if isinstance(action, Step):
            is_task = action.kind == "task"
            moved = norm(learner.step + 1) if is_task else replay_norm
            record = replace(record, update_norm=moved, seconds=seconds(action))
        learner.count(action, record)
        return record

    for action, _ in drive_steps(method.steps(learner, task), perform):
        if isinstance(action, Step) and action.kind == "task":
            driven.gauges.append(dict(learner.gauges))
    return driven


# ---- a method and its learner, trained without files


def toy(config: RunConfig) -> tuple[Task, ...]:
    """The tasks of a configuration on the toy benchmark."""
    return load_benchmark(config.data).tasks


def begin(
    config: RunConfig,
    fields: dict[str, Any],
    world: World = World(),
    micro: int | None = None,
    **changes: Any,
) -> tuple[Learner, Any]:
    """A learner and its method, before the first of three tasks.

    `changes` are dotted keys, "__" for a dot.
    """
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    parsed = RunConfig.parse(config.override(dotted).model_dump(mode="json") | {"method": fields})
    method = build_method(parsed.method)
    return build_learner(parsed, method, world, micro, 3), method


def react(learner: Learner, steps: Steps, action: Action, record: StepRecord) -> Action | None:
    """Tell a generator what its action did; what it does next, or None when its task is over."""
    learner.count(action, record)
    try:
        return steps.send(record)
    except StopIteration:
        return None


def learn(learner: Learner, method: Any, *tasks: Task) -> list[StepRecord]:
    """Train the next tasks as a run does, without its files."""
    records = []
    for task in tasks:
        steps = start(learner, method, task)
        action = next(steps, None)
        while action is not None:
            records.append(perform(learner, method, action))
            action = react(learner, steps, action, records[-1])
        method.end_task(learner, task)
        learner.memory.add(task, method.remember(learner, task))
    return records


def start(learner: Learner, method: Any, task: Task) -> Steps:
    """Begin the next task as a run does; what it would do."""
    learner.begin(len(learner.memory.kept), task)
    method.begin_task(learner, task)
    learner.optimizer = build_optimizer(learner.parameters, learner.config.optim)
    return method.steps(learner, task)


def update(learner: Learner, method: Any, steps: Steps) -> StepRecord:
    """The next update of a task that was started."""
    return perform(learner, method, next(steps))


def theta(learner: Learner) -> Tensor:
    return learner.parameters.snapshot()


def together(size: int, build: Callable[[World], T], work: Callable[[T], U]) -> list[U]:
    """What `work` returns on each of `size` ranks. They are threads that meet at every exchange."""
    meeting = threading.Barrier(size, timeout=30)
    brought: list[Any] = [None] * size

    class Rank(World):
        def exchange(self, value: Any) -> list[Any]:
            meeting.wait()
            brought[self.rank] = value
            meeting.wait()
            return list(brought)

        def sum_(self, tensor: Tensor) -> Tensor:
            return tensor.copy_(torch.stack(self.exchange(tensor.clone())).sum(0))

        def from_leader(self, tensor: Tensor) -> Tensor:
            return tensor.copy_(self.exchange(tensor.clone())[0])

        def gather(self, values: list[Any]) -> list[list[Any]]:
            return self.exchange(json.loads(json.dumps(values)))

    built = [build(Rank(rank, size)) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, built))


def run_of(config: RunConfig, method: dict[str, Any], path: Path, **changes: Any) -> Outcome:
    """The outcome of a method under a configuration."""
    execute(
        RunConfig.parse(config.override(changes).model_dump(mode="json") | {"method": method}), path
    )
    return outcome(path)


def trained_alike(a: Outcome, b: Outcome) -> bool:
    """Whether two runs have the same updates and weights, bit for bit."""
    same = all(torch.equal(t, b.adapter[n]) for n, t in a.adapter.items())
    return (
        same
        and a.adapter.keys() == b.adapter.keys()
        and a.files["steps.jsonl"] == b.files["steps.jsonl"]
    )


FOREVER: dict[str, Any] = {"name": "forever", "day_steps": 1}
# Tasks take 4 updates, so with one update a day the named schedules fire at most at days 1, 2 and
# 4.
CONFIGS: dict[str, dict[str, Any]] = {
    "finetune": {"name": "finetune"},
    "mtl": {"name": "mtl"},
    "mix_replay": {"name": "mix_replay"},
    "mix_replay kl": {"name": "mix_replay", "regularizer": "kl", "beta": 1.0},
    "mix_replay intensity": {"name": "mix_replay", "regularizer": "intensity", "day_steps": 1},
    "der": {"name": "der"},
    "der largest": {"name": "der", "logits": 3},
    "fixed_interval": {"name": "fixed_interval", "day_steps": 1},
    "forever": FOREVER,
    "forever steps": {**FOREVER, "clock": "steps"},
    **{f"forever {name}": {**FOREVER, "days": name} for name in SCHEDULES if name != "ebbinghaus"},
    **{f"forever {name}": {**FOREVER, "days": name, "clock": "steps"} for name in CONTROLS},
    "forever pad": {**FOREVER, "source": "task"},
    "forever explicit": {**FOREVER, "days": [2, 1.5, 0.5]},
    "forever none": {**FOREVER, "regularizer": "none"},
    "forever importance": {**FOREVER, "regularizer": "importance"},
    "forever kl": {**FOREVER, "regularizer": "kl", "beta": 1.0, "logits": 3},
    "forever logits": {**FOREVER, "regularizer": "logits", "beta": 1.0, "penalty_scale": "batch"},
    "forever both": {**FOREVER, "regularizer": "intensity_importance"},
    "forever matched": {**FOREVER, "days": "end_only", "consolidation_epochs": "matched"},
    "ewc": {"name": "ewc", "strength": 1e6},
    "ewc separate": {"name": "ewc", "strength": 1e6, "mode": "separate"},
    "olora": {"name": "olora"},
    "olora squares": {"name": "olora", "orth_norm": "sq", "norm": 0.1},
    "moelora": {"name": "moelora"},
    "moelora one expert a token": {
        "name": "moelora",
        "top_k": 1,
        "renormalise": False,
        "contrast": 0,
    },
    "sapt": {"name": "sapt"},
    "sapt detached": {"name": "sapt", "detach_frozen": True},
    "migu": {"name": "migu"},
    "migu alone": {"name": "migu", "replay": False},
    "ssr": {"name": "ssr", "max_tokens": 100},
    "recurrent_kif": {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 1},
    "recurrent_kif paper": {
        "name": "recurrent_kif",
        "inner_steps": 2,
        "both": [1, 1],
        "neither": [0, 0],
    },
    "aimmerging": {
        "name": "aimmerging",
        "interval": 1,
        "outer_steps": 1,
        "min_interval": 1,
        "cold_merges": 0,
    },
    "vbm": {"name": "vbm", "day_steps": 1},
}
# One row for each method, for tests that take longer than conformance.
ONE_EACH = {
    name: fields for name, fields in CONFIGS.items() if name in {*METHODS, "ewc separate"} - {"ewc"}
}


# Of two finished tasks memory keeps 10 + 7 examples, which are five batches of four.
OLD = (rows_task("old", 40), rows_task("older", 30))
SMALL: dict[str, Any] = {"memory.fraction": 0.25, "optim.batch_size": 4, "optim.epochs": 2}


def method_of(name: str, **fields: Any) -> Any:
    """A method with these hyper-parameters."""
    return build_method(METHOD_CONFIGS[name](**fields))


def driven(
    method: Method,
    rows: int = 16,
    old: Sequence[Task] = OLD,
    norm: Callable[[int], float] = lambda t: 1.0,
    seconds: Callable[[Step], float] = lambda step: 0.0,
    **changes: Any,
) -> Driven:
    """A method on a task of `rows` rows with the memory above; T is 8 by default."""
    learner = stub_learner(old, **SMALL | changes)
    return drive(method, learner, rows_task("new", rows), norm, seconds=seconds)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond a size: the kernel cuts the write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
