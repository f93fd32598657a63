"""A model folder of a stranger is refused by name; what people publish is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forever.errors import InputError
from forever.models import location
from forever.models.backbone import Backbone, load
from forever.models.identity import digests

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


def shard(folder: Path, names: dict[str, str] | None = None) -> None:
    """Share the weights out to two files, as a large model has them."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors"
              for number, name in enumerate(tensors)}  # fmt: skip
    for file in set(places.values()):
        part = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    content = {"metadata": {"total_size": 1}, "weight_map": places | (names or {})}
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def link_out(folder: Path, file: str) -> None:
    """Put a file outside of the folder, and a link in its place."""
    outside = folder.parent / f"outside-{file}"
    shutil.move(folder / file, outside)
    (folder / file).symlink_to(outside)


def pickle_behind_an_index(folder: Path) -> None:
    shard(folder, {NORM: "weights.bin"})
    (folder / "weights.bin").write_bytes(b"\x80\x04.")


def index_out_of_the_folder(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / WEIGHTS)
    shard(folder, {NORM: f"../{WEIGHTS}"})


def adapter_beside(folder: Path) -> None:
    change(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path="x/y")


def loop(folder: Path) -> None:
    (folder / "more").symlink_to(folder / "more")


def kernel(folder: Path) -> None:
    change(folder / "config.json", attn_implementation="owner/kernel")


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickle": (pickle_behind_an_index, r"names 'weights.bin'; .* no pickle is read"),
    "index": (index_out_of_the_folder, r"names '\.\./model\.safetensors'"),
    "no map": (lambda f: (shard(f), change(f / INDEX, weight_map=[])), "has no weight_map"),
    "no name": (lambda f: shard(f, {NORM: 7}), "names 7"),  # type: ignore[dict-item]
    "shard": (lambda f: shard(f, {NORM: "x.safetensors"}), r"'x\.safetensors', .* missing"),
    "in no shard": (
        lambda f: shard(f, {"more": "model-00001-of-00002.safetensors"}),
        "names 'more', which no file has",
    ),
    "link": (lambda f: link_out(f, WEIGHTS), "model.safetensors leads out of the folder"),
    "linked words": (lambda f: link_out(f, "tokenizer.json"), "tokenizer.json leads out"),
    "broken link": (lambda f: (f / "x.json").symlink_to("nothing"), "x.json is a broken link"),
    "loop": (loop, "more is a broken link"),
    "adapter": (adapter_beside, "adapter_config.json would put an adapter on the model"),
    "kernel": (kernel, "asks by attn_implementation for a kernel"),
    "file": (
        lambda f: change(f / "config.json", transformers_weights="adapter_model.bin"),
        "names a file by transformers_weights",
    ),
    "parts": (
        lambda f: shutil.copy(f / WEIGHTS, f / "shard-00001-model-00001-of-00001.safetensors"),
        "part of a distributed checkpoint",
    ),
    "deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "cannot be read as JSON"),
    "number": (
        lambda f: (f / "config.json").write_text(f'{{"x": {"9" * 5000}}}'),
        "cannot be read as JSON",
    ),
    "bytes": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "cannot be read as JSON"),
    "list": (lambda f: (f / "config.json").write_text("[]"), "holds list, not named fields"),
    "cut": (lambda f: cut(f / WEIGHTS, 5000), "model.safetensors is damaged"),
    "empty": (lambda f: cut(f / WEIGHTS, 0), "model.safetensors is damaged"),
    "garbage": (lambda f: (f / WEIGHTS).write_bytes(b"x" * 999), "model.safetensors is damaged"),
    "layers": (
        lambda f: change(f / "config.json", num_hidden_layers=10**9, layer_types=None),
        "has num_hidden_layers=1000000000, and there are 24 weights",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_before_anything_is_loaded(name: str, folder: Path) -> None:
    edit, message = HOSTILE[name]
    location.check(str(folder))
    edit(folder)
    with pytest.raises(InputError, match=rf"^model\.name: .*{message}"):
        location.check(str(folder))  # what loads neither torch nor transformers
    with pytest.raises(InputError, match=message):
        loaded(folder)


def grow(folder: Path) -> None:
    """Ask for more memory than any machine has."""
    change(folder / "config.json", hidden_size=2**20, intermediate_size=2**24)


UNFIT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (
        lambda f: change_weights(f, lambda t: t.pop(NORM)),
        r"by its config.json, .* has \d+ numbers, and its files hold \d+",
    ),
    "renamed": (
        lambda f: change_weights(f, lambda t: t.update(other=t.pop(NORM))),
        "lacks 1 weights, the first is 'model.norm.weight'",
    ),
    "surplus": (
        lambda f: change_weights(f, lambda t: t.update(more=torch.ones(3))),
        "has 1 weights that its architecture does not use, the first is 'more'",
    ),
    "shape": (
        lambda f: change_weights(f, lambda t: t.update({NORM: torch.ones(33)})),
        r"has 'model.norm.weight' of shape \(33,\) instead of \(32,\)",
    ),
    "nan": (
        lambda f: change_weights(f, lambda t: t[NORM].mul_(torch.nan)),
        "has NaN or Inf in 'model.norm.weight'",
    ),
    "inf": (
        lambda f: change_weights(f, lambda t: t[NORM].mul_(torch.inf)),
        "has NaN or Inf in 'model.norm.weight'",
    ),
    "huge": (grow, "and its files hold"),
    # The weights of a quantised model are packed, but not without end.
    "huge and packed": (
        lambda f: (grow(f), change(f / "config.json", quantization_config={"quant_method": "no"})),
        "and its files hold",
    ),
    "kind": (lambda f: change(f / "config.json", model_type="none"), "could not be loaded"),
    "nonsense": (lambda f: change(f / "config.json", hidden_size="wide"), "could not be loaded"),
    "words": (lambda f: cut(f / "tokenizer.json", 99), "could not be loaded"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_weights_that_do_not_fit_are_refused(
    name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit, message = UNFIT[name]
    edit(folder)
    with pytest.raises(InputError, match=rf"^model\.name: .*{message}"):
        loaded(folder)
    assert capfd.readouterr().err == ""  # no table beside the line


def write_gguf(path: Path, without: str = "") -> Path:
    """A Llama of one layer with drawn weights as a GGUF file, whose head is its embedding."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", b"a", b"b", b"ab"])
    writer.add_token_types([3, 3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    sizes = {"token_embd": (6, 16), "output_norm": (16,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        sizes[f"blk.0.{name}"] = 16, 16
    sizes |= {"blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,), "blk.0.ffn_down": (16, 24)}
    sizes |= {"blk.0.ffn_gate": (24, 16), "blk.0.ffn_up": (24, 16)}
    stream = np.random.default_rng(0)
    for name, size in sizes.items():
        if name != without:
            writer.add_tensor(f"{name}.weight", stream.normal(0, 0.2, size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_held_to_the_same(tmp_path: Path) -> None:
    backbone = loaded(write_gguf(tmp_path / "model.gguf"))
    assert backbone.digests.keys() == {"weights"}
    missing = write_gguf(tmp_path / "missing.gguf", without="blk.0.ffn_up")
    with pytest.raises(InputError, match=r"missing\.gguf lacks 1 weights, .*up_proj"):
        loaded(missing)
    for size in (0, 4, 300, 3000):
        shutil.copy(tmp_path / "model.gguf", tmp_path / "cut.gguf")
        cut(tmp_path / "cut.gguf", size)
        with pytest.raises(InputError, match=r"'.*cut\.gguf' could not be loaded: "):
            loaded(tmp_path / "cut.gguf")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="would put an adapter on the model"):
        location.check(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "a\0b", "x" * 5000, __file__])
def test_a_name_that_is_no_model(name: str) -> None:
    with pytest.raises(InputError):
        loaded(name)


# ---- what people publish


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pad_token": "[PAD]"}, r"pads or ends with token 86, and its model has 86"),
        (
            {"unk_token": "", "pad_token": ""},
            "has the unknown token '', which its vocabulary lacks",
        ),
        ({"eos_token": None}, "has a tokenizer without eos_token"),
    ],
    ids=["new padding", "unknown unknown", "no end"],
)
def test_tokens_that_a_model_lacks(
    settings: dict[str, str | None], message: str, folder: Path
) -> None:
    """It would end with an index out of range in mid-training, or in recursion without end."""
    change(folder / "tokenizer_config.json", **settings)
    with pytest.raises(InputError, match=message):
        loaded(folder)


def same(one: Backbone, other: Backbone) -> None:
    weights = other.model.state_dict()
    assert one.model.state_dict().keys() == weights.keys()
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


@pytest.mark.parametrize("kind", ["tied twice", "sharded", "buffers", "pickles beside", "more"])
def test_a_usual_folder_is_loaded(kind: str, folder: Path, backbone_folder: Path) -> None:
    if kind == "tied twice":
        embedding = "model.embed_tokens.weight"
        change_weights(folder, lambda t: t.update({"lm_head.weight": t[embedding].clone()}))
    elif kind == "sharded":
        shard(folder)
    elif kind == "buffers":  # of old checkpoints
        buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
        change_weights(folder, lambda t: t.update({buffer: torch.ones(4)}))
    elif kind == "pickles beside":
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
        (folder / "original").mkdir()
        (folder / "original" / "consolidated.pth").write_bytes(b"\x80\x04.")
    else:
        shutil.copy(folder / WEIGHTS, folder / "consolidated.safetensors")
        (folder / "link.json").symlink_to("config.json")
    location.check(str(folder))
    same(loaded(folder), loaded(backbone_folder))


def cache_of_the_hub(folder: Path, name: str, hub: Path) -> Path:
    """What the hub's client makes of a model: links to blobs, whose names are digests."""
    cache = hub / f"models--{name.replace('/', '--')}"
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, cache / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return snapshot


def test_a_hub_model_of_the_cache_is_loaded_by_name_and_by_path(
    folder: Path, backbone_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shard(folder)
    snapshot = cache_of_the_hub(folder, "some/model", tmp_path / "hub")
    assert location.find("some/model") == snapshot
    assert location.find("no/model") is None
    expected = loaded(backbone_folder)
    for name in ("some/model", str(snapshot)):
        backbone = loaded(name)
        same(backbone, expected)
        assert backbone.digests == digests(folder)

    (snapshot / WEIGHTS.replace("model", "x")).symlink_to(backbone_folder / WEIGHTS)
    for name in ("some/model", str(snapshot)):
        with pytest.raises(InputError, match="leads out of the folder"):
            loaded(name)
    with pytest.raises(InputError, match="'no/model' is no local folder and could not be fetched"):
        loaded("no/model")


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


def test_a_file_is_read_once_as_long_as_it_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(folder)
    read: list[Path] = []
    monkeypatch.setattr(Path, "open", lambda path, *_: read.append(path))
    assert digests(folder) == before
    assert read == []
