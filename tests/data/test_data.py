"""Orders, layouts, refusals, splits and row limits; the real data where they are present."""

import csv
import gzip
import io
import json
import os
import re
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from forever.config.orders import ORDERS
from forever.config.run import RunConfig
from forever.data.batching import batch_count, batches
from forever.data.benchmarks import SUPERNI_CLASSIFICATION, load_benchmark
from forever.data.sources import find_tasks
from forever.data.tasks import Benchmark, Example, Message, Splits, Task
from forever.errors import InputError

# The paper's order table, written down independently of the library.
PAPER_ORDERS = {
    "standard 1": "dbpedia amazon yahoo agnews",
    "standard 2": "dbpedia amazon agnews yahoo",
    "standard 3": "yahoo amazon agnews dbpedia",
    "long 4": "mnli cb wic copa qqp boolqa rte imdb yelp amazon sst-2 dbpedia agnews multirc yahoo",
    "long 5": "multirc boolqa wic mnli cb copa qqp rte imdb sst-2 dbpedia agnews yelp amazon yahoo",
    "long 6": "yelp amazon mnli cb copa qqp rte imdb sst-2 dbpedia agnews yahoo multirc boolqa wic",
    "superni 7": "task1572 task363 task1290 task181 task002 task1510 task639 task1729 task073 "
    "task1590 task748 task511 task591 task1687 task875",
    "superni 8": "task748 task073 task1590 task639 task1572 task1687 task591 task363 task1510 "
    "task1729 task181 task511 task002 task1290 task875",
}


def load(**data: Any) -> Benchmark:
    return load_benchmark(RunConfig.parse({"data": data}).data)


def load_toy(root: Path, **data: Any) -> Benchmark:
    return load(**{"benchmark": "toy", "order": ["a", "b", "c"], "root": str(root)} | data)


def read_task(folder: Path, name: str) -> Splits:
    return find_tasks(folder)[name].splits()


def row(text: str, answer: str = "yes") -> dict[str, Any]:
    return {"instruction": "Is it?", "input": text, "output": answer}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def toy_root(tmp_path: Path) -> Path:
    for task in "abc":
        for split, count in (("train", 20), ("test", 6)):
            rows = [row(f"{task} {split} {i}", "yn"[i % 2]) for i in range(count)]
            write_jsonl(tmp_path / "toy" / task / f"{split}.jsonl", rows)
    return tmp_path


# ---- orders


def test_orders_equal_the_papers_table() -> None:
    for name, tasks in PAPER_ORDERS.items():
        benchmark, order = name.split()
        assert ORDERS[benchmark][order] == tuple(tasks.split())
        assert {*ORDERS[benchmark][order]} == {*next(iter(ORDERS[benchmark].values()))}
    assert sum(len(ORDERS[name]) for name in ("standard", "long", "superni")) == 8
    (thirty,) = ORDERS["thirty"].values()
    assert sorted(thirty) == sorted([*ORDERS["long"]["4"], *ORDERS["superni"]["7"]])
    kinds = "".join("s" if name.startswith("task") else "l" for name in thirty)
    assert max(map(len, re.findall("s+|l+", kinds))) < 15  # shuffled, not one after the other


def test_orders_decide_the_sequence(toy_root: Path) -> None:
    benchmark = load_toy(toy_root, order=("b", "a", "c"))
    assert [task.name for task in benchmark.tasks] == ["b", "a", "c"]
    assert benchmark.order == "b-a-c"
    assert benchmark.stages == benchmark.tasks
    names = [task.name for task in load().tasks]
    assert [task.name for task in load(order="2").tasks] == names[::-1]
    assert [task.name for task in load(order=["rain", "topic"]).tasks] == ["rain", "topic"]


