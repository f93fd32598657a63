"""How a benchmark is built from a configuration: read, ordered, checked, limited."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from forever.config.orders import LONG_TASKS, ORDERS
from forever.config.parts import DataConfig
from forever.data.formats import ENDINGS
from forever.data.hub import Dataset
from forever.data.mini import TASKS, Embedded
from forever.data.prompts import Prompt, questions
from forever.data.sources import DATA_SEED, TaskFiles, find_tasks, limited
from forever.data.tasks import Benchmark, Example, Learned, Splits, Task
from forever.errors import InputError, Missing, unknown
from forever.reading import is_folder, path_of
from forever.scores import LABEL_LIKELIHOOD, TEXT_LIKELIHOOD, TRACE, score, with_digest
from forever.seeding import permutation
from forever.storage.address import is_address, local_folder
from forever.storage.remote import fetch

# Standard CL is four of the fifteen tasks of Long Sequence and shares its folder.
FOLDERS = {
    "standard": ("long_sequence",),
    "long": ("long_sequence",),
    "superni": ("superni",),
    "thirty": ("long_sequence", "superni"),
}
# The classification tasks of SuperNI's fifteen; ROUGE-L scores the others (docs/protocol.md).
SUPERNI_CLASSIFICATION = {"task363", "task875", "task1687"}
_MOST_LABELS = 50


@dataclass(frozen=True)
class Source:
    """The tasks that a configuration chooses from, by their names."""

    config: DataConfig
    where: str
    tasks: Mapping[str, TaskFiles | Dataset | Embedded]
    prompt: Prompt | None = None  # how examples are shown, if that is known
    past: Mapping[str, Learned] = field(default_factory=dict)  # see `load_benchmark`

    def order(self) -> Sequence[str]:
        """The names of the configuration's order.

        Raises:
            InputError: the order is unknown, or a metric is for an unknown task.
        """
        for name in self.config.metrics:
            if name not in self.tasks and name not in self.past:
                raise unknown(f"task in data.metrics, of {self.where}", name, self.tasks)
        benchmark, order = self.config.benchmark, self.config.order
        if not isinstance(order, str):
            return order
        orders = ORDERS.get(benchmark)
        if orders is None:
            raise InputError(
                f"data.order: benchmark {benchmark!r} has no named orders; list its tasks, e.g. "
                f"data.order=[{', '.join([*self.tasks][:3])}]",
                key="data.order",
            )
        if order not in orders:
            raise unknown(f"order of {benchmark}", order, orders, "data.order")
        return orders[order]

    def task(self, name: str) -> Task:
        """Read, check and limit a task.

        Raises:
            InputError: the name is unknown, its files are malformed, or train rows occur in test.
            Missing: a file does not exist.
        """
        config = self.config
        if name not in self.tasks:
            raise unknown(f"task in {self.where}", name, self.tasks)
        train, test = self.tasks[name].splits(needs_test=config.validation is None)
        if self.prompt:
            train = tuple(part for example in train for part in self.prompt.examples(example))
        test = self._last_answers(test)
        task = _task(config, name, (train, test), self.prompt)
        task = _held_out(task, config.validation, self.prompt)
        train = limited(task.train, config.train_rows, "train", name)
        test = limited(task.test, config.test_rows, "test", name)
        return replace(task, train=train, test=test)

    def _last_answers(self, test: tuple[Example, ...]) -> tuple[Example, ...]:
        """Return test examples as they are scored, by the last answer of a conversation."""
        if self.prompt is None:
            return test
        return tuple(self.prompt.answered(example)[-1] for example in test)

    def learned_task(self, name: str, learned: Learned) -> Task:
        """Read a task that another run learned, whose examples may be gone.

        Raises:
            InputError: its test examples are others now, or what there is of it is malformed.
        """
        test: tuple[Example, ...] = ()
        if name in self.tasks:
            try:
                return self.task(name)
            except Missing:
                # Where examples are held out, they are gone as well.
                if learned.tested and self.config.validation is None:
                    with suppress(Missing):
                        test = self._last_answers(self.tasks[name].examples("test"))
        test = limited(test, self.config.test_rows, "test", name)
        task = Task(name, (), test, learned.metric, learned.labels)
        if test and task.test_digest() != learned.test_digest:
            raise InputError(
                f"task {name}: its test examples or its metric differ from those of the run that "
                "learned it; put those back, or remove them"
            )
        return replace(task, learned=learned)


def load_benchmark(
    config: DataConfig, prompt: Prompt | None = None, past: Mapping[str, Learned] = {}
) -> Benchmark:
    """Read and check the benchmark that a configuration names.

    Args:
        prompt: how examples are shown; without it a conversation is not checked against that.
        past: what another run wrote of tasks that it learned; their training examples may be gone.

    Raises:
        InputError: unknown benchmark or order, or what is wrong with a task of it.
    """
    source = replace(find_source(config, prompt), past=past)
    tasks: list[Task] = []
    for name in source.order():
        if name in past:
            tasks.append(source.learned_task(name, past[name]))
        else:
            tasks.append(source.task(name))
    order = config.order if isinstance(config.order, str) else "-".join(config.order)
    return Benchmark.sequence(config.benchmark, order, tasks)


def find_source(config: DataConfig, prompt: Prompt | None = None) -> Source:
    """Find the tasks of a benchmark, without reading them; InputError if there are none."""
    root = _root(config)
    if config.datasets:
        if config.benchmark in ORDERS:
            raise InputError(
                f"data.datasets: benchmark {config.benchmark!r} has its own tasks; give "
                "data.benchmark another name"
            )
        sets = {name: Dataset(name, each, root) for name, each in config.datasets.items()}
        return Source(config, "data.datasets", sets, prompt)
    if config.benchmark == "mini":
        if root and find_tasks(root / "mini"):
            raise InputError(
                f"data.root: {root / 'mini'} has the name of the embedded benchmark; give the "
                "folder another name"
            )
        return Source(config, "benchmark mini", {name: Embedded(name) for name in TASKS}, prompt)
    folders = FOLDERS.get(config.benchmark, (config.benchmark,))
    if root is None:
        raise InputError(
            f"data.root is not set, but benchmark {config.benchmark!r} is read from a folder "
            f"(known: {', '.join(ORDERS)}; mini is embedded); give data.root=DIR that has "
            f"{' and '.join(map(repr, folders))}"
        )
    homes = [root / name for name in folders]
    if len(homes) == 1 and not (is_folder(homes[0]) or find_tasks(homes[0])) and find_tasks(root):
        homes = [root]  # it is the benchmark's folder itself, or the file of its one task
    tasks: dict[str, TaskFiles] = {}
    for folder in homes:
        if not is_folder(folder) and not find_tasks(folder):
            raise InputError(
                f"data.root: there is no folder {folder.absolute()}; docs/verbs/data.md lists the "
                "layouts"
            )
        tasks |= find_tasks(folder, past=True)
    return Source(config, " or ".join(map(str, homes)), dict(sorted(tasks.items())), prompt)


def _root(config: DataConfig) -> Path | None:
    """Where data.root is on this machine; what the configuration names there is fetched."""
    if config.root is None or not is_address(config.root):
        return None if config.root is None else path_of(config.root, "data.root")
    root = local_folder(config.root)
    names = FOLDERS.get(config.benchmark, (config.benchmark,))
    if config.datasets:
        names = [dataset.path for dataset in config.datasets.values() if not dataset.is_path]
    elif config.benchmark == "mini":
        names = []
    fetched = [fetch(root / name) for name in names]
    if fetched == [False] and not config.datasets:
        fetch(root, ENDINGS)  # it may be the benchmark's folder itself
    return root


def _task(config: DataConfig, name: str, splits: Splits, prompt: Prompt | None) -> Task:
    """Check a task's splits and find its labels and its metric."""
    train, test = splits
    trained = {each: example.id for example in train for each in questions(example, prompt)}
    known = any(name in order for order in ORDERS.get(config.benchmark, {}).values())
    does_it = " (`forever data prepare` does)" if known else ""
    for example in test:
        twin = trained.get(questions(example, prompt)[-1])
        if twin is not None:
            raise InputError(
                f"task {name}: test row {example.id} repeats train row {twin} (both counted from "
                f"0); splits must be disjoint, remove one{does_it}"
            )
    # Answers look like labels if there are at most 50, each used five times on average.
    answers = sorted({example.output.strip() for example in train})
    is_classification = len(answers) <= _MOST_LABELS and 5 * len(answers) <= len(train)
    exact = is_classification
    if config.benchmark in ("standard", "long"):
        exact = True
    elif config.benchmark in ("superni", "thirty"):
        exact = name in SUPERNI_CLASSIFICATION or name in LONG_TASKS
    by_rule = "exact_match" if exact else "rouge_l"
    if all(example.is_text for example in (*train, *test)):
        by_rule = TEXT_LIKELIHOOD
    metric = with_digest(config.metrics.get(name) or TRACE.get(name, by_rule))
    if metric == LABEL_LIKELIHOOD and len(answers) > _MOST_LABELS:
        raise InputError(
            f"data.metrics: task {name} has {len(answers)} different answers, and {metric} chooses "
            f"among {_MOST_LABELS} labels at most; take another metric",
            key="data.metrics",
        )
    if ":" in metric:  # the user's own is tried before anything is started
        for example in test[:1]:
            score(metric, [example.output], [example.output])
    labels = None
    if metric == LABEL_LIKELIHOOD or (is_classification and metric == "exact_match"):
        labels = tuple(answers)
    return Task(name, train, test, metric, labels)


def _held_out(task: Task, share: float | None, prompt: Prompt | None) -> Task:
    """Put a share of the training examples, the same in every run, for the test examples.

    Training examples that ask what one of those asks are left out.
    """
    if share is None:
        return task
    count = round(share * len(task.train))
    if not 0 < count < len(task.train):
        raise InputError(
            f"data.validation={share}: task {task.name} has {len(task.train)} training rows; "
            f"{count} of them cannot be held out, give another share"
        )
    held = set(permutation(len(task.train), DATA_SEED, "validation", task.name)[:count])
    test = tuple(example for i, example in enumerate(task.train) if i in held)
    held_questions = {each for example in test for each in questions(example, prompt)}
    train = tuple(each for each in task.train if held_questions.isdisjoint(questions(each, prompt)))
    if not train:
        raise InputError(
            f"data.validation={share}: all training rows of task {task.name} ask what those ask "
            "that are held out; give it more rows, or leave data.validation out"
        )
    return replace(task, train=train, test=test)
