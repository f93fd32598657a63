"""SSR: what is written, what of it is chosen, who answers it, and where training must equal
MixReplay's.

A random model writes nonsense, so most tests put a writer in its place whose text depends on the
seed alone. m rows kept of a task, C clusters, n candidates, D width of a vector.
"""

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import (
    KILLED_CLOSES_NO_FILES,
    WORDS,
    execute,
    lines,
    run_of,
    save_backbone,
    together,
    trained_alike,
)
from safetensors.torch import load_file, save_file

from forever.config.methods.replay import SsrConfig
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark, Example, Task
from forever.errors import InputError
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling
from forever.methods.base import Method
from forever.methods.ssr import method as ssr_module
from forever.methods.ssr import synthesis
from forever.methods.ssr.encoders import embed
from forever.methods.ssr.method import Ssr
from forever.methods.ssr.synthesis import (
    Cluster,
    cluster_quotas,
    diverse,
    icl_prompts,
    parse_icl,
    take,
)
from forever.models import lora
from forever.training.build import build_learner
from forever.training.learner import Learner
from forever.training.step import optimizer_step
from forever.training.steps import Step
from forever.training.world import World

pytestmark = KILLED_CLOSES_NO_FILES

SSR: dict[str, Any] = {"name": "ssr", "max_tokens": 150}


def writer(*arguments: Any, **options: Any) -> list[str]:
    """Stands for `decoding.sample`: two rows a seed, the second unfinished."""
    seeds: Sequence[int] = arguments[2]
    texts = []
    for stream in map(random.Random, seeds):
        first, second = (" ".join(stream.choices(WORDS, k=4)) for _ in range(2))
        texts.append(f"{first}\nOutput: red\n\nInput: {second}\nOutput: blue\n\nInput: red green")
    return texts


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "sample", writer)


def method_of(**fields: Any) -> Ssr:
    return Ssr(SsrConfig(**{**SSR, **fields}))


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    """m = 4 of 8 rows: 12 ordered pairs."""
    return small_config.override(
        {"memory.fraction": 0.5, "method.name": "ssr", "method.max_tokens": 150}
    )


@pytest.fixture(scope="module")
def trained(config: RunConfig, benchmark_of_three: Benchmark) -> Learner:
    """A learner whose adapter has learned a little of the first task."""
    method = Ssr(SsrConfig(**SSR))
    learner = build_learner(config, World(), method=method, tasks=3)
    learner.begin(
        0, replace(benchmark_of_three.tasks[0], train=benchmark_of_three.tasks[0].train[:8])
    )
    assert learner.task is not None
    learner.optimizer = torch.optim.SGD([learner.parameters.flat], lr=0.5)
    for batch in list(learner.batches(learner.task.train)) * 3:
        optimizer_step(learner, method, Step(batch))
    return learner


@pytest.fixture
def learner(trained: Learner) -> Iterator[Learner]:
    """The same for every test."""
    task, weights = trained.task, trained.parameters.snapshot()
    yield trained
    assert task is not None
    trained.begin(0, task)
    trained.parameters.load(weights)


def task_of(learner: Learner) -> Task:
    assert learner.task is not None
    return learner.task


# ---- prompts and what comes out of them


def test_a_prompt_for_every_ordered_pair() -> None:
    demos = [Example(str(i), " Say it. ", f" in {i}\n", f" out {i}") for i in range(4)]
    prompts = icl_prompts(demos)
    assert len(prompts) == len(set(prompts)) == 4 * 3
    text = "Say it.\n\nInput: in 0\nOutput: out 0\n\nInput: in 1\nOutput: out 1\n\nInput:"
    assert prompts[0] == (" Say it. ", text)
    assert icl_prompts(demos[:2]) == [prompts[0], icl_prompts([demos[1], demos[0]])[0]]
    assert icl_prompts(demos[:1]) == [
        (" Say it. ", "Say it.\n\nInput: in 0\nOutput: out 0\n\nInput:")
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a b\nOutput: c", [("a b", "c")]),
        (" a b \n Output:  c d \n\nInput: e\nOutput: f\n", [("a b", "c d"), ("e", "f")]),
        ("a\nOutput: b\nInput: c", [("a", "b")]),  # the last piece was cut off before its output
        ("a\nOutput: b\nOutput: c", []),  # which one?
        ("a\nOutput:", []),
        ("Output: b", []),
        ("a", []),
        ("", []),
        (
            "a\nOutput: b\nInput: c\nOutput: d\nOutput: e\nInput: f\nOutput: g",
            [("a", "b"), ("f", "g")],
        ),
        ("a\nb\nOutput: c\nd", [("a\nb", "c\nd")]),
    ],
)
def test_pieces_with_exactly_one_output_are_rows(text: str, rows: list[tuple[str, str]]) -> None:
    assert parse_icl(text) == rows


