"""Python code that comes with a model is never run, and nobody is asked whether it should be."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.checks import refused
from forever.launch.local import prepare
from forever.methods.ssr.encoders import load_encoder
from forever.models.backbone import load
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


@pytest.mark.parametrize("method", ["finetune", "ssr"])
def test_a_folder_with_code_is_refused(
    evil: Path, method: str, base_config: RunConfig, tmp_path: Path
) -> None:
    """As a model, or as an encoder, by a run, a sweep and the loader."""
    key = "method.encoder" if method == "ssr" else "model.name"
    config = base_config.override({"method.name": method, key: str(evil)})
    readers = [
        lambda: prepare(config, tmp_path / "run"),
        lambda: refused([Trial("k", "v", "o", 0, config)]),
        lambda: load(str(evil), torch.float32, torch.device("cpu")),
    ]
    if method == "ssr":
        readers[2] = lambda: load_encoder(str(evil), torch.device("cpu"))
    for read in readers:
        with pytest.raises(InputError, match=rf"{re.escape(key)}: .*config\.json .*auto_map"):
            read()
    assert not (tmp_path / "ran").exists()


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
    assert "auto_map" in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
