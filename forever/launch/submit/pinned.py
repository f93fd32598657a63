"""All processes of a job run the copy of the code that was submitted, or none."""

import os

from forever.errors import InputError
from forever.runs.environment import code

CODE = "FOREVER_CODE"  # the digest that a job was submitted with, in the environment


def check_code() -> None:
    """Compare the code of this process with that of its job, if it is part of one.

    Raises:
        InputError: they differ, as where an image or an older installation was loaded.
    """
    expected = os.environ.get(CODE)
    if expected and expected != code():
        raise InputError(
            f"code {code()} runs here, and the job was submitted with {expected}; give all "
            "machines the same copy: forever submit sends it along, or an image holds it"
        )