# ---- selection


@pytest.mark.parametrize(
    ("sizes", "total", "quotas"),
    [
        ([5, 3, 2], 4, [2, 1, 1]),  # shares 2, 1.2, 0.8
        ([1, 1, 1], 2, [1, 1, 0]),  # equal remainders: the first
        ([10, 10], 7, [4, 3]),
        ([3, 2], 9, [3, 2]),  # no more than there are
        ([0, 4], 2, [0, 2]),
        ([7], 3, [3]),
        ([], 3, []),
        ([0, 0], 3, [0, 0]),
        ([97, 1, 1, 1], 20, [20, 0, 0, 0]),  # rounding each share up would give 23
    ],
)
def test_quotas_by_largest_remainder(sizes: list[int], total: int, quotas: list[int]) -> None:
    assert cluster_quotas(sizes, total) == quotas


def blobs(seed: int = 0) -> torch.Tensor:
    """Three clusters of 10, 6 and 4 directions in a plane, of very different lengths: [20, 2]."""
    stream = torch.Generator().manual_seed(seed)
    angles = torch.cat(
        [c + 0.2 * torch.randn(n, generator=stream) for c, n in ((0.0, 10), (2.0, 6), (4.0, 4))]
    )
    lengths = torch.rand(20, generator=stream) * 100 + 0.01
    return torch.stack([angles.cos(), angles.sin()], dim=1) * lengths[:, None]


@pytest.mark.parametrize("seed", range(2))
def test_the_nearest_to_each_centroid_come_first(seed: int) -> None:
    vectors = blobs(seed)
    before = vectors.clone()
    found = diverse(vectors, 5, 3)
    assert torch.equal(vectors, before)
    assert sorted(i for cluster in found for i in cluster.members) == list(range(20))
    # 1, 1.5, 2.5.
    assert sorted((len(members), quota) for quota, members in found) == [(4, 1), (6, 2), (10, 2)]
    points = vectors.double() / vectors.double().norm(dim=1, keepdim=True)
    for _, members in found:
        assert {*members} in ({*range(10)}, {*range(10, 16)}, {*range(16, 20)})
        centre = points[members].mean(0)
        distances = [(points[i] - centre).norm().item() for i in members]
        assert distances == sorted(distances)
    assert diverse(vectors, 5, 3) == found


def test_two_points_are_equally_near_to_their_middle() -> None:
    """Rounding does not decide between them: the first is taken, however the plane is turned."""
    for angle in torch.linspace(0, 6, 25).tolist():
        angles = torch.tensor([angle, angle + 0.4])
        assert diverse(torch.stack([angles.cos(), angles.sin()], dim=1), 1, 1) == [(1, [0, 1])]


def test_an_empty_answer_gives_way_to_the_next_nearest() -> None:
    asked: list[list[int]] = []

    def answers(silent: set[int]) -> Callable[[Sequence[int]], list[str]]:
        def answer(indices: Sequence[int]) -> list[str]:
            asked.append(list(indices))
            return ["" if i in silent else f"a{i}" for i in indices]

        return answer

    ranked = [Cluster(2, [5, 3, 8, 1]), Cluster(1, [7, 6]), Cluster(0, [4]), Cluster(3, [9, 2])]
    assert take(ranked, answers(set())) == {5: "a5", 3: "a3", 7: "a7", 9: "a9", 2: "a2"}
    assert asked == [[5, 3, 7, 9, 2]]
    assert take(ranked, answers({5, 8, 7})).keys() == {3, 1, 6, 9, 2}
    assert asked[1:] == [[5, 3, 7, 9, 2], [8, 6], [1]]  # each row is asked once
    # A cluster may run out: fewer than the quota.
    assert take(ranked, answers({5, 3, 8, 1, 9})).keys() == {7, 2}
    assert take(ranked, answers(set(range(10)))) == {}
    assert take([], answers(set())) == {}


