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


def text(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def page(folder: Path) -> ElementTree.Element:
    """The page; parsing it as XML proves that every element is closed."""
    return ElementTree.fromstring(without_scripts(text(folder)))


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
    """HTML, Markdown, LaTeX and the console have the same cells."""
    table, study = cells(reported), read_study(reported)
    console = printed(console_tables(study), 100)
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
        assert re.search(rf"{re.escape(row.variant)} +{re.escape(op)} ", console)
    with pytest.raises(InputError):
        write_tables(study, tmp_path / "t.xls")


def test_latex_is_well_formed(components: Path, tmp_path: Path) -> None:
    write_tables(read_study(components), tmp_path / "t.tex")
    written = (tmp_path / "t.tex").read_text("utf-8")
    bare = re.sub(r"\\[{}]", "", written)
    assert bare.count("{") == bare.count("}")
    # Of two benchmarks scores and costs.
    assert written.count(r"\begin{table}") == written.count(r"\end{table}") == 4
    assert written.isascii()
    assert not re.findall(r"(?<!\\)[%_#]", written)


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


@pytest.mark.parametrize("width", [60, 100])
def test_no_number_is_cut_on_a_narrow_console(reported: Path, width: int) -> None:
    study = read_study(reported)
    console = printed(console_tables(study), width)
    assert max(map(len, console.splitlines())) <= width
    for cell in text_table(frame_of(study.rows), "console").to_numpy().flat:
        assert re.search(rf" {re.escape(cell)} ", console)


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
    assert re.search(r"minus_IAR-ocustom-s1-\w+ \(not started\)", text(folder))
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
    assert "failed: ValueError: boom" in text(folder)


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
        assert not any(name.startswith("on") for name in element.attrib)
        addresses += [element.attrib[name] for name in ("href", "src") if name in element.attrib]
        ids += [element.attrib["id"]] if "id" in element.attrib else []
    links = {address[1:] for address in addresses if address.startswith("#")}
    assert links == {*ids}
    assert len(ids) == len({*ids})
    others = [address for address in addresses if not address.startswith("#")]
    assert all(address.startswith(("data:text/csv;", "data:image/svg+xml;")) for address in others)


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(InputError, match="jinja2"):
        write_report(folder)


def numbers_behind(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of the file that a figure offers."""
    links = [link for link in page(folder).iter("a") if link.get("download") == f"{name}.csv"]
    content = links[0].attrib["href"].partition(",")[2]
    return list(csv.DictReader(io.StringIO(unquote(content))))


def test_numbers_behind_the_figures_are_those_of_the_report(reported: Path) -> None:
    rows = {row.variant: row for row in read_study(reported).rows}
    for name in ("op", "pareto"):
        for line in numbers_behind(reported, name):
            estimate = rows[line["variant"]].compared("op")
            assert float(line["OP"]) == pytest.approx(estimate.value, rel=1e-5)
            assert float(line["OP low"]) == pytest.approx(estimate.low, rel=1e-5)
    assert list(numbers_behind(reported, "retention")[0]) == ["variant", *TASKS]


def test_a_matrix_is_a_table_of_its_scores(reported: Path) -> None:
    run = read_study(reported).rows[0].runs[0]
    table = next(table for table in page(reported).iter("table") if table.get("class") == "heat")
    shown = [[cell.text for cell in line.iter("td")] for line in table.iter("tr")][1:]
    assert shown == [
        [None if score is None else f"{score:.1f}" for score in line]
        for line in run.outcome["matrix"]
    ]
    framed = [cell for cell in table.iter("td") if cell.get("class") == "learned"]
    assert len(framed) == len(TASKS)


def test_single_runs_are_drawn_when_asked_for(reported: Path, tmp_path: Path) -> None:
    names = {path.stem for path in (reported / "figures").iterdir()}
    assert names == {"op", "accuracy", "retention", "pareto", "replay-loss"}
    write_report(read_study(reported), tmp_path, of_runs=True)
    of_runs = {path.stem for path in (tmp_path / "figures").iterdir()} - names
    assert {"matrix-base", "timeline-base"} <= of_runs
    assert len(of_runs) == 2 * len(VARIANTS)


def test_benchmarks_have_their_own_tables_and_figures(components: Path) -> None:
    for part in read_study(components).parts:
        assert [len(row.runs) for row in part.rows] == [2, 2, 2]
        assert (components / "figures" / f"op-{part.benchmark}.svg").is_file()


def test_reports_are_the_same_each_time(folder: Path) -> None:
    before = text(folder)
    write_report(folder)
    assert text(folder) == before
