"""Tasks from datasets that `datasets.load_dataset` reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import execute

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Task
from forever.errors import InputError

datasets = pytest.importorskip("datasets")

COLUMNS = {"instruction": "Is it warm?", "input": "{colour} and {shape}", "output": "answer"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(split: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "colour": f"{split} red {i}",
            "shape": "round" if i % 3 else "flat",
            "size": i,
            "answer": i % 2,
        }
        for i in range(count)
    ]


def made(split: str, count: int) -> Any:
    labels = datasets.ClassLabel(names=["no", "yes"])
    return datasets.Dataset.from_list(rows(split, count)).cast_column("answer", labels)


def as_jsonl(folder: Path, split: str, count: int) -> None:
    text = [
        json.dumps(row | {"answer": ["no", "yes"][row["answer"]]}) for row in rows(split, count)
    ]
    (folder / f"{split}.jsonl").write_text("\n".join(text), encoding="utf-8")


def as_csv(folder: Path, split: str, count: int) -> None:
    text = ["colour,shape,size,answer"]
    for row in rows(split, count):
        answer = ["no", "yes"][row["answer"]]
        text.append(f"{row['colour']},{row['shape']},{row['size']},{answer}")
    (folder / f"{split}.csv").write_text("\n".join(text), encoding="utf-8")


def as_parquet(folder: Path, split: str, count: int) -> None:
    made(split, count).to_parquet(str(folder / f"{split}.parquet"))


def as_arrow(folder: Path, split: str, count: int) -> None:
    made(split, count).save_to_disk(str(folder / split))
    splits = [path.name for path in folder.iterdir() if path.is_dir()]
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}), encoding="utf-8")


WRITERS = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet, "arrow": as_arrow}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits as JSON lines."""
    return written(as_jsonl, tmp_path / "things")


def written(write: Callable[[Path, str, int], None], path: Path) -> Path:
    path.mkdir()
    write(path, "train", 12)
    write(path, "test", 4)
    return path


def described(folder: Path | str, **changes: Any) -> dict[str, Any]:
    """The configuration of a run whose one task is the dataset in `folder`."""
    task = {"path": str(folder), "columns": COLUMNS, **changes}
    return {"data": {"benchmark": "mine", "datasets": {"warm": task}}}


def task_of(folder: Path | str, **changes: Any) -> Task:
    return load_benchmark(RunConfig.parse(described(folder, **changes)).data).tasks[0]


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_gives_the_same_task(kind: str, tmp_path: Path) -> None:
    task = task_of(written(WRITERS[kind], tmp_path / kind))
    first = task.train[0]
    assert (first.id, first.instruction, first.input, first.output) == (
        "warm/train/0",
        "Is it warm?",
        "train red 0 and flat",
        "no",
    )
    assert (len(task.train), len(task.test)) == (12, 4)
    assert (task.metric, task.labels) == ("exact_match", ("no", "yes"))
    assert task.digest() == "a282921ee3e7"


def test_splits_may_be_parts_of_one(folder: Path) -> None:
    task = task_of(folder, train="train[:75%]", test="train[75%:]")
    assert [example.input for example in task.test] == [
        f"train red {i} and {'round' if i % 3 else 'flat'}" for i in (9, 10, 11)
    ]
    assert task.train[-1].id == "warm/train/8"


def test_a_filter_and_a_number_of_examples(folder: Path) -> None:
    task = task_of(folder, filter={"shape": "round", "size": [1, 2, 3, 4, 5]})
    assert [example.id for example in task.train] == [f"warm/train/{i}" for i in (1, 2, 4, 5)]
    fewer = task_of(folder, train_rows=5, test_rows=2)
    assert (len(fewer.train), len(fewer.test)) == (5, 2)
    assert set(fewer.train) < set(task_of(folder).train)
    assert fewer == task_of(folder, train_rows=5, test_rows=2)


def test_a_run_on_a_dataset(folder: Path, small_config: RunConfig, tmp_path: Path) -> None:
    """From a description to a score; the order is that of the description."""
    values = small_config.model_dump(mode="json")
    twice = described(folder)["data"]["datasets"] | {
        "cold": {
            "path": str(folder),
            "columns": {"instruction": "Is {colour} cold?", "output": "answer"},
        }
    }
    config = RunConfig.parse({**values, "data": {"benchmark": "mine", "datasets": twice}})
    assert config.data.order == ("warm", "cold")
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {**COLUMNS, "output": "anser"}}, r"columns 'anser'; did you mean 'answer'"),
        ({"columns": {**COLUMNS, "input": "a {shap}"}}, r"columns 'shap'; did you mean 'shape'"),
        ({"filter": {"colr": "red"}}, r"filter 'colr'; did you mean 'colour'"),
        ({"filter": {"shape": "long"}}, r"nothing is left of train after the filter"),
        ({"test": "tset"}, r"split 'tset': Unknown split \"tset\". Should be one of"),
        ({"test": "train"}, r"test row warm/test/0 repeats train row warm/train/0"),
        (
            {"trian": "train"},
            r"unknown key 'data.datasets.warm.trian'; did you mean '.*warm.train'",
        ),
        ({"path": "./nowhere"}, r"data.datasets.warm.path: there is no folder 'nowhere'"),
        ({"path": "someone/nothing"}, r"'someone/nothing' is no local folder, not in the cache"),
    ],
)
def test_a_mistake_is_one_line(changes: dict[str, Any], message: str, folder: Path) -> None:
    changes = dict(changes)
    with pytest.raises(InputError, match=message) as refused:
        task_of(changes.pop("path", folder), **changes)
    assert "\n" not in str(refused.value)


def test_other_content_than_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "things"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"a": null, "b": [1]}\n', encoding="utf-8")
    columns = {"instruction": "a", "output": "b"}
    with pytest.raises(InputError, match=r"row 0 of train: column 'a' is empty; text or a number"):
        task_of(folder, test="train", columns=columns)
    with pytest.raises(InputError, match=r"column 'b' is list; text or a number is expected"):
        task_of(folder, test="train", columns={**columns, "instruction": "Say it."})


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "things"
    folder.mkdir()
    (folder / "train.jsonl").write_text("{nonsense", encoding="utf-8")
    with pytest.raises(InputError, match=r"data.datasets.warm, split 'train': ") as refused:
        task_of(folder)
    assert "\n" not in str(refused.value)


def test_benchmarks_of_the_paper_keep_their_tasks(folder: Path) -> None:
    values = described(folder)
    values["data"]["benchmark"] = "long"
    with pytest.raises(InputError, match=r"benchmark 'long' has its own tasks"):
        load_benchmark(RunConfig.parse(values).data)
    values["data"] |= {"benchmark": "mine", "order": ["worm"]}
    with pytest.raises(InputError, match=r"task in data.datasets 'worm'; did you mean 'warm'"):
        load_benchmark(RunConfig.parse(values).data)
