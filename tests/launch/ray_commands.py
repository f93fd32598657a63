"""Commands with Ray that tests start as processes, in sessions of their own."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from forever.config.run import RunConfig

FOREVER = [sys.executable, "-m", "forever.cli.main"]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def sweep_command(
    folder: Path, store: Path | None, base: RunConfig, variants: Mapping[str, Any], *options: str
) -> list[str]:
    """The command of a sweep whose files, and a copy of the database of MLflow, lie in `folder`."""
    about = {"title": "Toys", "question": "?", "reference": next(iter(variants))}
    (folder / "toys.yaml").write_text(yaml.safe_dump({**about, "variants": dict(variants)}))
    (folder / "base.yaml").write_text(yaml.safe_dump(base.model_dump(mode="json")))
    command = [*FOREVER, "sweep", f"{folder}/toys.yaml", "--on", f"{folder}/base.yaml", *options]
    command += ["--mlflow", f"sqlite:///{folder}/mlflow.db" if store else "off"]
    if store:
        shutil.copy(store, folder)
    return [*command, "--out", f"{folder}/out", "--device", "cpu"]


def statuses(folder: Path, experiment: str) -> list[str]:
    """Of the runs of an MLflow experiment."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    entry = client.get_experiment_by_name(experiment)
    assert entry is not None
    return sorted(run.info.status for run in client.search_runs([entry.experiment_id]))


def begin(
    command: list[str], folder: Path, pattern: str, count: int, **environment: str
) -> "subprocess.Popen[str]":
    """Start a command in a session of its own, and wait for so many files of a pattern."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        start_new_session=True,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    give_up = time.monotonic() + 180
    while sum(path.stat().st_size > 0 for path in folder.glob(pattern)) < count:
        if time.monotonic() > give_up:
            process.kill()
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def newest_checkpoint(folder: Path) -> Path:
    return max(folder.glob("checkpoints/[0-9]*"))


def saved_in_the_middle(folder: Path, updates: int = 5) -> bool:
    """Whether the newest checkpoint is one within a task, after more than so many updates."""
    state: dict[str, Any] = json.loads((newest_checkpoint(folder) / "state.json").read_text())
    return not state["trained"] and len(state["records"]) > updates
