"""The Python interface: the verbs `run` and `sweep`, and `load`, with results as pandas frames.

It uses the same functions as the command line (forever/launch/start.py). Nothing is printed but a
line of progress, on a terminal or in a notebook. Ctrl-C lets runs save, and the same call resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.format import plural
from forever.launch.copies import download, upload_report
from forever.launch.local import prepare
from forever.launch.resources import Placement, Resources
from forever.launch.start import Request, mlflow_uri, run_file, train, watched
from forever.report.frame import frame_of, number_table, text_table
from forever.report.report import write_report
from forever.report.run import Run
from forever.report.study import Study, read_study
from forever.report.tables import notebook_table
from forever.runs.console import ConsoleTracker
from forever.storage.address import local_folder
from forever.sweeps.files import load_sweep
from forever.sweeps.named_runs import load_run
from forever.sweeps.rounds import Limits
from forever.text import complain, visible

__all__ = ["InputError", "Placement", "RunResult", "SweepResult", "load", "run", "sweep"]


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run."""

    _run: Run

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self._run.directory.path

    @property
    def config(self) -> RunConfig:
        """What was run; `forever.run(result.config, {"seed": 1})` runs a sibling."""
        return self._run.directory.read_config()

    @property
    def result(self) -> Mapping[str, Any]:
        """The content of result.json."""
        return self._run.outcome

    @property
    def op(self) -> float:
        """The mean score on all tasks at the end, in percent."""
        return self.result["op"]

    @property
    def bwt(self) -> float | None:
        """The points that tasks gained after they were learned; None for a single task."""
        return self.result["bwt"]

    @property
    def matrix(self) -> pd.DataFrame:
        """The score on each task (rows) after each stage (columns), in percent."""
        tasks = pd.Index(self.result["tasks"], name="score on")
        stages = pd.Index(self.result["stages"], name="after")
        return pd.DataFrame(self.result["matrix"], index=tasks, columns=stages, dtype=float)

    @property
    def runs(self) -> pd.DataFrame:
        """Scores and costs, in a frame of one row like those of a sweep."""
        return pd.DataFrame([self._run.summary()])

    @property
    def events(self) -> pd.DataFrame:
        """The replays and probes of earlier tasks: the lines of events.jsonl."""
        return pd.DataFrame(self._run.events)

    @property
    def steps(self) -> pd.DataFrame:
        """The updates: the lines of steps.jsonl."""
        return pd.DataFrame(self._run.steps)

    def __repr__(self) -> str:
        bwt = "" if self.bwt is None else f", BWT {self.bwt:+.1f}"
        return f"<run {visible(self._run.title)}: OP {self.op:.1f}{bwt}, {_near(self.folder)}>"

    def _repr_html_(self) -> str:
        return notebook_table(self.matrix.rename(index=visible, columns=visible), repr(self)[1:-1])


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The runs of a sweep, of a search, or of a folder; some of them may not be finished."""

    _study: Study

    @property
    def folder(self) -> Path:
        """The folder that holds the runs."""
        return self._study.folder

    @property
    def failed(self) -> dict[str, str]:
        """The runs that ended without a result, by key, and why."""
        failed: dict[str, str] = {}
        for run in self._study.missing:
            if run.damage or run.state.startswith("failed"):
                failed[run.key] = run.damage or run.state.removeprefix("failed: ")
        return failed

    @property
    def runs(self) -> pd.DataFrame:
        """A row a run: variant, order, seed, state, scores and costs."""
        return pd.DataFrame([run.summary() for run in self._study.runs])

    @property
    def matrix(self) -> pd.DataFrame:
        """A row a score: of a run, on a `task`, after a `stage` (`after` is its number, from 1)."""
        return self._lines(Run.cells)

    @property
    def events(self) -> pd.DataFrame:
        """The replays of all finished runs: the lines of events.jsonl."""
        return self._lines(lambda run: run.events)

    @property
    def steps(self) -> pd.DataFrame:
        """The updates of all finished runs: the lines of steps.jsonl."""
        return self._lines(lambda run: run.steps)

    def _lines(self, lines_of: Callable[[Run], Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
        """Join lines of all finished runs, each behind the columns that identify its run."""
        rows: list[dict[str, Any]] = []
        for run in self._study.finished:
            rows += [{**run.identity(), **line} for line in lines_of(run)]
        return pd.DataFrame(rows)

    @property
    def table(self) -> pd.DataFrame:
        """The report's table in numbers, a row a variant: scores in percent, differences in points,
        ends of 95 % intervals as in `op`, `op_low`, `op_high`, and verdicts."""
        tables: list[pd.DataFrame] = []
        for part in self._study.parts:
            table = number_table(frame_of(part.rows))
            tables.append(table.set_index("variant").assign(benchmark=part.benchmark))
        return pd.concat(tables)

    def write_report(self) -> Path:
        """Write report.html, report.json and figures/, and return the page.

        Raises:
            InputError: the folder or its storage cannot be written.
        """
        page = write_report(self._study)
        upload_report(page)
        return page

    def __repr__(self) -> str:
        finished, planned = len(self._study.finished), len(self._study.runs)
        done = f"{finished} of {plural(planned, 'run')} finished"
        return f"<sweep {visible(self._study.name)}: {done}, {_near(self.folder)}>"

    def _repr_html_(self) -> str:
        pages: list[str] = []
        for part in self._study.parts:
            texts = text_table(frame_of(part.rows), "scores").map(visible)
            caption = f"{repr(self)[1:-1]}, on {part.benchmark}; brackets: 95 % intervals"
            pages.append(notebook_table(texts.set_index("variant"), caption))
        return "\n".join(pages)


def run(
    config: str | Path | RunConfig | Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    *,
    out: str | Path = "runs",
    workers: int | None = None,
    mlflow: str | None = None,
    placement: Placement = Placement(),
) -> RunResult:
    """Train or resume one run; a finished one is read and not repeated.

    Args:
        config: a YAML file, a name such as "mini/forever", a configuration, or its sections as a
            dict, e.g. {"model": {"name": "tiny"}}.
        changes: values by dotted keys, e.g. {"optim.lr": 1e-3}.
        out: the folder that gets the run's directory.
        workers: processes of Ray Train that share the run; None: it is trained in this one.
        mlflow: the address of the store that mirrors it, or "auto"; None: none does.
        placement: how it uses the machine, e.g. Placement(device="cuda:1", micro_batch=4).

    Raises:
        InputError: an argument is wrong, or the folder holds something else.
        KeyboardInterrupt: Ctrl-C; the run has saved, and the same call resumes it.
    """
    settings = _config(config).override(changes or {})
    folder = local_folder(str(out)) / settings.key()
    download(folder)
    prepared = prepare(settings, folder, resume=True)
    resources = Resources(workers=workers, placement=placement, mlflow=mlflow_uri(mlflow))
    with watched() as line, closing(ConsoleTracker(line.console())) as progress:
        train(prepared, resources, [progress])
    return RunResult(read_study(folder).runs[0])


def sweep(
    name: str | Path,
    changes: Mapping[str, Any] | None = None,
    *,
    on: str | Path | RunConfig | Mapping[str, Any] | None = None,
    scale: str = "mini",
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    until: float | None = None,
    budget_s: float | None = None,
    trials: int | None = None,
    retry_failed: bool = False,
    out: str | Path = "runs",
    concurrent: int | None = None,
    workers: int | None = None,
    mlflow: str | None = None,
    placement: Placement = Placement(),
) -> SweepResult:
    """Run a sweep or a search with Ray Tune; finished runs are not repeated.

    Args:
        name: a sweep of the package, such as "components", or a YAML file.
        changes: values by dotted keys, for all runs.
        on: the run from which the variants differ, as for `run`; None: the file's for `scale`.
        scale: "mini", "cpu" or "paper".
        seeds: None: those of the file.
        only: variants to run, with what they are compared with; none: all.
        until: add seeds until each difference is shown, or shown to be within these points.
        budget_s: add seeds as long as they fit into these seconds.
        trials: the number of runs of a search; None: as its file says.
        retry_failed: also run what failed for good before.
        out: the folder that gets the sweep's folder.
        concurrent: runs at a time; None: as many as fit.
        workers: as in `run`.
        mlflow: as in `run`.
        placement: as in `run`.

    Returns:
        Its finished runs; `failed` says why others have no result.

    Raises:
        InputError: an argument is wrong, or no run finished.
        KeyboardInterrupt: Ctrl-C; the runs have saved, and the same call resumes them.
    """
    file = load_sweep(str(name))
    base = _config(file.base_run(scale) if on is None else on)
    limits = None if until is None and budget_s is None else Limits(until, budget_s)
    request = Request(file, base, changes or {}, seeds, only, trials, limits)
    uri = mlflow_uri(mlflow)
    resources = Resources(
        concurrent, workers, placement=placement, mlflow=uri, retry_failed=retry_failed
    )
    root = local_folder(str(out))
    with watched() as line:
        outcome = run_file(request, root, resources, line.say, line.console())
    folder, failed = request.folder(root), outcome.failed
    if failed and not (outcome.finished or outcome.skipped):
        key, reason = next(iter(failed.items()))
        raise InputError(f"{folder}: none of its runs finished; {key}: {reason}")
    study = read_study(folder)
    if uri is not None:
        from forever.launch.mlflow.tracker import show_sweep

        show_sweep(folder, uri, study, complain)
    return SweepResult(study)


def load(folder: str | Path) -> RunResult | SweepResult:
    """Read a run's directory, a sweep's folder or a folder of runs; nothing is trained.

    Raises:
        InputError: no run in it is finished, or its files are damaged.
    """
    path = local_folder(str(folder))
    download(path)
    study = read_study(path)
    if study.runs[0].directory.path == study.folder:
        return RunResult(study.runs[0])
    return SweepResult(study)


def _config(run: str | Path | RunConfig | Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a name, a file, sections or a configuration stand for."""
    if isinstance(run, Mapping):
        return RunConfig.parse(run)
    return run if isinstance(run, RunConfig) else load_run(str(run))


def _near(folder: Path) -> str:
    """Return a folder as one would type it here."""
    here = Path.cwd()
    return visible(folder.relative_to(here) if folder.is_relative_to(here) else folder)
