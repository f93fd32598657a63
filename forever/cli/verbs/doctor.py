"""`forever doctor` says what is installed, what the machine offers and what to do about it."""

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer
from packaging.requirements import Requirement
from typer import Option

from forever.cli.shown import note, print_lines, show
from forever.format import plural
from forever.runs.environment import revision, version
from forever.text import PlainTable, without_credentials

_FREE_GB = 5  # a run keeps two checkpoints
_EXTRA = re.compile(r"""extra == ["']([\w-]+)""")
_NAME = "forever-cl"


def doctor(
    fix: bool = Option(False, "--fix", help="Say the commands for what is missing; run none."),
) -> None:
    """Check what is installed and what this machine offers.

    Examples:
        forever doctor
        forever doctor --fix
    """
    show(_findings())
    needed: list[str] = []
    extras: list[str] = []
    for package, extra in _requirements():
        if _fits(package):
            continue
        if extra:
            extras.append(extra)
        else:
            needed += _asked(package)
    commands = _commands(needed, extras)
    note(sound=not needed, commands=commands)
    if fix:
        print_lines(commands or ["nothing is missing"])
    if needed:
        raise typer.Exit(1)


def _findings() -> PlainTable:
    """What is installed and what this machine offers, with a verdict on each."""
    table = PlainTable(title="forever doctor")
    for column in ("what", "found", "verdict"):
        table.add_column(column, overflow="fold")
    table.add_row("Python", platform.python_version(), "ok")
    for package, extra in _requirements():
        verdict = "ok" if _fits(package) else _remedy(package, extra)
        table.add_row(package.name, version(package.name) or "-", verdict)
    if version("torch"):
        _hardware(table)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    verdict = "ok" if free > _FREE_GB else "little: a run keeps two checkpoints"
    table.add_row("disk", f"{free:.0f} GiB free here", verdict)
    table.add_row("code", revision() or "no git revision", "ok")
    store = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", "sqlite file ./mlflow.db"))
    table.add_row("MLflow store", store, "ok")
    return table


def _commands(needed: Sequence[str], extras: Sequence[str]) -> list[str]:
    """The commands, for a shell, that install with this Python what is missing."""
    pip = [sys.executable, "-m", "pip", "install"]
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


def _requirements() -> list[tuple[Requirement, str]]:
    """List the packages of pyproject.toml with their extras, without those for developers."""
    try:
        lines = requires(_NAME) or []
    except PackageNotFoundError:  # a checkout that is not installed
        lines = [_NAME]
    packages: list[tuple[Requirement, str]] = []
    for package in map(Requirement, lines):
        extra = _EXTRA.search(str(package.marker))
        if extra is None or extra[1] != "dev":
            packages.append((package, extra[1] if extra else ""))
    return packages


def _fits(package: Requirement) -> bool:
    """Whether it is installed in a version that will do."""
    installed = version(package.name)
    return installed is not None and package.specifier.contains(installed, prereleases=True)


def _remedy(package: Requirement, extra: str) -> str:
    """What to do about a package that is missing or does not fit."""
    if not extra:
        return f"needed: {shlex.join(['pip', 'install', *_asked(package)])}"
    why = f"{package.specifier} is needed" if version(package.name) else "optional"
    return f"{why}: pip install 'forever-cl[{extra}]'"


def _asked(package: Requirement) -> list[str]:
    """What pip is asked for; no index has this package."""
    if package.name == _NAME:
        return ["-e", _place()]
    return [f"{package.name}{package.specifier}"]


def _hardware(table: PlainTable) -> None:
    import torch

    cores, threads = plural(os.cpu_count() or 1, "core"), plural(torch.get_num_threads(), "thread")
    table.add_row("CPU", f"{cores}, {threads} in torch", "ok")
    if not torch.cuda.is_available():
        table.add_row("GPU", "none", "ok: runs use the CPU in fp32")
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        verdict = "ok" if has_bf16 else "no bf16: set model.dtype=float32"
        table.add_row(f"GPU {index}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB", verdict)
