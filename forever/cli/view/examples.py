"""Examples as a model sees them: their tokens, those that it learns to say, and what was cut."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from rich.padding import Padding
from rich.text import Text

from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.text import terminal, visible

_BAR = "│"  # which no tokeniser uses in its special tokens, as it does |


class Examples:
    """Some training examples of one task; see `choose`."""

    def __init__(self, name: str, task: Task, encoder: Encoder, most: int) -> None:
        self.name = name
        self._encoder = encoder
        self._encoded: list[tuple[Example, Encoded]] = []
        for example in choose(task.train, most):
            try:
                self._encoded.append((example, encoder.encode(example)))
            except InputError:  # it is too long, which is said elsewhere
                continue

    def data(self) -> Mapping[str, Any]:
        """The tokens of each example, as JSON values."""
        rows: list[dict[str, Any]] = []
        for example, encoded in self._encoded:
            rows.append(
                {
                    "id": example.id,
                    "prompt": self._pieces(encoded.prompt),
                    "supervised": self._pieces([encoded.answer[i] for i in encoded.learned]),
                    "cut": self._cut(example, encoded)[1],
                }
            )
        return {"task": self.name, "examples": rows}

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._encoder.tokenizer.decode([number]) for number in ids]

    def _cut(self, example: Example, encoded: Encoded) -> tuple[int, int]:
        """Before which token of the prompt something was cut, and how many tokens."""
        if not encoded.truncated:
            return 0, 0
        whole = self._encoder.prompt_ids(example)
        pairs = zip(encoded.prompt, whole, strict=False)
        place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return place, len(whole) - len(encoded.prompt)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        for example, encoded in self._encoded:
            tokens = len(encoded.prompt) + len(encoded.answer)
            place, cut = self._cut(example, encoded)
            head = f"{example.id}: {tokens} tokens, {len(encoded.learned)} of them supervised"
            yield terminal(f"{head}; {cut} are cut" if cut else head, "bold")
            text = terminal("")
            self._append(text, encoded.prompt[:place])
            if cut:
                text.append(f"{_BAR}✂ {cut} tokens are cut{_BAR}", "bold red")
            self._append(text, encoded.prompt[place:])
            for heard, places in groupby(range(len(encoded.answer)), encoded.heard.__contains__):
                ids = [encoded.answer[i] for i in places]
                text.append(" " if heard else " ⟦", "bold")
                self._append(text, ids, "" if heard else "bold green")
                text.append("" if heard else "⟧", "bold")
            yield Padding(text, (0, 0, 0, 2))

    def _append(self, text: Text, ids: Sequence[int], style: str = "") -> None:
        for number, piece in enumerate(self._pieces(ids)):
            if number:
                text.append(_BAR, "dim")
            text.append(visible(piece), style)


def choose(examples: Sequence[Example], most: int) -> list[Example]:
    """The first examples of different answers, then others; the last gives way to the longest."""
    firsts: dict[str, Example] = {}
    for example in examples:
        firsts.setdefault(example.output, example)
    # Each once, in this order.
    chosen = list(dict.fromkeys((*firsts.values(), *examples[:most])))[:most]
    longest = max(examples, key=lambda example: len(example.shown))
    if chosen and longest not in chosen:
        chosen[-1] = longest
    return chosen
