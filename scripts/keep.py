"""Commits a sweep: what it reports, and for each run what that is computed from.

    python -m scripts.keep runs/components
    python -m scripts.keep
    python -m scripts.keep --check

The first writes report.json and runs.jsonl to experiments/results/<name>-<scale> (`--to` takes
another folder), with `--add` beside the runs that are there, such as seeds of another machine; the
second computes every report.json there again from its runs.jsonl, the third only says which of
them would change, and where.

The first line of runs.jsonl has what all runs share, each other line is a run: its configuration,
environment and result, and under `scores` those of single test examples in the cells of which OP
and BWT are made, by "task.stage" (both from 1): a string of 0 and 1, or the numbers.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from forever.errors import InputError
from forever.files import read_json, read_lines, write_noted
from forever.report.report import stored
from forever.report.run import Run
from forever.report.study import Study, read_study
from forever.runs.directory import RunDirectory
from forever.sweeps import rounds
from forever.sweeps.sweep import MANIFEST, Sweep
from forever.yaml_file import to_yaml
from scripts.text_claims import findings, penalties_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
RUNS, REPORT = "runs.jsonl", "report.json"
_CONTENTS = ("config", "environment", "result")
_BESIDE = (MANIFEST, Sweep.COPY, rounds.FILE)  # files of the sweep itself

Lines = Sequence[Mapping[str, Any]]


def committed() -> list[Path]:
    """The folders of all committed sweeps. Those in `benchmarks` answer no claim of the paper: they
    say how many seeds `mini` needs."""
    paths = [*RESULTS.glob(f"*/{RUNS}"), *ROOT.glob(f"benchmarks/*/{RUNS}")]
    return sorted(path.parent for path in paths)


def keep(study: Study, folder: Path, add: bool = False) -> Path:
    """Write the finished runs of a study into a folder, and the report on them.

    Args:
        add: leave the runs that are there, of which the study has others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = packed(study)
    if add and (folder / RUNS).is_file():
        lines = joined(read_lines(folder / RUNS), lines)
    written = [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]
    (folder / RUNS).write_text("".join(written), encoding="utf-8")
    return report_again(folder)


def report_again(folder: Path) -> Path:
    """Write the report of a committed sweep, computed from its runs."""
    path = folder / REPORT
    path.write_text(json.dumps(computed(folder), indent=1) + "\n", encoding="utf-8")
    return path


def computed(folder: Path) -> dict[str, Any]:
    """Compute the report of a committed sweep from its runs."""
    lines = read_lines(folder / RUNS)
    with TemporaryDirectory() as temporary:
        unpack(lines, Path(temporary))
        study = read_study(Path(temporary))
        content = json.loads(stored(study))
        penalties = {line["key"]: line["penalties"] for line in lines[1:]}
        for part, place in zip(study.parts, content["parts"], strict=True):
            place["text"] = findings(part, penalties)
    # Six digits are the same on every processor.
    return json.loads(json.dumps(content), parse_float=lambda number: round(float(number), 6))


def moved(folder: Path) -> list[str]:
    """Name the rows and analyses of a committed report that its runs would not give today."""
    committed_parts = read_json(folder / REPORT)["parts"]
    names: list[str] = []
    for before, now in zip(committed_parts, computed(folder)["parts"], strict=True):
        for field in ("rows", "analyses"):
            if before[field] != now[field]:
                names.append(f"{folder.name}: {field} of {before['benchmark']}")
    return names


def packed(study: Study) -> list[dict[str, Any]]:
    """The lines of runs.jsonl."""
    files: dict[str, str] = {}
    for name in _BESIDE:
        if (study.folder / name).is_file():
            files[name] = (study.folder / name).read_text(encoding="utf-8")
    return _lines(files, [_packed_run(run) for run in study.finished])


def joined(before: Lines, now: Lines) -> list[dict[str, Any]]:
    """The lines of a sweep that was run in parts; of a run that is in both the newer one counts."""
    runs = {run["key"]: run for run in (*kept_runs(before), *kept_runs(now))}
    first, manifest = (json.loads(lines[0]["files"][MANIFEST]) for lines in (before, now))
    trials = {trial["key"]: trial for trial in (*first["trials"], *manifest["trials"])}
    manifest["trials"] = [*trials.values()]
    files = {**before[0]["files"], **now[0]["files"], MANIFEST: json.dumps(manifest, indent=1)}
    return _lines(files, [*runs.values()])


