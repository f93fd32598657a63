"""forever-cl: when to replay, and how strongly, in the continual learning of language models.

`forever.run`, `forever.sweep` and `forever.load` are the Python interface (forever/api.py). They
are loaded when they are first used: `import forever` alone takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forever.errors import InputError

if TYPE_CHECKING:
    from forever.api import Placement, RunResult, SweepResult, load, run, sweep

__version__ = "0.1.0"
__all__ = ["InputError", "Placement", "RunResult", "SweepResult", "load", "run", "sweep"]


def __getattr__(name: str) -> Any:
    """Load what is in `__all__`.

    Raises:
        InputError: a package is missing that the frames need.
    """
    if name not in __all__:
        raise AttributeError(f"module 'forever' has no attribute {name!r}")
    try:
        return getattr(import_module("forever.api"), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("forever"):
            raise
        raise InputError(
            f"forever.{name} needs {error.name}; pip install 'forever-cl[report]'"
        ) from None


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
