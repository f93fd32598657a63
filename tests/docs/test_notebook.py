"""docs/notebook.ipynb runs, and shows what came out."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed: extra docs")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: extra docs")

from scripts.notebook import NOTEBOOK, executed

WRITTEN = json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def plain(output: Any) -> str:
    return "".join(output.get("data", {}).get("text/plain", ""))


def test_it_is_small_and_shows_outputs_without_places_of_a_machine() -> None:
    assert NOTEBOOK.stat().st_size < 100_000
    assert all(cell["outputs"] for cell in code(WRITTEN)[1:])
    text = NOTEBOOK.read_text(encoding="utf-8")
    for place in (str(Path.home()), "/tmp/", "site-packages", str(NOTEBOOK.parents[1])):
        assert place not in text


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("private_ray")
def test_it_runs_and_prints_nothing_but_a_line_of_progress(tmp_path: Path) -> None:
    done = executed(NOTEBOOK, tmp_path)  # an error in a cell raises
    outputs = [cell["outputs"] for cell in code(done)]
    assert [o for cell in outputs for o in cell if o["output_type"] == "stream"] == []
    line, result = outputs[1]
    assert plain(line).startswith("after 3/3 topic")
    assert plain(result).startswith("<run forever")
    line, result = outputs[4]
    assert plain(line) == "6 done"
    assert plain(result) == "<sweep days: 6 of 6 runs finished, runs/days>"
    assert [len(cell) for cell in outputs] == [len(cell["outputs"]) for cell in code(WRITTEN)]
    assert (tmp_path / "runs" / "days" / "sweep.json").is_file()
