"""The command line: what it refuses and how, and that its verbs do what they say."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Call

from forever.cli import start
from forever.files import write_noted
from forever.launch.fleet import Fleet, SweepOutcome
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.sweeps.files import shipped_sweeps
from forever.sweeps.named_runs import load_run
from forever.sweeps.sweep import Sweep


@pytest.mark.parametrize(
    "verb",
    [
        "",
        "run",
        "sweep",
        "demo",
        "plan",
        "report",
        "sync",
        "ui",
        "doctor",
        "data check",
        "show",
        "init",
    ],
)
def test_every_verb_explains_itself(verb: str, call: Call) -> None:
    code, shown, _ = call(*verb.split(), "--help")
    assert code == 0
    assert "Usage:" in shown
    assert ("<benchmark>[/<order>]/<meth" in shown) == (verb in ("run", "sweep", "plan", "init"))


BAD = [
    ("run mini/forevr", "unknown method 'forevr'; did you mean 'forever'?"),
    ("run minni/forever", "unknown benchmark 'minni'; did you mean 'mini'?"),
    ("run superni/9/forever", "unknown order of superni '9'; valid: 7, 8"),
    ("run mini", "'mini' is no file and not of the form"),
    ("run /etc/passwd", "'/etc/passwd' is no .yaml file and not of the form"),
    ("run nosuch.yaml", "there is no file nosuch.yaml"),
    ("run", "run needs a configuration"),
    ("run optim.lr=1", "'optim.lr=1' is no file"),
    ("run mini/forever optim.lrr=1", "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
    ("run mini/forever optim.epochs", "'optim.epochs' is not of the form key=value"),
    ("run mini/forever optim.lr=[1", "not valid YAML"),
    ("run mini/forever method.days=[1,-2]", "method.days.1=-2: input should be greater than 0"),
    ("run mini/forever data.order=[sentimnt]", "did you mean 'sentiment'?"),
    ("run superni/7/forever", "data.root is not set"),
    ("run superni/7/forever data.root=nowhere", "/nowhere/superni; docs"),
    ("run mini/forever model.name=./nowhere", "there is no folder './nowhere'"),
    ("run mini/forever --device gpu --mlflow off", "unknown device 'gpu'"),
    ("run mini/forever --gpus-per-run 1", "are about Ray's workers; give --workers, too"),
    ("run mini/forever --workers 0 --ray-logs", "are about Ray's workers; give --workers, too"),
    ("run mini/forever --fork nowhere", "--fork 'nowhere' is not of the form RUN@TASK"),
    ("run mini/forever --fork nowhere@1", "nowhere holds no run"),
    ("sweep componets", "unknown sweep 'componets'; did you mean 'components'?"),
    ("sweep components --scale huge", "unknown scale 'huge'; valid: cpu, mini, paper"),
    ("sweep components --seeds 0,x", "--seeds '0,x'"),
    ("sweep components --seeds 1,1", "seeds [1, 1]: give some that are different"),
    ("sweep components --on mini/finetune", "unknown key 'method.days'"),
    ("sweep components --trials 3", "3 trials: components is no search"),
    ("sweep components --only +FIRR", "unknown variant of components '+FIRR'; did you mean '+FIR'"),
    ("sweep components seed=5", "seed=5: a sweep sets the seeds of its runs; give --seeds 5"),
    ("sweep main_results data.order=2", "data.order=2: main_results runs on the orders 1, 2"),
    ("sweep components --until 0", "--until '0': a number from 0.01 to 100 is expected"),
    ("sweep components --until nan", "--until 'nan': a number from 0.01 to 100 is expected"),
    ("sweep components --until 02", "--until '02': a number from 0.01 to 100 is expected"),
    ("sweep components --concurrent 010", "--concurrent '010': a whole number from 1 to 1e+09"),
    ("sweep components --concurrent ٣", "--concurrent '٣': a whole number from 1"),
    ("sweep search --trials 1_0", "--trials '1_0': a whole number from 1 to 1e+06"),
    ("sweep search --trials 9999999999", "--trials '9999999999': a whole number from 1 to 1e+06"),
    ("run mini/forever --micro-batch 010", "--micro-batch '010': a whole number"),
    ("run mini/forever --hang-after inf", "--hang-after 'inf': a number from 0 to 1e+09"),
    ("plan components --tokens-per-second inf", "--tokens-per-second 'inf': a number from 1 to"),
    ("plan components --price-per-hour 1e400", "--price-per-hour '1e400': a number from 0 to"),
    (f"plan components --price-per-hour {'9' * 5000}", "--price-per-hour '999"),
    ("plan components --tokens-per-second 9999999999999", "a number from 1 to 1e+12 is expected"),
    ("ui --port 080", "--port '080': a whole number from 1 to 65535"),
    ("sweep components --budget 2", "--budget '2': a number above 0 with s, m or h is expected"),
    ("sweep components --budget 0s", "--budget '0s': a number above 0 with s, m or h is expected"),
    ("sweep components --seeds 010", "--seeds '010': whole numbers separated by commas"),
    ("sweep components --seeds 1_0", "--seeds '1_0': whole numbers separated by commas"),
    ("sweep components --mlflow http://[::1", "http://[::1 is no address of a store (Invalid"),
    (
        "run mini/forever --mlflow sqlite://",
        "sqlite:// is no address of a store (it names no file)",
    ),
    (f"plan mini/forever --workers {'9' * 5000}", "--workers '999"),
    ("plan mini/forever --workers ٣", "--workers '٣': a number of workers"),
    ("sweep components --only base --until 2", "components: no variant is judged against another"),
    ("sweep search --budget 2h", "search is a search and compares no variants"),
    ("sweep search --only base", "only 'base': search has no variants by name"),
    ("sweep search --seeds 0,1", "search compares all its runs on one seed"),
    ("sweep search --on superni/7/forever data.root=nowhere", "/nowhere/superni; docs"),
    ("plan nothing/at/all/here", "'nothing/at/all/here' is no file"),
    ("plan componets", "did you mean 'components'?"),
    ("plan components --trials 4", "4 trials: components is no search"),
    ("plan components seed=5", "give --seeds 5"),
    ("plan mini/forever --detect 2", "--detect 2: it needs a sweep with variants"),
    ("plan components --detect nan", "--detect 'nan': a number from 0.01 to 100 is expected"),
    ("plan mini/forever --only base", "only 'base': mini/forever has no variants by name"),
    ("report nowhere", "nowhere"),
    ("data check nowhere", "there is no folder nowhere"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=[arguments[:60] for arguments, _ in BAD]
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: str, message: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = call(*arguments.split(" "))
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_a_sweep_has_no_resume(call: Call) -> None:
    """It goes on by itself."""
    code, _, error = call("sweep", "components", "--resume")
    assert code == 2
    assert "No such option" in error


def test_a_folder_without_weights(tmp_path: Path, call: Call) -> None:
    for name, missing in (
        ("notes.txt", "has no configuration (config.json)"),
        ("config.json", "has no weights (model.safetensors or model.safetensors.index.json)"),
        ("model.safetensors", "has no tokenizer (tokenizer.json or"),
    ):
        (tmp_path / name).write_text("{}")
        code, _, error = call("run", "mini/forever", f"model.name={tmp_path}")
        assert code == 2
        assert missing in error


def python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that runs `code` with the arguments of `forever`."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_refusal_is_quick_and_needs_neither_torch_nor_ray(tmp_path: Path) -> None:
    """In 3 seconds on a machine that does nothing else, where processor time is what passes."""
    code = (
        "import sys\n"
        "from forever.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n"
        "    heavy = ('torch', 'ray', 'mlflow', 'transformers')\n"
        "    print(stop.code, [name for name in heavy if name in sys.modules])\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    sweep = ["sweep", "components", "--on", "superni/7/forever", "data.root=nowhere"]
    assert python(code, tmp_path, *sweep).stdout.strip() == "2 []"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 3


@pytest.mark.slow
def test_the_base_package_is_enough_for_a_run(run_file: str, tmp_path: Path) -> None:
    """GPU machines are often boxes without what launches, tracks, reads datasets and draws."""
    code = (
        "import sys\n"
        "for name in ('ray', 'mlflow', 'datasets', 'matplotlib', 'jinja2', 'optuna'):\n"
        "    sys.modules[name] = None  # as if it were not installed\n"
        "from forever.cli.main import main\n"
        "main()\n"
    )
    done = python(code, tmp_path, "run", run_file, "optim.epochs=1", "--out", "out")
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "out").glob("*/result.json")
    assert f"{json.loads(result.read_text())['op']:.1f}" in done.stdout


def test_run_twice_and_another_configuration(run_file: str, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "out"
    run = ["run", run_file, "method.name=finetune", "--out", str(out), "--mlflow", "off"]
    code, printed, _ = call(*run)
    assert code == 0
    assert "after 3/3 weight" in printed
    (folder,) = out.iterdir()
    before = (folder / "result.json").stat().st_mtime_ns
    code, printed, _ = call(*run)
    assert code == 0
    assert "is finished; nothing to do" in printed
    assert (folder / "result.json").stat().st_mtime_ns == before

    (folder / "result.json").unlink()  # as if it had been interrupted
    code, _, error = call(*run)
    assert code == 2
    assert "unfinished run; go on with it by --resume" in error
    assert call(*run, "--resume")[0] == 0
    assert (folder / "result.json").is_file()

    other = yaml.safe_load((folder / "config.yaml").read_text())
    other["optim"]["lr"] = 0.5
    write_noted(folder, "config.yaml", yaml.safe_dump(other))
    code, _, error = call(*run)
    assert code == 2
    assert "another configuration (optim.lr is 0.5 there, 0.01 here)" in error


def test_a_folder_in_which_another_process_trains(
    run_file: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forever.runs.lock.PATIENCE_S", 0.0)
    folder = tmp_path / "out" / load_run(run_file).key()
    with locked(folder):
        code, _, error = call("run", run_file, "--out", str(tmp_path / "out"), "--mlflow", "off")
    assert code == 2
    assert f"error: {folder} is in use by another process" in error


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        ("run mini/forever", "the same command with --resume goes on"),
        ("sweep components", "the same command goes on"),
    ],
)
def test_an_interrupt_says_how_to_go_on(
    arguments: str, again: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("forever.sweeps.named_runs.load_run", interrupt)
    code, _, error = call(*arguments.split(), begin=start.main)
    assert code == 130
    assert error == f"interrupted; {again} from the last checkpoint\n"


def test_a_sweep_until_it_knows(
    run_file: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options reach the rounds, and each round the launcher, which is not here."""
    asked: list[tuple[int, ...]] = []

    def run_sweep(sweep: Sweep, folder: Path, fleet: Fleet, console: None) -> SweepOutcome:
        outcome = SweepOutcome(finished=[trial.key for trial in sweep.trials()])
        asked.append(sweep.seeds)
        for trial in sweep.trials():
            result: dict[str, Any] = {"schema_version": 1}
            result |= {"op": 50.0 + 20 * (trial.variant == "+RR"), "seconds": {"task": 1.0}}
            result["rows"] = {"colour": {"test": 100}}
            directory = RunDirectory(folder / trial.key)
            directory.path.mkdir(parents=True)
            directory.result.write_text(json.dumps(result), encoding="utf-8")
        return outcome

    monkeypatch.setattr("forever.launch.ray_tune.run_sweep", run_sweep)
    monkeypatch.setattr("forever.launch.ray_cluster.cluster", lambda **options: nullcontext())
    monkeypatch.setattr("forever.launch.ray_cluster.capacity", lambda: ({"CPU": 2.0}, 1))
    monkeypatch.setattr("forever.cli.commands.show_report", lambda folder: None)
    sweep = ["sweep", "components", "--on", run_file, "--only", "+RR", "--out", str(tmp_path)]
    code, printed, error = call(*sweep, "--until", "2", "--budget", "1h", "--mlflow", "off")
    assert (code, error) == (0, "")
    assert asked == [(0, 1, 2), (3,)]
    assert printed.splitlines() == ["3 seeds: +RR open: too few seeds", "4 seeds: +RR differs"]


