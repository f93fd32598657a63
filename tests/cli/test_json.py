"""What all verbs have in common: `--json`, help with examples, and NO_COLOR; and `doctor`."""

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import Call, document
from made_up import base_run, make_up, make_up_run
from typer.testing import CliRunner

from forever.cli.main import app
from forever.sweeps.files import shipped_sweeps
from forever.text import Cell, PlainTable

ROOT = Path(__file__).parents[2]


def test_a_table_knows_its_rows() -> None:
    table = PlainTable("name", title="t")
    table.add_column("share (%)", key="share")
    table.add_row("a", Cell(0.25, "25.0 %"))
    table.add_row("b", None)
    table.add_row("sum", "-", record={})
    rows = [{"name": "a", "share": 0.25}, {"name": "b", "share": None}]
    assert table.data() == {"title": "t", "rows": rows, "note": ""}


def test_a_run_is_one_document(run_file: str, tmp_path: Path, call: Call) -> None:
    """Its progress is on stderr."""
    run = ["run", run_file, "--out", str(tmp_path / "out"), "--mlflow", "off"]
    code, printed, progress = call(*run, "--json")
    shown = json.loads(printed)
    assert (code, shown["run"]) == (0, str(next((tmp_path / "out").iterdir())))
    result = json.loads((Path(shown["run"]) / "result.json").read_text("utf-8"))
    assert shown["scores"]["op"] == result["op"]
    assert [row["task"] for row in shown["rows"]] == result["tasks"]
    assert "after 3/3 weight" in progress
    # Nothing is learned at such a rate, and a line says so.
    slow = [*run, "optim.lr=1e-12"]
    lost = document(call, *slow)["lost"]
    assert lost[0].startswith("colour ends at ")
    assert lost[0] in call(*slow)[1]


def test_each_table_is_a_document(run_file: str, data_root: Path, call: Call) -> None:
    sweeps = {row["sweep"]: row["question"] for row in document(call, "sweep", "--list")["rows"]}
    assert sweeps == {name: sweep.question for name, sweep in shipped_sweeps().items()}
    rows = document(call, "plan", run_file, "--tokens-per-second", "1000")["rows"]
    assert rows[0]["task"] == 3 * 4  # updates, as a number
    assert rows[0]["hours"] > 0
    data = document(call, "data", "check", str(data_root))
    assert [row["task"] for row in data["tasks"]["rows"]] == ["colour", "shape", "weight"]


def test_a_report_is_a_document(tmp_path: Path, call: Call) -> None:
    pytest.importorskip("matplotlib")
    from forever.sweeps.sweep import Sweep

    variants = {"base": {}, "late": {"method.days": [4]}, "joint": {"method.name": "mtl"}}
    folder = make_up(tmp_path / "toy", Sweep("toy", base_run(), variants, (0, 1)))
    shown = document(call, "report", str(folder))
    stored = json.loads((folder / "report.json").read_text("utf-8"))
    rows = {row["variant"]: row for row in shown["benchmarks"]["toy"]["rows"]}
    assert rows.keys() == variants.keys()
    assert list(rows.values()) == stored["parts"][0]["rows"][: len(rows)]
    assert shown["report"] == str(folder / "report.html")


