"""Write the table of errors in docs/faults.md: `python -m scripts.error_table`."""

from pathlib import Path

from forever.cli.boundary import CAUSES, FAILED

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
BEGIN, END = "<!-- from here: scripts/error_table.py -->\n\n", "\n<!-- to here -->\n"


def page() -> str:
    """Return the whole page: what is written by hand around the table, and the table."""
    text = "| what happened | in Python | exit code | what helps |\n|---|---|---|---|\n"
    for cause in CAUSES:
        kinds = ", ".join(f"`{kind}`" for kind in cause.kinds)
        remedy = cause.remedy or "what the line says"
        text += f"| {cause.what} | {kinds} | {cause.code} | {remedy} |\n"
    text += f"| a bug of ours | everything else | {FAILED} | a report with the traceback |\n"
    old = PAGE.read_text(encoding="utf-8")
    return old.partition(BEGIN)[0] + BEGIN + text + END + old.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
