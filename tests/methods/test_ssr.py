"""SSR: what is written, what of it is chosen, who answers it, and when it equals MixReplay.

A random model writes nonsense, so most tests put a writer in its place whose text depends on the
seed alone.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import (
    WORDS,
    begin,
    execute,
    run_of,
    save_encoder,
    start,
    together,
    toy,
    trained_alike,
    update,
)
from safetensors.torch import load_file, save_file

from forever.config.methods.ours import SsrConfig
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark, Example, Task
from forever.errors import InputError
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling
from forever.methods import ssr
from forever.methods.sentence_encoders import embed
from forever.methods.ssr import (
    Cluster,
    Ssr,
    candidates,
    cluster_quotas,
    diverse,
    icl_prompts,
    parse_icl,
    take,
)
from forever.models import lora
from forever.training.learner import Learner
from forever.training.method import Method
from forever.world import World

SSR: dict[str, Any] = {"name": "ssr", "max_tokens": 150}
Write = Callable[..., list[str]]


def writer(*arguments: Any) -> list[str]:
    """Takes the place of `decoding.sample`: two examples a seed, and an unfinished one."""
    texts = []
    for stream in map(random.Random, arguments[2]):
        first, second = (" ".join(stream.choices(WORDS, k=4)) for _ in range(2))
        texts.append(f"{first}\nOutput: red\n\nInput: {second}\nOutput: blue\n\nInput: red green")
    return texts


def saying(*texts: str) -> Write:
    """A writer that says the same to every prompt."""
    whole = "\n\nInput: ".join(f"{text}\nOutput: red" for text in texts)
    return lambda *arguments: [whole] * len(arguments[1])


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "sample", writer)


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    """4 of 8 examples are kept: 12 ordered pairs."""
    return small_config.override({"memory.fraction": 0.5})


@pytest.fixture(scope="module")
def trained(config: RunConfig) -> Learner:
    """A learner whose adapter has learned a little of the first task."""
    learner, method = begin(config, SSR)
    steps = start(learner, method, toy(config)[0])
    learner.optimizer = torch.optim.SGD([learner.parameters.flat], lr=0.5)
    for _ in range(4):
        update(learner, method, steps)
    return learner


@pytest.fixture
def learner(trained: Learner, config: RunConfig) -> Iterator[Learner]:
    """The same for every test."""
    weights = trained.parameters.snapshot()
    trained.begin(0, toy(config)[0])
    yield trained
    trained.parameters.load(weights)


def task_of(learner: Learner) -> Task:
    assert learner.task is not None
    return learner.task


def written(learner: Learner, write: Write, **fields: Any) -> list[Example]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "sample", write)
        return candidates(learner, task_of(learner), SsrConfig(**{**SSR, **fields}))


# ---- prompts, and what comes out of them


def test_a_prompt_for_every_ordered_pair() -> None:
    demos = [Example(str(i), " Say it. ", f" in {i}\n", f" out {i}") for i in range(4)]
    prompts = icl_prompts(demos)
    assert len(prompts) == len(set(prompts)) == 4 * 3
    first = "Say it.\n\nInput: in 0\nOutput: out 0\n\n"
    assert prompts[0] == (" Say it. ", f"{first}Input: in 1\nOutput: out 1\n\nInput:")
    assert icl_prompts(demos[:1]) == [(" Say it. ", f"{first}Input:")]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (" a b \n Output:  c d \n\nInput: e\nOutput: f\n", [("a b", "c d"), ("e", "f")]),
        ("a\nOutput: b\nInput: c", [("a", "b")]),  # the last piece was cut off before its output
        ("a\nOutput: b\nOutput: c\nInput: f\nOutput: g", [("f", "g")]),  # which output?
        ("a\nOutput:", []),
        ("Output: b", []),
        ("a\nb\nOutput: c\nd", [("a\nb", "c\nd")]),
    ],
)
def test_pieces_with_exactly_one_output_are_examples(
    text: str, pairs: list[tuple[str, str]]
) -> None:
    assert parse_icl(text) == pairs


def test_every_prompt_is_continued_three_times_with_seeds_of_its_own(learner: Learner) -> None:
    calls: list[tuple[Any, ...]] = []

    def spy(*arguments: Any) -> list[str]:
        calls.append(arguments)
        return writer(*arguments)

    examples = written(learner, spy)
    assert len(examples) >= 5 * 4
    prompts = icl_prompts(learner.memory.choose(task_of(learner)))
    encoded = [learner.encoder.encode_text(text, 150) for _, text in prompts]
    assert len(calls) == 3
    for _, shown, _, limits, how in calls:
        assert shown == encoded
        assert limits == [150 - len(prompt.prompt) for prompt in encoded]
        assert how == Sampling(temperature=0.9, top_p=0.6, top_k=0, repetition_penalty=1.2)
    seeds = [seed for call in calls for seed in call[2]]
    assert len(set(seeds)) == 36
    assert written(learner, spy) == examples
    assert [seed for call in calls for seed in call[2]] == seeds * 2
    assert [e.id for e in examples] == [f"colour/written/{i}" for i in range(len(examples))]
    # What the base model takes for the answer is thrown away.
    assert {e.output for e in examples} == {""}


def test_a_written_example_has_the_instruction_of_its_prompt(learner: Learner) -> None:
    """Where a task has several instructions, it is filtered and kept under the one it followed."""
    task = task_of(learner)
    words = dict(zip((e.id for e in learner.memory.choose(task)), WORDS, strict=False))
    own = {name: f"Options: {word}." for name, word in words.items()}
    train = tuple(replace(e, instruction=own.get(e.id, e.instruction)) for e in task.train)
    learner.task = replace(task, train=train)
    starts = {learner.encoder.encode_text(text, 9).prompt: text for text in own.values()}
    followed: dict[str, str] = {}  # the instruction by what was written under it

    def write(*arguments: Any) -> list[str]:
        texts = writer(*arguments)
        for prompt, text in zip(arguments[1], texts, strict=True):
            followed.update({body: starts[prompt.prompt[:4]] for body, _ in parse_icl(text)})
        return texts

    examples = written(learner, write)
    assert {e.instruction for e in examples} == {*own.values()}
    assert all(e.instruction == followed[e.input] for e in examples)


def test_inputs_of_the_task_and_repetitions_are_dropped(learner: Learner) -> None:
    demos = {demo.id for demo in learner.memory.choose(task_of(learner))}
    known = next(example.input for example in task_of(learner).train if example.id not in demos)
    write = saying("red old blue", known, f"  {known}\n", "red old blue", "cold old blue")
    assert [e.input for e in written(learner, write)] == ["red old blue", "cold old blue"]


def test_the_filters_on_length(learner: Learner) -> None:
    """In tokens, which are words here; of the prompt's, those after the definition."""
    texts = ["red", "red old", "red old new", "red old new soft", "red old new soft hard"]
    definition = learner.encoder.count(task_of(learner).train[0].instruction)
    limits = ({}, slice(1, 5)), ({"max_input": 3}, slice(1, 3))
    for fields, kept in (*limits, ({"max_prompt": 4 + definition}, slice(1, 4))):
        assert [e.input for e in written(learner, saying(*texts), **fields)] == texts[kept]
    answers = "red old\nOutput: red blue red\n\nInput: soft old\nOutput: red blue"
    write = lambda *arguments: [answers] * len(arguments[1])  # noqa: E731
    assert [e.input for e in written(learner, write, max_output=2)] == ["soft old"]


