"""Tasks from datasets that `datasets.load_dataset` reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import execute

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Example, Message, Task
from forever.errors import InputError

datasets = pytest.importorskip("datasets")

COLUMNS = {"instruction": "Is it warm?", "input": "{colour} and {shape}", "output": "answer"}
ROUND = ["flat", "round", "round"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def made(split: str, count: int) -> Any:
    rows: list[dict[str, Any]] = []
    for i in range(count):
        row = {"colour": f"{split} red {i}", "shape": ROUND[i % 3], "size": i, "answer": i % 2}
        rows.append(row)
    labels = datasets.ClassLabel(names=["no", "yes"])
    return datasets.Dataset.from_list(rows).cast_column("answer", labels)


def with_words(split: str, count: int) -> Any:
    """The same with answers as text, for files that hold no names of labels."""
    frame = made(split, count).to_pandas()
    frame["answer"] = frame["answer"].map({0: "no", 1: "yes"})
    return frame


def as_jsonl(folder: Path, split: str, count: int) -> None:
    with_words(split, count).to_json(folder / f"{split}.jsonl", orient="records", lines=True)


def as_csv(folder: Path, split: str, count: int) -> None:
    with_words(split, count).to_csv(folder / f"{split}.csv", index=False)


def as_parquet(folder: Path, split: str, count: int) -> None:
    made(split, count).to_parquet(str(folder / f"{split}.parquet"))


WRITERS = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet}


def written(kind: str, path: Path) -> Path:
    """Two splits in files of a kind."""
    path.mkdir()
    if kind == "arrow":
        both = datasets.DatasetDict(train=made("train", 12), test=made("test", 4))
        both.save_to_disk(str(path))
        return path
    WRITERS[kind](path, "train", 12)
    WRITERS[kind](path, "test", 4)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits as JSON lines."""
    return written("jsonl", tmp_path / "things")


def described(folder: Path | str, **changes: Any) -> dict[str, Any]:
    """The configuration of a run whose one task is the dataset in `folder`."""
    task = {"path": str(folder), "columns": COLUMNS, **changes}
    return {"data": {"benchmark": "mine", "datasets": {"warm": task}}}


def task_of(folder: Path | str, **changes: Any) -> Task:
    return load_benchmark(RunConfig.parse(described(folder, **changes)).data).tasks[0]


@pytest.mark.parametrize("kind", [*WRITERS, "arrow"])
def test_every_kind_of_file_gives_the_same_task(kind: str, tmp_path: Path) -> None:
    task = task_of(written(kind, tmp_path / kind))
    first = task.train[0]
    fields = (first.id, first.instruction, first.input, first.output)
    assert fields == ("warm/train/0", "Is it warm?", "train red 0 and flat", "no")
    assert (len(task.train), len(task.test)) == (12, 4)
    assert (task.metric, task.labels) == ("exact_match", ("no", "yes"))
    assert task.digest() == "a282921ee3e7"


