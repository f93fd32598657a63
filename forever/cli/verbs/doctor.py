"""`forever doctor` says what is installed, what the machine offers and what to do about it."""

import json
import os
import platform
import re
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer
from typer import Option

from forever.cli.shown import note, print_lines, show
from forever.runs.environment import revision, version
from forever.text import PlainTable, without_credentials

_FREE_GB = 5  # a run keeps two checkpoints
_PACKAGE_AND_EXTRA = re.compile(r"""([\w.-]+)(?:.*extra == ["']([\w-]+))?""")
_NAME = "forever-cl"


def doctor(
    fix: bool = Option(False, "--fix", help="Say the commands for what is missing; run none."),
) -> None:
    """Check what is installed and what this machine offers.

    Examples:
        forever doctor
        forever doctor --fix
    """
    table, sound = examine()
    show(table)
    commands = missing_commands()
    note(sound=sound, commands=commands)
    if fix:
        print_lines(commands or ["nothing is missing"])
    if not sound:
        raise typer.Exit(1)


def examine() -> tuple[PlainTable, bool]:
    """Return the findings as a table, and whether everything that is needed is there."""
    table = PlainTable(title="forever doctor")
    for column in ("what", "found", "verdict"):
        table.add_column(column, overflow="fold")
    table.add_row("Python", platform.python_version(), "ok")
    sound = True
    for package, extra in _requirements():
        installed = version(package)
        verdict = "ok"
        if not installed:
            verdict = f"optional: pip install 'forever-cl[{extra}]'"
        if not installed and not extra:
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


def missing_commands() -> list[str]:
    """The commands, for a shell, that install what is missing with this Python."""
    pip = [sys.executable, "-m", "pip", "install"]
    needed: list[str] = []
    extras: list[str] = []
    for package, extra in _requirements():
        if version(package):
            continue
        if extra:
            extras.append(extra)
        else:
            needed.append(package)
    commands: list[str] = []
    if needed:
        commands.append(shlex.join([*pip, *needed]))
    if extras:
        place = _place()
        editable = ["-e"] if place != _NAME else []
        whole = f"{place}[{','.join(dict.fromkeys(extras))}]"
        commands.append(shlex.join([*pip, *editable, whole]))
    return commands


def _place() -> str:
    """What pip is asked for: this package by name, or the folder of a checkout."""
    try:
        told = distribution(_NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        return str(Path(__file__).parents[3])
    source = json.loads(told or "{}")
    if source.get("dir_info", {}).get("editable"):
        return unquote(urlsplit(source["url"]).path)
    return _NAME


def _requirements() -> list[tuple[str, str]]:
    """List the packages of pyproject.toml with their extras, without those for developers."""
    try:
        lines = requires(_NAME) or []
    except PackageNotFoundError:  # a checkout that is not installed
        lines = [_NAME]
    packages: list[tuple[str, str]] = []
    for line in lines:
        match = _PACKAGE_AND_EXTRA.match(line)
        if match and match[2] != "dev":
            packages.append((match[1], match[2] or ""))
    return packages


def _hardware(table: PlainTable) -> None:
    import torch

    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in torch"
    table.add_row("CPU", threads, "ok")
    if not torch.cuda.is_available():
        table.add_row("GPU", "none", "ok: runs use the CPU in fp32")
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        verdict = "ok" if torch.cuda.is_bf16_supported() else "no bf16: set model.dtype=float32"
        table.add_row(f"GPU {index}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB", verdict)
