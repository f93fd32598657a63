"""Sweeps and worker groups on a real local Ray: same numbers as alone, whatever dies on the way."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("mlflow")
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.fleet import Fleet
from forever.launch.local import Placement, run_local
from forever.launch.ray_cluster import divide, driver_seat, one_line
from forever.runs.console import ConsoleTracker
from forever.runs.directory import RunDirectory
from forever.runs.lock import in_progress
from forever.sweeps.sweep import Sweep
from forever.sweeps.table import SweepTable

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("private_ray"),
    # Ray and MLflow use deprecated parts of themselves and of their dependencies, and leave sockets
    # to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ray.*"),
]

CPU = Placement(device="cpu")
DRIVER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from forever.config.run import RunConfig
from forever.launch.fleet import Fleet
from forever.launch.ray_tune import run_sweep
from forever.sweeps.sweep import Sweep

if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    sweep = Sweep("toys", RunConfig.parse(settings["base"]), settings["variants"])
    outcome = run_sweep(sweep, Path(settings["out"]), Fleet(workers=settings["workers"], mlflow=settings["mlflow"]))
    print(json.dumps(asdict(outcome)))
    sys.exit(1 if outcome.failed else 0)
"""


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell without job control starts what it runs in the background deaf to Ctrl-C, and
    children inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def store(private_ray: Path) -> Path:
    """An empty MLflow database: making its tables takes many seconds."""
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{private_ray}/mlflow.db").search_experiments(max_results=1)
    return private_ray / "mlflow.db"


@pytest.fixture(scope="module")
def alone(
    base_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[RunConfig], Path]:
    """The directory of a run that was trained without Ray."""
    folder = tmp_path_factory.mktemp("alone")

    def train(config: RunConfig) -> Path:
        path = folder / config.key()
        run_local(config, path, placement=CPU)
        return path

    return train


def result(path: Path) -> dict[str, Any]:
    found = RunDirectory(path).finished()
    assert found is not None
    return found


def same_run(a: Path, b: Path) -> None:
    """Two directories hold bitwise the same training."""
    assert result(a)["matrix"] == result(b)["matrix"]
    assert RunDirectory(a).steps.read_text() == RunDirectory(b).steps.read_text()
    left, right = (load_file(path / "adapter" / "adapter_model.safetensors") for path in (a, b))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


# ---- what fits


def test_runs_are_spread_over_what_there_is() -> None:
    assert asdict(divide({"CPU": 2}, 1, 10, None, 0, "auto")) == {
        "concurrent": 2, "gpu": False, "resources": {"CPU": 1}, "threads": 1,
    }  # fmt: skip
    assert divide({"CPU": 8}, 1, 2, None, 0, "auto").threads == 4
    assert divide({"CPU": 64, "GPU": 8}, 2, 99, None, 4, "auto").concurrent == 2
    assert divide({"CPU": 64, "GPU": 8}, 2, 99, None, 4, "cpu").concurrent == 16
    assert divide({"CPU": 8, "GPU": 4}, 1, 99, 3, 0, "cuda").resources == {"GPU": 1}


@pytest.mark.parametrize(
    ("cluster", "concurrent", "workers", "device", "short"),
    [
        (
            {"CPU": 8, "GPU": 2},
            None,
            4,
            "auto",
            "4 workers with 1 GPU each are asked for, the cluster has 2 GPUs",
        ),
        (
            {"CPU": 8},
            None,
            0,
            "cuda",
            "1 worker with 1 GPU each are asked for, the cluster has 0 GPUs",
        ),
        (
            {"CPU": 2},
            3,
            1,
            "cpu",
            "3 runs at once with 1 worker of 1 CPU each need 3, the cluster has 2 CPUs",
        ),
    ],
)
def test_what_can_never_fit_is_refused(
    cluster: dict[str, float], concurrent: int | None, workers: int, device: str, short: str
) -> None:
    with pytest.raises(InputError, match=short):
        divide(cluster, 1, 10, concurrent, workers, device)


def test_drivers_hold_nothing_that_workers_need() -> None:
    assert driver_seat({"CPU": 2, "trial_slot": 4}) == {"trial_slot": 1}
    assert not {"CPU", "GPU"} & driver_seat({"CPU": 2, "GPU": 1}).keys()


# ---- why something failed


