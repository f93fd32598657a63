"""`forever export`: the adapter, its card, the lines that load it, and the merged model."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from commands import Call
from helpers import execute, flip
from safetensors.torch import load_file

from forever.cli.export.licence import data_licence
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.models.backbone import load
from forever.runs.directory import RunDirectory


@pytest.fixture(scope="module")
def run(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "run"
    execute(small_config, folder)
    return folder


def front(card: str) -> dict[str, object]:
    return yaml.safe_load(card.split("---\n")[1])


def snippet(card: str, number: int = 0) -> str:
    return re.findall(r"```python\n(.*?)```", card, re.S)[number]


def ran(code: str, folder: Path) -> str:
    """What a fresh process prints that knows transformers and PEFT and nothing of ours."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


SUM = "import torch\nprint(model(torch.tensor([[3, 4, 5]])).logits.abs().sum().item())\n"


@pytest.mark.slow
def test_an_adapter_is_loaded_by_the_lines_of_its_card(
    run: Path, tmp_path: Path, call: Call
) -> None:
    code, printed, _ = call("export", str(run), "--to", str(tmp_path / "out"), "--merged")
    assert code == 0
    out = tmp_path / "out"
    assert f"wrote {out / 'adapter_model.safetensors'}" in printed
    card = (out / "README.md").read_text("utf-8")
    lines = snippet(card)
    assert len(lines.splitlines()) == 5
    there, merged = ran(lines + SUM, out), ran(snippet(card, 1) + SUM, out)
    base = re.sub(r"^model = .*$", "model = base", lines, flags=re.M)
    assert float(there) == pytest.approx(float(merged), rel=1e-4)
    assert float(there) != pytest.approx(float(ran(base + SUM, out)), rel=1e-4)


def test_weights_that_are_not_what_was_written_are_refused(
    run: Path, tmp_path: Path, call: Call
) -> None:
    """A result of an earlier release says nothing of them."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    weights = copy / "adapter" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for damage, reason in ((Path.unlink, "is missing"), (flip, "is damaged")):
        weights.write_bytes(whole)
        damage(weights)
        code, _, error = call("export", str(copy), "--to", str(tmp_path / "out"))
        assert (code, error.count("\n")) == (2, 1)
        assert f"{weights} {reason}" in error
    assert not (tmp_path / "out").exists()
    content = json.loads((copy / "result.json").read_text("utf-8"))
    assert content.pop("weights").keys() == {
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
    }
    directory = RunDirectory(copy)
    directory.write(directory.result, json.dumps(content))
    assert call("export", str(copy), "--to", str(tmp_path / "out"))[0] == 0


def test_a_card_says_how_it_was_made(
    run: Path, tmp_path: Path, call: Call, benchmark_of_three: Benchmark
) -> None:
    out = tmp_path / "out"
    assert call("export", str(run), "--to", str(out))[0] == 0
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    same = load_file(run / "adapter" / "adapter_model.safetensors")
    for name, tensor in load_file(out / "adapter_model.safetensors").items():
        assert torch.equal(tensor, same[name])
    card = (out / "README.md").read_text("utf-8")
    assert front(card)["library_name"] == "peft"
    assert "license" not in front(card)  # the base does not say
    assert re.search(r"\| OP, the mean of all tasks \| – \| [\d.]+ \[[\d.]+, [\d.]+\] \|", card)
    for task in benchmark_of_three.tasks:
        assert re.search(rf"\| {task.name} \| exact_match \| [\d.]+ \[", card)
        assert re.search(rf"\| {task.name} \| 8 \| 2 \| `[0-9a-f]{{12}}` \|", card)
    assert "method: {name: forever" in card
    assert "- Base model, backbone0: not known here" in card
    assert "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:" in card


def test_a_merged_model_is_a_backbone(run: Path, tmp_path: Path, call: Call) -> None:
    """It can be trained on, as any model."""
    out = tmp_path / "out"
    assert call("export", str(run), "--to", str(out), "--merged")[0] == 0
    assert load(str(out / "merged"), torch.float32, torch.device("cpu")).tokenizer.eos_token


def test_licences_come_from_the_folders(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    from forever.cli.export.licence import base_licence
    from forever.cli.export.snippet import Base

    base = Base(str(tmp_path), tmp_path, on_hub=False)
    assert base_licence(base) == "not known here"
    (tmp_path / "LICENSE").write_text("\n  MIT License\n", "utf-8")
    assert base_licence(base) == "MIT License (LICENSE)"
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Model\n", "utf-8")
    assert base_licence(base) == "apache-2.0"
    assert "huggingface.co/a/b" in base_licence(Base("a/b", None, on_hub=True))
    data = small_config.data.model_copy(update={"root": str(tmp_path)})
    assert data_licence(data) == "apache-2.0"


def test_a_full_model_is_exported_whole(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    config = small_config.override({"model.tuning": "full", "method.name": "finetune"})
    execute(config, tmp_path / "run")
    out = tmp_path / "out"
    assert call("export", str(tmp_path / "run"), "--to", str(out))[0] == 0
    card = (out / "README.md").read_text("utf-8")
    assert front(card)["library_name"] == "transformers"
    assert float(ran(snippet(card) + SUM, out))
    merged = call("export", str(tmp_path / "run"), "--to", str(tmp_path / "more"), "--merged")
    assert merged[0] == 2
    assert "trained the whole model; leave out --merged" in merged[2]


def test_a_joint_run_learned_its_tasks_together(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    execute(small_config.override({"method.name": "mtl"}), tmp_path / "run")
    assert call("export", str(tmp_path / "run"), "--to", str(tmp_path / "out"))[0] == 0
    assert "on 3 tasks, together, with" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_what_cannot_be_exported_is_refused(
    run: Path, small_config: RunConfig, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    code, _, error = call("export", str(run), "--to", ".")
    assert code == 2
    assert "is the working folder" in error
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    code, _, error = call("export", str(run), "--to", str(tmp_path / "there"))
    assert code == 2
    assert "export overwrites nothing" in error
    execute(small_config.override({"method.name": "moelora"}), tmp_path / "moe")
    code, _, error = call("export", str(tmp_path / "moe"), "--to", str(tmp_path / "out"))
    assert code == 2
    assert "weighs several adapters by the prompt" in error
    (tmp_path / "moe" / "result.json").unlink()
    code, _, error = call("export", str(tmp_path / "moe"), "--to", str(tmp_path / "out"))
    assert code == 2
    assert "only a finished run is exported" in error
    assert not (tmp_path / "out").exists()
