"""Where the command `forever` begins: it hears Ctrl-C before it loads what takes time.

A command that a signal ends exits with 128 and the signal's number, says how to resume, and prints
no traceback.
"""

import gc
import os
import signal
import sys
import threading

from forever.stopping import listening, received

_RESUMES = "resumes from the last checkpoint"
_ADVICE = {
    "run": f"; the same command with --resume {_RESUMES}",
    "sweep": f"; the same command {_RESUMES}",
    "demo": f"; the same command {_RESUMES}",
    "submit": "; the job keeps running: the same command follows it, `ray job stop` ends it",
}


def main() -> None:
    """Run the command that the console script was given."""
    # Libraries make a million objects that stay. The collector would visit them again and again.
    gc.set_threshold(50_000)
    # To search every installed package for plugins takes a tenth of a second.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code: object = 1
    try:
        with listening():
            _run()
    except SystemExit as end:
        code = end.code
        raise
    finally:
        _leave_mlflow_alone(code)
        gc.freeze()  # what is left goes with the process
        # The interpreter takes a while to end, and would print where Ctrl-C met it.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave_mlflow_alone(code: object) -> None:
    """End here if a thread that was left alone is still sending to MLflow.

    As the interpreter ended it would unwind that thread; if it is in C++ then, as while it draws,
    C++ would abort the process, and a finished run would look like a failure.
    """
    if any(thread.name == "mlflow" for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run() -> None:
    try:
        from forever.cli import main as command

        command.main()
    except BaseException as error:
        succeeded = isinstance(error, SystemExit) and not error.code
        if succeeded or not received():
            raise
        verb = sys.argv[1] if len(sys.argv) > 1 else ""
        print(f"interrupted{_ADVICE.get(verb, '')}", file=sys.stderr)
        sys.exit(128 + received())


if __name__ == "__main__":
    main()
