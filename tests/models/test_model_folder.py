"""A model's folder is data: what would run code or does not fit is refused, and the rest loads."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import save_kind, write_gguf
from safetensors.torch import load_file, save_file

from forever.config.run import RunConfig
from forever.data.encoding import Limits
from forever.errors import InputError
from forever.launch.local import prepare
from forever.methods.sentence_encoders import load_encoder
from forever.models import location
from forever.models.backbone import Backbone, load
from forever.models.identity import digests
from forever.models.loading import limits_of, load_empty

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


@pytest.fixture
def folder(backbone_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(backbone_folder, tmp_path / "model")


def loaded(folder: Path | str) -> Backbone:
    return load(str(folder), torch.float32, torch.device("cpu"))


def change(path: Path, **values: Any) -> None:
    """Set fields of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(content | values), encoding="utf-8")


def change_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def shard(folder: Path, **others: str) -> None:
    """Divide the weights into two files, as a large model has them; `others` change the index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors"
             for number, name in enumerate(tensors)}  # fmt: skip
    for file in set(files.values()):
        part = {name: tensor for name, tensor in tensors.items() if files[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    content = {"metadata": {"total_size": 1}, "weight_map": files | others}
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


AUTO_MAP = {"auto_map": {"AutoConfig": "evil.Settings", "AutoTokenizer": ["evil.Words", None]}}
# Each change of a folder, and the file that is refused.
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickle": (lambda f: shard(f, norm="weights.bin"), INDEX),
    "missing": (lambda f: shard(f, norm="x.safetensors"), "x.safetensors"),
    "adapter": (lambda f: change(f / "adapter_config.json", r=1), "adapter_config.json"),
    "adapter alone": (
        lambda f: [(f / "config.json").unlink(), change(f / "adapter_config.json", r=1)],
        "adapter_config.json",
    ),
    "four bits": (
        lambda f: change(f / "config.json", quantization_config={"quant_method": "bitsandbytes"}),
        "config.json",
    ),
    "kernel": (
        lambda f: change(f / "config.json", attn_implementation="owner/kernel"),
        "config.json",
    ),
    "file": (lambda f: change(f / "config.json", transformers_weights="a.bin"), "config.json"),
    "code": (lambda f: change(f / "config.json", text=AUTO_MAP), "config.json"),
    "words": (lambda f: change(f / "tokenizer_config.json", **AUTO_MAP), "tokenizer_config.json"),
    "layers": (lambda f: change(f / "config.json", num_hidden_layers=10**9), "config.json"),
    "no config": (lambda f: (f / "config.json").unlink(), "."),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "."),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_is_refused_before_anything_is_loaded(name: str, folder: Path) -> None:
    edit, file = REFUSED[name]
    location.check(str(folder))
    edit(folder)
    for read in (lambda: location.check(str(folder)), lambda: loaded(folder)):
        with pytest.raises(InputError) as refused:
            read()
        assert (refused.value.key, refused.value.path) == ("model.name", folder / file)


def test_the_code_of_an_encoder_is_refused(
    folder: Path, base_config: RunConfig, tmp_path: Path
) -> None:
    change(folder / "config.json", **AUTO_MAP)
    changes = {"method.name": "ssr", "method.encoder": str(folder)}
    for read in (
        lambda: prepare(base_config.override(changes), tmp_path / "run"),
        lambda: load_encoder(str(folder), torch.device("cpu")),
    ):
        with pytest.raises(InputError) as refused:
            read()
        assert (refused.value.key, refused.value.path) == ("method.encoder", folder / "config.json")


def test_the_code_of_a_hub_model_is_not_run_and_nobody_is_prompted(
    folder: Path, base_config: RunConfig, tmp_path: Path
) -> None:
    """Its settings are known only after the download, and who types yes changes nothing."""
    change(folder / "config.json", model_type="evil", **AUTO_MAP)
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    into_cache(folder, tmp_path / "hub")
    config = base_config.override({"model.name": "some/model"})
    settings = tmp_path / "run.yaml"
    settings.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    command = [sys.executable, "-m", "forever.cli.main", "run", str(settings)]
    command += ["--out", str(tmp_path / "out"), "--mlflow", "off"]
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(command, input="y\n" * 20, env=env, check=False, **options)
    assert not mark.exists()
    assert done.returncode == 2, done.stderr
    assert "auto_map" in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr


# Each change of a folder, and what the error names.
UNFIT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda f: change_weights(f, lambda t: t.pop(NORM)), NORM),
    "shape": (lambda f: change_weights(f, lambda t: t.update({NORM: torch.ones(33)})), r"\(33,\)"),
    "huge": (lambda f: change(f / "config.json", intermediate_size=2**24), r"\d+ numbers"),
    "cut": (lambda f: (f / WEIGHTS).write_bytes(b"x" * 5000), "5000 bytes"),
    "kind": (lambda f: change(f / "config.json", model_type="none"), "none"),
    "new padding": (lambda f: change(f / "tokenizer_config.json", pad_token="[P]"), "token 86"),
    "no end": (lambda f: change(f / "tokenizer_config.json", eos_token=None), "eos_token"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_one_line(
    name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit, message = UNFIT[name]
    edit(folder)
    with pytest.raises(InputError, match=message) as refused:
        loaded(folder)
    assert refused.value.key == "model.name"
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""  # no table beside the line


def replacing(*contents: str) -> dict[str, Any]:
    """A normaliser that replaces full stops by these texts, one after another."""
    steps = [{"type": "Replace", "pattern": {"String": "."}, "content": text} for text in contents]
    return {"type": "Sequence", "normalizers": steps}


def test_a_tokenizer_that_lengthens_texts_without_end_is_refused(folder: Path) -> None:
    change(folder / "tokenizer.json", normalizer=replacing(". .", " \u2581"))
    loaded(folder)
    change(folder / "tokenizer.json", normalizer=replacing(*["." * 10] * 9))
    with pytest.raises(InputError) as refused:
        loaded(folder)
    assert refused.value.path == folder / "tokenizer.json"


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "x" * 5000, __file__, "./nosuch"])
def test_a_name_that_is_no_model(name: str) -> None:
    with pytest.raises(InputError):
        loaded(name)


# A kind of model, its settings, and how many tokens it can tell the positions of.
KINDS: dict[str, tuple[dict[str, Any], int | None]] = {
    "gpt2": ({"n_positions": 40}, 40),
    "opt": ({"max_position_embeddings": 40, "ffn_dim": 64, "word_embed_proj_dim": 32}, 40),
    "gptj": ({"n_positions": 40, "rotary_dim": 4}, 40),
    "bert": ({"max_position_embeddings": 40, "is_decoder": True}, 40),
    "roberta": ({"max_position_embeddings": 40, "is_decoder": True, "pad_token_id": 1}, 38),
    "bloom": ({}, None),
    "llama": ({"max_position_embeddings": 40}, None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_positions_that_a_model_has_learned(
    kind: str, backbone_folder: Path, tmp_path: Path
) -> None:
    """One more token, as the last of them, is out of range."""
    settings, positions = KINDS[kind]
    folder = save_kind(tmp_path / kind, kind, backbone_folder, **settings)
    model = loaded(folder).model
    tokens = model.config.vocab_size
    assert limits_of(model) == limits_of(load_empty(str(folder))) == Limits(tokens, positions)
    model(torch.full((1, positions or 41), tokens - 1))
    if positions:
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, positions + 1), tokens - 1))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_model_that_sees_later_tokens_is_refused(
    kind: str, backbone_folder: Path, tmp_path: Path
) -> None:
    folder = save_kind(tmp_path / kind, kind, backbone_folder, initializer_range=0.5)
    with pytest.raises(InputError, match="is_decoder") as refused:
        loaded(folder)
    assert (refused.value.key, refused.value.path) == ("model.name", folder)
    change(folder / "config.json", is_decoder=True)
    loaded(folder)


# ---- what people publish


def same(one: Backbone, other: Backbone) -> None:
    weights = other.model.state_dict()
    assert one.model.state_dict().keys() == weights.keys()
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def pickles_beside(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


@pytest.mark.parametrize("edit", [shard, pickles_beside])
def test_a_usual_folder_is_loaded(
    edit: Callable[[Path], None], folder: Path, backbone_folder: Path
) -> None:
    edit(folder)
    same(loaded(folder), loaded(backbone_folder))


def into_cache(folder: Path, hub: Path) -> Path:
    """Put a folder into a hub's cache as some/model."""
    cache = hub / "models--some--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    return shutil.copytree(folder, cache / "snapshots" / ("0" * 40))


