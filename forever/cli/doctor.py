"""`forever doctor`: what is installed, what the machine offers, and what to do about what is
missing."""

import os
import platform
import shutil
import sys
from pathlib import Path

from rich import box
from rich.table import Table

from forever.runs.environment import revision, version, without_credentials

_NEEDED = (
    "torch",
    "transformers",
    "peft",
    "pydantic",
    "safetensors",
    "PyYAML",
    "rich",
    "typer",
    "rouge-score",
)
_EXTRAS = {
    "ray": "sweeps and several workers",
    "mlflow": "tracking",
    "matplotlib": "reports",
    "gguf": "GGUF models",
}
_EXTRA_OF = {"ray": "ray", "mlflow": "mlflow", "matplotlib": "report", "gguf": "gguf"}


def examine() -> tuple[Table, bool]:
    """The findings, and whether everything that is needed is there."""
    table = Table(title="forever doctor", title_justify="left", box=box.SIMPLE)
    for column in ("what", "found", "verdict"):
        table.add_column(column, overflow="fold")
    python = sys.version_info >= (3, 11)
    table.add_row(
        "Python", platform.python_version(), "ok" if python else "3.11 or newer is needed"
    )
    sound = python
    for name in _NEEDED:
        found = version(name)
        sound &= found is not None
        table.add_row(name, found or "-", "ok" if found else f"needed: pip install {name}")
    for name, purpose in _EXTRAS.items():
        found = version(name)
        hint = f"optional, for {purpose}: pip install 'forever-cl[{_EXTRA_OF[name]}]'"
        table.add_row(name, found or "-", "ok" if found else hint)
    if version("torch"):
        _hardware(table)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    table.add_row(
        "disk",
        f"{free:.0f} GiB free here",
        "ok" if free > 5 else "little: a run keeps two checkpoints",
    )
    table.add_row("code", revision() or "no git revision", "ok")
    store = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", "sqlite file ./mlflow.db"))
    table.add_row("MLflow store", store, "ok")
    return table, sound


def _hardware(table: Table) -> None:
    import torch

    table.add_row(
        "CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in torch", "ok"
    )
    if not torch.cuda.is_available():
        table.add_row("GPU", "none", "ok: runs use the CPU in fp32")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        table.add_row(
            f"GPU {index}",
            found,
            "ok" if torch.cuda.is_bf16_supported() else "no bf16: set model.dtype=float32",
        )
