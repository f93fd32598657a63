"""Examples as a model sees them: their tokens, those that it learns to say, and what was cut."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rich.padding import Padding
from rich.text import Text

from forever.data.encoding import Encoded, Encoder
from forever.data.prompts import prompt
from forever.data.tasks import Example, Task
from forever.errors import InputError
from forever.text import terminal, visible

_SHORT = 4  # tokens that are shown again although the example above begins with them
_BAR = "│"  # which no tokeniser uses in its special tokens, as it does |
_AROUND_CUT = 12  # tokens that are shown on each side of a cut


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
                    "supervised": self._pieces(encoded.answer),
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
        whole = self._encoder.tokenizer(prompt(example), add_special_tokens=False).input_ids
        start = int(encoded.prompt[0] != whole[0])  # a token that stands before any text
        place = start + _same(encoded.prompt[start:], whole)
        return place, start + len(whole) - len(encoded.prompt)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        before: Sequence[int] = ()
        for example, encoded in self._encoded:
            tokens = len(encoded.prompt) + len(encoded.answer)
            place, cut = self._cut(example, encoded)
            head = f"{example.id}: {tokens} tokens, {len(encoded.answer)} of them supervised"
            if cut:
                head += f"; {cut} are cut"
            yield terminal(head, "bold")
            yield Padding(self._shown(encoded, before, place, cut), (0, 0, 0, 2))
            before = encoded.prompt

    def _shown(self, encoded: Encoded, before: Sequence[int], place: int, cut: int) -> Text:
        """The tokens of an example between bars, without those with which it begins as `before`."""
        text = terminal("")
        ids = encoded.prompt
        first = _same(ids, before)
        first = first if first > _SHORT and (not cut or first <= place) else 0
        if first:
            text.append(f"[{first}\u00a0tokens\u00a0as\u00a0above]", "dim")
        if cut:
            self._append(text, ids[first:place], "", most=_AROUND_CUT)
            text.append(f"{_BAR}✂ {cut} tokens are cut{_BAR}", "bold red")
            self._append(text, ids[place:], "")
        else:
            self._append(text, ids[first:], "")
        text.append(" ⟦", "bold")
        self._append(text, encoded.answer, "bold green")
        text.append("⟧", "bold")
        return text

    def _append(self, text: Text, ids: Sequence[int], style: str, most: int = 0) -> None:
        """Add tokens; of more than `most`, if that is not 0, the last ones."""
        if most and len(ids) > most:
            text.append(f"[{len(ids) - most}\u00a0tokens]", "dim")
            ids = ids[-most:]
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
    longest = max(examples, key=lambda example: len(example.input))
    if chosen and longest not in chosen:
        chosen[-1] = longest
    return chosen


def _same(left: Sequence[int], right: Sequence[int]) -> int:
    """With how many tokens both begin."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
