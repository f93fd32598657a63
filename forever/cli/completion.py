"""What the shell completes: names of runs, sweeps and folders, as fast as a key is pressed.

So nothing is loaded that takes time: names are read off the files that define them, and a test
holds them to what these files mean.
"""

import re
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_NAME = re.compile(r'^    name: Literal\["(\w+)"\]', re.MULTILINE)


def methods() -> list[str]:
    """The names of all methods."""
    names: list[str] = []
    for path in sorted((_PACKAGE / "config" / "methods").glob("*.py")):
        names += _NAME.findall(path.read_text(encoding="utf-8"))
    return names


def sweeps() -> list[str]:
    """The names of the sweeps that are shipped; a checkout has them on top."""
    root = _PACKAGE / "sweeps" / "shipped"
    if not root.is_dir():
        root = _PACKAGE.parent
    files = [*root.glob("ablations/*.yaml"), *root.glob("experiments/*.yaml")]
    return sorted(path.stem for path in files)


def named_runs(begun: str) -> list[str]:
    """The names of runs that begin so; the orders of a benchmark behind its second slash."""
    from forever.data.orders import ORDERS

    prefix = "cpu/" if begun.startswith("cpu/") else ""
    names: list[str] = []
    for benchmark, orders in ORDERS.items():
        places = [f"{prefix}{benchmark}"]
        if begun.startswith(f"{prefix}{benchmark}/"):
            places += [f"{prefix}{benchmark}/{order}" for order in orders]
        for place in places:
            names += [f"{place}/{method}" for method in methods()]
    return names


def complete_run(incomplete: str) -> list[str]:
    """Named runs and YAML files."""
    return _beginning([*named_runs(incomplete), *_files(incomplete)], incomplete)


def complete_sweep(incomplete: str) -> list[str]:
    """Sweeps and YAML files."""
    return _beginning([*sweeps(), *_files(incomplete)], incomplete)


def complete_planned(incomplete: str) -> list[str]:
    """Sweeps, named runs and YAML files."""
    return _beginning([*sweeps(), *named_runs(incomplete), *_files(incomplete)], incomplete)


def complete_method(incomplete: str) -> list[str]:
    """A change of the method; other keys have no names."""
    return _beginning([f"method.name={method}" for method in methods()], incomplete)


def complete_scale(incomplete: str) -> list[str]:
    """The scales that are shipped."""
    return _beginning(["mini", "cpu", "paper"], incomplete)


def complete_folder(incomplete: str) -> list[str]:
    """Folders of runs, also in folders of sweeps."""
    home = Path(incomplete).parent if "/" in incomplete else Path("runs")
    configs = [*home.glob("*/config.yaml"), *home.glob("*/*/config.yaml")]
    return _beginning(sorted(str(path.parent) for path in configs), incomplete)


def _files(incomplete: str) -> list[str]:
    """The YAML files in the folder that was begun."""
    folder = Path(incomplete).parent if "/" in incomplete else Path()
    return sorted(map(str, [*folder.glob("*.yaml"), *folder.glob("*.yml")]))


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
