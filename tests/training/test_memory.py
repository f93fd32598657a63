"""The memory: how many rows, which, and that the choice never changes (docs/protocol.md)."""

from collections import Counter
from itertools import islice, pairwise

import pytest
from helpers import rows_task, stub_learner

from forever.data.batching import batches
from forever.data.tasks import Example
from forever.training.memory import Memory, balanced_choice

LONG = {"cb": 250, "copa": 400}
LONG |= {f"long{i}": 1000 for i in range(13)}
SUPERNI = dict.fromkeys(
    ["002", "363", "511", "591", "748", "875", "1290", "1510", "1687", "1729"], 1000
)
SUPERNI |= {"073": 975, "181": 338, "1572": 160, "639": 142, "1590": 126}


def memory(fraction: float = 0.02, seed: int = 0) -> Memory:
    return Memory(fraction, batch_size=8, seed=seed)


def ids(kept: Memory, task: str) -> list[str]:
    return [example.id for example in kept.kept[task]]


def test_quota_of_the_paper_sizes() -> None:
    sizes = [1000, 975, 400, 338, 250, 160, 142, 126, 49, 1]
    assert [memory().quota(size) for size in sizes] == [20, 19, 8, 6, 5, 3, 2, 2, 1, 1]


def test_quota_is_the_floor_of_the_real_product() -> None:
    """No binary rounding: floor(0.29 * 100) is 29 although the floats multiply to 28.999..."""
    for percent in range(1, 101):
        for rows in (100, 200, 1000):
            assert memory(percent / 100).quota(rows) == percent * rows // 100


@pytest.mark.parametrize(("sizes", "total"), [(LONG, 273), (SUPERNI, 232)])
def test_total_of_the_benchmarks(sizes: dict[str, int], total: int) -> None:
    kept = memory()
    for name, rows in sizes.items():
        kept.add(rows_task(name, rows))
    assert len(sizes) == 15
    assert len(kept) == len(kept.examples) == total


def test_generation_tasks_do_not_exceed_their_quota() -> None:
    """The reference loader keeps a row of every answer: 1000 instead of 20 where every answer is
    its own class."""
    kept = memory()
    kept.add(rows_task("summary", 1000, labels=[f"answer {i}" for i in range(1000)]))
    kept.add(rows_task("half", 1000, labels=[f"answer {i}" for i in range(21)]))
    assert [len(rows) for rows in kept.kept.values()] == [20, 20]
    assert len(set(kept.examples)) == 40


@pytest.mark.parametrize(
    ("classes", "shares"), [(2, [10, 10]), (4, [5] * 4), (10, [2] * 10), (20, [1] * 20)]
)
def test_classes_are_balanced_exactly_where_possible(classes: int, shares: list[int]) -> None:
    kept = memory()
    kept.add(rows_task("task", 1000, labels=[f"c{i}" for i in range(classes)]))
    assert sorted(Counter(e.output for e in kept.examples).values()) == shares


def test_remainder_is_filled_at_random() -> None:
    totals = Counter[str]()
    for seed in range(30):
        kept = memory(seed=seed)
        kept.add(rows_task("task", 1000, labels=["a", "b", "c"]))
        counts = Counter(e.output for e in kept.examples)
        assert counts.total() == 20
        assert min(counts.values()) >= 6
        totals += counts
    assert max(totals.values()) - min(totals.values()) < 30  # no class is favoured


def test_a_rare_class_is_kept_whole_and_the_rest_filled() -> None:
    rows = rows_task("task", 1000, labels=["common"]).train
    rare = tuple(Example(f"task/rare/{i}", "q", f"rare {i}", "rare") for i in range(3))
    chosen = balanced_choice(rows + rare, 20, list(range(1003)))
    assert Counter(e.output for e in chosen) == {"rare": 3, "common": 17}


def test_blanks_around_an_answer_make_no_class() -> None:
    rows = [Example(str(i), "q", str(i), " yes" if i % 2 else "yes ") for i in range(10)]
    rows += [Example(str(i), "q", str(i), "no") for i in range(10, 20)]
    chosen = balanced_choice(rows, 4, list(range(20)))
    assert Counter(e.output.strip() for e in chosen) == {"yes": 2, "no": 2}


def test_choice_depends_on_seed_and_task_alone() -> None:
    """So all methods of a seed replay the same rows, whatever they do in between."""
    first, second, other = memory(), Memory(0.02, batch_size=3, seed=0), memory(seed=1)
    for kept, names in ((first, "abc"), (second, "cab"), (other, "abc")):
        for name in names:
            kept.add(rows_task(name, 300))
            list(kept.batches(2, name))
    for name in "abc":
        assert ids(first, name) == ids(second, name)
        assert ids(first, name) != ids(other, name)


def test_kept_rows_never_change() -> None:
    kept = memory(0.1)
    kept.add(rows_task("a", 50))
    before = ids(kept, "a")
    for name in "bcd":
        list(kept.batches(3, name))
        kept.add(rows_task(name, 50))
        assert ids(kept, "a") == before
    assert [e.id.split("/")[0] for e in kept.examples] == ["a"] * 5 + ["b"] * 5 + ["c"] * 5 + [
        "d"
    ] * 5


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 100), (0.13, 13), (0.0, 0)])
def test_kept_rows_are_rows_of_the_task(fraction: float, count: int) -> None:
    task, kept = rows_task("a", 100), memory(fraction)
    kept.add(task)
    assert len({example.id for example in kept.examples}) == len(kept) == count
    assert set(kept.examples) <= set(task.train)
    assert bool(list(kept.batches(2, "b"))) == bool(count)
    assert [memory(0.0).quota(size) for size in (1, 49, 1000)] == [0, 0, 0]