# ---- synthesis


class Spy:
    """Stands for `decoding.sample` and keeps what it was asked."""

    def __init__(self, write: Callable[..., list[str]] = writer) -> None:
        self.write = write
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> list[str]:
        self.calls.append(arguments)
        return self.write(*arguments)


def candidates(learner: Learner, spy: Callable[..., list[str]], **fields: Any) -> list[Example]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "sample", spy)
        return method_of(**fields).candidates(learner, task_of(learner))


def saying(*texts: str) -> Callable[..., list[str]]:
    """A writer that says the same to every prompt."""
    return lambda *arguments: (
        ["\n\nInput: ".join(f"{text}\nOutput: red" for text in texts)] * len(arguments[1])
    )


def test_every_prompt_is_continued_three_times_with_streams_of_its_own(learner: Learner) -> None:
    spy = Spy()
    found = candidates(learner, spy)
    assert len(found) >= 5 * 4
    assert len(spy.calls) == 3
    prompts = icl_prompts(learner.memory.choose(task_of(learner)))
    for _, rows, seeds, limits, how in spy.calls:
        assert [row.prompt for row in rows] == [
            learner.encoder.encode_text(text, 150).prompt for _, text in prompts
        ]
        assert [len(row.prompt) + limit for row, limit in zip(rows, limits, strict=True)] == [
            150
        ] * 12
        assert how == Sampling(temperature=0.9, top_p=0.6, top_k=0, repetition_penalty=1.2)
        assert len(set(seeds)) == 12
    assert len({seed for call in spy.calls for seed in call[2]}) == 36
    again = Spy()
    assert candidates(learner, again) == found
    assert [call[2] for call in again.calls] == [call[2] for call in spy.calls]
    assert [e.id for e in found] == [f"colour/written/{i}" for i in range(len(found))]
    assert {e.instruction for e in found} == {task_of(learner).train[0].instruction}
    # What the base model takes for the answer is thrown away.
    assert {e.output for e in found} == {""}


def test_a_written_row_has_the_instruction_of_its_prompt(learner: Learner) -> None:
    """Where a task's rows have several instructions, a row is filtered, kept and answered under the
    one it followed."""
    task = task_of(learner)
    demos = learner.memory.choose(task)
    several = {demo.id: f"Options: {word}." for demo, word in zip(demos, WORDS, strict=False)}
    own = replace(
        task,
        train=tuple(replace(e, instruction=several.get(e.id, e.instruction)) for e in task.train),
    )
    learner.task = own
    stated: dict[str, str] = {}  # what was written by the instruction that it was written under

    def write(*arguments: Any) -> list[str]:
        texts = writer(*arguments)
        for row, text in zip(arguments[1], texts, strict=True):
            start = next(
                i
                for i in several.values()
                if learner.encoder.encode_text(i, 9).prompt == row.prompt[:4]
            )
            stated.update({body: start for body, _ in parse_icl(text)})
        return texts

    assert {len(learner.encoder.encode_text(i, 9).prompt) for i in several.values()} == {4}
    found = candidates(learner, write)
    assert {e.instruction for e in found} == {*several.values()}
    assert {e.input: e.instruction for e in found} == {e.input: stated[e.input] for e in found}


@pytest.mark.parametrize(
    ("demos", "prompts", "turns"), [(1, 1, 60), (2, 2, 30), (3, 6, 10), (5, 20, 3)]
)
def test_demonstrations_are_no_more_tied_to_what_memory_keeps(
    learner: Learner, demos: int, prompts: int, turns: int
) -> None:
    """The paper shows 1 % and keeps 10 %: so many prompts, and still five candidates for each of
    the four rows kept."""
    spy = Spy(lambda *arguments: ["nonsense"] * len(arguments[1]))
    assert candidates(learner, spy, demos=demos) == []
    assert [len(call[1]) for call in spy.calls] == [prompts] * turns
    spy = Spy()
    assert len(candidates(learner, spy, demos=demos)) >= 5 * 4
    assert learner.memory.choose(task_of(learner), 4) == learner.memory.choose(task_of(learner))
    same, other = Spy(), Spy()
    assert candidates(learner, same, demos=4) == candidates(learner, other)
    assert [call[2] for call in same.calls] == [call[2] for call in other.calls]


