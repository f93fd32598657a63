"""`forever report`: tables with intervals and verdicts, figures; HTML, Markdown, LaTeX, JSON; from
run directories.

Everything on the page was measured by a run in the folder. A run that is not there is named as
missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.report import facts
from forever.report.analyses import analyses, findings
from forever.report.bootstrap import RESAMPLES
from forever.report.format import distinct, listed, several
from forever.report.frame import COLUMNS, stored_rows, text_table
from forever.report.statistics import ALPHA
from forever.report.study import Part, Study, read_study
from forever.report.tables import console_tables, html_table, latex_table, markdown
from forever.runs.directory import write_text
from forever.sweeps import published as paper
from forever.sweeps.named_runs import scale_of
from forever.sweeps.studies import importances

__all__ = ["console_tables", "write_report"]

SCHEMA_VERSION = 2  # 1: no runs in estimates; rates of forgetting without an interval
_GROUPS = (
    ("matrix", "Performance matrices",
     "Score on each task (row) after training on each task (column), in percent. Framed: just "
     "after the task was learned. Hatched: not measured."),
    ("timeline", "Timelines",
     "How far each update moves the trainable parameters, what the replay clock shows, and when "
     "the memory is replayed."),
)  # fmt: skip

Write = Callable[[pd.DataFrame], str]  # a table in the format of a page


def write_report(folder: Path | Study) -> Path:
    """Write report.html, report.md, report.tex, report.json and figures/ into a folder of runs.

    Args:
        folder: a sweep, a folder of run directories, or one run directory; or what was read of it.

    Returns:
        The HTML page, which needs no other file.

    Raises:
        InputError: no finished run in the folder, a damaged file, or packages that the report needs
            are not installed.
    """
    study = folder if isinstance(folder, Study) else read_study(folder)
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup  # comes with jinja2

        from forever.report.figures import pictures
    except ImportError as error:
        raise InputError(
            f"a report needs {error.name}; install it with: pip install 'forever-cl[report]'"
        ) from None
    drawn = {part.benchmark: list(pictures(study, part)) for part in study.parts}
    for picture in chain(*drawn.values()):
        path = study.folder / "figures" / f"{picture.name}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture.png)
    environment = Environment(
        loader=PackageLoader("forever.report"),
        autoescape=lambda name: bool(name) and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["several"] = several
    environment.globals |= {
        "resamples": f"{RESAMPLES:,}",
        "alpha": f"{100 * ALPHA:g}",
        "equal": f"{paper.EQUAL:g}",
        "alike": f"{paper.ALIKE:g}",
        "about": [column for column in COLUMNS if column.about],
    }
    notes: Any = environment.get_template("notes.j2").module

    def html(table: pd.DataFrame) -> str:
        return Markup(html_table(table, study.reference))

    for name, write in (("report.html", html), ("report.md", markdown)):
        content = _content(study, drawn, write) | {"notes": notes}
        write_text(study.folder / name, environment.get_template(f"{name}.j2").render(content))
    write_text(study.folder / "report.tex", _latex(study, notes))
    write_text(study.folder / "report.json", json.dumps(stored(study), indent=1) + "\n")
    return study.folder / "report.html"


def _content(study: Study, drawn: Mapping[str, list[Any]], write: Write) -> dict[str, Any]:
    """What a page's template fills in."""

    def written(table: pd.DataFrame) -> str:
        return "" if table.empty else write(table)

    variants = facts.changes(study)
    weights = {key: f"{weight:.2f}" for key, weight in importances(study.folder).items()}
    parts: list[dict[str, Any]] = []
    for part in study.parts:
        parts.append(
            {
                "content": part,
                "heading": part.benchmark if part.several else "",
                "results": write(text_table(part.frame, "scores", "costs")),
                "findings": written(_findings(part)),
                "paper": written(_beside_paper(part)),
                "too_small": facts.too_small_for(part),
                "pictures": drawn[part.benchmark],
            }
        )
    return {
        "subject": facts.subject(study),
        "study": study,
        "parts": parts,
        "facts": write(_pairs("", "what ran", facts.facts(study))),
        "variants": write(_pairs("variant", "differs in", variants)) if len(variants) > 1 else "",
        "importances": written(_pairs("parameter", "importance", weights)),
        "groups": _GROUPS,
        "pictures": list(chain(*drawn.values())),
    }


def _findings(part: Part) -> pd.DataFrame:
    return pd.DataFrame(findings(part), columns=["finding", "ours", "published", "from"])


def _beside_paper(part: Part) -> pd.DataFrame:
    return text_table(part.frame[part.frame["paper"].notna()], "paper")


def _pairs(left: str, right: str, values: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(list(values.items()), columns=[left, right])


def _latex(study: Study, notes: Any) -> str:
    """All tables as floats: scores, costs, findings and numbers beside the paper's."""
    tables = ["% needs the packages booktabs and inputenc (utf8)"]
    for part in study.parts:
        name = f"{study.name}, {part.benchmark}" if part.several else study.name
        about = f"{name}: {facts.subject(study)}. {notes.references(study)} "
        about += f"{notes.progress(study)} Seeds {listed(facts.seeds(study))}. "
        about += f"{notes.intervals(part)} {notes.verdicts(part)}"
        costs = f"{name}: what a run costs, the mean over runs. {notes.columns()}"
        published = f"{name}, beside the published numbers. {notes.published(part)} "
        published += notes.too_small(facts.too_small_for(part))
        captioned = [
            (text_table(part.frame, "scores"), about),
            (text_table(part.frame, "costs"), costs),
            (_findings(part), f"{name}: findings"),
            (_beside_paper(part), published),
        ]
        tables += [latex_table(table, text) for table, text in captioned if not table.empty]
    return "\n".join(tables)


def stored(study: Study) -> dict[str, Any]:
    """Everything a report says in numbers, for programs and for the ledger (scripts/ledger.py). OP
    in percent, BWT and differences in points, intervals at 95 %.

    Each estimate has the number of runs that it is the mean of: a difference is of those that the
    reference has, too.
    """
    runs, example = study.finished, study.example
    assert example is not None, "a study has finished runs"
    parts: list[dict[str, Any]] = []
    for part in study.parts:
        rows = stored_rows(part.frame)
        parts.append({"benchmark": part.benchmark, "rows": rows, "analyses": analyses(part)})
    return {
        "schema_version": SCHEMA_VERSION,
        "name": study.name,
        "reference": study.reference,
        "scale": scale_of(RunConfig.parse(example.config)),
        "planned": len(study.runs),
        "finished": len(runs),
        "models": distinct(run.settings["model.name"] for run in runs),
        "seeds": facts.seeds(study),
        **facts.origins(runs),
        "parts": parts,
    }