def test_a_hub_model_in_the_cache_is_loaded_by_name(
    folder: Path, backbone_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shard(folder)
    snapshot = into_cache(folder, tmp_path / "hub")
    assert location.find("some/model") == snapshot
    assert location.find("no/model") is None
    with pytest.raises(InputError) as refused:
        location.fetch("no/model")
    assert refused.value.key == "model.name"
    backbone = loaded("some/model")
    same(backbone, loaded(backbone_folder))
    assert backbone.digests == digests(folder)


def test_a_gguf_file_is_loaded_or_refused(tmp_path: Path) -> None:
    backbone = loaded(write_gguf(tmp_path / "model.gguf"))
    assert backbone.digests.keys() == {"weights"}
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[:300])
    missing = write_gguf(tmp_path / "missing.gguf", without="blk.0.ffn_up")
    for path in (tmp_path / "cut.gguf", missing):
        with pytest.raises(InputError, match=path.name):
            loaded(path)


# ---- a model is known by its files


def test_digests_change_with_the_files_and_not_with_the_place(folder: Path, tmp_path: Path) -> None:
    before = digests(folder)
    assert before.keys() == {"config", "tokenizer", "weights"}
    assert digests(shutil.copytree(folder, tmp_path / "copy")) == before
    change_weights(folder, lambda t: t[NORM].mul_(1.5))
    assert digests(folder) == before | {"weights": digests(folder)["weights"]} != before
    change(folder / "config.json", rms_norm_eps=1e-5)
    (folder / "tokenizer.json").write_text("{}")
    assert not before.items() & digests(folder).items()