def test_inputs_of_the_task_and_repetitions_are_dropped(learner: Learner) -> None:
    demos = {demo.id for demo in learner.memory.choose(task_of(learner))}
    known = next(example.input for example in task_of(learner).train if example.id not in demos)
    found = candidates(
        learner, saying("red old blue", known, f"  {known}\n", "red old blue", "cold old blue")
    )
    assert [e.input for e in found] == ["red old blue", "cold old blue"]
    assert not {e.input for e in candidates(learner, writer)} & {
        e.input for e in task_of(learner).train
    }


def test_the_filters_on_length(learner: Learner) -> None:
    """In tokens, which are words here: a row of one token, or one with too long an input, prompt or
    output, is none."""
    definition = len(learner.encoder._ids(task_of(learner).train[0].instruction))
    texts = ["red", "red old", "red old new", "red old new soft", "red old new soft hard"]

    def kept(**fields: Any) -> list[str]:
        return [e.input for e in candidates(learner, saying(*texts), **fields)]

    assert kept() == texts[1:]
    assert kept(max_input=3) == texts[1:3]
    assert kept(max_prompt=definition + 4) == texts[1:4]
    answers = "red old\nOutput: red blue red\n\nInput: soft old\nOutput: red blue"
    long = Spy(lambda *arguments: [answers] * len(arguments[1]))
    assert [e.input for e in candidates(learner, long, max_output=2)] == ["soft old"]
    assert [e.input for e in candidates(learner, long, max_output=3)] == ["red old", "soft old"]


def test_the_base_model_writes(learner: Learner, config: RunConfig) -> None:
    """Logits during synthesis are those of the model without adapters; afterwards the adapters act
    again."""
    base = build_learner(config, World()).backbone.model  # its adapter is still zero
    ids = torch.tensor([learner.encoder.encode_text("red old blue", 10).prompt])
    seen: list[torch.Tensor] = []

    def look(*arguments: Any) -> list[str]:
        with torch.no_grad():
            seen.append(arguments[0].model(input_ids=ids).logits)
        return writer(*arguments)

    candidates(learner, look)
    with torch.no_grad():
        plain, adapted = base(input_ids=ids).logits, learner.backbone.model(input_ids=ids).logits
    assert len(seen) == 3
    assert all(torch.equal(logits, plain) for logits in seen)
    assert not torch.allclose(adapted, plain, atol=1e-2)

    def fail(*arguments: Any) -> list[str]:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        candidates(learner, fail)
    with torch.no_grad():
        assert torch.equal(learner.backbone.model(input_ids=ids).logits, adapted)


# ---- the answer line of the Long Sequence benchmark


def with_suffix(task: Task, suffix: str = "\nAnswer:") -> Task:
    return replace(task, train=tuple(replace(e, input=e.input + suffix) for e in task.train))


