"""A sweep of toy runs becomes a page: what it shows is what the runs wrote, and what is missing is
called missing."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import execute
from rich.console import Console

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import run_local
from forever.report.report import summary_table, write_report
from forever.report.study import read_study
from forever.runs.directory import RunDirectory, read_lines
from forever.sweeps.sweep import Sweep
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Step

VARIANTS = {
    "base": {},
    "+FIR": {"method.days": "fixed_interval"},
    "-IAR": {"method.regularizer": "none"},
    "finetune": {"method.name": "finetune"},
    "mtl": {"method.name": "mtl"},
}


@pytest.fixture(scope="module")
def finished(base_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two seeds of which one run, the second of -IAR, never started."""
    folder = tmp_path_factory.mktemp("sweeps") / "toy"
    sweep = Sweep("toy <sweep>", base_config, VARIANTS, seeds=(0, 1))
    for trial in sweep.trials():
        if (trial.variant, trial.seed) != ("-IAR", 1):
            run_local(trial.config, folder / trial.key)
    sweep.write_manifest(folder)
    write_report(folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "sweep"))


def page(folder: Path) -> ElementTree.Element:
    """The page; parsing it as XML proves that every element is closed."""
    return ElementTree.fromstring((folder / "report.html").read_text(encoding="utf-8"))


def cells(folder: Path) -> dict[str, list[str]]:
    """The results table: the cells of each variant."""
    table = next(e for e in page(folder).iter("table") if e.get("class") == "results")
    rows = [["".join(cell.itertext()) for cell in row.iter("td")] for row in table.iter("tr")]
    return {row[0]: row[1:] for row in rows if row}


def results(folder: Path, variant: str) -> list[dict]:
    found = [run.result for run in read_study(folder).runs if run.variant == variant]
    return [dict(result) for result in found if result is not None]


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def test_numbers_are_those_of_the_runs(finished: Path) -> None:
    table = cells(finished)
    assert list(table) == list(VARIANTS)
    for variant in VARIANTS:
        runs = results(finished, variant)
        texts = dict(
            zip(("runs", "op", "op_i", "bwt", "bwt_i", "forgetting"), table[variant], strict=False)
        )
        assert number(texts["op"]) == pytest.approx(
            sum(run["op"] for run in runs) / len(runs), abs=0.051
        )
        if variant == "mtl":
            assert (texts["bwt"], texts["forgetting"]) == ("–", "–")
        else:
            assert number(texts["bwt"]) == pytest.approx(
                sum(run["bwt"] for run in runs) / len(runs), abs=0.051
            )
            assert number(texts["forgetting"]) == pytest.approx(
                sum(r["forgetting"] for r in runs) / len(runs), abs=0.051
            )
        updates = sum(sum(run["updates"].values()) for run in runs) / len(runs)
        assert number(table[variant][-2]) == pytest.approx(updates, abs=0.051)


def test_replays_and_replayed_rows_are_those_of_the_journal(finished: Path) -> None:
    study = read_study(finished)
    run = next(run for run in study.runs if run.variant == "-IAR")
    events, steps = read_lines(run.directory.events), read_lines(run.directory.steps)
    replays = sum(event["kind"] == "replay" for event in events)
    rows = sum(line["rows"] for line in steps if line["kind"] != "task")
    assert replays > 0
    assert cells(finished)["-IAR"][-4:-2] == [f"{replays} + {len(events) - replays}", str(rows)]
    assert cells(finished)["finetune"][-4:-2] == ["0 + 0", "0"]


