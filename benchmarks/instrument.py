"""Whether `mini` can tell variants apart: what docs/benchmark.md shows.

    python -m benchmarks.instrument --out DIR [--seeds 10] [--placebos 20]

Runs are those of ordinary sweeps (`forever sweep`), so what is there already is not run again. An
instrument must give the same answer twice, have room between its bounds, be in the regime that the
paper describes, tell a difference of two points from none, and be cheap.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import torch
import typer
import yaml
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor

from forever.data.mini import TASKS
from forever.models.location import TINY
from forever.report.run import Run
from forever.report.study import Study, read_study
from forever.runs.environment import describe
from forever.stats.compare import compare

RESULTS = Path(__file__).with_name("instrument.json")
_FOREVER = Path(sys.executable).with_name("forever")
BUTTERFLY = ("finetune", "mix_replay", "forever", "mtl")
# A processor's rounding: the instruction sets of torch's own kernels, of oneDNN and of MKL.
_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
ROUNDING = {
    "as it is": (),
    "no vectors": ("default", "SSE41", "COMPATIBLE"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
}
# Where the processor has it. A run by itself takes torch's kernels for AVX2 even there
# (forever/launch/local.py).
AVX_512 = ("avx512", "AVX512_CORE", "AVX512")


@dataclass(frozen=True)
class Figure:
    """One property of the instrument. `values` are all that were seen, `goal` is in words; a value
    that is made of many has these in `of`."""

    name: str
    goal: str
    met: bool
    values: list[float]
    of: list[float] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The range, or the number if there is one only."""
        low, high = min(self.values), max(self.values)
        return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def main(
    out: Annotated[Path, typer.Option(help="Folder for the sweeps.")],
    seeds: Annotated[int, typer.Option(min=2)] = 10,
    placebos: Annotated[int, typer.Option(min=1)] = 20,
) -> None:
    """Measure all figures, print them, and write them to instrument.json."""
    begun = time.monotonic()
    figures: list[Figure] = []
    for figure in _measured(out.absolute(), seeds, placebos):
        figures.append(figure)
        print(f"{time.monotonic() - begun:5.0f} s  {figure.name}: {figure.shown}", flush=True)
    Console(width=110).print(table(figures))
    measured = [asdict(figure) for figure in figures]
    content = describe() | {"argv": ["instrument.py"], "seeds": seeds, "figures": measured}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def table(figures: list[Figure]) -> Table:
    """Goals and what was seen."""
    shown = Table("figure", "goal", "seen", "", title="The instrument: mini and tiny")
    for figure in figures:
        shown.add_row(figure.name, figure.goal, figure.shown, "" if figure.met else "missed")
    return shown


def _measured(out: Path, seeds: int, placebos: int) -> Iterator[Figure]:
    yield from butterfly(out)
    study = run_sweep(out / "range", _range_variants(), seeds)
    yield from ranges(study)
    yield from regime(study)
    yield from resolution(study)
    yield cost(study)
    yield from truths(study, out, placebos)


def butterfly(out: Path) -> Iterator[Figure]:
    """The same run ten times, every weight of the backbone moved by a relative 1e-6, and on what
    other processors have."""
    variants: dict[str, Any] = {}
    for number, method in product(range(10), BUTTERFLY):
        model = moved(out / "models" / str(number), number)
        variants[f"{method} {number}"] = {"method": method, "model.name": str(model)}
    study = run_sweep(out / "butterfly", variants)
    for method in BUTTERFLY:
        ops = [run.outcome["op"] for run in study.runs if run.variant.startswith(f"{method} ")]
        yield spread(f"OP of {method}, sd over weights moved by 1e-6", 0.7, ops)
    plain = {method: {"method": method} for method in BUTTERFLY}
    # A sweep gives each run its share of the cores, so one that is alone has all.
    studies = [run_sweep(out / "all_cores", plain, options=("--concurrent", "1"))]
    has_avx_512 = " avx512f " in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    rounding = ROUNDING | ({"AVX512": AVX_512} if has_avx_512 else {})
    for name, sets in rounding.items():
        limits: dict[str, str] = dict(zip(_SETS, sets, strict=False))
        studies.append(run_sweep(out / name.replace(" ", "_"), plain, environment=limits))
    ops_of: dict[str, list[float]] = {method: [] for method in BUTTERFLY}
    for run in chain.from_iterable(study.runs for study in studies):
        ops_of[run.variant].append(run.outcome["op"])
    for method, ops in ops_of.items():
        yield spread(f"OP of {method}, sd over instruction sets and threads", 0.7, ops)


