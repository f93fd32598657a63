"""What all verbs have in common: `--json`, completion, help with examples, and NO_COLOR."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import Call, document
from made_up import base_run, make_up, make_up_run
from packaging.requirements import Requirement
from typer.testing import CliRunner

from forever.cli import completion
from forever.cli.main import app
from forever.config.methods import METHOD_CONFIGS
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
    assert [str(cell) for cell in table.columns[1].cells] == ["25.0 %", "", "-"]


def test_a_run_is_one_document(run_file: str, tmp_path: Path, call: Call) -> None:
    """What a run tells meanwhile is on stderr."""
    run = ["run", run_file, "--out", str(tmp_path / "out"), "--mlflow", "off"]
    code, printed, progress = call(*run, "--json")
    told = json.loads(printed)
    assert (code, told["run"]) == (0, str(next((tmp_path / "out").iterdir())))
    result = json.loads((Path(told["run"]) / "result.json").read_text("utf-8"))
    assert told["scores"]["op"] == result["op"]
    assert [row["task"] for row in told["rows"]] == result["tasks"]
    assert "after 3/3 weight" in progress
    again = document(call, *run)
    assert again["scores"] == told["scores"]
    # Nothing is learned at such a rate, and that is told in a line.
    slow = [*run, "optim.lr=1e-12"]
    lost = document(call, *slow)["lost"]
    assert lost[0].startswith("colour ends at ")
    assert lost[0] in call(*slow)[1]


def test_each_table_is_a_document(run_file: str, data_root: Path, call: Call) -> None:
    sweeps = {row["sweep"]: row["question"] for row in document(call, "sweep", "--list")["rows"]}
    assert sweeps == {name: sweep.question for name, sweep in shipped_sweeps().items()}
    doctor = document(call, "doctor")
    assert "torch" in [row["what"] for row in doctor["rows"]]
    assert doctor["sound"] is True
    rows = document(call, "plan", run_file, "--tokens-per-second", "1000")["rows"]
    assert rows[0]["task"] == 3 * 4  # updates, as a number
    assert rows[0]["hours"] > 0
    data = document(call, "data", "check", str(data_root))
    assert [row["task"] for row in data["tasks"]["rows"]] == ["colour", "shape", "weight"]
    assert data["problems"] == []


def test_a_report_is_a_document(tmp_path: Path, call: Call) -> None:
    pytest.importorskip("matplotlib")
    from forever.sweeps.sweep import Sweep

    variants = {"base": {}, "late": {"method.days": [4]}, "joint": {"method.name": "mtl"}}
    folder = make_up(tmp_path / "toy", Sweep("toy", base_run(), variants, (0, 1)))
    told = document(call, "report", str(folder))
    stored = json.loads((folder / "report.json").read_text("utf-8"))
    rows = {row["variant"]: row for row in told["benchmarks"]["toy"]["rows"]}
    assert rows.keys() == variants.keys()
    assert list(rows.values()) == stored["parts"][0]["rows"][: len(rows)]
    assert told["report"] == str(folder / "report.html")


@pytest.mark.parametrize(
    "words", [["demo"], ["sweep", "components", "--on", "mini/forever", "--only", "+RR"]]
)
def test_a_sweep_is_a_document(
    words: list[str], tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the launcher does, which is not here, and what it tells meanwhile is on stderr."""
    pytest.importorskip("matplotlib")
    from forever.launch.fleet import SweepOutcome
    from forever.sweeps.sweep import Sweep

    def run_sweep(sweep: Sweep, folder: Path, *more: Any) -> SweepOutcome:
        print("1 of 2 runs", file=sys.stderr)
        make_up(folder, sweep)
        return SweepOutcome([trial.key for trial in sweep.trials()], failed={"late": "no room"})

    monkeypatch.setattr("forever.launch.ray_tune.run_sweep", run_sweep)
    monkeypatch.setattr("forever.launch.ray_cluster.cluster", lambda **options: nullcontext())
    monkeypatch.setattr("forever.launch.ray_cluster.capacity", lambda: ({"CPU": 2.0}, 1))
    place = ["--out", str(tmp_path), "--seeds", "0,1", "--mlflow", "off"]
    told = document(call, *words, *place, code=1)
    assert told["failed"] == {"late": "no room"}
    rows = {row["variant"]: row for row in told["benchmarks"]["mini"]["rows"]}
    assert {"base", "+RR"} <= rows.keys()
    assert Path(told["folder"]).parent == tmp_path
    assert told["report"] == str(Path(told["folder"]) / "report.html")


@pytest.mark.parametrize("below", ["", "figures"])
def test_a_report_into_a_file_is_refused_first(below: str, tmp_path: Path, call: Call) -> None:
    """Before anything is read: here is nothing that could be."""
    file = tmp_path / "run.yaml"
    file.touch()
    code, printed, error = call("report", str(tmp_path), "--to", str(file / below))
    assert (code, printed) == (2, "")
    assert f"{file} is a file; give a folder to write into" in error


