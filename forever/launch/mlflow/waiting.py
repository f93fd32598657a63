"""Waiting for work that may never end."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread


def within(seconds: float, work: Callable[[], object]) -> None:
    """Do some work in a thread, which is left alone when its time is over.

    Raises:
        TimeoutError: it is over.
    """
    outcome = Future[object]()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=do, daemon=True).start()
    try:
        outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            raise
        raise TimeoutError(f"no end after {seconds:g} s") from None
