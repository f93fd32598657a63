"""`forever doctor` says what is installed, what the machine offers and what to do about it."""

import json
import os
import platform
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer
from typer import Option

from forever.cli.shown import note, print_lines, show
from forever.errors import InputError

_FREE_GB = 5  # a run keeps two checkpoints
_NAME = "forever-cl"


def doctor(
    fix: bool = Option(False, "--fix", help="Print the commands for what is missing; run none."),
) -> None:
    """Check what is installed and what this machine offers.

    Examples:
        forever doctor
        forever doctor --fix
    """
    from packaging.requirements import Requirement

    from forever.runs.environment import revision, version
    from forever.text import PlainTable, without_credentials

    try:
        package = distribution(_NAME)
    except PackageNotFoundError:
        install = shlex.join(["pip", "install", "-e", str(Path(__file__).parents[3])])
        raise InputError(f"this checkout is not installed: {install}") from None

    table = PlainTable("what", "found", "verdict", title="forever doctor")
    table.add_row("Python", platform.python_version(), "ok")
    needed: list[str] = []  # what pip is to install
    extras: list[str] = []  # of this package
    for needs in map(Requirement, package.requires or []):
        extra = str(needs.marker).partition("extra == ")[2].strip("'\"")
        if extra in ("dev", "docs"):
            continue
        installed, verdict = version(needs.name), "ok"
        if installed is None or not needs.specifier.contains(installed, prereleases=True):
            verdict = f"optional: install the extra {extra}" if extra else f"needed: {needs}"
            if extra:
                extras.append(extra)
            else:
                needed.append(f"{needs.name}{needs.specifier}")
        table.add_row(needs.name, installed or "-", verdict)
    if version("torch"):
        for row in _hardware():
            table.add_row(*row)
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    enough = "ok" if free > _FREE_GB else "little: a run keeps two checkpoints"
    table.add_row("disk", f"{free:.0f} GiB free here", enough)
    table.add_row("code", revision() or "no git revision", "ok")
    store = without_credentials(os.environ.get("MLFLOW_TRACKING_URI", "sqlite file ./mlflow.db"))
    table.add_row("MLflow store", store, "ok")
    show(table)

    # The commands, for a shell, that install with this Python what is missing.
    pip = [sys.executable, "-m", "pip", "install"]
    commands = [shlex.join([*pip, *needed])] if needed else []
    if extras:
        source = json.loads(package.read_text("direct_url.json") or "{}")
        target = [_NAME]
        if source.get("dir_info", {}).get("editable"):  # it was installed from a checkout
            target = ["-e", unquote(urlsplit(source["url"]).path)]
        target[-1] += f"[{','.join(dict.fromkeys(extras))}]"
        commands.append(shlex.join([*pip, *target]))
    note(sound=not needed, commands=commands)
    if fix:
        print_lines(commands or ["nothing is missing"])
    if needed:
        raise typer.Exit(1)


def _hardware() -> list[tuple[str, str, str]]:
    """Rows on processors and GPUs."""
    import torch

    rows = [("CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in torch", "ok")]
    if not torch.cuda.is_available():
        rows.append(("GPU", "none", "ok: runs use the CPU in fp32"))
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        verdict = "ok" if has_bf16 else "no bf16: set model.dtype=float32"
        rows.append((f"GPU {index}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB", verdict))
    return rows
