"""Every verb reads runs and data from a local S3 server, as users meet it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faults.inject import Point, watched
from helpers import execute, outcome, saved
from made_up import base_run, make_up
from stores import BUCKET, OUT, SAVED, Become, Server
from typer.testing import CliRunner

import forever as library
from forever.cli.main import app
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.launch.copies import download
from forever.launch.local import Placement, run_local
from forever.launch.mlflow import sync as mlflow_sync
from forever.runs.directory import RunDirectory
from forever.storage import store
from forever.storage.address import SCRATCH, local_folder
from forever.storage.remote import Remote
from forever.sweeps.sweep import Sweep
from forever.world import World

KEPT = Placement(device="cpu", checkpoint_s=0.0, keep_stages=True)


@pytest.fixture(autouse=True)
def soon(quick: None) -> None:
    """Heartbeats come often."""


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    return small_config.override({"data.order": ["shape", "colour"]})


@pytest.fixture(scope="module")
def finished(s3: Server, config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run at an address, which another machine made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SCRATCH, str(tmp_path_factory.mktemp("machine-0")))
        run_local(config, local_folder(f"{OUT}/{config.key()}"), placement=KEPT)
    return f"{OUT}/{config.key()}"


def forever(*words: str) -> str:
    """What a command printed; its errors are raised."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("address", "status", "remedy"),
    [
        ("s3://no-such-bucket/runs/run", 0, "NO_SUCH_BUCKET.*make that bucket"),
        (f"{OUT}/refused", 403, "ACCESS_DENIED.*AWS_SECRET_ACCESS_KEY"),
        ("nowhere://bucket/runs", 0, "nowhere://bucket"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_trained(
    s3: Server, config: RunConfig, machine: Become, address: str, status: int, remedy: str
) -> None:
    s3.fail = status
    try:
        with pytest.raises(InputError, match=remedy) as refused:
            run_local(config, local_folder(address), placement=SAVED)
    finally:
        s3.fail = 0
    assert "\n" not in str(refused.value)
    assert "testing-secret" not in str(refused.value)
    assert not RunDirectory(local_folder(address)).steps.exists()


def test_a_damaged_object_is_named(finished: str, s3: Server, machine: Become) -> None:
    answers = f"{finished}/predictions/2/1.jsonl"
    whole = s3.read(answers)
    s3.write(answers, whole.replace(b'"score": ', b'"score": 0.'))
    try:
        with pytest.raises(InputError, match=r"2/1.jsonl is damaged"):
            forever("report", finished)
    finally:
        s3.write(answers, whole)
    assert "report" in forever("report", finished)  # it is downloaded again


def test_the_verbs_read_from_storage(
    finished: str,
    s3: Server,
    config: RunConfig,
    machine: Become,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is there is not trained again, is planned as done, reported there, and sent on."""
    file = saved(config, tmp_path / "run.yaml")
    again = forever("run", file, "--out", OUT, "--mlflow", "off")
    assert f"{finished} is finished; nothing to do" in again
    machine(2)
    assert "done, skipped" in forever("plan", file, "--out", OUT)
    machine(3)
    assert f"report  {finished}/report.html" in forever("report", finished)
    there = s3.keys(finished.removeprefix(f"s3://{BUCKET}/"))
    assert {key.rpartition("/")[2] for key in there} >= {"report.html", "report.json"}
    assert any("/figures/" in key for key in there)
    machine(4)
    synced: list[Path] = []
    monkeypatch.setattr(mlflow_sync, "sync", lambda folder, uri: synced.append(folder))
    forever("sync", finished, "--mlflow", "http://127.0.0.1:1")
    assert RunDirectory(synced[0]).verify()
    assert (synced[0] / "adapter/adapter_model.safetensors").is_file()


def test_a_run_in_storage_is_shown_compared_and_exported_as_one_in_a_folder(
    finished: str, config: RunConfig, machine: Become, tmp_path: Path
) -> None:
    """Each verb downloads it by itself."""
    machine(2)
    download(local_folder(finished))
    here = tmp_path / config.key()
    shutil.copytree(local_folder(finished), here, ignore=shutil.ignore_patterns(".*"))
    machine(3)
    assert forever("show", finished) == forever("show", str(here))
    machine(4)
    compared = forever("diff", finished, str(here))
    assert f"A  {finished}: finished" in compared
    assert "The same: configuration, scores, matrix, events, environment." in compared
    machine(5)
    forever("export", finished, "--to", str(tmp_path / "one"))
    forever("export", str(here), "--to", str(tmp_path / "two"))
    for name in ("adapter_model.safetensors", "README.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(InputError, match=f"^{OUT} has no config.yaml"):
        forever("show", OUT)


def test_a_fork_begins_from_storage_and_lies_there(
    finished: str, s3: Server, config: RunConfig, machine: Become, tmp_path: Path
) -> None:
    """It is the fork of the same run in a folder."""
    options = ("optim.lr=0.02", "--mlflow", "off", "--quiet", "--device", "cpu")
    forever("run", "--fork", f"{finished}@1", *options, "--out", OUT)
    machine(2)
    execute(config, tmp_path / "runs" / config.key(), keep_stages=True)
    origin = f"{tmp_path}/runs/{config.key()}@1"
    forever("run", "--fork", origin, *options, "--out", f"{tmp_path}/runs")
    [alone] = (tmp_path / "runs").glob("*-after1-*")
    there = local_folder(f"{OUT}/{alone.name}")
    download(there)
    assert outcome(alone).differences(outcome(there)) == []


def test_a_report_that_python_writes_reaches_the_storage(
    s3: Server, machine: Become, tmp_path: Path
) -> None:
    make_up(tmp_path / "made", Sweep("days", base_run(), {"base": {}}, (0,)))
    for path in (tmp_path / "made").rglob("*"):
        if path.is_file():
            s3.write(f"{OUT}/days/{path.relative_to(tmp_path / 'made')}", path.read_bytes())
    result = library.load(f"{OUT}/days")
    assert isinstance(result, library.SweepResult)
    page = result.write_report()
    assert s3.read(f"{OUT}/days/report.html") == page.read_bytes()
    assert any("/figures/" in key for key in s3.keys("runs/days"))
    library.load(f"{OUT}/days")
    assert page.is_file()


def test_data_are_downloaded_once(
    s3: Server, config: RunConfig, data_root: Path, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks are those of the folder; what changes there, and only that, is downloaded again."""
    for path in sorted((data_root / "toy").rglob("*.jsonl")):
        s3.write(f"s3://{BUCKET}/data/{path.relative_to(data_root).as_posix()}", path.read_bytes())
    fetched: list[str] = []

    def noted(remote: Remote, name: str, *rest: Any, do: Any = Remote.download) -> None:
        fetched.append(name)
        do(remote, name, *rest)

    monkeypatch.setattr(Remote, "download", noted)
    there = config.override({"data.root": f"s3://{BUCKET}/data"}).data
    inside = config.override({"data.root": f"s3://{BUCKET}/data/toy"}).data
    expected = [task.digest() for task in load_benchmark(config.data).tasks]
    for _ in range(2):
        assert [task.digest() for task in load_benchmark(there).tasks] == expected
        assert len(fetched) == 6
    machine(2)
    assert "shape" in forever("data", "check", f"s3://{BUCKET}/data")
    machine(3)
    assert [task.digest() for task in load_benchmark(inside).tasks] == expected
    machine(1)
    fetched.clear()
    text = (data_root / "toy/shape/train.jsonl").read_bytes()
    s3.write(f"s3://{BUCKET}/data/toy/shape/train.jsonl", text + text[:200])
    with pytest.raises(InputError):  # half a line
        load_benchmark(there)
    assert fetched == ["shape/train.jsonl"]
    with pytest.raises(InputError, match=r"data.root"):
        load_benchmark(config.override({"data.root": f"s3://{BUCKET}/nothing"}).data)


# ---- several workers


def rank(number: int, folder: Path, config: RunConfig, address: str) -> None:
    """One of two ranks, each on a machine of its own."""
    import os

    os.environ[SCRATCH] = str(folder / f"rank-{number}")
    torch.set_num_threads(1)
    store.HEARTBEAT_S = 0.3
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    try:
        world = World(number, 2, torch.device("cpu"))
        path = local_folder(address)
        download(path)
        run_local(config, path, resume=True, placement=SAVED, world=world)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_workers_on_two_machines_resume_together(
    s3: Server, config: RunConfig, machine: Become, tmp_path: Path
) -> None:
    """The one that does not lead downloads what the leader has, of a run that left in mid-task."""
    address = f"{OUT}/ranks"

    def leave(point: Point) -> None:
        if (point.phase, point.task) == ("task", 1):
            raise KeyboardInterrupt

    with watched(leave), pytest.raises(KeyboardInterrupt):
        run_local(config, local_folder(address), placement=SAVED)
    context = torch.multiprocessing.get_context("spawn")
    arguments = [(number, tmp_path, config, address) for number in (1, 0)]
    processes = [context.Process(target=rank, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0]
    machine(2)
    download(local_folder(address))
    result = RunDirectory(local_folder(address)).verify()
    assert result is not None
    assert result["world_size"] == 2
    trained = (local_folder(address) / "steps.jsonl").read_bytes()
    execute(config, tmp_path / "whole")
    assert trained.count(b"\n") == (tmp_path / "whole/steps.jsonl").read_bytes().count(b"\n")
