"""The memory: how many rows, which, and that the choice never changes (docs/protocol.md)."""

from collections import Counter
from dataclasses import replace
from itertools import chain, islice, pairwise

import pytest
from helpers import rows_task, stub_learner

from forever.data.batching import batches
from forever.data.tasks import Example
from forever.training.memory import Memory

LONG = {"cb": 250, "copa": 400, **{f"long{i}": 1000 for i in range(13)}}
SUPERNI = {f"task{i}": 1000 for i in range(10)}
SUPERNI |= {"073": 975, "181": 338, "1572": 160, "639": 142, "1590": 126}


def memory_of(*sizes: int, fraction: float = 0.02, seed: int = 0) -> Memory:
    """A memory of tasks "a", "b", ... of these sizes."""
    memory = Memory(fraction, batch_size=8, seed=seed)
    for name, size in zip("abcd", sizes, strict=False):
        memory.add(rows_task(name, size))
    return memory


def answers(labels: list[str], seed: int = 0) -> Counter[str]:
    """How often the memory holds each answer of a task of 1000 rows."""
    memory = memory_of(seed=seed)
    memory.add(rows_task("task", 1000, labels=labels))
    return Counter(example.output for example in memory.examples)


# ---- how many, and which


def test_quota_is_the_floor_of_the_real_product() -> None:
    """No binary rounding: floor(0.29 * 100) is 29 although the floats multiply to 28.999..."""
    sizes = [1000, 975, 400, 338, 250, 160, 142, 126, 49, 1]
    quota = memory_of().quota
    assert [quota(size) for size in sizes] == [20, 19, 8, 6, 5, 3, 2, 2, 1, 1]
    assert [memory_of(fraction=0.0).quota(size) for size in (1, 49, 1000)] == [0, 0, 0]
    for percent in range(1, 101):
        quota = memory_of(fraction=percent / 100).quota
        assert [quota(rows) for rows in (100, 200, 1000)] == [percent, 2 * percent, 10 * percent]


@pytest.mark.parametrize(("sizes", "total"), [(LONG, 273), (SUPERNI, 232)])
def test_total_of_the_benchmarks(sizes: dict[str, int], total: int) -> None:
    memory = memory_of()
    for name, rows in sizes.items():
        memory.add(rows_task(name, rows))
    assert len(sizes) == 15
    assert len(memory) == len(memory.examples) == total


@pytest.mark.parametrize("classes", [2, 4, 10, 20, 21, 1000])
def test_classes_are_balanced_exactly_where_possible(classes: int) -> None:
    """The reference loader keeps a row of every answer: 1000 instead of 20 where every answer is
    its own class."""
    counts = answers([f"answer {i}" for i in range(classes)])
    assert counts.total() == 20
    assert classes > 20 or {*counts.values()} == {20 // classes}


def test_remainder_is_filled_at_random() -> None:
    totals = Counter[str]()
    for seed in range(30):
        counts = answers(["a", "b", "c"], seed)
        assert counts.total() == 20
        assert min(counts.values()) >= 6
        totals += counts
    assert max(totals.values()) - min(totals.values()) < 30  # no class is favoured


def test_a_rare_class_is_kept_whole_and_blanks_make_no_class() -> None:
    rare = [Example(f"rare {i}", "q", f"rare {i}", "rare") for i in range(3)]
    common = [Example(str(i), "q", str(i), [" common", "common "][i % 2]) for i in range(1000)]
    task = replace(rows_task("task", 1), train=(*common, *rare))
    chosen = memory_of().choose(task, 20)
    assert Counter(example.output.strip() for example in chosen) == {"rare": 3, "common": 17}


def test_choice_depends_on_seed_and_task_alone() -> None:
    """So all methods of a seed replay the same rows, whatever they do in between."""
    kept = {}
    for key, names, size, seed in (
        ("", "abc", 8, 0),
        ("same", "cab", 3, 0),
        ("other", "abc", 8, 1),
    ):
        memory = Memory(0.02, size, seed)
        for name in names:
            memory.add(rows_task(name, 300))
            list(memory.batches(2, name))
        kept[key] = memory.kept
    assert kept[""] == kept["same"]
    assert all(kept[""][name] != kept["other"][name] for name in "abc")


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 100), (0.13, 13), (0.0, 0)])
def test_kept_rows_are_rows_of_the_task(fraction: float, count: int) -> None:
    memory = memory_of(100, fraction=fraction)
    assert len({example.id for example in memory.examples}) == len(memory) == count
    assert {*memory.examples} <= {*rows_task("a", 100).train}
    assert bool(list(memory.batches(2, "b"))) == bool(count)


