"""How an example is shown to a model: the prompt, and the answer that follows it.

- Alpaca's template (Taori et al. 2023), as in CL_Memory: templates/alpaca.json.
- None: the text as it is.
- A chat template: the tokenizer's own, or one from a file. transformers renders it in its sandbox.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from forever.config.parts import DataConfig
from forever.data.tasks import Example, Message
from forever.errors import InputError, one_line

_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request."
)
_ALONE = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request."
)
_END = "\n\n### Response:\n"
# Templates that ask for the date get the one that Llama's own take without a clock: a prompt that
# changes overnight would be another one in each test.
_NO_CLOCK = (
    "{%- macro strftime_now(format) %}{{- format | replace('%d', '26') | replace('%b', 'Jul') "
    "| replace('%B', 'July') | replace('%m', '07') | replace('%Y', '2024') | replace('%y', '24') "
    "| replace('%A', 'Friday') | replace('%a', 'Fri') | replace('%H', '12') | replace('%M', '00') "
    "| replace('%S', '00') }}{%- endmacro %}"
)


def without_clock(template: str) -> str:
    """Return a template that takes the same date every day."""
    return _NO_CLOCK + template if "strftime_now" in template else template


class Prompt:
    """Alpaca's prompt; others override what differs. The answer follows directly."""

    name = "alpaca"

    def parts(self, example: Example) -> tuple[str, str, str]:
        """The prompt as (text before what it is about, that, text after it).

        Only the second may be shortened when a prompt is too long.

        Raises:
            InputError: the example has several turns, which this prompt cannot show.
        """
        self._refuse_turns(example)
        if example.is_text:
            return "", "", ""
        if example.turns:
            return f"{_ALONE}\n\n### Instruction:\n", example.turns[0].content, _END
        if not example.input:
            return f"{_ALONE}\n\n### Instruction:\n{example.instruction}", "", _END
        before = f"{_WITH_INPUT}\n\n### Instruction:\n{example.instruction}\n\n### Input:\n"
        return before, example.input, _END

    def _refuse_turns(self, example: Example) -> None:
        if len(example.turns) > 1 or any(turn.role != "user" for turn in example.turns):
            raise InputError(
                f"example {example.id}: a conversation of several turns cannot be shown by "
                f"data.prompt={self.name}; set data.prompt=chat, or give a FILE.jinja",
                key="data.prompt",
            )

    def text(self, example: Example) -> str:
        """The whole prompt, without the answer."""
        return "".join(self.parts(example))

    def answer(self, example: Example) -> str:
        """What a model that knows the answer writes, without what ends it."""
        return example.output

    def said(self, text: str) -> str:
        """The answer in what a model has written so far."""
        return text

    def question(self, example: Example) -> Any:
        """What must not occur in training and in test."""
        self._refuse_turns(example)
        return example.question

    def answered(self, example: Example) -> tuple[Example, ...]:
        """The example once for each of its answers that is supervised, which is then its last."""
        return (example,)

    def examples(self, example: Example) -> tuple[Example, ...]:
        """What is learned from: the example, or `answered` where one text cannot hold it all."""
        return (example,)

    def shorter(self, example: Example) -> Example | None:
        """The example without its oldest turns, if it can do without."""
        return None


class Plain(Prompt):
    """No template: an answer follows what was asked."""

    name = "none"

    def parts(self, example: Example) -> tuple[str, str, str]:
        self._refuse_turns(example)
        if example.turns:
            return "", example.turns[0].content, ""
        if not example.input:
            return "", example.instruction, ""
        return example.instruction + "\n" * bool(example.instruction), example.input, ""

    def question(self, example: Example) -> Any:
        return self.text(example) or example.question


