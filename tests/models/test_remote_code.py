"""Python code that comes with a model is never run, and nobody is asked whether it should be."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.local import check
from forever.methods.ssr.encoders import load_encoder
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import refused
from forever.sweeps.sweep import Trial

AUTO_MAP = {
    "config.json": {"AutoConfig": "evil.Settings", "AutoModelForCausalLM": "evil.Model"},
    "tokenizer_config.json": {"AutoTokenizer": ["evil.Words", None]},
}
EVIL = """
from pathlib import Path
Path({mark!r}).touch()
raise ValueError("it ran")
"""


def plant_code(folder: Path, mark: Path, file: str) -> Path:
    """Make `folder` ask, in one of its JSON files, for code that touches the file `mark`."""
    path = folder / file
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["auto_map"] = AUTO_MAP[file]
    if file == "config.json":
        settings["model_type"] = "evil"  # otherwise transformers would take its own class
    else:
        settings["tokenizer_class"] = "Words"
    path.write_text(json.dumps(settings), encoding="utf-8")
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)), encoding="utf-8")
    return folder


@pytest.fixture(params=AUTO_MAP)
def evil(request: pytest.FixtureRequest, backbone_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(backbone_folder, tmp_path / "evil")
    return plant_code(tmp_path / "evil", tmp_path / "ran", request.param)


CODE = "asks by auto_map for Python code"


def test_a_folder_with_code_is_refused(evil: Path, base_config: RunConfig, tmp_path: Path) -> None:
    config = base_config.override({"model.name": str(evil)})
    with pytest.raises(InputError, match=rf"model\.name: .*config\.json {CODE}"):
        check(config, RunDirectory(tmp_path / "run"), resume=False)
    assert not (tmp_path / "ran").exists()


def test_an_encoder_with_code_is_refused(
    evil: Path, base_config: RunConfig, tmp_path: Path
) -> None:
    config = base_config.override({"method.name": "ssr", "method.encoder": str(evil)})
    for refuse in (
        lambda: check(config, RunDirectory(tmp_path / "run"), resume=False),
        lambda: refused([Trial("k", "v", "o", 0, config)]),
        lambda: load_encoder(str(evil), torch.device("cpu")),
    ):
        with pytest.raises(InputError, match=rf"method\.encoder: .* {CODE}"):
            refuse()
    assert not (tmp_path / "ran").exists()


def test_a_folder_whose_settings_are_no_json_is_refused(
    backbone_folder: Path, base_config: RunConfig, tmp_path: Path
) -> None:
    broken = shutil.copytree(backbone_folder, tmp_path / "broken")
    (broken / "tokenizer_config.json").write_text("[" * 100_000, encoding="utf-8")
    config = base_config.override({"model.name": str(broken)})
    with pytest.raises(InputError, match=r"tokenizer_config\.json cannot be read as JSON"):
        check(config, RunDirectory(tmp_path / "run"), resume=False)


@pytest.mark.parametrize("evil", ["config.json"], indirect=True)
def test_a_hub_model_with_code_is_refused_without_a_question(
    evil: Path, base_config: RunConfig, tmp_path: Path
) -> None:
    """Its settings are known only after the download. Who would answer yes is not even asked."""
    snapshot = tmp_path / "hub" / "models--somebody--evil" / "snapshots" / ("0" * 40)
    shutil.copytree(evil, snapshot)
    refs = tmp_path / "hub" / "models--somebody--evil" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40, encoding="utf-8")
    config = base_config.override({"model.name": "somebody/evil"})
    settings = tmp_path / "run.yaml"
    settings.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    command = [sys.executable, "-m", "forever.cli.main", "run", str(settings)]
    command += ["--out", str(tmp_path / "out"), "--mlflow", "off"]
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    env["HF_MODULES_CACHE"] = str(tmp_path / "modules")
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, input="y\n" * 20, env=env, check=False, **options)
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 2, done.stderr
    assert "config.json asks by auto_map for Python code that comes with it" in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
