"""Run docs/notebook.ipynb and write what came out into it: `python -m scripts.notebook`."""

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
_PATIENCE_S = 600


def executed(notebook: Path, folder: Path) -> Any:
    """The notebook with what came out of its cells, which ran in `folder`."""
    content = nbformat.read(notebook, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(content, timeout=_PATIENCE_S, resources=place).execute()
    for cell in content.cells:
        cell.metadata.pop("execution", None)  # when it ran
    return content


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(executed(NOTEBOOK, Path(folder)), NOTEBOOK)
    print(NOTEBOOK)
