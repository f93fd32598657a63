"""`forever export`: the adapter, its card, the lines that load it, and the merged model."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import Call
from helpers import execute, flip, save_backbone, write_gguf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from forever.cli.export import merge
from forever.config.parts import ModelConfig
from forever.config.run import RunConfig
from forever.data.tasks import Benchmark
from forever.models.adapter import attach, save
from forever.models.backbone import load


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


IDS = torch.tensor([[3, 4, 5, 3]])
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
    with_adapter, merged = ran(lines + SUM, out), ran(snippet(card, 1) + SUM, out)
    base = re.sub(r"^model = .*$", "model = base", lines, flags=re.M)
    assert float(with_adapter) == pytest.approx(float(merged), rel=1e-4)
    assert float(with_adapter) != pytest.approx(float(ran(base + SUM, out)), rel=1e-4)


# An adapter of the toy backbone, whose head is its embedding, and which of the two it changes.
SHARED: dict[str, dict[str, Any]] = {
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "whole head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "whole embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "neither": {"target_modules": ["q_proj"]},
}


def trained_logits(model: str, adapter: dict[str, Any], folder: Path) -> torch.Tensor:
    """Write an adapter as training might have left it; returns the logits with it."""
    made = load(model, torch.float32, torch.device("cpu")).model
    attach(made, ModelConfig(adapter={"r": 2, **adapter}), seed=0)
    stream = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=stream)
    save(made, folder, model)
    return made.eval()(input_ids=IDS).logits.detach()


@pytest.mark.parametrize("name", SHARED)
def test_a_merged_model_whose_head_was_its_embedding_has_the_logits_of_the_run(
    name: str, backbone_folder: Path, tmp_path: Path
) -> None:
    expected = trained_logits(str(backbone_folder), SHARED[name], tmp_path / "adapter")
    merge(tmp_path / "adapter", tmp_path / "merged", str(backbone_folder))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert model.config.tie_word_embeddings == (name == "neither")


def test_a_gguf_file_is_merged_and_trained_whole(tmp_path: Path) -> None:
    """Its weights are dequantised when they are loaded, and saved like any others."""
    file = str(write_gguf(tmp_path / "model.gguf"))
    expected = trained_logits(file, SHARED["head"], tmp_path / "adapter")
    merge(tmp_path / "adapter", tmp_path / "merged", file)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    whole = load(file, torch.float32, torch.device("cpu")).model
    whole.save_pretrained(tmp_path / "whole")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert torch.equal(again(IDS).logits, whole(IDS).logits)


def test_an_export_removes_what_a_killed_one_left(run: Path, tmp_path: Path, call: Call) -> None:
    to = tmp_path / "out"
    code = (
        "import os, signal; from pathlib import Path; from forever.cli import export\n"
        "def kill(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"export._card = kill; export.export_run(Path({str(run)!r}), Path({str(to)!r}))"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert any(tmp_path.glob(".*"))
    assert call("export", str(run), "--to", str(to))[0] == 0
    assert not any(tmp_path.glob(".*"))


def test_weights_that_changed_or_are_missing_are_refused(
    run: Path, tmp_path: Path, call: Call
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    weights = copy / "adapter" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for damage in (Path.unlink, flip):
        weights.write_bytes(whole)
        damage(weights)
        code, _, error = call("export", str(copy), "--to", str(tmp_path / "out"))
        assert (code, error.count("\n")) == (2, 1)
        assert str(weights) in error
    assert not (tmp_path / "out").exists()


def test_a_card_says_how_the_adapter_was_made(
    run: Path, tmp_path: Path, call: Call, benchmark_of_three: Benchmark
) -> None:
    out = tmp_path / "out"
    assert call("export", str(run), "--to", str(out))[0] == 0
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in out.iterdir()} == files
    same = load_file(run / "adapter" / "adapter_model.safetensors")
    for name, tensor in load_file(out / "adapter_model.safetensors").items():
        assert torch.equal(tensor, same[name])
    card = (out / "README.md").read_text("utf-8")
    assert front(card)["library_name"] == "peft"
    assert "base_model" not in front(card)  # a folder is no name on the hub
    op = json.loads((run / "result.json").read_text("utf-8"))["op"]
    assert re.search(rf"\| OP, .* \| – \| {op:.1f} \[[\d.]+, [\d.]+\] \|", card)
    for task in benchmark_of_three.tasks:
        assert re.search(rf"\| {task.name} \| exact_match \| [\d.]+ \[", card)
        assert re.search(rf"\| {task.name} \| 8 \| 2 \| `[0-9a-f]{{12}}` \|", card)
    settings = re.search(r"```yaml\n(.*?)```", card, re.S)
    assert settings
    assert yaml.safe_load(settings[1])["method"]["name"] == "forever"
    assert str(Path.home()) not in settings[1]
    assert "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:" in card


def test_the_licence_of_the_base_is_that_of_its_card(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    model = Path(shutil.copytree(small_config.model.name, tmp_path / "model"))
    text = "---\nlicense: apache-2.0\n---\n# Model\n"
    (model / "README.md").write_text(text, "utf-8")
    execute(small_config.override({"model.name": str(model)}), tmp_path / "run")
    assert call("export", str(tmp_path / "run"), "--to", str(tmp_path / "out"))[0] == 0
    assert "- Base model, model: apache-2.0\n" in (tmp_path / "out" / "README.md").read_text(
        "utf-8"
    )


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
    more = str(tmp_path / "more")
    code, _, error = call("export", str(tmp_path / "run"), "--to", more, "--merged")
    assert code == 2
    assert "--merged" in error


def test_what_cannot_be_exported_is_refused(
    run: Path, small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    execute(small_config.override({"method.name": "moelora"}), tmp_path / "moe")
    unfinished = Path(shutil.copytree(run, tmp_path / "unfinished"))
    (unfinished / "result.json").unlink()
    out = tmp_path / "out"
    for source, to in ((run, tmp_path / "full"), (tmp_path / "moe", out), (unfinished, out)):
        code, _, error = call("export", str(source), "--to", str(to))
        assert (code, error.count("\n")) == (2, 1)
        assert str(to if to != out else source) in error
    assert not out.exists()


# ---- a chat model

TEMPLATE = (
    "{% if strftime_now is defined %}{{ strftime_now('%Y') }} {% endif %}{% for m in messages %}"
    "{{ m.role }} : {{ m.content }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_chat_model_answers_in_transformers_what_the_run_says_that_it_answered(
    own: bool, small_config: RunConfig, benchmark_of_three: Benchmark, tmp_path: Path, call: Call
) -> None:
    """By the lines of its card, through the template of its tokenizer, or one of our own."""
    model = save_backbone(tmp_path / "model", benchmark_of_three)
    (model / "mine.jinja").write_text(TEMPLATE, "utf-8")
    settings = model / "generation_config.json"
    penalised = json.loads(settings.read_text("utf-8")) | {"repetition_penalty": 9.0}
    settings.write_text(json.dumps(penalised), "utf-8")
    if not own:
        (model / "chat_template.jinja").write_text(TEMPLATE.replace("%Y", "%d %Y"), "utf-8")
    talks: list[list[dict[str, str]]] = []
    for task in benchmark_of_three.tasks[:2]:
        for split, rows in (("train", task.train), ("test", task.test)):
            file = tmp_path / "talks" / task.name / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w", encoding="utf-8") as lines:
                for row in rows:
                    asked = [("system", row.instruction), ("user", row.input)]
                    said = [{"role": role, "content": text} for role, text in asked]
                    answer = {"role": "assistant", "content": row.output}
                    lines.write(json.dumps({"messages": [*said, answer]}) + "\n")
                    talks += [said] if split == "test" else []
    order = [task.name for task in benchmark_of_three.tasks[:2]]
    changes = {
        "model.name": str(model),
        "data.benchmark": "talks",
        "data.root": str(tmp_path),
        "data.prompt": str(model / "mine.jinja") if own else "chat",
        "data.supervise": "all",
        "optim.epochs": 6,
    }
    changes |= {"data.order": order, "data.train_rows": None, "data.test_rows": None}
    execute(small_config.override(changes), tmp_path / "run")
    answers: list[str] = []
    for file in sorted((tmp_path / "run" / "predictions" / "2").glob("*.jsonl")):
        answers += [json.loads(line)["prediction"] for line in file.read_text().splitlines()]
    assert len(set(answers)) > 1
    assert call("export", str(tmp_path / "run"), "--to", str(tmp_path / "out"))[0] == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    load, ask = snippet(card), snippet(card, 1)
    head, question = ask[: ask.index("messages =")], ask[ask.index("prompt =") :]
    question = question.replace("print(", "answers.append(").replace("\n", "\n    ")
    code = f"{load}{head}answers = []\nfor messages in {talks!r}:\n    {question}"
    code += "\nimport json\nprint(json.dumps([answer.strip() for answer in answers]))"
    assert json.loads(ran(code, tmp_path / "out")) == answers
