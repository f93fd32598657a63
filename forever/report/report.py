"""`forever report`: tables with intervals and verdicts, figures; Markdown, HTML, LaTeX, JSON; from
run directories.

Everything on the page was measured by a run in the folder. A run that is not there is named as
missing.
"""

from __future__ import annotations

import json
from pathlib import Path

from forever.errors import InputError
from forever.report.numbers import numbers
from forever.report.page import page
from forever.report.study import read_study
from forever.report.tables import summary_table
from forever.runs.directory import write_text

__all__ = ["summary_table", "write_report"]

_GREEK = {"β": "beta", "γ": "gamma", "λ": "lambda", "μ": "mu", "τ": "tau", "Δ": "Delta"}
_TEX = str.maketrans(
    {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
     "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "−": "$-$", "–": "--", "·": r"$\cdot$",
     "±": r"$\pm$", "×": r"$\times$", "→": r"$\rightarrow$", "≤": r"$\leq$", "≥": r"$\geq$", "…": r"\dots{}",
     "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {letter: f"$\\{name}$" for letter, name in _GREEK.items()}
)  # fmt: skip


def tex(text: object) -> str:
    """Text for LaTeX in ASCII. A character that is not known here becomes a question mark, which
    compiles and shows."""
    return str(text).translate(_TEX).encode("ascii", "replace").decode("ascii")


def write_report(folder: Path) -> Path:
    """Write report.md, report.html, report.tex, report.json and figures/ into a folder of runs.

    Args:
        folder: a sweep, a folder of run directories, or one run directory.

    Returns:
        The HTML page, which needs no other file.

    Raises:
        InputError: no finished run in the folder, a damaged file, or packages that the report needs
        are not installed.
    """
    study = read_study(folder)
    try:
        import jinja2

        from forever.report.pictures import pictures

        shown = list(pictures(study))
    except ImportError as error:
        raise InputError(
            f"a report needs {error.name}; install it with: pip install 'forever-cl[report]'"
        ) from None
    for picture in shown:
        path = study.folder / "figures" / f"{picture.name}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.png)
    # Of matrices that fill the page only the first is unfolded.
    fold = any(picture.group == "matrix" and picture.width > 560 for picture in shown)
    content = page(study) | {"pictures": shown, "fold": fold}
    loader = jinja2.PackageLoader("forever.report")
    for name in ("report.md", "report.html", "report.tex"):
        escape = name.endswith(".html")
        environment = jinja2.Environment(
            loader=loader,
            autoescape=escape,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        # A bar would end a Markdown cell.
        environment.filters["cell"] = lambda text: str(text).replace("|", "\\|")
        environment.filters["tex"] = tex
        write_text(study.folder / name, environment.get_template(f"{name}.j2").render(content))
    write_text(study.folder / "report.json", json.dumps(numbers(study), indent=1) + "\n")
    return study.folder / "report.html"