@pytest.mark.parametrize("kept", [True, False])
def test_the_reason_of_a_failure_is_on_disk_at_once(kept: bool, tmp_path: Path) -> None:
    """Not only when all trials are over: until then the sweep may be interrupted. A file that is
    gone ends no sweep."""
    from forever.launch.ray_experiment import Job, _Watch

    path = tmp_path / "error.txt"
    if kept:
        path.write_text(
            "Failure # 1\nTraceback\n  ...\nFloatingPointError: the run diverged\n\n",
            encoding="utf-8",
        )
    with SweepTable([], show=False) as table:
        trial = SimpleNamespace(config={"key": "a"}, error_file=str(path))
        _Watch(Job(tmp_path, table)).on_trial_error(0, [], trial)
    ended = RunDirectory(tmp_path / "a").end_without_result() or {}
    assert ended["reason"] == (
        "FloatingPointError: the run diverged" if kept else "ended by an error"
    )


def test_an_error_is_told_without_what_ray_wraps_around_it() -> None:
    from ray.train import ControllerError, WorkerGroupError
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

    boom = UserExceptionWithTraceback(
        ValueError("boom\nmore"), "Traceback (most recent call last): ..."
    )
    assert one_line(WorkerGroupError("long", {1: boom})) == "ValueError: boom"
    assert one_line(ControllerError(InputError("give another"))) == "give another"


# ---- sweeps in this process