def test_a_column_of_messages_is_a_conversation(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Is it warm?"}, {"role": "assistant", "content": "no"}]
    folder = tmp_path / "talks"
    folder.mkdir()
    for split in ("train", "test"):
        messages = [said[0] | {"content": split}, said[1]]
        rows = datasets.Dataset.from_list([{"talk": messages}, {"talk": [*messages, *said]}])
        rows.to_parquet(folder / f"{split}.parquet")
    first, second = task_of(folder, columns={"messages": "talk"}).train
    assert (first.id, first.output, first.turns) == (
        "warm/train/0", "no", (Message("user", "train"),),
    )  # fmt: skip
    assert [turn.role for turn in second.turns] == ["user", "assistant", "user"]
    judged = datasets.Dataset.from_list([{"talk": [{"role": "judge", "content": ""}]}])
    judged.to_parquet(folder / "train.parquet")
    with pytest.raises(InputError, match=r"row 0 of train, messages\.0\.role"):
        task_of(folder, columns={"messages": "talk"})
    with pytest.raises(InputError) as refused:
        task_of(folder, columns={"messages": "talk", "output": "answer"})
    assert refused.value.key == "data.datasets.warm.columns"


def test_every_cell_of_a_csv_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "codes"
    folder.mkdir()
    codes = ["007", "2.50", "1e3", "true", "NA", "+1", "12345678901234567890", ""]
    lines = [f'"item {i}, it",{code}' for i, code in enumerate(codes)]
    for split in ("train", "test"):
        text = "what,code\n" + "\n".join(lines).replace("item", split) + "\n"
        (folder / f"{split}.csv").write_text(text, encoding="utf-8")
    columns = {"instruction": "what", "output": "code"}
    task = task_of(folder, columns=columns)
    assert [example.output for example in task.train] == codes
    assert task.train[0].instruction == "train 0, it"
    kept = task_of(folder, columns=columns, filter={"code": ["007", 1e3, True]})
    assert [example.output for example in kept.test] == ["007"]
    (folder / "train.csv").write_text("what,code\na,5\nb,7\n", encoding="utf-8")
    (folder / "test.csv").write_text("what,code\nc,5\nd,7\n", encoding="utf-8")
    kept = task_of(folder, columns=columns, filter={"code": 7})
    assert [example.instruction for example in (*kept.train, *kept.test)] == ["b", "d"]


def test_an_input_may_be_empty(tmp_path: Path) -> None:
    """As in Alpaca's data; a question and an answer may not."""
    rows = [{"what": f"q {i}", "with": None if i else "it", "code": "a"} for i in range(4)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    columns = {"instruction": "what", "input": "with", "output": "code"}
    parts = {"train": "train[:2]", "test": "train[2:]"}
    task = task_of(tmp_path / "rows.parquet", columns=columns, **parts)
    assert [example.input for example in (*task.train, *task.test)] == ["it", "", "", ""]
    with pytest.raises(InputError, match="row 1 of train: column 'with' is empty"):
        task_of(tmp_path / "rows.parquet", columns={**columns, "output": "with"}, **parts)


def test_one_file_and_columns_that_go_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,completion\n" + "".join(f"q {i},0{i}\n" for i in range(10)), "utf-8")
    values = described(path, train="train[:80%]", test="train[80%:]")
    del values["data"]["datasets"]["warm"]["columns"]
    task = load_benchmark(RunConfig.parse(values).data).tasks[0]
    assert [e.output for e in (*task.train, *task.test)] == [f"0{i}" for i in range(10)]
    assert task.test[0] == Example("warm/test/0", "q 8", "", "08")
    del values["data"]["datasets"]["warm"]["test"]
    with pytest.raises(InputError, match=r"train\[90%:\]") as refused:
        load_benchmark(RunConfig.parse(values).data)
    assert refused.value.key == "data.datasets.warm"
    path.write_text("q,a\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"row 0 of train: .*data\.datasets\.TASK\.columns"):
        load_benchmark(RunConfig.parse(values).data)


def test_a_row_without_a_label_has_no_answer(tmp_path: Path) -> None:
    """-1 stands for none, as in test splits whose answers are kept secret."""
    hidden = made("test", 4).map(lambda row: {"answer": -1})
    datasets.DatasetDict(train=made("train", 12), test=hidden).save_to_disk(str(tmp_path))
    with pytest.raises(InputError, match="row 0 of test: column 'answer'"):
        task_of(tmp_path)
    assert len(task_of(tmp_path, test="train[:2]", train="train[2:]").train) == 10


def test_splits_filters_and_numbers_of_examples(folder: Path) -> None:
    parts = task_of(folder, train="train[:75%]", test="train[75%:]")
    assert parts.train[-1].id == "warm/train/8"
    assert parts.test[0].input == "train red 9 and flat"
    kept = task_of(folder, filter={"shape": "round", "size": [1, 2, 3, 4, 5]})
    assert [example.id for example in kept.train] == [f"warm/train/{i}" for i in (1, 2, 4, 5)]
    fewer = task_of(folder, train_rows=5, test_rows=2)
    assert (len(fewer.train), len(fewer.test)) == (5, 2)
    assert set(fewer.train) < set(task_of(folder).train)
    assert fewer == task_of(folder, train_rows=5, test_rows=2)


def test_a_learned_dataset_may_be_gone_and_must_not_be_out_of_reach(folder: Path) -> None:
    task = task_of(folder)

    def again(place: Path | str, name: str = "warm") -> tuple[Example, ...]:
        data = described(place)["data"]
        data |= {"order": ["warm"], "datasets": {name: data["datasets"]["warm"]}}
        past = {"warm": task.as_learned()}
        return load_benchmark(RunConfig.parse({"data": data}).data, past=past).tasks[0].test

    (folder / "train.jsonl").unlink()
    assert again(folder) == task.test
    (folder / "empty").mkdir()
    assert again(folder, "cold") == again(folder / "gone") == again(folder / "empty") == ()
    with pytest.raises(InputError) as refused:
        again("someone/nothing")
    assert refused.value.key == "data.datasets.warm.path"


def test_a_run_on_a_dataset(folder: Path, small_config: RunConfig, tmp_path: Path) -> None:
    """From a description to a score; the order is that of the description."""
    columns = {"instruction": "Is {colour} cold?", "output": "shape"}  # in words of the model
    twice = described(folder, columns={**COLUMNS, "output": "shape"})["data"]["datasets"]
    twice["cold"] = {"path": str(folder), "columns": columns}
    values = small_config.model_dump(mode="json")
    config = RunConfig.parse({**values, "data": {"benchmark": "mine", "datasets": twice}})
    assert RunConfig.parse(config.model_dump(mode="json")) == config
    result = execute(config, tmp_path / "run")
    assert result["stages"] == ["warm", "cold"]
    assert result["data"]["warm"] == load_benchmark(config.data).tasks[0].digest()


def test_the_fingerprint_says_what_and_not_where(folder: Path, tmp_path: Path) -> None:
    assert "datasets" not in RunConfig.parse({}).identity()["data"]
    here = RunConfig.parse(described(folder))
    there = RunConfig.parse(described(tmp_path / "elsewhere" / "things"))
    other = RunConfig.parse(described(folder, train="train[:5]"))
    assert here.fingerprint() == there.fingerprint() != other.fingerprint()


def test_a_relative_folder_starts_at_the_root(folder: Path) -> None:
    values = described("things")
    values["data"]["root"] = str(folder.parent)
    assert len(load_benchmark(RunConfig.parse(values).data).tasks[0].train) == 12


NULLS = '{"a": null, "b": [1]}\n'
FROM_B = {"test": "train", "columns": {"instruction": "a", "output": "b"}}
WARM = "data.datasets.warm"


@pytest.mark.parametrize(
    ("content", "changes", "key", "message"),
    [
        ("", {"columns": {**COLUMNS, "output": "anser"}}, f"{WARM}.columns", "'answer'"),
        ("", {"columns": {**COLUMNS, "input": "a {shap}"}}, f"{WARM}.columns", "'shape'"),
        ("", {"filter": {"colr": "red"}}, f"{WARM}.filter", "'colour'"),
        ("", {"filter": {"shape": "long"}}, f"{WARM}.filter", "train"),
        ("", {"test": "tset"}, WARM, "'tset'"),
        ("", {"test": "train"}, "", "warm/test/0 .* warm/train/0"),
        ("", {"trian": "train"}, f"{WARM}.trian", f"'{WARM}.train'"),
        ("", {"path": "./nowhere"}, f"{WARM}.path", "'nowhere'"),
        ("", {"path": "someone/nothing"}, f"{WARM}.path", "'someone/nothing'"),
        (NULLS, FROM_B, WARM, "row 0 of train: column 'a'"),
        ("{nonsense", {}, WARM, "'train'"),
    ],
)
def test_a_mistake_is_one_line(
    content: str, changes: dict[str, Any], key: str, message: str, folder: Path
) -> None:
    if content:
        (folder / "test.jsonl").unlink()
        (folder / "train.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as refused:
        task_of(**{"folder": folder} | changes)
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"benchmark": "long"}, "'long'"), ({"order": ["worm"]}, "'worm'.* 'warm'")],
)
def test_tasks_are_those_that_are_described(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    values = described(folder)
    values["data"] |= changes
    with pytest.raises(InputError, match=message):
        load_benchmark(RunConfig.parse(values).data)


# ---- a folder that others made


@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "place", ["../secret/train.jsonl", "{secret}", "http://127.0.0.1:9/x.jsonl"]
)
def test_a_card_that_names_data_outside_of_its_folder_is_refused(
    place: str, card: str, tmp_path: Path
) -> None:
    folder, secret = written("jsonl", tmp_path / "own"), tmp_path / "secret"
    secret.mkdir()
    as_jsonl(secret, "train", 3)
    place = place.format(secret=secret / "train.jsonl")

    def card_of(file: str) -> str:
        configs = [{"split": "train", "path": file}, {"split": "test", "path": ["test.jsonl"]}]
        text = yaml.safe_dump({"configs": [{"config_name": "default", "data_files": configs}]})
        return f"---\n{text}---\n# Data\n" if card == "README.md" else text

    (folder / card).write_text(card_of(place), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        task_of(folder)
    assert refused.value.path == folder / card
    (folder / card).write_text(card_of("train.jsonl"), encoding="utf-8")
    assert len(task_of(folder).train) == 12
