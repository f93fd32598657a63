"""What the paper reports (FOREVER, arXiv 2601.03938): its numbers, to stand beside ours.

OP and BWT in percent points, Qwen3-0.6B unless a variant says otherwise. A row whose number is not
known here is left
out: it then has no published number, not a zero.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """OP and BWT of one row of a table; BWT is None where there is none or it is not known here."""

    op: float
    bwt: float | None = None


def _rows(text: str) -> dict[str, Published]:
    """Rows as they are printed: a line of `variant: OP/BWT` each."""
    rows: dict[str, Published] = {}
    for line in text.strip().splitlines():
        variant, numbers = line.strip().split(": ")
        op, _, bwt = numbers.partition("/")
        rows[variant] = Published(float(op), float(bwt) if bwt else None)
    return rows


BENCHMARKS = ("standard", "long", "superni", "thirty")
BACKBONES = ("Qwen3-0.6B", "Qwen3-4B", "Llama-3.1-8B", "Llama-2-13b-hf")

# By sweep, benchmark and variant.
TABLES: dict[str, dict[str, dict[str, Published]]] = {
    "main_results": {
        "standard": _rows("""
            finetune: 47.2/-12.6
            mix_replay: 65.8/-8.0
            fixed_interval: 65.1/-9.2
            migu: 69.9
            ssr: 68.4/-7.1
            recurrent_kif: 70.6/-6.5
            aimmerging: 71.9/-5.0
            vbm: 71.5/-5.2
            forever: 72.9/-4.7
            mtl: 77.4"""),
        "long": _rows("""
            finetune: 36.0/-17.5
            mix_replay: 65.1/-11.4
            fixed_interval: 64.5/-10.9
            migu: 66.3
            ssr: 67.5/-9.0
            recurrent_kif: 67.7/-8.4
            aimmerging: 67.9/-6.3
            vbm: 68.1/-6.1
            forever: 69.4/-5.0
            mtl: 77.8"""),
        "superni": _rows("""
            finetune: 8.2/-27.4
            mix_replay: 34.6/-14.1
            fixed_interval: 34.7/-14.5
            migu: 35.0
            ssr: 40.1/-5.4
            recurrent_kif: 39.7/-5.0
            aimmerging: 41.0/-3.4
            vbm: 41.3/-3.7
            forever: 42.1/-2.9
            mtl: 48.2"""),
    },
    "backbones": {
        "superni": _rows("""
            vbm, Llama-3.1-8B: 49.0/-2.9
            forever, Llama-3.1-8B: 50.6/-2.1""")
    },
    "components": {
        "superni": _rows("""
            base: 42.5/-2.8
            +FIR: 40.1/-5.2
            +RR: 37.2/-7.8
            +ER: 40.9/-6.9
            +STC: 41.3/-3.9
            -IAR: 39.9/-4.4
            +PIR: 42.7/-3.0
            +IAR&PIR: 42.8/-2.6""")
    },
    "spacing": {
        "superni": _rows("""
            standard: 42.5/-2.8
            exponential: 42.3/-2.6
            polynomial: 41.5/-3.2
            uniform: 40.9/-3.6
            decreasing: 37.2/-7.8""")
    },
    "memory_size": {
        "superni": _rows("""
            forever 2 %: 42.5
            forever 5 %: 43.5
            forever 10 %: 43.9
            forever 50 %: 46.4
            vbm 2 %: 41.2
            vbm 5 %: 42.4
            vbm 10 %: 43.0
            vbm 50 %: 45.4""")
    },
    "warmup_window": {
        "superni": _rows("""
            S = 3: 41.8/-3.8
            S = 6: 42.1/-3.7
            S = 12: 42.0/-3.4
            S = 24: 42.5/-2.8
            S = 48: 42.3/-3.0
            S = 96: 41.2/-4.4""")
    },
    "memory_epochs": {
        "superni": _rows("""
            E_mem = 1: 42.2/-3.0
            E_mem = 2: 42.5/-2.8
            E_mem = 4: 42.6/-2.9""")
    },
    "full_finetuning": {
        "superni": _rows("""
            recurrent_kif: 46.0/-4.1
            aimmerging: 46.4/-3.0
            vbm: 46.4/-3.1
            forever: 47.5/-2.2""")
    },
    "long_sequence": {
        "thirty": _rows("""
            recurrent_kif: 24.7/-15.0
            aimmerging: 26.1/-11.6
            vbm: 26.7/-12.8
            forever: 27.9/-10.8""")
    },
}

# Rise of the loss on earlier tasks per update, in phases of 60 updates.
FORGETTING_RATE = (0.0023, 0.0018, 0.0010, 0.0005, 0.0003)

# Pearson's r and p of a task's tau_day: in two orders, with the task's BWT (p not known here), with
# joint training.
MODEL_DAY = {
    "other order": (0.7379, 0.0017),
    "BWT": (0.2182, None),
    "joint training": (-0.5625, 0.0291),
}

# Minutes an epoch.
TRAINING_TIME = {
    "Qwen3-0.6B": {"mix_replay": 1.3, "aimmerging": 1.5, "vbm": 1.4, "forever": 1.4},
    "Llama-2-13b-hf": {"mix_replay": 6.8, "aimmerging": 9.9, "vbm": 9.1, "forever": 8.5},
}


# Points; a smaller published difference, of three seeds and without an interval, is not called one.
EQUAL = 0.5
# Points; equality is shown by an interval this close to zero, not by one that holds zero among much
# else.
ALIKE = 1.0


def agreement(
    difference: float | None, verdict: str | None, low: float = -math.inf, high: float = math.inf
) -> str:
    """Whether our difference to the reference agrees with the published one.

    Args:
        difference: the published one.
        verdict: on ours.
        low, high: the 95 % interval of ours, which matters where the paper has no difference.

    Returns:
        "agrees", "opposite", "not shown" (a tie here where the paper has a difference), "not equal"
        (a difference here where the paper has none), "too wide" (a tie here, too, but from an
        interval that excludes little), or "" if there is nothing to compare.
    """
    if difference is None or verdict is None:
        return ""
    if abs(difference) < EQUAL:
        if low >= -ALIKE and high <= ALIKE:
            return "agrees"
        return "too wide" if verdict == "tie" else "not equal"
    if verdict == "tie":
        return "not shown"
    return "agrees" if (verdict == "win") == (difference > 0) else "opposite"


def table_of(sweep: str, benchmark: str) -> tuple[str, str] | None:
    """The table and the benchmark in it that runs of a sweep stand beside, or None.

    A benchmark of another size, such as `mini`, stands for the one of the table. A table with
    several benchmarks has none that it could stand for. `baselines` is one benchmark of the main
    table, a small one stands for SuperNI; it has one order, while the paper's numbers are means
    over all orders of a benchmark.
    """
    if sweep == "baselines":
        sweep, benchmark = "main_results", benchmark if benchmark in BENCHMARKS else "superni"
    tables = TABLES.get(sweep, {})
    if benchmark in tables:
        return sweep, benchmark
    if len(tables) == 1 and benchmark not in BENCHMARKS:
        return sweep, next(iter(tables))
    return None


def published(sweep: str, benchmark: str, variant: str) -> Published | None:
    """The paper's row that a variant stands beside, or None."""
    place = table_of(sweep, benchmark)
    return TABLES[place[0]][place[1]].get(variant) if place else None
