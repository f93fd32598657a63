"""What is supervised, what may be cut, and where the numbers of a batch lie."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forever.data.encoding import Encoded, Encoder, collate, collate_prompts
from forever.data.prompts import prompt, prompt_parts
from forever.data.tasks import Benchmark, Example
from forever.errors import InputError
from forever.models.location import TINY

CPU = torch.device("cpu")
LONG = Example(
    "t/train/0",
    "Say yes or no.",
    " ".join(f"word{i} is, well: été nº{i}!" for i in range(25)),
    "yes indeed",
)


@pytest.fixture(scope="module", params=["toy", "tiny"])
def tokenizer(request: pytest.FixtureRequest, backbone_folder: Path) -> Any:
    """A word-level and a byte-level BPE tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(backbone_folder if request.param == "toy" else TINY)


def text(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


# ---- supervision


def test_supervised_tokens_are_answer_and_eos_for_every_record(
    tokenizer: Any, benchmark_of_three: Benchmark
) -> None:
    encoder = Encoder(tokenizer, 512)
    for task in benchmark_of_three.tasks:
        for example in task.train:
            row = encoder.encode(example)
            answer = tokenizer(example.output, add_special_tokens=False).input_ids
            assert row.answer == (*answer, tokenizer.eos_token_id)
            assert row.prompt == tuple(
                tokenizer(prompt(example), add_special_tokens=False).input_ids
            )
            assert not row.truncated
            _, _, positions, targets = collate([row], tokenizer.pad_token_id, CPU)
            assert positions.sum() == len(targets) == len(answer) + 1


def test_blanks_of_an_answer_are_kept_in_training() -> None:
    """All of task1572's answers carry them (docs/protocol.md)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    row = Encoder(tokenizer, 512).encode(Example("a", "q", "i", " yes "))
    assert row.answer[:-1] == tuple(tokenizer(" yes ", add_special_tokens=False).input_ids)
    assert row.answer[:-1] != tuple(tokenizer("yes", add_special_tokens=False).input_ids)


def test_training_and_decoding_see_the_same_prompt(
    tokenizer: Any, benchmark_of_three: Benchmark
) -> None:
    encoder = Encoder(tokenizer, 512)
    for example in benchmark_of_three.tasks[0].train:
        decoded = encoder.encode_prompt(example)
        assert decoded.prompt == encoder.encode(example).prompt
        assert decoded.answer == ()


def test_template() -> None:
    assert prompt(Example("a", "Do it.", "With this.", "x")) == (
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nDo it.\n\n### Input:\nWith this.\n\n### Response:\n"
    )
    assert prompt(Example("a", "Do it.", "", "x")) == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n"
        "### Instruction:\nDo it.\n\n### Response:\n"
    )


def test_parts_make_the_prompt_and_the_input_is_the_middle() -> None:
    before, middle, after = prompt_parts(LONG)
    assert before + middle + after == prompt(LONG)
    assert middle == LONG.input


# ---- truncation


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 7, 20, 100])
@pytest.mark.parametrize("training", [True, False])
def test_only_the_end_of_the_input_is_cut(tokenizer: Any, training: bool, spare: int) -> None:
    ids = lambda t: tuple(tokenizer(t, add_special_tokens=False).input_ids)  # noqa: E731
    before, middle, after = prompt_parts(LONG)
    answer = (*ids(LONG.output), tokenizer.eos_token_id)
    least = len(ids(before + after)) + (len(answer) if training else 0)
    limit = least + spare + 2  # the seams of the input may tokenise a little differently
    encoder = Encoder(tokenizer, limit)
    row = encoder.encode(LONG) if training else encoder.encode_prompt(LONG)
    length = len(row.prompt) + len(row.answer)
    assert row.truncated
    assert length <= limit
    assert length >= limit - 4  # and no more is cut than must be
    assert row.answer == (answer if training else ())
    whole = [text(tokenizer, ids(before)), text(tokenizer, ids(after))]
    cut = text(tokenizer, row.prompt)
    assert cut.startswith(whole[0].rstrip())
    assert cut.endswith(whole[1].lstrip())
    # what is left of the input is the beginning of the input
    kept = next(
        n for n in range(len(middle), -1, -1) if ids(before + middle[:n] + after) == row.prompt
    )
    assert kept < len(middle)


def test_exactly_fitting_is_not_cut(tokenizer: Any) -> None:
    free = Encoder(tokenizer, 10**6)
    row = free.encode(LONG)
    length = len(row.prompt) + len(row.answer)
    assert Encoder(tokenizer, length).encode(LONG) == row
    assert not Encoder(tokenizer, length).encode(LONG).truncated
    shorter = Encoder(tokenizer, length - 1).encode(LONG)
    assert shorter.truncated
    # And hardly more is cut than must be.
    assert length - 3 <= len(shorter.prompt) + len(shorter.answer) <= length - 1
    # Decoding needs no room for the answer.
    assert not Encoder(tokenizer, length - 1).encode_prompt(LONG).truncated


def test_truncated_rows_are_counted(tokenizer: Any) -> None:
    short = replace(LONG, id="short", input="word")
    encoder = Encoder(tokenizer, len(Encoder(tokenizer, 10**6).encode(short).prompt) + 40)
    assert encoder.truncated([LONG, short, LONG, short, short]) == 2


def test_error_if_nothing_can_be_cut(tokenizer: Any) -> None:
    least = len(
        tokenizer(
            "".join(prompt_parts(replace(LONG, input=""))), add_special_tokens=False
        ).input_ids
    )
    encoder = Encoder(tokenizer, least)  # no room for an answer
    for example in (LONG, replace(LONG, input="")):
        with pytest.raises(
            InputError,
            match=r"example t/train/0: \d+ prompt tokens without its input, .*model.max_length",
        ):
            encoder.encode(example)


def test_input_of_blanks_alone_ends(tokenizer: Any) -> None:
    blank = replace(LONG, input=" " * 50)
    least = len(
        tokenizer(
            "".join(prompt_parts(replace(LONG, input="x"))), add_special_tokens=False
        ).input_ids
    )
    row = Encoder(tokenizer, least + 1).encode_prompt(blank)
    assert len(row.prompt) <= least + 1


# ---- begin of sequence


def bos_tokenizer(adds: bool) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {"<bos>": 0, "<eos>": 1, "<pad>": 2, "<unk>": 3, "a": 4, "b": 5}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds:
        inner.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


@pytest.mark.parametrize("adds", [True, False])
def test_bos_is_put_once_before_the_prompt_if_the_tokenizer_does_so(adds: bool) -> None:
    encoder = Encoder(bos_tokenizer(adds), 256)
    row = encoder.encode(Example("x", "a", "a b a b", "b"))
    assert (row.prompt[0] == 0) is adds
    assert 0 not in row.prompt[1:]
    assert row.answer == (5, 1)  # no second BOS before the answer
    assert encoder.encode_prompt(Example("x", "a", "a b a b", "b")).prompt == row.prompt


def test_bos_survives_truncation_and_counts() -> None:
    tokenizer = bos_tokenizer(True)
    example = Example("x", "a", "a b " * 50, "b")
    limit = len(Encoder(tokenizer, 1000).encode(example).prompt) - 30
    row = Encoder(tokenizer, limit).encode(example)
    assert row.prompt[0] == 0
    assert len(row.prompt) + len(row.answer) == limit


def test_appended_eos_is_not_taken_for_bos() -> None:
    """Tokenizers that end a text with EOS (and have no BOS) must not start the prompt with it."""
    from tokenizers import processors

    own = bos_tokenizer(False)
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    row = Encoder(own, 256).encode(Example("x", "a", "a", "b"))
    assert row.prompt[0] != 1
    assert row.answer == (5, 1)


# ---- collation


def test_collate_by_hand() -> None:
    rows = [
        Encoded((11, 12, 13), (21, 9), False),
        Encoded((14,), (22, 23, 24, 9), False),
        Encoded((15, 16), (9,), False),
    ]
    ids, real, positions, targets = collate(rows, 0, CPU)
    assert ids.tolist() == [[11, 12, 13, 21, 9], [14, 22, 23, 24, 9], [15, 16, 9, 0, 0]]
    assert real.long().tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    # a position is marked if the token after it is supervised: from the last prompt token to the
    # one before EOS
    assert positions.long().tolist() == [[0, 0, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 0, 0, 0]]
    assert targets.tolist() == [21, 9, 22, 23, 24, 9, 9]


def test_marked_positions_precede_their_targets_in_order(
    benchmark_of_three: Benchmark, tokenizer: Any
) -> None:
    rows = [Encoder(tokenizer, 512).encode(e) for e in benchmark_of_three.tasks[2].train[:6]]
    ids, _, positions, targets = collate(rows, tokenizer.pad_token_id, CPU)
    following = torch.roll(ids, -1, dims=1)
    assert torch.equal(following[positions], targets)


def test_collate_prompts_by_hand() -> None:
    ids, mask = collate_prompts([Encoded((1, 2, 3), (), False), Encoded((4,), (), False)], 0, CPU)
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


# ---- dropped tokens


def is_within(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether `part` is `whole` with some tokens left out."""
    rest: Iterator[int] = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.parametrize("limit", [10**6, 150])
def test_nothing_dropped_is_the_training_row(
    tokenizer: Any, benchmark_of_three: Benchmark, limit: int
) -> None:
    encoder = Encoder(
        tokenizer,
        limit if limit > 1000 else len(Encoder(tokenizer, 10**6).encode(LONG).prompt) - 20,
    )
    for example in (LONG, *benchmark_of_three.tasks[0].train, Example("e", "No input.", "", "yes")):
        assert encoder.with_drops(example, 0.0, random.Random(0)) == encoder.encode(example)
    assert encoder.encode(LONG).truncated == (limit < 1000)


def test_only_tokens_of_the_input_are_dropped(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, 10**6)
    whole = encoder.encode(LONG)
    before, middle, after = prompt_parts(LONG)
    empty = encoder.with_drops(LONG, 1 - 1e-12, random.Random(0))  # all that may go
    template = [
        text(tokenizer, tuple(tokenizer(part, add_special_tokens=False).input_ids))
        for part in (before, after)
    ]
    assert "".join(text(tokenizer, empty.prompt).split()) == "".join("".join(template).split())
    inside = len(whole.prompt) - len(empty.prompt)
    # A token may span the seam.
    assert abs(inside - len(tokenizer(middle, add_special_tokens=False).input_ids)) <= 1
    lost = []
    for seed in range(60):
        row = encoder.with_drops(LONG, 0.1, random.Random(seed))
        assert is_within(row.prompt, whole.prompt)
        assert is_within(empty.prompt, row.prompt)
        assert row.answer == whole.answer
        assert not row.truncated
        lost.append(len(whole.prompt) - len(row.prompt))
    assert abs(sum(lost) / (60 * inside) - 0.1) < 5 * (0.09 / (60 * inside)) ** 0.5
    assert len(set(lost)) > 3


def test_every_input_token_is_dropped_equally_often(backbone_folder: Path) -> None:
    from transformers import AutoTokenizer

    encoder = Encoder(AutoTokenizer.from_pretrained(backbone_folder), 256)
    example = Example("e", "What colour is it?", "red green blue round square", "red")
    whole = encoder.encode(example)
    words = encoder._ids(example.input)
    assert len(set(words)) == 5
    kept = dict.fromkeys(words, 0)
    for seed in range(1000):
        prompt_ids = encoder.with_drops(example, 0.3, random.Random(seed)).prompt
        for word in words:
            kept[word] += prompt_ids.count(word) - whole.prompt.count(word) + 1
    assert all(abs(n / 1000 - 0.7) < 5 * (0.21 / 1000) ** 0.5 for n in kept.values())


def test_drops_repeat_with_their_stream_and_go_on_with_it(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, 10**6)
    stream = random.Random(3)
    first, second = (encoder.with_drops(LONG, 0.3, stream) for _ in range(2))
    assert first != second
    assert encoder.with_drops(LONG, 0.3, random.Random(3)) == first


def test_drops_come_after_the_cut() -> None:
    """A view never shows what the row itself does not."""
    tokenizer = bos_tokenizer(True)
    example = Example("x", "a", "a " * 20 + "b " * 20, "b")
    encoder = Encoder(tokenizer, len(Encoder(tokenizer, 1000).encode(example).prompt) - 18)
    row = encoder.encode(example)
    assert row.truncated
    for seed in range(20):
        view = encoder.with_drops(example, 0.5, random.Random(seed))
        assert view.truncated
        assert view.prompt[0] == 0  # BOS stays
        assert is_within(view.prompt, row.prompt)
        assert view.prompt.count(5) <= row.prompt.count(5)


# ---- plain text


def test_plain_text_has_no_template_and_loses_its_beginning(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, 16)
    ids = tuple(tokenizer(LONG.input, add_special_tokens=False).input_ids)
    assert encoder.encode_text(LONG.input, len(ids)) == Encoded(ids, (), False)
    assert encoder.encode_text(LONG.input, len(ids) - 1) == Encoded(ids[1:], (), True)
    assert encoder.encode_text(LONG.input, 3) == Encoded(ids[-3:], (), True)
    assert encoder.count(LONG.input) == len(ids)
    assert encoder.count("") == 0


@pytest.mark.parametrize("adds", [True, False])
def test_bos_stays_before_plain_text_that_was_cut(adds: bool) -> None:
    encoder = Encoder(bos_tokenizer(adds), 256)
    assert encoder.encode_text("a b a b", 10).prompt == ((0,) if adds else ()) + (4, 5, 4, 5)
    assert encoder.encode_text("a b a b", 3).prompt == ((0, 4, 5) if adds else (5, 4, 5))
    assert encoder.encode_text("a b a b", 1).prompt == ((0,) if adds else (5,))
    assert encoder.count("a b a b") == 4  # of the text alone
