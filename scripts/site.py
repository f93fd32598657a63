"""A hook of mkdocs (mkdocs.yml) for pages that GitHub shows as well: links that lead out of docs/
become text with the path, the notebook becomes a page, and Typer lists the options of all verbs."""

import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
OPTIONS = "reference/commands.md"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the notebook as a page."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    content = "\n\n".join(_cells(notebook["cells"]))
    files.append(File.generated(config, "notebook.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files outside docs/ into text, and list the verbs on their page."""
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def turned(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if target == "notebook.ipynb":
            return f"[{text}](notebook.md)"
        path = posixpath.normpath(posixpath.join(here, target.partition("#")[0]))
        if ":" in target or target.startswith("#") or path.startswith("docs/"):
            return link[0]
        return text if text.strip("`") in path else f"{text} (`{path}`)"

    markdown = _LINK.sub(turned, markdown)
    if page.file.src_uri == OPTIONS:
        command = [sys.executable, "-m", "typer", "forever.cli.main", "utils", "docs"]
        command += ["--name", "forever", "--title", ""]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        verbs = done.stdout.partition("\n## ")
        # Each example of a verb has a line.
        listed = re.sub(r"\n  (forever .*)", r"<br><code>\1</code>", "".join(verbs[1:]))
        markdown += listed
    return markdown


def _cells(cells: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the texts, the code, and below each cell what it shows: a picture, a table or text."""
    for cell in cells:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"````python\n{source}\n````"
        for output in cell.get("outputs", ()):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                picture = "".join(shown["image/png"]).replace("\n", "")
                yield f'<img alt="figure" src="data:image/png;base64,{picture}">'
            elif "text/html" in shown:
                yield f'<div class="output" markdown="0">{"".join(shown["text/html"])}</div>'
            else:
                yield f'<pre class="output">{escape("".join(shown["text/plain"]))}</pre>'
