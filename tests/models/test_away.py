"""Without a network, what is in the cache or in a folder is used, and the rest is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forever.models.location import TINY

REVISION = "a" * 40
# Tries each argument as a model, and as a dataset; prints what came of it.
SCRIPT = """
import json, sys
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.models import location

def attempt(read, *arguments):
    try:
        return str(read(*arguments))
    except InputError as error:
        return f"InputError at {error.key}"

def dataset(path):
    columns = {"instruction": "Is it?", "input": "text", "output": "answer"}
    data = {"benchmark": "mine", "datasets": {"a": {"path": path, "columns": columns}}}
    return len(load_benchmark(RunConfig.parse({"data": data}).data).tasks[0].train)

models, datasets = json.loads(sys.argv[1])
print(json.dumps([attempt(location.fetch, name) for name in models]))
print(json.dumps([attempt(dataset, path) for path in datasets]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A cache that has the model someone/here."""
    model = tmp_path / "hf" / "hub" / "models--someone--here"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION, encoding="utf-8")
    shutil.copytree(TINY, model / "snapshots" / REVISION)
    return tmp_path / "hf"


@pytest.mark.slow
@pytest.mark.parametrize("away", ["hub", "offline"])
def test_without_a_hub_cache_and_folders_work(away: str, home: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "things"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"text": f"{split} {i}", "answer": "yes"} for i in range(3)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home)}
    # Nobody listens at port 9 of this machine.
    setting = {"hub": ("HF_ENDPOINT", "http://127.0.0.1:9"), "offline": ("HF_HUB_OFFLINE", "1")}
    environment |= [setting[away]]
    asked = json.dumps([["someone/here", str(TINY), "someone/else"], [str(folder), "someone/else"]])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, asked],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    models, datasets = map(json.loads, done.stdout.splitlines())
    assert models[:2] == [str(home / f"hub/models--someone--here/snapshots/{REVISION}"), str(TINY)]
    assert models[2] == "InputError at model.name"
    assert datasets == ["3", "InputError at data.datasets.a.path"]
