"""report.html is one file that needs no other: it shows the runs' own numbers, and names what is
missing."""

import csv
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from made_up import TASKS, edit
from pages import printed, without_scripts

from forever.errors import InputError
from forever.report.frame import COLUMNS, Column, frame_of, stored_rows, text_table
from forever.report.report import console_tables, stored, write_report
from forever.report.study import read_study
from forever.report.tables import write_tables
from forever.text import latex

VARIANTS = ["base", "+FIR", "-IAR", "finetune", "mtl"]


def page(folder: Path) -> ElementTree.Element:
    """The page; parsing it as XML proves that every element is closed."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    return ElementTree.fromstring(without_scripts(text))


def cells(folder: Path) -> dict[str, dict[str, str]]:
    """The tables of scores and costs: the cells of each variant by column."""
    tables = [e for e in page(folder).iter("table") if e.get("class") == "numbers"]
    rows: dict[str, dict[str, str]] = {}
    for table in tables[:2]:
        head = ["".join(cell.itertext()) for cell in table.iter("th")]
        for row in table.iter("tr"):
            texts = ["".join(cell.itertext()) for cell in row.iter("td")]
            if texts:
                rows.setdefault(texts[0], {}).update(zip(head, texts, strict=True))
    return rows


# ---- tables


def test_all_tables_show_the_frame(reported: Path, tmp_path: Path) -> None:
    """HTML, Markdown, LaTeX and the console have the same cells; the console also where it is
    narrow."""
    table, study = cells(reported), read_study(reported)
    for suffix in ("md", "tex", "csv"):
        write_tables(study, tmp_path / f"t.{suffix}")
    assert list(table) == [*VARIANTS[:3], "bounds", *VARIANTS[3:]]
    assert (table["base"]["replays"], table["mtl"]["replays"]) == ("6 + 3", "0 + 0")
    for row in study.rows:
        estimate = row.compared("op")
        op = f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"
        runs = table[row.variant]["runs"]
        assert table[row.variant]["OP (%)"] == op
        assert f"| {row.variant} | {runs} | {op} |" in (tmp_path / "t.md").read_text("utf-8")
        assert f"{row.variant} & {runs} & {op} &" in (tmp_path / "t.tex").read_text("utf-8")
        assert f'{row.variant},{runs},"{op}"' in (tmp_path / "t.csv").read_text("utf-8")
    with pytest.raises(InputError):
        write_tables(study, tmp_path / "t.xls")
    for width in (60, 100):
        console = printed(console_tables(study), width)
        assert max(map(len, console.splitlines())) <= width
        for cell in text_table(frame_of(study.rows), "console").to_numpy().flat:
            assert re.search(rf" {re.escape(cell)} ", console)


@pytest.mark.parametrize(
    ("written", "set_by_latex"),
    [  # pdflatex knows no Greek outside of formulas
        ("S8 IAR β0.001 γ1 λ0.05", r"S8 IAR $\beta$0.001 $\gamma$1 $\lambda$0.05"),
        ("2 × Δ −1 – 3 ± 4 → 5", r"2 $\times$ $\Delta$ $-$1 -- 3 $\pm$ 4 $\rightarrow$ 5"),
        ("6 & 7_8 {~^\\}", r"6 \& 7\_8 \{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"),
        ("日", "?"),
    ],
)
def test_text_for_latex(written: str, set_by_latex: str) -> None:
    assert latex(written) == set_by_latex


def test_a_new_column_is_one_line(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = Column("best", lambda row: row.compared("op").value, "best OP", "{:.3f}", ("scores",))
    monkeypatch.setattr("forever.report.frame.COLUMNS", [*COLUMNS, best])
    frame = frame_of(read_study(reported).rows)
    assert "best OP" in text_table(frame, "scores").columns
    assert stored_rows(frame)[0]["best"] == stored_rows(frame)[0]["op"].value


def test_hours_of_gpus(two_benchmarks: Path) -> None:
    result = {"world_size": 2, "seconds": {"task": 1000.0, "replay": 800.0}}
    for name, changes in (("environment", {"gpus": ["H200"]}), ("result", result)):
        for path in two_benchmarks.glob(f"*/{name}.json"):
            edit(path, **changes)
    assert [run.gpu_hours for run in read_study(two_benchmarks).runs] == [1.0] * 12


# ---- what is missing


def test_missing_runs_are_named_and_have_no_numbers(folder: Path) -> None:
    """A run that a search stopped is not missing."""
    next(folder.glob("base*/environment.json")).unlink()
    assert cells(folder)["-IAR"]["runs"] == "1 of 2"
    for run in read_study(folder).runs:
        if run.variant in ("-IAR", "mtl"):
            run.directory.result.unlink(missing_ok=True)
        if run.variant == "-IAR":
            run.directory.end("stopped", "after 2 of 3 tasks")
        if run.key.startswith("mtl-ocustom-s1"):
            run.directory.end("failed", "ValueError: boom")
    write_report(folder)
    for variant in ("-IAR", "mtl"):
        row = cells(folder)[variant]
        assert row.pop("runs") == "0 of 2"
        assert not re.search(r"\d", "".join(row.values()))
    study = read_study(folder)
    assert (len(study.missing), len(study.stopped)) == (2, 2)
    assert "failed: ValueError: boom" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_benchmark_of_which_nothing_is_finished_is_missing(two_benchmarks: Path) -> None:
    for path in two_benchmarks.glob("*-o2-*/result.json"):
        path.unlink()
        (path.parent / "config.yaml").unlink()
    content = json.loads(stored(read_study(two_benchmarks)))
    assert (content["seeds"], content["planned"], content["finished"]) == ([0, 1], 12, 6)
    assert [row["op"] for row in content["parts"][1]["rows"]] == [None] * 3


# ---- the page


def test_the_page_needs_nothing_else(reported: Path) -> None:
    ids: list[str] = []
    addresses: list[str] = []
    for element in page(reported).iter():
        assert element.tag not in ("link", "iframe", "object", "form", "svg")
        addresses += [element.attrib[name] for name in ("href", "src") if name in element.attrib]
        ids += [element.attrib["id"]] if "id" in element.attrib else []
    assert {address[1:] for address in addresses if address.startswith("#")} == {*ids}
    others = [address for address in addresses if not address.startswith("#")]
    assert all(address.startswith(("data:text/csv;", "data:image/svg+xml;")) for address in others)


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(InputError, match="jinja2"):
        write_report(folder)


def test_numbers_behind_the_figures_are_those_of_the_report(reported: Path) -> None:
    rows = {row.variant: row for row in read_study(reported).rows}
    links = {link.get("download"): link.attrib["href"] for link in page(reported).iter("a")}
    for name in ("op", "pareto", "retention"):
        content = unquote(links[f"{name}.csv"].partition(",")[2])
        for line in csv.DictReader(io.StringIO(content)):
            estimate = rows[line["variant"]].compared("op")
            if name == "retention":
                assert list(line) == ["variant", *TASKS]
            else:
                assert float(line["OP"]) == pytest.approx(estimate.value, rel=1e-5)
                assert float(line["OP low"]) == pytest.approx(estimate.low, rel=1e-5)


def test_a_matrix_is_a_table_of_its_scores(reported: Path) -> None:
    run = read_study(reported).rows[0].runs[0]
    table = next(table for table in page(reported).iter("table") if table.get("class") == "heat")
    shown = [[cell.text for cell in line.iter("td")] for line in table.iter("tr")][1:]
    assert shown == [
        [None if score is None else f"{score:.1f}" for score in line]
        for line in run.outcome["matrix"]
    ]


def test_which_figures_are_drawn(reported: Path, components: Path, tmp_path: Path) -> None:
    """Single runs only where that is asked for; each benchmark has its own."""
    names = {path.stem for path in (reported / "figures").iterdir()}
    assert names == {"op", "accuracy", "retention", "pareto", "replay-loss"}
    write_report(read_study(reported), tmp_path, of_runs=True)
    of_runs = {path.stem for path in (tmp_path / "figures").iterdir()} - names
    assert {"matrix-base", "timeline-base"} <= of_runs
    assert len(of_runs) == 2 * len(VARIANTS)
    for benchmark in ("toy", "other"):
        assert (components / "figures" / f"op-{benchmark}.svg").is_file()


def test_reports_are_the_same_each_time(folder: Path) -> None:
    before = (folder / "report.html").read_bytes()
    write_report(folder)
    assert (folder / "report.html").read_bytes() == before