class Chat(Prompt):
    """A chat template.

    Args:
        tokenizer: the model's, which renders the template.
        template: the template's text.
        supervise: see `DataConfig`.
    """

    name = "chat"

    def __init__(self, tokenizer: Any, template: str, supervise: str = "last") -> None:
        self.tokenizer = tokenizer
        self.template = without_clock(template)
        self.supervise = supervise

    @staticmethod
    def turns(example: Example) -> tuple[Message, ...]:
        """The messages before the answer; of an instruction and its input the user's one."""
        if example.turns:
            return example.turns
        if example.is_text:
            raise InputError(
                f"example {example.id}: a text alone has no turns for a chat template; set "
                "data.prompt=none",
                key="data.prompt",
            )
        texts = filter(None, (example.instruction, example.input))
        return (Message("user", "\n\n".join(texts)),)

    def parts(self, example: Example) -> tuple[str, str, str]:
        text = self._render(example, self.turns(example), ask=True)
        about = example.shown.strip()
        start = text.rfind(about) if about else -1
        if start < 0:  # the template changes it, so nothing of it may be cut
            return text, "", ""
        return text[:start], about, text[start + len(about) :]

    def answer(self, example: Example) -> str:
        text, spans = self.rendered(example)
        written = text[slice(*spans[-1])]
        content = example.output.strip()
        return written[: written.rfind(content) + len(content)] if content in written else written

    def said(self, text: str) -> str:
        # What a template writes before every answer, such as empty thoughts.
        lead = self._lead
        return "" if lead.startswith(text) else text.removeprefix(lead).strip()

    @cached_property
    def _lead(self) -> str:
        text, spans = self.rendered(Example("of the template", "", "Question", "Answer"))
        return text[slice(*spans[-1])].partition("Answer")[0].strip()

    def question(self, example: Example) -> Any:
        return self.text(example)

    def rendered(self, example: Example) -> tuple[str, list[tuple[int, int]]]:
        """The whole text, and where in it the supervised answers begin and end.

        An answer begins where the template would have the model continue, and ends with the turn.

        Raises:
            InputError: the template refuses the example, or writes it in another way once it has
                the answer.
        """
        text, spans = self._whole(example)
        if None in spans:
            raise InputError(
                f"example {example.id}: the chat template writes an answer otherwise than it asks "
                "for one; give a FILE.jinja in which the prompt is what the answer comes after",
                key="data.prompt",
            )
        return text, [span for span in spans if span]

    def _whole(self, example: Example) -> tuple[str, list[tuple[int, int] | None]]:
        """The whole text, and each answer's place; None: it is not in it as it would be said."""
        messages = (*self.turns(example), Message("assistant", example.output))
        text = self._render(example, messages)
        spans: list[tuple[int, int] | None] = []
        for i in (*self._earlier(example), len(messages) - 1):
            before = self._render(example, messages[:i], ask=True)
            until = self._render(example, messages[: i + 1])
            is_there = until.startswith(before) and text.startswith(until)
            spans.append((len(before), len(until)) if is_there else None)
        return text, spans

    def _earlier(self, example: Example) -> list[int]:
        """The turns that are supervised; nobody has asked for a greeting."""
        if self.supervise == "last":
            return []
        turns = enumerate(example.turns)
        return [i for i, turn in turns if i and turn.role == "assistant" and turn.supervised]

    def answered(self, example: Example) -> tuple[Example, ...]:
        heard = tuple(replace(turn, supervised=False) for turn in example.turns)
        each: list[Example] = []
        for i in self._earlier(example):
            name, output = f"{example.id}/{i}", heard[i].content
            each.append(replace(example, id=name, turns=heard[:i], output=output))
        return (*each, replace(example, turns=heard) if each else example)

    def examples(self, example: Example) -> tuple[Example, ...]:
        # A template may write an answer otherwise once it is an earlier one: Qwen3's drops what
        # was thought. Then each answer needs a text of its own.
        if self._earlier(example) and None in self._whole(example)[1]:
            return self.answered(example)
        return (example,)

    def shorter(self, example: Example) -> Example | None:
        turns = example.turns
        head = sum(turn.role == "system" for turn in turns[:1])
        for i in range(head + 1, len(turns)):
            if turns[i].role == "user":
                return replace(example, turns=turns[:head] + turns[i:])
        return None

    def _render(self, example: Example, messages: Sequence[Message], ask: bool = False) -> str:
        """Render messages, and to `ask` for an answer what it comes after."""
        try:
            return self.tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.content} for message in messages],
                chat_template=self.template,
                add_generation_prompt=ask,
                tokenize=False,
            )
        except Exception as error:  # whatever a template of others may raise
            raise InputError(
                f"example {example.id}: the chat template refuses it: {one_line(error)}; leave the "
                "example out, or give a FILE.jinja that takes it",
                key="data.prompt",
            ) from error


ALPACA, PLAIN = Prompt(), Plain()


def questions(example: Example, prompt: Prompt | None) -> list[Any]:
    """Return what a training example teaches the answers to; a test example's question is the last.

    Without a prompt a conversation is not checked against that.
    """
    if prompt is None:
        return [example.question]
    return [prompt.question(each) for each in prompt.answered(example)]


def make_prompt(config: DataConfig, tokenizer: Any) -> Prompt:
    """Return the prompt that a configuration names; only a chat template needs a tokenizer.

    Raises:
        InputError: the tokenizer has no template.
    """
    if config.prompt == "alpaca":
        return ALPACA
    if config.prompt == "none":
        return PLAIN
    if config.prompt != "chat":
        return Chat(tokenizer, config.prompt, config.supervise)
    try:
        template = tokenizer.get_chat_template()
    except ValueError:
        raise InputError(
            f"data.prompt=chat: the tokenizer of {tokenizer.name_or_path} has no chat template; "
            "give one by data.prompt=FILE.jinja, or take a model that was trained to chat",
            key="data.prompt",
        ) from None
    return Chat(tokenizer, template, config.supervise)
