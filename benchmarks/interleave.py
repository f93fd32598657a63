"""What `datasets.interleave_datasets` makes of 1,000 new examples and a few old ones, beside `mix`.

    python -m benchmarks.interleave

Each line: which of the new examples come at least once, how often old ones come, and the share of
the result that is over when the last old one has come; over five seeds, lowest to highest.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from datasets import Dataset, interleave_datasets

from forever.hf import mix

NEW, SEEDS = 1000, range(5)


def rows(name: str, count: int) -> Dataset:
    return Dataset.from_dict({"text": [name] * count, "number": list(range(count))})


def line(name: str, old: int, make: Callable[[Dataset, Dataset, int], Dataset]) -> str:
    """Return one line of the table, as Markdown."""
    kept: list[int] = []
    replayed: list[int] = []
    last: list[float] = []
    for seed in SEEDS:
        mixed = make(rows("new", NEW), rows("old", old), seed)
        texts, numbers = list(mixed["text"]), list(mixed["number"])
        pairs = list(zip(texts, numbers, strict=True))
        kept.append(len({number for text, number in pairs if text == "new"}))
        places = [place for place, text in enumerate(texts, start=1) if text == "old"]
        replayed.append(len(places))
        last.append(100 * places[-1] / len(texts))
    cells = [span(kept), span(replayed), f"{span([round(share) for share in last])} %"]
    return f"| {name} | {old} | {' | '.join(cells)} |"


def span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def spread(new: Dataset, old: Dataset, seed: int, ratio: float) -> Dataset:
    return mix(new, old, ratio, seed=seed)


def drawn(new: Dataset, old: Dataset, seed: int, share: float, strategy: Any) -> Dataset:
    return interleave_datasets([new, old], [1 - share, share], seed, stopping_strategy=strategy)


def main() -> None:
    """Print the table."""
    print("| how | old examples | different new ones of 1,000 | old ones in it | last old one at |")
    print("|---|--:|--:|--:|--:|")
    strategies = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
    for old, share in ((30, 0.1), (20, 0.02)):
        for strategy in strategies:
            make = partial(drawn, share=share, strategy=strategy)
            print(line(f"`{strategy}`, {share:.0%}", old, make))
        ratio = share / (1 - share)
        print(line("`mix`", old, partial(spread, ratio=ratio)))


if __name__ == "__main__":
    main()