NO_TARGET = {"model.targets": ["nothing"]}  # which only the model itself can refuse
REFUSAL = "model.targets: no linear layer is called 'nothing'; this model has "


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The key of a trial each time that one begins or is tried again."""
    keys: list[str] = []

    def started(table: SweepTable, key: str) -> None:
        keys.append(key)
        tell(table, key)

    tell = SweepTable.started
    monkeypatch.setattr(SweepTable, "started", started)
    return keys


def test_a_sweep_gives_the_runs_numbers_and_keeps_failures_apart(
    two_cores: None,
    tmp_path: Path,
    base_config: RunConfig,
    alone: Callable[[RunConfig], Path],
    starts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from forever.launch.ray_tune import run_sweep

    broken = Path(shutil.copytree(base_config.model.name, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"not a tensor")
    variants = {
        "base": {},
        "no data": {"data.root": str(tmp_path / "nowhere")},
        "broken": {"model.name": str(broken)},
        "no target": NO_TARGET,
        "slow": {"optim.lr": 1e-3},
    }
    sweep = Sweep("toys", base_config, variants)
    base, no_data, bad, refused, slow = (trial.key for trial in sweep.trials())
    dead = "http://127.0.0.1:9"  # nothing listens there: every tracker fails, no run does
    outcome = run_sweep(sweep, tmp_path / "toys", Fleet(mlflow=dead, retries=1, placement=CPU))
    assert sorted(outcome.finished) == sorted([base, slow])
    assert set(outcome.failed) == {no_data, bad, refused}
    assert "nowhere" in outcome.failed[no_data]
    assert "SafetensorError" in outcome.failed[bad]
    assert "\n" not in outcome.failed[bad]
    assert outcome.failed[refused].startswith(REFUSAL)
    assert {key: starts.count(key) for key in starts} == {base: 1, slow: 1, bad: 2, refused: 1}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no target" in line)
    assert line.endswith(f" s: {outcome.failed[refused]}")
    for trial in sweep.trials():
        if trial.key in outcome.finished:
            same_run(tmp_path / "toys" / trial.key, alone(trial.config))
            where = json.loads((tmp_path / "toys" / trial.key / "environment.json").read_text())
            # And not that of Ray's own worker.
            assert where["argv"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
    assert not list((tmp_path / "toys").glob(".tune/*"))

    # What failed for good is left alone until it is asked for; what was refused is looked at again.
    starts.clear()
    ended = json.loads((tmp_path / "toys" / bad / "ended.json").read_text())
    assert (ended["state"], ended["reason"]) == ("failed", outcome.failed[bad])
    again = run_sweep(sweep, tmp_path / "toys", Fleet(retries=0, placement=CPU))
    assert (again.finished, sorted(again.skipped)) == ([], sorted([base, slow]))
    assert again.failed == outcome.failed
    assert starts == [refused]
    shown = capsys.readouterr().out
    assert "1 failed before and were left as they are; --retry-failed runs them again" in shown
    assert f"broken, order custom, seed 0: failed, 0 s: {ended['reason']}" in shown
    starts.clear()
    shutil.copy(Path(base_config.model.name) / "model.safetensors", broken)
    mended = run_sweep(sweep, tmp_path / "toys", Fleet(retries=0, placement=CPU, retry_failed=True))
    assert mended.finished == [bad]
    assert sorted(starts) == sorted([bad, refused])
    assert not (tmp_path / "toys" / bad / "ended.json").exists()


def test_a_sweep_that_cannot_fit_starts_nothing(
    two_cores: None, tmp_path: Path, base_config: RunConfig
) -> None:
    from forever.launch.ray_tune import run_sweep

    begun = time.perf_counter()
    with pytest.raises(
        InputError, match="99 runs at once with 2 workers of 1 CPU each need 198, the cluster has 2"
    ):
        run_sweep(
            Sweep("toys", base_config, {"base": {}}),
            tmp_path / "toys",
            Fleet(concurrent=99, workers=2, show=False),
        )
    nowhere = base_config.override({"data.root": str(tmp_path / "nowhere")})
    with pytest.raises(InputError, match="nowhere"):
        run_sweep(Sweep("toys", nowhere, {"base": {}}), tmp_path / "none", Fleet(show=False))
    assert time.perf_counter() - begun < 5


def test_a_sweep_of_worker_groups(
    two_cores: None, tmp_path: Path, base_config: RunConfig, alone: Callable[[RunConfig], Path]
) -> None:
    from forever.launch.ray_tune import run_sweep

    sweep = Sweep("toys", base_config, {"base": {}, "slow": {"optim.lr": 1e-3}})
    outcome = run_sweep(sweep, tmp_path / "toys", Fleet(workers=1, placement=CPU, show=False))
    assert outcome.failed == {}
    for trial in sweep.trials():
        same_run(tmp_path / "toys" / trial.key, alone(trial.config))


def test_two_workers_equal_one(
    two_cores: None, tmp_path: Path, base_config: RunConfig, alone: Callable[[RunConfig], Path]
) -> None:
    from forever.launch.ray_train import run_workers

    text = io.StringIO()
    watcher = ConsoleTracker(Console(file=text, width=120))
    found = run_workers(base_config, tmp_path / "run", 2, placement=CPU, trackers=[watcher])
    one = alone(base_config)
    assert found["world_size"] == 2
    assert found["matrix"] == result(one)["matrix"]
    assert found["events"] == result(one)["events"]
    left, right = (
        load_file(path / "adapter" / "adapter_model.safetensors")
        for path in (tmp_path / "run", one)
    )
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-3, atol=1e-4)
    lines = text.getvalue().splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["after", f"{stage}/3", task] for stage, task in enumerate(found["stages"], 1)
    ]
    assert run_workers(base_config, tmp_path / "run", 2, placement=CPU) == found
    with pytest.raises(
        InputError, match="5 workers with 1 CPU each are asked for, the cluster has 2 CPUs"
    ):
        run_workers(base_config, tmp_path / "many", 5, placement=CPU)


def test_a_run_that_a_search_stops_takes_its_workers_along(
    two_cores: None, tmp_path: Path, base_config: RunConfig
) -> None:
    """They are not the trial's process: left alone they would train to the end, on what the next
    run waits for."""
    from forever.launch.ray_experiment import Job, fan_out
    from ray import tune
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler

    changes = {"optim.epochs": 400}  # half a minute a task: time to be stopped in
    stopped, other = Sweep("toys", base_config, {"stopped": changes, "other": {}}).trials()

    class StopFirst(FIFOScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            return (
                TrialScheduler.STOP
                if trial.config["key"] == stopped.key
                else TrialScheduler.CONTINUE
            )

    runs = {trial.key: trial.config.model_dump(mode="json") for trial in (stopped, other)}
    fleet = Fleet(workers=1, concurrent=1, placement=CPU, retries=0)
    with SweepTable([stopped, other], show=False) as table:
        job = Job(tmp_path, table, fleet)
        assert (
            fan_out(job, 2, {"key": tune.grid_search(list(runs))}, runs, scheduler=StopFirst())
            == {}
        )
    result(tmp_path / other.key)
    directory = RunDirectory(tmp_path / stopped.key)
    assert (directory.end_without_result() or {})["state"] == "stopped"
    assert not in_progress(directory.path)
    steps = directory.steps.read_text(encoding="utf-8").splitlines()
    assert 0 < len(steps) < 2 * (24 // 4) * 400


def test_what_a_worker_refuses_is_not_tried_again(
    two_cores: None, tmp_path: Path, base_config: RunConfig
) -> None:
    import ray
    from ray.util.state import list_actors

    from forever.launch.ray_train import run_workers

    def workers() -> int:
        here = ray.get_runtime_context().gcs_address  # there may be other clusters on the machine
        return len(list_actors(here, filters=[("class_name", "=", "RayTrainWorker")], limit=1000))

    before = workers()
    with pytest.raises(InputError, match=f"^{REFUSAL}"):
        run_workers(base_config.override(NO_TARGET), tmp_path / "run", 1, placement=CPU)
    assert workers() == before + 1


# ---- sweeps in a process of their own


class Driver:
    """The command of a user: a sweep in a process of its own, which can be killed."""

    def __init__(
        self, folder: Path, store: Path, base: RunConfig, variants: dict[str, Any], workers: int = 0
    ) -> None:
        shutil.copy(store, folder)
        self.out, self.uri = folder / "toys", f"sqlite:///{folder}/mlflow.db"
        self.sweep = Sweep("toys", base, variants)
        self.script, self.settings = folder / "driver.py", folder / "settings.json"
        self.script.write_text(DRIVER)
        values = {
            "out": str(self.out),
            "mlflow": self.uri,
            "workers": workers,
            "variants": variants,
        }
        self.settings.write_text(json.dumps({**values, "base": base.model_dump(mode="json")}))

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, str(self.script), str(self.settings)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for(self, count: int, pattern: str, timeout_s: float = 120.0) -> list[Path]:
        """Until `count` paths below the sweep's folder match."""
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            found = sorted(self.out.glob(pattern))
            if len(found) >= count:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no {count} {pattern} in {timeout_s} s")

    def statuses(self) -> list[str]:
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("toys")
        assert experiment is not None
        return sorted(run.info.status for run in client.search_runs([experiment.experiment_id]))


