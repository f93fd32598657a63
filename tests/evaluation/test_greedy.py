"""A queue of prompts: each answer is the likeliest token by token, whatever is answered with it."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, Qwen3Config

from forever.config.parts import ModelConfig
from forever.data.encoding import Encoded
from forever.evaluation import greedy
from forever.models import attention, lora
from forever.models.backbone import Backbone
from forever.models.cache import Cache, Turn

WORDS, LIMIT = 60, 7
ENDS = [*range(3, WORDS, 7)]
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "head_dim": 8,
    "initializer_range": 0.5,  # far from a model that says one word
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=6),
    "grouped": LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=3),
}
GATES: dict[str, Callable[[Sequence[Encoded]], Tensor] | None] = {
    "none": None,
    "alike": lambda prompts: torch.tensor([0.3, -1.0]),
    "two kinds": lambda prompts: torch.eye(2)[[len(prompt.prompt) % 2 for prompt in prompts]],
    "each its own": lambda prompts: torch.tensor([[0.1 * sum(p.prompt), 1.0] for p in prompts]),
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def backbone(request: pytest.FixtureRequest) -> Backbone:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    model.generation_config = GenerationConfig(eos_token_id=ENDS, pad_token_id=0)
    backbone = Backbone(model, None, attention.register(model))
    assert backbone.unpackable is None
    lora.adapt(model, ModelConfig(rank=2, targets=("q_proj", "v_proj")), seed=0, adapters=2)
    for _, bank in lora.banks(model):
        torch.nn.init.normal_(bank.B, std=0.5)
    model.eval()
    return backbone


def queue() -> tuple[list[Encoded], list[str]]:
    """Prompts of four tasks: long, short, one alone, and one whose prompts continue each other."""
    stream = random.Random(3)

    def words(count: int) -> tuple[int, ...]:
        return tuple(stream.randrange(WORDS) for _ in range(count))

    prompts: list[tuple[str, tuple[int, ...]]] = []
    for task, (length, count) in {"a": (9, 7), "b": (3, 8), "alone": (4, 1)}.items():
        start = words(length)
        for _ in range(count):
            prompts.append((task, start + words(stream.randrange(1, 9))))
    chain = words(8)
    prompts += [("chain", chain[:length]) for length in (3, 8, 5, 8)]
    stream.shuffle(prompts)
    return [Encoded(ids, (), False) for _, ids in prompts], [task for task, _ in prompts]


def margins(backbone: Backbone, gate: Any, prompt: Encoded, answer: list[int]) -> Tensor:
    """How far each token is from being the likeliest, by a pass over the whole text, uncached."""
    ids = torch.tensor([[*prompt.prompt, *answer[:-1]]])
    weights = gate([prompt]) if gate else None
    with torch.no_grad(), lora.mixed(backbone.model, weights):
        logits = backbone.model(input_ids=ids, use_cache=False).logits[0, -len(answer) :]
    return logits.amax(-1) - logits[range(len(answer)), answer]


@pytest.mark.parametrize("gate", list(GATES))
@pytest.mark.parametrize("room", [16384, 80, 1], ids=["all at once", "replaced", "one by one"])
def test_every_token_is_the_likeliest(
    backbone: Backbone, gate: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers end after different numbers of tokens, by a sign of the model or the limit."""
    monkeypatch.setattr(greedy, "TOKENS_AT_ONCE", room)
    monkeypatch.setattr(greedy, "TOKENS_READ", 20)
    prompts, tasks = queue()
    answers = greedy.answer(backbone, prompts, tasks, LIMIT, GATES[gate], lambda *_: False)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert not {*answer[:-1]} & {*ENDS}
        assert len(answer) == LIMIT or answer[-1] in ENDS
        assert margins(backbone, GATES[gate], prompt, answer).max() < 1e-3
    assert len({len(answer) for answer in answers}) > 2
    assert len({tuple(answer) for answer in answers}) > 10


def test_half_precision(backbone: Backbone) -> None:
    """Autocast leaves keys in fp32 and makes values bf16; tokens are the likeliest but for that."""
    prompts, tasks = queue()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answers = greedy.answer(backbone, prompts, tasks, 2, None, lambda *_: False)
    whole = greedy.answer(backbone, prompts, tasks, 2, None, lambda *_: False)
    same = [answer == other for answer, other in zip(answers, whole, strict=True)]
    assert sum(same) > len(same) / 2


def test_an_instruction_is_read_once_and_rows_are_kept_full(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, tasks = queue()
    monkeypatch.setattr(greedy, "TOKENS_AT_ONCE", 8 * 19)  # 8 rows
    sizes: list[int] = []
    turns: list[Turn] = []

    def watch(_: Any, __: Any, options: dict[str, Any]) -> None:
        sizes.append(options["input_ids"].numel())
        if isinstance(options["layout"], Turn):
            turns.append(options["layout"])

    handle = backbone.model.register_forward_pre_hook(watch, with_kwargs=True)
    greedy.answer(backbone, prompts, tasks, LIMIT, None, lambda *_: False)
    handle.remove()
    assert sizes[0] == 9 + 3 + 2  # what all prompts of "a", "b" and "chain" begin with
    assert len(turns) == len(sizes) - 1
    assert turns[0].cache.count * turns[0].cache.width <= greedy.TOKENS_AT_ONCE
    read = [size for size, turn in zip(sizes[1:], turns, strict=True) if len(turn.places[0]) > 1]
    assert sum(read) <= sum(len(prompt.prompt) for prompt in prompts) - 7 * 9 - 8 * 3 - 4 * 2
    steps = [size for size, turn in zip(sizes[1:], turns, strict=True) if len(turn.places[0]) == 1]
    assert max(steps) <= 8
    assert all(size > 6 for size in steps[:5])  # a quarter of the rows may be free


def test_rows_move() -> None:
    cache = Cache(4, 2)
    keys, values = cache.of(0, *torch.zeros(2, 1, 1, 1, 3))
    keys += torch.arange(4.0)[:, None, None, None]
    values -= torch.arange(4.0)[:, None, None, None]
    cache.move([3, 2], [0, 1])
    assert keys[:, 0, 0, 0].tolist() == [3, 2, 2, 3]
    assert values[:, 0, 1, 2].tolist() == [-3, -2, -2, -3]


def test_values_may_be_narrower_than_keys() -> None:
    """As in DeepSeek's attention."""
    cache = Cache(count=3, width=5)
    keys, values = cache.of(0, torch.ones(2, 1, 1, 8), torch.ones(2, 1, 1, 6))
    assert (keys.shape, values.shape) == ((3, 2, 5, 8), (3, 2, 5, 6))
    assert [states.shape for states in cache.trunk[0]] == [(2, 0, 8), (2, 0, 6)]
