"""Addresses: the scratch folder of one says it, and none holds a password."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forever.errors import InputError
from forever.storage.address import SCRATCH, address_of, is_address, local_folder, portable


@pytest.mark.parametrize("text", ["runs", "/shared/runs", "./s3:", "a b/c", "~x"])
def test_a_folder_of_this_machine_is_itself(text: str) -> None:
    assert local_folder(text) == Path(text)
    assert address_of(Path(text)) is None
    assert not is_address(text)


def test_a_file_address_is_a_folder_of_this_machine() -> None:
    assert local_folder("file:///shared/my%20runs") == Path("/shared/my runs")
    assert portable(Path("/shared/my runs")) == "/shared/my runs"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket",
        "s3://bucket/runs/my sweep",
        "s3://bucket/runs/try #2",
        "gs://anonymous@bucket/runs",
        "s3://bucket/runs?endpoint_override=127.0.0.1:9000&scheme=http&region=eu-1",
        "hdfs://host:9000/user/me",
        "abfs://container@account.dfs.core.windows.net/runs",
    ],
)
def test_a_scratch_folder_says_its_address(
    text: str, machine: Callable[[int], None], tmp_path: Path
) -> None:
    here = local_folder(text)
    assert here.is_relative_to(tmp_path / "machine-1")
    assert str(address_of(here)) == text
    machine(2)
    assert address_of(here) is None
    there = local_folder(text)
    assert there.is_relative_to(tmp_path / "machine-2")
    assert portable(there) == text


def test_folders_below_an_address_are_below_its_scratch(machine: Callable[[int], None]) -> None:
    assert local_folder("s3://bucket/runs/") / "run" == local_folder("S3://bucket/runs/run")


@pytest.mark.parametrize(
    "text",
    [
        "s3://me:geheim@bucket/runs",
        "s3://me@bucket/runs",
        "s3://me:geheim#1@bucket/runs",
        "gs://me:geheim@bucket",
        "s3://bucket/runs?secret_key=geheim",
    ],
)
def test_a_password_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InputError, match="AWS_SECRET_ACCESS_KEY") as refused:
        local_folder(text)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("text", ["s3://", "s3:///runs", "s3://bucket/../other", "s3://b//c"])
def test_an_address_leads_nowhere_else(text: str) -> None:
    with pytest.raises(InputError, match="names no bucket, or leads out of it"):
        local_folder(text)


def test_without_a_choice_scratch_is_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(SCRATCH, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert local_folder("s3://bucket/runs") == tmp_path / "forever/storage/s3/bucket/runs"
