"""report.html is one file that may load nothing, with the numbers behind every figure."""

import csv
import hashlib
import io
import re
from base64 import b64encode
from collections import Counter
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pandas as pd
import pytest
from made_up import TASKS, UPDATES
from pages import scripts_of, without_scripts

from forever.errors import InputError
from forever.report.figures import runs
from forever.report.page.parts import asset, policy, vega
from forever.report.report import write_report
from forever.report.study import read_study

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def text(reported: Path) -> str:
    return (reported / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(without_scripts(text))


def numbers_behind(page: ElementTree.Element, name: str) -> list[dict[str, str]]:
    """The rows of the file that a figure offers."""
    (link,) = [link for link in page.iter("a") if link.get("download") == f"{name}.csv"]
    kind, _, content = link.attrib["href"].partition(",")
    assert kind == "data:text/csv;charset=utf-8"
    return list(csv.DictReader(io.StringIO(unquote(content))))


def test_page_needs_and_may_load_nothing_else(page: ElementTree.Element) -> None:
    addresses: list[str] = []
    for element in page.iter():
        assert element.tag not in ("link", "iframe", "img", "object", "form")
        assert not any(name.startswith("on") for name in element.attrib)
        addresses += [element.attrib[name] for name in ("href", "src") if name in element.attrib]
    assert all(address.startswith(("#", "data:text/csv;")) for address in addresses)
    assert "url(" not in asset("page.css")


def test_only_the_scripts_of_the_page_may_run(text: str, page: ElementTree.Element) -> None:
    (rules,) = [meta.attrib["content"] for meta in page.iter("meta") if "http-equiv" in meta.attrib]
    scripts = scripts_of(text)
    assert scripts == [asset("page.js"), vega(), asset("timeline.js")]  # none is made of data
    digests = [b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert rules.startswith(f"default-src 'none'; script-src {allowed};")
    assert "unsafe-eval" not in rules
    with pytest.raises(ValueError, match="would end"):
        policy(["let text = '</Script>'"])


def test_the_bundle_is_there_once_and_for_timelines_only(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is most of the page: 0.9 MB."""
    assert text.count(vega()) == 1
    monkeypatch.setattr("forever.report.figures.USUAL", ("intervals", "matrices"))
    write_report(folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'id="timeline"' not in page
    assert scripts_of(page) == [asset("page.js")]


def test_a_package_that_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(InputError, match=r"needs vl_convert; .* 'forever-cl\[report\]'"):
        write_report(folder)


def test_every_link_of_the_page_leads_somewhere(page: ElementTree.Element) -> None:
    ids = [element.attrib["id"] for element in page.iter() if "id" in element.attrib]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    nav = next(page.iter("nav"))
    for link in nav.iter("a"):
        assert link.attrib["href"][1:] in ids
    assert len(list(nav.iter("a"))) == 5
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', ElementTree.tostring(page, "unicode")))
    assert used <= {*ids}


def test_figures_have_the_colours_of_the_page(page: ElementTree.Element) -> None:
    """So a dark page has dark figures."""
    defined = set(re.findall(r"(--[a-z]+\d?):", asset("page.css")))
    figures = list(page.iter(f"{SVG}svg"))
    assert len(figures) == 5 + 5  # overview, timelines
    for figure in figures:
        styles = " ".join(element.get("style", "") for element in figure.iter())
        assert not re.search("#[0-9a-f]{6}", styles)
        assert set(re.findall(r"var\((--\w+)\)", styles)) <= defined


def test_numbers_behind_the_figures_are_those_of_the_report(
    reported: Path, page: ElementTree.Element
) -> None:
    rows = {row.variant: row for row in read_study(reported).parts[0].rows}
    for name in ("op", "pareto"):
        for line in numbers_behind(page, name):
            estimate = rows[line["variant"]].compared("op")
            assert float(line["OP"]) == pytest.approx(estimate.value, rel=1e-5)
            assert float(line["OP low"]) == pytest.approx(estimate.low, rel=1e-5)
    final = {line["variant"]: line["4"] for line in numbers_behind(page, "accuracy")}
    assert {name: float(value) for name, value in final.items()} == {
        name: pytest.approx(row.compared("op").value, rel=1e-5) for name, row in rows.items()
    }
    kept = numbers_behind(page, "retention")
    assert list(kept[0]) == ["variant", *TASKS]
    assert {line["kind"] for line in numbers_behind(page, "replay-loss")} == {
        "replay", "consolidation",
    }  # fmt: skip


def test_a_matrix_is_a_table_of_its_scores(reported: Path, page: ElementTree.Element) -> None:
    (row, *_) = read_study(reported).parts[0].rows
    table = next(table for table in page.iter("table") if table.get("class") == "heat")
    shown = [[cell.text for cell in line.iter("td")] for line in table.iter("tr")][1:]
    assert shown == [
        [None if score is None else f"{score:.1f}" for score in line]
        for line in row.runs[0].outcome["matrix"]
    ]
    framed = [cell for cell in table.iter("td") if cell.get("class") == "learned"]
    assert len(framed) == len(TASKS)


def test_a_timeline_holds_the_updates_and_of_many_the_replays(
    page: ElementTree.Element, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = numbers_behind(page, "timeline-base")
    assert sum(line["kind"] == "task" for line in lines) == UPDATES * len(TASKS)
    replays = [line for line in lines if line["kind"] == "replay"]
    assert [line["days"] for line in replays] == 3 * ["1", "2"]
    steps = [{"task": "a", "step": n, "kind": "task"} for n in range(1, 101)]
    for place in (90, 40):
        steps[place:place] = [{**steps[place - 1], "kind": "replay"}] * 5
    monkeypatch.setattr(runs, "SHOWN", 10)
    thin = runs.moves(runs.table_of(steps))
    # Each eleventh, the first of each replay, and what called it.
    assert {1, 12, 23, 40, 41, 95, 96} <= {*thin["place"]}
    assert len(thin) <= 10 + 4
    assert isinstance(thin, pd.DataFrame)


def test_a_variant_is_marked_in_tables_and_figures(page: ElementTree.Element) -> None:
    names = [e for e in page.iter("span") if e.get("class") == "variant" and e.text == "+FIR"]
    assert len(names) == 3  # scores, costs, variants
    (mark,) = {name.attrib["data-variant"] for name in names}
    rows = [row for row in page.iter("tr") if row.get("data-variant") == mark]
    assert len(rows) == 3 + 4  # and in the numbers behind four figures
    for figure in list(page.iter(f"{SVG}svg"))[:4]:
        groups = [g for g in figure.iter(f"{SVG}g") if g.get("data-variant") == mark]
        assert [g.findtext(f"{SVG}title") for g in groups] == ["+FIR"] * len(groups)
        assert len(groups) >= 3  # the line, and two more: whiskers, its names
    summaries = [e for e in page.iter("summary") if e.get("data-variant") == mark]
    assert len(summaries) == 2
