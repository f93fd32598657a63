"""Secrets that lie around a run are in nothing that it leaves or says."""

import subprocess
from pathlib import Path

import pytest
import yaml
from commands import Call, said
from marks import MLFLOW_WARNS
from ray_commands import sweep_command
from stored import runs

from forever.config.run import RunConfig
from forever.errors import InputError

pytestmark = MLFLOW_WARNS
SECRETS = {
    "HF_TOKEN": "hf_planted0Token0Of0The0Hub",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED000000000",
    "AWS_SECRET_ACCESS_KEY": "planted/Secret+of0the0cloud",
    "MLFLOW_TRACKING_PASSWORD": "planted-p@ss/word-of-mlflow",
    "SOME_API_KEY": "planted-key-of-something",
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def without_secrets(text: bytes, place: object) -> None:
    for name, value in SECRETS.items():
        assert value.encode() not in text, (name, place)
    assert b"planted" not in text, place


def test_a_run_its_report_and_its_store_have_none(
    run_file: str, tmp_path: Path, uri: str, call: Call
) -> None:
    pytest.importorskip("matplotlib")
    text = said(call, "run", run_file, "--out", str(tmp_path / "out"), "--mlflow", uri)
    (folder,) = (tmp_path / "out").iterdir()
    text += said(call, "sync", str(folder), "--mlflow", uri)
    text += said(call, "report", str(folder))
    without_secrets(text.encode(), "output")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    names = {file.name for file in files}
    assert {"mlflow.db", "environment.json", "report.html", "matrix.csv"} <= names
    for file in files:
        without_secrets(file.read_bytes(), file)
    (run,) = runs(uri)
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_a_sweep_on_ray_has_none(
    private_ray: Path, tmp_path: Path, small_config: RunConfig
) -> None:
    """Neither in its folder, nor in that of Ray's session, which keeps what each worker printed."""
    pytest.importorskip("ray")
    command = sweep_command(tmp_path, None, small_config, {"base": {}}, "--workers", "1")
    command += ["--ray-logs"]
    command[command.index("--mlflow") + 1] = "http://me:planted-p@ss/word@127.0.0.1:9"
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert " pid=" in done.stdout + done.stderr, (done.stdout, done.stderr)  # printed by a worker
    without_secrets((done.stdout + done.stderr).encode(), "output")
    files = [file for file in (*tmp_path.rglob("*"), *private_ray.rglob("*")) if file.is_file()]
    assert {"sweep.json", "raylet.out"} <= {file.name for file in files}
    secrets = [value.encode() for value in (*SECRETS.values(), "planted-p@ss")]
    contents = {file: file.read_bytes() for file in files}
    assert [file for file in files if any(value in contents[file] for value in secrets)] == []


ADDRESSES = [
    "https://me:planted-p@ss/word@host/model",
    "https://planted-token@host/model",
    "https://host/model?token=planted&x=1",
    "s3://bucket/data?X-Amz-Signature=planted",
    "hf_planted0Token0Of0The0Hub",
]


def test_what_only_resembles_one_is_taken(
    small_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "qwen3-model")
    for name in ("models/hf_llama_2_7b_converted", "qwen3-model", "a:b@2", "token=x"):
        assert small_config.override({"model.name": name}).model.name == name


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("key", ["model.name", "data.root", "data.order"])
def test_a_configuration_with_one_is_refused_and_not_shown(
    key: str, address: str, small_config: RunConfig, run_file: str, call: Call
) -> None:
    value = [address] if key == "data.order" else address
    with pytest.raises(InputError, match=f"{key}=.*by an environment variable"):
        small_config.override({key: value})
    text = said(call, "run", run_file, f"{key}={yaml.safe_dump(value).strip()}", code=2)
    without_secrets(text.encode(), "output")
    assert "***" in text