def spread(name: str, most: float, values: Sequence[float]) -> Figure:
    """A figure of the standard deviation of values, which shall be small."""
    return Figure(name, f"<= {most:g}", stdev(values) <= most, [stdev(values)], [*values])


def moved(folder: Path, number: int) -> Path:
    """A copy of tiny, every weight moved by a relative 1e-6."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in TINY.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = shaken(load_file(TINY / "model.safetensors"), number)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def shaken(weights: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The weights, each moved by a relative 1e-6."""
    draws = torch.Generator().manual_seed(number)
    moved: dict[str, Tensor] = {}
    for name in sorted(weights):
        noise = torch.randn(weights[name].shape, generator=draws)
        moved[name] = weights[name] * (1 + 1e-6 * noise)
    return moved


def _range_variants() -> dict[str, Any]:
    variants: dict[str, Any] = {
        "base": {},
        "+FIR": {"method.days": "fixed_interval"},
        "oracle": {"method": "mix_replay", "memory.fraction": 1.0, "reference": "mix_replay"},
    }
    for method in ("finetune", "mix_replay", "mtl"):
        variants[method] = {"method": method}
    for name in ("base", "finetune", "mix_replay", "mtl"):
        variants[f"{name}, order 2"] = {**variants[name], "data.order": "2"}
    for task in TASKS:
        variants[f"{task} alone"] = {"method": "finetune", "data.order": [task]}
    return variants


def ranges(study: Study) -> Iterator[Figure]:
    """Bounds, and what lies between them, in both orders."""
    joint = [run for run in study.runs if run.variant.startswith("mtl")]
    yield within("OP of joint training", (run.outcome["op"] for run in joint), 92)
    lowest = [min(row[-1] for row in run.outcome["matrix"]) for run in joint]
    yield within("joint training, its lowest task", lowest, 85)
    alone = [run.outcome["op"] for run in study.runs if run.variant.endswith(" alone")]
    yield within("a task alone", alone, 90)
    gaps: list[float] = []
    places: list[float] = []
    for order in ("", ", order 2"):
        scores = _ops(study, order)
        for seed, bound in scores["mtl"].items():
            gap = bound - scores["finetune"][seed]
            gaps.append(gap)
            places.append((scores["mix_replay"][seed] - scores["finetune"][seed]) / gap)
    yield within("joint training less fine-tuning", gaps, 30)
    between = min(places) > 0 and max(places) < 1
    yield Figure("MixReplay, from fine-tuning 0 to joint 1", "between", between, places)


def regime(study: Study) -> Iterator[Figure]:
    """What FOREVER meets within a task, a number a run."""
    runs = [*_runs(study, "base").values()]
    yield within("last fifth's updates over day 1's", map(pace, runs), 0.5)
    yield within("day 7, % of a task's updates", map(day_seven, runs), 11, 15)
    for day in (15, 30):
        shares = [share_of_tasks(run, day) for run in runs]
        met = fmean(shares) > 0.5
        yield Figure(f"tasks in which day {day} comes", "most", met, shares)
    yield within("penalty over loss of a replay", map(penalty_over_loss, runs), 1 / 3, 3)


def within(name: str, values: Iterable[float], low: float, high: float = math.inf) -> Figure:
    """A figure whose values shall all lie between two bounds."""
    seen = list(values)
    goal = f">= {low:g}" if high == math.inf else f"{low:.2g} to {high:.2g}"
    return Figure(name, goal, low <= min(seen) and max(seen) <= high, seen)


def resolution(study: Study) -> Iterator[Figure]:
    """How far seeds move a difference."""
    for variant, reference in (("base", "mix_replay"), ("+FIR", "base")):
        apart = _less(study, variant, reference)
        yield spread(f"{variant} less {reference}, sd over {len(apart)} seeds", 2, apart)


def cost(study: Study) -> Figure:
    """Seconds of a run of FOREVER; a run of a sweep has one core."""
    spent = [run.seconds for run in _runs(study, "base").values()]
    return Figure("a run of FOREVER, s of a core", "<= 15", fmean(spent) <= 15, spent)


