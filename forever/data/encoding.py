"""From examples to token ids, which cuts long inputs."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from forever.data.prompts import prompt_parts
from forever.data.tasks import Example, Task
from forever.errors import InputError


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one example: the prompt, and the answer with EOS at its end."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    truncated: bool


class Encoder:
    """Turns examples into token ids, each example once.

    If an example is too long, the end of its input field gives way and everything else stays whole.
    Training and decoding cut by the same rule, decoding without room for the answer.

    Args:
        tokenizer: a fast Hugging Face tokenizer (it must give character offsets to cut by tokens).
        max_length: longest prompt plus answer in tokens.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        start = tokenizer("").input_ids  # what the tokenizer puts before any text: nothing, or BOS
        self._start = tuple(i for i in start[:1] if i == tokenizer.bos_token_id and i is not None)
        self.encode = cache(self._encode)
        self.encode_prompt = cache(self._encode_prompt)
        self._droppable = cache(self._find_droppable)

    def _encode(self, example: Example) -> Encoded:
        """Encode for training; the answer apart, because decoding starts from the prompt alone."""
        answer = (*self._ids(example.output), self.tokenizer.eos_token_id)
        _, prompt, truncated = self._cut(example, self.max_length - len(answer))
        return Encoded(prompt, answer, truncated)

    def _encode_prompt(self, example: Example) -> Encoded:
        """Encode the prompt to decode from; the answer is empty."""
        _, prompt, truncated = self._cut(example, self.max_length)
        return Encoded(prompt, (), truncated)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _with_offsets(self, text: str) -> Any:
        return self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)

    def _cut(
        self, example: Example, budget: int
    ) -> tuple[tuple[str, str, str], tuple[int, ...], bool]:
        """Return the prompt's parts with the input cut to fit, their ids, and whether it was."""
        before, middle, after = prompt_parts(example)
        ids = self._start + self._ids(before + middle + after)
        truncated = len(ids) > budget
        while len(ids) > budget and middle:
            offsets = self._with_offsets(middle).offset_mapping
            kept = max(len(offsets) - (len(ids) - budget), 0)
            cut = offsets[kept][0] if kept < len(offsets) else len(middle)
            middle = middle[: min(cut, len(middle) - 1)]  # always shorter, so this ends
            ids = self._start + self._ids(before + middle + after)
        if len(ids) > budget:
            raise InputError(
                f"example {example.id}: {len(ids)} prompt tokens without its input, {budget} "
                f"allowed; raise model.max_length ({self.max_length}), nothing but the input field "
                "may be cut"
            )
        return (before, middle, after), ids, truncated

    def with_drops(self, example: Example, share: float, stream: random.Random) -> Encoded:
        """Encode for training without a random `share` of the input field's tokens."""
        whole, ids = self.encode(example), self._droppable(example)
        kept = [i for i, droppable in ids if not droppable or stream.random() >= share]
        return Encoded((*self._start, *kept), whole.answer, whole.truncated)

    def _find_droppable(self, example: Example) -> tuple[tuple[int, bool], ...]:
        """Return a prompt's ids without BOS, each with whether it belongs to the input field."""
        budget = self.max_length - len(self.encode(example).answer)
        (before, middle, after), _, _ = self._cut(example, budget)
        tokens = self._with_offsets(before + middle + after)
        ids: list[tuple[int, bool]] = []
        for token, (start, end) in zip(tokens.input_ids, tokens.offset_mapping, strict=True):
            ids.append((token, start >= len(before) and end <= len(before) + len(middle)))
        return tuple(ids)

    def encode_text(self, text: str, max_tokens: int) -> Encoded:
        """Encode plain text to be continued, without the template; a long text loses its start."""
        ids = self._ids(text)
        surplus = max(len(self._start) + len(ids) - max_tokens, 0)
        return Encoded(self._start + ids[surplus:], (), surplus > 0)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._ids(text))

    def encode_all(self, task: Task) -> None:
        """Encode a task's examples ahead.

        Raises:
            InputError: an example is too long without its input.
        """
        for example in task.train:
            self.encode(example)
        for example in task.test:
            self.encode_prompt(example)

    def truncated(self, examples: Sequence[Example]) -> int:
        """How many of `examples` lose tokens as training rows."""
        return sum(self.encode(example).truncated for example in examples)
