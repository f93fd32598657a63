"""Commit a sweep: its report, and of each run what the report is computed from.

    python -m scripts.keep runs/components
    python -m scripts.keep
    python -m scripts.keep --check

The first command writes report.json and runs.jsonl to experiments/results/<name>-<scale>; with
`--add` beside the runs that are already there, such as seeds of another machine. The second
computes every committed report.json again from its runs.jsonl. The third says which rows and
analyses would change.

The first line of runs.jsonl holds the files of the sweep and the entries that all runs share. Each
other line is a run: its configuration, environment, result, probes, and the scores of single test
examples in the cells of the matrix that make OP and BWT, by "task.stage" (both from 1).
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
from forever.files import read_json, read_lines
from forever.report.report import stored
from forever.report.run import Run
from forever.report.study import Study, read_study
from forever.runs.directory import RunDirectory
from forever.sweeps import rounds
from forever.sweeps.sweep import MANIFEST, Sweep
from forever.yaml_file import to_yaml

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
RUNS, REPORT = "runs.jsonl", "report.json"
_CONTENTS = ("config", "environment", "result")  # of a run, whose entries may be shared
_SWEEP_FILES = (MANIFEST, Sweep.COPY, rounds.FILE)

Lines = Sequence[Mapping[str, Any]]


# ---- commands


def committed() -> list[Path]:
    """List the folders of all committed sweeps. Those in `benchmarks` answer no claim of the paper:
    they say how many seeds `mini` needs."""
    paths = [*RESULTS.glob(f"*/{RUNS}"), *ROOT.glob(f"benchmarks/*/{RUNS}")]
    return sorted(path.parent for path in paths)


def keep(study: Study, folder: Path, add: bool = False) -> Path:
    """Write the finished runs of a study into a folder, and the report on them.

    Args:
        add: Keep the runs that are already there; a run that is in both is replaced.
    """
    is_probed = any(_looks(run) for run in study.finished)
    files, runs = _files_of(study), {run.key: _packed(run, is_probed) for run in study.finished}
    if add and (folder / RUNS).is_file():
        before = read_lines(folder / RUNS)
        runs = {run["key"]: run for run in kept_runs(before)} | runs
        if MANIFEST in files:
            first, manifest = (json.loads(each[MANIFEST]) for each in (before[0]["files"], files))
            trials = {trial["key"]: trial for trial in (*first["trials"], *manifest["trials"])}
            manifest["trials"] = [*trials.values()]
            files = before[0]["files"] | files | {MANIFEST: json.dumps(manifest, indent=1)}
    folder.mkdir(parents=True, exist_ok=True)
    lines = _shared_first(files, [*runs.values()])
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
    with TemporaryDirectory() as temporary:
        place = Path(temporary) / folder.name  # the report's name without sweep.json
        unpack(read_lines(folder / RUNS), place)
        content = stored(read_study(place))
    # Six digits are the same on every processor.
    return json.loads(content, parse_float=lambda number: round(float(number), 6))


def moved(folder: Path) -> list[str]:
    """Name the rows and analyses of a committed report that its runs would not give today."""
    committed_parts = read_json(folder / REPORT)["parts"]
    names: list[str] = []
    for before, now in zip(committed_parts, computed(folder)["parts"], strict=True):
        for field in ("rows", "analyses"):
            if before[field] != now[field]:
                names.append(f"{folder.name}: {field} of {before['benchmark']}")
    return names


# ---- from a study to lines


def _files_of(study: Study) -> dict[str, str]:
    paths = [study.folder / name for name in _SWEEP_FILES]
    return {path.name: path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def _looks(run: Run) -> list[dict[str, Any]]:
    """Return the probes of a run."""
    return [event for event in run.events if event["kind"] == "look"]


def _packed(run: Run, is_probed: bool) -> dict[str, Any]:
    """Return a run as a line, without names of this machine's folders."""
    result, config = dict(run.outcome), dict(run.config)
    # Two digits for people; the report's scores come from those of single examples.
    result["matrix"] = [
        [score if score is None else round(score, 2) for score in row] for row in result["matrix"]
    ]
    for part, field in (("model", "name"), ("data", "root")):
        config[part] = config[part] | {field: _without_folder(config[part][field])}
    environment = read_json(run.directory.environment)
    environment["argv"] = [*map(_without_folder, environment["argv"])]
    events = _looks(run)
    if is_probed and run.settings.get("method.clock") == "model":  # where among them days came
        replays = [event for event in run.events if event["kind"] == "replay"]
        fields = ("kind", "task", "step", "day")
        events += [{key: each.get(key) for key in fields} for each in replays]
    scores: dict[str, Any] = {}
    for task, stage in _cells(result):
        items = run.matrix.items[task, stage]
        is_binary = {*items} <= {0.0, 1.0}
        short = "".join(f"{score:.0f}" for score in items) if is_binary else [*items]
        scores[f"{task + 1}.{stage + 1}"] = short
    return {
        "key": run.key,
        "variant": run.variant,
        "order": run.order,
        "replayed": run.examples_of("replayed"),
        "config": config,
        "environment": environment,
        "result": result,
        # What runs must share to be compared: benchmark, order and test examples.
        "tests": hashlib.sha256(repr(run.unit[0]).encode()).hexdigest()[:12],
        "scores": scores,
        "looks": events,
    }


