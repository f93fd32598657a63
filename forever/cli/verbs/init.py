"""`forever init`: files to begin with."""

import re
import shlex
from enum import StrEnum
from pathlib import Path

from typer import Argument, Option

from forever.cli.options import NAMED_RUN
from forever.cli.shown import print_lines
from forever.errors import InputError, shown

_STARTERS = Path(__file__).parents[1] / "starters"
_EXAMPLES = ("opinions", "food")  # what the tasks ask about, in turn
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}")


class What(StrEnum):
    """What can be begun."""

    RUN = "run"
    SWEEP = "sweep"


def init(
    what: What = Argument(What.RUN, help="A run's file or a sweep's."),
    task: str | None = Option(
        None, "--task", metavar="NAME", help="A task instead: a folder with examples, and its run."
    ),
    on: str | None = Option(
        None, help=f"The run that is written: {NAMED_RUN}; default: mini/forever."
    ),
    to: Path | None = Option(
        None, "--to", help="The file; with --task the folder of tasks. Default: its own name here."
    ),
) -> None:
    """Write a run, a task or a sweep with comments, which runs as it is; nothing is overwritten.

    Examples:
        forever init
        forever init --on superni/7/forever --to superni.yaml
        forever init --task first
        forever init sweep
    """
    from forever.files import write_text, writing

    if (task is not None and (what is What.SWEEP or on)) or (what is What.SWEEP and on):
        raise InputError("init writes one of a run (--on), a sweep and a task (--task); give one")
    if task is not None:
        files = _task_files(to or Path("tasks"), task)
    else:
        files = _file(what, on, to or Path(f"{what}.yaml"))
    for path in files:
        if path.exists():
            raise InputError(f"{path} exists, and init overwrites nothing; give another name")
    for path, text in files.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    run = shlex.quote(str([*files][-1]))
    print_lines([*(f"wrote {path}" for path in files), f"next  forever {what} {run}"])


def _file(what: What, on: str | None, file: Path) -> dict[Path, str]:
    """The YAML file of a run or of a sweep, with its text."""
    from forever.cli.starters.run import run_text
    from forever.sweeps.named_runs import load_run

    if file.suffix not in (".yaml", ".yml"):
        raise InputError(f"--to {file}: the file of a {what} ends in .yaml, as {what}.yaml does")
    if what is What.RUN:
        return {file: run_text(load_run(on or "mini/forever"), str(file))}
    text = (_STARTERS / "sweep.yaml").read_text(encoding="utf-8")
    return {file: text.replace("sweep.yaml", str(file))}


def _task_files(folder: Path, name: str) -> dict[Path, str]:
    """The files of a task in a folder of tasks, and last a run on all tasks there."""
    from forever.cli.starters.run import as_yaml
    from forever.config.orders import ORDERS
    from forever.data.sources import find_tasks

    if not _NAME.fullmatch(name):
        raise InputError(f"--task {shown(name)}: a task has a name of letters, digits, _ and -")
    benchmark = folder.resolve().name
    if benchmark in ("", *ORDERS):
        raise InputError(
            f"--to {shown(str(folder))}: the folder's name names the benchmark, which needs a name "
            f"other than {', '.join(ORDERS)}; give another folder"
        )
    others = sorted({*find_tasks(folder)} - {name}) if folder.is_dir() else []
    examples = _STARTERS / _EXAMPLES[len(others) % 2]
    files: dict[Path, str] = {}
    for split in ("train.jsonl", "test.jsonl"):
        files[folder / name / split] = (examples / split).read_text(encoding="utf-8")
    run = folder.parent / f"{name}.yaml"
    if folder.name in ("", ".."):  # the working folder, or the one above
        folder = folder.resolve()
    values = {
        "FILE": str(run),
        "BENCHMARK": as_yaml(benchmark),
        "ROOT": as_yaml(str(folder.parent)),
        "ORDER": as_yaml([*others, name]),
    }
    text = (_STARTERS / "task.yaml").read_text(encoding="utf-8")
    files[run] = re.sub("|".join(values), lambda match: values[match[0]], text)
    return files
