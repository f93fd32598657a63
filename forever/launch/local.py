"""A run in this process, and everything that is checked before it."""

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.prompts import Prompt, make_prompt
from forever.data.tasks import Benchmark, Learned
from forever.errors import InputError
from forever.files import make_folder, writing
from forever.launch.copies import follow
from forever.launch.resources import Allocation, Placement
from forever.models import identity, location
from forever.runs.directory import RunDirectory
from forever.runs.lock import locked
from forever.runs.tracking import Tracker
from forever.stopping import overhearing
from forever.storage.store import uploading

if TYPE_CHECKING:
    from forever.world import World


@dataclass(frozen=True)
class Prepared:
    """A run whose folder was checked and whose data were read, once a process; see `prepare`."""

    config: RunConfig
    directory: RunDirectory
    benchmark: Benchmark
    resume: bool = False  # whether an unfinished run in the folder may be resumed


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

    A sixth of that time would go to the garbage collector, which would visit half a million new
    objects again and again. They stay, so it waits for them, and never visits them later.
    """
    gc.disable()
    try:
        import peft  # noqa: F401
        import transformers.modeling_utils  # noqa: F401

        import forever.training.loop  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def prepare(
    config: RunConfig, path: Path, resume: bool = False, past: Mapping[str, Learned] | None = None
) -> Prepared:
    """Check a run before torch is imported or anything is downloaded, and read its data.

    Args:
        past: of a fork, what its origin wrote of the tasks before it (`Origin.learned`); without it
            what is in the folder.

    Raises:
        InputError: bad data, no model weights, a folder that holds another run, or one that is
            finished on other examples, or damaged.
    """
    directory = RunDirectory(path)
    location.check(config.model.name)
    directory.check(config, resume)
    if directory.result.is_file():
        directory.verify()
    if past is None:
        past = TypeAdapter(dict[str, Learned]).validate_python(directory.learned())
    benchmark = load_benchmark(config.data, load_prompt(config), past)
    check_unchanged(directory, config, benchmark)
    check_models(config, benchmark)
    return Prepared(config, directory, benchmark, resume)


def load_prompt(config: RunConfig) -> Prompt:
    """Return how a run shows its examples; a chat template needs the tokenizer of its model."""
    tokenizer = None
    if config.data.prompt not in ("alpaca", "none"):
        from forever.models.loading import load_tokenizer  # with torch, which takes seconds

        tokenizer = load_tokenizer(config.model.name)
    return make_prompt(config.data, tokenizer)


def check_models(config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a budget for another number of tasks, a method that cannot read the examples, an
    adapter that PEFT does not know or that a run cannot begin from, an unfit encoder, or a model
    that is too narrow for the method."""
    tasks = len(benchmark.tasks)
    config.budget.check(tasks)
    for task in benchmark.tasks:
        if config.method.needs_inputs and any(example.turns for example in task.train):
            raise InputError(
                f"method {config.method.name} makes up inputs for an instruction, and task "
                f"{task.name} has conversations; give it instruction, input and output, or take "
                "another method",
                key="method.name",
            )
    if config.model.adapter or config.model.init is not None:
        from forever.models.adapter import begun, describe  # with PEFT and torch: seconds

        config = begun(config)
        describe(config.model)
    for field, model in config.method.models().items():
        location.check(model, f"method.{field}")
    width = location.width(config.model.name)
    if width is not None:
        config.method.check_width(config, tasks, width)


