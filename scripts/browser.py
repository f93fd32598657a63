"""A browser without a window: for pictures of pages, and for tests of them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no browser: install Chromium, or run playwright install chromium"


@contextmanager
def browser() -> Iterator[Any]:
    """The browser on the PATH, or the one that Playwright installed.

    Raises:
        FileNotFoundError: there is neither.
    """
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # else it does not start
    with sync_playwright() as playwright:
        names = (*_NAMES, playwright.chromium.executable_path)
        path = next(filter(None, map(shutil.which, names)), None)
        if path is None:
            raise FileNotFoundError(MISSING)
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield launched
        finally:
            launched.close()
