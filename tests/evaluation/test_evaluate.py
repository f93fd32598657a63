"""Greedy decoding: many prompts at once give what one by one gives, whatever the model says."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import make_task

from forever.data.encoding import Encoder
from forever.data.tasks import Benchmark, Example
from forever.evaluation import decoding, greedy, likelihood
from forever.evaluation.decoding import decode
from forever.evaluation.scoring import evaluate, hopeless_answers
from forever.models.backbone import Backbone, load
from forever.models.location import TINY
from forever.world import World

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["toy", "tiny"])
def backbone(request: pytest.FixtureRequest, backbone_folder: Path) -> Backbone:
    """A random backbone, and the embedded one, which answers in words and stops."""
    return load("tiny" if request.param == "tiny" else str(backbone_folder), torch.float32, CPU)


@pytest.fixture
def examples(benchmark_of_three: Benchmark) -> list[Example]:
    """Prompts of very different lengths, the shortest without an input."""
    examples = [example for task in benchmark_of_three.tasks for example in task.test]
    examples.append(Example("short", "Say it.", "", "x"))
    return [*examples, Example("long", "Repeat.", "red green blue " * 15, "x")]


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
                scores = backbone.model(input_ids=torch.tensor([ids])).logits[0, -1]
                ids.append(int(scores.argmax()))
                if ids[-1] in ends:
                    break
        texts.append(backbone.tokenizer.decode(ids[start:], skip_special_tokens=True).strip())
    return texts


def test_batched_equals_one_by_one(backbone: Backbone, examples: list[Example]) -> None:
    """In any mode."""
    encoder = Encoder(backbone.tokenizer, 512)
    assert len({len(encoder.encode_prompt(e).prompt) for e in examples}) > 4
    expected = one_by_one(backbone, encoder, examples, 8)
    backbone.model.train()
    torch.manual_seed(1)
    assert decode(backbone, encoder, examples, 8) == expected
    assert not backbone.model.training
    assert decode(backbone, encoder, examples, 8, packed=False) == expected


def test_groups_bound_memory_without_changing_the_answers(
    backbone: Backbone, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(backbone.tokenizer, 512)
    whole = decode(backbone, encoder, examples, 5)
    sizes: list[tuple[int, ...]] = []
    generate = backbone.model.generate

    def watched(**options: Any) -> Any:
        sizes.append(options["input_ids"].shape)
        return generate(**options)

    monkeypatch.setattr(backbone.model, "generate", watched)
    monkeypatch.setattr(decoding, "_TOKENS_AT_ONCE", 400)
    assert decode(backbone, encoder, examples, 5, packed=False) == whole
    assert len(sizes) > 2
    assert all(rows == 1 or rows * (width + 5) <= 400 for rows, width in sizes)
    assert sum(rows for rows, _ in sizes) == len(examples)

    for name, value in (("TOKENS_AT_ONCE", 200), ("TOKENS_READ", 30), ("FREE", 0.5)):
        monkeypatch.setattr(greedy, name, value)
        assert decode(backbone, encoder, examples, 5) == whole


def test_an_answer_that_is_of_no_interest_is_cut(
    backbone: Backbone, examples: list[Example]
) -> None:
    encoder = Encoder(backbone.tokenizer, 512)
    whole = decode(backbone, encoder, examples, 5)
    cut = decode(backbone, encoder, examples, 5, over=[lambda text: len(text) > 3] * len(examples))
    assert all(full.startswith(part) for full, part in zip(whole, cut, strict=True))
    assert cut != whole


@pytest.mark.parametrize("packed", [True, False])
def test_stops_at_eos(backbone_folder: Path, packed: bool) -> None:
    """A row that says word, word, EOS is cut there; another one continues to the limit."""
    backbone = load(str(backbone_folder), torch.float32, CPU)
    encoder = Encoder(backbone.tokenizer, 512)
    red, eos = backbone.tokenizer.convert_tokens_to_ids("red"), backbone.tokenizer.eos_token_id
    examples = [Example("a", "Say it.", "", "x"), Example("b", "Say it all.", "now", "x")]
    short = len(encoder.encode_prompt(examples[0]).prompt)
    order = [0, 1] if packed else [1, 0]  # as they come, or the longest first
    lengths: list[int] = []
    head = backbone.model.get_output_embeddings()

    def scripted(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        """The first example, whose prompt is shorter, ends after two words, the other never."""
        lengths.append(output.shape[1])
        output.fill_(-10.0)[..., red] = 10.0
        if len(lengths) == 3:
            row = (0, order.index(0)) if packed else (order.index(0), -1)
            output[(*row, eos)] = 20.0
        return output

    handle = head.register_forward_hook(scripted)
    texts = decode(backbone, encoder, examples, 6, packed=packed)
    handle.remove()
    assert short < len(encoder.encode_prompt(examples[1]).prompt)
    assert texts == ["red red", "red red red red red red"]
    assert len(lengths) == 6


def hostile(folder: Path, target: Path, **settings: Any) -> Backbone:
    """The backbone with generation settings of its own."""
    path = shutil.copytree(folder, target) / "generation_config.json"
    own = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(own | settings), encoding="utf-8")
    return load(str(target), torch.float32, CPU)


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
    own = hostile(TINY, tmp_path / "m", **settings)
    encoder = Encoder(plain.tokenizer, 512)
    assert decode(own, encoder, examples[:6], 6) == decode(plain, encoder, examples[:6], 6)


def test_the_models_own_end_tokens_are_kept(backbone_folder: Path, tmp_path: Path) -> None:
    """Qwen3 stops at two tokens: the tokenizer's and the base model's."""
    eos = load(str(backbone_folder), torch.float32, CPU).tokenizer.eos_token_id
    own = hostile(backbone_folder, tmp_path / "m", eos_token_id=[7, eos])
    assert own.model.generation_config.eos_token_id == [eos, 7]


def test_scores_follow_the_order_of_the_test_rows(backbone: Backbone) -> None:
    task = make_task("colour", "What colour?", ("red", "blue"), test=5)
    encoder = Encoder(backbone.tokenizer, 512)
    texts = decode(backbone, encoder, list(task.test), 3)
    expected = ["no such answer", texts[1], "no such answer", texts[3], "no such answer"]
    pairs = zip(task.test, expected, strict=True)
    test = tuple(replace(example, output=text) for example, text in pairs)
    task = replace(task, test=test, labels=None)  # whose answers are never cut
    (predictions,) = evaluate(backbone, encoder, World(), [task], 3)
    assert [prediction.id for prediction in predictions] == [example.id for example in task.test]
    assert [prediction.prediction for prediction in predictions] == texts
    assert [prediction.reference for prediction in predictions] == expected
    assert [prediction.score for prediction in predictions] == [0, 1, 0, 1, 0]


def by_plain_loop(backbone: Backbone, encoder: Encoder, example: Example) -> list[float]:
    """The log-probability of each token of the answer and of EOS, in one pass over one example."""
    encoded = encoder.encode(example)
    ids = torch.tensor([encoded.prompt + encoded.answer])
    with torch.no_grad():
        logits = backbone.model(input_ids=ids).logits[0].log_softmax(-1)
    start = len(encoded.prompt)
    return [float(logits[start + i - 1, token]) for i, token in enumerate(encoded.answer)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tokens", [1, 200, 4096])
def test_the_likeliest_label_is_chosen(
    backbone: Backbone, packed: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label that only the test examples have can be chosen, too."""
    monkeypatch.setattr(likelihood, "TOKENS_READ", tokens)
    task = make_task("colour", "What colour?", ("red", "round"), test=6)
    task = replace(task, metric="label_likelihood", labels=("blue blue", "red"))
    encoder = Encoder(backbone.tokenizer, 512)
    best: list[str] = []
    for example in task.test:
        sums = {
            label: sum(by_plain_loop(backbone, encoder, replace(example, output=label)))
            for label in ("red", "blue blue", "round")
        }
        best.append(max(sums, key=lambda label: sums[label]))
    (predictions,) = evaluate(backbone, encoder, World(), [task], 3, packed=packed)
    assert [prediction.prediction for prediction in predictions] == best
    right = [float(a == example.output) for a, example in zip(best, task.test, strict=True)]
    assert [prediction.score for prediction in predictions] == right
    assert not any(prediction.cut for prediction in predictions)


