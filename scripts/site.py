"""What mkdocs needs to make a site of docs/ (mkdocs.yml names this file as its hook).

The pages are plain Markdown that GitHub shows as well. Here they get a navigation; links that lead
out of docs/ lead to a copy of that file, or become text; the notebook becomes a page; a flowchart
becomes a picture.
"""

import json
import logging
import posixpath
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from scripts.diagram import svg

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = "source"  # where copies of files from outside docs/ lie in the site
NOTEBOOK = "notebook"
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_SCHEME = re.compile(r"[a-z]+:")

# The parts of the site with their pages, in order. A page that is named nowhere is a how-to.
_HOW_TO = "How to"
_NAV = {
    "Start": ["index", "tutorial", NOTEBOOK, "explanation"],
    _HOW_TO: ["storage", "cluster", "mlflow"],
    "Verbs": ["verbs/run", "verbs/sweep", "verbs/plan", "verbs/report", "verbs/"],
    "Reference": ["reference/", "methods"],
    "Findings": ["findings", "benchmark", "performance"],
    "Inside": ["reading-order", "protocol", "faults", "CONTRIBUTING", "CHANGELOG"],
}
_OUTSIDE = {name: f"{SOURCES}/{name}.md" for name in ("CONTRIBUTING", "CHANGELOG")}

log = logging.getLogger("mkdocs.hooks.site")  # a warning fails a strict build


def on_config(config: Any) -> Any:
    """Set the navigation, and name headings as GitHub does."""
    config.nav = navigation([page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")])
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the notebook as a page, and the files outside docs/ that pages lead to."""
    notebook = DOCS / f"{NOTEBOOK}.ipynb"
    if notebook.is_file():
        text = notebook_page(json.loads(notebook.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"{NOTEBOOK}.md", content=text))
    wanted = {f"{name}.md" for name in _OUTSIDE}
    for page in DOCS.rglob("*.md"):
        place = page.relative_to(ROOT).as_posix()
        wanted.update(_targets(page.read_text(encoding="utf-8"), place))
    for name in sorted(wanted):
        if _has_copy(name):
            content = source_page(name, (ROOT / name).read_text(encoding="utf-8"))
            files.append(File.generated(config, _copy(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Draw flowcharts, and turn links that lead out of docs/ to where their target is."""
    place = page.file.src_uri
    if place.startswith(f"{SOURCES}/"):
        place = place.removeprefix(f"{SOURCES}/")
        if not (ROOT / place).is_file():  # a copy of code
            return markdown
    else:
        place = f"docs/{place}"

    def turned(link: re.Match[str]) -> str:
        return _turned(link, place, page.file.src_uri, files)

    def drawn(block: re.Match[str]) -> str:
        try:
            return svg(block[1])
        except ValueError as error:
            log.warning("%s has a diagram that is not drawn: %s", page.file.src_uri, error)
            return block[0]

    return _LINK.sub(turned, _MERMAID.sub(drawn, markdown))


def _turned(link: re.Match[str], place: str, page: str, files: Files) -> str:
    """A link as the site has it; what the site has not becomes text with the file's path."""
    text, (target, _, heading) = link[1], link[2].partition("#")
    if not target or _SCHEME.match(target):
        return link[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    site = there.removeprefix("docs/") if there.startswith("docs/") else _copy(there)
    site = f"{NOTEBOOK}.md" if site == f"{NOTEBOOK}.ipynb" else site
    if files.get_file_from_path(site) is None:
        if not (ROOT / there).exists():
            log.warning("%s leads to %s, which does not exist", page, there)
        return text if there in text else f"{text} (`{there}`)"
    address = posixpath.relpath(site, posixpath.dirname(page) or ".")
    return f"[{text}]({address}{'#' + heading if heading else ''})"


def _targets(markdown: str, place: str) -> Iterator[str]:
    """The files that a page leads to, from the repository's root."""
    for _, link in _LINK.findall(markdown):
        if not _SCHEME.match(link) and not link.startswith("#"):
            target = posixpath.join(posixpath.dirname(place), link.partition("#")[0])
            yield posixpath.normpath(target)


def _has_copy(name: str) -> bool:
    """Whether the site has a copy of a file; not of data, which may be large, or of docs/."""
    path = ROOT / name
    known = path.suffix in (*_LANGUAGES, ".md")
    return known and path.is_file() and not name.startswith("docs/")


def _copy(name: str) -> str:
    """The page of the site with a file from outside docs/."""
    return f"{SOURCES}/{name}" if name.endswith(".md") else f"{SOURCES}/{name}.md"


def source_page(name: str, text: str) -> str:
    """A file as a page; a search finds code after pages."""
    if name.endswith(".md"):
        return text
    language = _LANGUAGES[Path(name).suffix]
    return f"---\nsearch: {{boost: 0.1}}\n---\n\n# {name}\n\n````{language}\n{text}````\n"


def anchor(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", separator)


def navigation(pages: list[str]) -> list[Any]:
    """The pages of docs/, each in the one part of the site where it belongs."""
    left = sorted({*pages, f"{NOTEBOOK}.md"} - set(_OUTSIDE.values()))
    parts: dict[str, list[str]] = {title: [] for title in _NAV}
    for title, names in _NAV.items():
        for name in names:
            if name.endswith("/"):
                others = [page for page in left if page not in parts[title]]
                parts[title] += [page for page in others if page.startswith(name)]
            elif name in _OUTSIDE:
                parts[title].append(_OUTSIDE[name])
            elif f"{name}.md" in left:
                parts[title].append(f"{name}.md")
    known = {page for part in parts.values() for page in part}
    parts[_HOW_TO] += [page for page in left if page not in known]
    return [{title: part} for title, part in parts.items() if part]


# ---- the notebook


def notebook_page(notebook: Mapping[str, Any]) -> str:
    """A notebook as Markdown: its texts, its code, and below each cell what came out."""
    parts = [f"[The notebook]({NOTEBOOK}.ipynb) itself can be run again.\n"]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"````python\n{source}\n````")
            parts += [_output(output) for output in cell["outputs"]]
    head, *rest = [parts[1], parts[0], *parts[2:]]  # the title stands first
    return "\n\n".join([head, *rest]) + "\n"


def _output(output: Mapping[str, Any]) -> str:
    """What came out of a cell: a table, a picture or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="figure" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return f'<div class="output" markdown="0">{"".join(data["text/html"])}</div>'
    return f'<pre class="output">{escape("".join(data["text/plain"]))}</pre>'