def check_unchanged(directory: RunDirectory, config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a finished run that learned other examples, or whose model or encoder has other files
    now."""
    result = directory.finished() or {}
    learned = result.get("data", {})
    for task in benchmark.tasks:
        if task.name in learned and learned[task.name] != task.digest():
            raise InputError(
                f"{directory.path} is finished, and the rows of task {task.name} are no longer "
                "those that it learned; give another --out, or those rows"
            )
    lines = identity.changed(result.get("model", {}), config)
    if lines:
        raise InputError(
            f"{directory.path} is finished, and the files that it read are others now: {lines[0]}; "
            "give another --out, or those files"
        )


def run_local(
    config: RunConfig,
    path: Path,
    *,
    resume: bool = False,
    trackers: Sequence[Tracker] = (),
    placement: Placement = Placement(),
    world: "World | None" = None,
) -> dict[str, Any]:
    """Prepare a run and train it in this process; see `prepare` and `run_prepared`."""
    return run_prepared(prepare(config, path, resume), placement, trackers, world)


def run_prepared(
    prepared: Prepared,
    placement: Placement = Placement(),
    trackers: Sequence[Tracker] = (),
    world: "World | None" = None,
) -> dict[str, Any]:
    """Train a run, or resume it, and return what is in result.json.

    A finished run is left as it is.

    Raises:
        InputError: a model cannot be downloaded, or another process has put something else into
            the folder meanwhile.
    """
    config, directory = prepared.config, prepared.directory
    finished = directory.finished()
    if finished is not None:
        return finished
    # A model that is not on this machine is downloaded, or refused, before the run has a folder.
    models = {"model.name": config.model.name}
    models |= {f"method.{field}": model for field, model in config.method.models().items()}
    for key, model in models.items():
        if location.find(model) is None:
            location.fetch(model, key)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from forever.methods.registry import build_method
    from forever.runs.environment import describe
    from forever.runs.session import Session
    from forever.training.loop import run
    from forever.world import World, pick_device

    world = world or World(device=pick_device(placement.device))
    # Until every rank has checked: to a late one the leader's files would look like an older run.
    world.wait()
    with writing(directory.path):  # before the lock, which would wait for a folder
        make_folder(directory.path)
    held = locked(directory.path, world.leads)
    with held, uploading(directory.path, needed=world.leads) as push_checkpoint:
        if world.leads:
            # Another process may have had the folder until now.
            directory.check(config, prepared.resume)
        # The others wait here until the leader holds the folder. They take its word, since files
        # may reach them later.
        finished_by_another = world.gather([directory.finished() is not None])[0][0]
        if not world.leads:
            follow(directory.path)
        world.wait()  # the leader changes files from here on
        begins = world.leads and not directory.config.is_file()
        if not finished_by_another:
            if world.leads:
                # Another division of batches moves last bits, as another machine does.
                division = {"workers": world.size, "micro_batch": placement.micro_batch}
                directory.create(config, describe() | division)
                directory.ended.unlink(missing_ok=True)  # it is resumed
            session = Session(
                config,
                directory,
                world,
                trackers,
                checkpoint_s=placement.checkpoint_s,
                hang_s=placement.hang_s,
                keep_stages=placement.keep_stages,
                accept_changes=placement.accept_changes,
                on_checkpoint=push_checkpoint,
            )
            with closing(session):
                method = build_method(config.method)
                try:
                    run(config, method, prepared.benchmark, session, world, placement.micro_batch)
                except InputError:  # which is found before anything is trained
                    if begins and not directory.steps.is_file():
                        directory.clear()
                    raise
                except FloatingPointError as error:  # it diverged, and would again
                    if world.leads:
                        directory.end("failed", str(error))
                    raise
    return directory.finished() or {}


def run_allocated(
    prepared: Prepared,
    allocation: Allocation,
    trackers: Sequence[Tracker] = (),
    world: "World | None" = None,
) -> dict[str, Any]:
    """Train a run in a process that Ray started, which may have trained another one before.

    It is trained as a rank of `world` or alone; see `run_prepared`.
    """
    load_libraries()
    import torch

    from forever.models.device import make_room

    if allocation.threads:
        torch.set_num_threads(allocation.threads)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        # A machine that is taken away says so by SIGTERM.
        with overhearing():
            return run_prepared(prepared, allocation.placement, trackers, world)
    finally:
        make_room()
