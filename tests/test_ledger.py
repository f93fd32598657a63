"""RESULTS.md is what the committed result files say."""

import json
from pathlib import Path
from typing import Any

from experiments.ledger import LEDGER, page, section


def test_page_is_what_the_files_say() -> None:
    assert LEDGER.read_text(encoding="utf-8") == page(), "run python -m experiments.ledger"


def keep(folder: Path, **changes: Any) -> None:
    """A committed run."""
    result = {
        "seed": 0, "op": 50.0, "bwt": -10.0, "forgetting": 10.0, "events": {"a": {}, "b": {"replay": 2}},
        "updates": {"task": 20, "replay": 5}, "seconds": {"task": 60.0, "evaluation": 30.0},
    }  # fmt: skip
    where = {"argv": ["forever", "run", "x y"], "revision": "abc", "gpus": [], "cpu": "chip", "cores": 2}
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result | changes), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(where), encoding="utf-8")


def test_a_row_is_a_mean_with_the_smallest_and_the_largest(tmp_path: Path) -> None:
    keep(tmp_path / "alone", bwt=None)
    for seed, op in enumerate((50.0, 61.0, 54.0)):
        keep(tmp_path / "thrice" / f"s{seed}", seed=seed, op=op)
    lines = section(tmp_path).splitlines()
    assert "| alone | 0 | 50.0 | - | 10.0 | 2 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    mean = "55.0 [50.0, 61.0] | -10.0 [-10.0, -10.0] | 10.0 [10.0, 10.0]"
    assert f"| thrice | 0, 1, 2 | {mean} | 2 | 25 | 5 | 1.5 | abc | chip, 2 cores |" in lines
    assert lines.count("forever run 'x y'") == 1
