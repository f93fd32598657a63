"""What a run or a sweep will compute, how long that takes, and what it costs.

The method's own generator is driven with invented records, in which every update moves the
parameters equally far. So the number of task updates is exact, and so is that of replays by a clock
of updates. By the model clock replays are an estimate: a real run has fewer if its updates shrink.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from math import isnan, nan
from types import SimpleNamespace
from typing import Any, get_args

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from forever.config.run import RunConfig
from forever.data.batching import batch_count
from forever.data.encoding import Encoded, Encoder
from forever.data.tasks import Benchmark, Task
from forever.evaluation.decoding import together
from forever.launch.checks import PlannedRun
from forever.launch.local import load_prompt
from forever.launch.resources import Resources, divide
from forever.methods.registry import build_method
from forever.models.backbone import Backbone
from forever.models.parameters import FlatParameters
from forever.replay.times import day_seven, day_seven_of_updates
from forever.text import Cell, PlainTable
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.method import Method
from forever.training.steps import Action, Kind, Probe, Step, StepRecord, drive
from forever.world import World

UPDATES = get_args(Kind)
AT_THE_END = ("single", "openings", "texts")  # the kinds of work that `end_work` estimates
FORWARD = 1 / 3  # a pass forward takes a third of one forward and back


# ---- what one run computes


@dataclass
class Counts:
    """What one run computes, by kind of work.

    The kinds are those of updates; `probe`, a loss without an update; `single`, a batch whose
    examples go forward and back each on its own; `prompts` and `answers` of evaluation; `openings`
    and `texts` of what a method writes itself.
    """

    calls: Counter[str] = field(default_factory=Counter)  # updates, passes, steps of decoding
    tokens: Counter[str] = field(default_factory=Counter)  # in all examples, without padding
    events: Counter[str] = field(default_factory=Counter)  # replays, consolidations and probes
    examples: Counter[str] = field(default_factory=Counter)  # as `Learner.examples` counts them
    # The seconds of `budget.seconds` in all tasks that replay. In `calls` about one update a task
    # stands for them, by which a budget may be exceeded.
    budget_s: float = 0.0

    @property
    def updates(self) -> dict[str, int]:
        """Optimiser updates by kind."""
        return {kind: self.calls[kind] for kind in UPDATES if kind in self.calls}

    def total(self, *kinds: str) -> tuple[int, int]:
        """Calls and tokens of some kinds; the tokens of all updates are those of result.json."""
        return sum(self.calls[kind] for kind in kinds), sum(self.tokens[kind] for kind in kinds)

    def add(self, kind: str, calls: int, tokens: int) -> None:
        """Add some work."""
        self.calls[kind] += calls
        self.tokens[kind] += tokens

    def add_decoding(
        self, kinds: tuple[str, str], prompts: list[int], limits: list[int], lengths: list[int]
    ) -> None:
        """Add the reading of prompts, which gives the first token of each answer, and the steps of
        writing the others until the longest of a batch is complete."""
        for group in together(prompts, limits):
            self.add(kinds[0], 1, sum(prompts[i] for i in group))
            steps = max(min(limits[i], lengths[i]) for i in group) - 1
            self.add(kinds[1], steps, steps * len(group))

    @property
    def trained_tokens(self) -> float:
        """All work as a number of trained tokens.

        A decoded token counts as a trained one: it does a third of the arithmetic, but in small
        steps.
        """
        whole = self.total(*UPDATES, "single", "answers", "texts")[1]
        return whole + FORWARD * self.total("probe", "prompts", "openings")[1]


def count_work(config: RunConfig, benchmark: Benchmark, encoder: Encoder | None = None) -> Counts:
    """Count what a run will compute; without an encoder four characters are a token.

    An answer is taken to be as long as the longest reference of its batch: a model that has learned
    the task stops there, and a batch is decoded until its last example stops.
    """
    method, counts = build_method(config.method), Counts()
    benchmark = benchmark.joint() if config.method.joint else benchmark
    encoder = encoder or Encoder(
        FourCharacters(), config.model.max_length, prompt=load_prompt(config)
    )
    limit = config.evaluation.max_new_tokens
    # The method computes on a model without parameters and without adapters.
    learner = Learner(
        config,
        Memory(config.memory.fraction, config.optim.batch_size, config.seed),
        Backbone(nn.Module(), tokenizer=None),
        encoder,
        FlatParameters(()),
        World(),
        tasks=len(benchmark.stages),
    )

    def perform(action: Action) -> StepRecord:
        if isinstance(action, Step):
            counts.add(action.kind, 1, _tokens(chain(*method.encode(learner, action))))
        elif isinstance(action, Probe):
            counts.add("probe", 1, _tokens(map(encoder.encode, action.batch.examples)))
        # An update is taken to spend a whole budget of seconds, so that a task replays about one.
        seconds = config.budget.seconds or 0.0
        record = StepRecord(loss=1.0, update_norm=1.0, value=1.0, seconds=seconds)
        learner.count(action, record)
        return record

    def evaluate(tasks: Sequence[Task], learned: bool = True) -> None:
        # Greedy answers to the tasks' test examples; before training nothing makes them stop.
        for task in tasks:
            prompts = [len(encoder.encode_prompt(example).prompt) for example in task.test]
            limits = lengths = [limit] * len(prompts)
            if learned:
                lengths = [1 + encoder.answer_length(example) for example in task.test]
            counts.add_decoding(("prompts", "answers"), prompts, limits, lengths)

    transfer = config.evaluation.forward_transfer
    if transfer:
        evaluate(benchmark.tasks, learned=False)
    for stage, task in enumerate(benchmark.stages):
        learner.begin(stage, task)
        method.begin_task(learner, task)
        for _ in drive(method.steps(learner, task), perform):
            pass
        counts.events.update(event.kind for event in learner.events)
        counts.examples.update(learner.examples)
        if learner.budget.replay_s:
            counts.budget_s += config.budget.seconds or 0.0
        scored = list(benchmark.seen(stage))
        if transfer and not learner.last:
            scored.append(stage + 1)
        evaluate([benchmark.tasks[i] for i in scored])
        _add_end(counts, learner, method, task)
        learner.memory.add(task)
    return counts


def _add_end(counts: Counts, learner: Learner, method: Method[Any], task: Task) -> None:
    """Add what the method computes at the end of a task, as it estimates that itself."""
    work = method.end_work(learner, task)
    if work.alone:  # as many at once as an update has
        batches = batch_count(len(work.alone), 1, learner.config.optim.batch_size)
        counts.add("single", batches, _tokens(map(learner.encoder.encode, work.alone)))
    prompts = [prompt for prompt, _ in work.texts]
    rest = [text for _, text in work.texts]
    for _ in range(work.turns):
        counts.add_decoding(("openings", "texts"), prompts, rest, rest)


def _tokens(examples: Iterable[Encoded]) -> int:
    return sum(len(example.prompt) + len(example.answer) for example in examples)


class FourCharacters:
    """Stands for a tokenizer that was not loaded: English prompts have about four characters a
    token with those of current models."""

    bos_token_id, eos_token_id = None, 0

    def __call__(self, text: str, return_offsets_mapping: bool = False, **_: Any) -> Any:
        starts = range(0, len(text), 4)
        offsets = [(start, start + 4) for start in starts] if return_offsets_mapping else None
        return SimpleNamespace(input_ids=(1,) * len(starts), offset_mapping=offsets)


# ---- the table


def plan_table(
    name: str,
    runs: Sequence[PlannedRun],
    resources: Resources,
    tokens_per_second: float | None = None,
    price_per_hour: float | None = None,
) -> PlainTable:
    """Return one row a variant and order, and the sums of what is done and what is to do.

    Args:
        tokens_per_second: a training throughput; without one, that of finished runs of the same
            method and model.
        price_per_hour: of what one run occupies, a GPU or its share of CPUs.

    Raises:
        InputError: as many runs at once as requested never fit.
    """
    todo = [run for run in runs if not run.directory.finished()]
    concurrent = min(runs_at_once(len(runs), resources), len(todo) or 1)
    counts, speeds = _count(runs)
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    sums = {"done, skipped": Counter[str](), "to do": Counter[str]()}
    longest = 0.0
    for run in runs:
        speed = tokens_per_second or speeds.get(_kind_of(run.config))
        numbers = _numbers(run, counts[run.label], speed, price_per_hour)
        rows[run.label].update(numbers)
        if numbers["done"]:
            sums["done, skipped"].update(numbers)
        else:
            sums["to do"].update(numbers)
            longest = max(longest, numbers["hours"])
    table = _table(name, rows, sums)
    caption = [f"Sums over the runs of a row; {len(todo)} to do, {concurrent} at a time."]
    caption += _notes(runs, counts)
    if tokens_per_second:
        caption.append(f"Hours are those of {tokens_per_second:,.0f} trained tokens a second.")
    if (resources.workers or 0) > 1:
        caption.append("Hours are those of one worker; several share the batches of a run.")
    if days := _days_7(runs):
        caption.append(f"Update after which day 7 comes: {days}.")
    hours = float(sums["to do"]["hours"])
    if isnan(hours):
        caption.append("Hours need --tokens-per-second or a finished run.")
    else:
        wall = max(hours / concurrent, longest)
        caption.append(f"From beginning to end: {_text('hours', wall)} hours.")
    table.caption = " ".join(caption)
    return table


def runs_at_once(runs: int, resources: Resources) -> int:
    """Return how many of `runs` fit at a time into what Ray has, or would have on this machine.

    Raises:
        InputError: as many as requested never fit.
    """
    if find_spec("ray") is None:
        return 1
    if os.environ.get("RAY_ADDRESS"):
        from forever.launch.cluster import capacity, connected

        with connected(dashboard=False):
            total, machines = capacity()
    else:  # what Ray would find here; to load and start it for that takes ten seconds
        total = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
        machines = 1
    return divide(total, machines, runs, resources).concurrent


def _kind_of(config: RunConfig) -> tuple[str, str]:
    """Runs of one kind compute alike: they differ in the number of updates and tokens."""
    return config.method.name, config.model.model_dump_json()


def _count(runs: Sequence[PlannedRun]) -> tuple[dict[str, Counts], dict[tuple[str, str], float]]:
    """Return what a run of each row computes, and the speed of the first finished run of a kind."""
    counts: dict[str, Counts] = {}
    speeds: dict[tuple[str, str], float] = {}
    encoders: dict[Any, Encoder] = {}  # by what they depend on; each encodes an example once
    stderr = Console(stderr=True)
    for run in track(
        runs, "planning", console=stderr, transient=True, disable=not stderr.is_terminal
    ):
        if run.label not in counts:  # the runs of a row differ in the seed alone
            data, model = run.config.data, run.config.model
            key = model.max_length, model.name, data.prompt, data.supervise
            if key not in encoders:
                prompt = load_prompt(run.config)
                encoders[key] = Encoder(FourCharacters(), model.max_length, prompt=prompt)
            counts[run.label] = count_work(run.config, run.benchmark, encoders[key])
        if result := run.directory.finished():
            seconds = sum(result["seconds"].values())
            for note in result["notes"].values():
                seconds -= note.get("replay_seconds", 0.0)
            speeds.setdefault(_kind_of(run.config), counts[run.label].trained_tokens / seconds)
    return counts, speeds


def _numbers(
    run: PlannedRun, counts: Counts, tokens_per_second: float | None, price: float | None
) -> dict[str, Any]:
    """What is planned of a run, by column; of a finished one what it did, as far as it says."""
    updates, events, trained = counts.updates, counts.events, counts.total(*UPDATES)[1]
    replayed, seconds = counts.examples["replayed"], nan
    if tokens_per_second:
        seconds = counts.trained_tokens / tokens_per_second + counts.budget_s
    result = run.directory.finished()
    if result:
        updates, trained = result["updates"], result["tokens"]
        events = sum(map(Counter, result["events"].values()), Counter[str]())
        seconds = sum(result["seconds"].values())
        replayed = (result.get("examples") or counts.examples)["replayed"]
    numbers = {"runs": 1, "done": bool(result)}
    numbers |= {kind: updates.get(kind, 0) for kind in UPDATES}
    numbers |= {
        "events": events["replay"] + events["consolidation"],
        "replayed": replayed,
        "train MTok": trained / 1e6,
        "other MTok": counts.total("probe", *AT_THE_END)[1] / 1e6,
        "eval MTok": counts.total("prompts", "answers")[1] / 1e6,
        "hours": seconds / 3600,
    }
    if price is not None:
        numbers["cost"] = seconds / 3600 * price
    return numbers


def _notes(runs: Sequence[PlannedRun], counts: Mapping[str, Counts]) -> list[str]:
    """Sentences on what is exact and what is an estimate."""
    notes = ["Exact: updates on the task, and replays that their number triggers."]
    if any(count.budget_s for count in counts.values()):
        notes.append(
            "Hours hold `budget.seconds`; updates and tokens of that replay are not known."
        )
    if any(count.total(*AT_THE_END)[0] for count in counts.values()):
        notes.append("Estimate: what a method computes at the end of a task.")
    notes += dict.fromkeys(run.config.method.estimate() for run in runs)
    notes.append("Tokens are four characters each.")
    return [note for note in notes if note]


def _days_7(runs: Sequence[PlannedRun]) -> str:
    """When day 7 comes in each row: exactly on a clock of updates; on the model's as in the
    finished runs of the row, without which nobody can tell."""
    rows: defaultdict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        rows[run.label].append(run)
    texts: list[str] = []
    for label, of_row in rows.items():
        optim, day = of_row[0].config.optim, of_row[0].config.method.updates_of_day()
        if day is not None:
            sizes = [len(task.train) for task in of_row[0].benchmark.tasks]
            planned = [batch_count(size, optim.epochs, optim.batch_size) for size in sizes]
            day_7 = day_seven_of_updates(day, planned)
        else:
            results = [run.directory.finished() for run in of_row]
            day_7 = day_seven(result for result in results if result)
        if day_7:
            texts.append(f"{label} {day_7}")
    return ", ".join(texts)


def _table(
    name: str, rows: Mapping[str, Counter[str]], sums: Mapping[str, Counter[str]]
) -> PlainTable:
    """The rows and their sums; a column of zeros is not shown."""
    table = PlainTable(title=f"plan of {name}", collapse_padding=True)
    table.add_column("variant")
    everything = Counter[str]()
    for numbers in rows.values():
        everything.update(numbers)  # not +, which drops what is not known
    columns = [column for column, number in everything.items() if number]
    for column in columns:
        header = column.replace("consolidation", "consolid.")
        table.add_column(header, key=column, justify="right")
    for group in (rows, sums):
        for label, numbers in group.items():
            if numbers:
                table.add_row(
                    label,
                    *[Cell(numbers[column], _text(column, numbers[column])) for column in columns],
                )
        table.add_section()
    return table


def _text(column: str, number: float) -> str:
    """Hours and tokens have more digits if they are few, because a small run takes minutes."""
    if isnan(number):
        return "-"
    if column == "cost":
        return f"{number:,.2f}"
    if column == "hours" or "MTok" in column:
        digits = 3 if number < 1 else 1
        return f"{number:,.{digits}f}"
    return f"{number:,.0f}"
