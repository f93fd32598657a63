"""`forever doctor` says what is installed, what the machine offers and what to do about it."""

import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from rich import box
from rich.table import Table

from forever.runs.environment import revision, version, without_credentials

_PYTHON = (3, 11)
_FREE_GB = 5  # a run keeps two checkpoints


def examine() -> tuple[Table, bool]:
    """Return the findings as a table, and whether everything that is needed is there."""
    table = Table(title="forever doctor", title_justify="left", box=box.SIMPLE)
    for column in ("what", "found", "verdict"):
        table.add_column(column, overflow="fold")
    sound = sys.version_info >= _PYTHON
    verdict = "ok" if sound else "3.11 or newer is needed"
    table.add_row("Python", platform.python_version(), verdict)
    for package, extra in _requirements():
        installed = version(package)
        verdict = "ok"
        if not installed and extra:
            verdict = f"optional: pip install 'forever-cl[{extra}]'"
        elif not installed:
            verdict = f"needed: pip install {package}"
            sound = False
        table.add_row(package, installed or "-", verdict)
    if version("torch"):
        _hardware(table)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    verdict = "ok" if free > _FREE_GB else "little: a run keeps two checkpoints"
    table.add_row("disk", f"{free:.0f} GiB free here", verdict)
    table.add_row("code", revision() or "no git revision", "ok")
    store = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", "sqlite file ./mlflow.db"))
    table.add_row("MLflow store", store, "ok")
    return table, sound


def _requirements() -> list[tuple[str, str]]:
    """List the packages of pyproject.toml with their extras, without those for developers."""
    try:
        lines = requires("forever-cl") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return [("forever-cl", "")]
    packages: list[tuple[str, str]] = []
    for line in lines:
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == [\"']([\w-]+)", line)
        section = extra[1] if extra else ""
        if name and section != "dev":
            packages.append((name[0], section))
    return packages


def _hardware(table: Table) -> None:
    import torch

    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in torch"
    table.add_row("CPU", threads, "ok")
    if not torch.cuda.is_available():
        table.add_row("GPU", "none", "ok: runs use the CPU in fp32")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        device = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        verdict = "ok"
        if not torch.cuda.is_bf16_supported():
            verdict = "no bf16: set model.dtype=float32"
        table.add_row(f"GPU {index}", device, verdict)
