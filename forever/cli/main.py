"""The command line: a few verbs, each a thin layer over the library.

Exit codes: 0 done, 1 failed, 2 bad input, 128 and the number of the signal that ended it
(docs/faults.md).
"""

import inspect
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from forever import __version__
from forever.cli.boundary import end, without_debug
from forever.cli.options import Verb, command
from forever.cli.shown import print_lines
from forever.cli.verbs import (
    advise,
    data,
    doctor,
    export,
    init,
    mlflow,
    plan,
    report,
    run,
    show,
    submit,
    sweep,
)
from forever.stopping import received

_EXAMPLES = "Examples:"

app = typer.Typer(
    help="Continual learning of language models around FOREVER: run, sweep, compare.",
    epilog="Examples: forever demo, forever run mini/forever, forever sweep components. "
    "--debug, with any command, shows where an error arose.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
data_app = typer.Typer(
    help="Check benchmark data, and prepare it.",
    epilog="Examples: forever data check DATA, forever data prepare RELEASE --to DATA.",
    no_args_is_help=True,
)


def _version(wanted: bool) -> None:
    if wanted:
        print_lines([f"forever {__version__}"])
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Take the options that go before a verb."""


def add(
    verb: Callable[..., Any],
    to: typer.Typer = app,
    name: str = "",
    json: bool = False,
    settings: Any = None,
) -> None:
    """Make a function a verb, with the lines below "Examples:" in its docstring as examples."""
    text, _, examples = inspect.cleandoc(verb.__doc__ or "").partition(_EXAMPLES)
    # Typer would keep the ends of lines within a paragraph.
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    about = "\n\n".join(paragraphs)
    examples = examples.replace("\n    ", "\n  ").replace("[", r"\[")  # which would be markup
    make = to.command(
        name or None, cls=Verb, help=about, epilog=_EXAMPLES + examples, context_settings=settings
    )
    make(command(verb, json))


# In the order of `forever --help`. Verbs that show a table or a page also print it as JSON.
add(init.init)
add(run.run, json=True)
add(sweep.sweep, json=True)
add(sweep.demo, json=True)
add(plan.plan, json=True)
add(advise.advise, json=True)
add(show.show_run, name="show", json=True)
add(show.diff, json=True)
add(report.report, json=True)
add(export.export)
add(submit.submit, settings=submit.PASSES_ON)
add(mlflow.sync)
add(mlflow.ui)
add(doctor.doctor, json=True)
add(data.check, data_app, json=True)
add(data.prepare, data_app)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command that the console script was given."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whose encoding may lack letters of a name
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():  # a log or a pipe, in which progress bars are noise
        os.environ.setdefault("TQDM_DISABLE", "1")
    sys.argv = without_debug(sys.argv)
    try:
        app()
    except Exception as error:
        # A library may wrap the Ctrl-C that met its import in an error of its own.
        sys.exit(1 if received() else end(error))


if __name__ == "__main__":
    from forever.cli import start

    start.main()
