"""Runs, sweeps' readers and data on a local S3 server that fails, by the command line where users
meet it."""

import json
import shutil
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from faults.inject import Point, watched
from helpers import execute, outcome, wait_until
from stores import BUCKET, Become, Server, files_of
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import InputError
from forever.launch.copies import settle
from forever.launch.local import Placement, run_local
from forever.launch.mlflow import sync as mlflow_sync
from forever.runs.directory import RunDirectory
from forever.storage import mirror
from forever.storage.address import SCRATCH, local_folder
from forever.storage.remote import Remote
from forever.world import World

OUT = f"s3://{BUCKET}/runs"
SAVED = Placement(device="cpu", checkpoint_s=0.0, keep_stages=True)


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    return small_config.override({"data.order": ["shape", "colour"]})


@pytest.fixture(scope="module")
def finished(s3: Server, config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run at an address, which another machine made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SCRATCH, str(tmp_path_factory.mktemp("machine-0")))
        patch.setattr(mirror, "EVERY_S", 0.2)
        run_local(config, local_folder(f"{OUT}/{config.key()}"), placement=SAVED)
    return f"{OUT}/{config.key()}"


@pytest.fixture
def file(config: RunConfig, tmp_path: Path) -> str:
    """The run as a user's YAML."""
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    return str(path)


def forever(*words: str) -> str:
    """What a command printed; its errors are raised."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


# ---- faults of the server


@pytest.mark.parametrize("fault", ["down", "503", "slow"])
def test_a_server_that_fails_in_mid_run_costs_nothing(
    s3: Server,
    config: RunConfig,
    machine: Become,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """From the first task on. The run goes on at once, and when the server is back all arrives."""
    monkeypatch.setattr(mirror, "EVERY_S", 0.2)
    address = f"{OUT}/{fault}"
    path, begun, passed = local_folder(address), threading.Event(), list[Point]()

    def begin(point: Point) -> None:
        passed.append(point)
        if not begun.is_set():
            begun.set()
            fail(s3, fault)
        if point.phase == "result":  # all is trained and scored while nobody answered
            if fault != "slow":
                [sender] = [each for each in threading.enumerate() if each.name == "mirror"]
                wait_until(lambda: getattr(sender, "failed", ""))
            mend(s3, fault)

    try:
        with watched(begin):
            run_local(config, path, placement=SAVED)
    finally:
        mend(s3, fault)
    machine(2)
    settle(local_folder(address))
    execute(config, tmp_path / "whole", checkpoint_s=0.0)
    assert outcome(tmp_path / "whole").differences(outcome(local_folder(address))) == []


def fail(s3: Server, fault: str) -> None:
    s3.delay_s = 0.2 if fault == "slow" else 0.0
    s3.fail = 503 if fault == "503" else 0
    if fault == "down":
        s3.down()


def mend(s3: Server, fault: str) -> None:
    s3.delay_s, s3.fail = 0.0, 0
    s3.up()


@pytest.mark.parametrize(
    ("address", "status", "remedy"),
    [
        ("s3://no-such-bucket/runs/run", 0, r"NO_SUCH_BUCKET.*; make that bucket"),
        (f"{OUT}/refused", 403, r"ACCESS_DENIED.*; give credentials .* AWS_SECRET_ACCESS_KEY"),
        ("nowhere://bucket/runs", 0, r"Unrecognized filesystem type in URI"),
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
    key = finished.removeprefix(f"s3://{BUCKET}/") + "/predictions/2/1.jsonl"
    whole = s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=whole.replace(b'"score": ', b'"score": 0.'))
    try:
        with pytest.raises(InputError, match=r"2/1.jsonl is damaged"):
            forever("report", finished)
    finally:
        s3.client.put_object(Bucket=BUCKET, Key=key, Body=whole)
    assert "report" in forever("report", finished)  # it is fetched again


# ---- the command line on another machine


def test_the_verbs_read_from_storage(
    finished: str,
    s3: Server,
    config: RunConfig,
    file: str,
    machine: Become,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is there is not trained again, is planned as done, reported there, and sent on."""
    again = forever("run", file, "--out", OUT, "--mlflow", "off")
    assert f"{finished} is finished; nothing to do" in again
    machine(2)
    planned = forever("plan", file, "--out", OUT)
    assert "done, skipped" in planned
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
    """Each verb fetches it by itself."""
    machine(2)
    settle(local_folder(finished))
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
    assert "adapter_model.safetensors" in files_of(tmp_path / "one")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
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
    settle(there)
    assert outcome(alone).differences(outcome(there)) == []


# ---- data


def test_data_are_fetched_once(
    s3: Server, config: RunConfig, data_root: Path, machine: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks are those of the folder; what changes there is fetched again, and only that."""
    for path in sorted((data_root / "toy").rglob("*.jsonl")):
        key = f"data/{path.relative_to(data_root).as_posix()}"
        s3.client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
    fetched: list[str] = []
    download = Remote.download

    def noted(remote: Remote, name: str, path: Path) -> None:
        fetched.append(name)
        download(remote, name, path)

    monkeypatch.setattr(Remote, "download", noted)
    there = config.override({"data.root": f"s3://{BUCKET}/data"}).data
    inside = config.override({"data.root": f"s3://{BUCKET}/data/toy"}).data
    expected = [task.digest() for task in load_benchmark(config.data).tasks]
    assert [task.digest() for task in load_benchmark(there).tasks] == expected
    assert len(fetched) == 6
    assert [task.digest() for task in load_benchmark(there).tasks] == expected
    assert len(fetched) == 6
    machine(2)
    assert "shape" in forever("data", "check", f"s3://{BUCKET}/data")
    machine(3)
    assert [task.digest() for task in load_benchmark(inside).tasks] == expected
    machine(1)
    fetched.clear()
    text = (data_root / "toy/shape/train.jsonl").read_bytes()
    s3.client.put_object(Bucket=BUCKET, Key="data/toy/shape/train.jsonl", Body=text + text[:200])
    with pytest.raises(InputError):  # half a line
        load_benchmark(there)
    assert fetched == ["shape/train.jsonl"]
    with pytest.raises(InputError, match=r"data.root: there is no folder"):
        load_benchmark(config.override({"data.root": f"s3://{BUCKET}/nothing"}).data)


# ---- several workers


def rank(number: int, folder: Path, config: RunConfig, address: str) -> None:
    """One of two ranks, each on a machine of its own."""
    import os

    os.environ[SCRATCH] = str(folder / f"rank-{number}")
    torch.set_num_threads(1)
    store = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    try:
        world = World(number, 2, torch.device("cpu"))
        path = local_folder(address)
        settle(path)
        run_local(config, path, resume=True, placement=SAVED, world=world)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_workers_on_two_machines_go_on_together(
    s3: Server, config: RunConfig, machine: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that does not lead takes what the leader brought up to date, here from the mirror of
    a run that left in mid-task."""
    monkeypatch.setattr(mirror, "EVERY_S", 0.2)
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
    settle(local_folder(address))
    result = RunDirectory(local_folder(address)).verify()
    assert result is not None
    assert result["world_size"] == 2
    lines = RunDirectory(local_folder(address)).steps.read_text().splitlines()
    execute(config, tmp_path / "whole")
    assert len(lines) == len((tmp_path / "whole/steps.jsonl").read_text().splitlines())
