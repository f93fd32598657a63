"""Orders, readers, errors with file and line, splits, row limits; the real data where it is
present."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forever.config.run import RunConfig
from forever.data.batching import batch_count, batches
from forever.data.benchmarks import SUPERNI_CLASSIFICATION, load_benchmark
from forever.data.orders import ORDERS
from forever.data.sources import read_task, task_names
from forever.data.tasks import Benchmark, Example, Task
from forever.errors import InputError
from forever.training.memory import Memory

# The paper's order table, written down independently of the library.
PAPER_ORDERS = {
    ("standard", "1"): "dbpedia amazon yahoo agnews",
    ("standard", "2"): "dbpedia amazon agnews yahoo",
    ("standard", "3"): "yahoo amazon agnews dbpedia",
    (
        "long",
        "4",
    ): "mnli cb wic copa qqp boolqa rte imdb yelp amazon sst-2 dbpedia agnews multirc yahoo",
    (
        "long",
        "5",
    ): "multirc boolqa wic mnli cb copa qqp rte imdb sst-2 dbpedia agnews yelp amazon yahoo",
    (
        "long",
        "6",
    ): "yelp amazon mnli cb copa qqp rte imdb sst-2 dbpedia agnews yahoo multirc boolqa wic",
    (
        "superni",
        "7",
    ): "task1572 task363 task1290 task181 task002 task1510 task639 task1729 task073 task1590 "
    "task748 task511 task591 task1687 task875",
    (
        "superni",
        "8",
    ): "task748 task073 task1590 task639 task1572 task1687 task591 task363 task1510 task1729 "
    "task181 task511 task002 task1290 task875",
}


def config_of(**data: Any) -> Any:
    return RunConfig.parse({"data": data}).data


# ---- orders


def test_all_eight_orders_equal_the_papers_table() -> None:
    for (benchmark, order), tasks in PAPER_ORDERS.items():
        assert ORDERS[benchmark][order] == tuple(tasks.split())
    assert (
        sum(len(ORDERS[name]) for name in ("standard", "long", "superni")) == len(PAPER_ORDERS) == 8
    )


def test_validation_rows_come_from_training_and_test_rows_are_not_used(toy_root: Path) -> None:
    whole, held = load_toy(toy_root), load_toy(toy_root, validation=0.25)
    for before, after in zip(whole.tasks, held.tasks, strict=True):
        assert len(after.test) == round(0.25 * len(before.train))
        assert sorted(e.id for e in (*after.train, *after.test)) == sorted(
            e.id for e in before.train
        )
        assert not {e.id for e in after.test} & {e.id for e in before.test}
        assert (after.metric, after.labels) == (before.metric, before.labels)
    assert load_toy(toy_root, validation=0.25).tasks == held.tasks  # the same ones in every run
    assert set(load_toy(toy_root, validation=0.25, test_rows=1).tasks[0].test) < set(
        held.tasks[0].test
    )
    with pytest.raises(
        InputError, match=r"data.validation=0.001: task a has \d+ training rows; 0 of them cannot"
    ):
        load_toy(toy_root, validation=0.001)


def test_thirty_tasks_are_both_long_benchmarks_shuffled() -> None:
    (thirty,) = ORDERS["thirty"].values()
    assert sorted(thirty) == sorted([*ORDERS["long"]["4"], *ORDERS["superni"]["7"]])
    kinds = "".join("s" if name.startswith("task") else "l" for name in thirty)
    assert max(map(len, re.findall("s+|l+", kinds))) < 15  # shuffled, not one after the other


def test_a_benchmark_of_two_folders(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, names in (("long_sequence", ["rte"]), ("superni", ["task002", "task363"])):
        for name in names:
            shutil.copytree(toy_root / "toy" / "a", toy_root / folder / name)
    order = ["task363", "rte", "task002"]
    both = load_benchmark(config_of(benchmark="thirty", order=order, root=str(toy_root)))
    assert {t.name: t.metric for t in both.tasks} == {
        "task363": "exact_match",
        "rte": "exact_match",
        "task002": "rouge_l",
    }
    with pytest.raises(InputError, match=r"unknown task in .*long_sequence or .*superni 'mnli'"):
        load_benchmark(config_of(benchmark="thirty", order=["mnli"], root=str(toy_root)))
    shutil.rmtree(toy_root / "superni")
    with pytest.raises(InputError, match=r"there is no folder .*superni"):
        load_benchmark(config_of(benchmark="thirty", order=order, root=str(toy_root)))
    with pytest.raises(InputError, match="DIR that has the folders 'long_sequence' and 'superni'"):
        load_benchmark(config_of(benchmark="thirty"))


@pytest.mark.parametrize("benchmark", ["standard", "long", "superni"])
def test_orders_of_a_benchmark_are_permutations(benchmark: str) -> None:
    orders = list(ORDERS[benchmark].values())
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert (
        len(set(orders[0]))
        == len(orders[0])
        == {"standard": 4, "long": 15, "superni": 15}[benchmark]
    )


def test_orders_decide_the_sequence(toy_root: Path) -> None:
    names = ("b", "a", "c")
    benchmark = load_benchmark(config_of(benchmark="toy", order=names, root=str(toy_root)))
    assert tuple(t.name for t in benchmark.tasks) == names
    assert benchmark.order == "b-a-c"
    assert benchmark.stages == benchmark.tasks


# ---- layout 1: ours


Row = dict[str, Any]


def write_jsonl(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def row(text: str, answer: str = "yes") -> Row:
    return {"instruction": "Is it?", "input": text, "output": answer}


@pytest.fixture
def toy_root(tmp_path: Path) -> Path:
    for task in "abc":
        write_jsonl(
            tmp_path / "toy" / task / "train.jsonl",
            [row(f"{task} {i}", "yn"[i % 2]) for i in range(20)],
        )
        write_jsonl(
            tmp_path / "toy" / task / "test.jsonl",
            [row(f"{task} test {i}", "yn"[i % 2]) for i in range(6)],
        )
    return tmp_path


def load_toy(root: Path, **data: Any) -> Benchmark:
    return load_benchmark(config_of(benchmark="toy", order=["a", "b", "c"], root=str(root), **data))


def test_our_layout(toy_root: Path) -> None:
    benchmark = load_toy(toy_root)
    task = benchmark.tasks[1]
    assert task_names(toy_root / "toy") == ["a", "b", "c"]
    assert task.train[3] == Example("b/train/3", "Is it?", "b 3", "n")
    assert task.test[0] == Example("b/test/0", "Is it?", "b test 0", "y")
    assert (len(task.train), len(task.test)) == (20, 6)
    assert (task.metric, task.labels) == ("exact_match", ("n", "y"))


def test_text_comes_through_unchanged(tmp_path: Path) -> None:
    odd = [
        row(" blank \u2028 line\u0085 sep \r\n tab\t é 你好 🙂 ", " answer "),
        row("", "two\nlines"),
    ]
    for split in ("train", "test"):
        path = tmp_path / "t" / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        text = "\n".join(json.dumps(r, ensure_ascii=False) for r in odd)  # no newline at the end
        path.write_text(text + ("\n\n  \n" if split == "test" else ""), encoding="utf-8")
    for rows in read_task(tmp_path, "t"):
        assert [(e.input, e.output) for e in rows] == [(r["input"], r["output"]) for r in odd]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"instruction": "a", "input": "b"',
            r"train\.jsonl, line 2: not valid JSON \(.+\); one object a line",
        ),
        (
            '{"instruction": "a", "input": "b"}',
            r"train\.jsonl, line 2: field 'output' must be a string, but is null",
        ),
        (
            '{"instruction": "a", "input": 3, "output": "x"}',
            r"line 2: field 'input' must be a string, but is 3",
        ),
        (
            '{"instruction": ["a"], "input": "b", "output": "x"}',
            r"line 2: field 'instruction' must be a string",
        ),
        ('["a", "b", "c"]', r"line 2: field 'instruction' must be a string, but is null"),
    ],
)
def test_malformed_row_names_file_and_line(toy_root: Path, line: str, message: str) -> None:
    path = toy_root / "toy" / "a" / "train.jsonl"
    path.write_text(json.dumps(row("first")) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        load_toy(toy_root)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_answer_is_an_answer(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_jsonl(tmp_path / "t" / f"{split}.jsonl", [row("text", "")])
    assert read_task(tmp_path, "t")[0][0].output == ""


def test_wrong_encoding_names_the_file(toy_root: Path) -> None:
    path = toy_root / "toy" / "a" / "train.jsonl"
    path.write_bytes(json.dumps(row("café"), ensure_ascii=False).encode("latin-1"))
    with pytest.raises(InputError, match=r"train\.jsonl: not valid UTF-8"):
        load_toy(toy_root)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_file(toy_root: Path, content: str) -> None:
    (toy_root / "toy" / "a" / "test.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"test\.jsonl is empty; a split needs at least one row"):
        load_toy(toy_root)


@pytest.mark.parametrize("split", ["train", "test"])
def test_missing_file(toy_root: Path, split: str) -> None:
    (toy_root / "toy" / "b" / f"{split}.jsonl").unlink()
    message = (
        rf"there is no file .*{split}\.jsonl; task 'b' needs"
        if split == "test"
        else r"unknown task in .* 'b'"
    )
    with pytest.raises(InputError, match=message):
        load_toy(toy_root)


def test_unknown_names(toy_root: Path) -> None:
    with pytest.raises(InputError, match=r"unknown task in .*toy 'aa'; did you mean 'a'\?"):
        load_benchmark(config_of(benchmark="toy", order=["aa"], root=str(toy_root)))
    with pytest.raises(InputError, match=r"unknown task in .*toy 'zebra'; valid: a, b, c"):
        load_benchmark(config_of(benchmark="toy", order=["zebra"], root=str(toy_root)))
    with pytest.raises(
        InputError,
        match=r"benchmark 'toy' has no named orders; list its tasks, e.g. data.order=\[a, b, c\]",
    ):
        load_benchmark(config_of(benchmark="toy", order="1", root=str(toy_root)))
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        load_benchmark(config_of(benchmark="nowhere", root=str(toy_root)))
    with pytest.raises(
        InputError,
        match=r"data.root is not set.*give data.root=DIR that has the folder 'long_sequence'",
    ):
        load_benchmark(config_of(benchmark="standard"))
    (toy_root / "superni").mkdir()
    with pytest.raises(InputError, match=r"data.order: superni has no order '9'; valid: 7, 8"):
        load_benchmark(config_of(benchmark="superni", order="9", root=str(toy_root)))


@pytest.mark.parametrize("blanks", ["", " "])
def test_overlap_of_train_and_test_is_refused(toy_root: Path, blanks: str) -> None:
    write_jsonl(
        toy_root / "toy" / "c" / "test.jsonl", [row("new"), row("c 7" + blanks, "another answer")]
    )
    with pytest.raises(
        InputError,
        match="task c: test row c/test/1 repeats train row c/train/7; splits must be disjoint",
    ):
        load_toy(toy_root)


def test_metric_follows_the_answers_or_the_configuration(toy_root: Path) -> None:
    write_jsonl(
        toy_root / "toy" / "b" / "train.jsonl", [row(f"b {i}", f"answer {i}") for i in range(20)]
    )
    tasks = load_toy(toy_root).tasks
    assert [t.metric for t in tasks] == ["exact_match", "rouge_l", "exact_match"]
    assert tasks[1].labels is None
    chosen = load_toy(toy_root, metrics={"a": "rouge_l", "b": "exact_match"}).tasks
    assert [t.metric for t in chosen] == ["rouge_l", "exact_match", "exact_match"]


# ---- layout 2: CL_Benchmark


@pytest.fixture
def cl_root(tmp_path: Path) -> Path:
    for kind, name in (("SC", "SST-2"), ("TC", "agnews"), ("BoolQA", "BoolQA")):
        folder = tmp_path / kind / name
        folder.mkdir(parents=True)
        (folder / "labels.json").write_text(json.dumps(["Bad", "Good"]), encoding="utf-8")
        for split in ("train", "test"):
            rows = [
                {"sentence": f"{split} text {i}", "label": ["Bad", "Good"][i % 2]} for i in range(4)
            ]
            (folder / f"{split}.json").write_text(json.dumps(rows), encoding="utf-8")
    return tmp_path


def test_cl_benchmark_layout(cl_root: Path) -> None:
    assert task_names(cl_root) == ["agnews", "boolqa", "sst-2"]
    train, test = read_task(cl_root, "sst-2")
    assert train[1] == Example(
        "sst-2/train/1",
        "What is the sentiment of the following paragraph? Choose one from the option. "
        "Option: Bad, Good.\n",
        "train text 1\nAnswer:",
        "Good",
    )
    assert (len(train), len(test)) == (4, 4)
    assert read_task(cl_root, "boolqa")[0][0].instruction.startswith(
        "According to the following passage"
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.json", "[\n{", r"train\.json, line 2: not valid JSON"),
        ("train.json", "[]", r"train\.json is empty"),
        ("train.json", '{"a": 1}', r"train\.json: a list of rows is expected"),
        ("train.json", "3", r"train\.json: a list of rows is expected"),
        (
            "test.json",
            '[{"sentence": "a", "label": "b"}, {"sentence": "a"}]',
            r"test\.json, row 1: field 'label' must be a string",
        ),
        ("test.json", '["a"]', r"test\.json, row 0: field 'sentence' must be a string"),
        ("labels.json", '{"a": 1}', r"labels\.json: a list of labels is expected"),
        ("labels.json", "[1, 2]", r"labels\.json: a list of labels is expected"),
        ("labels.json", None, r"there is no file .*labels\.json"),
        ("test.json", None, r"there is no file .*test\.json"),
    ],
)
def test_malformed_cl_benchmark(
    cl_root: Path, file: str, content: str | None, message: str
) -> None:
    path = cl_root / "SC" / "SST-2" / file
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_task(cl_root, "sst-2")


def test_unknown_type_of_cl_benchmark(cl_root: Path) -> None:
    (cl_root / "SC").rename(cl_root / "SCC")
    with pytest.raises(
        InputError, match=r"unknown task type \(parent folder\) 'SCC'; did you mean 'SC'\?"
    ):
        read_task(cl_root, "sst-2")


# ---- layout 3: Super-NaturalInstructions


def ni(path: Path, instances: Any, definition: Any = "Do it.") -> Path:
    path.write_text(
        json.dumps({"Definition": definition, "Instances": instances}), encoding="utf-8"
    )
    return path.parent


def test_natural_instructions_layout(tmp_path: Path) -> None:
    instances = [
        {"input": f"in {i}", "output": [f"out {i}", "other"] if i % 2 else f"out {i}"}
        for i in range(50)
    ]
    folder = ni(tmp_path / "task073_name_of_it.json", instances, ["Do it."])
    assert task_names(folder) == ["task073"]
    train, test = read_task(folder, "task073")
    assert (len(train), len(test)) == (40, 10)  # a fifth is held out, at most 100
    rows = [*train, *test]
    assert {(e.instruction, e.input, e.output) for e in rows} == {
        ("Do it.", f"in {i}", f"out {i}") for i in range(50)
    }
    assert len({e.id for e in rows}) == 50
    assert read_task(folder, "task073") == (train, test)  # the same split each time


def test_natural_instructions_sizes_and_repeated_inputs(tmp_path: Path) -> None:
    instances = [{"input": f"in {i % 1500}", "output": "x"} for i in range(3000)]
    train, test = read_task(ni(tmp_path / "task001_x.json", instances), "task001")
    assert (len(train), len(test)) == (1000, 100)
    inputs = [e.input for e in (*train, *test)]
    assert len(set(inputs)) == len(inputs)


@pytest.mark.parametrize(
    ("instances", "definition", "message"),
    [
        ([{"input": "a"}], "d", r"task001_x\.json, instance 0: field 'output' must be a string"),
        ([{"input": "a", "output": []}], "d", r"instance 0: field 'output' must be a string"),
        ([{"output": "a"}], "d", r"instance 0: field 'input' must be a string"),
        (["a"], "d", r"instance 0: field 'input' must be a string"),
        ([], "d", r"task001_x\.json has 0 instances of different input; .* need 5"),
        (
            [{"input": f"{i % 4}", "output": "b"} for i in range(9)],
            "d",
            r"has 4 instances of different input; .* need 5",
        ),
        ({"a": 1}, "d", r"task001_x\.json: field 'Instances' must be a list"),
        (
            [{"input": "a", "output": "b"}],
            3,
            r"field 'Definition' must be a string or a list of strings",
        ),
        ([{"input": "a", "output": "b"}], [], r"field 'Definition' must be a string"),
    ],
)
def test_malformed_natural_instructions(
    tmp_path: Path, instances: Any, definition: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_task(ni(tmp_path / "task001_x.json", instances, definition), "task001")


# ---- row limits, batches, digests


def test_row_limits_keep_the_same_rows_for_every_seed(toy_root: Path) -> None:
    whole, small = load_toy(toy_root), load_toy(toy_root, train_rows=7, test_rows=4)
    for task, kept in zip(whole.tasks, small.tasks, strict=True):
        assert (len(kept.train), len(kept.test)) == (7, 4)
        assert set(kept.train) <= set(task.train)
        # File order.
        assert [e.id for e in kept.train] == [e.id for e in task.train if e in set(kept.train)]
    assert load_toy(toy_root, train_rows=7).tasks[0].train == small.tasks[0].train
    assert set(load_toy(toy_root, train_rows=5).tasks[0].train) < set(small.tasks[0].train)
    assert load_toy(toy_root, train_rows=1000).tasks == whole.tasks
    other_task = {e.id.split("/")[2] for e in small.tasks[1].train}
    assert {e.id.split("/")[2] for e in small.tasks[0].train} != other_task


def test_digest_changes_with_any_row(toy_root: Path) -> None:
    task = load_toy(toy_root).tasks[0]
    changed = [
        Task("z", task.train, task.test, task.metric),
        Task("a", task.train[::-1], task.test, task.metric),
        Task("a", task.train, task.test[:-1], task.metric),
        Task("a", task.train, task.test, "rouge_l"),
        Task(
            "a",
            (*task.train[:-1], Example(task.train[-1].id, "Is it?", task.train[-1].input, "Y")),
            task.test,
            task.metric,
        ),
    ]
    digests = {t.digest() for t in (task, *changed)}
    assert len(digests) == 6
    assert load_toy(toy_root).tasks[0].digest() == task.digest()


@pytest.mark.parametrize(
    ("rows", "epochs", "size", "count"),
    [(1000, 10, 8, 1250), (975, 10, 8, 1220), (5, 2, 4, 4), (4, 3, 4, 3)],
)
def test_batch_count(rows: int, epochs: int, size: int, count: int) -> None:
    examples = [Example(str(i), "", "", "x") for i in range(rows)]
    assert (
        batch_count(rows, epochs, size)
        == len(list(batches(examples, epochs, size, 0, "s")))
        == count
    )


def test_mini_has_disjoint_splits_and_orders() -> None:
    benchmark = load_benchmark(config_of())
    assert len(benchmark.tasks) == 5
    for task in benchmark.tasks:
        assert not {(e.instruction, e.input) for e in task.train} & {
            (e.instruction, e.input) for e in task.test
        }
    assert [t.name for t in load_benchmark(config_of(order="2")).tasks] == [
        t.name for t in benchmark.tasks
    ][::-1]
    with pytest.raises(InputError, match="unknown order of benchmark mini '3'; valid: 1, 2"):
        load_benchmark(config_of(order="3"))
    with pytest.raises(
        InputError, match="unknown task of benchmark mini 'sentimemt'; did you mean 'sentiment'"
    ):
        load_benchmark(config_of(order=["sentimemt"]))
    assert [
        t.name for t in load_benchmark(config_of(order=["place", "topic"], train_rows=3)).tasks
    ] == ["place", "topic"]


# ---- the real data


REAL = Path(os.environ.get("FOREVER_DATA", Path(__file__).parents[3] / "shared" / "data"))
real = pytest.mark.skipif(
    not (REAL / "long_sequence").is_dir(),
    reason=f"no benchmark data in {REAL}; set FOREVER_DATA to a folder that has it",
)
TRAIN_ROWS = {
    "cb": 250,
    "copa": 400,
    "task073": 975,
    "task181": 338,
    "task1572": 160,
    "task639": 142,
    "task1590": 126,
}
TEST_ROWS = {
    "agnews": 2000, "amazon": 2500, "yelp": 2500, "boolqa": 1000, "imdb": 1000, "multirc": 1000,
    "qqp": 1000, "mnli": 1500, "sst-2": 872, "wic": 638, "rte": 277, "copa": 100, "cb": 56,
    "dbpedia": 7600, "yahoo": 500,
    "task181": 43, "task1572": 20, "task639": 18, "task1590": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], Benchmark]:
    """The real benchmarks by name, each read once."""
    found: dict[str, Benchmark] = {}

    def load(name: str) -> Benchmark:
        if name not in found:
            found[name] = load_benchmark(config_of(benchmark=name, root=str(REAL)))
        return found[name]

    return load


@real
@pytest.mark.parametrize("name", ["long", "superni"])
def test_real_sizes(name: str, loaded: Callable[[str], Benchmark]) -> None:
    benchmark = loaded(name)
    assert len(benchmark.tasks) == 15
    for task in benchmark.tasks:
        assert len(task.train) == TRAIN_ROWS.get(task.name, 1000), task.name
        assert len(task.test) == TEST_ROWS.get(task.name, 100), task.name
    assert sum(len(t.train) for t in benchmark.tasks) == {"long": 13650, "superni": 11741}[name]


@real
@pytest.mark.parametrize(("name", "total"), [("long", 273), ("superni", 232)])
def test_real_memory(name: str, total: int, loaded: Callable[[str], Benchmark]) -> None:
    memory = Memory(0.02, 8, seed=0)
    for task in loaded(name).tasks:
        memory.add(task)
        kept = memory.kept[task.name]
        assert len(kept) == len({e.id for e in kept}) == memory.quota(len(task.train))
        classes = {e.output.strip() for e in task.train}
        if len(classes) <= len(kept):
            share = len(kept) // len(classes)
            counts = {c: sum(e.output.strip() == c for e in kept) for c in classes}
            available = {c: sum(e.output.strip() == c for e in task.train) for c in classes}
            assert all(counts[c] >= min(share, available[c]) for c in classes), task.name
    assert len(memory) == total


@real
@pytest.mark.parametrize(("name", "steps"), [("long", 1707), ("superni", 1468), ("standard", 500)])
def test_real_joint_epoch(name: str, steps: int, loaded: Callable[[str], Benchmark]) -> None:
    assert batch_count(len(loaded(name).joint().stages[0].train), 1, 8) == steps


@real
def test_real_metrics(loaded: Callable[[str], Benchmark]) -> None:
    assert {t.metric for t in loaded("long").tasks} == {"exact_match"}
    assert {
        t.name for t in loaded("superni").tasks if t.metric == "exact_match"
    } == SUPERNI_CLASSIFICATION
    assert {"task363", "task875", "task1687"} == SUPERNI_CLASSIFICATION


@real
@pytest.mark.parametrize("name", ["long", "superni"])
def test_real_ids_are_unique_and_splits_disjoint(
    name: str, loaded: Callable[[str], Benchmark]
) -> None:
    rows = [e for t in loaded(name).tasks for e in (*t.train, *t.test)]
    assert len({e.id for e in rows}) == len(rows)
    for task in loaded(name).tasks:
        assert not {e.input.strip() for e in task.train} & {e.input.strip() for e in task.test}, (
            task.name
        )


@real
def test_every_order_can_be_loaded(loaded: Callable[[str], Benchmark]) -> None:
    present = {name: {t.name for t in loaded(name).tasks} for name in ("long", "superni")}
    for (benchmark, _), tasks in PAPER_ORDERS.items():
        assert {*tasks.split()} <= present["superni" if benchmark == "superni" else "long"]