def test_bad_input_leaves_stdout_empty(tmp_path: Path, call: Call) -> None:
    code, printed, error = call("show", str(tmp_path), "--json")
    assert (code, printed) == (2, "")
    assert error.startswith("error: ")


def test_a_document_comes_with_the_exit_code(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "mine" / "a"
    path.mkdir(parents=True)
    for split in ("train", "test"):
        (path / f"{split}.jsonl").write_text("{}\n", "utf-8")
    told = document(call, "data", "check", str(tmp_path), code=2)
    assert len(told["problems"]) == 1


# ---- completion


def test_names_that_are_completed_are_those_that_exist() -> None:
    assert sorted(completion.methods()) == sorted(METHOD_CONFIGS)
    assert completion.sweeps() == sorted(shipped_sweeps())


def completed(words: str, shell_folder: Path) -> subprocess.CompletedProcess[str]:
    """What bash is told for the last of some words, by a fresh process."""
    count = len(shlex.split(words)) - 1 + words.endswith(" ")
    asked = {"_FOREVER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    code = "import sys\nfrom forever.cli.start import main\nsys.argv = ['forever']\n"
    code += "heavy = ('torch', 'ray', 'numpy', 'yaml', 'forever.config')\n"
    code += "try:\n    main()\nfinally:\n"
    code += "    print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=shell_folder, env=environment, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("forever s", {"sweep", "show", "submit", "sync"}),
        ("forever sweep comp", {"components"}),
        ("forever run mini/fo", {"mini/forever"}),
        ("forever run superni/8/ew", {"superni/8/ewc"}),
        ("forever plan sear", {"search"}),
        ("forever run mini/forever method.name=ol", {"method.name=olora"}),
        ("forever run my", {"my.yaml"}),
        ("forever sweep demo --sc", {"--scale"}),
        ("forever sweep demo --scale p", {"paper"}),
        ("forever show runs/a", {"runs/a-run"}),
    ],
)
def test_the_shell_completes(words: str, names: set[str], tmp_path: Path) -> None:
    (tmp_path / "my.yaml").touch()
    (tmp_path / "runs" / "a-run").mkdir(parents=True)
    (tmp_path / "runs" / "a-run" / "config.yaml").touch()
    done = completed(words, tmp_path)
    assert {*done.stdout.split()} == names
    # With these loaded it would take longer than 0.3 s.
    assert done.stderr.splitlines()[-1] == "[]"


# ---- help


def verbs(command: Any, above: str = "") -> list[tuple[str, Any]]:
    """All verbs with their names."""
    found: list[tuple[str, Any]] = []
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            found += verbs(inner, f"{name} ")
        else:
            found.append((above + name, inner))
    return found


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
        assert len(example) <= 78, example
        assert command.make_context(name, words[1 + len(name.split()) :])
    shown = CliRunner().invoke(app, [*name.split(), "--help"]).output
    assert all(example.strip().replace("\\[", "[") in shown for example in examples)


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


def test_doctor_says_what_installs_what_is_missing(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forever.cli.verbs import doctor

    needs = {"torch>=2.10": "", "rich": "", "datasets>=4": "", "ray==2.60.0": "ray"}
    needs |= {"optuna>=5": "ray", "gguf": "gguf"}
    there = {"rich": "15", "datasets": "3.6", "ray": "2.50.0", "optuna": "5.1"}
    asked = [(Requirement(package), extra) for package, extra in needs.items()]
    monkeypatch.setattr(doctor, "_requirements", lambda: asked)
    monkeypatch.setattr(doctor, "version", there.get)
    monkeypatch.setattr(doctor, "_place", lambda: "forever-cl")
    code, printed, _ = call("doctor", "--fix")
    assert code == 1  # torch is needed
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    commands = [f"{pip} 'torch>=2.10' 'datasets>=4'", f"{pip} 'forever-cl[ray,gguf]'"]
    assert printed.splitlines()[-2:] == commands
    told = document(call, "doctor", code=1)
    assert told["commands"] == commands
    verdicts = {row["what"]: row["verdict"] for row in told["rows"]}
    assert verdicts["datasets"] == "needed: pip install 'datasets>=4'"
    assert verdicts["ray"] == "==2.60.0 is needed: pip install 'forever-cl[ray]'"
    assert verdicts["optuna"] == "ok"
    monkeypatch.setattr(doctor, "_fits", lambda package: True)
    assert call("doctor", "--fix")[1].splitlines()[-1] == "nothing is missing"


def test_doctor_names_the_folder_of_a_checkout_that_is_not_installed(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forever.cli.verbs import doctor

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", absent)
    monkeypatch.setattr(doctor, "distribution", absent)
    monkeypatch.setattr(doctor, "version", {}.get)
    install = shlex.join(["pip", "install", "-e", str(Path(doctor.__file__).parents[3])])
    told = document(call, "doctor", "--fix", code=1)
    assert told["commands"] == [f"{shlex.quote(sys.executable)} -m {install}"]
    assert told["rows"][1]["verdict"] == f"needed: {install}"
