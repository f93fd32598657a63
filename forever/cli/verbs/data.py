"""`forever data`: check benchmark data, and prepare it."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from forever.cli import options
from forever.cli.options import FOLDER
from forever.cli.shown import note, print_lines, show
from forever.errors import InputError
from forever.storage.address import address_of
from forever.text import Page, complain

if TYPE_CHECKING:
    from forever.config.run import RunConfig
    from forever.data.encoding import Encoder


def check(
    root: Path | None = Argument(
        None,
        help="Folder with benchmark folders, a task's file, or a run's YAML; none: the demo's.",
        **FOLDER,
    ),
    changes: list[str] | None = options.CHANGES,
    model: str | None = Option(
        None, "--model", help="The model whose tokens are shown; default: the run's."
    ),
    task: list[str] | None = Option(
        None, "--task", metavar="NAME", help="Only this task; may be repeated."
    ),
    examples: int = Option(3, min=0, help="Examples of each task as tokens."),
) -> None:
    """Read every task that is found, and show what a model will see of it.

    Sizes, metric, answers, overlap of training and test, repeated and contradicting examples,
    lengths and cuts, and examples as tokens.
    An error names the file and the line; the other tasks are shown all the same.

    Examples:
        forever data check
        forever data check data --model Qwen/Qwen3-0.6B
        forever data check my-run.yaml --task first --examples 5
        forever data check my-run.yaml data.validation=0.2
    """
    from forever.config.overrides import parse_assignments
    from forever.config.run import RunConfig
    from forever.data.check import (
        balance_table,
        doubts_table,
        lengths_table,
        read_tasks,
        tasks_table,
    )
    from forever.data.formats import ENDINGS
    from forever.sweeps.named_runs import load_run

    if root is not None and address_of(root):
        from forever.storage.remote import fetch

        fetch(root, ENDINGS)
    is_run = root is None or (root.is_file() and not root.name.endswith(ENDINGS))
    folder = None if is_run else root
    if folder and changes:
        raise InputError(f"{changes[0]}: KEY=VALUE changes a run, and {root} is not a run's file")
    config = RunConfig() if folder else load_run(str(root or "mini/forever"))
    config = config.override(parse_assignments(changes or []))
    if model is not None:
        config = config.override({"model.name": model})
    encoder, why_none, problems = None, "give --model, or a run's file", list[str]()
    if model or folder is None:
        encoder, why_none, problems = _encoder(config)
    prompt = encoder.prompt if encoder and not folder else None
    checked = read_tasks(folder or config, task or (), prompt)
    checked.problems += problems
    if encoder and folder and checked.has_conversations and encoder.tokenizer.chat_template:
        encoder, *_ = _encoder(config.override({"data.prompt": "chat"}))
    page = Page()
    page.add("tasks", tasks_table(checked))
    page.add("answers", balance_table(checked))
    page.add("doubts", doubts_table(checked))
    page.add("lengths", lengths_table(checked, encoder, config))
    if encoder is None:
        page.say(f"Tokens are not shown: {why_none}.")
    elif examples:
        from forever.cli.view.examples import Examples

        page.say("")
        page.say("Between bars: tokens. In ⟦ ⟧: what is supervised, which a model learns to say.")
        for name, of_task in checked.named:
            page.add(name, Examples(name, of_task, encoder, examples), "examples")
    show(page)
    note(problems=checked.problems)
    for problem in checked.problems:
        complain(f"error: {problem}")
    if checked.problems:
        raise typer.Exit(2)


def _encoder(config: "RunConfig") -> tuple["Encoder | None", str, list[str]]:
    """Return what makes tokens of examples, or why there is nothing, and what a run would refuse.

    For tokens torch is loaded.
    """
    from forever.data.encoding import Encoder
    from forever.data.prompts import make_prompt
    from forever.models.loading import NotHere, ends_of, limits_of, load_empty, load_tokenizer

    part = config.model
    try:
        tokenizer, model = load_tokenizer(part.name), load_empty(part.name)
        prompt, ends = make_prompt(config.data, tokenizer), ends_of(tokenizer, model)
        return Encoder(tokenizer, part.max_length, limits_of(model), prompt, ends), "", []
    except NotHere as error:
        return None, str(error), []
    except InputError as error:
        return None, "a run would refuse the model", [str(error)]


def prepare(
    source: Path = Argument(help="Folder with the data, such as a clone of a public repository."),
    to: Path = Option(
        ..., "--to", help="Folder that gets a folder a benchmark: a run's data.root."
    ),
) -> None:
    """Write Long Sequence and SuperNI in the paper's sizes, from what SOURCE has of them.

    1000 training examples a task, 500 a class for testing, or as many as there are; the same ones
    every time.

    Examples:
        forever data prepare O-LoRA --to /data
        forever data prepare SAPT/CL_Benchmark/SuperNI --to /data
    """
    from forever.data.prepare import prepare as write_benchmarks

    for line in write_benchmarks(source, to):
        print_lines([line])
