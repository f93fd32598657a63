"""What is supervised, what may be cut, and where the numbers of a batch lie."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from forever.data.collation import pad
from forever.data.encoding import Encoded, Encoder, Limits
from forever.data.prompts import ALPACA
from forever.data.tasks import Benchmark, Example, Message, Task
from forever.errors import InputError
from forever.models.location import TINY

CPU = torch.device("cpu")
WORDS = " ".join(f"word{i} is, well: été nº{i}!" for i in range(25))
LONG = Example("t/train/0", "Say yes or no.", WORDS, "yes indeed")
NO_LIMIT = 10**6


@pytest.fixture(scope="module", params=["toy", "tiny"])
def tokenizer(request: pytest.FixtureRequest, backbone_folder: Path) -> Any:
    """A word-level and a byte-level BPE tokenizer."""
    return AutoTokenizer.from_pretrained(backbone_folder if request.param == "toy" else TINY)


def ids_of(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)


# ---- supervision


def test_template() -> None:
    assert ALPACA.text(Example("a", "Do it.", "With this.", "x")) == (
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nDo it.\n\n### Input:\nWith this.\n\n### Response:\n"
    )
    assert ALPACA.text(Example("a", "Do it.", "", "x")) == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n"
        "### Instruction:\nDo it.\n\n### Response:\n"
    )
    assert ALPACA.parts(LONG)[1] == LONG.input


def test_supervised_tokens_are_answer_and_eos_for_every_record(
    tokenizer: Any, benchmark_of_three: Benchmark
) -> None:
    encoder = Encoder(tokenizer, 512)
    for task in benchmark_of_three.tasks:
        for example in task.train:
            row = encoder.encode(example)
            assert row.answer == (*ids_of(tokenizer, example.output), tokenizer.eos_token_id)
            assert row.prompt == ids_of(tokenizer, ALPACA.text(example))
            assert not row.truncated
            assert encoder.encode_prompt(example) == Encoded(row.prompt, (), False)
            batch = pad([row], tokenizer.pad_token_id, CPU)
            assert tuple(batch.targets.tolist()) == row.answer
            assert torch.equal(batch.inputs["input_ids"][0, batch.predicts + 1], batch.targets)


def test_a_task_encoded_at_once_is_as_its_examples_are_alone(
    tokenizer: Any, benchmark_of_three: Benchmark
) -> None:
    at_once, alone = Encoder(tokenizer, 512), Encoder(tokenizer, 512)
    for task in benchmark_of_three.tasks:
        at_once.encode_all(task, 512)
        for example in (*task.train, *task.test):
            assert at_once.encode(example) == alone.encode(example)
            assert at_once.encode_prompt(example) == alone.encode_prompt(example)
            assert at_once.answer_length(example) == alone.answer_length(example)


def test_blanks_of_an_answer_are_kept_in_training() -> None:
    """All of task1572's answers carry them (docs/protocol.md)."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    row = Encoder(tokenizer, 512).encode(Example("a", "q", "i", " yes "))
    assert row.answer[:-1] == ids_of(tokenizer, " yes ") != ids_of(tokenizer, "yes")


# ---- truncation


def whole_prompt(tokenizer: Any) -> tuple[tuple[int, ...], int, int]:
    """The ids of LONG's prompt, and how many of them are before the input and after it; a token
    that spans a seam is not the input's."""
    before, middle, after = ALPACA.parts(LONG)
    tokens = tokenizer(
        before + middle + after, add_special_tokens=False, return_offsets_mapping=True
    )
    seams = len(before), len(before) + len(middle)
    inside = [start >= seams[0] and end <= seams[1] for start, end in tokens.offset_mapping]
    return tuple(tokens.input_ids), inside.index(True), inside[::-1].index(True)


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 7, 20, 50])
@pytest.mark.parametrize("training", [True, False])
def test_only_the_middle_of_the_input_is_cut(tokenizer: Any, training: bool, spare: int) -> None:
    """Both ends of the input keep half of the room, and an odd token is the last half's: with room
    for three tokens the first one and the last two are left."""
    whole, before, after = whole_prompt(tokenizer)
    answer = (*ids_of(tokenizer, LONG.output), tokenizer.eos_token_id) if training else ()
    encoder = Encoder(tokenizer, before + after + spare + len(answer))
    row = encoder.encode(LONG) if training else encoder.encode_prompt(LONG)
    head = before + spare // 2
    tail = after + spare - spare // 2
    assert row == Encoded((*whole[:head], *whole[len(whole) - tail :]), answer, True)
    assert len(row.prompt) + len(row.answer) == encoder.max_length


