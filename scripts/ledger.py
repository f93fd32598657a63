"""RESULTS.md: the paper's claims beside what was measured, and a row for each configuration with
committed runs.

    python -m scripts.ledger

A run is committed by copying config.yaml, environment.json, result.json and, if it has replays,
events.jsonl of its directory to experiments/results/<group>/<name>/, or to a folder below that if
there are several seeds. A group's README.md, if there is one, is put above its table. A sweep is
committed by its report.json, for the claims (forever/report/claims.py), and needs no runs.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from forever.report.claims import Claim, Report, Status, read_claims, unknown
from forever.report.facts import machine
from forever.report.format import markdown_table
from forever.runs.directory import read_json
from forever.sweeps.named_runs import SCALES

FOLDER = Path(__file__).parents[1] / "experiments" / "results"
LEDGER = Path(__file__).parents[1] / "experiments" / "RESULTS.md"
HEAD = """# Results

Every number in a table comes from a result file in `experiments/results/`, but for those of plans;
this page is written by `python -m scripts.ledger`. Sweeps on `mini` share runs: those that another
sweep had made were copied, so a report names the commands of both, and minutes are comparable
within a sweep's own runs only.

OP, BWT and forgetting in percent points; with several seeds their mean, and in brackets the
smallest and the largest. Replays are events, those at the end of a task with them; updates on
memory are those apart from the task's own (MixReplay, MIGU and SSR mix memory into the task's);
minutes are a mean.
"""
CLAIMS = """## The paper's claims

FOREVER, arXiv 2601.03938: the differences in its tables to FOREVER, or to the default of an
ablation, as far as we know the numbers, and its findings on forgetting, model days and time. Ours
as points with a 95 % interval; the status is OP's after Holm's correction for all variants of a
sweep, which the intervals do not have; BWT stands beside it. A published difference below half a
point counts as none, and is reproduced by an interval within one point of zero. "mini" and "cpu"
are small stand-ins: what they agree or disagree with is the sign. Runs are those that were
compared; where a finding is no comparison, all.
"""
COLUMNS = (
    "run", "seeds", "OP", "BWT", "forgetting", "replays", "updates", "on memory", "minutes",
    "revision", "hardware",
)  # fmt: skip


# What the statuses come down to.
OUTCOMES = {
    "reproduced": (Status.REPRODUCED,),
    "not shown": (Status.NO_DIFFERENCE, Status.TOO_WIDE, Status.NO_CORRELATION,
                  Status.TOO_FEW_TASKS),
    "contradicted": (Status.OPPOSITE, Status.THEY_DIFFER, Status.OTHER_CORRELATION),
    "not judged": (Status.NOT_JUDGED, Status.MEASURED, Status.AS_FINETUNING),
}  # fmt: skip
_ANSWER = ("claim", "ours", "published", "status", "scale", "runs")


def page() -> str:
    """The whole page."""
    groups = sorted(folder for folder in FOLDER.glob("*") if folder.is_dir())
    claims = read_claims(FOLDER)
    lines = [HEAD, CLAIMS, *tally(claims), *sections(claims)]
    return "\n".join([*lines, *map(section, groups)])


def tally(rows: Sequence[Claim]) -> list[str]:
    """How many claims were answered at each scale, and how."""
    answers = {scale: Counter[Status]() for scale in SCALES}
    texts: set[tuple[str, str]] = set()
    answered: set[tuple[str, str]] = set()
    for claim in rows:
        texts.add((claim.table, claim.text))
        if claim.report:
            answered.add((claim.table, claim.text))
            answers[claim.scale][claim.status] += 1
    summary = f"{len(answered)} of {len(texts)} claims have an answer"
    if not answers["paper"]:
        summary += ", none at full scale, which needs a GPU"
    table: list[list[str]] = []
    for scale, statuses in answers.items():
        if statuses:
            counts = [sum(map(statuses.__getitem__, members)) for members in OUTCOMES.values()]
            table.append([scale, *map(str, (statuses.total(), *counts))])
    if not table:
        return [f"{summary}.", ""]
    return [*markdown_table(("scale", "answers", *OUTCOMES), table), "", f"{summary}.", ""]


def sections(rows: Sequence[Claim]) -> list[str]:
    """Claims as Markdown, a heading and a table a sweep, what was tried first."""
    tables: dict[str, list[Claim]] = {}
    for claim in rows:
        tables.setdefault(claim.table, []).append(claim)
    tried = {claim.table for claim in rows if claim.report}
    lines: list[str] = []
    for name in sorted(tables, key=lambda name: name not in tried):
        write = _answers if name in tried else _not_attempted
        lines += [f"### {name}", "", *write(tables[name]), ""]
        if missing := unknown(name):
            lines += [f"The paper's numbers of {'; '.join(missing)} are not known here.", ""]
    return lines


def _not_attempted(asked: Sequence[Claim]) -> list[str]:
    table = markdown_table(("claim", "published"), [(c.text, c.published) for c in asked])
    return [f"Not attempted: `forever sweep {asked[0].table} --scale paper`.", "", *table]


def _answers(asked: Sequence[Claim]) -> list[str]:
    """The table of a sweep that was tried, and below it where the numbers come from."""
    rows: list[tuple[str, ...]] = []
    reports: dict[int, Report] = {}
    for claim in sorted(asked, key=lambda claim: claim.report is None):
        text = (claim.text, claim.ours, claim.published, claim.status.value)
        rows.append((*text, claim.scale, claim.runs))
        if claim.report:
            reports[id(claim.report)] = claim.report
    lines = [*markdown_table(_ANSWER, rows), ""]
    for report in reports.values():
        where = f"{', '.join(report['revisions'])}; {', '.join(report['hardware'])}"
        lines.append(f"- {report['scale']}, {where}:")
        lines += [f"  `{command}`" for command in report["commands"]]
    return lines


def section(group: Path) -> str:
    """The heading, the explanation, the table and the commands of one group."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(group.rglob("result.json")):
        runs.setdefault(path.relative_to(group).parts[0], []).append(_read(path.parent))
    note = group / "README.md"
    lines = [f"## {group.name}", ""]
    if note.is_file():
        lines = [note.read_text(encoding="utf-8").strip(), ""]
    if runs:
        rows = [[name, *_cells(seeds)] for name, seeds in runs.items()]
        commands = dict.fromkeys(run["command"] for seeds in runs.values() for run in seeds)
        lines += [*markdown_table(COLUMNS, rows), "", "```", *commands, "```", ""]
    return "\n".join(lines)