def test_rows_of_a_methods_own_are_kept_as_given() -> None:
    task, written = rows_task("a", 100), [Example("a/written/0", "q", "made up", "yes")]
    memory = memory_of(fraction=0.1)
    chosen = memory.choose(task)
    assert not memory  # choosing keeps nothing
    memory.add(task, written)
    memory.add(rows_task("b", 100), [])
    memory.add(rows_task("c", 100))
    assert memory.kept == {"a": tuple(written), "b": (), "c": memory.choose(rows_task("c", 100))}
    assert memory.choose(task) == chosen


# ---- replay


def passes(batch_size: int | None = None) -> list[list[list[str]]]:
    """The row ids of three replays of two passes each, by batch."""
    memory = memory_of(40, fraction=0.5)
    drawn = [memory.batches(2, "b", batch_size) for _ in range(3)]
    return [[[e.id for e in batch.examples] for batch in replay] for replay in drawn]


def test_passes_are_repeatable_and_differ_from_each_other() -> None:
    first, second, third = passes()
    assert [first, second, third] == passes()
    assert first != second != third
    for replay in (first, second, third):
        assert [len(batch) for batch in replay] == [8, 8, 4] * 2
        assert {*chain(*replay[:3])} == {*chain(*replay[3:])} == {*chain(*first)}


def test_passes_in_smaller_batches_hold_the_same_rows_in_the_same_order() -> None:
    smaller = passes(3)
    assert [len(batch) for batch in smaller[0]] == [3, 3, 3, 3, 3, 3, 2] * 2
    for replay, whole in zip(smaller, passes(), strict=True):
        assert [*chain(*replay)] == [*chain(*whole)]


def draws(memory: Memory, learning: str = "b", purpose: str = "outer") -> list[tuple[str, ...]]:
    """The row ids of 2000 random batches."""
    stream = islice(memory.draws(learning, purpose), 2000)
    return [tuple(example.id for example in batch.examples) for batch in stream]


def test_random_batches_are_full_and_drawn_without_regard_to_those_before() -> None:
    """Every row is in a batch with probability B / |M|, in two successive ones with its square."""
    memory = memory_of(64, fraction=0.5)
    drawn = draws(memory)
    assert {len(batch) for batch in drawn} == {len({*batch}) for batch in drawn} == {8}
    for example in memory.examples:
        inside = [example.id in batch for batch in drawn]
        assert sum(inside) / 2000 == pytest.approx(8 / 32, abs=0.049)  # 5 sigma
        both = sum(a and b for a, b in pairwise(inside))
        assert both / 2000 == pytest.approx((8 / 32) ** 2, abs=0.036)


def test_random_batches_repeat_and_each_has_a_stream_of_its_own() -> None:
    """So a resumed run draws the same, and a probe disturbs no update."""
    memory = memory_of(60, fraction=0.5)
    first = draws(memory)
    list(memory.batches(3, "b"))
    assert draws(memory) == first
    seeded = Memory(0.5, 8, seed=1)
    seeded.kept = memory.kept
    for other in (draws(memory, "c"), draws(memory, purpose="probe"), draws(seeded)):
        assert all(a != b for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("rows", "size"), [(16, 4), (18, 4), (3, 8), (1, 1)])
def test_a_batch_by_its_number_is_that_of_shuffled_passes(rows: int, size: int) -> None:
    learner = stub_learner((), **{"optim.batch_size": size, "seed": 5})
    learner.task = rows_task("new", rows)
    train = learner.task.train
    expected = list(batches(train, 3, size, 5, "prompts", "new"))
    for number in reversed(range(len(expected))):
        assert learner.batch_at(number, train, "prompts") == expected[number]
    assert rows <= 3 or learner.batch_at(0, train, "other") != expected[0]
