"""What is written of a public release: which rows, how many, and where they came from."""

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from helpers import largest_file
from test_data import load

from forever.data.prepare import prepare
from forever.errors import InputError
from forever.files import WriteError

Rows = list[dict[str, Any]]


def save(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def sentences(split: str, counts: dict[str, int]) -> Rows:
    """Rows as in O-LoRA's files, labels one after the other."""
    rows: Rows = []
    for label, count in counts.items():
        rows += [{"sentence": f"{split} {label} {i}", "label": label} for i in range(count)]
    return rows


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A repository with O-LoRA's CL_Benchmark: mnli has rows of all kinds, yahoo no test."""
    mnli = tmp_path / "O-LoRA" / "CL_Benchmark" / "NLI" / "MNLI"
    test = sentences("test", {"yes": 600, "no": 20, "-": 7, "maybe": 510})
    save(mnli / "labels.json", ["yes", "no", "maybe"])
    save(mnli / "test.json", test)
    save(mnli / "dev.json", test[:50])
    # Three rows of test, one of them with a blank, and a row that test has without a label.
    twins = [test[0], test[599], {**test[605], "sentence": " " + test[605]["sentence"]}, test[621]]
    train = sentences("train", {"yes": 700, "no": 500, "-": 2})
    train += [{**twin, "label": "yes"} for twin in twins]
    save(mnli / "train.json", train)
    yahoo = tmp_path / "O-LoRA" / "CL_Benchmark" / "TC" / "yahoo"
    save(yahoo / "labels.json", ["a", "b"])
    save(yahoo / "train.json", sentences("train", {"a": 10, "b": 10}))
    save(yahoo / "dev.json", sentences("dev", {"a": 3, "b": 3}))
    save(yahoo / "test.json", [])
    return tmp_path / "O-LoRA"


def run(source: Path, to: Path) -> list[str]:
    return list(prepare(source, to))


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def read(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def positions(rows: Rows, texts: Sequence[str]) -> list[int]:
    """Where the rows stand in a release."""
    return [texts.index(row["input"].removesuffix("\nAnswer:")) for row in rows]


def test_rows_of_a_release(release: Path, tmp_path: Path) -> None:
    lines = run(release, tmp_path / "out")
    assert lines[0] == "long_sequence/mnli: 1000 train (2 unlabelled, 3 in test left out), " + (
        "1020 test (7 unlabelled left out)"
    )
    assert lines[1] == "long_sequence/yahoo: 20 train, 6 dev"
    assert "2 tasks, without agnews, amazon, boolqa" in lines[2]
    mnli = tmp_path / "out" / "long_sequence" / "mnli"
    source = release / "CL_Benchmark" / "NLI" / "MNLI"
    train, test = read(mnli / "train.jsonl"), read(mnli / "test.jsonl")
    assert Counter(row["output"] for row in test) == {"yes": 500, "no": 20, "maybe": 500}
    assert len({row["input"] for row in (*train, *test)}) == 2020
    for split, rows in {"train": train, "test": test}.items():
        released = json.loads((source / f"{split}.json").read_text())
        places = positions(rows, [row["sentence"] for row in released])
        assert places == sorted(places)  # in the order of the release
        assert places[-1] - places[0] > len(places)  # but not its first rows
        labels = [released[place]["label"] for place in places]
        assert [row["output"] for row in rows] == labels
        assert {row["instruction"] for row in rows} == {
            'What is the logical relationship between the "sentence 1" and the "sentence 2"? '
            "Choose one from the option. Option: yes, no, maybe.\n"
        }


def test_what_is_written_is_a_benchmark_and_the_same_every_time(
    release: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(release, out)
    for root in (out, out / "long_sequence"):
        tasks = load(benchmark="long", order=["yahoo", "mnli"], root=str(root)).tasks
        assert [(len(task.train), len(task.test)) for task in tasks] == [(20, 6), (1000, 1020)]
    run(release, tmp_path / "again")
    assert content(tmp_path / "again") == content(out)


def test_where_rows_came_from(release: Path, tmp_path: Path) -> None:
    run(release, tmp_path / "out")
    sources = json.loads((tmp_path / "out" / "long_sequence" / "sources.json").read_text())
    assert sources["tasks"]["yahoo"]["test"]["file"] == "CL_Benchmark/TC/yahoo/dev.json"
    mnli = sources["tasks"]["mnli"]
    for record in mnli.values():
        assert record["sha256"] == sha256((release / record["file"]).read_bytes()).hexdigest()
    assert mnli["train"]["left_out"] == {"unlabelled": 2, "in test": 3, "more than needed": 201}


def test_an_original_file_is_recorded_whole(tmp_path: Path) -> None:
    """3000 instances: 10 without a label, of which 4 have one in their twins, 1500 twice."""
    labelled = [{"input": f"{i}", "output": ["yes"]} for i in range(1495)]
    blank = [{"input": f"{i}", "output": ["-"]} for i in range(1491, 1501)]
    file = tmp_path / "NI" / "task639_x.json"
    save(file, {"Definition": ["Ask."], "Instances": [*blank, *labelled, *labelled]})
    assert run(tmp_path / "NI", tmp_path / "out")[0] == (
        "superni/task639: 1000 train (10 unlabelled, 1495 duplicate left out), "
        "100 test (10 unlabelled, 1495 duplicate left out)"
    )
    folder = tmp_path / "out" / "superni"
    records = json.loads((folder / "sources.json").read_text())["tasks"]["task639"]
    left_out = {"unlabelled": 10, "duplicate": 1495, "more than needed": 395}
    inputs: set[str] = set()
    for split, written, others in (("train", 1000, 100), ("test", 100, 1000)):
        rows = read(folder / "task639" / f"{split}.jsonl")
        assert {row["output"] for row in rows} == {"yes"}
        inputs |= {row["input"] for row in rows}
        record = records[split]
        assert record["left_out"] == {**left_out, "in the other split": others}
        assert (record["rows"], record["written"], len(rows)) == (3000, written, written)
    assert len(inputs) == 1100  # no input twice


def test_long_sequence_of_sapt_has_the_questions_of_the_others(tmp_path: Path) -> None:
    """It has instructions of its own, or none, beside O-LoRA's labels."""
    folder = tmp_path / "SAPT" / "CL_Benchmark" / "Long_Sequence" / "sst2"
    save(folder / "labels.json", ["Bad", "Good"])
    for split in ("train", "test"):
        instances = [{"input": f"{split} it is", "output": "Good"}]
        save(folder / f"{split}.json", {"Definition": [], "Instances": instances})
    run(tmp_path / "SAPT", tmp_path / "out")
    (example,) = read(tmp_path / "out" / "long_sequence" / "sst-2" / "train.jsonl")
    assert "Option: Bad, Good." in example["instruction"]
    assert (example["input"], example["output"]) == ("train it is\nAnswer:", "Good")


def test_nothing_is_overwritten_and_nothing_is_written_by_half(
    release: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(release, out)
    before = content(out)
    with pytest.raises(InputError) as refused:
        run(release, out)
    assert refused.value.path == out / "long_sequence"
    assert content(out) == before
    with pytest.raises(InputError, match="cannot be made"):
        run(release, out / "long_sequence" / "sources.json")
    (tmp_path / "empty").mkdir()
    for place in ("nowhere", "empty"):
        with pytest.raises(InputError, match=place):
            run(tmp_path / place, out)
    # A malformed file ends it.
    broken = release / "CL_Benchmark" / "TC" / "yahoo" / "dev.json"
    broken.write_text('[{"sentence": "a"}]')
    with pytest.raises(InputError) as refused:
        run(release, tmp_path / "half")
    assert refused.value.path == broken
    assert list((tmp_path / "half").iterdir()) == []


def test_a_task_without_rows_or_with_two_sources_is_refused(release: Path, tmp_path: Path) -> None:
    yahoo = release / "CL_Benchmark" / "TC" / "yahoo"
    save(yahoo / "dev.json", json.loads((yahoo / "train.json").read_text()))
    with pytest.raises(InputError) as refused:
        run(release, tmp_path / "out")
    assert refused.value.path == yahoo / "train.json"
    (release / "CL_Benchmark" / "TC").rename(tmp_path / "TC")
    save(release / "data" / "train" / "mnli.json", [])
    with pytest.raises(InputError, match="mnli is found twice"):
        run(release, tmp_path / "out")


def test_a_full_disk_leaves_no_half_benchmark(release: Path, tmp_path: Path) -> None:
    """The same command succeeds when there is room."""
    run(release, tmp_path / "sound")
    with largest_file(100_000), pytest.raises(WriteError):
        run(release, tmp_path / "out")
    assert content(tmp_path / "out") == {}
    run(release, tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "sound")


def test_a_file_that_would_fill_the_memory_is_refused(release: Path, tmp_path: Path) -> None:
    """A sparse file has the size and takes no room."""
    large = release / "CL_Benchmark" / "TC" / "yahoo" / "train.json"
    with large.open("r+b") as file:
        file.truncate(2**30)
    with pytest.raises(InputError) as refused:
        run(release, tmp_path / "out")
    assert refused.value.path == large
    assert content(tmp_path / "out") == {}
