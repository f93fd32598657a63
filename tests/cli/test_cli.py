"""The command line: what it refuses and how, how it ends, and that its verbs do what they say."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Call
from helpers import saved
from made_up import put_result

import forever
from forever.cli import boundary, start
from forever.cli.boundary import BAD_INPUT, FAILED, explained
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.files import WriteError
from forever.launch.local import Placement, run_local
from forever.sweeps.files import shipped_sweeps
from forever.sweeps.sweep import Trial

# Commands, and what the line that refuses each of them names.
BAD = [
    ("run mini/forevr", "'forever'"),
    ("run nosuch.yaml", "nosuch.yaml"),
    ("run", "mini/forever"),
    ("run mini/forever optim.lrr=1", "'optim.lr'"),
    ("run mini/forever optim.epochs", "key=value"),
    ("run mini/forever lr=1", "'optim.lr'"),
    ("run mini/forever --lr=1e-3", "optim.lr=VALUE"),
    ("sweep components --warmup-steps 3", "optim.warmup_steps=VALUE"),
    ("run mini/forever --out /proc/x --mlflow off", "/proc/x"),
    ("run mini/forever --out /dev/null --mlflow off", "/dev/null"),
    ("run mini/forever --out s3://b/\udcff", "UTF-8"),
    ("report s3://b/x?region=\udca2", "UTF-8"),
    ("run superni/7/forever", "data.root"),
    ("run superni/7/forever data.root=nowhere", "/nowhere/superni"),
    ("run mini/forever model.name=./nowhere", "'./nowhere'"),
    ("run mini/forever --device gpu --mlflow off", "'gpu'"),
    ("run mini/forever --gpus-per-run 1", "--workers"),
    ("run mini/forever --workers 3-2", "3-2"),
    ("run mini/forever --fork nowhere", "@TASK"),
    ("run mini/forever --fork nowhere@1", "nowhere"),
    ("sweep componets", "'components'"),
    ("sweep components --scale huge", "'huge'"),
    ("sweep components --seeds 0,x", "--seeds '0,x'"),
    ("sweep components --seeds 1,1", "[1, 1]"),
    ("sweep components --only +FIRR", "'+FIR'"),
    ("sweep components --trials 3", "components"),
    ("sweep components seed=5", "--seeds 5"),
    ("sweep components --budget 2", "--budget '2'"),
    ("plan componets", "'components'"),
    ("plan mini/forever --detect 2", "--detect"),
    ("report nowhere", "nowhere"),
    ("show nowhere", "nowhere"),
    ("diff nowhere nowhere", "nowhere"),
    ("data check nowhere", "nowhere"),
    ("data check nowhere optim.lr=1", "optim.lr=1"),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, named: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, error = call(*words.split(" "))
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ")
    assert named in error
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.parametrize(
    "words",
    [
        "sweep components --until 0",
        "sweep components --concurrent 0",
        "sweep search --trials 9999999999",
        "run mini/forever --micro-batch many",
        "plan components --price-per-hour -1",
        "sweep components --resume",
        "nosuch",
    ],
)
def test_options_are_checked_by_typer(words: str, call: Call) -> None:
    code, _, error = call(*words.split(" "))
    assert code == 2
    assert "Usage:" in error


def test_short_options_that_every_command_has(call: Call) -> None:
    for words in (["--version"], ["-V"]):
        assert call(*words) == (0, f"forever {forever.__version__}\n", "")
    for words in (["-h"], ["run", "-h"], ["data", "check", "-h"]):
        code, printed, _ = call(*words)
        assert (code, printed) == call(*words[:-1], "--help")[:2]
        assert "Usage:" in printed


@pytest.mark.parametrize(
    "change", [{"model.targets": ["nosuch"]}, {"model.targets": ["mlp"]}, {"model.max_length": 16}]
)
def test_a_run_that_cannot_begin_leaves_none_behind(
    change: dict[str, Any], small_config: RunConfig, tmp_path: Path
) -> None:
    """It is refused when the model is there, and before anything is trained."""
    config = small_config.override({"method.name": "olora", **change})
    with pytest.raises(InputError):
        run_local(config, tmp_path / "run", placement=Placement("cpu"))
    assert [path.name for path in (tmp_path / "run").rglob("*")] == [".lock"]


# ---- how a process ends

LATE = """
import sys, threading, time
import torch
from forever.cli import start

