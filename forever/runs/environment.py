"""Where a run ran: versions, revision, hardware, command."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from forever.text import without_credentials

_PACKAGES = ("forever-cl", "torch", "transformers", "peft", "numpy", "ray", "mlflow")


def describe() -> dict[str, Any]:
    """The machine and software of this process, as JSON values."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "packages": {name: version(name) for name in _PACKAGES},
        "revision": revision(),
        "code": code(),
        "argv": [Path(sys.argv[0]).name, *map(without_credentials, sys.argv[1:])],
    }


@cache
def version(package: str) -> str | None:
    """The installed version of a package, or None: as it was at this process's first call."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def revision() -> str | None:
    """The git revision of this code, "-dirty" if files were changed; None outside a repository.

    It is that of this process's first call, near the time when it read the code.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        quiet = subprocess.DEVNULL
        return subprocess.check_output(command, stderr=quiet, text=True, timeout=10).strip()

    try:
        # An installed copy may lie in somebody's repository.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def code() -> str:
    """Twelve hex digits that change with any line of this program, and not with its place."""
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:12]


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.is_file() else ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()
