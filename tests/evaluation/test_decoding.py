"""Sampling: the right distribution, and the same text for a seed whatever shares the batch. Greedy:
test_evaluate.py.

V vocabulary, T tokens of a prompt.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forever.config.parts import ModelConfig
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling, decode, sample
from forever.models import lora
from forever.models.backbone import Backbone, load

CPU = torch.device("cpu")
WARM = Sampling(temperature=1.3, top_p=0.9, repetition_penalty=1.5)
# Prompts of different lengths; each number is a word of its own.
TEXTS = [
    "red",
    "green round 3 blue",
    "old " * 12,
    "1 2 3 4 5 6 7",
    "What colour is it? Options: red, blue.",
    "square flat",
]


@pytest.fixture(scope="module")
def backbone(backbone_folder: Path) -> Backbone:
    return load(str(backbone_folder), torch.float32, CPU)


@pytest.fixture(scope="module")
def encoder(backbone: Backbone) -> Encoder:
    return Encoder(backbone.tokenizer, 256)


@pytest.fixture(scope="module")
def prompts(encoder: Encoder) -> list[Encoded]:
    rows = [encoder.encode_text(text, 100) for text in TEXTS]
    assert len({len(row.prompt) for row in rows}) == len(rows)
    return rows


# ---- the distribution


def probabilities(backbone: Backbone, ids: Sequence[int], how: Sampling) -> Tensor:
    """Of the next token [V], step by step as the papers say, in loops."""
    with torch.no_grad():
        scores = backbone.model(input_ids=torch.tensor([list(ids)])).logits[0, -1].double()
    for token in set(ids):  # Keskar et al. 2019: once, however often the token occurred
        scores[token] *= 1 / how.repetition_penalty if scores[token] > 0 else how.repetition_penalty
    p = (scores / how.temperature).softmax(0)
    ranked = p.argsort(descending=True).tolist()
    if how.top_k:
        p[ranked[how.top_k :]] = 0
    p, total, nucleus = p / p.sum(), 0.0, 0
    # Holtzman et al. 2020: the smallest set that holds top_p.
    while total < how.top_p and nucleus < len(ranked):
        total += p[ranked[nucleus]].item()
        nucleus += 1
    p[ranked[nucleus:]] = 0
    return p / p.sum()


def text_of(backbone: Backbone, ids: Sequence[int]) -> str:
    return backbone.tokenizer.decode(list(ids), skip_special_tokens=True).strip()


def chi_square(found: Counter[str], expected: dict[str, float], count: int) -> float:
    """Pearson's statistic in standard deviations from its mean; texts expected less than five times
    are one class."""
    rare = {text for text, p in expected.items() if p * count < 5}
    classes = [(found[text], p * count) for text, p in expected.items() if text not in rare]
    classes.append(
        (sum(found[text] for text in rare), sum(expected[text] for text in rare) * count)
    )
    terms = [(n - e) ** 2 / e for n, e in classes if e > 1]
    return (sum(terms) - (len(terms) - 1)) / max(2 * (len(terms) - 1), 1) ** 0.5


@pytest.mark.parametrize(
    "how",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0),
        Sampling(top_k=5),
        Sampling(top_p=0.6),
        Sampling(repetition_penalty=2.5),
        Sampling(temperature=0.9, top_p=0.6, repetition_penalty=1.2),
        Sampling(temperature=1.5, top_p=0.8, top_k=20, repetition_penalty=2.5),
    ],
    ids=str,
)
def test_tokens_come_with_their_probabilities(
    backbone: Backbone, encoder: Encoder, how: Sampling
) -> None:
    row, count = encoder.encode_text("red green red", 10), 3000
    p = probabilities(backbone, row.prompt, how)
    expected: dict[str, float] = {}
    for token, value in enumerate(p.tolist()):
        if value:
            text = text_of(backbone, [token])
            expected[text] = expected.get(text, 0.0) + value
    found = Counter(sample(backbone, [row] * count, range(count), 1, how))
    assert found.keys() <= expected.keys()
    assert chi_square(found, expected, count) < 4
    uniform = {text_of(backbone, [t]): 1 / len(p) for t in range(len(p))}
    assert chi_square(found, uniform, count) > 20  # the comparison can fail


def test_later_tokens_depend_on_earlier_ones(backbone: Backbone, encoder: Encoder) -> None:
    row, count, how = (
        encoder.encode_text("blue", 10),
        3000,
        Sampling(temperature=2.0, top_k=4, repetition_penalty=1.3),
    )
    expected: dict[str, float] = {}
    end = backbone.tokenizer.eos_token_id
    for first, p in enumerate(probabilities(backbone, row.prompt, how).tolist()):
        if not p:
            continue
        second = (
            probabilities(backbone, [*row.prompt, first], how).tolist() if first != end else [1.0]
        )
        for token, q in enumerate(second):
            text = text_of(backbone, [first, token] if first != end else [])
            if q:
                expected[text] = expected.get(text, 0.0) + p * q
    assert 12 <= len(expected) <= 16
    found = Counter(sample(backbone, [row] * count, range(count), 2, how))
    assert found.keys() <= expected.keys()
    assert chi_square(found, expected, count) < 4


def test_a_cold_sample_is_the_greedy_answer(backbone: Backbone, encoder: Encoder) -> None:
    examples = [Example(str(i), "Say it.", text, "") for i, text in enumerate(TEXTS)]
    rows = [encoder.encode_prompt(example) for example in examples]
    cold = sample(backbone, rows, range(len(rows)), 6, Sampling(temperature=1e-4))
    assert cold == decode(backbone, encoder, examples, 6)
    assert sample(backbone, rows, range(len(rows)), 6, Sampling(temperature=3.0)) != cold


# ---- the same text whatever shares the batch


def test_a_text_depends_on_its_prompt_and_seed_alone(
    backbone: Backbone, prompts: list[Encoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [2**62 + 7 * i for i in range(len(prompts))]
    together = sample(backbone, prompts, seeds, 10, WARM)
    assert len(set(together)) == len(prompts)
    alone = [
        sample(backbone, [row], [seed], 10, WARM)[0]
        for row, seed in zip(prompts, seeds, strict=True)
    ]
    assert together == alone
    backwards = sample(backbone, prompts[::-1], seeds[::-1], 10, WARM)
    assert backwards[::-1] == together
    for share in (slice(0, None, 2), slice(1, None, 2)):  # what each of two ranks would draw
        assert sample(backbone, prompts[share], seeds[share], 10, WARM) == together[share]
    monkeypatch.setattr(decoding, "_TOKENS_AT_ONCE", 25)
    assert sample(backbone, prompts, seeds, 10, WARM) == together


def test_repeats_and_leaves_the_global_random_numbers_alone(
    backbone: Backbone, prompts: list[Encoded]
) -> None:
    before = torch.random.get_rng_state(), random.getstate()
    seeds = list(range(len(prompts)))
    first = sample(backbone, prompts, seeds, 10, WARM)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(99)
    backbone.model.train()  # dropout would come with it
    assert sample(backbone, prompts, seeds, 10, WARM) == first
    assert not backbone.model.training


def test_each_prompt_has_its_own_limit(backbone: Backbone, prompts: list[Encoded]) -> None:
    seeds, limits = list(range(len(prompts))), [1, 9, 3, 2, 7, 4]
    whole = sample(backbone, prompts, seeds, 9, WARM)
    cut = sample(backbone, prompts, seeds, limits, WARM)
    assert [len(text.split()) for text in cut] != [len(text.split()) for text in whole]
    for text, longer, row, seed, limit in zip(cut, whole, prompts, seeds, limits, strict=True):
        assert longer.startswith(text)
        assert text == sample(backbone, [row], [seed], limit, WARM)[0]


# ---- the repetition penalty


def test_repetition_penalty_is_once_a_token_and_ignores_pads() -> None:
    """Rows as they are left-padded; pad is token 0, which is also EOS here and must not become
    rarer by padding."""
    pad, penalty = 0, 3.0
    rows = [[4, 2, 4, 4], [3], [1, 0, 5]]
    width = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    starts = torch.tensor([width - len(row) for row in rows])
    scores = torch.tensor([[1.0, -2.0, 3.0, -4.0, 5.0, 0.5]] * len(rows))
    chain = decoding._processors(Sampling(repetition_penalty=penalty), starts, [1, 2, 3])
    found = chain[0](ids, scores.clone())
    for row, before, after in zip(rows, scores.tolist(), found.tolist(), strict=True):
        expected = [
            s if t not in row else s / penalty if s > 0 else s * penalty
            for t, s in enumerate(before)
        ]
        assert after == pytest.approx(expected)
    later = torch.cat([ids, torch.tensor([[5], [5], [4]])], dim=1)  # what was written counts, too
    found = chain[0](later, scores.clone())
    assert found[:, 5].tolist() == pytest.approx([0.5 / 3, 0.5 / 3, 0.5 / 3])
    assert found[1, 0] == 1.0  # row 1 has pads and no token 0
    assert found[2, 0] == pytest.approx(1 / 3)  # row 2 has the token itself


# ---- with adapters


def test_disabled_adapters_and_closed_gates_leave_the_base_model(
    backbone: Backbone, backbone_folder: Path, prompts: list[Encoded]
) -> None:
    own = load(str(backbone_folder), torch.float32, CPU)
    lora.adapt(own.model, ModelConfig(rank=4, dropout=0.1), seed=0)
    stream = torch.Generator().manual_seed(0)
    for _, bank in lora.banks(own.model):
        torch.nn.init.normal_(bank.B, std=0.5, generator=stream)
    seeds = list(range(len(prompts)))
    base = sample(backbone, prompts, seeds, 8, WARM)
    assert sample(own, prompts, seeds, 8, WARM) != base
    assert sample(own, prompts, seeds, 8, WARM, lambda rows: torch.zeros(1)) == base
    with lora.disabled(own.model):
        assert sample(own, prompts, seeds, 8, WARM) == base