@pytest.mark.parametrize(
    "method",
    ["finetune", "mtl", "mix_replay", "migu", "recurrent_kif", "forever", "vbm", "vbm mix"],
)
def test_rows_that_are_mixed_into_a_tasks_batches_are_replayed_rows(
    method: str, base_config: RunConfig, tmp_path: Path
) -> None:
    """Equal to the rows of other tasks, repetitions counted, in the batches that the run was
    given."""
    name, _, variant = method.partition(" ")
    changes = {"method.variant": variant, "method.views": 2} if variant else {}
    config = base_config.override({"method.name": name, "optim.epochs": 2, **changes})
    replayed = 0

    def count(learner: Learner, method: Any, action: Any) -> Any:
        nonlocal replayed
        if isinstance(action, Step):
            assert learner.task is not None
            replayed += len([row for row in action.batch.examples if row not in learner.task.train])
        return perform(learner, method, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forever.training.loop.perform", count)
        execute(config, tmp_path / "run")
    (row,) = read_study(tmp_path / "run").rows
    assert row.replayed_rows == (None if variant else replayed)
    assert (replayed > 0) == (method not in ("finetune", "mtl"))


def test_matrix_is_read_back_as_it_was_measured(finished: Path) -> None:
    for run in read_study(finished).runs:
        if run.result is not None:
            matrix = run.matrix()
            assert matrix.overall() == pytest.approx(run.result["op"])
            assert matrix.backward_transfer() == pytest.approx(run.result["bwt"])


def test_a_method_that_does_nothing_of_its_own_is_told(
    folder: Path, base_config: RunConfig
) -> None:
    """Replay of an empty memory is fine-tuning, digit for digit, and agrees with nobody's
    replay."""
    empty = base_config.override({"memory.fraction": 0})
    sweep = Sweep("toy <sweep>", empty, {"empty": {"method.name": "mix_replay"}}, seeds=(0, 1))
    for trial in sweep.trials():
        run_local(trial.config, folder / trial.key)
    sweep.write_manifest(folder)
    assert {row.variant for row in read_study(folder).rows if row.idle} == {"empty"}


def test_a_missing_run_is_missing_and_not_zero(finished: Path) -> None:
    (missing,) = read_study(finished).missing
    assert missing.key.startswith("minus_IAR")
    for name in ("report.md", "report.html"):
        assert f"{missing.key} (not started)" in (finished / name).read_text(encoding="utf-8")
    assert cells(finished)["-IAR"][0] == "1 of 2"


def test_a_run_that_a_search_gave_up_is_neither_missing_nor_zero(folder: Path) -> None:
    for run in read_study(folder).runs:
        if run.variant == "-IAR":
            run.directory.result.unlink(missing_ok=True)
            run.directory.end("stopped", "after 2 of 3 tasks")
        if run.variant == "+FIR" and run.seed == 1:
            run.directory.result.unlink()
            run.directory.end("failed", "ValueError: boom")
    write_report(folder)
    assert cells(folder)["-IAR"][:2] == ["0 of 2", "stopped early"]
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "2 of 10 runs were stopped early by the search" in text
    assert "1 of 10 runs are missing" in text
    assert "(failed: ValueError: boom)" in text


def test_variants_of_another_base_are_compared_with_that_base(
    folder: Path, base_config: RunConfig
) -> None:
    """In a folder that was used twice; those of a base that is not there, with none."""
    other = base_config.override({"optim.lr": 1e-5})
    sweep = Sweep(
        "toy <sweep>", other, {"base": {}, "-IAR": {"method.regularizer": "none"}}, seeds=(0, 1)
    )
    sweep.write_manifest(folder)
    base, variant = [trial for trial in sweep.trials() if trial.seed == 0]
    for trial in (variant, base):
        rows = {row.variant: row for row in read_study(folder).rows}
        assert rows["-IAR"].reference == "base"
        run_local(trial.config, folder / trial.key)
    changed = " (optim.lr=1e-05)"
    before, after = rows, {row.variant: row for row in read_study(folder).rows}
    assert before[f"-IAR{changed}"].comparison is not None
    assert before[f"-IAR{changed}"].comparison.difference is None
    row = after[f"-IAR{changed}"]
    assert row.reference == f"base{changed}"
    assert row.comparison is not None
    assert row.comparison.difference is not None
    ops = [row.comparison.op.value for row in (row, after[f"base{changed}"]) if row.comparison]
    assert row.comparison.difference.value == pytest.approx(ops[0] - ops[1])
    assert after[f"base{changed}"].comparison is not None
    assert after[f"base{changed}"].comparison.difference is None


def test_a_variant_without_runs_has_no_numbers(folder: Path) -> None:
    (run,) = (run for run in read_study(folder).runs if run.variant == "-IAR" and run.result)
    run.directory.result.unlink()
    write_report(folder)
    row = cells(folder)["-IAR"]
    assert row[:2] == ["0 of 2", "missing"]
    assert not re.search(r"\d", "".join(row[1:]))
    assert f"{run.key} (unfinished)" in (folder / "report.md").read_text(encoding="utf-8")


def test_bounds_stand_apart_and_are_not_judged(finished: Path) -> None:
    table = cells(finished)
    assert table["finetune"][8] == table["mtl"][8] == table["base"][8] == ""
    assert table["+FIR"][8] in ("win", "tie", "loss")
    assert [row.variant for row in read_study(finished).rows if row.bound] == ["finetune", "mtl"]


def test_page_needs_nothing_else(finished: Path) -> None:
    text = (finished / "report.html").read_text(encoding="utf-8")
    assert "http" not in text
    sources = [image.get("src", "") for image in page(finished).iter("img")]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not list(page(finished).iter("script")) + list(page(finished).iter("link"))
    assert "toy &lt;sweep&gt;" in text


def test_figures_of_the_markdown_exist_and_are_pictures(finished: Path) -> None:
    names = re.findall(
        r"\]\((figures/[^)]+)\)", (finished / "report.md").read_text(encoding="utf-8")
    )
    overview = ["op", "accuracy", "retention", "pareto", "replay-loss"]
    assert names[: len(overview)] == [f"figures/{name}.png" for name in overview]
    assert len(names) == len(overview) + 2 * len(VARIANTS)
    for name in names:
        content = (finished / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5_000


def test_what_ran_and_what_differs_is_told(finished: Path) -> None:
    text = (finished / "report.md").read_text(encoding="utf-8")
    environment = json.loads(
        next(finished.glob("base*s0*/environment.json")).read_text(encoding="utf-8")
    )
    for expected in ("optim.lr=0.01", "colour → shape → weight", "| +FIR | method.days=fixed_interval |",
                     "| mtl | method.name=mtl |", str(environment["revision"]), environment["cpu"]):  # fmt: skip
        assert expected in text
    assert "Test items and runs are resampled" in text
    assert "One run only, hence items only: -IAR." in text


def test_markdown_tables_have_equally_many_cells(finished: Path) -> None:
    lines = (finished / "report.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines[lines.index("## Results") :] if line.startswith("|")]
    table = table[: 2 + len(VARIANTS) + 1]
    assert len({line.count("|") for line in table}) == 1


def test_a_single_run(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(next(finished.glob("base*s0*")), tmp_path / "one"))
    assert write_report(run) == run / "report.html"
    (row,) = cells(run).values()
    assert number(row[1]) == pytest.approx(
        json.loads((run / "result.json").read_text())["op"], abs=0.051
    )
    assert "items only, 1 seed" in (run / "report.html").read_text(encoding="utf-8")
    assert "verdict" not in (run / "report.md").read_text(encoding="utf-8")


def test_a_folder_of_runs_groups_seeds_and_tells_settings_apart(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    study = read_study(folder)
    found = {row.variant: len(row.runs) for row in study.rows}
    assert sum(found.values()) == 9
    assert found["finetune"] == found["mtl"] == 2
    assert study.reference == "forever"
    assert {"forever", "finetune", "mtl"} < set(found)
    assert len(found) == 5


def test_a_folder_used_again_with_another_base_keeps_the_runs_apart(
    folder: Path, base_config: RunConfig
) -> None:
    sweep = Sweep("toy", base_config, {"base": {}}, seeds=(0,)).override({"optim.lr": 5e-3})
    (trial,) = sweep.trials()
    run_local(trial.config, folder / trial.key)
    sweep.write_manifest(folder)
    found = {row.variant: len(row.runs) for row in read_study(folder).rows}
    assert found["base"] == 2
    assert found["base (optim.lr=0.005)"] == 1


def test_a_run_that_is_there_twice_is_refused(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    shutil.copytree(next(folder.glob("base*s0*")), folder / "copy")
    with pytest.raises(InputError, match="hold the same run"):
        write_report(folder)


def test_reports_are_the_same_each_time(folder: Path) -> None:
    before = (folder / "report.md").read_text(encoding="utf-8")
    write_report(folder)
    assert (folder / "report.md").read_text(encoding="utf-8") == before


def test_summary_for_the_console(finished: Path) -> None:
    console = Console(width=100, record=True, force_terminal=False)
    console.print(summary_table(finished))
    text = console.export_text()
    for variant in VARIANTS:
        op = cells(finished)[variant][1]
        assert re.search(rf"{re.escape(variant)} +{re.escape(op)} \[", text)


def _no_runs(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def _nothing_finished(folder: Path) -> None:
    for result in folder.glob("*/result.json"):
        result.unlink()


def _cut_result(folder: Path) -> None:
    path = next(folder.glob("base*/result.json"))
    path.write_text(path.read_text()[:100])


def _empty_result(folder: Path) -> None:
    next(folder.glob("base*/result.json")).write_text("{}")


def _bad_manifest(folder: Path) -> None:
    (folder / "sweep.json").write_text('{"name": "x"}')


def _no_manifest_but_a_list(folder: Path) -> None:
    (folder / "sweep.json").write_text("[]")


def _bad_config(folder: Path) -> None:
    next(folder.glob("base*/config.yaml")).write_text("a: [")


def _lost_predictions(folder: Path) -> None:
    shutil.rmtree(next(folder.glob("base*")) / "predictions")


def _other_predictions(folder: Path) -> None:
    path = RunDirectory(next(folder.glob("base*"))).predictions(2, 2)
    path.write_text(
        "".join(json.dumps({**line, "score": 0.25}) + "\n" for line in read_lines(path))
    )


@pytest.mark.parametrize(
    "spoil",
    [
        _no_runs, _no_folder, _nothing_finished, _cut_result, _empty_result, _bad_manifest, _no_manifest_but_a_list,
        _bad_config, _lost_predictions, _other_predictions,
    ],
)  # fmt: skip
def test_a_damaged_folder_is_named(folder: Path, spoil) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=re.escape(str(folder))):
        write_report(folder)