def test_the_answer_line_is_left_out_of_prompts_and_put_back(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = with_suffix(task_of(learner))
    learner.task = task
    shown: list[str] = []

    def watch(own: Learner, prompts: Sequence[str], *rest: Any) -> list[str]:
        shown.extend(prompts)
        return synthesis.continuations(own, prompts, *rest)

    monkeypatch.setattr(ssr_module, "continuations", watch)
    found = candidates(
        learner, saying("red old blue", task.train[2].input.removesuffix("\nAnswer:"))
    )
    # The other one is a row of the task.
    assert [e.input for e in found] == ["red old blue\nAnswer:"]
    assert shown
    assert not any("Answer:" in text for text in shown)
    demo = learner.memory.choose(task)[0]  # if only some inputs end so, it is no custom of the task
    learner.task = replace(
        task, train=tuple(replace(e, input="red") if e == demo else e for e in task.train)
    )
    assert [e.input for e in candidates(learner, saying("red old blue"))] == ["red old blue"]
    assert any("Answer:" in text for text in shown)


# ---- selection and answers


@pytest.mark.usefixtures("canned")
def test_rows_are_few_diverse_and_answered_by_the_model_as_it_is(learner: Learner) -> None:
    method, task = method_of(), task_of(learner)
    assert method.remember(learner, task) == []
    method.end_task(learner, task)
    rows = method.remember(learner, task)
    assert 0 < len(rows) <= learner.memory.quota(len(task.train)) == 4
    assert len({e.input for e in rows}) == len(rows)
    written = {e.id: e for e in method.candidates(learner, task)}
    for row in rows:
        assert written[row.id] == replace(row, output="")
        assert row.output
    answers = decoding.decode(
        learner.backbone, learner.encoder, rows, learner.config.evaluation.max_new_tokens
    )
    assert answers == [row.output for row in rows]
    first = json.loads(json.dumps(method.state))  # what a checkpoint keeps
    method.end_task(learner, task)
    assert method.state == first
    assert learner.notes["written"] == len(rows)
    assert learner.notes["candidates"] == len(written)
    # Far from where it was, so that no rounding makes the answers equal.
    learner.parameters.load(torch.linspace(-1, 1, len(learner.parameters.flat)))
    # Another model answers otherwise.
    assert decoding.decode(learner.backbone, learner.encoder, rows, 3) != answers


@pytest.mark.usefixtures("canned")
def test_silence_and_runaway_answers_give_way(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without an answer, or with one that leaves no room for the instruction, are replaced by
    others."""
    asked: list[Example] = []

    def decode(
        backbone: Any, encoder: Any, examples: Sequence[Example], limit: int, gate: Any = None
    ) -> list[str]:
        assert limit == 3
        start = len(asked)
        asked.extend(examples)
        return [["", "red " * 300, "red"][min(start + i, 8) % 3] for i in range(len(examples))]

    monkeypatch.setattr(synthesis, "decode", decode)
    method, task = method_of(), task_of(learner)
    method.end_task(learner, task)
    rows = method.remember(learner, task)
    assert len(asked) > 4
    assert 0 < len(rows) <= 4
    assert {e.output for e in rows} == {"red"}
    assert all(learner.encoder.encode(row) for row in rows)


# ---- ranks


def on_ranks(learner: Learner, size: int, act: Callable[[Learner], Any]) -> list[Any]:
    """What `act` gives on each of `size` ranks, every one with a model of its own."""

    def build(world: World) -> Learner:
        own = build_learner(learner.config, world, method=method_of(), tasks=3)
        own.parameters.load(learner.parameters.flat.detach())
        own.begin(0, task_of(learner))
        return own

    return together(size, build, act)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_write_together_what_one_writes_alone(learner: Learner, size: int) -> None:
    """By the real sampler, on prompts of different lengths; each rank has only some of them."""
    texts = ["red old", "green " * 9, "blue " * 30, "1 2 3 4", "soft " * 25]
    how = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2)
    write = lambda own: synthesis.continuations(own, texts, [11, 12, 13, 14, 15], how, 40)  # noqa: E731
    alone = write(learner)
    assert len(set(alone)) == 5
    assert on_ranks(learner, size, write) == [alone] * size


@pytest.mark.usefixtures("canned")
def test_the_leader_decides(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks whose floats differ would choose differently; all keep what the first one chose."""
    near, choose = iter(range(10)), synthesis.diverse
    lock = threading.Lock()

    def differently(vectors: Any, count: int, clusters: int) -> list[Cluster]:
        with lock:
            turn = next(near)
        return choose(vectors, count, clusters) if turn else [Cluster(1, [turn])]

    monkeypatch.setattr(synthesis, "diverse", differently)

    def rows(own: Learner) -> Any:
        method = method_of()
        method.end_task(own, task_of(own))
        return method.state

    found = on_ranks(learner, 2, rows)
    assert found[0] == found[1]


# ---- whole runs


@pytest.mark.usefixtures("canned")
def test_real_rows_instead_of_written_ones_are_mix_replay_bit_for_bit(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = run_of(config, {"name": "mix_replay"}, tmp_path / "mixed", **{"model.dropout": 0.1})
    written = run_of(config, SSR, tmp_path / "written", **{"model.dropout": 0.1})
    monkeypatch.setattr(Ssr, "remember", Method.remember)
    same = run_of(config, SSR, tmp_path / "same", **{"model.dropout": 0.1})
    assert trained_alike(mixed, same)
    assert mixed.result["matrix"] == same.result["matrix"]
    assert not trained_alike(mixed, written)


def test_a_model_that_writes_nonsense_is_fine_tuned_bit_for_bit(
    config: RunConfig, tmp_path: Path
) -> None:
    """The real sampler on a random model: no row survives the parser, and m = 0 is sequential
    fine-tuning."""
    plain = run_of(config, {"name": "finetune"}, tmp_path / "plain", **{"model.dropout": 0.1})
    run = run_of(
        config, {**SSR, "samples": 1, "max_tokens": 90}, tmp_path / "ssr", **{"model.dropout": 0.1}
    )
    assert trained_alike(plain, run)


# ---- texts as vectors


def test_the_backbone_encodes_without_its_adapter(learner: Learner) -> None:
    """The mean last hidden state, one text at a time and without padding."""
    texts = ["red", "old blue green " * 5, "1 2 3", "soft hard"] * 10  # more than a batch
    found = embed(learner.backbone, texts, None)
    model = learner.backbone.model
    for text, vector in list(zip(texts, found, strict=True))[:4]:
        ids = torch.tensor([learner.encoder.encode_text(text, 100).prompt])
        with torch.no_grad(), lora.disabled(model):
            plain = model.base_model(input_ids=ids).last_hidden_state[0].mean(0)
        with torch.no_grad():
            adapted = model.base_model(input_ids=ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, plain, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(vector, adapted, rtol=0, atol=1e-3)
    torch.testing.assert_close(found[:4], found[-4:])
    assert found.shape == (40, 32)
    assert found.dtype == torch.float32


def save_encoder(folder: Path, benchmark: Benchmark, pooler: bool = True) -> Path:
    """A tiny random sentence encoder, with the word-level tokenizer of the toy backbone."""
    save_backbone(folder, benchmark)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    (folder / "generation_config.json").unlink()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.5,
    )
    kind = transformers.BertModel if pooler else transformers.BertForMaskedLM
    torch.manual_seed(5)
    kind(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("pooler", [True, False])
def test_a_sentence_encoder_gives_its_pooled_output_or_its_mean(
    learner: Learner, benchmark_of_three: Benchmark, tmp_path: Path, pooler: bool
) -> None:
    """A pooler that was not saved, so of random weights, would give other vectors in every run."""
    folder = save_encoder(tmp_path / "bert", benchmark_of_three, pooler)
    texts = ["red old", "blue green soft 1 2 3", "old " * 60]  # the last one is too long for it
    found = embed(learner.backbone, texts, str(folder))
    assert found.shape == (3, 16)
    assert torch.equal(embed(learner.backbone, texts, str(folder)), found)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, found, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids[:, :22]
        with torch.no_grad():
            out = model(input_ids=ids)
        expected = out.pooler_output[0] if pooler else out.last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_without_some_weights_is_refused(
    learner: Learner, benchmark_of_three: Benchmark, tmp_path: Path
) -> None:
    folder = save_encoder(tmp_path / "bert", benchmark_of_three)
    tensors = load_file(folder / "model.safetensors")
    (name,) = [n for n in tensors if n.endswith("word_embeddings.weight")]
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 weights, the first is .*word_embeddings.weight"):
        embed(learner.backbone, ["red"], str(folder))


@pytest.mark.parametrize("name", ["no/such/folder", "nobody/no-such-encoder", "not a name!"])
def test_an_unknown_encoder_is_refused_before_the_first_update(
    config: RunConfig, tmp_path: Path, name: str
) -> None:
    values = config.model_dump(mode="json") | {"method": {**SSR, "encoder": name}}
    with pytest.raises(InputError, match=r"method.encoder: '.*' could not be loaded: ") as caught:
        execute(RunConfig.parse(values), tmp_path / "run")
    assert name in str(caught.value)
    journal = tmp_path / "run" / "steps.jsonl"
    assert not journal.exists() or not lines(journal)


def test_runs_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"memory\.fraction=0 leaves no examples to write; raise it"
    ):
        RunConfig.parse({"method": {"name": "ssr"}, "memory": {"fraction": 0}})
    with pytest.raises(InputError, match=r"method.encoder='': string should have at least 1 char"):
        RunConfig.parse({"method": {"name": "ssr", "encoder": ""}})
    monkeypatch.setattr("forever.config.methods.replay.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'forever-cl\[ssr\]'"):
        RunConfig.parse({"method": {"name": "ssr"}})
