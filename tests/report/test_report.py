"""A sweep becomes a page: what it shows is what the runs wrote, and what is missing is called
missing."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up import TASKS
from rich.console import Console

from forever.report.format import tex
from forever.report.frame import COLUMNS, Column, frame_of, stored_rows, text_table
from forever.report.report import console_tables, write_report
from forever.report.study import read_study

VARIANTS = ["base", "+FIR", "-IAR", "finetune", "mtl"]


def page(folder: Path) -> ElementTree.Element:
    """The page; parsing it as XML proves that every element is closed."""
    return ElementTree.fromstring((folder / "report.html").read_text(encoding="utf-8"))


def cells(folder: Path) -> dict[str, dict[str, str]]:
    """The results table: the cells of each variant by column."""
    table = next(e for e in page(folder).iter("table") if e.get("class") == "numbers")
    head = ["".join(cell.itertext()) for cell in table.iter("th")]
    rows: dict[str, dict[str, str]] = {}
    for row in table.iter("tr"):
        texts = ["".join(cell.itertext()) for cell in row.iter("td")]
        if texts:
            rows[texts[0]] = dict(zip(head, texts, strict=True))
    return rows


def markdown(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def latex(folder: Path) -> str:
    return (folder / "report.tex").read_text(encoding="utf-8")


def stored(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def on_console(folder: Path) -> str:
    console = Console(width=100, record=True, force_terminal=False)
    console.print(console_tables(read_study(folder)))
    return console.export_text()


def test_all_tables_show_the_frame(reported: Path) -> None:
    """HTML, Markdown, LaTeX and the console have the same cells."""
    (part,) = read_study(reported).parts
    table = cells(reported)
    assert list(table) == [*VARIANTS[:3], "bounds", *VARIANTS[3:]]
    shown = on_console(reported)
    for row in part.frame.to_dict("records"):
        op = f"{row['op'].value:.1f} [{row['op'].low:.1f}, {row['op'].high:.1f}]"
        assert table[row["variant"]]["OP (%)"] == op
        runs = table[row["variant"]]["runs"]
        assert f"| {row['variant']} | {runs} | {op} |" in markdown(reported)
        assert f"& {op} &" in latex(reported)
        assert re.search(rf"{re.escape(row['variant'])} +{re.escape(op)} ", shown)
        updates = sum(sum(run.outcome["updates"].values()) for run in part.finished
                      if run.variant == row["variant"]) / row["runs"]  # fmt: skip
        assert table[row["variant"]]["updates"] == f"{updates:g}"


def test_a_new_column_is_one_line(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Column("best", lambda row: row.compared("op").value, "best OP",
                    lambda row: f"{row['best']:.3f}", ("scores",))  # fmt: skip
    monkeypatch.setattr("forever.report.frame.COLUMNS", [*COLUMNS, tokens])
    frame = frame_of(read_study(reported).rows)
    assert "best OP" in text_table(frame, "scores").columns
    assert stored_rows(frame)[0]["best"] == stored_rows(frame)[0]["op"]["value"]


def test_replays_and_replayed_rows_are_those_of_the_journal(reported: Path) -> None:
    (run, *_) = [run for run in read_study(reported).runs if run.variant == "-IAR"]
    replays = sum(event["kind"] == "replay" for event in run.events)
    rows = sum(line["rows"] for line in run.steps if line["kind"] != "task")
    row = cells(reported)["-IAR"]
    assert replays > 0
    assert row["replays"] == f"{replays} + {len(run.events) - replays}"
    assert row["replayed rows"] == str(rows)
    assert cells(reported)["finetune"]["replays"] == "0 + 0"


def test_a_missing_run_is_missing_and_not_zero(reported: Path) -> None:
    (missing,) = read_study(reported).missing
    assert missing.key.startswith("minus_IAR")
    for text in (markdown(reported), (reported / "report.html").read_text(encoding="utf-8")):
        assert f"{missing.key} (not started)" in text
    assert cells(reported)["-IAR"]["runs"] == "1 of 2"


def test_a_run_that_a_search_gave_up_is_neither_missing_nor_zero(folder: Path) -> None:
    for run in read_study(folder).runs:
        if run.variant == "-IAR":
            run.directory.result.unlink(missing_ok=True)
            run.directory.end("stopped", "after 2 of 3 tasks")
        if run.variant == "+FIR" and run.seed == 1:
            run.directory.result.unlink()
            run.directory.end("failed", "ValueError: boom")
    write_report(folder)
    row = cells(folder)["-IAR"]
    assert (row["runs"], row["OP (%)"]) == ("0 of 2", "stopped early")
    assert "2 of 10 runs were stopped early by the search" in markdown(folder)
    assert "1 of 10 runs are missing" in markdown(folder)
    assert "(failed: ValueError: boom)" in markdown(folder)


def test_a_variant_without_runs_has_no_numbers(folder: Path) -> None:
    (run,) = [run for run in read_study(folder).finished if run.variant == "-IAR"]
    run.directory.result.unlink()
    write_report(folder)
    row = cells(folder)["-IAR"]
    assert (row.pop("runs"), row["OP (%)"]) == ("0 of 2", "missing")
    assert not re.search(r"\d", "".join(row.values()))
    assert f"{run.key} (unfinished)" in markdown(folder)


def test_a_benchmark_of_which_nothing_is_finished_is_missing(two_benchmarks: Path) -> None:
    for path in two_benchmarks.glob("*-o2-*/result.json"):
        path.unlink()
        (path.parent / "config.yaml").unlink()
    write_report(two_benchmarks)
    other = markdown(two_benchmarks).partition("### other")[2]
    assert "| +FIR | 0 of 2 | missing |" in other
    assert "No run is finished." in other
    assert "missing" in latex(two_benchmarks)
    assert [row["op"] for row in stored(two_benchmarks)["parts"][1]["rows"]] == [None] * 3
    assert "missing" in on_console(two_benchmarks)


def test_benchmarks_have_their_own_tables_and_figures(components: Path) -> None:
    text = markdown(components)
    assert text.index("### toy") < text.index("### other")
    assert "figures/op-toy.png" in text
    assert (components / "figures" / "op-other.png").is_file()
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_page_needs_nothing_else(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    # Four letters of a picture can be anything.
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    sources = [image.get("src", "") for image in page(reported).iter("img")]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not list(page(reported).iter("script")) + list(page(reported).iter("link"))
    assert "toy &lt;sweep&gt;" in text


def test_figures_of_the_markdown_exist_and_are_pictures(reported: Path) -> None:
    names = re.findall(r"\]\((figures/[^)]+)\)", markdown(reported))
    overview = ["op", "accuracy", "retention", "pareto", "replay-loss"]
    assert names[: len(overview)] == [f"figures/{name}.png" for name in overview]
    assert len(names) == len(overview) + 2 * len(VARIANTS)
    for name in names:
        content = (reported / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5_000


def test_what_ran_and_what_differs_is_told(reported: Path) -> None:
    text = markdown(reported)
    for expected in (
        "optim.lr=0.01", " → ".join(TASKS), "| +FIR | method.days=fixed_interval |",
        "| mtl | method.name=mtl |", "| revision | abc |", "a chip, 2 cores",
        "Test items and runs are resampled", "One run only, hence items only: -IAR.",
        "Holm-corrected for 1 comparison;",
    ):  # fmt: skip
        assert expected in text


def test_latex_is_well_formed(components: Path) -> None:
    text = latex(components)
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    # For two benchmarks: scores, costs, paper.
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 6
    assert text.isascii()
    tables = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL)
    for columns, body in tables:
        rows = [row for row in body.split("\\\\") if "&" in row]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(columns)}
    assert not re.findall(r"(?<!\\)[%_#]", text.split("\n", 1)[1])
    for expected in (
        "& seconds", "Holm-corrected", "are not the paper's setting", "Seeds 0, 1.",
        r"& published $\Delta$ OP",
    ):  # fmt: skip
        assert expected in text


def test_labels_of_a_search_can_be_set_by_latex() -> None:
    """pdflatex knows no Greek outside of formulas."""
    greek = r"uniform S8 E2 IAR $\beta$0.001 $\gamma$1 $\lambda$0.05"
    assert tex("uniform S8 E2 IAR β0.001 γ1 λ0.05") == greek
    signs = r"2 $\times$ $\Delta$ $-$1 -- 3 $\pm$ 4 $\rightarrow$ 5 \& 6\_7"
    assert tex("2 × Δ −1 – 3 ± 4 → 5 & 6_7") == signs
    assert tex("{~^\\}") == r"\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}"
    assert tex("日") == "?"


def test_numbers_for_programs(components: Path) -> None:
    content = stored(components)
    assert (content["name"], content["reference"]) == ("components", "base")
    assert (content["seeds"], content["planned"], content["finished"]) == ([0, 1], 12, 12)
    for part, written in zip(read_study(components).parts, content["parts"], strict=True):
        for row, numbers in zip(part.rows, written["rows"], strict=True):
            assert (numbers["variant"], numbers["gpu_hours"]) == (row.variant, None)
            assert numbers["op"]["value"] == row.compared("op").value
            assert numbers["verdict"] == row.compared("verdict")
            if row.variant != "base":
                assert numbers["difference"]["runs"] == row.compared("difference").runs == 2


def test_hours_of_gpus(two_benchmarks: Path) -> None:
    assert "GPU-hours" not in markdown(two_benchmarks)
    result = {"world_size": 2, "seconds": {"task": 1000.0, "replay": 800.0}}
    for name, changes in (("environment", {"gpus": ["H200"]}), ("result", result)):
        for path in two_benchmarks.glob(f"*/{name}.json"):
            content = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps(content | changes), encoding="utf-8")
    assert {row.gpu_hours for row in read_study(two_benchmarks).rows} == {1.0}
    write_report(two_benchmarks)
    assert "GPU-hours" in markdown(two_benchmarks)


def test_reports_are_the_same_each_time(folder: Path) -> None:
    names = ("report.md", "report.html", "report.tex")
    before = [(folder / name).read_bytes() for name in names]
    write_report(folder)
    assert [(folder / name).read_bytes() for name in names] == before