def test_the_base_model_writes(learner: Learner, config: RunConfig) -> None:
    """Without its adapter, which acts again afterwards, also if writing failed."""
    ids = torch.tensor([learner.encoder.encode_text("red old blue", 10).prompt])
    logits: list[torch.Tensor] = []

    @torch.no_grad()
    def logits_of(of: Learner) -> torch.Tensor:
        return of.backbone.model(input_ids=ids).logits

    def fail(*arguments: Any) -> list[str]:
        logits.append(logits_of(learner))
        raise RuntimeError("out of memory")

    adapted = logits_of(learner)
    with pytest.raises(RuntimeError, match="out of memory"):
        written(learner, fail)
    assert torch.equal(logits[0], logits_of(begin(config, SSR)[0]))  # whose adapter is still zero
    assert not torch.allclose(adapted, logits[0], atol=1e-2)
    assert torch.equal(logits_of(learner), adapted)


@pytest.mark.parametrize("custom", [True, False])
def test_the_answer_line_of_the_long_sequence_is_put_back(learner: Learner, custom: bool) -> None:
    """It is left out of prompts; if only some inputs end so, it is no custom of the task."""
    task = task_of(learner)
    train = [replace(example, input=f"{example.input}\nAnswer:") for example in task.train]
    if not custom:
        demo = learner.memory.choose(replace(task, train=tuple(train)))[0]
        train[train.index(demo)] = replace(demo, input="red")
    learner.task = replace(task, train=tuple(train))
    inputs = [e.input for e in written(learner, saying("red old blue"))]
    assert inputs == ["red old blue\nAnswer:" if custom else "red old blue"]


