"""Hostile names of tasks, variants and folders go through every output: they are shown, they do
nothing, and the files keep them as they are."""

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import Call, document, said
from helpers import (
    execute,
    make_task,
    rows_task,
    save_backbone,
    save_data,
    saved,
    small_toy_config,
    toy_config,
)
from made_up import base_run, make_up
from pages import without_scripts
from rich.console import Console

from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.report.study import read_study
from forever.report.tables import write_tables
from forever.runs.console import ConsoleTracker
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep, Trial
from forever.sweeps.table import SweepTable
from forever.text import html, latex, markdown, visible

TASKS = ["$x_{$", "[red]a[b]", "<i>\x1b[31m|`_\n&"]
VARIANT = "[/b] $y_{$ <script>\x1b[2J| _*"
FOLDER = "[/b]\x1b[31m$z_{$"
ANSWER = "[/b]\x1b[31m<script>$x_{$\n" + "x" * 2**20


def shown(call: Call, *arguments: str, code: int = 0) -> str:
    """All that a command says, which moves no cursor."""
    text = said(call, *arguments, code=code)
    assert "\x1b" not in text
    assert "Traceback" not in text
    return text


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run on tasks of such names; an answer that is right is as bad."""
    labels = ("red", "[/b]<b>")
    tasks = [make_task(name, "Which?", labels, rows=8, test=2) for name in TASKS]
    benchmark = Benchmark.sequence("toy", "1", tasks)
    folder = tmp_path_factory.mktemp("hostile")
    config = toy_config(save_backbone(folder / "model", benchmark), save_data(folder, benchmark))
    values = config.model_dump(mode="json")
    values["data"] |= {"order": TASKS, "metrics": dict.fromkeys(TASKS, "exact_match")}
    values["evaluation"]["max_new_tokens"] = 8  # an answer that can be met
    return small_toy_config(RunConfig.parse(values))


def test_a_run_shows_hostile_names_and_keeps_them(
    config: RunConfig, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / FOLDER
    file = saved(config, tmp_path / "toy.yaml")
    run_it = ("run", file, "--out", str(out), "--mlflow", "off")
    text = shown(call, *run_it)
    seen = [visible(name) for name in TASKS]
    assert all(name in text for name in seen)
    assert visible(FOLDER) in text
    assert "nothing to do" in shown(call, *run_it)
    (run,) = out.iterdir()
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["tasks"] == TASKS

    shown(call, "plan", file)
    text = shown(call, "data", "check", file)
    assert all(name in text for name in seen)
    shown(call, "diff", str(run), str(run))
    text = shown(call, "show", str(run))
    assert all(name in text for name in seen)
    data = document(call, "show", str(run))
    assert [row["task"] for row in data["matrix"]["rows"]] == TASKS
    shown(call, "export", str(run), "--to", str(tmp_path / "exported"))
    card = (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    assert "<i>" not in re.sub(r"^```.*?^```$", "", card, flags=re.M | re.S)
    assert "\x1b" not in card
    assert markdown(TASKS[2]) in card
    unfinished = RunDirectory(run)
    unfinished.result.unlink()
    answers = unfinished.read_answers(2, 0)
    unfinished.write_answers(2, 0, [{**answer, "prediction": ANSWER} for answer in answers])
    text = shown(call, "show", str(run))
    assert visible(ANSWER[:12]) in text
    assert len(text) < 2**15
    assert [answer["prediction"] for answer in unfinished.read_answers(2, 0)] == [ANSWER] * 2
    damaged = run / "result.json"
    damaged.write_text("{", encoding="utf-8")
    assert visible(FOLDER) in shown(call, "report", str(run), code=2)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of such names, with a run that failed for a reason like them."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("swept") / FOLDER
    base = base_run(**{"data.order": [*TASKS, "plain"]})
    variants = {"base": {}, VARIANT: {"optim.lr": 1e-3}, "_joint": {"method.name": "mtl"}}
    variants[f"{VARIANT}*"] = {"optim.lr": 1e-4}  # a file's name has no such characters
    sweep = Sweep("toy $n_{$ <b> [/b]", base, variants, (0, 1))
    make_up(folder, sweep)
    failed = next(trial for trial in sweep.trials() if trial.variant == VARIANT)
    directory = RunDirectory(folder / failed.key)
    directory.result.unlink()
    directory.end("failed", ANSWER)
    return folder


def test_a_report_shows_hostile_names_in_every_format(swept: Path, call: Call) -> None:
    text = shown(call, "report", str(swept))
    assert visible(VARIANT) in text
    assert visible(FOLDER) in text
    page = without_scripts((swept / "report.html").read_text(encoding="utf-8"))
    assert html(VARIANT) in page
    assert html(TASKS[2]) in page
    tags = {element.tag for element in ElementTree.fromstring(page).iter()}
    assert not tags & {"i", "b"}
    study = read_study(swept)
    write_tables(study, swept / "t.tex")
    write_tables(study, swept / "t.md")
    latex_page = (swept / "t.tex").read_text(encoding="utf-8")
    assert latex(VARIANT) in latex_page
    bare = re.sub(r"\\[{}]", "", latex_page)
    assert bare.count("{") == bare.count("}")
    markdown_page = (swept / "t.md").read_text(encoding="utf-8")
    assert markdown(VARIANT).replace("|", r"\|") in markdown_page
    for table in re.findall(r"(?:^\|.*\n)+", markdown_page, flags=re.MULTILINE):
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(bars) == 1
    for text in (markdown_page, latex_page, page):
        assert not re.search("[\x00-\x09\x0b-\x1f]", text)
        assert "<script>" not in text
        assert len(text) < 2**22  # of a page with pictures
    assert json.dumps(VARIANT) in (swept / "report.json").read_text(encoding="utf-8")
    pictures = list((swept / "figures").glob("*.svg"))
    assert pictures
    for picture in pictures:
        ElementTree.parse(picture)  # names in it are text, or it would not be XML


def test_the_live_line_of_a_run_shows_hostile_names() -> None:
    console = Console(force_terminal=True, width=200, file=io.StringIO())
    tasks = [rows_task(name, 4) for name in TASKS]
    for name in TASKS:
        tracker = ConsoleTracker(console)
        tracker.started(RunDirectory(Path(FOLDER)), Benchmark.sequence("toy", "1", tasks))
        tracker.step({"planned": 4, "step": 1, "loss": 1.0, "kind": "task", "task": name})
        tracker.stage(0, {"op": 1.0, "bwt": None})
        tracker.close()
    shown = console.file.getvalue()
    assert all(visible(name) in shown for name in ["b]\x1b[31m$z_{$ in ", *TASKS])
    assert "\x1b[31m" not in shown


def test_the_lines_of_a_sweep_show_hostile_names(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial("key", VARIANT, "1", 0, base_run())
    with SweepTable([trial]) as table:
        table.started("key")
        table.ended("key", "failed", ANSWER)
        table.console.print(table.render())
    shown = capsys.readouterr().out
    assert visible(VARIANT) in shown
    assert "\x1b" not in shown
    assert len(shown) < 2**15


@pytest.mark.filterwarnings("ignore")  # those of MLflow and its dependencies
def test_mlflow_takes_hostile_names(config: RunConfig, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from forever.launch.mlflow.store import Store
    from forever.launch.mlflow.sync import sync

    sweep = Sweep("toy $n_{$ <b> [/b]", config, {VARIANT: {}})
    (trial,) = sweep.trials()
    sweep.write_manifest(tmp_path / FOLDER)
    execute(trial.config, tmp_path / FOLDER / trial.key)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert sync(tmp_path / FOLDER, uri) == 1
    client = Store(uri).client
    experiment = client.get_experiment_by_name(sweep.name)
    runs = client.search_runs([experiment.experiment_id])
    (run,) = [run for run in runs if run.data.tags.get("variant") == VARIANT]
    assert run.info.status == "FINISHED"
    assert run.data.params["variant"] == VARIANT
    assert sorted(entry.dataset.name for entry in run.inputs.dataset_inputs) == sorted(TASKS)
    assert len([key for key in run.data.metrics if key.startswith("acc/")]) == len(TASKS)
