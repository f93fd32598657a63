"""`forever advise`: how many old examples a new task needs."""

from pathlib import Path

from typer import Argument, Option

from forever.cli.shown import show
from forever.data.tasks import Example
from forever.errors import InputError
from forever.text import Page, PlainTable


def advise(
    changes: list[str] | None = Argument(
        None, metavar="[KEY=VALUE]...", help="Change the run that is planned: optim.lr=1e-4."
    ),
    old: Path = Option(..., "--old", help="Examples of what the model knows."),
    new: Path = Option(..., "--new", help="Examples of what it will learn."),
    model: str = Option(..., "--model", help="The model that knows the old ones."),
    device: str = Option("auto", "--device", help="cpu, cuda or cuda:1."),
) -> None:
    """How many old examples to mix into new ones, from four pilots that cost 1.5 runs.

    Examples:
        forever advise --old old.jsonl --new new.jsonl --model my/model
        forever advise --old old.jsonl --new new.jsonl --model tiny --json
    """
    from forever.config.overrides import parse_assignments
    from forever.config.run import RunConfig

    config = RunConfig().override({"model.name": model, **parse_assignments(changes or [])})
    known, coming = read(old, "old"), read(new, "new")
    # Torch is loaded when the examples are known to be readable.
    from forever.hf.advise import COSTS, KEEPS
    from forever.hf.advise import advise as pilots
    from forever.world import World, pick_device

    advice = pilots(config, known, coming, World(device=pick_device(device)))
    table = PlainTable("dose", "old examples", "old loss", "new loss", title="pilots")
    for pilot in advice.pilots:
        table.add_row(f"{pilot.dose:.0%}", pilot.replayed, str(pilot.old), str(pilot.new))
    page = Page()
    page.add("pilots", table)
    page.note(dose=advice.dose, low=advice.low, high=advice.high, cost=round(advice.cost, 2))
    page.say(_sentence(advice.dose, advice.low, advice.high, len(coming), advice.share))
    page.say(
        f"Enough is: the old loss within {KEEPS} nats of its start, the new one less than {COSTS} "
        "above that without old data."
    )
    page.say(
        f"Based on {advice.updates} updates of each pilot, {advice.share:.0%} of the run, and on "
        f"{advice.held_out[0]} old and {advice.held_out[1]} new held-out examples; it cost "
        f"{advice.cost:.2f} runs."
    )
    show(page)


def read(path: Path, name: str) -> list[Example]:
    """Read a file of rows in any of the formats that a task may have."""
    from forever.data.formats import ENDINGS, read_rows

    if not path.name.endswith(ENDINGS):
        raise InputError(f"--{name} {path}: examples are in files that end in {', '.join(ENDINGS)}")
    return [row.example(f"{name}/{number}") for number, row in read_rows(path)]


def _sentence(
    dose: float | None, low: float | None, high: float | None, new: int, share: float
) -> str:
    if high == 0:
        return f"Nothing to advise: in the first {share:.0%} of the run nothing is lost."
    if dose is None:
        return "No dose that was tried is enough."
    counts = {
        each: f"{each:.0%} ({round(each * new)} examples)"
        for each in (dose, low, high)
        if each is not None
    }
    at_most = "more than was tried" if high is None else counts[high]
    assert low is not None
    advised = f"Mix in {counts[dose]} an epoch" if dose else "Mixing in nothing may be enough"
    return f"{advised}; the interval is {counts[low]} to {at_most}."