def truths(study: Study, out: Path, placebos: int) -> Iterator[Figure]:
    """What is known beforehand: ten times the memory wins, and a variant does not beat itself."""
    rows = {row.variant: row for row in study.rows}
    won = rows["oracle"].compared("verdict") == "win"
    gains = _less(study, "oracle", "mix_replay")
    yield Figure("ten times the memory, Δ OP", "wins", won, [fmean(gains)], gains)
    # The same variant with seeds of its own, sweep by sweep of five seeds.
    pool = run_sweep(out / "placebo", {"base": {}}, 10 * placebos, first=1000)
    runs = list(_runs(pool, "base").values())
    silent: list[bool] = []
    apart: list[float] = []
    for start in range(0, len(runs), 10):
        parts = {"base": runs[start : start + 5], "placebo": runs[start + 5 : start + 10]}
        halves: dict[str, Mapping[Any, Any]] = {}
        for name, half in parts.items():
            halves[name] = {("1", seed): run.matrix for seed, run in enumerate(half)}
        placebo = compare(halves, "base")["placebo"]
        assert placebo.difference is not None
        apart.append(placebo.difference.value)
        silent.append(placebo.verdict not in ("win", "loss"))
    share = fmean(silent)
    name = "sweeps in which a placebo is no different"
    yield Figure(name, ">= 0.95", share >= 0.95, [share], apart)


# ---- what a run met within its tasks


def pace(run: Run) -> float:
    """The mean length of a task's last updates, a fifth, over that of the first day's."""
    days = run.settings["method.day_steps"]
    return fmean(
        fmean(task[-len(task) // 5 :]) / fmean(task[:days]) for task in norms(run).values()
    )


def norms(run: Run) -> dict[str, list[float]]:
    """How far each update of a task moves, by task."""
    by_task: dict[str, list[float]] = {}
    for line in run.steps:
        if line["kind"] == "task":
            by_task.setdefault(line["task"], []).append(line["update_norm"])
    return by_task


def day_seven(run: Run) -> float:
    """The mean place of day 7 in a task, in percent of its updates; 100 if it never comes."""
    updates = norms(run)
    places = [
        100 * event["step"] / len(updates[event["task"]])
        for event in run.events
        if event.get("day") == 7
    ]
    return fmean(places) if places else 100.0


def share_of_tasks(run: Run, day: int) -> float:
    """In how many of the tasks that have a memory a day comes."""
    return sum(event.get("day") == day for event in run.events) / (len(norms(run)) - 1)


def penalty_over_loss(run: Run) -> float:
    """The mean penalty of the updates that have one, over their mean loss."""
    held = [line for line in run.steps if line["penalty"]]
    return fmean(line["penalty"] for line in held) / fmean(line["loss"] for line in held)


# ---- runs of a study


def _runs(study: Study, variant: str) -> dict[int, Run]:
    found = {run.seed: run for run in study.runs if run.variant == variant}
    return dict(sorted(found.items()))


def _less(study: Study, variant: str, reference: str) -> list[float]:
    """OP of a variant less that of another one, by seed."""
    ops = _ops(study)
    return [op - ops[reference][seed] for seed, op in ops[variant].items()]


def _ops(study: Study, order: str = "") -> dict[str, dict[int, float]]:
    """OP by variant and seed, of those whose name ends in `order`."""
    ops: dict[str, dict[int, float]] = {}
    for run in study.runs:
        name = run.variant.removesuffix(order)
        if name + order == run.variant:
            ops.setdefault(name, {})[run.seed] = run.outcome["op"]
    return ops


def run_sweep(
    folder: Path,
    variants: Mapping[str, Any],
    seeds: int = 1,
    first: int = 0,
    environment: Mapping[str, str] = {},
    options: Sequence[str] = (),
) -> Study:
    """Run what is not there yet, a core a run unless the options say otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{folder.name}.yaml"
    content = {"question": "Is mini an instrument?", "variants": dict(variants)}
    if "base" in variants:
        content["reference"] = "base"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    numbers = ",".join(str(seed) for seed in range(first, first + seeds))
    command = ["sweep", str(file), "--seeds", numbers, "--out", str(folder), "--mlflow", "off"]
    command += options
    subprocess.run(
        [_FOREVER, *command], check=True, capture_output=True, env=os.environ | environment
    )
    return read_study(folder / folder.name)


if __name__ == "__main__":
    typer.run(main)
