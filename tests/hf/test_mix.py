"""`mix`: every new example once an epoch, and old ones evenly between them."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from datasets import Dataset
from marks import TRL_WARNS

from forever.errors import InputError
from forever.hf import Forever
from forever.hf.mix import is_mixed, mix

pytestmark = TRL_WARNS


def rows(name: str, count: int) -> Dataset:
    return Dataset.from_list([{"text": f"{name} {number}"} for number in range(count)])


def texts(dataset: Dataset) -> list[str]:
    return list(dataset["text"])


def test_two_old_examples_between_four_new_ones() -> None:
    """New ones stand at 1/8, 3/8, 5/8 and 7/8 of an epoch, old ones at 1/4 and 3/4."""
    mixed = texts(mix(rows("new", 4), rows("old", 2), ratio=0.5, seed=1))
    assert [text.split()[0] for text in mixed] == ["new", "old", "new", "new", "old", "new"]
    assert sorted(mixed) == ["new 0", "new 1", "new 2", "new 3", "old 0", "old 1"]


@pytest.mark.parametrize(("ratio", "old"), [(0.1, 7), (0.03, 30), (1.5, 100), (0.001, 5)])
def test_each_epoch_has_every_new_example_once_and_its_share(ratio: float, old: int) -> None:
    epochs, new = 3, 200
    mixed = texts(mix(rows("new", new), rows("old", old), ratio, epochs))
    replayed = max(round(ratio * new * epochs), 1)
    assert len(mixed) == epochs * new + replayed
    fresh = [text for text in mixed if text.startswith("new")]
    orders = [fresh[begin : begin + new] for begin in range(0, len(fresh), new)]
    assert [len(set(order)) for order in orders] == [new] * epochs
    assert orders[0] != orders[1] != orders[2]
    seen = Counter(text for text in mixed if text.startswith("old"))
    assert seen.total() == replayed
    # None comes again before all have come.
    counts = [seen[f"old {number}"] for number in range(old)]
    assert max(counts) - min(counts) <= 1
    places = [place for place, text in enumerate(mixed) if text.startswith("old")]
    distances = {after - before for before, after in pairwise(places)}
    assert not distances or max(distances) - min(distances) <= 2


def test_no_old_example_and_one_epoch_is_the_dataset_itself() -> None:
    new = rows("new", 5)
    assert mix(new, rows("old", 2), ratio=0)._fingerprint == new._fingerprint
    assert not is_mixed(mix(new, rows("old", 2), ratio=0))


def test_the_seed_alone_decides() -> None:
    first, same, other = (
        texts(mix(rows("new", 30), rows("old", 9), 0.2, epochs=2, seed=seed)) for seed in (4, 4, 5)
    )
    assert first == same != other


def test_the_counts_are_said() -> None:
    mixed = mix(rows("new", 40), rows("old", 3), ratio=0.1, epochs=2)
    assert mixed.info.description is not None
    assert "40 new examples, 2 times each, and 8 replayed ones of 3 old" in mixed.info.description


@pytest.mark.parametrize(
    ("ratio", "epochs", "old"),
    [
        (-0.1, 1, rows("old", 2)),
        (float("inf"), 1, rows("old", 2)),
        (0.1, 0, rows("old", 2)),
        (0.1, 1, Dataset.from_list([])),
        (0.1, 1, Dataset.from_list([{"prompt": "old"}])),
    ],
)
def test_what_cannot_be_is_refused(ratio: float, epochs: int, old: Dataset) -> None:
    with pytest.raises(InputError):
        mix(rows("new", 4), old, ratio, epochs)


def test_a_trainer_keeps_the_order_that_was_mixed(make: Any) -> None:
    """Though it would train three epochs in orders of its own."""
    new, old = (
        Dataset.from_list([{"prompt": f"{word} {n}", "completion": " flat"} for n in range(12)])
        for word in ("red", "blue")
    )
    mixed = mix(new, old, ratio=0.25, epochs=2, seed=7)
    trainer = make(mixed, num_train_epochs=3)
    Forever().attach(trainer)
    batches = [batch["input_ids"] for batch in trainer.get_train_dataloader()]
    trained = [text for batch in batches for text in trainer.processing_class.batch_decode(batch)]
    assert [" ".join(text.split()[:2]) for text in trained] == list(mixed["prompt"])
    assert trainer.args.num_train_epochs == 1
