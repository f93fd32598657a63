"""docs/reference/ says what the code says, and its fields are those that runs write."""

from pathlib import Path
from typing import Any

import pytest
from helpers import execute, lines

from forever.config.overrides import dotted_keys
from forever.config.parts import RunParts
from forever.config.run import RunConfig
from forever.files import read_json
from scripts.fields import RESULT, STEP
from scripts.reference import FOLDER, commented, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_what_the_code_writes(name: str) -> None:
    written = FOLDER.joinpath(name).read_text(encoding="utf-8")
    assert written == PAGES[name], "run python -m scripts.reference"


def test_no_page_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_left_without_a_word(name: str) -> None:
    rows = [line for line in PAGES[name].splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_shared_key_is_there() -> None:
    for key in dotted_keys(RunParts):
        name = key.replace("data.datasets.", "data.datasets.TASK.")
        assert f"| `{name}` |" in PAGES["configuration.md"]


@pytest.fixture(scope="module")
def folder(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    execute(small_config, path)
    return path


def test_fields_are_those_that_a_run_writes(folder: Path) -> None:
    assert {*read_json(folder / "result.json")} == {*RESULT}
    assert {*lines(folder / "steps.jsonl")[-1]} == {*STEP} - {"skipped"}


def test_fields_of_events_have_the_words_beside_them(folder: Path) -> None:
    from forever.training.events import LossEvent, ReplayEvent

    assert [*commented(ReplayEvent)] == [*lines(folder / "events.jsonl")[0]]
    told: dict[str, Any] = commented(LossEvent)
    assert told["kind"] == "`look`"
    assert told["losses"].startswith("cross-entropy")
