"""`forever data check`: every task of a folder or of a run, read and checked as a run would."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median

from forever.config.parts import DataConfig
from forever.config.run import RunConfig
from forever.data.benchmarks import FOLDERS, find_source
from forever.data.encoding import Encoder
from forever.data.prompts import ALPACA, Chat, Prompt, questions
from forever.data.sources import find_tasks
from forever.data.tasks import Example, Task
from forever.errors import InputError, unknown
from forever.reading import is_folder
from forever.scores import BY_LIKELIHOOD, score
from forever.text import Cell, PlainTable, shortened

_MOST_LABELS, _LONGEST_LABEL = 4, 24  # of a task's answers that are shown
_MOST_NAMED = 3  # examples that are named


@dataclass
class Checked:
    """The tasks that can be read, each with its benchmark, and what a run would refuse."""

    where: str
    tasks: list[tuple[str, Task]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)  # how each of them was read
    prompt: Prompt | None = None

    @property
    def named(self) -> list[tuple[str, Task]]:
        """The tasks with their names, after the benchmark's if there are several."""
        if len({benchmark for benchmark, _ in self.tasks}) > 1:
            return [(f"{benchmark}/{task.name}", task) for benchmark, task in self.tasks]
        return [(task.name, task) for _, task in self.tasks]

    @property
    def has_conversations(self) -> bool:
        """Whether any example has turns."""
        return any(example.turns for _, task in self.tasks for example in task.train)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note an InputError as a problem, and continue after the block."""
        try:
            yield
        except InputError as error:
            self.problems.append(str(error))


def read_tasks(
    place: Path | RunConfig, only: Collection[str] = (), prompt: Prompt | None = None
) -> Checked:
    """Read the tasks of a folder of benchmarks, or of a run's one benchmark.

    Args:
        only: names of tasks; without any, all are read.
        prompt: how a run shows its examples, if that is known.

    Raises:
        InputError: there is nothing to read.
    """
    if isinstance(place, RunConfig):
        checked, configs = Checked("the run's data"), iter([place.data])
    else:
        checked = Checked(str(place))
        configs = _benchmarks_in(place, checked)
    checked.prompt = prompt
    names: set[str] = set()
    for config in configs:
        with checked.noting():
            source = find_source(config, prompt)
            for name in source.order():
                names.add(name)
                if not only or name in only:
                    with checked.noting():
                        task = source.task(name)
                        checked.origins.append(source.tasks[name].origin())
                        checked.tasks.append((config.benchmark, task))
    if not names and not checked.problems:
        raise InputError(
            f"{place} has no benchmark folder with tasks; docs/verbs/data.md lists the layouts"
        )
    for name in only:
        if name not in names:
            raise unknown(f"task in {checked.where}", name, names)
    return checked


def _benchmarks_in(root: Path, checked: Checked) -> Iterator[DataConfig]:
    """Yield the benchmarks in `root`, which may itself be a benchmark's folder."""
    if not is_folder(root) and not find_tasks(root):
        raise InputError(f"there is no folder {root}", path=root)
    root = root.absolute()
    folders: list[Path] = []
    with checked.noting():
        folders = [root] if find_tasks(root) else sorted(filter(is_folder, root.iterdir()))
    # A folder that several benchmarks share is read by the rules of the one with all its tasks.
    shared = {folders[0]: name for name, folders in FOLDERS.items() if len(folders) == 1}
    for folder in folders:
        with checked.noting():
            if tasks := find_tasks(folder):
                benchmark = shared.get(folder.name, folder.name)
                # In the folder itself a task of the benchmark's name would be taken for its folder.
                home = folder if benchmark in FOLDERS else folder.parent
                data = {"benchmark": benchmark, "order": [*tasks], "root": str(home)}
                yield RunConfig.parse({"data": data}).data