def test_all_sweeps_are_listed_with_their_questions(call: Call) -> None:
    _, printed, _ = call("sweep", "--list")
    assert all(f" {name} " in printed for name in (*shipped_sweeps(), "search"))
    assert printed.count("?") == len(shipped_sweeps())


def test_tables_are_printed(run_file: str, data_root: Path, call: Call) -> None:
    plan = ["plan", "components", "--on", run_file]
    _, printed, _ = call(*plan, "--tokens-per-second", "1000")
    assert "+IAR&PIR" in printed
    _, printed, _ = call(*plan, "--only", "-IAR", "--only", "+RR")
    assert all(f" {variant} " in printed for variant in ("base", "+RR", "-IAR"))
    assert "+FIR" not in printed
    _, printed, _ = call("data", "check", str(data_root))
    assert all(task in printed for task in ("colour", "shape", "weight"))
    assert "sentiment" in call("data", "check")[1]
    code, printed, _ = call("doctor")
    assert code == 0
    assert "torch" in printed


def test_what_a_pilot_takes_is_said_as_it_was_asked_for(
    run_file: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's name is that of its file, with which a file of one's own is not found."""
    monkeypatch.chdir(tmp_path)
    variants = {"base": {}, "late": {"method.days": [15, 30]}}
    content = {"title": "Days", "question": "When?", "variants": variants}
    Path("my").mkdir()
    Path("my/days.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    for asked in ("components", "my/days.yaml"):
        _, printed, _ = call("plan", asked, "--on", run_file, "--detect", "2")
        assert f"forever sweep {asked} --seeds 0,1,2" in " ".join(printed.split())


def test_data_are_prepared_once(data_root: Path, tmp_path: Path, call: Call) -> None:
    shutil.copytree(data_root / "toy" / "colour", tmp_path / "mine" / "cb")
    command = ["data", "prepare", str(tmp_path / "mine"), "--to", str(tmp_path / "data")]
    code, printed, _ = call(*command)
    assert code == 0
    assert printed.startswith("long_sequence/cb: 24 train, 6 test\n")
    code, _, errors = call(*command)
    assert code == 2
    assert "never overwritten" in errors
