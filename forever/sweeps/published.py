"""What the paper reports (FOREVER, arXiv 2601.03938), as the sweeps' files say it, and how ours is
put beside it."""

import math

from forever.sweeps.files import SweepFile, load_sweep, shipped_sweeps
from forever.sweeps.parts import Published

BENCHMARKS = ("standard", "long", "superni", "thirty")
BACKBONES = ("Qwen3-0.6B", "Qwen3-4B", "Llama-3.1-8B", "Llama-2-13b-hf")

# Points; a smaller published difference, of three seeds and without an interval, is not called one.
EQUAL = 0.5
# Points; equality is shown by an interval this close to zero, not by one that holds zero among much
# else.
ALIKE = 1.0


def tables(sweep: SweepFile) -> dict[str, dict[str, Published]]:
    """The published rows of a sweep by benchmark and by the paper's name of the variant."""
    rows: dict[str, dict[str, Published]] = {}
    # The upper bound comes last, as in the paper.
    for key, variant in sorted(sweep.variants.items(), key=lambda item: item[0] == "mtl"):
        for benchmark, numbers in variant.published.items():
            rows.setdefault(benchmark, {})[key] = numbers
    return rows


_FILES = shipped_sweeps()
# By sweep, benchmark and variant.
TABLES = {name: tables(sweep) for name, sweep in _FILES.items() if tables(sweep)}
# Rise of the loss on earlier tasks per update, in phases of 60 updates.
FORGETTING_RATE = tuple[float, ...](_FILES["forgetting_rate"].published_numbers["rates"])
# Pearson's r and p of a task's tau_day: in two orders, with the task's BWT, with joint training.
MODEL_DAY: dict[str, tuple[float, float]] = _FILES["model_day"].published_numbers
# Minutes an epoch, by backbone and method.
TRAINING_TIME: dict[str, dict[str, float]] = _FILES["training_time"].published_numbers


def agreement(
    difference: float | None, verdict: str | None, low: float = -math.inf, high: float = math.inf
) -> str:
    """Whether our difference to the reference agrees with the published one.

    Args:
        verdict: on ours; `low` and `high` are its 95 % interval, which matters where the paper has
            no difference.

    Returns:
        "agrees", "opposite", "not shown" (a tie here where the paper has a difference), "not equal"
        (a difference here where the paper has none), "too wide" (a tie here, too, but from an
        interval that excludes little), or "" if there is nothing to compare.
    """
    if difference is None or verdict in (None, "not comparable"):
        return ""
    if abs(difference) < EQUAL:
        if low >= -ALIKE and high <= ALIKE:
            return "agrees"
        return "too wide" if verdict == "tie" else "not equal"
    if verdict in ("tie", "equivalent"):
        return "not shown"
    if (verdict == "win") == (difference > 0):
        return "agrees"
    return "opposite"


def table_of(sweep: SweepFile | str | None, benchmark: str) -> tuple[str, str] | None:
    """The table and the benchmark in it that runs of a sweep (or its name) stand beside, or None.

    A benchmark of another size, such as `mini`, stands for the one of the table. A table with
    several benchmarks has none that it could stand for, unless the sweep's file says which.
    """
    name, place, _ = _table(sweep, benchmark)
    return (name, place) if name else None


def published(sweep: SweepFile | str | None, benchmark: str, variant: str) -> Published | None:
    """The paper's row that a variant stands beside, or None; the sweep is as in `table_of`."""
    return _table(sweep, benchmark)[2].get(variant)


def _table(sweep: SweepFile | str | None, benchmark: str) -> tuple[str, str, dict[str, Published]]:
    file = _FILES.get(sweep) if isinstance(sweep, str) else sweep
    small = benchmark not in BENCHMARKS
    if file is not None and file.beside:
        if small:
            benchmark = file.beside
        file = load_sweep(file.variants_of)
    if file is None:
        return "", "", {}
    rows = tables(file)
    if small and len(rows) == 1:
        (benchmark,) = rows
    if benchmark not in rows:
        return "", "", {}
    return file.name, benchmark, rows[benchmark]
