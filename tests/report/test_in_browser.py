"""report.html in Chromium: on a desk and a phone, in light and dark, and with hostile names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import base_run, make_up
from pages import Listened, chromium

from forever.report.report import write_report
from forever.sweeps.sweep import Sweep

TASKS = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", 'a "b", c']
NAMES = {
    "base": {},
    "'\"><svg onload=alert(3)>": {"method.regularizer": "none"},
    "</title><script>alert(4)</script>": {"method.days": "fixed_interval"},
    "${alert(6)} {{ 7 * 7 }}": {"method.name": "mtl"},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_page_fits_its_window_and_is_sorted(
    browser: Any, reported: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    listened = Listened(context, reported / "report.html")
    page = listened.page
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[scheme]
    table = page.locator("table.numbers").first
    table.locator("th", has_text="OP (%)").first.click()
    shown = [text.split()[0] for text in table.locator("tbody td:nth-child(3)").all_inner_texts()
             if text]  # fmt: skip
    assert shown[:3] == sorted(shown[:3], key=float, reverse=True)
    assert table.locator("tbody td:first-child").all_inner_texts()[3] == "bounds"
    assert [told for told in listened.told if not told.startswith("data:image/svg")] == []
    context.close()


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    base = base_run(**{"data.order": TASKS})
    sweep = Sweep("x </style><script>alert(7)</script>", base, NAMES, (0,), reference="base")
    file = write_report(make_up(tmp_path, sweep), of_runs=True)
    context = browser.new_context()
    listened = Listened(context, file)
    assert listened.page.title() == sweep.name
    assert listened.page.locator("script").count() == 1
    assert listened.page.locator("svg").count() == 0
    assert [told for told in listened.told if not told.startswith("data:image/svg")] == []
    context.close()
