"""The figures of docs/explanation.md are drawn from two runs, in light and in dark."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import execute

import forever
from forever.config.run import RunConfig
from scripts.pictures import FOLDER, pictures

PAGE = (FOLDER.parent / "explanation.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def drawn(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pictures")
    runs: list[forever.RunResult] = []
    for method in ("forever", "finetune"):
        execute(small_config.override({"method.name": method}), folder / method)
        result = forever.load(folder / method)
        assert isinstance(result, forever.RunResult)
        runs.append(result)
    return dict(pictures(runs[0], runs[1]))


def test_the_page_shows_them_all_in_both_themes(drawn: dict[str, str]) -> None:
    shown = re.findall(r"!\[(.+)\]\(pictures/(.+\.svg)#gh-(light|dark)-mode-only\)", PAGE)
    assert {name for _, name, _ in shown} == {*drawn} == {path.name for path in FOLDER.iterdir()}
    for words, name, theme in shown:
        assert name.endswith("-dark.svg") == (theme == "dark")
        assert len(words) > 40  # for who does not see it


def test_they_stand_alone_and_are_clear(drawn: dict[str, str]) -> None:
    for name, content in drawn.items():
        tree = ElementTree.fromstring(content)
        assert "script" not in {part.tag.rpartition("}")[2] for part in tree.iter()}
        used = [part.get("{http://www.w3.org/1999/xlink}href", "#") for part in tree.iter()]
        assert all(address.startswith("#") for address in used), name
        assert "fill: #ffffff" not in content  # the page's own ground is seen


def test_equal_runs_make_equal_files(drawn: dict[str, str]) -> None:
    assert "<dc:date>" not in drawn["clock.svg"]
    assert drawn["clock.svg"] != drawn["clock-dark.svg"]
    assert Path(FOLDER / "clock.svg").stat().st_size < 100_000