def test_a_text_scores_the_mean_probability_of_its_tokens(backbone: Backbone) -> None:
    """Beside a task whose answers are written; each keeps its own."""
    text = replace(make_task("shape", "What?", ("round", "flat")), metric="text_likelihood")
    written = make_task("colour", "What colour?", ("red", "blue"))
    encoder = Encoder(backbone.tokenizer, 512)
    scored, answered = evaluate(backbone, encoder, World(), [text, written], 3)
    for example, prediction in zip(text.test, scored, strict=True):
        each = by_plain_loop(backbone, encoder, example)
        assert prediction.score == pytest.approx(math.exp(sum(each) / len(each)), rel=1e-4)
        assert (prediction.id, prediction.prediction) == (example.id, "")
    (alone,) = evaluate(backbone, encoder, World(), [written], 3)
    assert answered == alone


def test_an_answer_is_hopeless_once_no_label_begins_so() -> None:
    """Nor any reference, which may be a label that no training example has."""
    task = make_task("colour", "What colour?", ("teal", "red"))
    task = replace(task, labels=("red", "reddish", "Dark blue "))
    hopeless = hopeless_answers(task)
    assert hopeless is not None
    for text in ("", "r", "Red", "redd", "dark", "DARK blue", " red ", "re\ufffd", "tea"):
        assert not hopeless(text)
    for text in ("x", "red.", "reds", "darkblue", "reddish blue"):
        assert hopeless(text)
    assert hopeless_answers(replace(task, metric="rouge_l")) is None
    assert hopeless_answers(replace(task, labels=None)) is None
