"""How a benchmark is built from a configuration: read, ordered, checked, limited."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forever.config.parts import DataConfig
from forever.data.hub import read_dataset
from forever.data.mini import mini
from forever.data.orders import LONG_TASKS, ORDERS
from forever.data.sources import DATA_SEED, limited, read_task, task_names
from forever.data.tasks import Benchmark, Example, Metric, Task
from forever.errors import InputError, unknown
from forever.seeding import permutation

# Standard CL is four of the fifteen tasks of Long Sequence and shares its folder.
FOLDERS = {
    "standard": ("long_sequence",),
    "long": ("long_sequence",),
    "superni": ("superni",),
    "thirty": ("long_sequence", "superni"),
}
# The classification tasks of SuperNI's fifteen; ROUGE-L scores the others (docs/protocol.md).
SUPERNI_CLASSIFICATION = {"task363", "task875", "task1687"}


def load_benchmark(config: DataConfig) -> Benchmark:
    """Read and check the benchmark that a configuration names.

    Raises:
        InputError: unknown benchmark, order or task, missing or malformed files, train rows that
            occur in test.
    """
    root = None if config.root is None else Path(config.root).expanduser()
    if config.datasets:
        return _described(config, root)
    if config.benchmark == "mini":
        return _limited(
            _held_out(_mini(config.order), config.validation), config.train_rows, config.test_rows
        )
    if root is None:
        names = FOLDERS.get(config.benchmark, (config.benchmark,))
        raise InputError(
            f"data.root is not set, but benchmark {config.benchmark!r} is read from a folder "
            f"(known: {', '.join(ORDERS)}; mini is embedded); give data.root=DIR that has "
            f"{_listed(names)}"
        )
    folders = [root / name for name in FOLDERS.get(config.benchmark, (config.benchmark,))]
    home = _homes(folders)
    tasks = []
    for name in _order(config, sorted(home)):
        if name not in home:
            raise unknown(f"task in {' or '.join(map(str, folders))}", name, home)
        tasks.append(_task(config, name, *read_task(home[name], name)))
    return _sequence(config, tasks)


def _described(config: DataConfig, root: Path | None) -> Benchmark:
    """The benchmark whose tasks the configuration describes itself."""
    if config.benchmark in ORDERS:
        raise InputError(
            f"data.datasets: benchmark {config.benchmark!r} has its own tasks; give "
            "data.benchmark another name"
        )
    tasks = []
    for name in _order(config, list(config.datasets)):
        if name not in config.datasets:
            raise unknown("task in data.datasets", name, config.datasets)
        tasks.append(_task(config, name, *read_dataset(name, config.datasets[name], root)))
    return _sequence(config, tasks)


def _task(
    config: DataConfig, name: str, train: tuple[Example, ...], test: tuple[Example, ...]
) -> Task:
    _check_splits(name, train, test)
    labels = _labels(train)
    metric = config.metrics.get(name) or _metric(config.benchmark, name, labels)
    return Task(name, train, test, metric, labels if metric == "exact_match" else None)


def _sequence(config: DataConfig, tasks: Sequence[Task]) -> Benchmark:
    order = config.order if isinstance(config.order, str) else "-".join(config.order)
    benchmark = _held_out(Benchmark.sequence(config.benchmark, order, tasks), config.validation)
    return _limited(benchmark, config.train_rows, config.test_rows)


def _mini(order: str | Sequence[str]) -> Benchmark:
    tasks = {task.name: task for task in mini().tasks}
    if isinstance(order, str):
        if order not in ORDERS["mini"]:
            raise unknown("order of benchmark mini", order, ORDERS["mini"])
        return Benchmark.sequence("mini", order, (tasks[name] for name in ORDERS["mini"][order]))
    for name in order:
        if name not in tasks:
            raise unknown("task of benchmark mini", name, tasks)
    return Benchmark.sequence("mini", "-".join(order), (tasks[name] for name in order))


def _homes(folders: Sequence[Path]) -> dict[str, Path]:
    """The folder of each task that is there."""
    homes: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(
                f"data.root: there is no folder {folder}; the layouts are listed in the README, "
                "under Data"
            )
        homes |= dict.fromkeys(task_names(folder), folder)
    return homes


def _listed(folders: Sequence[str]) -> str:
    return f"the folder{'s' * (len(folders) > 1)} {' and '.join(map(repr, folders))}"


def _order(config: DataConfig, present: Sequence[str]) -> Sequence[str]:
    if not isinstance(config.order, str):
        return config.order
    orders = ORDERS.get(config.benchmark)
    if orders is None:
        raise InputError(
            f"data.order: benchmark {config.benchmark!r} has no named orders; list its tasks, e.g. "
            f"data.order=[{', '.join(present[:3])}]"
        )
    if config.order not in orders:
        raise InputError(
            f"data.order: {config.benchmark} has no order {config.order!r}; "
            f"valid: {', '.join(orders)}"
        )
    return orders[config.order]


def _labels(train: Sequence[Example]) -> tuple[str, ...] | None:
    """The answers, if they look like labels: at most 50, and each used five times on average."""
    answers = sorted({example.output.strip() for example in train})
    return tuple(answers) if len(answers) <= 50 and 5 * len(answers) <= len(train) else None


def _metric(benchmark: str, task: str, labels: tuple[str, ...] | None) -> Metric:
    if benchmark in ("standard", "long"):
        return "exact_match"
    if benchmark in ("superni", "thirty"):
        return "exact_match" if task in SUPERNI_CLASSIFICATION or task in LONG_TASKS else "rouge_l"
    return "exact_match" if labels else "rouge_l"


def _check_splits(name: str, train: Sequence[Example], test: Sequence[Example]) -> None:
    trained = {(e.instruction.strip(), e.input.strip()): e.id for e in train}
    for example in test:
        twin = trained.get((example.instruction.strip(), example.input.strip()))
        if twin is not None:
            raise InputError(
                f"task {name}: test row {example.id} repeats train row {twin}; splits must be "
                "disjoint, remove one"
            )


def _held_out(benchmark: Benchmark, share: float | None) -> Benchmark:
    """Return the benchmark with a share of each task's training examples for its test examples.

    They are the same ones in every run.
    """
    if share is None:
        return benchmark
    tasks: list[Task] = []
    for task in benchmark.tasks:
        count = round(share * len(task.train))
        if not 0 < count < len(task.train):
            raise InputError(
                f"data.validation={share}: task {task.name} has {len(task.train)} training rows; "
                f"{count} of them cannot be held out, give another share"
            )
        held = set(permutation(len(task.train), DATA_SEED, "validation", task.name)[:count])
        train = tuple(example for i, example in enumerate(task.train) if i not in held)
        test = tuple(example for i, example in enumerate(task.train) if i in held)
        tasks.append(replace(task, train=train, test=test))
    return Benchmark.sequence(benchmark.name, benchmark.order, tasks)


def _limited(benchmark: Benchmark, train_rows: int | None, test_rows: int | None) -> Benchmark:
    if train_rows is None and test_rows is None:
        return benchmark
    tasks = [
        replace(
            task,
            train=limited(task.train, train_rows, "train", task.name),
            test=limited(task.test, test_rows, "test", task.name),
        )
        for task in benchmark.tasks
    ]
    return Benchmark.sequence(benchmark.name, benchmark.order, tasks)