def test_passes_are_repeatable_and_differ_from_each_other() -> None:
    def passes() -> list[list[str]]:
        kept = memory(0.5)
        kept.add(rows_task("a", 40))
        return [[e.id for batch in kept.batches(1, "b") for e in batch.examples] for _ in range(3)]

    once = passes()
    assert once == passes()
    assert once[0] != once[1] != once[2]
    assert sorted(once[0]) == sorted(once[1]) == sorted(once[2])


def test_rows_of_a_methods_own_are_kept_as_given() -> None:
    task = rows_task("a", 100)
    own = [Example("a/written/0", "q", "made up", "yes")]
    kept = memory(0.1)
    assert kept.choose(task) == memory(0.1).choose(task)
    assert not kept  # choosing keeps nothing
    kept.add(task, own)
    kept.add(rows_task("b", 100), [])
    kept.add(rows_task("c", 100))
    assert kept.kept == {"a": tuple(own), "b": (), "c": memory(0.1).choose(rows_task("c", 100))}


def test_passes_in_smaller_batches_hold_the_same_rows_in_the_same_order() -> None:
    orders = []
    for size in (None, 8, 3):
        kept = memory(0.5)
        kept.add(rows_task("a", 40))
        found = list(kept.batches(2, "b", size))
        assert {len(batch.examples) for batch in found[:-1]} <= {size or 8, 20 % (size or 8)}
        orders.append([e.id for batch in found for e in batch.examples])
    assert orders[0] == orders[1] == orders[2]


# ---- random batches


def drawn(
    kept: Memory, count: int, learning: str = "b", purpose: str = "outer"
) -> list[tuple[str, ...]]:
    return [
        tuple(e.id for e in batch.examples)
        for batch in islice(kept.draws(learning, purpose), count)
    ]


def test_random_batches_are_full_and_hold_no_row_twice() -> None:
    kept = memory(0.5)
    kept.add(rows_task("a", 40))
    kept.add(rows_task("c", 20))
    found = drawn(kept, 50)
    assert {len(batch) for batch in found} == {len(set(batch)) for batch in found} == {8}
    assert {id_ for batch in found for id_ in batch} == {e.id for e in kept.examples}


def test_a_small_memory_is_drawn_whole_in_random_order() -> None:
    kept = memory(0.1)
    kept.add(rows_task("a", 50))
    found = drawn(kept, 20)
    assert all(sorted(batch) == sorted(e.id for e in kept.examples) for batch in found)
    assert len(set(found)) > 10


def test_random_batches_repeat_and_each_has_a_stream_of_its_own() -> None:
    """So a resumed run draws the same, and a probe disturbs no update."""
    kept = memory(0.5)
    kept.add(rows_task("a", 60))
    first = drawn(kept, 10)
    list(kept.batches(3, "b"))
    drawn(kept, 5, purpose="probe")
    assert drawn(kept, 10) == first
    others = [
        drawn(kept, 10, "c"),
        drawn(kept, 10, purpose="probe"),
        drawn(memory_like(kept, seed=1), 10),
    ]
    for other in others:
        assert all(a != b for a, b in zip(first, other, strict=True))
    assert len(set(first)) == 10


def memory_like(kept: Memory, seed: int) -> Memory:
    """The same rows under another seed."""
    other = memory(kept.fraction, seed)
    other.kept = dict(kept.kept)
    return other


def test_random_batches_are_drawn_without_regard_to_those_before() -> None:
    """Every row is in a batch with probability B / |M|, in two successive ones with its square."""
    kept = memory(0.5)
    kept.add(rows_task("a", 64))
    count, found = 2000, [set(batch) for batch in drawn(kept, 2000)]
    for example in kept.examples:
        inside = [example.id in batch for batch in found]
        assert abs(sum(inside) / count - 8 / 32) < 5 * (0.25 * 0.75 / count) ** 0.5
        both = sum(a and b for a, b in pairwise(inside))
        assert abs(both / count - (8 / 32) ** 2) < 5 * (0.0625 * 0.9375 / count) ** 0.5 * 1.3


# ---- endless passes


@pytest.mark.parametrize(("rows", "size"), [(16, 4), (18, 4), (3, 8), (1, 1)])
def test_a_batch_by_its_number_is_that_of_shuffled_passes(rows: int, size: int) -> None:
    learner = stub_learner((), **{"optim.batch_size": size, "seed": 5})
    learner.task = rows_task("new", rows)
    passes = list(batches(learner.task.train, 3, size, 5, "prompts", "new"))
    numbers = list(range(len(passes)))
    assert [learner.batch_at(n, learner.task.train, "prompts") for n in numbers] == passes
    assert [learner.batch_at(n, learner.task.train, "prompts") for n in numbers[::-1]] == passes[
        ::-1
    ]
    if rows > 3:
        assert learner.batch_at(0, learner.task.train, "other") != passes[0]