def send():
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: time.sleep(0.001))  # in C++, which is then unwound
    while True:
        (x * 2).sum().backward()

threading.Thread(target=send, name="mlflow", daemon=True).start()
time.sleep(0.1)
sys.argv = ["forever", *sys.argv[1:]]
start.main()
"""


@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("report nowhere", 2)])
def test_a_thread_that_mlflow_keeps_does_not_abort_the_process(words: str, code: int) -> None:
    """Its exit code and output are those of the command."""
    command = [sys.executable, "-c", LATE, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, "terminate" in done.stderr) == (code, False)
    assert (done.stdout + done.stderr).count("\n") == 1


# ---- errors


@pytest.mark.parametrize(
    ("error", "code", "named"),
    [
        (WriteError("a/b cannot be written"), FAILED, "a/b"),
        (OSError(errno.ENOSPC, "x", "a/b"), FAILED, "a/b"),
        (PermissionError(errno.EACCES, "x", b"a/b"), BAD_INPUT, "a/b"),
        (MemoryError(), FAILED, "--micro-batch"),
        (torch.OutOfMemoryError("CUDA out of memory.\n Tried"), FAILED, "memory. Tried"),
        (FloatingPointError("loss is nan"), FAILED, "nan"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_line_explains_what_is_not_a_bug(error: Exception, code: int, named: str) -> None:
    explanation = explained(error)
    assert explanation is not None
    line, exit_code = explanation
    assert exit_code == code
    assert named in line
    assert "\n" not in line


def test_everything_else_is_a_bug() -> None:
    assert explained(KeyError("x")) is explained(OSError("odd")) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_where_an_error_arose(
    place: int, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """It is valid anywhere among the words of a command, and holds for processes started there."""
    words = ["report", "nowhere"]
    words.insert(place, "--debug")
    monkeypatch.setenv(boundary.DEBUG, "")
    code, _, error = call(*words)
    assert code == 2
    assert error.startswith("Traceback")
    assert error.splitlines()[-1].startswith("error: ")
    assert os.environ[boundary.DEBUG] == "1"


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("http://me:secret@host is away"), 2), (KeyError("http://me:secret@host"), 1)],
)
def test_a_bug_has_a_traceback_and_nothing_has_a_password(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.delenv(boundary.DEBUG, raising=False)
    monkeypatch.setattr("forever.cli.verbs.report.local_folder", fail)
    ended, _, shown = call("report", "nowhere")
    assert ended == code
    assert ("Traceback" in shown) == (code == 1)
    assert "host" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("words", "advice"), [("run mini/forever", "--resume"), ("sweep components", "same command")]
)
def test_an_interrupt_says_how_to_resume(
    words: str, advice: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("forever.sweeps.named_runs.load_run", interrupt)
    code, _, error = call(*words.split(), begin=start.main)
    assert code == 130
    assert error.startswith("interrupted")
    assert error.count("\n") == 1
    assert advice in error


# ---- where people wait

HEAVY = {"torch", "transformers", "peft", "datasets", "pandas", "mlflow", "ray", "optuna"}
QUICK = [
    "--help",
    "run --help",
    "sweep --list",
    # A folder that cannot be made is found when a run makes it, and has loaded torch.
    *[words for words, _ in BAD if "--device" not in words and "--mlflow off" not in words],
    "export nowhere --to somewhere",
    "init --on mini/forevr",
    "data prepare nowhere --to somewhere",
]
IMPORTS = """
import sys
from contextlib import redirect_stdout
from io import StringIO
from forever.cli.main import main
heavy = set(sys.argv.pop(1).split())
for words in sys.argv.pop(1).split(";"):
    sys.argv = ["forever", *words.split()]
    try:
        with redirect_stdout(StringIO()):
            main()
    except SystemExit:
        print(ascii([words, *sorted(heavy & sys.modules.keys())]))
