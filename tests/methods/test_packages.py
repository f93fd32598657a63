"""A method in a package of its own is validated, planned, run, resumed and reported like ours."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from forever.config.run import RunConfig
from forever.errors import InputError

CONFIG = '''
"""The hyper-parameters, which are read without torch."""
from typing import Literal
from forever.config.methods.base import MethodConfig

class EveryConfig(MethodConfig):
    name: Literal["every"] = "every"
    code = "every.method:Every"
    updates: int = 2
    """Updates between two batches of memory."""
'''
METHOD = '''
"""Replay a batch of memory after every few updates."""
import os
from every import EveryConfig
from forever.training.method import Card, Method
from forever.training.steps import Step

class Every(Method[EveryConfig]):
    card = Card(title="Every", paper="none", memory="examples")

    def steps(self, learner, task):
        draws = learner.memory.draws(task.name, "every")
        for number, batch in enumerate(learner.batches(task.train), start=1):
            if os.environ.get("KILLED_AT") == f"{task.name} {number}":
                os._exit(9)
            yield Step(batch)
            if learner.memory and number % self.config.updates == 0:
                yield Step(next(draws), "replay")
'''


def install(folder: Path, version: str) -> None:
    """Put the package where pip would, by hand."""
    (folder / "every").mkdir(parents=True, exist_ok=True)
    (folder / "every" / "__init__.py").write_text(CONFIG, encoding="utf-8")
    (folder / "every" / "method.py").write_text(METHOD, encoding="utf-8")
    info = folder / "forever_every.dist-info"
    info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: forever-every\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[forever.methods]\nevery = every:EveryConfig\nbroken = nowhere:Config\n", encoding="utf-8"
    )


def forever(*words: str, site: Path | None = None, **environment: str) -> Any:
    """The command line, with the package's folder on the path if there is one."""
    paths = [str(site)] if site else []
    paths += [path for path in (os.environ.get("PYTHONPATH"), str(Path.cwd())) if path]
    words = (*words, "--mlflow", "off") if words[0] == "run" else words
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    command = [sys.executable, "-m", "forever.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def test_a_method_of_another_package(small_config: RunConfig, tmp_path: Path) -> None:
    values = small_config.model_dump(mode="json") | {"method": {"name": "every", "updates": 1}}
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(values), encoding="utf-8")
    site, out = tmp_path / "site", ["--out", str(tmp_path / "runs"), "--device", "cpu"]
    install(site, "1.2")

    # Where the package is missing, one line says so.
    missing = forever("run", str(run), *out)
    assert missing.returncode == 2
    assert len(missing.stderr.strip().splitlines()) == 1
    assert "'every'" in missing.stderr

    # A wrong field is refused with the nearest one, and a plan counts what the method will do.
    wrong = forever("plan", str(run), "method.update=3", *out, site=site)
    assert wrong.returncode == 2
    assert "method.updates" in wrong.stderr
    plan = forever("plan", str(run), "--json", *out, site=site)
    assert plan.returncode == 0, plan.stderr

    # A run that is killed in the second task is resumed, bit for bit.
    straight = forever("run", str(run), "--out", str(tmp_path / "straight"), *out[2:], site=site)
    assert straight.returncode == 0, straight.stderr
    assert forever("run", str(run), *out, site=site, KILLED_AT="shape 3").returncode == 9
    resumed = forever("run", str(run), "--resume", *out, site=site)
    assert resumed.returncode == 0, resumed.stderr
    configs = [*tmp_path.glob("straight/*/config.yaml"), *tmp_path.glob("runs/*/config.yaml")]
    folders = [path.parent for path in configs]
    steps = [(folder / "steps.jsonl").read_text("utf-8") for folder in folders]
    assert steps[0] == steps[1]
    result = json.loads((folders[1] / "result.json").read_text("utf-8"))
    assert result["method_package"] == {"name": "forever-every", "version": "1.2"}
    assert result["updates"]["replay"] == result["updates"]["task"] * 2 / 3
    (row,) = [row for row in json.loads(plan.stdout)["rows"] if row["variant"] == str(run)]
    assert row["replay"] == result["updates"]["replay"]

    # A report shows it, and refuses runs of two versions.
    report = ["report", str(tmp_path / "runs"), "--json"]
    done = forever(*report, site=site)
    assert done.returncode == 0, done.stderr
    install(site, "1.3")
    assert forever("run", str(run), "seed=1", *out, site=site).returncode == 0
    mixed = forever(*report, site=site)
    assert mixed.returncode == 2
    assert "1.2" in mixed.stderr
    assert "1.3" in mixed.stderr


def test_only_a_method_that_is_chosen_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours are read without the packages; one that cannot be loaded is refused when chosen."""
    install(tmp_path, "1")
    monkeypatch.syspath_prepend(tmp_path)
    RunConfig.parse({"method": {"name": "ewc"}})
    assert not {"every", "nowhere"} & sys.modules.keys()
    for name in ("broken", "nobody"):
        with pytest.raises(InputError) as error:
            RunConfig.parse({"method": {"name": name}})
        assert error.value.key == "method.name"
    assert RunConfig.parse({"method": {"name": "every"}}).model_dump()["method"]["updates"] == 2
