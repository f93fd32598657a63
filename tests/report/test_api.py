"""forever.run, forever.sweep and forever.load: the way of the command line, with frames."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers import execute, lines, outcome
from typer.testing import CliRunner

import forever
from forever.cli.main import app
from forever.config.run import RunConfig
from forever.launch.start import watched
from forever.runs.console import ConsoleTracker, ProgressLine
from forever.stopping import Stopped, listening

CPU = forever.Placement(device="cpu")
VARIANTS = """
title: Gamma
question: Must the strength follow the pace?
variants:
  base: {}
  gamma 0: {method.gamma: 0}
"""


@pytest.fixture(scope="module")
def ran(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> forever.RunResult:
    return forever.run(small_config, out=tmp_path_factory.mktemp("runs"), placement=CPU)


@pytest.fixture
def gamma(tmp_path: Path) -> Path:
    path = tmp_path / "gamma.yaml"
    path.write_text(VARIANTS)
    return path


def loaded_by(statement: str) -> set[str]:
    """What a fresh process has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()}


# ---- loading


def test_import_loads_nothing_and_reading_no_torch(ran: forever.RunResult) -> None:
    assert dir(forever) == sorted([*forever.__all__, "__version__"])
    loaded = loaded_by("import forever\ndir(forever)\nhasattr(forever, 'nothing')")
    assert not loaded & {"torch", "ray", "pandas", "numpy", "pydantic", "forever.api"}
    loaded = loaded_by(f"import forever\nforever.load({str(ran.folder)!r}).steps")
    assert "pandas" in loaded
    assert not loaded & {"torch", "ray", "mlflow", "matplotlib.pyplot"}


def test_a_missing_package_is_named() -> None:
    code = "import sys\nsys.modules['pandas'] = None\nimport forever\nforever.load('x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: forever.load needs pandas" in done.stderr.splitlines()[-1]


def test_types_are_seen(tmp_path: Path) -> None:
    """By pyright, although everything is loaded late."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    program = tmp_path / "program.py"
    program.write_text(
        "import forever\n"
        "reveal_type(forever.run('mini/forever').matrix)\n"
        "reveal_type(forever.sweep('components').table)\n"
        "reveal_type(forever.load('runs').steps)\n"
        "forever.run(seed=1)\n"
    )
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(program)]
    root = Path(forever.__file__).parents[1]
    output = subprocess.run(command, capture_output=True, text=True, cwd=root).stdout
    assert len(re.findall(r'is "DataFrame"', output)) == 3, output
    assert 'No parameter named "seed"' in output


# ---- a run


def test_run_gives_scores_and_frames(ran: forever.RunResult) -> None:
    journal = lines(ran.folder / "steps.jsonl")
    assert ran.op == pytest.approx(ran.matrix.iloc[:, -1].mean())
    assert [*ran.matrix.index] == [*ran.matrix.columns] == ["colour", "shape", "weight"]
    assert ran.matrix.isna().to_numpy().sum() == 3  # tasks that were not learned yet
    assert ran.bwt == ran.result["bwt"]
    assert ran.config.optim.epochs == 2
    assert ran.steps.to_dict("records")[0]["update_norm"] == journal[0]["update_norm"]
    assert len(ran.steps) == len(journal)
    assert set(ran.events["kind"]) <= {"replay", "consolidation"}
    assert ran.events["day"].notna().sum() == ran.runs["replay"][0] > 0
    assert ran.runs["seed"][0] == 0
    assert f"OP {ran.op:.1f}" in repr(ran)
    assert f"<td>{ran.matrix.iloc[0, 0]:.1f}</td>" in ran._repr_html_()


def test_run_is_what_the_command_line_runs(
    ran: forever.RunResult, small_config: RunConfig, tmp_path: Path
) -> None:
    execute(small_config, tmp_path / "run")
    assert not outcome(tmp_path / "run").differences(outcome(ran.folder))
    config = tmp_path / "run" / "config.yaml"
    command = ["run", str(config), "--out", str(ran.folder.parent), "--mlflow", "off"]
    done = CliRunner().invoke(app, command)
    assert f"{ran.folder} is finished; nothing to do" in done.output.replace("\n", "")


def test_a_finished_run_is_read_and_not_repeated(
    ran: forever.RunResult, small_config: RunConfig
) -> None:
    written = ran.folder.joinpath("result.json").stat().st_mtime_ns
    settings = small_config.model_dump(mode="json")  # as people have it who come from TRL or PEFT
    again = forever.run(settings, {"seed": 0}, out=ran.folder.parent, placement=CPU)
    assert again.folder == ran.folder
    assert again.folder.joinpath("result.json").stat().st_mtime_ns == written
    assert repr(forever.load(ran.folder)) == repr(ran)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("mini/forver",), "'forever'"), (("mini/forever", {"optim.lrr": 1}), "'optim.lr'")],
)
def test_a_wrong_argument_of_run_is_refused(arguments: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(forever.InputError, match=named):
        forever.run(*arguments, out=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_ctrl_c_saves_and_the_same_call_resumes(
    ran: forever.RunResult,
    small_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before, updates = signal.getsignal(signal.SIGINT), count(1)

    def step(tracker: ConsoleTracker, line: Any) -> None:
        if next(updates) == 6:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ConsoleTracker, "step", step)
    with pytest.raises(KeyboardInterrupt):
        forever.run(small_config, out=tmp_path, placement=CPU)
    folder = tmp_path / ran.folder.name
    assert signal.getsignal(signal.SIGINT) is before
    assert [*folder.glob("checkpoints/*")]
    assert not (folder / "result.json").exists()
    monkeypatch.undo()
    forever.run(small_config, out=tmp_path, placement=CPU)
    assert not outcome(folder).differences(outcome(ran.folder))
    assert capfd.readouterr().out == ""


def test_many_times_ctrl_c_do_not_end_the_process() -> None:
    """It may be a notebook with a day's work in it."""
    with listening(may_end=False):
        for _ in range(4):
            with pytest.raises(Stopped):
                signal.raise_signal(signal.SIGINT)


