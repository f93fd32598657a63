"""One row of a file, in the shapes that people have; what it becomes is the same for all.

A row is known by its keys. To add a shape, write a model of it with a method `row`, and give it
the key that tells it from others in `_SHAPES`.

- instruction, input, output: what to do, with what, and the right answer. The input may be
  empty or missing, as in Alpaca's.
- prompt, completion: one text or a list of messages each, as TRL has them; also prompt, answer as
  in TRACE, question, answer as in GSM8K, and input, output.
- text: a text that is learned as a whole. Beside a label it would be the file of a classification.
- messages: a conversation of `role` and `content`; `conversations` of `from` and `value` is
  ShareGPT's. What comes after the last answer teaches nothing and is left out.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, FailFast, Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from forever.data.tasks import Example, Message
from forever.reading import Text


class Row(BaseModel):
    """A row before it is an example of a task, with `turns` instead of the first two.

    `shape` names the keys by which it was read.
    """

    instruction: Text = ""
    input: Text = ""
    output: Text  # an empty answer teaches EOS
    turns: tuple[Message, ...] = ()
    shape: str = "instruction, input, output"

    def example(self, id: str) -> Example:
        """Return the example that the row is."""
        return Example(id, self.instruction, self.input, self.output, self.turns)


class Instruction(BaseModel):
    instruction: Text
    input: Text | None = None
    output: Text

    def row(self) -> Row:
        return Row(instruction=self.instruction, input=self.input or "", output=self.output)


_ROLES = {"human": "user", "gpt": "assistant"}  # as ShareGPT calls them


class _Said(BaseModel):
    """A message: what one of the roles says."""

    role: Literal["system", "user", "assistant", "human", "gpt"] = Field(
        validation_alias=AliasChoices("role", "from")
    )
    content: Text = Field(validation_alias=AliasChoices("content", "value"))


class _Conversation(BaseModel):
    messages: list[_Said] = Field(validation_alias=AliasChoices("messages", "conversations"))

    def row(self) -> Row:
        turns = [Message(_ROLES.get(said.role, said.role), said.content) for said in self.messages]
        while turns and turns[-1].role != "assistant":
            turns.pop()
        if len(turns) < 2:
            raise PydanticCustomError(
                "no_answer", "a conversation should have a message and the assistant's answer to it"
            )
        return Row(output=turns.pop().content, turns=tuple(turns), shape="messages")


_TEXT, _TALK = TypeAdapter(Text), TypeAdapter(list[_Said])
_Side = Annotated[
    str | list[_Said],
    PlainValidator(lambda v: (_TALK if isinstance(v, list) else _TEXT).validate_python(v)),
]


class _Pair(BaseModel):
    prompt: _Side = Field(validation_alias=AliasChoices("prompt", "question", "input"))
    completion: _Side = Field(
        validation_alias=AliasChoices("completion", "answer", "response", "output")
    )

    def row(self) -> Row:
        if isinstance(self.prompt, str) and isinstance(self.completion, str):
            return Row(instruction=self.prompt, output=self.completion, shape="prompt, completion")
        if isinstance(self.prompt, str) or isinstance(self.completion, str):
            raise PydanticCustomError(
                "two_kinds", "prompt and completion should both be texts, or both be messages"
            )
        return _Conversation(messages=[*self.prompt, *self.completion]).row()


class _Text(BaseModel):
    text: Text
    label: Any = None

    def row(self) -> Row:
        if self.label is not None:
            raise PydanticCustomError(
                "label",
                "a text beside a label would be learned without it; say what is asked and answered "
                "in data.datasets.TASK.columns, or leave the label out",
            )
        return Row(output=self.text, shape="text")


# By the first of these keys that a row has.
_SHAPES: dict[str, type[Instruction | _Conversation | _Pair | _Text]] = {
    "messages": _Conversation,
    "conversations": _Conversation,
    "instruction": Instruction,
    "prompt": _Pair,
    "question": _Pair,
    "output": _Pair,
    "text": _Text,
}


def _read(value: Any) -> Row:
    keys = value if isinstance(value, Mapping) else {}
    shape = next((_SHAPES[key] for key in _SHAPES if keys.get(key) is not None), Instruction)
    if shape is Instruction and keys and not keys.keys() & _SHAPES.keys():
        raise PydanticCustomError(
            "shape",
            "a row should have instruction and output, prompt and completion, messages, or text; "
            "name other columns in data.datasets.TASK.columns",
        )
    return shape.model_validate(value).row()


AnyRow = Annotated[Row, PlainValidator(_read)]
ROW = TypeAdapter(AnyRow)
ROWS = TypeAdapter(Annotated[list[AnyRow], FailFast()])  # the first of a million bad rows is enough