def tasks_table(checked: Checked) -> PlainTable:
    """Make the table of the tasks' sizes, metrics, overlaps and digests."""
    title = f"tasks in {checked.where}"
    benchmarks = {benchmark for benchmark, _ in checked.tasks}
    if len(benchmarks) == 1:
        title += f" (benchmark {min(benchmarks)})"
    numbers = ("train", "test", "metric", "labels", "overlap", "digest")
    table = _table(title, *numbers)
    table.caption = (
        "Overlap: test rows that are training rows of some task of the benchmark, except for case "
        "and blanks."
    )
    trained: defaultdict[str, set[str]] = defaultdict(set)
    for benchmark, task in checked.tasks:
        for example in task.train:
            trained[benchmark].update(map(_folded, questions(example, checked.prompt)))
    for (name, task), (benchmark, _) in zip(checked.named, checked.tasks, strict=True):
        tests = [_folded(questions(example, checked.prompt)[-1]) for example in task.test]
        overlap = sum(question in trained[benchmark] for question in tests)
        labels = Cell(len(task.labels), str(len(task.labels))) if task.labels else Cell(None, "-")
        sizes = (len(task.train), len(task.test))
        table.add_row(name, *sizes, task.metric, labels, _warning(overlap), task.digest())
    return table


def _folded(question: str | tuple[str, ...]) -> str:
    """Return a question without what case and blanks distinguish."""
    parts = [question] if isinstance(question, str) else question
    return " ".join(" \0 ".join(parts).lower().split())


def balance_table(checked: Checked) -> PlainTable:
    """Make the table of how often each answer occurs, in training and in test."""
    table = _table("answers: training rows + test rows", "different")
    table.add_column("most frequent")
    for name, task in checked.named:
        train = Counter(example.output.strip() for example in task.train)
        test = Counter(example.output.strip() for example in task.test)
        answers = [answer for answer, _ in (train + test).most_common()]
        texts: list[str] = []
        for answer in answers[:_MOST_LABELS]:
            label = shortened(answer, _LONGEST_LABEL) or "(nothing)"
            texts.append(f"{label} {train[answer]} + {test[answer]}")
        if len(answers) > _MOST_LABELS:
            texts.append("...")
        if len(answers) == len(task.train) + len(task.test):
            texts = ["each occurs once"]
        unseen = sorted(test.keys() - train.keys()) if task.labels else []
        if unseen:
            texts.append(f"in test only: {', '.join(unseen[:_MOST_LABELS])}")
        counts = {answer: [train[answer], test[answer]] for answer in answers}
        record = {"task": name, "answers": counts if task.labels else None, "unseen": unseen}
        table.add_row(name, len(answers), ", ".join(texts), record=record)
    return table


def doubts_table(checked: Checked) -> PlainTable:
    """Make the table of how tasks were read, and of what in them is probably not meant.

    A metric of the user's own that fails is added to the problems.
    """
    numbers = ("repeated", "contradictions", "unreachable")
    table = _table("read as, and what may not be meant", *numbers)
    table.add_column("labels taken for one")
    table.add_column("read as")
    named: list[str] = []
    for (name, task), origin in zip(checked.named, checked.origins, strict=True):
        with checked.noting():
            repeats, contradictions = _twins(task, checked.prompt)
            merged = _taken_for_one(task)
            lost = _unreachable(task)
            named += [f"{one} repeats {other}" for one, other in repeats[:_MOST_NAMED]]
            named += [f"{one} contradicts {other}" for one, other in contradictions[:_MOST_NAMED]]
            named += [f"{one} is unreachable" for one in lost[:_MOST_NAMED]]
            counts = [_warning(len(each)) for each in (repeats, contradictions, lost)]
            table.add_row(name, *counts, ", ".join(merged) or "-", origin)
    rules = (
        "Repeated: the question and answer of an earlier example of the split. Contradictions: its "
        "question with another answer. Unreachable: test answers that score less than 1 even if "
        "they are met."
    )
    table.caption = " ".join([rules, "; ".join(named) + "." if named else ""]).strip()
    return table


