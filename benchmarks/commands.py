"""Whole commands, from the shell to the report."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.case import Case

_FOREVER = Path(sys.executable).with_name("forever")


def demo(folder: Path) -> Case:
    """Components on mini and its two bounds: ten runs, table, report, MLflow."""
    store = f"sqlite:///{folder}/mlflow.db"
    spent = _command("demo", "--out", str(folder / "demo"), "--mlflow", store)
    return Case("forever demo: components on mini, 10 runs", 90.0, "s", [spent])


def real_run(model: str, root: Path, folder: Path) -> Case:
    """A run on real data with a real model and all test examples, 100 a task, on one core."""
    settings = [f"model.name={model}", f"data.root={root}"]
    options = ["--mlflow", "off", "--device", "cpu", "--out", str(folder / "real")]
    one_core = {"OMP_NUM_THREADS": "1"}
    spent = _command("run", "cpu/superni/7/forever", *settings, *options, environment=one_core)
    return Case("cpu/superni/7/forever, all 100 test examples a task", 300.0, "s", [spent])


def _command(*words: str, environment: Mapping[str, str] = {}) -> float:
    start = time.perf_counter()
    subprocess.run(
        [_FOREVER, *words], check=True, capture_output=True, env=os.environ | environment
    )
    return time.perf_counter() - start
