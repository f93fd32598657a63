"""A sweep in rounds: which variants get more seeds, when it ends, that it resumes, and what the
report says. Nothing is trained: the runs are made up."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from made_up import TASKS, base_run, make_up, make_up_run, put_result
from pages import printed

from forever.errors import InputError
from forever.files import read_json
from forever.report.report import console_tables, write_report
from forever.report.row import Row
from forever.report.study import read_study
from forever.runs.directory import RunDirectory
from forever.sweeps.rounds import (
    MOST_SEEDS,
    Comparison,
    Limits,
    comparisons,
    count_judged,
    decide_all,
    first_round,
    read_scores,
    rounds,
)
from forever.sweeps.sweep import Sweep, Trial

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "far": {"method.days": "fixed_interval"},
    "near": {"method.regularizer": "none"},
    "open": {"method.clock": "steps"},
    "finetune": {"method.name": "finetune"},
}
# By variant: how far it is from its reference, and how much that varies over seeds. The luck of a
# seed is the reference's, too.
TRUTH = {
    "base": (0, 0),
    "far": (-30, 1.0),
    "near": (0, 0.3),
    "open": (1.4, 4),
    "finetune": (-40, 1),
}
WAVE = (0.3, -1.0, 1.2, -0.7, 0.9, -1.1, 0.6, -0.2)  # about 0, in place of drawn luck


def two(runs: int) -> int:
    """As many run at a time."""
    return min(runs, 2)


def toy(**changes: Any) -> Sweep:
    return Sweep("toy", base_run(), VARIANTS, **changes)


class Trainer:
    """Runs sweeps by writing results, two at a time, and remembers what it was asked for."""

    def __init__(self, folder: Path, fails: Sequence[str] = (), seconds: float = 60.0) -> None:
        self.folder, self.fails, self.seconds = folder, tuple(fails), seconds
        self.asked: list[list[str]] = []
        self.said: list[str] = []
        self.time = 0.0
        self.truth = TRUTH
        self.replays: Mapping[str, int] = {}  # examples of a run, by variant
        self.answers = False  # whether a report can be made of the runs

    def train(self, sweep: Sweep, limits: Limits, breaks_in: int = 99) -> None:
        """Run a sweep in rounds; the one of the number `breaks_in` ends in its middle."""
        parts = rounds(first_round(sweep), self.folder, limits, two, self.said.append, self.now)
        for number, part in enumerate(parts):
            trials = part.trials()
            self.asked.append([trial.key.rpartition("-")[0] for trial in trials])
            for trial in trials[: len(trials) // 2] if number == breaks_in else trials:
                if not trial.key.startswith(self.fails):
                    self.run(trial)
            if number == breaks_in:
                return

    def run(self, trial: Trial) -> None:
        """A run with the OP that its variant has with the seed; it may be finished."""
        path = RunDirectory(self.folder / trial.key).result
        result = read_json(path) if path.is_file() else {}
        if not result:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.time += self.seconds / 2
            if self.answers:
                make_up_run(path.parent, trial.variant, trial.config)
                result = read_json(path)
        distance, spread = self.truth[trial.variant]
        own = spread * WAVE[(3 * trial.seed + len(trial.variant)) % len(WAVE)]
        op = 60 + 5 * WAVE[trial.seed % len(WAVE)] + distance + own
        result |= {"op": op, "seconds": {"task": self.seconds}}
        result.setdefault("rows", {"colour": {"test": 1000}})
        if trial.variant in self.replays:
            result["examples"] = {"replayed": self.replays[trial.variant]}
        put_result(path.parent, result)

    def now(self) -> float:
        return self.time


def decided(
    folder: Path, points: float | None = 2.0, benchmark: str = "toy", sweep: Sweep | None = None
) -> dict[str, tuple[int, str]]:
    """What the finished runs of a folder say: seeds and verdict of each variant."""
    whole = replace(sweep or toy(), seeds=tuple(range(MOST_SEEDS)))
    found: dict[str, tuple[int, str]] = {}
    for comparison, decision in decide_all(whole, read_scores(whole, folder), points).items():
        if comparison.benchmark == benchmark:
            found[comparison.variant] = decision.seeds, decision.verdict
    return found


def rows_of(folder: Path) -> dict[str, Row]:
    return {row.variant: row for row in read_study(folder).rows}


def test_what_is_decided_gets_no_more_seeds(tmp_path: Path) -> None:
    """Bounds run with the first seeds only, the reference as long as anything is open, here to the
    last seed. Rounds grow by a quarter."""
    trainer = Trainer(tmp_path)
    trainer.train(toy(), Limits(points=2.0))
    first, second, *later = trainer.asked
    assert first == [f"{name}-ocustom-s{seed}" for seed in range(3) for name in VARIANTS]
    assert second == [f"{name}-ocustom-s3" for name in ("base", "far", "near", "open")]
    rest = [f"{name}-ocustom-s{seed}" for seed in range(4, MOST_SEEDS) for name in ("base", "open")]
    assert [*chain(*later)] == rest
    assert [len(keys) // 2 for keys in later] == [1, 1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12, 1]
    assert decided(tmp_path) == {"far": (4, "loss"), "near": (4, "equivalent"), "open": (64, "tie")}
    # Without points, only a difference is a decision.
    trainer = Trainer(tmp_path)
    trainer.train(toy(), Limits())
    assert decided(tmp_path, None)["near"] == (64, "tie")


@pytest.mark.parametrize("breaks_in", [0, 5])
def test_a_sweep_that_was_interrupted_comes_to_the_same(breaks_in: int, tmp_path: Path) -> None:
    whole, broken = Trainer(tmp_path / "whole"), Trainer(tmp_path / "broken")
    whole.train(toy(), Limits(2.0))
    broken.train(toy(), Limits(2.0), breaks_in)
    broken.asked.clear()
    broken.train(toy(), Limits(2.0))
    assert broken.asked == whole.asked
    assert decided(broken.folder) == decided(whole.folder)
    assert broken.said[-len(whole.said) :] == whole.said


def test_a_round_begins_only_if_it_fits(tmp_path: Path) -> None:
    """15 runs of a minute, two at a time, are 450 s; four more make 570; the next two need 60."""
    trainer = Trainer(tmp_path)
    trainer.train(toy(), Limits(2.0, budget_s=600.0))
    assert [len(keys) for keys in trainer.asked] == [15, 4]
    assert "60 s" in trainer.said[-1]  # of which 30 s are left
    # What is finished takes no time when the command is repeated.
    trainer = Trainer(tmp_path)
    trainer.train(toy(), Limits(2.0, budget_s=130.0))
    assert [len(keys) for keys in trainer.asked] == [15, 4, 2, 2]
    # So a budget that pays for nothing comes to where the call before it came.
    again = Trainer(tmp_path)
    again.train(toy(), Limits(2.0, budget_s=1.0))
    assert (again.asked, again.said[:-1]) == (trainer.asked, trainer.said[:-1])


def test_a_failed_run_leaves_its_pair_out(tmp_path: Path) -> None:
    """A variant that fails with every seed is tried in two rounds."""
    trainer = Trainer(tmp_path, fails=["far-ocustom-s1", "open-"])
    trainer.train(toy(), Limits(2.0))
    assert decided(tmp_path) == {"far": (4, "loss"), "near": (4, "equivalent"), "open": (0, "tie")}
    assert trainer.asked[1:] == [
        [f"{name}-ocustom-s3" for name in ("base", "far", "near", "open")],
        [f"{name}-ocustom-s4" for name in ("base", "far")],
    ]
    (dropped,) = [line for line in trainer.said if "--retry-failed" in line]
    assert dropped.startswith("open:")


def test_what_is_not_comparable_gets_no_more_seeds(tmp_path: Path) -> None:
    """The first round shows that it replays half of what its reference does; bounds replay nothing,
    and of `near` nobody counted."""
    trainer = Trainer(tmp_path)
    trainer.replays = {"base": 400, "far": 200, "open": 396, "finetune": 0}
    trainer.train(toy(), Limits(points=2.0))
    assert "far-ocustom-s3" not in chain(*trainer.asked[1:])
    assert trainer.asked[1] == [f"{name}-ocustom-s3" for name in ("base", "near", "open")]
    assert decided(tmp_path)["far"] == (3, "not comparable")
    assert decided(tmp_path)["open"] == (64, "tie")


def test_benchmarks_are_decided_one_by_one_and_orders_together(tmp_path: Path) -> None:
    """A seed is one pair, the mean over the orders of a benchmark."""
    other = {"data.benchmark": "other", "data.order": list(TASKS[:3])}
    orders = {"1": {}, "2": {"data.order": list(TASKS[::-1])}, "3": other}
    sweep = replace(toy(orders=orders), seeds=(5, 6, 7))
    trainer = Trainer(tmp_path, fails=["far-o3", "near-o2-s5"])
    trainer.train(sweep, Limits(2.0))
    assert count_judged(sweep) == len(comparisons(sweep)) == 6
    names = ("base", "far", "near", "open")
    assert trainer.asked[1] == [f"{name}-o{order}-s8" for order in (1, 2) for name in names]
    assert trainer.asked[2] == [f"{name}-o3-s8" for name in names]
    assert "far-o3-s9" not in chain(*trainer.asked)  # no pair in two rounds
    assert decided(tmp_path, sweep=sweep)["far"] == (4, "loss")
    assert "near-o1-s9" in chain(*trainer.asked)  # its fourth pair: one of seed 5 failed
    assert "far-o1-s9" not in chain(*trainer.asked)


def test_without_a_comparison_there_is_nothing_to_decide() -> None:
    for name in ("base", "finetune"):
        with pytest.raises(InputError, match="toy"):
            first_round(toy().only([name]))


def test_the_report_has_the_interval_of_the_rule_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forever.sweeps.rounds.MOST_SEEDS", 4)
    make_up(tmp_path, toy(seeds=(0, 1, 2, 3)))
    Trainer(tmp_path).train(toy(), Limits(4.0))
    write_report(tmp_path)
    far = decide_all(toy(), read_scores(toy(seeds=(0, 1, 2, 3)), tmp_path), 4.0)[
        Comparison("toy", "far", "base")
    ]
    assert far.half_width is not None
    low, high = far.value - far.half_width, far.value + far.half_width
    around = f"{far.value:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
    on_console = printed(console_tables(read_study(tmp_path)), 120)
    for shown in ((tmp_path / "report.html").read_text("utf-8"), on_console):
        assert around.partition(" ")[0] in shown
        assert "within ±4" in shown
    (part,) = json.loads((tmp_path / "report.json").read_text("utf-8"))["parts"]
    stored = {row["variant"]: row for row in part["rows"]}
    expected = {"value": far.value, "low": low, "high": high, "runs": 4}
    assert stored["far"]["difference"] == expected
    verdicts = {name: row["verdict"] for name, row in stored.items()}
    assert verdicts == {"base": None, "far": "loss", "near": "tie", "open": "tie", "finetune": None}
