"""Secrets that lie around a run are in nothing that it leaves or says."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from marks import MLFLOW_WARNS
from stored import runs

from forever.cli.main import main
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

Call = Callable[..., str]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Do `forever ARGUMENTS` in this process with the secrets in its environment; what it said."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)

    def forever(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["forever", *arguments])
        ended = 0
        try:
            main()
        except SystemExit as stop:
            ended = int(stop.code or 0)
        printed = capsys.readouterr()
        assert ended == code, printed
        return printed.out + printed.err

    return forever


def without_secrets(text: bytes, place: object) -> None:
    for name, value in SECRETS.items():
        assert value.encode() not in text, (name, place)
    assert b"planted" not in text, place


def test_a_run_its_report_and_its_store_have_none(
    small_config: RunConfig, tmp_path: Path, uri: str, call: Call
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(small_config.model_dump(mode="json")), encoding="utf-8")
    said = call("run", str(path), "--out", str(tmp_path / "out"), "--mlflow", uri)
    (folder,) = (tmp_path / "out").iterdir()
    said += call("sync", str(folder), "--mlflow", uri)
    said += call("report", str(folder))
    without_secrets(said.encode(), "output")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    names = {file.name for file in files}
    assert {"mlflow.db", "environment.json", "report.html", "matrix.csv"} <= names
    for file in files:
        without_secrets(file.read_bytes(), file)
    (run,) = runs(uri)
    assert run.info.status == "FINISHED"


ADDRESSES = [
    "https://me:planted-p@ss/word@host/model",
    "https://planted-token@host/model",
    "https://host/model?token=planted&x=1",
    "s3://bucket/data?X-Amz-Signature=planted",
    "hf_planted0Token0Of0The0Hub",
]


def test_what_only_looks_like_one_is_taken(
    small_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "qwen3-model")
    for name in ("models/hf_llama_2_7b_converted", "qwen3-model", "a:b@2", "token=x"):
        assert small_config.override({"model.name": name}).model.name == name


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("key", ["model.name", "data.root", "data.order"])
def test_a_configuration_with_one_is_refused_and_not_shown(
    key: str, address: str, small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    value = [address] if key == "data.order" else address
    with pytest.raises(InputError, match=f"{key}=.*by an environment variable"):
        small_config.override({key: value})
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(small_config.model_dump(mode="json")), encoding="utf-8")
    said = call("run", str(path), f"{key}={yaml.safe_dump(value).strip()}", code=2)
    without_secrets(said.encode(), "output")
    assert "***" in said
