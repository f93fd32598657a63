"""What a device must give: kernels that repeat their bits, and what fits into its memory.

What does not fit at once is done again, half of it at a time, and what a run leaves is given back.
"""

import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from forever.errors import InputError, one_line
from forever.text import complain

R = TypeVar("R")

_CANNOT_REPEAT = "does not have a deterministic implementation"  # in the words of PyTorch


def compute_repeatably(device: torch.device) -> None:
    """Let a GPU give the same bits each time, as a CPU does.

    Some of its kernels add in the order in which threads come. PyTorch then takes others; see
    `fitting` for what has no other. For cuBLAS there is a variable, which is read when it is first
    used.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Nothing here reads memory before it is written; to fill it would take time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def make_room() -> None:
    """Give back the memory of a model that nobody uses any more.

    What is freed glibc keeps in pieces of which the next run can use few: without this, a process
    on a CPU grew by about a gigabyte with each run of a model of 135 million parameters.
    """
    gc.collect()  # a model is part of circles
    torch.cuda.empty_cache()
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def fitting(
    work: Callable[[int], R], count: int, most: int | None, what: str
) -> tuple[R, int | None]:
    """Do `work`, which takes at most so many things at once, with as many as memory has room for.

    Where memory runs out, it begins anew with half as many, and says so in one line. It also does
    where a model needs a kernel that does not repeat its bits, which is then allowed.

    Args:
        count: how many there are; none is done as one is.
        most: how many there may be at once; None is any number.

    Returns:
        What `work` returned, and how many there may be at once from now on.

    Raises:
        InputError: not even one of them fits.
    """
    size = max(1, min(count, most or count))
    while True:
        try:
            return work(size), most
        except torch.OutOfMemoryError as error:
            reason = one_line(error)
        except RuntimeError as error:
            if _CANNOT_REPEAT not in str(error):
                raise
            torch.use_deterministic_algorithms(True, warn_only=True)
            complain(f"this run will not repeat its bits: {one_line(error)}")
            continue
        # Not within `except`: there the traceback holds on to what did not fit.
        if size == 1:
            raise InputError(
                f"out of memory, with one of the {what} at a time ({reason}); lower "
                "model.max_length, or take a smaller model or a larger device"
            )
        size = most = size // 2
        torch.cuda.empty_cache()
        complain(f"out of memory; from here on {size} {what} at once")