def _twins(
    task: Task, prompt: Prompt | None
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return pairs of examples of one question: with the same answer, and with different ones."""
    repeats: list[tuple[str, str]] = []
    contradictions: list[tuple[str, str]] = []
    for split in (task.train, task.test):
        firsts: dict[object, Example] = {}
        for example in split:
            first = firsts.setdefault(questions(example, prompt)[-1], example)
            is_same = first.output.strip() == example.output.strip()
            if first is not example:
                (repeats if is_same else contradictions).append((example.id, first.id))
    return repeats, contradictions


def _taken_for_one(task: Task) -> list[str]:
    """Return the pairs of different labels that the task's metric does not tell apart."""
    if not task.labels or task.metric in BY_LIKELIHOOD:
        return []
    labels = sorted({*task.labels, *(example.output.strip() for example in task.test)})
    pairs = list(combinations(labels, 2))
    scores = score(task.metric, [one for one, _ in pairs], [other for _, other in pairs])
    return [
        f"{one} = {other}" for (one, other), same in zip(pairs, scores, strict=True) if same == 1
    ]


def _unreachable(task: Task) -> list[str]:
    """Return the test examples whose answer does not score 1 against itself."""
    if task.metric in BY_LIKELIHOOD:
        return []
    answers = [example.output for example in task.test]
    scores = zip(task.test, score(task.metric, answers, answers), strict=True)
    return [example.id for example, value in scores if value < 1]


def lengths_table(checked: Checked, encoder: Encoder | None, config: RunConfig) -> PlainTable:
    """Make the table of the lengths of prompts and answers: in tokens with an encoder, which also
    counts cuts, else in words. What a run would refuse is added to the problems."""
    unit = "words" if encoder is None else f"tokens of {config.model.name}"
    numbers = ("prompt, median", "longest", "answer, longest", "cut in training", "in test")
    table = _table(f"lengths in {unit}", *numbers)
    cut: list[str] = []
    spelt: list[str] = []
    for name, task in checked.named:
        with checked.noting():
            examples = (*task.train, *task.test)
            cuts = [Cell(None, "-"), Cell(None, "-")]
            if encoder is None:
                prompts = [_words(example) for example in examples]
                answers = [len(example.output.split()) for example in examples]
            else:
                encoder.encode_all(task, config.evaluation.max_new_tokens)
                prompts = [encoder.count(encoder.prompt.text(example)) for example in examples]
                answers = [encoder.answer_length(example) for example in examples]
                spelt += [each.id for each in examples if encoder.spells_control_tokens(each)]
                # A test prompt has no answer to leave room for.
                tests = [each.id for each in task.test if encoder.encode_prompt(each).truncated]
                trained = [each.id for each in task.train if encoder.encode(each).truncated]
                cuts, cut = [_warning(len(trained)), _warning(len(tests))], cut + trained + tests
            middle = median(prompts)
            lengths = (Cell(middle, f"{middle:.0f}"), max(prompts), max(answers))
            table.add_row(name, *lengths, *cuts)
    if encoder is not None:
        rule = "prompts whose input loses its middle"
        if isinstance(encoder.prompt, Chat):
            rule = "conversations that lose their oldest turns, or the last its middle"
        table.caption = (
            f"Cut: {rule}{_first(cut)}, to stay with their answer within "
            f"model.max_length={config.model.max_length}."
        )
        if spelt:
            table.caption += (
                f" Control tokens such as EOS are spelt out in {len(spelt)} inputs{_first(spelt)}; "
                "the model reads them as such."
            )
    return table


def _first(names: list[str]) -> str:
    """The first of some examples' names, in parentheses."""
    more = ", ..." if len(names) > _MOST_NAMED else ""
    return f" ({', '.join(names[:_MOST_NAMED])}{more})" if names else ""


def _words(example: Example) -> int:
    turns = (turn.content for turn in example.turns)
    return len((" ".join(turns) or ALPACA.text(example)).split())


def _table(title: str, *numbers: str) -> PlainTable:
    """Make a table of tasks with columns to the right."""
    table = PlainTable(title=title)
    table.add_column("task", no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _warning(count: int) -> Cell:
    """Make the cell of a number that should be zero."""
    return Cell(count, str(count), "bold" if count else "")
