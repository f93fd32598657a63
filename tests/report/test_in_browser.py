"""report.html as a user meets it: in Chromium, on a desk, a tablet and a phone, in the dark, on
paper, without scripts and in a frame that trusts nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import TASKS as TOYS
from made_up import base_run, make_up
from pages import Listened, chromium

from forever.report.report import write_report
from forever.sweeps.sweep import Sweep

TASKS = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", 'a "b", c']
NAMES = {
    "base": {},
    "'\"><svg onload=alert(3)>": {"method.regularizer": "none"},
    "</title><script>alert(4)</script>": {"method.days": "fixed_interval"},
    "javascript:alert(5)": {"method.name": "finetune"},
    "${alert(6)} {{ 7 * 7 }}": {"method.name": "mtl"},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def file(reported: Path) -> Path:
    return reported / "report.html"


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Listened]:
    """The page on a desk, which may say nothing and ask for nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = Listened(context, file)
    yield page
    assert page.told == []
    context.close()


def zoomed(page: Any) -> Any:
    """The first timeline's chart, when it is there, and in sight."""
    page.locator("figure.timeline").first.scroll_into_view_if_needed()
    chart = page.locator("figure.timeline .chart svg").first
    chart.wait_for()
    chart.scroll_into_view_if_needed()
    return chart


@pytest.mark.parametrize("width", [390, 768, 1280, 1600])
def test_no_window_scrolls_sideways(browser: Any, file: Path, width: int) -> None:
    """What does not fit scrolls in a box of its own; tables of results hide columns and fit."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    listened = Listened(context, file)
    page = listened.page
    zoomed(page)
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    tables = page.locator("main > .scroll:has(> table.numbers)")
    assert tables.count() == 2
    for number in range(2):
        assert tables.nth(number).evaluate("box => box.scrollWidth <= box.clientWidth")
    hidden = page.locator("th", has_text="forgetting")
    assert hidden.is_visible() == (width > 1100)
    if width < 1100:
        page.get_by_label("all columns").first.check()
        assert hidden.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert listened.told == []
    context.close()


def test_a_table_is_sorted_by_a_click(opened: Listened) -> None:
    page = opened.page
    table = page.locator("table.numbers").first

    def column(place: int) -> list[str]:
        return table.locator(f"tbody td:nth-child({place})").all_inner_texts()

    before = column(1)
    scores = [float(text.split()[0]) for text in column(3) if text]
    head = table.locator("th", has_text="OP (%)").first
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    after = [float(text.split()[0]) for text in column(3) if text]
    # The bounds stay below their line.
    assert after == sorted(scores[:3], reverse=True) + sorted(scores[3:], reverse=True)
    assert column(1)[3] == "bounds"
    head.get_by_role("button").click()
    lowest = [float(text.split()[0]) for text in column(3) if text]
    assert lowest == sorted(scores[:3]) + sorted(scores[3:])
    head.get_by_role("button").click()
    assert column(1) == before
    table.locator("th", has_text="variant").get_by_role("button").press("Enter")
    assert column(1)[:3] == ["-IAR", "+FIR", "base"]


def test_a_variant_is_highlighted_everywhere(opened: Listened) -> None:
    page = opened.page
    zoomed(page)
    page.get_by_role("button", name="+FIR", exact=True).first.click()
    assert page.locator("tr.chosen").count() == 7
    figures = page.locator("figure:has(svg .chosen)")
    assert figures.count() == 4
    assert page.locator("summary.chosen").count() == 2
    line = figures.first.locator("g.variant")
    opacity = "line => getComputedStyle(line).opacity"
    for number in range(line.count()):
        is_chosen = line.nth(number).locator("title").first.text_content() == "+FIR"
        assert (float(line.nth(number).evaluate(opacity)) == 1) == is_chosen
    page.get_by_role("button", name="+FIR ✕").click()
    assert page.locator(".chosen").count() == 0
    # By its line in a figure, and with a key.
    page.locator("figure svg g.variant").first.dispatch_event("click")
    assert page.locator("tr.chosen").count() == 7
    page.keyboard.press("Escape")
    assert page.locator(".chosen").count() == 0
    page.get_by_role("button", name="base", exact=True).first.press("Enter")
    assert page.locator("tr.chosen").count() == 7


def test_the_page_is_dark_by_a_switch_and_light_on_paper(opened: Listened) -> None:
    page = opened.page
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('figure svg text')).fill"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.get_by_label("dark").check()
    assert page.evaluate(ground) == "rgb(22, 24, 29)"
    assert page.evaluate(ink) == "rgb(227, 229, 233)"
    label = zoomed(page).locator(".role-axis-title text").first
    until(page, lambda: label.get_attribute("fill") == "rgb(227, 229, 233)")
    page.emulate_media(color_scheme="dark")
    page.get_by_label("light").check()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.get_by_label("auto").check()
    assert page.evaluate(ground) == "rgb(22, 24, 29)"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.locator("figure.timeline > .scroll svg").first.is_visible()
    assert not page.locator("figure.timeline .chart").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_a_timeline_is_zoomed_and_read_off(opened: Listened) -> None:
    page = opened.page
    chart = zoomed(page)
    assert not page.locator("figure.timeline > .scroll svg").first.is_visible()

    def ticks() -> set[int]:
        axis = chart.locator(".role-axis-label").first.locator("text")
        return {int(text.replace(",", "")) for text in axis.all_text_contents()}

    whole = ticks()
    box = chart.bounding_box()
    assert box is not None
    strip = box["y"] + box["height"] - 45
    page.mouse.move(box["x"] + 0.4 * box["width"], strip)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], strip, steps=4)
    page.mouse.up()
    until(page, lambda: max(whole) - min(whole) > 4 * (max(ticks()) - min(ticks())))
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 100)
    told = page.locator("#vg-tooltip-element")
    told.wait_for()
    keys = told.locator("td.key").all_text_contents()
    assert keys[:3] == ["task", "update of the run", "update of the task"]
    shown = dict(zip(keys, told.locator("td.value").all_text_contents(), strict=True))
    assert shown["task"] in {*TOYS}
    assert int(shown["update of the run"]) in range(20, 30)
    page.mouse.dblclick(box["x"] + 0.45 * box["width"], strip)
    until(page, lambda: ticks() == whole)


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait for what a chart does after a frame or two."""
    for _ in range(100):
        if holds():
            return
        page.evaluate("new Promise(requestAnimationFrame)")
    assert holds()


