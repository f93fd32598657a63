"""A run in this process, and everything that is checked before it."""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.files import make_folder, writing
from forever.launch.copies import follow
from forever.models import identity, location
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.storage.mirror import mirrored

if TYPE_CHECKING:
    from forever.training.world import World


@dataclass(frozen=True)
class Placement:
    """How a run uses its machine.

    Nothing here changes what is computed, up to rounding and the masks of dropout.
    """

    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto is a GPU where there is one
    micro_batch: int | None = None  # examples at once, which saves memory; None: a whole batch
    checkpoint_s: float = 60.0  # seconds between checkpoints within a task
    keep_stages: bool = False  # weights of every stage, where other runs can fork
    accept_changes: bool = False  # go on though data, model or code are others than at the start
    # Seconds without a step after which a run hangs; 0 is never. The slowest steps that were seen,
    # reading a large model's checkpoint or a pass over a task, take minutes.
    hang_s: float = 1800.0


def choose_kernels(runs: Iterable[RunConfig], processor: Path = Path("/proc/cpuinfo")) -> None:
    """Let PyTorch take its kernels for AVX2 where it would take those for AVX-512.

    AVX-512 lowers the clock of some processors: with AVX2 all of an update took a tenth to a fifth
    less time there, and about as much on another (docs/performance.md). Runs in bf16 are left
    alone, since PyTorch's attention in it needs AVX-512 where there is AMX. PyTorch reads the
    variable when it first computes, and processes that are started here inherit it.
    """
    if any(run.model.dtype == "bfloat16" for run in runs):
        return
    with suppress(OSError), processor.open(encoding="utf-8") as lines:
        if any(line.startswith("flags") and " avx512f " in line for line in lines):
            os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")


@cache
def load_libraries() -> None:
    """Load what training needs, in a process that is there for nothing else.

    A sixth of that time would go to the garbage collector, which looks at half a million new
    objects again and again. They stay, so it waits for them, and never looks at them later.
    """
    gc.disable()
    try:
        import peft  # noqa: F401
        import transformers.modeling_utils  # noqa: F401

        import forever.training.loop  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def check(config: RunConfig, directory: RunDirectory, resume: bool) -> Benchmark:
    """Check a run before torch is imported or anything is downloaded; returns its data.

    Raises:
        InputError: bad data, no model weights, a folder that holds another run, or one that is
            finished on other examples, or damaged.
    """
    location.check(config.model.name)
    directory.check(config, resume)
    if directory.result.is_file():
        directory.verify()
    benchmark = load_benchmark(config.data)
    check_examples(directory, digests(benchmark))
    check_method(config, len(benchmark.tasks))
    check_model(directory, config)
    return benchmark


def check_method(config: RunConfig, tasks: int) -> None:
    """Refuse an adapter that PEFT does not know, an unfit encoder, or a narrow model."""
    if config.model.adapter:
        from forever.models.adapter import describe  # with PEFT and torch, which take seconds

        describe(config.model)
    for field, model in config.method.models().items():
        location.check(model, f"method.{field}")
    width = location.width(config.model.name)
    if width is not None:
        config.method.check_width(config, tasks, width)


def check_examples(directory: RunDirectory, now: Mapping[str, str]) -> None:
    """Refuse a finished run whose tasks are not those that are there `now` (digests by name)."""
    learned = (directory.finished() or {}).get("data", {})
    for task in learned.keys() & now.keys():
        if learned[task] != now[task]:
            raise InputError(
                f"{directory.path} is finished, and the rows of task {task} are no longer those "
                "that it learned; give another --out, or those rows"
            )


def check_model(directory: RunDirectory, config: RunConfig) -> None:
    """Refuse a finished run whose model, or encoder, has other files now."""
    lines = identity.changed((directory.finished() or {}).get("model", {}), config)
    if lines:
        raise InputError(
            f"{directory.path} is finished, and the files that it read are others now: {lines[0]}; "
            "give another --out, or those files"
        )


def digests(benchmark: Benchmark) -> dict[str, str]:
    """The digest of each task by name."""
    return {task.name: task.digest() for task in benchmark.tasks}


def run_local(
    config: RunConfig,
    path: Path,
    *,
    resume: bool = False,
    trackers: Sequence[Tracker] = (),
    placement: Placement = Placement(),
    world: "World | None" = None,
    benchmark: Benchmark | None = None,
) -> dict[str, Any]:
    """Run or go on with a run, and return what is in result.json; a finished one is left as it is.

    Args:
        benchmark: what `check` returned, if the caller has called it.

    Raises:
        InputError: see `check`.
    """
    directory = RunDirectory(path)
    benchmark = benchmark or check(config, directory, resume)
    finished = directory.finished()
    if finished is not None:
        return finished
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from forever.runs.session import Session
    from forever.training.loop import run
    from forever.training.world import World, pick_device

    world = world or World(device=pick_device(placement.device))
    # Until every rank has checked: to a late one the leader's files would look like an older run.
    world.wait()
    with writing(directory.path):  # before the lock, which would wait for a folder
        make_folder(directory.path)
    held = locked(directory.path, world.leads)
    with held, mirrored(directory.path, world.leads, at_once=world.size > 1):
        if world.leads:
            directory.check(config, resume)  # another process may have had the folder until now
        # The others wait here until the leader holds the folder. They take its word, since files
        # may reach them later.
        finished_by_another = world.gather([directory.finished() is not None])[0][0]
        if not world.leads:
            follow(directory.path)
        world.wait()  # the leader changes files from here on
        if not finished_by_another:
            if world.leads:
                _create(directory, config, world.size, placement.micro_batch)
            session = Session(
                config,
                directory,
                world,
                trackers,
                checkpoint_s=placement.checkpoint_s,
                hang_s=placement.hang_s,
                keep_stages=placement.keep_stages,
                accept_changes=placement.accept_changes,
            )
            with _remembered(directory, world.leads), closing(session):
                run(config, benchmark, session, world, placement.micro_batch)
    return directory.finished() or {}


def _create(
    directory: RunDirectory, config: RunConfig, workers: int, micro_batch: int | None
) -> None:
    """Write what describes a run that begins or goes on."""
    from forever.runs.environment import describe

    # Another division of batches moves last bits, as another machine does.
    division = {"workers": workers, "micro_batch": micro_batch}
    directory.create(config, describe() | division)
    directory.ended.unlink(missing_ok=True)  # it goes on


@contextmanager
def _remembered(directory: RunDirectory, leads: bool) -> Iterator[None]:
    """Write down why a run diverged: it would again."""
    try:
        yield
    except FloatingPointError as error:
        if leads:
            directory.end("failed", str(error))
        raise