def test_exactly_fitting_is_not_cut(tokenizer: Any) -> None:
    row = Encoder(tokenizer, NO_LIMIT).encode(LONG)
    length = len(row.prompt) + len(row.answer)
    assert Encoder(tokenizer, length).encode(LONG) == row
    tight = Encoder(tokenizer, length - 1)
    shorter = tight.encode(LONG)
    assert shorter.truncated
    assert len(shorter.prompt) + len(shorter.answer) == length - 1
    assert not tight.encode_prompt(LONG).truncated  # decoding needs no room for the answer
    short = replace(LONG, id="short", input="word")
    assert tight.truncated([LONG, short, LONG, short, short]) == 2


def test_error_if_nothing_can_be_cut(tokenizer: Any) -> None:
    empty = replace(LONG, input="")
    least = len(ids_of(tokenizer, ALPACA.text(empty)))
    encoder = Encoder(tokenizer, least)  # no room for an answer
    for example in (LONG, empty):
        with pytest.raises(InputError, match=r"t/train/0: \d+ prompt tokens .*model.max_length"):
            encoder.encode(example)


def test_input_of_blanks_alone_ends(tokenizer: Any) -> None:
    least = len(ids_of(tokenizer, ALPACA.text(replace(LONG, input="x"))))
    row = Encoder(tokenizer, least + 1).encode_prompt(replace(LONG, input=" " * 50))
    assert len(row.prompt) <= least + 1


# ---- begin of sequence


def bos_tokenizer(template: str) -> Any:
    """Words of one letter; BOS is 0, EOS is 1. `template` says what a text is put into."""
    words = {"<bos>": 0, "<eos>": 1, "<pad>": 2, "<unk>": 3, "a": 4, "b": 5}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("<bos>", 0), ("<eos>", 1)]
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    names = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


@pytest.mark.parametrize("template", ["<bos> $A", "$A", "$A <eos>"])
def test_bos_stands_once_before_the_prompt_if_the_tokenizer_puts_it_there(template: str) -> None:
    """An EOS that a tokenizer appends is not taken for BOS."""
    encoder = Encoder(bos_tokenizer(template), 256)
    example = Example("x", "a", "a b a b", "b")
    row = encoder.encode(example)
    starts_with_bos = template == "<bos> $A"
    assert (row.prompt[0] == 0) is starts_with_bos
    assert not {0, 1} & {*row.prompt[1:]}
    assert row.answer == (5, 1)  # no second BOS before the answer
    assert encoder.encode_prompt(example).prompt == row.prompt
    bos = (0,) if starts_with_bos else ()
    assert encoder.encode_text("a b a b", 10).prompt == (*bos, 4, 5, 4, 5)
    assert encoder.encode_text("a b a b", 3).prompt == ((0, 4, 5) if bos else (5, 4, 5))
    assert encoder.encode_text("a b a b", 1).prompt == (bos or (5,))
    assert encoder.count("a b a b") == 4  # of the text alone


# ---- dropped tokens


