"""The command line: a few verbs, each a thin layer over the library.

Exit codes: 0 done, 1 failed, 2 bad input, 128 and the number of the signal that ended it
(docs/faults.md).
"""

import os
import sys

import typer

from forever.cli.boundary import end, without_debug
from forever.cli.output import shield_output
from forever.cli.verbs import data, doctor, mlflow, plan, report, run, sweep
from forever.stopping import asked

app = typer.Typer(
    help="Continual learning of language models around FOREVER: run, sweep, compare.",
    epilog="--debug, with any command, shows where an error arose.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# In the order of `forever --help`.
for verb in (
    run.run,
    sweep.sweep,
    sweep.demo,
    plan.plan,
    report.report,
    mlflow.sync,
    doctor.doctor,
):
    app.command()(verb)

data_app = typer.Typer(help="Look at benchmark data, and prepare it.", no_args_is_help=True)
for verb in (data.check, data.prepare):
    data_app.command()(verb)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command that the console script was given."""
    shield_output()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.argv = without_debug(sys.argv)
    try:
        app()
    except Exception as error:
        # An import that Ctrl-C met says so in its own words.
        sys.exit(1 if asked() else end(error))


if __name__ == "__main__":
    from forever.cli import start

    start.main()
