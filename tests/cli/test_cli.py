"""The command line: what it refuses and how, and that its verbs do what they say."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from forever.cli.main import main
from forever.config.run import RunConfig
from forever.runs.lock import locked
from forever.sweeps.files import shipped_sweeps
from forever.sweeps.named_runs import load_run


def call(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of `forever ARGUMENTS` in this process."""
    monkeypatch.setattr(sys, "argv", ["forever", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize(
    "verb", ["", "run", "sweep", "demo", "plan", "report", "sync", "doctor", "data check"]
)
def test_every_verb_explains_itself(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert call([*verb.split(), "--help"], monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "Usage:" in shown
    assert ("<benchmark>[/<order>]/<meth" in shown) == (verb in ("run", "sweep", "plan"))


@pytest.fixture
def run_file(base_config: RunConfig, tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(base_config.model_dump(mode="json")), encoding="utf-8")
    return str(path)


BAD = [
    ("run mini/forevr", "unknown method 'forevr'; did you mean 'forever'?"),
    ("run minni/forever", "unknown benchmark 'minni'; did you mean 'mini'?"),
    ("run superni/9/forever", "unknown order of superni '9'; valid: 7, 8"),
    ("run mini", "'mini' is no file and not of the form"),
    ("run nosuch.yaml", "there is no file nosuch.yaml"),
    ("run mini/forever optim.lrr=1", "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
    ("run mini/forever optim.lr=fast", "optim.lr='fast'"),
    ("run mini/forever optim.epochs", "'optim.epochs' is not of the form key=value"),
    ("run mini/forever optim.lr=[1", "not valid YAML"),
    (
        "run mini/forever memory.fraction=-1",
        "memory.fraction=-1: input should be greater than or equal to 0",
    ),
    (
        "run mini/forever memory.fraction=1.5",
        "memory.fraction=1.5: input should be less than or equal to 1",
    ),
    (
        "run mini/forever method.warmup_steps=0",
        "method.warmup_steps=0: input should be greater than or equal to 1",
    ),
    ("run mini/forever method.days=[1,-2]", "method.days.1=-2: input should be greater than 0"),
    (
        "run mini/forever method.days=ebinghaus",
        "unknown schedule 'ebinghaus'; did you mean 'ebbinghaus'?",
    ),
    ("run mini/forever data.order=[sentimnt]", "did you mean 'sentiment'?"),
    ("run superni/7/forever", "data.root is not set"),
    ("run superni/7/forever data.root=nowhere", "there is no folder nowhere/superni"),
    ("run mini/forever model.name=./nowhere", "there is no folder './nowhere'"),
    ("run mini/forever --device gpu --mlflow off", "unknown device 'gpu'"),
    ("sweep componets", "unknown sweep 'componets'; did you mean 'components'?"),
    ("sweep components --scale huge", "unknown scale 'huge'; valid: cpu, mini, paper"),
    ("sweep components --seeds 0,x", "--seeds '0,x'"),
    ("sweep components --seeds 1,1", "seeds must be different"),
    ("sweep components --on mini/finetune", "unknown key 'method.days'"),
    ("sweep components --trials 3", "--trials 3: components has its own variants"),
    (
        "sweep components --only +FIRR",
        "unknown variant of components '+FIRR'; did you mean '+FIR'?",
    ),
    ("sweep search --only base", "--only 'base': search has no variants by name"),
    ("plan mini/forever --only base", "--only 'base': mini/forever has no variants by name"),
    ("sweep components seed=5", "seed=5: a sweep sets the seeds of its runs; give --seeds 5"),
    ("plan components seed=5", "give --seeds 5"),
    ("sweep main_results data.order=2", "data.order=2: main_results runs on the orders 1, 2"),
    ("sweep search --seeds 0,1", "search compares all its runs on one seed"),
    ("sweep search --on superni/7/forever data.root=nowhere", "there is no folder nowhere/superni"),
    ("run", "run needs a configuration"),
    ("run optim.lr=1", "'optim.lr=1' is no file"),
    ("run mini/forever --fork nowhere", "--fork 'nowhere' is not of the form RUN@TASK"),
    ("run mini/forever --fork nowhere@1", "nowhere holds no run"),
    ("plan nothing/at/all/here", "'nothing/at/all/here' is no file"),
    ("plan componets", "did you mean 'components'?"),
    ("plan components --trials 4", "--trials 4: components has its own variants"),
    ("report nowhere", "nowhere"),
    ("data check nowhere", "there is no folder nowhere"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[arguments for arguments, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(arguments.split(" "), monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_a_folder_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    assert call(["run", "mini/forever", f"model.name={model}"], monkeypatch) == 2
    assert "has no configuration (config.json)" in capsys.readouterr().err
    (model / "config.json").write_text("{}")
    assert call(["run", "mini/forever", f"model.name={model}"], monkeypatch) == 2
    assert "has no weights (*.safetensors)" in capsys.readouterr().err
    (model / "model.safetensors").write_bytes(b"")
    assert call(["run", "mini/forever", f"model.name={model}"], monkeypatch) == 2
    assert "has no tokenizer (tokenizer.json or" in capsys.readouterr().err


def test_refusal_is_quick_and_needs_neither_torch_nor_ray(tmp_path: Path) -> None:
    """The promise is 3 seconds on a machine that does nothing else: there, processor time is what
    passes."""
    code = (
        "import sys\n"
        "from forever.cli.main import main\n"
        "sys.argv = ['forever', 'sweep', 'components', '--on', 'superni/7/forever']\n"
        "sys.argv += ['data.root=nowhere']\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n"
        "    heavy = ('torch', 'ray', 'mlflow', 'transformers')\n"
        "    print(stop.code, [name for name in heavy if name in sys.modules])\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.strip() == "2 []"
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 3


def test_run_twice_and_another_configuration(
    run_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = ["run", run_file, "method.name=finetune", "--out", str(out), "--mlflow", "off"]
    assert call(arguments, monkeypatch) == 0
    first = capsys.readouterr().out
    assert "after 3/3 weight" in first
    (folder,) = out.iterdir()
    before = (folder / "result.json").stat().st_mtime_ns
    assert call(arguments, monkeypatch) == 0
    assert "is finished; nothing to do" in capsys.readouterr().out
    assert (folder / "result.json").stat().st_mtime_ns == before

    (folder / "result.json").unlink()  # as if it had been interrupted
    assert call(arguments, monkeypatch) == 2
    assert "unfinished run; go on with it by --resume" in capsys.readouterr().err
    assert call([*arguments, "--resume"], monkeypatch) == 0
    assert (folder / "result.json").is_file()

    other = yaml.safe_load((folder / "config.yaml").read_text())
    other["optim"]["lr"] = 0.5
    (folder / "config.yaml").write_text(yaml.safe_dump(other))
    assert call(arguments, monkeypatch) == 2
    assert "another configuration (optim.lr is 0.5 there, 0.01 here)" in capsys.readouterr().err


def test_a_folder_in_which_another_process_trains(
    run_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("forever.runs.lock._PATIENCE_S", 0.0)
    folder = tmp_path / "out" / load_run(run_file).key()
    with locked(folder):
        assert (
            call(["run", run_file, "--out", str(tmp_path / "out"), "--mlflow", "off"], monkeypatch)
            == 2
        )
    assert (
        f"error: {folder} is being trained by process {os.getpid()} on " in capsys.readouterr().err
    )


def test_a_sweep_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["sweep", "components", "--resume"], monkeypatch) == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "again"),
    [("run", "the same command with --resume goes on"), ("sweep", "the same command goes on")],
)
def test_an_interrupt_says_how_to_go_on(
    verb: str, again: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forever.cli.main.load_run", interrupt)
    name = "mini/forever" if verb == "run" else "components"
    assert call([verb, name], monkeypatch) == 130
    assert f"interrupted; {again} from the last checkpoint" in capsys.readouterr().err


def test_the_base_package_is_enough_for_a_run(run_file: str, tmp_path: Path) -> None:
    """GPU machines are often boxes without Ray, MLflow, datasets, and what draws pages and
    figures."""
    code = (
        "import sys\n"
        "for name in ('ray', 'mlflow', 'datasets', 'matplotlib', 'jinja2', 'optuna'):\n"
        "    sys.modules[name] = None  # as if it were not installed\n"
        "from forever.cli.main import main\n"
        f"sys.argv = ['forever', 'run', {run_file!r}, 'optim.epochs=1']\n"
        f"sys.argv += ['--out', {str(tmp_path / 'out')!r}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "out").glob("*/result.json")
    assert f"{json.loads(result.read_text())['op']:.1f}" in done.stdout


def test_all_sweeps_are_listed_with_their_questions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["sweep", "--list"], monkeypatch) == 0
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in (*shipped_sweeps(), "search"))
    assert printed.count("?") == len(shipped_sweeps())


def test_plan_and_data_check_print_tables(
    run_file: str,
    data_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        call(["plan", "components", "--on", run_file, "--tokens-per-second", "1000"], monkeypatch)
        == 0
    )
    printed = capsys.readouterr().out
    assert "+IAR&PIR" in printed
    assert (
        call(
            ["plan", "components", "--on", run_file, "--only", "-IAR", "--only", "+RR"], monkeypatch
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert all(f" {variant} " in printed for variant in ("base", "+RR", "-IAR"))
    assert "+FIR" not in printed
    assert call(["data", "check", str(data_root)], monkeypatch) == 0
    printed = capsys.readouterr().out
    assert all(task in printed for task in ("colour", "shape", "weight"))
    assert call(["data", "check"], monkeypatch) == 0
    assert "sentiment" in capsys.readouterr().out


def test_doctor_is_content_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["doctor"], monkeypatch) == 0
    assert "torch" in capsys.readouterr().out
