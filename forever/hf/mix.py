"""Old examples spread evenly between new ones, as a dataset that any trainer takes.

`datasets.interleave_datasets` draws instead: it drops new examples or repeats old ones, and how
many depends on luck (docs/trl.md).
"""

from itertools import islice

from datasets import Dataset, concatenate_datasets

from forever.data.batching import shuffled
from forever.errors import InputError, shown
from forever.seeding import permutation

_MARK = "forever.hf.mix: "


def mix(new: Dataset, old: Dataset, ratio: float, epochs: int = 1, seed: int = 0) -> Dataset:
    """Return the training data of all epochs, in the order in which they are to be trained.

    Each epoch has every new example once, in an order of its own, and old ones evenly between them:
    none comes again before all have come. The result is for one epoch in sequence, that is
    `num_train_epochs=1` and `train_sampling_strategy="sequential"`. Its `info.description` has the
    counts.

    Args:
        ratio: old examples for each new one, so 0.1 is 100 for an epoch of 1,000. The number is
            rounded once, over all epochs, and is at least one.

    Raises:
        InputError: the ratio or the number of epochs cannot be, or the columns differ.
    """
    if not 0 <= ratio < float("inf"):
        raise InputError(f"ratio={ratio}: give the old examples for each new one, 0.1 or so")
    if epochs < 1:
        raise InputError(f"epochs={epochs}: give at least 1")
    if ratio and not len(old):
        raise InputError(f"ratio={ratio} of no old examples; give some, or ratio=0")
    if ratio == 0 and epochs == 1:
        return new  # its own trainer shuffles it
    if ratio and new.features != old.features:
        raise InputError(
            f"new has the columns {shown(dict(new.features))} and old has "
            f"{shown(dict(old.features))}; give both the same, for instance by "
            "old.select_columns(new.column_names).cast(new.features)"
        )
    indices = mixed_order(len(new), len(old), ratio, epochs, seed)
    replayed = len(indices) - epochs * len(new)
    mixed = (concatenate_datasets([new, old]) if replayed else new).select(indices)
    mixed.info.description = (
        f"{_MARK}{len(new)} new examples, {epochs} times each, and {replayed} replayed ones "
        f"of {len(old)} old"
    )
    return mixed


def mixed_order(new: int, old: int, ratio: float, epochs: int, seed: int) -> list[int]:
    """Return the examples of all epochs by number: the new ones from 0 on, then the old ones."""
    replayed = max(round(ratio * new * epochs), 1) if ratio else 0
    stream = shuffled(range(new, new + old), seed, "mixed") if replayed else iter(())
    indices: list[int] = []
    for epoch in range(epochs):
        # The shares of the epochs differ by one at most, and add up.
        share = (epoch + 1) * replayed // epochs - epoch * replayed // epochs
        indices += spread(permutation(new, seed, "data", epoch), list(islice(stream, share)))
    return indices


def spread(new: list[int], old: list[int]) -> list[int]:
    """Return both lists as one, each in its order, with the old ones at equal distances."""
    slots = [
        ((place + 0.5) / len(part), part[place])
        for part in (new, old)
        for place in range(len(part))
    ]
    return [index for _, index in sorted(slots, key=lambda slot: slot[0])]


def is_mixed(dataset: object) -> bool:
    """Whether `mix` made a dataset, or a trainer prepared it from one that it made."""
    return isinstance(dataset, Dataset) and (dataset.info.description or "").startswith(_MARK)
