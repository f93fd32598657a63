"""The one prompt template, which is Alpaca's (Taori et al. 2023).

It is also that of WoodScene/CL_Memory: templates/alpaca.json.
"""

from forever.data.tasks import Example

_PREAMBLE_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request."
)
_PREAMBLE = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request."
)


def prompt_parts(example: Example) -> tuple[str, str, str]:
    """The prompt as (text before the input, the input, text after it); the answer follows directly.

    Only the middle part may be shortened when a prompt is too long.
    """
    if not example.input:
        return f"{_PREAMBLE}\n\n### Instruction:\n{example.instruction}", "", "\n\n### Response:\n"
    before = f"{_PREAMBLE_WITH_INPUT}\n\n### Instruction:\n{example.instruction}\n\n### Input:\n"
    return before, example.input, "\n\n### Response:\n"


def prompt(example: Example) -> str:
    """The whole prompt, without the answer."""
    return "".join(prompt_parts(example))