"""


def python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process with the arguments of `forever`."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_help_lists_and_refusals_load_no_heavy_package(tmp_path: Path) -> None:
    """To load torch takes two seconds, pandas half a one; Typer and pydantic may be loaded."""
    done = python(IMPORTS, tmp_path, " ".join(HEAVY), ";".join(QUICK))
    assert done.stdout.splitlines() == [ascii([words]) for words in QUICK], done.stderr


# ---- what verbs do


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


def test_run_twice_and_another_configuration(
    run_file: str, small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "out"
    run = ["run", run_file, "--out", str(out), "--mlflow", "off"]
    code, printed, _ = call(*run)
    assert code == 0
    assert "after 3/3 weight" in printed
    (folder,) = out.iterdir()
    before = (folder / "result.json").stat().st_mtime_ns
    assert call(*run)[0] == 0
    assert (folder / "result.json").stat().st_mtime_ns == before

    (folder / "result.json").unlink()  # as if it had been interrupted
    code, _, error = call(*run)
    assert code == 2
    assert "--resume" in error
    assert call(*run, "--resume")[0] == 0
    assert (folder / "result.json").is_file()

    other = saved(small_config.override({"optim.lr": 0.5}), tmp_path / "other.yaml")
    assert call("run", other, *run[2:])[0] == 0
    assert len([*out.iterdir()]) == 2


@pytest.mark.parametrize("full", [False, True])
def test_a_run_whose_output_is_lost_is_trained(full: bool, run_file: str, tmp_path: Path) -> None:
    """Its reader has left, as in `forever run ... | head -1`, or the disk of its log is full."""
    out = tmp_path / "out"
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "forever.cli.start", "run", run_file, "--out", str(out)]
    with open("/dev/full", "w") as full_disk:
        stdout = full_disk.fileno() if full else writer
        done = subprocess.run([*command, "--mlflow", "off"], stdout=stdout, timeout=120)
    os.close(writer)
    assert done.returncode == 1
    assert len(list(out.glob("*/result.json"))) == 1


def test_a_sweep_until_it_knows(
    run_file: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options reach the rounds, and each round the launcher, which is not here."""
    rounds: list[set[int]] = []

    def fan_out(
        trials: list[Trial], folder: Path, resources: Any, table: Any, outcome: Any, count: int
    ) -> None:
        rounds.append({trial.seed for trial in trials})
        for trial in trials:
            result: dict[str, Any] = {
                "op": 50.0 + 20 * (trial.variant == "+RR"),
                "seconds": {"task": 1.0},
            }
            result["rows"] = {"colour": {"test": 100}}
            put_result(folder / trial.key, result)

    monkeypatch.setattr("forever.launch.tune.fan_out", fan_out)
    monkeypatch.setattr("forever.launch.cluster.connected", lambda **options: nullcontext())
    monkeypatch.setattr("forever.launch.cluster.capacity", lambda: ({"CPU": 2.0}, 1))
    monkeypatch.setattr("forever.cli.verbs.sweep.show_report", lambda folder: None)
    sweep = ["sweep", "components", "--on", run_file, "--only", "+RR", "--out", str(tmp_path)]
    code, printed, error = call(*sweep, "--until", "2", "--budget", "1h", "--mlflow", "off")
    assert (code, error) == (0, "")
    assert rounds == [{0, 1, 2}, {3}]
    assert len(printed.splitlines()) == 2


def test_tables_are_printed(run_file: str, call: Call) -> None:
    _, printed, _ = call("sweep", "--list")
    assert all(f" {name} " in printed for name in shipped_sweeps())
    plan = ["plan", "components", "--on", run_file, "--tokens-per-second", "1000"]
    _, printed, _ = call(*plan, "--only", "-IAR", "--only", "+RR")
    assert all(f" {variant} " in printed for variant in ("base", "+RR", "-IAR"))
    assert "+FIR" not in printed
    code, printed, _ = call("doctor")
    assert code == 0
    assert "torch" in printed


def test_data_are_prepared_once(data_root: Path, tmp_path: Path, call: Call) -> None:
    shutil.copytree(data_root / "toy" / "colour", tmp_path / "mine" / "cb")
    command = ["data", "prepare", str(tmp_path / "mine"), "--to", str(tmp_path / "data")]
    assert [call(*command)[0] for _ in range(2)] == [0, 2]