def test_a_thread_that_is_not_the_main_one_hears_no_signals() -> None:
    def work() -> bool:
        with watched():
            return True

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result()


# ---- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_in_place_and_a_pipe_nothing() -> None:
    for stream, shown in (
        (Terminal(), "\r1/8 first\x1b[K\r2/8 second\x1b[K\n"),
        (io.StringIO(), ""),
    ):
        with ProgressLine(stream) as line:
            line.say("1/8 first")
            line.say("2/8 second\n\n")
            line.write("\x1b[?25h")
        assert stream.getvalue() == shown
    ProgressLine(terminal := Terminal()).close()
    assert terminal.getvalue() == ""  # where nothing was said


# ---- a sweep


def test_load_reads_a_sweep(reported: Path) -> None:
    study = forever.load(reported)
    assert isinstance(study, forever.SweepResult)
    assert study.folder == reported
    unfinished = study.runs[study.runs["state"] != "finished"]
    assert [*unfinished["state"]] == ["not started"]
    assert unfinished["op"].isna().all()
    finished = study.runs[study.runs["state"] == "finished"]
    assert {*study.matrix["key"]} == {*study.steps["key"]} == {*finished["key"]}
    last = study.matrix[study.matrix["after"] == study.matrix["after"].max()]
    op = last.groupby(["variant", "seed"])["score"].mean()
    assert op["base", 0] == pytest.approx(
        study.runs.set_index(["variant", "seed"])["op"]["base", 0]
    )
    assert {"variant", "seed", "kind", "days"} <= {*study.events.columns}
    assert "&lt;sweep&gt;" in study._repr_html_()
    assert "<sweep>" not in study._repr_html_()


def test_the_table_is_the_reports(reported: Path) -> None:
    study = forever.load(reported)
    assert isinstance(study, forever.SweepResult)
    stored = json.loads((reported / "report.json").read_text())["parts"][0]["rows"]
    assert [*study.table.index] == [row["variant"] for row in stored]
    for row in stored:
        ours = study.table.loc[row["variant"]]
        for name in ("op", "difference"):
            known = row[name] or {"value": None, "low": None, "high": None}
            assert ours["op_low"] <= ours["op"] <= ours["op_high"]
            if known["value"] is not None:
                assert ours[name] == known["value"]
                assert (ours[f"{name}_low"], ours[f"{name}_high"]) == (known["low"], known["high"])
    assert study.write_report() == reported / "report.html"


def test_load_reads_a_folder_of_runs(ran: forever.RunResult, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(ran.folder, tmp_path / name)
    (tmp_path / "b" / "result.json").unlink()
    study = forever.load(tmp_path)
    assert isinstance(study, forever.SweepResult)
    assert [*study.runs["key"]] == ["a", "b"]
    assert study.runs["op"].notna().tolist() == [True, False]


def test_load_refuses_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(forever.InputError, match="runs"):
        forever.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seeds": [0, 0]}, "seeds"),
        ({"trials": 3}, "3 trials"),
        ({"until": -1.0}, "until -1"),
        ({"only": ["gama"]}, "'gamma 0'"),
        ({"on": "mini/nothing"}, "'nothing'"),
    ],
)
def test_a_wrong_argument_of_sweep_is_refused(
    options: dict[str, Any], named: str, gamma: Path, tmp_path: Path
) -> None:
    with pytest.raises(forever.InputError, match=named):
        forever.sweep(gamma, out=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.ray
@pytest.mark.usefixtures("two_cores")
def test_sweep_runs_and_says_what_failed(
    gamma: Path, small_config: RunConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"seeds": [0, 1], "out": tmp_path / "runs", "placement": CPU}
    study = forever.sweep(gamma, {"optim.epochs": 1}, on=small_config, **options)
    assert study.folder == tmp_path / "runs" / "gamma"
    assert [*study.runs["state"]] == ["finished"] * 4
    assert [*study.table.index] == ["base", "gamma 0"]
    assert study.failed == {}
    assert capfd.readouterr().out == ""
    seconds = study.runs["seconds"].sum()
    again = forever.sweep(gamma, {"optim.epochs": 1}, on=small_config, **options)
    assert again.runs["seconds"].sum() == seconds  # nothing was repeated
