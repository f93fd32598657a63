"""RESULTS.md: the paper's claims beside what was measured, and a row for each configuration with
committed runs.

    python -m scripts.ledger

A sweep is committed by `python -m scripts.keep FOLDER`: its report.json answers the claims, the
runs in runs.jsonl make its table. A single run is committed by copying config.yaml,
environment.json and result.json of its directory to experiments/results/<group>/<name>/, or to a
folder below that if there are several seeds. A group's README.md, if there is one, is put above its
table, HEAD.md above all.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from forever.config.overrides import flatten
from forever.files import read_json, read_lines
from forever.report.facts import machine
from forever.report.format import markdown_table
from forever.report.run import replayed_rows
from forever.runs.directory import RunDirectory
from forever.sweeps.named_runs import SCALES
from scripts.claims import Claim, claims
from scripts.finding_claims import finding_claims
from scripts.keep import REPORT, RUNS, kept_runs
from scripts.text_claims import text_claims

FOLDER = Path(__file__).parents[1] / "experiments" / "results"
LEDGER = Path(__file__).parents[1] / "experiments" / "RESULTS.md"
COLUMNS = (
    "run", "seeds", "OP", "BWT", "forgetting", "replays", "replayed", "updates", "on memory",
    "minutes", "revision", "hardware",
)  # fmt: skip
ANSWER = ["claim", "ours", "published", "status", "scale", "runs"]
OUTCOMES = ["reproduced", "not shown", "cannot tell", "contradicted", "not judged"]


def page() -> str:
    """The whole page."""
    groups = sorted(folder for folder in FOLDER.glob("*") if folder.is_dir())
    reports = [read_json(path) for path in sorted(FOLDER.glob(f"*/{REPORT}"))]
    frame = frame_of([*claims(reports), *finding_claims(reports), *text_claims(reports)])
    head = (FOLDER / "HEAD.md").read_text(encoding="utf-8")
    return "\n".join([head, *tally(frame), *sections(frame), *map(section, groups)])


def frame_of(claims: Sequence[Claim]) -> Any:
    """A row a claim and answer."""
    frame = pd.DataFrame(claims)
    frame[["status", "outcome"]] = [claim.status for claim in claims]
    frame["table"], frame["untried"] = frame["key"].str[0], frame["scale"] == ""
    return frame


def tally(frame: Any) -> list[str]:
    """How many claims were answered at each scale, and how."""
    answers = frame[~frame["untried"]]
    counts = pd.crosstab(answers["scale"], answers["outcome"])
    counts = counts.reindex(index=list(SCALES), columns=OUTCOMES, fill_value=0)
    counts.insert(0, "answers", counts.sum(axis=1))
    counts = counts[counts["answers"] > 0]
    summary = f"{answers['key'].nunique()} of {frame['key'].nunique()} claims have an answer"
    if "paper" not in counts.index:
        summary += ", none at full scale, which needs a GPU"
    rows = counts.astype(str).itertuples(name=None)
    return [*markdown_table(["scale", *counts.columns], rows), "", f"{summary}.", ""]


def sections(frame: Any) -> list[str]:
    """Claims as Markdown, a heading and a table a sweep, what was tried first."""
    tables = list(frame.groupby("table", sort=False))
    lines: list[str] = []
    for name, table in sorted(tables, key=lambda item: item[1]["untried"].all()):
        lines += [f"### {name}", ""]
        if table["untried"].all():
            lines += [f"Not attempted: `forever sweep {name} --scale paper`.", ""]
            lines += markdown_table(["claim", "published"], _rows(table, "claim", "published"))
        else:
            table = table.sort_values("untried", kind="stable")
            lines += [*markdown_table(ANSWER, _rows(table, *ANSWER)), ""]
            lines += filter(None, table["origin"].unique())
        lines.append("")
    return lines


def _rows(table: Any, *columns: str) -> Any:
    return table[list(columns)].itertuples(index=False)


def section(group: Path) -> str:
    """The heading, the explanation, the table and the commands of one group."""
    note = group / "README.md"
    lines = [f"## {group.name}", ""]
    if note.is_file():
        lines = [note.read_text(encoding="utf-8").strip(), ""]
    records = [*_single_runs(group), *_kept_runs(group)]
    if records:
        runs: Any = pd.DataFrame(records)
        rows = [_cells(seeds) for _, seeds in runs.groupby("run", sort=False)]
        commands = runs["command"].unique()
        lines += [*markdown_table(COLUMNS, rows), "", "```", *commands, "```", ""]
    return "\n".join(lines)


def _single_runs(group: Path) -> Iterator[dict[str, Any]]:
    """Those whose files were copied."""
    for path in sorted(group.rglob("result.json")):
        result, where = read_json(path), read_json(path.with_name("environment.json"))
        replayed = (result.get("examples") or {}).get("replayed")
        if replayed is None:
            settings = flatten(RunDirectory(path.parent).read_settings())
            replayed = replayed_rows(result, settings)
        yield _record(path.relative_to(group).parts[0], result, where, replayed)


def _kept_runs(group: Path) -> Iterator[dict[str, Any]]:
    """Those of a sweep that was committed as a whole."""
    runs = list(kept_runs(read_lines(group / RUNS)))
    orders = {run["order"] for run in runs}
    for run in runs:
        name = run["variant"]
        if len(orders) > 1:
            name = f"{name}, order {run['order']}"
        yield _record(name, run["result"], run["environment"], run["replayed"])


def _record(
    name: str, result: Mapping[str, Any], where: Mapping[str, Any], replayed: float | None
) -> dict[str, Any]:
    """A run as a row of numbers; `replayed` are examples, repetitions and views counted."""
    updates, events = Counter(result["updates"]), Counter[str]()
    for kinds in result["events"].values():
        events.update(kinds)
    return {
        "run": name,
        "seeds": str(result["seed"]),
        "OP": result["op"],
        "BWT": result["bwt"],
        "forgetting": result["forgetting"],
        "replays": events["replay"] + events["consolidation"],
        "replayed": replayed,
        "updates": updates.total(),
        "on memory": updates["replay"] + updates["consolidation"],
        "minutes": sum(result["seconds"].values()) / 60,
        "revision": where["revision"] or "-",
        "hardware": machine(where),
        "command": shlex.join(where["argv"]),
    }


def _cells(seeds: Any) -> list[str]:
    """The runs of one configuration as cells under COLUMNS."""
    each = [", ".join(seeds[key].unique()) for key in ("run", "seeds", "revision", "hardware")]
    spread = [_spread(seeds[key].dropna()) for key in ("OP", "BWT", "forgetting")]
    counted = ("replays", "replayed", "updates", "on memory")
    counts = ["-" if seeds[key].isna().any() else f"{seeds[key].mean():.0f}" for key in counted]
    return [*each[:2], *spread, *counts, f"{seeds['minutes'].mean():.1f}", *each[2:]]


def _spread(values: pd.Series) -> str:
    if values.empty:
        return "-"
    around = f" [{values.min():.1f}, {values.max():.1f}]" if len(values) > 1 else ""
    return f"{values.mean():.1f}{around}"


if __name__ == "__main__":
    LEDGER.write_text(page(), encoding="utf-8")
    print(LEDGER)
