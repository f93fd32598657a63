"""Sampling: the right distribution, and the same text for a seed whatever shares the batch."""

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
TEXTS = ["red", "green round 3 blue", "old " * 12, "1 2 3 4 5 6 7", "square flat"]
TEXTS.append("What colour is it? Options: red, blue.")


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


def chi_square(found: Counter[str], expected: Counter[str], count: int) -> float:
    """Pearson's statistic in standard deviations from its mean; rare texts are one class."""
    observed, means = [0.0], [0.0]
    for text, p in expected.items():
        if p * count < 5:
            observed[0] += found[text]
            means[0] += p * count
        else:
            observed.append(found[text])
            means.append(p * count)
    terms = [(n - mean) ** 2 / mean for n, mean in zip(observed, means, strict=True) if mean > 1]
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
    expected: Counter[str] = Counter()
    uniform: Counter[str] = Counter()
    p = probabilities(backbone, row.prompt, how).tolist()
    for token, value in enumerate(p):
        text = text_of(backbone, [token])
        uniform[text] += 1 / len(p)
        if value:
            expected[text] += value
    found = Counter(sample(backbone, [row] * count, range(count), 1, how))
    assert found.keys() <= expected.keys()
    assert chi_square(found, expected, count) < 4
    assert chi_square(found, uniform, count) > 20  # the comparison can fail


def test_later_tokens_depend_on_earlier_ones(backbone: Backbone, encoder: Encoder) -> None:
    row, count = encoder.encode_text("blue", 10), 3000
    how = Sampling(temperature=2.0, top_k=4, repetition_penalty=1.3)
    expected: Counter[str] = Counter()
    for first, p in enumerate(probabilities(backbone, row.prompt, how).tolist()):
        if p and first == backbone.tokenizer.eos_token_id:
            expected[""] += p
        elif p:
            second = probabilities(backbone, [*row.prompt, first], how).tolist()
            for token, q in enumerate(second):
                if q:
                    expected[text_of(backbone, [first, token])] += p * q
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
    alone = [slice(i, i + 1) for i in range(len(prompts))]
    ranks = [slice(0, None, 2), slice(1, None, 2)]  # what each of two ranks would draw
    for share in (*alone, slice(None, None, -1), *ranks):
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
    cut = sample(backbone, prompts, seeds, limits, WARM)
    assert cut != sample(backbone, prompts, seeds, 9, WARM)
    for text, row, seed, limit in zip(cut, prompts, seeds, limits, strict=True):
        assert [text] == sample(backbone, [row], [seed], limit, WARM)


# ---- the repetition penalty


def test_repetition_penalty_is_once_a_token_and_ignores_pads() -> None:
    """Rows are left-padded by token 0, which is also EOS and must not become rarer by padding."""
    ids = torch.tensor([[4, 2, 4, 4], [0, 0, 0, 3], [0, 1, 0, 5]])
    starts = torch.tensor([0, 3, 1])
    scores = torch.tensor([[1.0, -2.0, 3.0, -4.0, 6.0, 0.5]] * 3)
    chain = decoding._processors(Sampling(repetition_penalty=2.0), starts, [1, 2, 3])
    assert chain[0](ids, scores.clone()).tolist() == [
        [1.0, -2.0, 1.5, -4.0, 3.0, 0.5],
        [1.0, -2.0, 3.0, -8.0, 6.0, 0.5],
        [0.5, -4.0, 3.0, -4.0, 6.0, 0.25],
    ]
    later = torch.cat([ids, torch.tensor([[5], [5], [4]])], dim=1)  # what was written counts, too
    assert chain[0](later, scores.clone())[:, 4:].tolist() == [
        [3.0, 0.25],
        [6.0, 0.25],
        [3.0, 0.25],
    ]


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
