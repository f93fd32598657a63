"""From examples to token ids, which cuts long inputs."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, compress
from typing import Any

from forever.data.prompts import ALPACA, Chat, Prompt
from forever.data.tasks import Example, Task
from forever.errors import InputError, one_line, shown
from forever.scores import BY_LIKELIHOOD


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one example: the prompt, and the answer with EOS at its end.

    In a conversation the answer may be several, with what others say in between: `heard` has the
    places of that in `answer`, which nobody learns to say.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    truncated: bool
    heard: frozenset[int] = frozenset()

    @property
    def learned(self) -> list[int]:
        """The places in `answer` of the supervised tokens."""
        return [i for i in range(len(self.answer)) if i not in self.heard]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model can be given: ids below `tokens`, and as many positions as it has learned."""

    tokens: int | None = None
    positions: int | None = None


class Encoder:
    """Turns examples into token ids, each example once.

    If an example is too long, a conversation loses its oldest turns. Then the middle of the input
    field, or of the last turn, gives way and everything else stays whole: a question may stand at
    the beginning or at the end. Training and decoding cut by the same rule, decoding without room
    for the answer.

    Args:
        tokenizer: a fast Hugging Face tokenizer (it must give character offsets to cut by tokens).
        max_length: longest prompt plus answer in tokens.
        limits: of the model that reads the tokens.
        prompt: how an example is shown.
        ends: the tokens at which the model ends an answer, if they are to be checked.

    Raises:
        InputError: the model has not learned as many positions.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        limits: Limits = Limits(),
        prompt: Prompt = ALPACA,
        ends: Collection[int] = (),
    ) -> None:
        if limits.positions is not None and max_length > limits.positions:
            raise InputError(
                f"model.max_length={max_length}: the model has learned {limits.positions} "
                f"positions; give at most {limits.positions}",
                key="model.max_length",
            )
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.limits = limits
        self.prompt = prompt
        self.ends = ends
        start = tokenizer("").input_ids  # what the tokenizer puts before any text: nothing, or BOS
        self._bos = tuple(i for i in start[:1] if i == tokenizer.bos_token_id and i is not None)
        self._start = () if isinstance(prompt, Chat) else self._bos  # a chat template has its own
        self.encode = cache(self._encode)
        self.encode_prompt = cache(self._encode_prompt)
        self.answer_length = cache(self._answer_length)
        self._around = cache(self._count_around)
        self._ahead: dict[str, list[int]] = {}  # ids of the texts of the task that is being encoded

    def _encode(self, example: Example) -> Encoded:
        """Encode for training."""
        shorter, whole = self._without_oldest_turns(example)
        if len(whole.answer) >= self.max_length:
            raise InputError(
                f"example {example.id}: an answer of {len(whole.answer)} tokens leaves no room for "
                f"its prompt; raise model.max_length ({self.max_length}) or leave the example out"
            )
        prompt, cut = self._cut(shorter, whole.prompt, self.max_length - len(whole.answer))
        return replace(whole, prompt=prompt, truncated=cut or shorter is not example)

    def _without_oldest_turns(self, example: Example) -> tuple[Example, Encoded]:
        """Return a conversation with as many of its turns as fit, and how it is encoded."""
        whole = self._whole(example)
        if len(whole.prompt) + len(whole.answer) > self.max_length:
            shorter = self.prompt.shorter(example)
            if shorter is not None:
                return self._without_oldest_turns(shorter)
        return example, whole

    def _whole(self, example: Example) -> Encoded:
        """Encode prompt and answer, however long they are."""
        if isinstance(self.prompt, Chat):
            return self._whole_chat(example, self.prompt)
        # The answer apart, because decoding starts from the prompt alone.
        answer = (*self._ids(example.output), self.tokenizer.eos_token_id)
        return Encoded(self.prompt_ids(example), answer, False)

    def _whole_chat(self, example: Example, chat: Chat) -> Encoded:
        """Encode the rendered text at once, as transformers does, and find the answers in it."""
        text, spans = chat.rendered(example)
        tokens = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, is_learned = tuple(tokens.input_ids), list[bool]()
        for start, end in tokens.offset_mapping:
            is_learned.append(any(start < after and end > before for before, after in spans))
        if self.ends and not {*self.ends}.intersection(compress(ids, is_learned)):
            raise InputError(
                f"example {example.id}: the model does not stop where the chat template ends an "
                f"answer, {shown(text[slice(*spans[-1])][-20:])}; end it with {{{{ eos_token }}}} "
                "in a FILE.jinja",
                key="data.prompt",
            )
        first = max(1, [*is_learned, True].index(True))  # nothing comes before the first token
        heard = frozenset(i for i, it in enumerate(is_learned[first:]) if not it)
        return Encoded(ids[:first], ids[first:], False, heard)

    def _encode_prompt(self, example: Example) -> Encoded:
        """Encode the prompt to decode from; the answer is empty."""
        ids, shorter = self.prompt_ids(example), example
        while len(ids) > self.max_length and (less := self.prompt.shorter(shorter)):
            ids, shorter = self.prompt_ids(less), less
        prompt, cut = self._cut(shorter, ids, self.max_length)
        return Encoded(prompt, (), cut or shorter is not example)

    def prompt_ids(self, example: Example) -> tuple[int, ...]:
        """The ids of a prompt, however long it is; a text alone comes after EOS if not BOS."""
        ids = self._start + self._ids(self.prompt.text(example))
        return ids or (self.tokenizer.eos_token_id,)

    def _answer_length(self, example: Example) -> int:
        """Tokens of the answer, without EOS."""
        return len(self._ids(self.prompt.answer(example)))

    def _ids(self, text: str) -> tuple[int, ...]:
        if text in self._ahead:
            return tuple(self._ahead[text])
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def _cut(
        self, example: Example, ids: tuple[int, ...], budget: int
    ) -> tuple[tuple[int, ...], bool]:
        """Return the ids of a prompt cut so that they fit, and whether they had to be cut."""
        if len(ids) <= budget:
            return ids, False
        before, after = self._around(example)
        room = budget - before - after
        if room < 0:
            raise InputError(
                f"example {example.id}: {before + after} prompt tokens without its input, {budget} "
                f"allowed; raise model.max_length ({self.max_length}), nothing but the input field "
                "may be cut"
            )
        behind = after + (room + 1) // 2  # an odd token goes to the end
        return ids[: budget - behind] + ids[len(ids) - behind :], True

    def _count_around(self, example: Example) -> tuple[int, int]:
        """Return how many ids of a prompt stand before the input field's and how many after them.

        A token that the field shares with what surrounds it is not the field's.
        """
        first, text, last = self.prompt.parts(example)
        tokens = self.tokenizer(
            first + text + last, add_special_tokens=False, return_offsets_mapping=True
        )
        before, after = len(self._start), 0
        for start, end in tokens.offset_mapping:
            before += start < len(first)
            after += start >= len(first) and end > len(first) + len(text)
        return before, after

    def with_drops(self, example: Example, share: float, stream: random.Random) -> Encoded:
        """Encode for training without a random `share` of the input field's tokens."""
        whole = self.encode(example)
        if whole.truncated:
            example, _ = self._without_oldest_turns(example)
        before, after = self._around(example)
        kept: list[int] = []
        for position, token in enumerate(whole.prompt):
            droppable = before <= position < len(whole.prompt) - after
            if not droppable or stream.random() >= share:
                kept.append(token)
        return replace(whole, prompt=tuple(kept))

    def encode_text(self, text: str, max_tokens: int) -> Encoded:
        """Encode plain text to be continued, without the template; a long text loses its start."""
        ids = self._ids(text)
        surplus = max(len(self._bos) + len(ids) - max_tokens, 0)
        return Encoded(self._bos + ids[surplus:], (), surplus > 0)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._ids(text))

    def encode_all(self, task: Task, max_new_tokens: int) -> None:
        """Encode a task's examples ahead.

        Raises:
            InputError: an example is too long without its input, a test answer that must be met
                exactly cannot be written in `max_new_tokens`, or the model cannot read or write
                what an example has.
        """
        # Asked once for all texts, the tokenizer takes half the time.
        examples = (*task.train, *task.test)
        texts = [*map(self.prompt.text, examples), *map(self.prompt.answer, examples)]
        texts += [each.output for each in examples if isinstance(self.prompt, Chat)]
        try:
            ids = self.tokenizer(texts, add_special_tokens=False).input_ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, which is not an Exception
                raise
            raise InputError(
                f"model.name: its tokenizer fails on the data of {task.name}: {one_line(error)}; "
                "give another model, or mend its tokenizer.json",
                key="model.name",
            ) from None
        self._ahead = dict(zip(texts, ids, strict=True))
        self._check_tokens(examples)
        for example in task.train:
            self.encode(example)
        for example in task.test:
            if task.metric in BY_LIKELIHOOD:
                self.encode(example)
                continue
            most = len(self.encode_prompt(example).prompt) + max_new_tokens
            if self.limits.positions is not None and most > self.limits.positions:
                raise InputError(
                    f"example {example.id}: its prompt and {max_new_tokens} new tokens need {most} "
                    f"positions, and the model has learned {self.limits.positions}; lower "
                    f"model.max_length ({self.max_length}) or evaluation.max_new_tokens",
                    key="model.max_length",
                )
            length = self.answer_length(example)
            if length > max_new_tokens and task.metric == "exact_match":
                raise InputError(
                    f"example {example.id}: its answer has {length} tokens and could never be met; "
                    f"raise evaluation.max_new_tokens ({max_new_tokens}), or score the task by "
                    f"data.metrics={{{task.name}: rouge_l}}"
                )
        self._ahead = {}

    def _check_tokens(self, examples: Sequence[Example]) -> None:
        """Refuse tokens that the model has not, and control tokens that an answer spells out."""
        control = {*self.tokenizer.all_special_ids}
        for example in examples:
            # A text alone may have a template's tokens.
            answers = () if example.is_text else self.prompt.answered(example)
            written = chain.from_iterable(self._ids(each.output) for each in answers)
            if spelt := control.intersection(written):
                raise InputError(
                    f"example {example.id}: its answer has the control token "
                    f"{shown(self.tokenizer.decode([min(spelt)]))}, which decoding leaves out, so "
                    "no answer could meet it; leave it out of the data"
                )
            ids = (*self._ids(self.prompt.text(example)), *self._ids(example.output))
            highest = max(ids, default=0)
            if self.limits.tokens is not None and highest >= self.limits.tokens:
                raise InputError(
                    f"example {example.id}: the tokenizer has the token {highest} "
                    f"({shown(self.tokenizer.decode([highest]))}), and the model has embeddings of "
                    f"{self.limits.tokens}; resize the model's embeddings to its tokenizer",
                    key="model.name",
                )

    def spells_control_tokens(self, example: Example) -> bool:
        """Whether what an example asks has texts that the tokenizer reads as control tokens."""
        turns = [turn.content for turn in example.turns]
        text = " ".join([example.instruction, example.input, *turns])
        return any(token in text for token in self.tokenizer.all_special_tokens)

    def truncated(self, examples: Sequence[Example]) -> int:
        """How many of `examples` lose tokens as training rows."""
        return sum(self.encode(example).truncated for example in examples)
