"""Where the command `forever` begins: it hears Ctrl-C before it loads what takes time.

However a process ends that was told to stop, its exit code is 128 and the signal's number, and it
says how to go on. There is no traceback.
"""

import gc
import os
import signal
import sys

from forever.stopping import asked, listening

_FROM_CHECKPOINT = "goes on from the last checkpoint"
_GOES_ON = {
    "run": f"; the same command with --resume {_FROM_CHECKPOINT}",
    "sweep": f"; the same command {_FROM_CHECKPOINT}",
    "demo": f"; the same command {_FROM_CHECKPOINT}",
    "submit": "; the job goes on, the same command follows it, `ray job stop` ends it",
}


# New objects after which the collector looks for circles among them. Libraries make a million that
# stay, and with Python's 700 a quarter of MLflow's loading would be spent on looking at those.
_NEW_OBJECTS = 50_000


def main() -> None:
    """Run the command that the console script was given."""
    gc.set_threshold(_NEW_OBJECTS)
    try:
        with listening():
            _run()
    finally:
        gc.freeze()  # what is left goes with the process: to look at all of it takes a second
        # The interpreter takes a while to end, and would print where Ctrl-C met it.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run() -> None:
    try:
        _stand_somewhere()
        from forever.cli import main as command

        command.main()
    except BaseException as error:
        done = isinstance(error, SystemExit) and not error.code
        if done or not asked():
            raise
        _say_how_to_go_on()
        sys.exit(128 + asked())


def _stand_somewhere() -> None:
    """Leave, with one line, a working folder that is gone: libraries would abort the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        print("error: the working folder was removed; cd to one that is there", file=sys.stderr)
        sys.exit(2)


def _say_how_to_go_on() -> None:
    advice = _GOES_ON.get(sys.argv[1], "") if len(sys.argv) > 1 else ""
    print(f"interrupted{advice}", file=sys.stderr)


if __name__ == "__main__":
    main()