def test_an_interrupted_run_with_workers_says_so_and_is_closed(
    tmp_path: Path, store: Path, base_config: RunConfig
) -> None:
    """Ctrl-C ends the workers, shows the run as stopped, and exits like any interrupted command."""
    from mlflow import MlflowClient

    shutil.copy(store, tmp_path)
    uri, file = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "long.yaml"
    file.write_text(
        yaml.safe_dump(base_config.override({"optim.epochs": 1000}).model_dump(mode="json"))
    )
    command = [
        sys.executable,
        "-m",
        "forever.cli.main",
        "run",
        str(file),
        "--workers",
        "1",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        [*command, "--mlflow", uri],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + 180
    while not (
        journals := [path for path in tmp_path.glob("runs/*/steps.jsonl") if path.stat().st_size]
    ):
        assert time.monotonic() < give_up
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted; the same command with --resume goes on from the last checkpoint" in errors
    assert "Traceback" not in errors
    assert not in_progress(journals[0].parent)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("forever")
    assert experiment is not None
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["KILLED"]


def test_a_killed_sweep_goes_on_where_it_was(
    tmp_path: Path, store: Path, base_config: RunConfig, alone: Callable[[RunConfig], Path]
) -> None:
    """SIGKILL in mid-sweep, then SIGTERM, then to the end: nothing finished is repeated, no number
    moves."""
    driver = Driver(
        tmp_path, store, base_config, {f"v{i}": {"optim.lr": 1e-3 * (i + 1)} for i in range(6)}
    )
    first = driver.start()
    done = driver.wait_for(1, "*/result.json")
    first.kill()
    first.communicate()
    done = sorted(driver.out.glob("*/result.json"))
    assert len(done) < 6
    written = {path: path.stat().st_mtime_ns for path in done}

    second = driver.start()
    done = driver.wait_for(len(done) + 1, "*/result.json")
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=60)
    assert second.returncode == 128 + signal.SIGTERM
    assert "RUNNING" not in driver.statuses()
    written |= {
        path: path.stat().st_mtime_ns
        for path in driver.out.glob("*/result.json")
        if path not in written
    }

    third = driver.start()
    output, errors = third.communicate(timeout=180)
    assert third.returncode == 0, errors
    outcome = json.loads(output.splitlines()[-1])
    assert len(outcome["finished"]) + len(outcome["skipped"]) == 6
    assert {path: path.stat().st_mtime_ns for path in written} == written
    for trial in driver.sweep.trials():
        same_run(driver.out / trial.key, alone(trial.config))
    assert driver.statuses() == ["FINISHED"] * 7


