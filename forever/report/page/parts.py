"""Numbers, scripts and the policy of a page that needs no other file and may load none."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from forever.report.figures.style import Picture
from forever.report.format import NOTHING, mark, minus
from forever.report.page.svg import inline
from forever.report.study import Study

# Columns that a narrow window hides, and those that one of a tablet hides, too.
_MEDIUM = {"runs", "BWT", "less", "ours less theirs", "published Δ OP", "replayed rows", "updates"}
_WIDE = {"forgetting", "at equal", "Δ BWT", "published BWT", "published Δ BWT", "padded rows",
         "budget", "day 7", "GPU-hours"}  # fmt: skip
_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"


@cache
def vega() -> str:
    """Vega-Lite as a script of 0.9 MB, by which a timeline is zoomed (Plotly has 4.8 MB).

    A process of its own makes it, since that takes two seconds in which others can draw.
    """
    made = subprocess.run([sys.executable, "-c", _BUNDLE], stdout=subprocess.PIPE, check=True)
    return made.stdout.decode()


def page(vega_lite: str | None) -> dict[str, Any]:
    """The style, the scripts and the policy of a page; with Vega-Lite, if it has a timeline."""
    scripts = [asset("page.js")]
    if vega_lite is not None:
        scripts += [vega_lite, asset("timeline.js")]
    return {
        "style": Markup(asset("page.css")),
        "scripts": [Markup(script) for script in scripts],
        "policy": policy(scripts),
    }


def filters(study: Study) -> dict[str, Callable[..., Any]]:
    """What the template of the page makes of variants, figures and numbers."""
    names = {mark(row.variant): row.variant for row in study.rows}

    def figure(picture: Picture) -> Markup:
        return Markup(inline(picture, names))

    def room(title: str) -> str:
        if title in _WIDE:
            return "wide"
        return "medium" if title in _MEDIUM else ""

    return {"mark": mark, "room": room, "inline": figure, "csv": csv_link, "shown": shown}


def asset(name: str) -> str:
    """The text of a file beside the templates."""
    return files("forever.report").joinpath("templates", name).read_text("utf-8")


def policy(scripts: Sequence[str]) -> str:
    """A Content-Security-Policy: these scripts run and no other, and nothing is loaded."""
    allowed: list[str] = []
    for script in scripts:
        if "</script" in script.lower():
            raise ValueError("a script would end before its end")
        digest = b64encode(sha256(script.encode()).digest()).decode()
        allowed.append(f"'sha256-{digest}'")
    sources = " ".join(allowed) or "'none'"
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def csv_link(numbers: pd.DataFrame) -> Markup:
    """The address of a file with these numbers, which holds the file."""
    text = numbers.to_csv(index=False, float_format="%.6g")
    return Markup(f"data:text/csv;charset=utf-8,{quote(text, safe=',.-:+', errors='replace')}")


def shown(value: Any) -> str:
    """A cell of a table of numbers."""
    if pd.isna(value):
        return NOTHING
    if isinstance(value, str):
        return value
    return minus(f"{value:.4g}")