# ---- selection


@pytest.mark.parametrize(
    ("sizes", "total", "quotas"),
    [
        ([5, 3, 2], 4, [2, 1, 1]),  # shares 2, 1.2, 0.8
        ([1, 1, 1], 2, [1, 1, 0]),  # equal remainders: the first
        ([3, 2], 9, [3, 2]),  # no more than there are
        ([97, 1, 1, 1], 20, [20, 0, 0, 0]),  # rounding each share up would give 23
    ],
)
def test_quotas_by_largest_remainder(sizes: list[int], total: int, quotas: list[int]) -> None:
    assert cluster_quotas(sizes, total) == quotas


def test_the_nearest_to_each_centroid_come_first() -> None:
    """Three clusters of 10, 6 and 4 directions in a plane, of very different lengths."""
    stream = torch.Generator().manual_seed(0)
    centres = torch.tensor([0.0] * 10 + [2.0] * 6 + [4.0] * 4)
    angles = centres + 0.2 * torch.randn(20, generator=stream)
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    vectors = points * (torch.rand(20, 1, generator=stream) * 100 + 0.01)
    clusters = diverse(vectors, 5, 3)
    assert diverse(vectors, 5, 3) == clusters
    # Shares 2.5, 1.5, 1.
    assert sorted((len(members), quota) for quota, members in clusters) == [(4, 1), (6, 2), (10, 2)]
    for _, members in clusters:
        assert {*members} in ({*range(10)}, {*range(10, 16)}, {*range(16, 20)})
        centre = points[members].mean(0)
        distances = [(points[i] - centre).norm().item() for i in members]
        assert distances == sorted(distances)


def test_two_points_are_equally_near_to_their_middle() -> None:
    """Rounding does not decide between them: the first is taken, however the plane is turned."""
    for angle in torch.linspace(0, 6, 25).tolist():
        angles = torch.tensor([angle, angle + 0.4])
        assert diverse(torch.stack([angles.cos(), angles.sin()], dim=1), 1, 1) == [(1, [0, 1])]


@pytest.mark.parametrize(
    ("silent", "taken", "tried"),
    [
        ({5, 8, 7}, {3, 1, 6, 9, 2}, [[5, 3, 7, 9, 2], [8, 6], [1]]),  # each is tried once
        ({5, 3, 8, 1, 9}, {7, 2}, [[5, 3, 7, 9, 2], [8, 1]]),  # a cluster may run out
    ],
)
def test_an_empty_answer_gives_way_to_the_next_nearest(
    silent: set[int], taken: set[int], tried: list[list[int]]
) -> None:
    seen: list[list[int]] = []

    def answer(indices: Sequence[int]) -> list[str]:
        seen.append(list(indices))
        return ["" if i in silent else f"a{i}" for i in indices]

    clusters = [Cluster(2, [5, 3, 8, 1]), Cluster(1, [7, 6]), Cluster(0, [4]), Cluster(3, [9, 2])]
    assert take(clusters, answer) == {i: f"a{i}" for i in taken}
    assert seen == tried


@pytest.mark.usefixtures("canned")
def test_examples_are_few_and_answered_by_the_model_as_it_is(learner: Learner) -> None:
    method, task = Ssr(SsrConfig(**SSR)), task_of(learner)
    assert method.remember(learner, task) == []
    method.end_task(learner, task)
    kept = method.remember(learner, task)
    assert 0 < len(kept) <= learner.memory.quota(len(task.train)) == 4
    by_id = {e.id: e for e in candidates(learner, task, method.config)}
    assert [by_id[e.id] for e in kept] == [replace(e, output="") for e in kept]
    answers = decoding.decode(learner.backbone, learner.encoder, kept, 3)
    assert [e.output for e in kept] == answers
    assert all(answers)
    first = json.loads(json.dumps(method.state))  # what a checkpoint keeps
    method.end_task(learner, task)
    assert method.state == first
    assert learner.notes == {"candidates": len(by_id), "written": len(kept)}
    assert learner.examples["written"] == 2 * len(by_id)  # of two calls


