"""The site of docs/ is built without a warning and needs nothing from elsewhere."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pages import chromium

pytest.importorskip("material", reason="mkdocs-material is not installed: extra docs")

from scripts import diagram, site

ROOT = Path(__file__).parents[2]
# What a browser loads by itself; a link that a reader follows may lead anywhere.
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("use", "href")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, its anchors, and where its links lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in LOADED:
                self.loaded.append(value or "")
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")


def all_pages(built: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(built.rglob("*.html")):
        if path.name != "404.html":  # whose addresses begin at the server's root
            yield path, Page(path)


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    for path, page in all_pages(built):
        assert [url for url in page.loaded if re.match(r"(https?:)?//", url)] == [], path
    for style in built.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_link_in_the_site_leads_somewhere(built: Path) -> None:
    pages = {path.resolve(): page for path, page in all_pages(built)}
    for path, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            there = (path.parent / target).resolve() if target else path
            assert there.is_file(), f"{path}: {link}"
            if anchor and there in pages:
                assert anchor in pages[there].anchors, f"{path}: {link}"


def test_every_page_has_one_place_in_the_navigation() -> None:
    pages = [page.relative_to(site.DOCS).as_posix() for page in site.DOCS.rglob("*.md")]
    placed: list[str] = []
    for part in site.navigation([*pages, "new-page.md"]):
        (group,) = part.values()
        placed += group
    assert len(placed) == len({*placed})
    assert {*pages, "new-page.md", "notebook.md"} <= {*placed}
    how_to = next(
        part["How to"] for part in site.navigation([*pages, "new-page.md"]) if "How to" in part
    )
    assert how_to[-1] == "new-page.md"


def test_code_is_read_in_the_site(built: Path) -> None:
    """Links of reading-order.md lead to it."""
    page = (built / "reading-order.html").read_text(encoding="utf-8")
    assert 'href="source/forever/replay/clock.py.html"' in page
    code = (built / "source/forever/replay/clock.py.html").read_text(encoding="utf-8")
    assert "class</span>" in code


def test_the_notebook_is_a_page_with_what_came_out(built: Path) -> None:
    page = (built / "notebook.html").read_text(encoding="utf-8")
    assert "forever.run" in re.sub(r"<[^>]+>", "", page)
    assert 'class="dataframe"' in page
    assert "data:image/png;base64," in page


def test_flowcharts_are_drawn(built: Path) -> None:
    page = (built / "index.html").read_text(encoding="utf-8")
    assert 'class="diagram"' in page
    assert "mermaid" not in page


def test_a_flowchart_has_its_boxes_in_layers() -> None:
    drawn = diagram.svg(
        'flowchart TB\n  a["one: first <b>"]\n  b["two"]\n  c["three"]\n  a --> b & c\n  b --> c\n'
    )
    heights = [float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', drawn)]
    assert heights == sorted({*heights})  # a box a layer
    assert drawn.count('fill="none"') == 3
    assert "first &lt;b&gt;" in drawn


@pytest.mark.parametrize(
    "text",
    [
        "graph LR\n a --> b",
        "flowchart TB\n a -.-> b",
        'flowchart TB\n a["x"]\n b["y"]\n a --> b\n b --> a',
    ],
)
def test_what_cannot_be_drawn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="drawn"):
        diagram.svg(text)


def test_a_link_out_of_the_site_becomes_text_and_a_wrong_one_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files: Any = type("Files", (), {"get_file_from_path": lambda self, path: None})()
    page: Any = type("Page", (), {"file": type("File", (), {"src_uri": "index.md"})})
    turned = site.on_page_markdown("[scores](../experiments/results)", page, None, files)
    assert turned == "scores (`experiments/results`)"
    assert not caplog.records
    site.on_page_markdown("[gone](../experiments/gone)", page, None, files)
    assert "which does not exist" in caplog.text


# ---- in a browser


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Where the site is served: a browser's search works from a server only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_window_and_show_one_theme(
    address: str, browser: Any, width: int, scheme: str
) -> None:
    window = {"width": width, "height": 900}
    page = browser.new_context(viewport=window, color_scheme=scheme).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "notebook", "explanation", "reference/commands", "reference/python"):
        page.goto(f"{address}/{name}.html")
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, name
    page.goto(f"{address}/explanation.html")
    for theme in ("light", "dark"):
        pictures = page.locator(f"img[src$='gh-{theme}-mode-only']")
        seen = [pictures.nth(place).is_visible() for place in range(pictures.count())]
        assert seen == [theme == scheme] * 4
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    page.context.close()


def test_search_finds_a_page_and_code_after_it(address: str, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    # The box listens to keys; text that comes without any, after the index, is not searched for.
    page.locator(".md-search__input").press_sequentially("consolidation")
    result = page.locator(".md-search-result__link").first
    result.wait_for()
    found = result.get_attribute("href")
    assert found.startswith(address)
    assert "/source/" not in found
    page.close()