def test_ctrl_c_leaves_a_sweep_cleanly(
    tmp_path: Path, base_config: RunConfig, alone: Callable[[RunConfig], Path]
) -> None:
    """SIGINT to the whole group, as a terminal sends it: exit 130, nothing lives on, the same
    command finishes."""
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(base_config.model_dump(mode="json")))
    command = [
        sys.executable,
        "-m",
        "forever.cli.main",
        "sweep",
        "memory_epochs",
        "--on",
        str(file),
        "--mlflow",
        "off",
    ]
    command += ["--device", "cpu", "--out", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)
    give_up = time.monotonic() + 180
    while not (done := sorted(tmp_path.glob("out/*/*/result.json"))):
        assert time.monotonic() < give_up
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted; the same command goes on from the last checkpoint" in errors
    assert "Traceback" not in errors
    give_up = time.monotonic() + 30
    while living := _session(process.pid):
        assert time.monotonic() < give_up, living
        time.sleep(0.2)
    assert not list(tmp_path.glob("out/*/*/ended.json"))  # interrupted is not failed
    manifest = json.loads(next(tmp_path.glob("out/*/sweep.json")).read_text())
    assert len(sorted(tmp_path.glob("out/*/*/result.json"))) < len(manifest["trials"])
    written = {path: path.stat().st_mtime_ns for path in done}

    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    assert {path: path.stat().st_mtime_ns for path in written} == written
    for trial in manifest["trials"]:
        run = next(tmp_path.glob(f"out/*/{trial['key']}"))
        same_run(run, alone(RunConfig.parse(yaml.safe_load((run / "config.yaml").read_text()))))


@pytest.fixture
def head(private_ray: Path) -> Iterator[dict[str, str]]:
    """A cluster that stands on its own, as `ray up` would make it; yields the environment of its
    users."""
    ports = _free_ports(6)
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port",
             "dashboard-agent-grpc-port", "metrics-export-port")  # fmt: skip
    flags = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    where = [
        "--node-ip-address=127.0.0.1",
        "--dashboard-host=127.0.0.1",
        f"--temp-dir={private_ray}/head",
    ]
    size = [
        "--num-cpus=2",
        "--num-gpus=0",
        "--object-store-memory=200000000",
        "--disable-usage-stats",
        '--resources={"trial_slot": 2}',
    ]
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_memory_monitor_refresh_ms": "0"}
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        *flags,
        *where,
        *size,
    ]
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=null, stderr=null
    )
    try:
        yield {**environment, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports[1]}"}
    finally:
        for pid in _session(process.pid):  # `ray stop` would end every Ray of this machine
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)


def _session(leader: int) -> list[int]:
    """The processes that `leader` and its descendants started."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(ProcessLookupError, ValueError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_a_sweep_as_a_ray_job(
    head: dict[str, str], tmp_path: Path, store: Path, base_config: RunConfig
) -> None:
    driver = Driver(tmp_path, store, base_config, {"base": {}}, workers=1)
    job = tmp_path / "job"
    job.mkdir()
    shutil.copy(driver.script, job)
    submit = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "job",
        "submit",
        "--working-dir",
        str(job),
    ]
    command = [*submit, "--", sys.executable, "driver.py", str(driver.settings)]
    give_up = time.monotonic() + 60
    while True:
        done = subprocess.run(command, env=head, capture_output=True, text=True, timeout=180)
        if (
            done.returncode == 0
            or "Failed to connect" not in done.stderr + done.stdout
            or time.monotonic() > give_up
        ):
            break
        time.sleep(1)  # the head is not up yet
    assert done.returncode == 0, done.stdout + done.stderr
    assert driver.statuses() == ["FINISHED"] * 2