def _lines(files: Mapping[str, str], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files of a sweep and what its runs share, then the runs without that."""
    shared = {name: _shared([run[name] for run in runs]) for name in _CONTENTS}
    for run in runs:
        for name in _CONTENTS:
            for key in shared[name]:
                del run[name][key]
    return [{"files": files, "shared": shared}, *runs]


def _shared(contents: Lines) -> dict[str, Any]:
    """The entries that are in all of them."""
    shared = dict(contents[0])
    for content in contents[1:]:
        for key in list(shared):
            if key not in content or content[key] != shared[key]:
                del shared[key]
    return shared


def _packed_run(run: Run) -> dict[str, Any]:
    result = dict(run.outcome)
    matrix: list[list[float | None]] = []
    for row in result["matrix"]:
        matrix.append([score if score is None else round(score, 2) for score in row])
    result["matrix"] = matrix
    config, environment = dict(run.config), read_json(run.directory.environment)
    for part, field in (("model", "name"), ("data", "root")):
        config[part] = config[part] | {field: _without_folder(config[part][field])}
    environment["argv"] = [*map(_without_folder, environment["argv"])]
    looks = [event for event in run.events if event["kind"] == "look"]
    scores: dict[str, Any] = {}
    for i, stage in _cells(result):
        scores[f"{i + 1}.{stage + 1}"] = _short(run.matrix.items[i, stage])
    return {
        "key": run.key,
        "variant": run.variant,
        "order": run.order,
        "replayed": run.replayed_rows,
        "config": config,
        "environment": environment,
        "result": result,
        # What runs must share to be compared: benchmark, order and test examples.
        "tests": hashlib.sha256(repr(run.unit[0]).encode()).hexdigest()[:12],
        "scores": scores,
        "looks": looks,
        "penalties": penalties_of(run),
    }


def _without_folder(word: str | None) -> str | None:
    """A word of a command, or a path, without a folder of this machine."""
    return word and re.sub(r"(^|=)/\S*/", r"\1", word)


def _cells(result: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """The last column of the matrix and its diagonal."""
    tasks, stages = len(result["tasks"]), len(result["stages"])
    for i in range(tasks):
        yield i, stages - 1
        if i < stages - 1:
            yield i, i


def _short(scores: Sequence[float]) -> str | list[float]:
    if {*scores} <= {0.0, 1.0}:
        return "".join(f"{score:.0f}" for score in scores)
    return [*scores]


def kept_runs(lines: Lines) -> Iterator[dict[str, Any]]:
    """The runs of runs.jsonl, each with what it shares with the others."""
    for line in lines[1:]:
        whole = {name: lines[0]["shared"][name] | line[name] for name in _CONTENTS}
        yield {**line, **whole}


def unpack(lines: Lines, folder: Path) -> None:
    """Write run directories of which a report can be made; cells without scores are empty."""
    for name, text in lines[0]["files"].items():
        write_noted(folder, name, text)
    for run in kept_runs(lines):
        _unpack_run(RunDirectory(folder / run["key"]), run)


def _unpack_run(directory: RunDirectory, run: Mapping[str, Any]) -> None:
    result = run["result"]
    result["schema_version"] = 1  # nothing says what these files were in the run itself
    result["matrix"] = [[None] * len(result["stages"]) for _ in result["tasks"]]
    directory.path.mkdir(parents=True)
    for cell, short in run["scores"].items():
        i, stage = (int(place) - 1 for place in cell.split("."))
        scores = [float(score) for score in short]
        result["matrix"][i][stage] = 100 * fmean(scores)
        answers: list[dict[str, Any]] = []
        for number, score in enumerate(scores):
            answers.append({"id": f"{run['tests']}/{number}", "reference": "", "score": score})
        _write_lines(directory.predictions(stage, i), answers)
    _write_lines(directory.events, run["looks"])
    directory.config.write_text(to_yaml(run["config"]), encoding="utf-8")
    directory.environment.write_text(json.dumps(run["environment"]), encoding="utf-8")
    directory.result.write_text(json.dumps(result), encoding="utf-8")


def _write_lines(path: Path, records: Lines) -> None:
    """As `directory.write_lines`, without waiting for the disk: these files do not last."""
    path.parent.mkdir(exist_ok=True, parents=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Commit a sweep to experiments/results.")
    parser.add_argument("sweep", nargs="?", type=Path, help="its folder; none: all again")
    parser.add_argument("--to", type=Path, help="a folder; none: <name>-<scale>")
    parser.add_argument("--check", action="store_true", help="say which reports would change")
    parser.add_argument("--add", action="store_true", help="leave the runs that are there")
    asked = parser.parse_args()
    if asked.check:
        names = [name for folder in committed() for name in moved(folder)]
        if names:
            sys.exit("\n".join(names))
        print("no committed number moves")
        return
    if asked.sweep is None:
        for folder in committed():
            print(report_again(folder))
        return
    if not (asked.sweep / MANIFEST).is_file():
        parser.error(f"{asked.sweep} is no sweep's folder, it has no {MANIFEST}; give one that has")
    try:
        study = read_study(asked.sweep)
    except InputError as error:
        parser.error(str(error))
    scale = json.loads(stored(study))["scale"]
    print(keep(study, asked.to or RESULTS / f"{study.name}-{scale}", add=asked.add))


if __name__ == "__main__":
    main()