def test_a_benchmark_of_two_folders(toy_root: Path) -> None:
    for name in ("long_sequence/rte", "superni/task002", "superni/task363"):
        shutil.copytree(toy_root / "toy" / "a", toy_root / name)
    order = ["task363", "rte", "task002"]
    both = load(benchmark="thirty", order=order, root=str(toy_root))
    metrics = {task.name: task.metric for task in both.tasks}
    assert metrics == {"task363": "exact_match", "rte": "exact_match", "task002": "rouge_l"}
    with pytest.raises(InputError, match="'mnli'"):
        load(benchmark="thirty", order=["mnli"], root=str(toy_root))
    shutil.rmtree(toy_root / "superni")
    with pytest.raises(InputError, match="superni"):
        load(benchmark="thirty", order=order, root=str(toy_root))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"order": ["aa"]}, "'aa'.* 'a'"),
        ({"order": ["zebra"]}, "'zebra'.* a, b, c"),
        ({"order": "1"}, r"'toy'.* data.order=\[a, b, c\]"),
        ({"benchmark": "nowhere"}, "nowhere"),
        ({"benchmark": "thirty", "order": "9", "root": None}, "'long_sequence' and 'superni'"),
        ({"benchmark": "superni", "order": "9"}, "'9'.* 7, 8"),
        ({"benchmark": "mini", "order": ["sentimemt"]}, "'sentimemt'.* 'sentiment'"),
    ],
)
def test_unknown_names_are_answered_with_valid_ones(
    data: dict[str, Any], message: str, toy_root: Path
) -> None:
    (toy_root / "superni").mkdir()
    with pytest.raises(InputError, match=message):
        load(**{"benchmark": "toy", "order": ["a"], "root": str(toy_root)} | data)


# ---- layouts


def write_natural(path: Path, instances: Any, definition: Any = "Do it.") -> Path:
    content = {"Definition": definition, "Instances": instances}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path.parent


