"""docs/reference/files.md names the fields that a run writes."""

import re
from pathlib import Path

from helpers import execute, lines

from forever.config.run import RunConfig
from forever.files import read_json

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "files.md"


def test_every_field_that_a_run_writes_is_listed(small_config: RunConfig, tmp_path: Path) -> None:
    execute(small_config, tmp_path / "run")
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    listed = {text.split("\n")[0]: {*re.findall(r"^\| `(\w+)`", text, re.M)} for text in sections}
    assert {*read_json(tmp_path / "run" / "result.json")} == listed["result.json"]
    assert {*lines(tmp_path / "run" / "steps.jsonl")[-1]} == listed["steps.jsonl"] - {"skipped"}
    replay, *_ = lines(tmp_path / "run" / "events.jsonl")
    assert {*replay} == listed["events.jsonl: ReplayEvent"]