def _read(folder: Path) -> dict[str, Any]:
    result, where = read_json(folder / "result.json"), read_json(folder / "environment.json")
    updates, events = Counter(result["updates"]), Counter[str]()
    for kinds in result["events"].values():
        events.update(kinds)
    return {
        **result,
        "command": shlex.join(where["argv"]),
        "revision": where["revision"] or "-",
        "hardware": machine(where),
        "replays": events["replay"] + events["consolidation"],
        "all_updates": updates.total(),
        "on_memory": updates["replay"] + updates["consolidation"],
        "minutes": sum(result["seconds"].values()) / 60,
    }


def _cells(runs: list[dict[str, Any]]) -> list[str]:
    table: Any = pd.DataFrame(runs).astype(dict.fromkeys(("op", "bwt", "forgetting"), float))
    each = [", ".join(table[key].astype(str).unique()) for key in ("seed", "revision", "hardware")]
    spread = [_spread(table[key].dropna()) for key in ("op", "bwt", "forgetting")]
    counts = [f"{table[key].mean():.0f}" for key in ("replays", "all_updates", "on_memory")]
    return [each[0], *spread, *counts, f"{table['minutes'].mean():.1f}", *each[1:]]


def _spread(values: pd.Series) -> str:
    if values.empty:
        return "-"
    around = f" [{values.min():.1f}, {values.max():.1f}]" if len(values) > 1 else ""
    return f"{values.mean():.1f}{around}"


if __name__ == "__main__":
    LEDGER.write_text(page(), encoding="utf-8")
    print(LEDGER)