def test_a_sweep_is_a_document(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is not here; what it prints is on stderr."""
    pytest.importorskip("matplotlib")
    from forever.launch.resources import SweepOutcome
    from forever.sweeps.sweep import Sweep

    def run_sweep(sweep: Sweep, folder: Path, *more: Any) -> SweepOutcome:
        print("1 of 2 runs")
        make_up(folder, sweep)
        return SweepOutcome([trial.key for trial in sweep.trials()], failed={"late": "no room"})

    monkeypatch.setattr("forever.launch.start.run_sweep", run_sweep)
    words = ["demo", "--out", str(tmp_path), "--seeds", "0,1", "--mlflow", "off"]
    shown = document(call, *words, code=1)
    assert shown["failed"] == {"late": "no room"}
    rows = {row["variant"]: row for row in shown["benchmarks"]["mini"]["rows"]}
    assert {"base", "+RR"} <= rows.keys()
    assert shown["report"] == str(Path(shown["folder"]) / "report.html")


@pytest.mark.parametrize("below", ["", "figures"])
def test_a_report_into_a_file_is_refused_first(below: str, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "run.yaml"
    file.touch()
    code, printed, error = call("report", str(tmp_path), "--to", str(file / below))
    assert (code, printed) == (2, "")
    assert str(file) in error


def test_a_document_comes_with_the_exit_code(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "mine" / "a"
    path.mkdir(parents=True)
    for split in ("train", "test"):
        (path / f"{split}.jsonl").write_text("{}\n", "utf-8")
    assert len(document(call, "data", "check", str(tmp_path), code=2)["problems"]) == 1
    code, printed, _ = call("show", str(tmp_path), "--json")
    assert (code, printed) == (2, "")


# ---- help


def verbs(command: Any, above: str = "") -> list[tuple[str, Any]]:
    """All verbs with their names."""
    named: list[tuple[str, Any]] = []
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            named += verbs(inner, f"{name} ")
        else:
            named.append((above + name, inner))
    return named


VERBS = verbs(typer.main.get_command(app))


def test_verbs_that_show_a_table_have_json() -> None:
    without = {name for name, verb in VERBS if "as_json" not in {p.name for p in verb.params}}
    assert without == {"init", "export", "submit", "sync", "ui", "data prepare"}


@pytest.mark.parametrize(("name", "command"), VERBS, ids=[name for name, _ in VERBS])
def test_help_has_examples_that_are_understood(name: str, command: Any) -> None:
    head, *examples = command.epilog.splitlines()
    assert head == "Examples:"
    assert examples
    for example in examples:
        words = shlex.split(example.replace("\\[", "["))
        assert words[: 1 + len(name.split())] == ["forever", *name.split()]
        assert command.make_context(name, words[1 + len(name.split()) :])
    shown = CliRunner().invoke(app, [*name.split(), "--help"]).output
    assert all(example.strip().replace("\\[", "[") in shown for example in examples)
    assert ("<benchmark>[/<order>]" in shown) == (name in ("run", "sweep", "plan", "init"))


@pytest.mark.parametrize(("variable", "coloured"), [("NO_COLOR", False), ("FORCE_COLOR", True)])
def test_no_color_is_respected(variable: str, coloured: bool, tmp_path: Path) -> None:
    """FORCE_COLOR makes rich take the pipe for a terminal; NO_COLOR holds there, too."""
    make_up_run(tmp_path / "run", "base", base_run())
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", variable: "1"}
    environment |= {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "forever.cli.start", "show", str(tmp_path / "run")]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert ("\x1b[38;" in shown.stdout) == coloured
    assert "score on, after" in shown.stdout


# ---- doctor


class Installed:
    """A distribution of this package, installed in place, with these requirements."""

    def __init__(self, *requires: str) -> None:
        self.requires = requires

    def read_text(self, name: str) -> str:
        return json.dumps({"url": "file:///src/my%20copy", "dir_info": {"editable": True}})


def test_doctor_prints_what_installs_what_is_missing(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = ["torch>=2.10", "rich", "datasets>=4", 'ray==2.60.0; extra == "ray"']
    needs += ['gguf; extra == "gguf"', "optuna>=5; extra == 'ray'", 'ruff; extra == "dev"']
    versions = {"rich": "15", "datasets": "3.6", "ray": "2.50.0", "optuna": "5.1"}
    monkeypatch.setattr("forever.cli.verbs.doctor.distribution", lambda name: Installed(*needs))
    monkeypatch.setattr("forever.runs.environment.version", versions.get)
    code, printed, _ = call("doctor", "--fix")
    assert code == 1  # torch is needed
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    commands = [f"{pip} 'torch>=2.10' 'datasets>=4'", f"{pip} -e '/src/my copy[ray,gguf]'"]
    assert printed.splitlines()[-2:] == commands
    shown = document(call, "doctor", code=1)
    assert (shown["sound"], shown["commands"]) == (False, commands)
    verdicts = {row["what"]: row["verdict"] for row in shown["rows"]}
    assert verdicts["optuna"] == verdicts["rich"] == "ok"
    assert "needed" in verdicts["datasets"]
    assert "extra ray" in verdicts["ray"]
    assert "ruff" not in verdicts


def test_doctor_names_the_folder_of_a_checkout_that_is_not_installed(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("forever.cli.verbs.doctor.distribution", absent)
    code, _, error = call("doctor")
    assert code == 2
    assert str(ROOT) in error
