"""A sweep becomes a page: what it shows is what the runs wrote, and what is missing is called
missing."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up import TASKS, edit
from pages import printed, without_scripts

from forever.report.frame import COLUMNS, Column, frame_of, stored_rows, text_table
from forever.report.report import console_tables, write_report
from forever.report.study import read_study
from forever.sweeps.files import load_sweep
from forever.text import latex

VARIANTS = ["base", "+FIR", "-IAR", "finetune", "mtl"]


def text(folder: Path, kind: str = "md") -> str:
    return (folder / f"report.{kind}").read_text(encoding="utf-8")


def page(folder: Path) -> ElementTree.Element:
    """The page; parsing it as XML proves that every element is closed."""
    return ElementTree.fromstring(without_scripts(text(folder, "html")))


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


def on_console(folder: Path) -> str:
    return printed(console_tables(read_study(folder)), 100)


# ---- tables


def test_all_tables_show_the_frame(reported: Path) -> None:
    """HTML, Markdown, LaTeX and the console have the same cells."""
    table, shown = cells(reported), on_console(reported)
    assert list(table) == [*VARIANTS[:3], "bounds", *VARIANTS[3:]]
    assert (table["base"]["replays"], table["mtl"]["replays"]) == ("6 + 3", "0 + 0")
    assert [table[name].get("verdict") for name in VARIANTS] == ["–", "not shown", "–", "–", "–"]
    for row in read_study(reported).rows:
        estimate = row.compared("op")
        op = f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"
        assert table[row.variant]["OP (%)"] == op
        assert f"| {row.variant} | {table[row.variant]['runs']} | {op} |" in text(reported)
        assert f"& {op} &" in text(reported, "tex")
        assert re.search(rf"{re.escape(row.variant)} +{re.escape(op)} ", shown)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_number_is_cut_on_a_narrow_console(reported: Path, width: int) -> None:
    """Columns that have no room come below, with the variants again."""
    study = read_study(reported)
    shown = printed(console_tables(study), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for cell in text_table(frame_of(study.rows), "console").to_numpy().flat:
        assert re.search(rf" {re.escape(cell)} ", shown)
    assert len(re.findall("(?m)^  mtl ", shown)) == {60: 3, 80: 2, 100: 1, 120: 1}[width]


def test_a_new_column_is_one_line(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = Column("best", lambda row: row.compared("op").value, "best OP", "{:.3f}", ("scores",))
    monkeypatch.setattr("forever.report.frame.COLUMNS", [*COLUMNS, best])
    frame = frame_of(read_study(reported).rows)
    assert "best OP" in text_table(frame, "scores").columns
    assert stored_rows(frame)[0]["best"] == stored_rows(frame)[0]["op"].value


def test_hours_of_gpus(two_benchmarks: Path) -> None:
    assert "GPU-hours" not in text(two_benchmarks)
    result = {"world_size": 2, "seconds": {"task": 1000.0, "replay": 800.0}}
    for name, changes in (("environment", {"gpus": ["H200"]}), ("result", result)):
        for path in two_benchmarks.glob(f"*/{name}.json"):
            edit(path, **changes)
    write_report(two_benchmarks)
    assert cells(two_benchmarks)["base"]["GPU-hours"] == "1.00"


# ---- what is not there


def test_what_is_missing_is_called_missing_and_has_no_numbers(folder: Path) -> None:
    """A run that a search gave up is not missing. A run may not say where it was."""
    next(folder.glob("base*/environment.json")).unlink()
    assert cells(folder)["-IAR"]["runs"] == "1 of 2"
    assert re.search(r"minus_IAR-ocustom-s1-\w+ \(not started\)", text(folder, "html"))
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
    for expected in (
        "2 of 10 runs are missing", "(unfinished)", "(failed: ValueError: boom)",
        "2 of 10 runs were stopped early by the search",
    ):  # fmt: skip
        assert expected in text(folder)


def test_a_benchmark_of_which_nothing_is_finished_is_missing(two_benchmarks: Path) -> None:
    for path in two_benchmarks.glob("*-o2-*/result.json"):
        path.unlink()
        (path.parent / "config.yaml").unlink()
    write_report(two_benchmarks)
    other = text(two_benchmarks).partition("### other")[2]
    assert "| +FIR | 0 of 2 |\n" in other
    for shown in (other, text(two_benchmarks, "tex"), on_console(two_benchmarks)):
        assert "No run is finished." in " ".join(shown.split())
    content = json.loads(text(two_benchmarks, "json"))
    assert (content["seeds"], content["planned"], content["finished"]) == ([0, 1], 12, 6)
    assert [row["op"] for row in content["parts"][1]["rows"]] == [None] * 3


# ---- pages


def test_markdown_has_figures_and_says_what_ran(reported: Path) -> None:
    names = re.findall(r"\]\((figures/[^)]+)\)", text(reported))
    overview = ["op", "accuracy", "retention", "pareto", "replay-loss"]
    assert names[: len(overview)] == [f"figures/{name}.png" for name in overview]
    assert len(names) == len(overview) + 2 * len(VARIANTS)
    assert all((reported / name).read_bytes().startswith(b"\x89PNG") for name in names)
    for expected in (
        "optim.lr=0.01", " → ".join(TASKS), "| +FIR | method.days=fixed_interval |",
        "| mtl | method.name=mtl |", "| revision | abc |", "a chip, 2 cores",
        "Test items and runs are resampled", "One run only, hence items only: -IAR.",
        "Holm-corrected for 1 comparison;",
    ):  # fmt: skip
        assert expected in text(reported)


def test_benchmarks_have_their_own_tables_and_figures(components: Path) -> None:
    for part in read_study(components).parts:
        assert {run.outcome["benchmark"] for run in part.finished} == {part.benchmark}
        assert [len(row.runs) for row in part.rows] == [2, 2, 2]
    markdown = text(components)
    assert f"**{load_sweep('components').title}**: " in markdown
    assert markdown.index("### toy") < markdown.index("### other")
    assert "figures/op-toy.png" in markdown
    assert (components / "figures" / "op-other.png").is_file()
    for table in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_latex_is_well_formed(components: Path) -> None:
    latex = text(components, "tex")
    bare = re.sub(r"\\[{}]", "", latex)
    assert bare.count("{") == bare.count("}")
    # For two benchmarks: scores, costs, paper.
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 6
    assert latex.isascii()
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", latex, re.DOTALL)
    for columns, body in tables:
        rows = [row for row in body.split("\\\\") if "&" in row]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(columns)}
    assert not re.findall(r"(?<!\\)[%_#]", latex.split("\n", 1)[1])
    for expected in (
        "& seconds", "Holm-corrected", "are not the paper's setting", "Seeds 0, 1.",
        r"& published $\Delta$ OP",
    ):  # fmt: skip
        assert expected in latex


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


def test_reports_are_the_same_each_time(folder: Path) -> None:
    before = [text(folder, kind) for kind in ("md", "html", "tex")]
    write_report(folder)
    assert [text(folder, kind) for kind in ("md", "html", "tex")] == before