def _without_folder(word: str | None) -> str | None:
    """Return a path, or a word of a command, without the folder."""
    return word and re.sub(r"(^|=)/\S*/", r"\1", word)


def _cells(result: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the cells of the matrix that make OP and BWT: its last column and its diagonal."""
    last = len(result["stages"]) - 1
    for task in range(len(result["tasks"])):
        yield task, last
        if task < last:
            yield task, task


def _shared_first(files: Mapping[str, str], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move the entries that all runs have in common to a first line."""
    shared: dict[str, dict[str, Any]] = {}
    for name in _CONTENTS:
        first, *others = [run[name] for run in runs]
        shared[name] = dict(first)
        for other in others:
            for key in [*shared[name]]:
                if key not in other or other[key] != first[key]:
                    del shared[name][key]
        for run in runs:
            for key in shared[name]:
                del run[name][key]
    return [{"files": files, "shared": shared}, *runs]


# ---- from lines to folders of runs


def kept_runs(lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield the runs of runs.jsonl, each with the entries that it shares with the others."""
    for line in lines[1:]:
        whole = {name: lines[0]["shared"][name] | line[name] for name in _CONTENTS}
        yield {**line, **whole}


def unpack(lines: Lines, folder: Path) -> None:
    """Write run directories that a report can be made of; cells without scores are empty."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in lines[0]["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    for run in kept_runs(lines):
        _unpack_run(RunDirectory(folder / run["key"]), run)


def _unpack_run(directory: RunDirectory, run: Mapping[str, Any]) -> None:
    result = run["result"]
    result["matrix"] = [[None] * len(result["stages"]) for _ in result["tasks"]]
    directory.path.mkdir(parents=True)
    for cell, short in run["scores"].items():
        task, stage = (int(number) - 1 for number in cell.split("."))
        scores = [float(score) for score in short]
        result["matrix"][task][stage] = 100 * fmean(scores)
        answers: list[dict[str, Any]] = []
        for number, score in enumerate(scores):
            answers.append({"id": f"{run['tests']}/{number}", "reference": "", "score": score})
        _write_lines(directory.predictions(stage, task), answers)
    _write_lines(directory.events, run["looks"])
    directory.write_config(to_yaml(run["config"]), result["fingerprint"])
    directory.environment.write_text(json.dumps(run["environment"]), encoding="utf-8")
    directory.finish(result)


def _write_lines(path: Path, records: Lines) -> None:
    """Write a JSON-lines file without waiting for the disk: these folders do not last."""
    path.parent.mkdir(exist_ok=True, parents=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Commit a sweep to experiments/results.")
    parser.add_argument("sweep", nargs="?", type=Path, help="its folder; without one: all again")
    parser.add_argument("--to", type=Path, help="another folder than <name>-<scale>")
    parser.add_argument("--check", action="store_true", help="say which reports would change")
    parser.add_argument("--add", action="store_true", help="keep the runs that are already there")
    options = parser.parse_args()
    if options.check:
        names = [name for folder in committed() for name in moved(folder)]
        if names:
            sys.exit("\n".join(names))
        print("no committed number moves")
        return
    if options.sweep is None:
        for folder in committed():
            print(report_again(folder))
        return
    if not (options.to or (options.sweep / MANIFEST).is_file()):
        parser.error(f"{options.sweep} has no {MANIFEST}; for single runs give --to")
    try:
        study = read_study(options.sweep)
    except InputError as error:
        parser.error(str(error))
    scale = json.loads(stored(study))["scale"]
    print(keep(study, options.to or RESULTS / f"{study.name}-{scale}", add=options.add))


if __name__ == "__main__":
    main()
