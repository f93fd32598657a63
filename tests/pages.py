"""What tests of pages share: the text of a page without its scripts, and a browser."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

_SCRIPT = re.compile(r'(<script type="module">)(.*?)(</script>)', re.DOTALL)


def scripts_of(page: str) -> list[str]:
    """The scripts of a report, in their order."""
    return [script for _, script, _ in _SCRIPT.findall(page)]


def without_scripts(page: str) -> str:
    """The page with empty scripts, which is XML."""
    return _SCRIPT.sub(r"\1\3", page)


def printed(shown: Any, width: int) -> str:
    """What a console that is no terminal prints."""
    console = Console(width=width, record=True, force_terminal=False)
    console.print(shown)
    return console.export_text()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; the test is skipped where none is installed."""
    sync_api = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # else it does not start
    with sync_api.sync_playwright() as playwright:
        names = ("chromium", "chromium-browser", "google-chrome")
        names += (playwright.chromium.executable_path,)
        path = next(filter(None, map(shutil.which, names)), None)
        if path is None:
            pytest.skip("no browser: install Chromium, or run playwright install chromium")
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield launched
        finally:
            launched.close()


class Listened:
    """A page in a browser that notes what is said on its console, what it asks for, and dialogs."""

    def __init__(self, context: Any, file: Path) -> None:
        self.page = context.new_page()
        self.told: list[str] = []
        self.page.on("console", lambda message: self.told.append(message.text))
        self.page.on("pageerror", lambda error: self.told.append(str(error)))
        self.page.on("request", lambda request: self.told.append(request.url))
        self.page.on("dialog", self._dialog)
        self.page.goto(file.as_uri())
        assert self.told.pop(0) == file.as_uri()  # all that it may ask for

    def _dialog(self, dialog: Any) -> None:
        self.told.append(dialog.message)
        dialog.dismiss()
