"""The site of docs/ is built without a warning and loads nothing from elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import chromium

for package in ("material", "mkdocstrings"):
    pytest.importorskip(package, reason=f"{package} is not installed: extra docs")

ROOT = Path(__file__).parents[2]
# What a browser loads by itself; a link that a reader follows may lead anywhere.
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("use", "href")}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """The addresses that a page loads, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if (tag, name) in LOADED]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    for path in built.rglob("*.html"):
        assert [url for url in Page(path).loaded if re.match(r"(https?:)?//", url)] == [], path
    for style in built.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_and_the_notebook_are_pages(built: Path) -> None:
    assert "--seeds" in Page(built / "reference" / "commands.html").text
    assert "batch_size" in Page(built / "reference" / "configuration.html").text
    assert "forever.api.sweep" in Page(built / "reference" / "python.html").text
    notebook = Page(built / "notebook.html")
    assert "forever.run" in notebook.text
    assert [url for url in notebook.loaded if url.startswith("data:image/png")]


def test_a_link_out_of_docs_is_text(built: Path) -> None:
    page = built / "reading-order.html"
    assert "methods/scheduled_replay.py" in Page(page).text
    assert 'href="../forever' not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_show_the_pictures_of_one_theme(built: Path, scheme: Any) -> None:
    with chromium() as browser:
        window = {"width": 390, "height": 900}
        page = browser.new_context(viewport=window, color_scheme=scheme).new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        for name in ("index", "notebook", "reference/commands", "reference/python", "explanation"):
            page.goto((built / f"{name}.html").as_uri())
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, name
        for theme in ("light", "dark"):
            pictures = page.locator(f"img[src$='gh-{theme}-mode-only']")
            seen = [pictures.nth(number).is_visible() for number in range(pictures.count())]
            assert {*seen} == {theme == scheme}
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
