"""Packed and padded batches, against values by hand and against each other."""

from dataclasses import replace

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from forever.data import collation
from forever.data.collation import Collated, collate_prompts, pack, pad, shared_beginnings
from forever.data.encoding import Encoded
from forever.models.attention import register

CPU = torch.device("cpu")
SMALL = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2}
HEADS = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}


def encoded(prompt: tuple[int, ...], *answer: int) -> Encoded:
    return Encoded(prompt, answer, False)


A, B, C = encoded((1, 2, 3), 4, 9), encoded((1, 2, 5), 6, 9), encoded((7,), 9)


def test_a_packed_batch_by_hand() -> None:
    batch = pack([B, A, C], [0, 0, 0], CPU)
    #        A: 1 2 3 4 9   B: 5 6 9   C: 7 9
    assert batch.inputs["input_ids"].tolist() == [[1, 2, 3, 4, 9, 5, 6, 9, 7, 9]]
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 0, 1]]
    assert batch.counts.tolist() == [[2, 2, 1, 1, 1, 1, 1, 1, 1, 1]]
    assert batch.owners.tolist() == [[1, 1, 1, 1, 1, 0, 0, 0, 2, 2]]
    assert batch.places.tolist() == [0, 1, 5, 6, 7, 0, 1, 2, 3, 4, 8, 9]  # of B, A and C
    assert batch.predicts.tolist() == [5, 6, 2, 3, 8]
    assert batch.targets.tolist() == [6, 9, 4, 9, 9]
    layout = batch.inputs["layout"]
    assert layout.rows.tolist() == [[0, 1, 5, 6, 7], [0, 1, 2, 3, 4], [8, 9, 9, 9, 9]]
    assert layout.back.tolist() == [5, 6, 7, 8, 9, 2, 3, 4, 10, 11]
    sees = ["X", "XX", "XXX", "XXXX", "XXXXX", "XX   X", "XX   XX", "XX   XXX", " " * 8 + "X"]
    sees.append(" " * 8 + "XX")
    for row, pattern in zip(layout.mask.tolist(), sees, strict=True):
        assert row == [0 if mark == "X" else -torch.inf for mark in pattern.ljust(10)]


def test_a_mask_is_made_where_it_is_less_work_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collation, "_FEW_TOKENS", 0)
    alike = pack([encoded((1, 2, 3, 4, 5), last) for last in range(4)], [0] * 4, CPU)
    assert alike.inputs["layout"].mask.shape == (9, 9)  # 81 < 4 * 36
    apart = pack([encoded((first, 2, 3), 4) for first in range(4)], [0] * 4, CPU)
    assert apart.inputs["layout"].mask is None  # 256 > 4 * 16
    monkeypatch.setattr(collation, "_FEW_TOKENS", 16)
    apart = pack([encoded((first, 2, 3), 4) for first in range(4)], [0] * 4, CPU)
    assert apart.inputs["layout"].mask.shape == (16, 16)


def test_a_padded_batch_by_hand() -> None:
    batch = pad([A, C], 0, CPU)
    assert batch.inputs["input_ids"].tolist() == [[1, 2, 3, 4, 9], [7, 9, 0, 0, 0]]
    assert batch.counts.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.places.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert batch.predicts.tolist() == [2, 3, 5]
    assert batch.targets.tolist() == [4, 9, 9]


def test_prompts_are_padded_on_the_left() -> None:
    ids, mask = collate_prompts([encoded((1, 2, 3)), encoded((4,))], 0, CPU)
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_only_examples_of_one_kind_share() -> None:
    assert list(shared_beginnings([A, B, A], [0, 1, 0])) == [(0, 0), (2, 5), (1, 0)]
    assert pack([A, A], [0, 0], CPU).inputs["input_ids"].shape == (1, 5)
    assert pack([A, A], [0, 1], CPU).inputs["input_ids"].shape == (1, 10)


def logits(model: torch.nn.Module, batch: Collated) -> torch.Tensor:
    return model(**batch.inputs).logits.flatten(0, 1)[batch.predicts]


def test_packed_examples_have_the_logits_and_the_gradient_of_padded_ones() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL, **HEADS))
    assert register(model) is None
    gradients = []
    masked, by_rows = (pack([B, A, C, A], [0] * 4, CPU) for _ in range(2))
    by_rows.inputs["layout"] = replace(by_rows.inputs["layout"], mask=None)
    for batch in (masked, by_rows, pad([B, A, C, A], 0, CPU)):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits(model, batch), batch.targets)
        loss.backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat([loss.detach()[None], *grads]))
    *packed, padded = gradients
    for gradient in packed:
        assert (gradient - padded).norm() <= 1e-5 * padded.norm()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SMALL, **HEADS, sliding_window=4)), "attend"),
        (lambda: MambaForCausalLM(MambaConfig(**SMALL, state_size=4)), "layers"),
    ],
)
def test_a_model_that_cannot_be_packed_is_left_as_it_was(model, reason: str) -> None:
    made = model()
    before = made.config._attn_implementation
    assert reason in (register(made) or "")
    assert made.config._attn_implementation == before
