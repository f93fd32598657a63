"""A model folder may hold anything: it is loaded, or refused in one line, and nothing else runs."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.cases import attempt, cases, changed, damaged
from helpers import make_benchmark, save_backbone
from hypothesis import given
from hypothesis import strategies as st

from forever.models import location
from forever.models.backbone import load
from forever.models.identity import digests

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SETTINGS = ["config.json", "generation_config.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in one shard, as its index says."""
    folder = save_backbone(tmp_path_factory.mktemp("valid"), make_benchmark())
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    places = dict.fromkeys(header_of(folder / "one.safetensors"), "one.safetensors")
    places.pop("__metadata__", None)
    content = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")
    return folder


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def with_header(content: bytes, header: Any) -> bytes:
    """A safetensors file with another header, as long as it says."""
    (length,) = struct.unpack("<Q", content[:8])
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def try_folder(valid: Path, tmp_path: Path, file: str, edit: Callable[[bytes], bytes]) -> None:
    """Check and load a folder one of whose files is another."""
    folder = tmp_path / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in valid.iterdir():
        if path.name != file:
            (folder / path.name).hardlink_to(path)
    (folder / file).write_bytes(edit((valid / file).read_bytes()))
    attempt(lambda: location.check(str(folder)))
    backbone = attempt(lambda: load(str(folder), torch.float32, torch.device("cpu")))
    if backbone is not None:
        assert backbone.digests == digests(folder)
        for tensor in backbone.model.state_dict().values():
            assert tensor.isfinite().all()


@cases
@given(data=st.data(), file=st.sampled_from([*SETTINGS, INDEX]))
def test_changed_settings(valid: Path, tmp_path: Path, data: st.DataObject, file: str) -> None:
    values = data.draw(changed(json.loads((valid / file).read_text(encoding="utf-8"))))
    content = json.dumps(values).encode("utf-8", "surrogatepass")
    try_folder(valid, tmp_path, file, lambda _: content)


@pytest.mark.parametrize("name", ["a" * 100_000, "a" * 300, "\0", "\ud800"], ids=len)
@pytest.mark.parametrize("end", ["", ".safetensors"])
def test_an_index_may_name_what_can_be_no_file(
    valid: Path, tmp_path: Path, name: str, end: str
) -> None:
    content = json.dumps({"weight_map": {"lm_head.weight": f"{name}{end}"}})
    try_folder(valid, tmp_path, INDEX, lambda _: content.encode())


@cases
@given(data=st.data(), file=st.sampled_from([*SETTINGS, INDEX, "tokenizer.json"]))
def test_damaged_files(valid: Path, tmp_path: Path, data: st.DataObject, file: str) -> None:
    content = data.draw(damaged((valid / file).read_bytes()))
    try_folder(valid, tmp_path, file, lambda _: content)


@cases
@given(data=st.data())
def test_changed_headers(valid: Path, tmp_path: Path, data: st.DataObject) -> None:
    header = data.draw(changed(header_of(valid / "one.safetensors")))
    try_folder(valid, tmp_path, "one.safetensors", lambda content: with_header(content, header))


@cases
@given(data=st.data())
def test_damaged_weights(valid: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = data.draw(damaged((valid / "one.safetensors").read_bytes()))
    try_folder(valid, tmp_path, "one.safetensors", lambda _: content)