@pytest.mark.usefixtures("canned")
def test_silence_and_runaway_answers_give_way(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that leaves no room for the instruction cannot be trained on."""
    answers = cycle(["", "red " * 300, "red"])
    monkeypatch.setattr(ssr, "decode", lambda _, __, rows, ___: [next(answers) for _ in rows])
    method, task = Ssr(SsrConfig(**SSR)), task_of(learner)
    method.end_task(learner, task)
    kept = method.remember(learner, task)
    assert 0 < len(kept) <= 4
    assert {e.output for e in kept} == {"red"}


# ---- ranks, and whole runs


@pytest.mark.usefixtures("canned")
def test_the_leader_decides(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks whose floats differ would choose differently; all keep what the first one chose."""
    turns = count()
    monkeypatch.setattr(ssr, "diverse", lambda *_: [Cluster(1, [next(turns)])])

    def build(world: World) -> tuple[Learner, Any]:
        learner, method = begin(config, SSR, world)
        learner.begin(0, toy(config)[0])
        return learner, method

    def keep(built: tuple[Learner, Any]) -> Any:
        learner, method = built
        method.end_task(learner, task_of(learner))
        return method.state

    first, second = together(2, build, keep)
    assert next(turns) == 2
    assert first == second


@pytest.mark.usefixtures("canned")
def test_real_examples_instead_of_written_ones_are_mix_replay_bit_for_bit(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropout = {"model.dropout": 0.1}
    mixed = run_of(config, {"name": "mix_replay"}, tmp_path / "mixed", **dropout)
    assert not trained_alike(mixed, run_of(config, SSR, tmp_path / "written", **dropout))
    monkeypatch.setattr(Ssr, "remember", Method.remember)
    same = run_of(config, SSR, tmp_path / "same", **dropout)
    assert trained_alike(mixed, same)
    assert mixed.result["matrix"] == same.result["matrix"]


def test_a_model_that_writes_nonsense_is_fine_tuned_bit_for_bit(
    config: RunConfig, tmp_path: Path
) -> None:
    """The real sampler on a random model: nothing of it can be parsed."""
    plain = run_of(config, {"name": "finetune"}, tmp_path / "plain")
    run = run_of(config, {"name": "ssr", "samples": 1, "max_tokens": 90}, tmp_path / "ssr")
    assert trained_alike(plain, run)


# ---- texts as vectors


def test_the_backbone_encodes_without_its_adapter(learner: Learner) -> None:
    """The mean last hidden state, as of one text at a time and without padding."""
    texts = ["red", "old blue green " * 5, "1 2 3", "soft hard"] * 10  # more than a batch
    vectors = embed(learner.backbone, texts, None)
    assert (vectors.shape, vectors.dtype) == ((40, 32), torch.float32)
    torch.testing.assert_close(vectors[:4], vectors[-4:])
    model = learner.backbone.model
    for text, vector in zip(texts[:4], vectors, strict=False):
        ids = torch.tensor([learner.encoder.encode_text(text, 100).prompt])
        with torch.no_grad(), lora.disabled(model):
            plain = model.base_model(input_ids=ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooler", [True, False])
def test_a_sentence_encoder_gives_its_pooled_output_or_its_mean(
    learner: Learner, benchmark_of_three: Benchmark, tmp_path: Path, pooler: bool
) -> None:
    """A pooler that was not saved, so of random weights, would give other vectors in every run."""
    folder = save_encoder(tmp_path / "bert", benchmark_of_three, pooler)
    texts = ["red old", "blue green soft 1 2 3", "old " * 60]  # the last one is too long for it
    vectors = embed(learner.backbone, texts, str(folder))
    assert vectors.shape == (3, 16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, vectors, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids[:, :22]
        with torch.no_grad():
            out = model(input_ids=ids)
        expected = out.pooler_output[0] if pooler else out.last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_that_lacks_weights_is_refused(
    learner: Learner, benchmark_of_three: Benchmark, tmp_path: Path
) -> None:
    folder = save_encoder(tmp_path / "bert", benchmark_of_three)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="word_embeddings"):
        embed(learner.backbone, ["red"], str(folder))


def test_an_unknown_encoder_is_refused_before_the_first_update(
    config: RunConfig, tmp_path: Path
) -> None:
    settings = config.override({"method.name": "ssr", "method.encoder": "no/such/folder"})
    with pytest.raises(InputError, match="no/such/folder"):
        execute(settings, tmp_path / "run")
    journal = tmp_path / "run" / "steps.jsonl"
    assert not journal.exists() or not journal.read_text()


def test_runs_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"method": {"name": "ssr"}}
    with pytest.raises(InputError, match=r"memory\.fraction"):
        RunConfig.parse({**config, "memory": {"fraction": 0}})
    monkeypatch.setattr("forever.config.methods.ours.find_spec", lambda name: None)
    with pytest.raises(InputError, match="scikit-learn"):
        RunConfig.parse(config)