def natural(count: int) -> list[dict[str, Any]]:
    return [{"input": f"in {i}", "output": [f"out {i}", "other"]} for i in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One task in each layout: a, sst-2, task363, boolqa and task001."""
    sentences = [{"sentence": f"text {i}", "label": ["Bad", "Good"][i % 2]} for i in range(4)]
    files: dict[str, Any] = {"labels": ["Bad", "Good"], "train": sentences, "test": sentences}
    (tmp_path / "SC" / "SST-2").mkdir(parents=True)
    for name, content in files.items():
        path = tmp_path / "SC" / "SST-2" / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
    for split in ("train", "test"):
        write_jsonl(tmp_path / "a" / f"{split}.jsonl", [row(f"{split} {i}") for i in range(3)])
        place = tmp_path / "task363_sst2_polarity" / f"{split}.json"
        place.parent.mkdir(exist_ok=True)
        write_natural(place, [{"id": "x", "input": split, "output": "POS"}], ["POS or NEG?"])
        place = tmp_path / split / "boolqa.json"
        place.parent.mkdir()
        place.write_text(json.dumps([row(split) | {"data_id": 0}]), encoding="utf-8")
    return write_natural(tmp_path / "task001_name_of_it.json", natural(50), ["Do it."])


def test_layouts(folder: Path, tmp_path: Path) -> None:
    assert [*find_tasks(folder)] == ["a", "boolqa", "sst-2", "task001", "task363"]
    ours, sentences, instances = (read_task(folder, name) for name in ("a", "sst-2", "task001"))
    assert ours[0][1] == Example("a/train/1", "Is it?", "train 1", "yes")
    question = "What is the sentiment of the following paragraph? Choose one from the option. "
    question += "Option: Bad, Good.\n"
    assert sentences[1][1] == Example("sst-2/test/1", question, "text 1\nAnswer:", "Good")
    assert [len(split) for split in (*ours, *sentences, *instances)] == [3, 3, 4, 4, 40, 10]
    examples = [*instances[0], *instances[1]]  # a fifth is held out
    texts = {(example.instruction, example.input, example.output) for example in examples}
    assert texts == {("Do it.", f"in {i}", f"out {i}") for i in range(50)}
    assert len({example.id for example in examples}) == 50
    assert read_task(folder, "task001") == instances  # the same split each time
    train, test = read_task(folder, "boolqa")
    assert (*train, *test) == (
        Example("boolqa/train/0", "Is it?", "train", "yes"),
        Example("boolqa/test/0", "Is it?", "test", "yes"),
    )
    train, test = read_task(folder, "task363")
    assert (*train, *test) == (
        Example("task363/train/0", "POS or NEG?", "train", "POS"),
        Example("task363/test/0", "POS or NEG?", "test", "POS"),
    )


def test_a_task_is_found_once(folder: Path, tmp_path: Path) -> None:
    """The same file may fit two layouts; two files may not have one task."""
    save = json.dumps({"Definition": "d", "Instances": natural(4)})
    (tmp_path / "train" / "train.json").write_text(save)  # <task>/train.json, train/<task>.json
    assert "train" in find_tasks(folder)
    path = tmp_path / "train" / "task363.json"
    path.write_text(save)
    with pytest.raises(InputError, match="task363") as refused:
        find_tasks(folder)
    assert refused.value.path == path


def test_text_comes_through_unchanged(tmp_path: Path) -> None:
    odd = [row(" blank \u2028 line\u0085 sep \r\n tab\t é 你好 🙂 ", " answer "), row("", "")]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in odd)  # no newline at the end
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "train.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "t" / "test.jsonl").write_text(f"{text}\n\n  \n", encoding="utf-8")
    for rows in read_task(tmp_path, "t"):
        assert [(e.input, e.output) for e in rows] == [(r["input"], r["output"]) for r in odd]


# ---- files as people have them


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_array(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps(rows, indent=1).encode()


def as_table(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


FORMATS = {
    ".jsonl": as_lines,
    ".json": as_array,
    ".csv": as_table,
    ".parquet": as_parquet,
    ".jsonl.gz": lambda rows: gzip.compress(as_lines(rows)),
    ".json.gz": lambda rows: gzip.compress(as_array(rows)),
    ".csv.gz": lambda rows: gzip.compress(as_table(rows)),
}
CODES = ["007", "2.50", "a, b", 'say "x"\nand y', "NA"]


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_rows(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    for split in ("train", "eval"):  # which is scored, as there is no test
        rows = [row(f"{split} {i}", code) for i, code in enumerate(CODES)]
        (tmp_path / "mine" / f"{split}{ending}").write_bytes(FORMATS[ending](rows))
    train, test = read_task(tmp_path, "mine")
    expected = [Example(f"mine/train/{i}", "Is it?", f"train {i}", c) for i, c in enumerate(CODES)]
    assert list(train) == expected
    assert test[1] == Example("mine/test/1", "Is it?", "eval 1", "2.50")
    # The folder of one task is found as one, too.
    assert read_task(tmp_path / "mine", "mine") == (train, test)
    # So is each file of a folder of files; a fifth of it is held out.
    for name in ("one", "two"):
        place = tmp_path / "files" / f"{name}{ending}"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(FORMATS[ending]([row(f"{i}") for i in range(1500)]))
    assert [*find_tasks(tmp_path / "files")] == ["one", "two"]
    train, test = read_task(tmp_path / "files", "one")
    assert (len(train), len(test)) == (1400, 100)
    assert {example.input for example in (*train, *test)} == {str(i) for i in range(1500)}
    assert read_task(place, "two")[0] != train  # a draw of its own
    assert read_task(tmp_path / "files" / f"one{ending}", "one") == (train, test)
    monkeypatch.setattr("forever.data.formats.LARGEST_FILE", 100)  # as it is unpacked
    with pytest.raises(InputError, match="limit"):
        read_task(tmp_path, "mine")


ASKED, ANSWERED = {"role": "user", "content": "Hot?"}, {"role": "assistant", "content": "no"}
SHAPES: list[tuple[dict[str, Any], Example]] = [
    ({"instruction": "Hot?", "output": "no"}, Example("", "Hot?", "", "no")),
    ({"instruction": "Hot?", "input": None, "output": "no"}, Example("", "Hot?", "", "no")),
    ({"instruction": "Hot?", "input": "", "output": "no"}, Example("", "Hot?", "", "no")),
    ({"prompt": "Hot?", "completion": "no"}, Example("", "Hot?", "", "no")),
    ({"prompt": "Hot?", "answer": "no"}, Example("", "Hot?", "", "no")),
    ({"question": "Hot?", "answer": "no"}, Example("", "Hot?", "", "no")),
    ({"prompt": "Hot?", "response": "no"}, Example("", "Hot?", "", "no")),
    ({"prompt": "Hot?", "output": "no"}, Example("", "Hot?", "", "no")),
    ({"input": "Hot?", "output": "no"}, Example("", "Hot?", "", "no")),
    ({"prompt": [ASKED], "completion": [ANSWERED]},
     Example("", "", "", "no", (Message("user", "Hot?"),))),
    ({"text": "No, it is not hot."}, Example("", "", "", "No, it is not hot.")),
    ({"text": "Hot? no", "messages": [ASKED, ANSWERED], "prompt": None},
     Example("", "", "", "no", (Message("user", "Hot?"),))),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), SHAPES)
def test_every_shape_of_a_row_is_an_example(
    content: dict[str, Any], expected: Example, tmp_path: Path
) -> None:
    for split in ("train", "test"):
        write_jsonl(tmp_path / "t" / f"{split}.jsonl", [content])
    assert read_task(tmp_path, "t")[0] == (replace(expected, id="t/train/0"),)


@pytest.mark.parametrize(
    ("content", "key", "message"),
    [
        ({"q": "Hot?", "a": "no"}, "", "data.datasets.TASK.columns"),
        ({"prompt": "Hot?", "chosen": "no", "rejected": "yes"}, "completion", "required"),
        ({"prompt": [ASKED], "completion": "no"}, "", "both be messages"),
        ({"text": 3}, "text", "string"),
        ({"question": "How many?", "answer": 42}, "answer", "write it as text"),
        ({"text": "It is good.", "label": 1}, "", r"data\.datasets\.TASK\.columns"),
    ],
)
def test_another_shape_is_refused_by_line(
    content: dict[str, Any], key: str, message: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "t" / "train.jsonl", [row("a"), content])
    with pytest.raises(InputError, match=message) as refused:
        read_task(tmp_path, "t")
    assert (refused.value.key, refused.value.line) == (key, 2)


@pytest.mark.parametrize(
    ("name", "content", "line", "message"),
    [
        ("train.csv", b"instruction,output\na,b\nc,d,e\n", 3, "more cells"),
        ("train.csv", b"instruction,output\na,b\nc\n", 3, "output"),
        ("train.csv", b'instruction,output\na,"b\n', 2, "unexpected end"),
        ("train.csv", b"instruction,output\na," + b"x" * 2**21, 2, "field larger"),
        ("train.parquet", b"PAR1 no", None, "parquet"),
        ("train.jsonl.gz", b"no gzip", None, "cannot be read"),
        ("train.jsonl.gz", gzip.compress(b"{}" * 9, mtime=0)[:-9], None, "cannot be read"),
    ],
)
def test_a_malformed_table_is_named(
    name: str, content: bytes, line: int | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / name).write_bytes(content)
    write_jsonl(tmp_path / "t" / "test.jsonl", [row("a")])
    with pytest.raises(InputError, match=message) as refused:
        read_task(tmp_path, "t")
    assert (refused.value.path, refused.value.line) == (tmp_path / "t" / name, line)


def test_a_folder_without_a_test_file_needs_a_share_to_hold_out(tmp_path: Path) -> None:
    rows = [row(f"{i}", "yn"[i % 2]) for i in range(20)]
    write_jsonl(tmp_path / "toy" / "a" / "train.jsonl", rows)
    with pytest.raises(InputError, match=r"test\.jsonl .* data\.validation=0\.1"):
        load_toy(tmp_path, order=["a"])
    task = load_toy(tmp_path, order=["a"], validation=0.1).tasks[0]
    assert (len(task.train), len(task.test)) == (18, 2)


def test_a_run_of_one_file(tmp_path: Path) -> None:
    """Its folder is the root and it the benchmark, or it is the root itself."""
    write_jsonl(tmp_path / "mine.jsonl", [row(f"{i}", "yn"[i % 2]) for i in range(20)])
    (tmp_path / "note.json").write_text("{}", encoding="utf-8")  # no list, and no task
    by_name = load(benchmark="mine.jsonl", order=["mine"], root=str(tmp_path))
    by_root = load(benchmark="own", order=["mine"], root=str(tmp_path / "mine.jsonl"))
    assert by_name.tasks == by_root.tasks
    assert len(by_root.tasks[0].test) == 4


def test_texts_are_scored_by_their_likelihood_and_held_apart(tmp_path: Path) -> None:
    for split in ("train", "test"):
        texts = [{"text": f"{split} {i} is a text"} for i in range(3)]
        write_jsonl(tmp_path / "toy" / "a" / f"{split}.jsonl", texts)
    assert load_toy(tmp_path, order=["a"]).tasks[0].metric == "text_likelihood"
    write_jsonl(tmp_path / "toy" / "a" / "test.jsonl", [{"text": "train 1 is a text "}])
    with pytest.raises(InputError, match=r"a/test/0 .* a/train/1"):
        load_toy(tmp_path, order=["a"])


# ---- conversations

SAID = [("system", "Be brief."), ("user", "Is it red?"), ("assistant", "Yes."), ("user", "Warm?")]
SHARE_GPT = {"user": "human", "assistant": "gpt"}


def as_messages(said: list[tuple[str, str]]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text, "name": None} for role, text in said]}


def as_share_gpt(said: list[tuple[str, str]]) -> dict[str, Any]:
    messages = [{"from": SHARE_GPT.get(role, role), "value": text} for role, text in said]
    return {"id": 7, "conversations": messages}


@pytest.mark.parametrize("written", [as_messages, as_share_gpt])
@pytest.mark.parametrize("place", ["talk/{}.jsonl", "{}/talk.json"])
def test_a_conversation_is_its_turns_and_their_answer(
    written: Any, place: str, tmp_path: Path
) -> None:
    """In lines and in a list; what is said after the last answer cannot be learned."""
    for split, thanks in (("train", []), ("test", [("user", "Thanks.")])):
        rows = [written([*SAID, ("assistant", f"{split} no"), *thanks])]
        path = tmp_path / place.format(split)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(rows if path.suffix == ".json" else rows[0]), "utf-8")
    train, test = read_task(tmp_path, "talk")
    turns = tuple(Message(role, text) for role, text in SAID)
    assert train == (Example("talk/train/0", "", "", "train no", turns),)
    assert test == (Example("talk/test/0", "", "", "test no", turns),)
    assert train[0].question == test[0].question
    first, second = Task("t", train, (), "rouge_l"), replace(train[0], turns=turns[1:])
    assert first.digest() != replace(first, train=(second,)).digest()


FIRST = json.dumps(row("first")) + "\n"
OURS, SENTENCES, NATURAL = "a/train.jsonl", "SC/SST-2/train.json", "task001_name_of_it.json"
RELEASE, LISTS = "task363_sst2_polarity/test.json", "train/boolqa.json"
LABELS, RELEASED = "SC/SST-2/labels.json", "task363_sst2_polarity/train.json"
NAMES = {OURS: "a", "a/test.jsonl": "a", NATURAL: "task001", RELEASE: "task363", LISTS: "boolqa"}
NAMES[RELEASED] = "task363"


@pytest.mark.parametrize(
    ("file", "content", "line", "key"),
    [
        (OURS, FIRST + '{"instruction": "a", "input": "b"', 2, ""),
        (OURS, FIRST + '{"instruction": "a", "input": "b"}', 2, "output"),
        (OURS, FIRST + json.dumps(row("x" * 2_000_000)), 2, "input"),
        (OURS, FIRST + json.dumps(row("café"), ensure_ascii=False), 2, ""),  # not UTF-8
        (OURS, FIRST + json.dumps(as_messages([("tool", "a")])), 2, "messages.0.role"),
        (OURS, FIRST + '{"messages": [{"role": ["user"], "content": ""}]}', 2, "messages.0.role"),
        (OURS, FIRST + '{"messages": [{"role": "user"}]}', 2, "messages.0.content"),
        (OURS, FIRST + json.dumps(as_messages([("assistant", "a")])), 2, ""),  # to no question
        (OURS, "\n \n", None, ""),
        ("a/test.jsonl", None, None, ""),
        (SENTENCES, [{"sentence": "a", "label": "b"}, {"sentence": "a"}], None, "1.label"),
        (LABELS, None, None, ""),
        (NATURAL, {"Definition": "d", "Instances": [{"input": "a"}]}, None, "Instances.0.output"),
        (NATURAL, {"Definition": "d", "Instances": natural(4)}, None, ""),  # too few
        (RELEASE, {"Instances": natural(4)}, None, "Definition"),
        (LISTS, [row("a"), {"prompt": "b"}], None, "1.completion"),
    ],
)
def test_a_malformed_file_is_named_in_one_line(
    folder: Path, file: str, content: Any, line: int | None, key: str
) -> None:
    """With the line or the row in it; None is a missing file."""
    path = folder / file
    path.unlink()
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(path))) as refused:
        read_task(folder, NAMES.get(file, "sst-2"))
    error = refused.value
    assert (error.path, error.line, error.key) == (path, line, key)


@pytest.mark.parametrize("file", [OURS, SENTENCES, NATURAL, RELEASED, LISTS])
def test_of_a_learned_task_the_test_examples_are_enough(folder: Path, file: str) -> None:
    """In each layout; what is malformed is not gone."""
    name, path = NAMES.get(file, "sst-2"), folder / file
    splits = read_task(folder, name)
    past = {name: Task(name, *splits, "exact_match").as_learned()}
    config = RunConfig.parse({"data": {"benchmark": "own", "order": [name], "root": str(folder)}})
    path.write_text(path.read_text("utf-8")[:-3], encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_benchmark(config.data, past=past)
    assert refused.value.path == path
    path.unlink()
    task = load_benchmark(config.data, past=past).tasks[0]
    assert task.test == (() if file == NATURAL else splits[1])
    assert (task.train, task.train_count) == ((), len(splits[0]))
    (folder / file.replace("train", "test")).unlink(missing_ok=True)
    assert load_benchmark(config.data, past=past).tasks[0].test == ()


# ---- splits, limits, metrics, digests


@pytest.mark.parametrize("blanks", ["", " "])
def test_overlap_of_train_and_test_is_refused(toy_root: Path, blanks: str) -> None:
    rows = [row("new"), row("c train 7" + blanks, "another answer")]
    write_jsonl(toy_root / "toy" / "c" / "test.jsonl", rows)
    with pytest.raises(InputError, match=r"c/test/1 .* c/train/7"):
        load_toy(toy_root)


def test_metric_follows_the_answers_or_the_configuration(toy_root: Path) -> None:
    rows = [row(f"b {i}", f"answer {i}") for i in range(20)]
    write_jsonl(toy_root / "toy" / "b" / "train.jsonl", rows)
    tasks = load_toy(toy_root).tasks
    assert [task.metric for task in tasks] == ["exact_match", "rouge_l", "exact_match"]
    assert [task.labels for task in tasks] == [("n", "y"), None, ("n", "y")]
    chosen = load_toy(toy_root, metrics={"a": "rouge_l", "b": "exact_match"}).tasks
    assert [task.metric for task in chosen] == ["rouge_l", "exact_match", "exact_match"]
    with pytest.raises(InputError, match="'bb'"):
        load_toy(toy_root, metrics={"bb": "exact_match"})


def test_metrics_by_name_by_likelihood_and_of_the_users_own(
    toy_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that scores differently makes another task."""
    likeliest = load_toy(toy_root, metrics={"a": "label_likelihood"}).tasks[0]
    assert (likeliest.metric, likeliest.labels) == ("label_likelihood", ("n", "y"))
    rows = [row(f"b {i}", f"answer {i}") for i in range(51)]
    write_jsonl(toy_root / "toy" / "b" / "train.jsonl", rows)
    with pytest.raises(InputError, match=r"task b has 51 .* 50") as refused:
        load_toy(toy_root, metrics={"b": "label_likelihood"})
    assert refused.value.key == "data.metrics"
    with pytest.raises(InputError, match="'exact_macth'; did you mean 'exact_match'") as refused:
        load_toy(toy_root, metrics={"b": "exact_macth"})
    assert refused.value.key == "data.metrics.b"
    monkeypatch.chdir(tmp_path)
    digests: list[str] = []
    for number, value in enumerate((0.5, 1)):
        code = f"def half(prediction, reference): return {value}\n"
        (tmp_path / f"own_{number}.py").write_text(code, encoding="utf-8")
        own = load_toy(toy_root, metrics={"a": f"own_{number}:half"}).tasks[0]
        assert own.metric == f"own_{number}:half@{sha256(code.encode()).hexdigest()[:12]}"
        digests.append(own.digest())
    assert len({*digests, likeliest.digest()}) == 3
    (tmp_path / "own_2.py").write_text("def half(prediction): return 1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"own_2:half failed .* TypeError"):
        load_toy(toy_root, metrics={"a": "own_2:half"})


def test_the_tasks_of_trace_have_its_metrics(toy_root: Path) -> None:
    """By the name of their folders; a configuration says otherwise."""
    (toy_root / "toy" / "a").rename(toy_root / "toy" / "Py150")
    (toy_root / "toy" / "b").rename(toy_root / "toy" / "ScienceQA")
    order = ["Py150", "ScienceQA", "c"]
    tasks = load_toy(toy_root, order=order, metrics={"c": "numeric"}).tasks
    assert [task.metric for task in tasks] == ["edit_similarity", "choice", "numeric"]
    assert load_toy(toy_root, order=["Py150"], metrics={"Py150": "rouge_l"}).tasks[0].metric == (
        "rouge_l"
    )


def test_validation_rows_come_from_training_and_test_rows_are_not_used(toy_root: Path) -> None:
    whole, held = load_toy(toy_root), load_toy(toy_root, validation=0.25)
    for before, after in zip(whole.tasks, held.tasks, strict=True):
        assert len(after.test) == round(0.25 * len(before.train))
        ids = sorted(example.id for example in (*after.train, *after.test))
        assert ids == sorted(example.id for example in before.train)
        assert (after.metric, after.labels) == (before.metric, before.labels)
    assert load_toy(toy_root, validation=0.25).tasks == held.tasks  # the same ones in every run
    limited = load_toy(toy_root, validation=0.25, test_rows=1)
    assert set(limited.tasks[0].test) < set(held.tasks[0].test)
    with pytest.raises(InputError, match=r"validation=0\.001"):
        load_toy(toy_root, validation=0.001)


def test_a_mark_of_byte_order_is_no_part_of_the_first_row(toy_root: Path) -> None:
    before = load_toy(toy_root).tasks
    path = toy_root / "toy" / "a" / "train.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_toy(toy_root).tasks == before


def test_nothing_that_is_held_out_is_trained_on(toy_root: Path) -> None:
    """Not even under another id: rows may repeat."""
    rows = [row(f"a train {i // 2}", "yn"[i // 2 % 2]) for i in range(20)]
    write_jsonl(toy_root / "toy" / "a" / "train.jsonl", rows)
    task = load_toy(toy_root, validation=0.25).tasks[0]
    assert len(task.test) == 5
    assert {example.question for example in task.train}.isdisjoint(e.question for e in task.test)
    assert len(task.train) < 15
    write_jsonl(toy_root / "toy" / "a" / "train.jsonl", [row("a train", "y")] * 20)
    with pytest.raises(InputError, match=r"validation=0\.25: .* task a"):
        load_toy(toy_root, validation=0.25)


def test_row_limits_keep_the_same_rows_in_every_run(toy_root: Path) -> None:
    whole, small = load_toy(toy_root), load_toy(toy_root, train_rows=7, test_rows=4)
    for task, kept in zip(whole.tasks, small.tasks, strict=True):
        assert (len(kept.train), len(kept.test)) == (7, 4)
        in_file_order = [example for example in task.train if example in set(kept.train)]
        assert list(kept.train) == in_file_order
    assert load_toy(toy_root, train_rows=7).tasks[0].train == small.tasks[0].train
    assert set(load_toy(toy_root, train_rows=5).tasks[0].train) < set(small.tasks[0].train)
    assert load_toy(toy_root, train_rows=1000).tasks == whole.tasks
    rows = [{example.id.split("/")[2] for example in task.train} for task in small.tasks]
    assert rows[0] != rows[1]  # each task has a draw of its own


def test_digest_changes_with_any_row(toy_root: Path) -> None:
    task = load_toy(toy_root).tasks[0]
    last = replace(task.train[-1], output="Y")
    changed = [
        Task("z", task.train, task.test, task.metric),
        Task("a", task.train[::-1], task.test, task.metric),
        Task("a", task.train, task.test[:-1], task.metric),
        Task("a", task.train, task.test, "rouge_l"),
        Task("a", (*task.train[:-1], last), task.test, task.metric),
    ]
    assert len({task.digest() for task in (task, *changed)}) == 6
    assert load_toy(toy_root).tasks[0].digest() == task.digest()


@pytest.mark.parametrize(
    ("rows", "epochs", "size", "count"),
    [(1000, 10, 8, 1250), (975, 10, 8, 1220), (5, 2, 4, 4), (4, 3, 4, 3)],
)
def test_batch_count(rows: int, epochs: int, size: int, count: int) -> None:
    examples = [Example(str(i), "", "", "x") for i in range(rows)]
    assert batch_count(rows, epochs, size) == count
    assert len(list(batches(examples, epochs, size, 0, "s"))) == count


# ---- the real data

REAL = Path(os.environ.get("FOREVER_DATA", Path(__file__).parents[3] / "shared" / "data"))
real = pytest.mark.skipif(
    not (REAL / "long_sequence").is_dir(),
    reason=f"no benchmark data in {REAL}; set FOREVER_DATA to a folder that has it",
)
TRAIN_ROWS = {
    "cb": 250, "copa": 400, "task073": 975, "task181": 338, "task1572": 160, "task639": 142,
    "task1590": 126,
}  # fmt: skip
TEST_ROWS = {
    "agnews": 2000, "amazon": 2500, "yelp": 2500, "boolqa": 1000, "imdb": 1000, "multirc": 1000,
    "qqp": 1000, "mnli": 1500, "sst-2": 872, "wic": 638, "rte": 277, "copa": 100, "cb": 56,
    "dbpedia": 7600, "yahoo": 500,
    "task181": 43, "task1572": 20, "task639": 18, "task1590": 16,
}  # fmt: skip


@real
@pytest.mark.parametrize(("name", "total"), [("long", 13650), ("superni", 11741)])
def test_real_sizes_ids_and_metrics(name: str, total: int) -> None:
    tasks = load(benchmark=name, root=str(REAL)).tasks
    assert sum(len(task.train) for task in tasks) == total
    ids: set[str] = set()
    for task in tasks:
        assert len(task.train) == TRAIN_ROWS.get(task.name, 1000), task.name
        assert len(task.test) == TEST_ROWS.get(task.name, 100), task.name
        ids |= {example.id for example in (*task.train, *task.test)}
        exact = name == "long" or task.name in SUPERNI_CLASSIFICATION
        assert task.metric == ("exact_match" if exact else "rouge_l")
    assert len(ids) == sum(len(task.train) + len(task.test) for task in tasks)
    for order, names in PAPER_ORDERS.items():
        if order.split()[0] in (name, {"long": "standard"}.get(name)):
            assert {*names.split()} <= {task.name for task in tasks}
