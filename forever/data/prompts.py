"""The one prompt template: Alpaca's (Taori et al. 2023), as in CL_Memory: templates/alpaca.json."""

from forever.data.tasks import Example
from forever.errors import InputError

_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request."
)
_ALONE = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request."
)
_END = "\n\n### Response:\n"


def prompt_parts(example: Example) -> tuple[str, str, str]:
    """The prompt as (text before the input, the input, text after it); the answer follows directly.

    Only the input may be shortened when a prompt is too long.

    Raises:
        InputError: the example is a conversation of several turns.
    """
    if len(example.turns) > 1 or any(turn.role != "user" for turn in example.turns):
        raise InputError(
            f"example {example.id} is a conversation, and data.prompt=alpaca has one question; set "
            "data.prompt=chat",
            key="data.prompt",
        )
    if example.turns:
        return f"{_ALONE}\n\n### Instruction:\n", example.turns[0].content, _END
    if not example.input:
        return f"{_ALONE}\n\n### Instruction:\n{example.instruction}", "", _END
    before = f"{_WITH_INPUT}\n\n### Instruction:\n{example.instruction}\n\n### Input:\n"
    return before, example.input, _END


def prompt(example: Example) -> str:
    """The whole prompt, without the answer."""
    return "".join(prompt_parts(example))