def is_within(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether `part` is `whole` with some tokens left out."""
    rest: Iterator[int] = iter(whole)
    return all(token in rest for token in part)


def test_only_tokens_of_the_input_are_dropped(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, NO_LIMIT)
    whole = encoder.encode(LONG)
    before, middle, after = ALPACA.parts(LONG)
    empty = encoder.with_drops(LONG, 1 - 1e-12, random.Random(0))  # all that may go
    template = tokenizer.decode([*ids_of(tokenizer, before), *ids_of(tokenizer, after)])
    assert "".join(tokenizer.decode(empty.prompt).split()) == "".join(template.split())
    inside = len(whole.prompt) - len(empty.prompt)
    assert abs(inside - len(ids_of(tokenizer, middle))) <= 1  # a token may span the seam
    lost: list[int] = []
    for seed in range(60):
        row = encoder.with_drops(LONG, 0.1, random.Random(seed))
        assert is_within(row.prompt, whole.prompt)
        assert is_within(empty.prompt, row.prompt)
        assert (row.answer, row.truncated) == (whole.answer, False)
        lost.append(len(whole.prompt) - len(row.prompt))
    assert abs(sum(lost) / (60 * inside) - 0.1) < 5 * (0.09 / (60 * inside)) ** 0.5
    assert len(set(lost)) > 3
    stream = random.Random(3)
    first, second = (encoder.with_drops(LONG, 0.3, stream) for _ in range(2))
    assert first != second  # the stream goes on, and repeats from its seed
    assert encoder.with_drops(LONG, 0.3, random.Random(3)) == first


# ---- what a model cannot read or write


def task_of(*answers: str, text: str = "word1") -> Task:
    """A task whose training and test examples have these answers."""
    train, test = (
        tuple(Example(f"t/{split}/{n}", "Say.", text, answer) for n, answer in enumerate(answers))
        for split in ("train", "test")
    )
    return Task("t", train, test, "rouge_l", None)


def test_control_tokens_in_answers_are_refused_and_in_inputs_are_not() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    encoder = Encoder(tokenizer, 512)
    for control in tokenizer.all_special_tokens:
        with pytest.raises(InputError) as refused:
            encoder.encode_all(task_of("yes", f"yes {control} end"), 128)
        assert "t/train/1" in str(refused.value)
        assert repr(control) in str(refused.value)
        encoder.encode_all(task_of("yes", text=f"word {control} word"), 128)
    asks = Message("user", "Say.")
    talk = Example("t/train/2", "", "", f"yes {control} end", (asks,))
    with pytest.raises(InputError, match="t/train/2"):
        encoder.encode_all(Task("t", (talk,), (), "rouge_l", None), 128)
    plain = Example("t/train/0", "", "", "a text with <|endoftext|> of a template")
    encoder.encode_all(Task("t", (plain,), (), "rouge_l", None), 128)


def test_tokens_without_an_embedding_are_refused() -> None:
    """The highest token of an example is that of its EOS, or of a word."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    task = task_of("yes", text="word1 word2")
    highest = max(*ids_of(tokenizer, ALPACA.text(task.train[0])), *ids_of(tokenizer, "yes"))
    Encoder(tokenizer, 512, Limits(highest + 1)).encode_all(task, 128)
    with pytest.raises(InputError, match=f"t/train/0: .* token {highest} ") as refused:
        Encoder(tokenizer, 512, Limits(highest)).encode_all(task, 128)
    assert refused.value.key == "model.name"


def test_more_tokens_than_positions_are_refused() -> None:
    """A test prompt needs room for what is decoded after it, too."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    task = task_of("yes")
    length = len(ids_of(tokenizer, ALPACA.text(task.test[0])))
    Encoder(tokenizer, length + 8, Limits(None, length + 8)).encode_all(task, 8)
    for max_length, new in ((length + 9, 8), (length + 8, 9)):
        with pytest.raises(InputError) as refused:
            Encoder(tokenizer, max_length, Limits(None, length + 8)).encode_all(task, new)
        assert refused.value.key == "model.max_length"


def test_a_tokenizer_that_panics_is_one_line() -> None:
    """Rust's panic is no Exception; this expression backtracks without end."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    endless = Regex(r"(\w*\s*)*\d{50}")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(endless, "isolated")
    with pytest.raises(InputError, match="tokenizer") as refused:
        Encoder(tokenizer, 512).encode_all(task_of("yes", text="word " * 60), 128)
    assert refused.value.key == "model.name"
