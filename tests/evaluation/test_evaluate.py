"""Greedy decoding: many prompts at once give what one by one gives, whatever the model's own
settings say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import make_task

from forever.data.encoding import Encoder
from forever.data.tasks import Benchmark, Example, Task
from forever.evaluation import decoding
from forever.evaluation.decoding import decode
from forever.evaluation.scoring import evaluate
from forever.models.backbone import Backbone, load
from forever.models.location import TINY
from forever.training.world import World

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["toy", "tiny"])
def backbone(request: pytest.FixtureRequest, backbone_folder: Path) -> Backbone:
    """A random backbone, and the embedded one, which answers in words and stops."""
    return load("tiny" if request.param == "tiny" else str(backbone_folder), torch.float32, CPU)


@pytest.fixture
def examples(benchmark_of_three: Benchmark) -> list[Example]:
    """Prompts of very different lengths, the shortest without an input."""
    found = [e for task in benchmark_of_three.tasks for e in task.test]
    return [
        *found,
        Example("short", "Say it.", "", "x"),
        Example("long", "Repeat.", "red green blue " * 15, "x"),
    ]


def one_by_one(
    backbone: Backbone, encoder: Encoder, examples: list[Example], count: int
) -> list[str]:
    """A plain loop: append the likeliest token until EOS; no cache, no padding, no `generate`."""
    ends = backbone.model.generation_config.eos_token_id
    texts = []
    for example in examples:
        ids = list(encoder.encode_prompt(example).prompt)
        start = len(ids)
        with torch.no_grad():
            while len(ids) < start + count:
                ids.append(
                    int(backbone.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
                )
                if ids[-1] in ends:
                    break
        texts.append(backbone.tokenizer.decode(ids[start:], skip_special_tokens=True).strip())
    return texts


def test_batched_equals_one_by_one(backbone: Backbone, examples: list[Example]) -> None:
    encoder = Encoder(backbone.tokenizer, 512)
    assert len({len(encoder.encode_prompt(e).prompt) for e in examples}) > 4
    assert decode(backbone, encoder, examples, 8) == one_by_one(backbone, encoder, examples, 8)


def test_groups_bound_memory_without_changing_the_answers(
    backbone: Backbone, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(backbone.tokenizer, 512)
    whole = decode(backbone, encoder, examples, 5)
    sizes: list[tuple[int, ...]] = []
    generate = backbone.model.generate
    monkeypatch.setattr(
        backbone.model, "generate", lambda **k: sizes.append(k["input_ids"].shape) or generate(**k)
    )
    monkeypatch.setattr(decoding, "_TOKENS_AT_ONCE", 400)
    assert decode(backbone, encoder, examples, 5) == whole
    assert len(sizes) > 2
    assert all(rows == 1 or rows * (width + 5) <= 400 for rows, width in sizes)
    assert sum(rows for rows, _ in sizes) == len(examples)


def test_decoding_twice_is_equal_and_ignores_the_mode(
    backbone: Backbone, examples: list[Example]
) -> None:
    encoder = Encoder(backbone.tokenizer, 512)
    first = decode(backbone, encoder, examples, 4)
    backbone.model.train()
    torch.manual_seed(1)
    assert decode(backbone, encoder, examples, 4) == first
    assert not backbone.model.training


def test_stops_at_eos(backbone_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says word, word, EOS and would go on is cut at EOS; another row goes on to the
    limit."""
    backbone = load(str(backbone_folder), torch.float32, CPU)
    encoder = Encoder(backbone.tokenizer, 512)
    red, eos = backbone.tokenizer.convert_tokens_to_ids("red"), backbone.tokenizer.eos_token_id
    examples = [Example("a", "Say it.", "", "x"), Example("b", "Say it all.", "now", "x")]
    short = len(encoder.encode_prompt(examples[0]).prompt)
    lengths: list[int] = []
    head = backbone.model.get_output_embeddings()

    def scripted(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        """The second row (the shorter prompt) ends after two words; the first never does."""
        lengths.append(output.shape[1])
        output.fill_(-10.0)[..., red] = 10.0
        if len(lengths) == 3:
            output[1, -1, eos] = 20.0
        return output

    handle = head.register_forward_hook(scripted)
    texts = decode(backbone, encoder, examples, 6)
    handle.remove()
    assert short < len(encoder.encode_prompt(examples[1]).prompt)
    assert texts == ["red red", "red red red red red red"]
    assert len(lengths) == 6


def hostile(folder: Path, target: Path, **settings: Any) -> str:
    """The backbone with generation settings of its own."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    own = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    (target / "generation_config.json").write_text(json.dumps(own | settings), encoding="utf-8")
    return str(target)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 5.0},
        {"do_sample": True, "temperature": 5.0, "top_k": 50, "top_p": 0.9},
        {"no_repeat_ngram_size": 1},
        {"num_beams": 4, "length_penalty": 3.0},
        {"min_new_tokens": 5, "suppress_tokens": [5, 6, 7, 8, 9, 10]},
        {"forced_bos_token_id": 7, "bad_words_ids": [[9]], "max_length": 3},
    ],
)
def test_the_models_own_generation_settings_are_overruled(
    settings: dict[str, Any], tmp_path: Path, examples: list[Example]
) -> None:
    plain = load("tiny", torch.float32, CPU)
    own = load(hostile(TINY, tmp_path / "m", **settings), torch.float32, CPU)
    encoder = Encoder(plain.tokenizer, 512)
    assert decode(own, encoder, examples[:6], 6) == decode(plain, encoder, examples[:6], 6)


def test_the_models_own_end_tokens_are_kept(backbone_folder: Path, tmp_path: Path) -> None:
    """Qwen3 stops at two tokens: the tokenizer's and the base model's."""
    plain = load(str(backbone_folder), torch.float32, CPU)
    own = load(
        hostile(backbone_folder, tmp_path / "m", eos_token_id=[plain.tokenizer.eos_token_id, 7]),
        torch.float32,
        CPU,
    )
    assert own.model.generation_config.eos_token_id == [plain.tokenizer.eos_token_id, 7]


def test_scores_follow_the_order_of_the_test_rows(backbone: Backbone) -> None:
    task = make_task("colour", "What colour?", ("red", "blue"), test=5)
    encoder = Encoder(backbone.tokenizer, 512)
    texts = decode(backbone, encoder, list(task.test), 3)
    right = tuple(
        Example(e.id, e.instruction, e.input, t if i % 2 else "no such answer")
        for i, (e, t) in enumerate(zip(task.test, texts, strict=True))
    )
    found = evaluate(
        backbone, encoder, World(), Task("colour", task.train, right, "exact_match"), 3
    )
    assert [p.id for p in found] == [e.id for e in task.test]
    assert [p.prediction for p in found] == texts
    assert [p.reference for p in found] == [e.output for e in right]
    assert [p.score for p in found] == [0, 1, 0, 1, 0]