def test_a_page_without_scripts_is_complete(browser: Any, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("table.numbers").first.is_visible()
    assert page.locator("figure.timeline > .scroll svg").first.is_visible()
    assert page.locator("figure svg").nth(1).is_visible()
    assert not page.locator("#choice").is_visible()
    page.get_by_label("dark").check()
    colour = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert colour == "rgb(22, 24, 29)"
    context.close()


@pytest.mark.parametrize("trusted", ["", "allow-scripts"])
def test_a_page_works_in_a_sandboxed_frame(browser: Any, file: Path, trusted: str) -> None:
    """As MLflow's UI shows it."""
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content(f'<iframe sandbox="{trusted}" width="800" height="700"></iframe>')
    page.locator("iframe").evaluate(
        "(frame, text) => (frame.srcdoc = text)", file.read_text(encoding="utf-8")
    )
    frame = page.frame_locator("iframe")
    frame.locator("table.numbers").first.wait_for()
    frame.locator("figure.timeline").first.scroll_into_view_if_needed()
    if trusted:
        frame.locator(".chart svg").first.wait_for()
        frame.get_by_role("button", name="+FIR", exact=True).first.click()
        assert frame.locator("tr.chosen").count() == 7
    else:
        assert frame.locator("figure.timeline > .scroll svg").first.is_visible()
    assert errors == []
    context.close()


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    base = base_run(**{"data.order": TASKS})
    sweep = Sweep("x </style><script>alert(7)</script>", base, NAMES, (0,), reference="base")
    file = write_report(make_up(tmp_path, sweep))
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    listened = Listened(context, file)
    page = listened.page
    chart = zoomed(page)
    assert page.title() == sweep.name
    assert page.locator("script").count() == 3
    assert page.locator("img").count() == page.locator("svg svg").count() == 0
    assert page.locator("span.variant").all_inner_texts()[: len(NAMES) - 2] == [*NAMES][:3]
    for name in [*NAMES][1:3]:
        page.get_by_role("button", name=name, exact=True).first.click()
        assert page.locator("#choice").inner_text() == f"{name} ✕"
    texts = chart.locator(".role-mark text").all_text_contents()
    assert any(text.startswith("</script>") for text in texts)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.15 * box["width"], box["y"] + 100)
    page.locator("#vg-tooltip-element").wait_for()
    assert TASKS[0] in page.locator("#vg-tooltip-element").inner_text()
    assert listened.told == []
    context.close()
