"""Greedy answers to a queue of prompts, many at once; none of them waits for the slowest.

What prompts of one instruction begin with is read once (see `models.cache`). The rest of a few
prompts is then read in one packed sequence, whenever there is room for them; each step of decoding
adds one token to every answer that has not ended.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from forever.data.collation import alike, kinds_of, pack, shared_beginnings
from forever.data.encoding import Encoded
from forever.models import lora
from forever.models.backbone import Backbone, only_at
from forever.models.cache import Cache, Turn
from forever.models.device import fitting
from forever.stopping import pulse

# Tokens that rows of the cache have room for, which bounds its memory. Fewer answers at once make
# slower steps: a row of 128 costs a processor half of what one of 32 does.
TOKENS_AT_ONCE = 16384
# Tokens of prompts that are read in one pass, which bounds the memory of that.
TOKENS_READ = 4096
# Prompts are read when this part of the rows is free; a pass over fewer costs more a token.
FREE = 0.25
# Weights of the adapters for a batch of prompts: see `Method.gate`.
Gate = Callable[[Sequence[Encoded]], Tensor | None]
# Says of a prompt's number and its answer so far whether the rest of it is of no interest.
Over = Callable[[int, list[int]], bool]


@torch.inference_mode()
def answer(
    backbone: Backbone,
    prompts: Sequence[Encoded],
    openings: Sequence[str],
    limit: int,
    gate: Gate | None,
    over: Over,
) -> list[list[int]]:
    """Answer each prompt with the likeliest tokens, up to its end or to `limit` tokens.

    Args:
        openings: what each prompt begins with; only those of one opening share anything.
    """
    backbone.model.eval()
    if not prompts:  # a rank may have none, of which no gate could be computed
        return []
    plan = _plan(prompts, openings, limit, gate)
    usual = min(len(prompts), max(1, TOKENS_AT_ONCE // plan.width))

    def answers(most: int) -> list[list[int]]:
        queue = _Queue(backbone, prompts, plan, limit, over, most, most / usual)
        queue.empty()
        return queue.answers

    texts, backbone.queued = fitting(answers, usual, backbone.queued, "answers")
    return texts


@dataclass(frozen=True)
class _Plan:
    """What prompts have in common, and how long a row of the cache is that has room for each."""

    weights: Tensor | None  # of the adapters, for a prompt and all that follows it
    kinds: list[int]
    order: list[int]  # of the prompts; neighbours share the most
    starts: list[int]  # how many tokens all prompts of the same kind begin with
    rests: list[Encoded]  # what comes after that beginning
    width: int


def _plan(
    prompts: Sequence[Encoded], openings: Sequence[str], limit: int, gate: Gate | None
) -> _Plan:
    weights = gate(prompts) if gate else None
    kinds = kinds_of(openings, weights)
    order = [i for i, _ in shared_beginnings(prompts, kinds)]
    shared = _shared_by_kind([(kinds[i], prompts[i].prompt) for i in order])
    starts = [shared[kind] for kind in kinds]
    rests: list[Encoded] = []
    for encoded, start in zip(prompts, starts, strict=True):
        rests.append(replace(encoded, prompt=encoded.prompt[start:]))
    width = max(len(rest.prompt) for rest in rests) + limit
    return _Plan(weights, kinds, order, starts, rests, width)


class _Queue:
    """Prompts that wait, and answers that are being written, each in a row of the cache."""

    def __init__(
        self,
        backbone: Backbone,
        prompts: Sequence[Encoded],
        plan: _Plan,
        limit: int,
        over: Over,
        count: int,
        share: float,
    ) -> None:
        self.backbone, self.limit, self.over, self.count = backbone, limit, over, count
        self.ends = {*backbone.model.generation_config.eos_token_id}
        self.weights, self.kinds = plan.weights, plan.kinds
        self.starts, self.rests = plan.starts, plan.rests
        self.waiting = deque(plan.order)
        self.active: list[int] = []  # the prompt of each row that is in use
        self.newest = torch.tensor([], dtype=torch.long, device=backbone.device)  # their last token
        self.answers: list[list[int]] = [[] for _ in prompts]
        self.read_at_once = TOKENS_READ * share
        self.cache = Cache(count, plan.width)
        self.spans = self._read_beginnings(prompts)

    def empty(self) -> None:
        """Answer all prompts."""
        while self.waiting or self.active:
            pulse()
            if self.waiting and len(self.active) <= (1 - FREE) * self.count:
                self._read()
            else:
                self._step()

    def _read_beginnings(self, prompts: Sequence[Encoded]) -> dict[int, tuple[int, int]]:
        """Read what the prompts of a kind begin with; say where each kind's is in the trunk."""
        from transformers import DynamicCache

        first: dict[int, int] = {}
        for i, kind in enumerate(self.kinds):
            first.setdefault(kind, i)
        spans: dict[int, tuple[int, int]] = dict.fromkeys(first, (0, 0))
        chosen = [i for i in first.values() if self.starts[i]]
        if not chosen:
            return spans
        heads = [replace(prompts[i], prompt=prompts[i].prompt[: self.starts[i]]) for i in chosen]
        batch = pack(heads, range(len(heads)), self.backbone.device)
        read = DynamicCache()
        gate = self._gate(chosen, batch.owners)
        with lora.mixed(self.backbone.model, gate), only_at(self.backbone.model, batch.places[:1]):
            self.backbone.model(**batch.inputs, past_key_values=read, use_cache=True)
        layers: list[Any] = read.layers
        for number, layer in enumerate(layers):
            self.cache.trunk[number] = layer.keys[0], layer.values[0]
        begin = 0
        for i in chosen:
            spans[self.kinds[i]] = begin, begin + self.starts[i]
            begin += self.starts[i]
        return spans

    def _read(self) -> None:
        """Read the rest of as many waiting prompts of one beginning as there is room for."""
        group: list[int] = []
        longest = 0
        beginning = self.spans[self.kinds[self.waiting[0]]]
        while self.waiting and len(self.active) + len(group) < self.count:
            first = self.waiting[0]
            longest = max(longest, len(self.rests[first].prompt))
            too_many = bool(group) and longest * (len(group) + 1) > self.read_at_once
            if too_many or self.spans[self.kinds[first]] != beginning:
                break
            group.append(self.waiting.popleft())
        device = self.backbone.device
        batch = pack([self.rests[i] for i in group], [self.kinds[i] for i in group], device)
        layout = batch.inputs["layout"]
        starts = torch.tensor([self.starts[i] for i in group], device=device)
        lengths = torch.tensor([len(self.rests[i].prompt) for i in group], device=device)
        inputs = {
            "input_ids": batch.inputs["input_ids"],
            "position_ids": batch.inputs["position_ids"] + starts[batch.owners],
            "layout": self._turn(group, layout.rows, layout.back, [0] * len(group)),
        }
        ends = layout.rows.gather(1, lengths[:, None] - 1)[:, 0]
        self._go_on(group, inputs, batch.owners, ends)

    def _step(self) -> None:
        """Add a token to every answer."""
        numbers = torch.arange(len(self.active), device=self.backbone.device)
        depths = [len(self.rests[i].prompt) + len(self.answers[i]) - 1 for i in self.active]
        places = [self.starts[i] + depth for i, depth in zip(self.active, depths, strict=True)]
        group, self.active = self.active, []
        inputs = {
            "input_ids": self.newest[None],
            "position_ids": torch.tensor([places], device=numbers.device),
            "layout": self._turn(group, numbers[:, None], numbers, depths),
        }
        self._go_on(group, inputs, numbers[None], numbers)

    def _gate(self, group: Sequence[int], owners: Tensor) -> Tensor | None:
        """The weights of the adapters for tokens that belong to `owners` [1, T] in the group."""
        if self.weights is None or self.weights.dim() == 1:
            return self.weights
        return self.weights[list(group)][owners]

    def _turn(self, group: Sequence[int], rows: Tensor, back: Tensor, depths: list[int]) -> Turn:
        """What new tokens see, in rows behind the active ones that have `depths` tokens."""
        device, length = rows.device, rows.shape[1]
        spans = [self.spans[self.kinds[i]] for i in group]
        low = min((begin for begin, end in spans if end), default=0)
        high = max(end for _, end in spans)
        begins, ends = torch.tensor(spans, device=device).T[..., None]
        trunk = torch.arange(low, high, device=device)
        places = torch.arange(length, device=device) + torch.tensor(depths, device=device)[:, None]
        of_trunk = (trunk >= begins) & (trunk < ends)
        of_row = torch.arange(max(depths) + length, device=device) <= places[..., None]
        sees = torch.cat([of_trunk[:, None].expand(-1, length, -1), of_row], dim=-1)
        mask = torch.zeros(sees.shape, device=device).masked_fill_(~sees, float("-inf"))
        first = len(self.active)
        return Turn(self.cache, slice(low, high), first, rows, back, places, mask[:, None, None])

    def _go_on(
        self, group: list[int], inputs: dict[str, Any], owners: Tensor, ends: Tensor
    ) -> None:
        """Add the token that comes after each of `ends` to the group's answers."""
        model = self.backbone.model
        unused = torch.ones(1, 1, 1, 1, device=ends.device)  # without a mask a model makes its own
        with lora.mixed(model, self._gate(group, owners)), only_at(model, ends):
            logits = model(**inputs, attention_mask=unused, use_cache=False).logits[0]
        tokens = logits.argmax(-1)
        first = len(self.active)
        self.newest = torch.cat([self.newest[:first], tokens])
        self.active += group
        ended: list[int] = []
        for row, token in enumerate(tokens.tolist(), first):
            number = self.active[row]
            text = self.answers[number]
            text.append(token)
            if token in self.ends or len(text) == self.limit or self.over(number, text):
                ended.append(row)
        self._drop(ended)

    def _drop(self, ended: Sequence[int]) -> None:
        """Free rows; the last ones move into the gaps."""
        left = len(self.active) - len(ended)
        gaps = [row for row in ended if row < left]
        moved = sorted({*range(left, len(self.active))} - {*ended})
        if gaps:
            self.cache.move(moved, gaps)
            self.newest[gaps] = self.newest[moved]
            for gap, row in zip(gaps, moved, strict=True):
                self.active[gap] = self.active[row]
        self.newest = self.newest[:left]
        del self.active[left:]


def _shared_by_kind(texts: Sequence[tuple[int, tuple[int, ...]]]) -> dict[int, int]:
    """How many tokens all prompts of a kind begin with, at least one less than they have.

    Nothing if there is only one. `texts` are sorted pairs of a kind and a prompt.
    """
    shared: dict[int, int] = {}
    for kind, group in groupby(texts, key=itemgetter(0)):
        prompts = [prompt for _, prompt in group]
        shared[kind] = 0
        if len(prompts) > 1:
            shared[kind] = min(alike(prompts[0], prompts[-1]), min(map(len, prompts)) - 1)
    return shared
