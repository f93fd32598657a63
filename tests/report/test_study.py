"""A folder of runs is read as what it is: which runs are there, which are missing, which belong
together."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import execute
from made_up import TASKS, base_run, edit, make_up, make_up_run

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.report import facts
from forever.report.frame import frame_of, text_table
from forever.report.report import write_report
from forever.report.row import Row
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Probe, Step


def rows_of(folder: Path) -> dict[str, Row]:
    """The rows of the first benchmark."""
    return {row.variant: row for row in read_study(folder).parts[0].rows}


@pytest.mark.parametrize(
    "method", ["finetune", "mtl", "mix_replay", "migu", "recurrent_kif", "forever", "vbm"]
)
def test_rows_that_are_mixed_into_a_tasks_batches_are_replayed_rows(
    method: str, base_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the rows of other tasks, repetitions and views counted, in the batches that the run
    was given; also those of a run that did not count."""
    replayed: list[Any] = []
    probed: list[Any] = []

    def count(learner: Learner, method: Any, action: Any) -> Any:
        if isinstance(action, Step):
            task = learner.task
            assert task is not None
            rows = [row for row in action.batch.examples if row not in task.train]
            replayed.extend(rows * action.batch.views)
        elif isinstance(action, Probe):
            probed.extend(action.batch.examples)
        return perform(learner, method, action)

    monkeypatch.setattr("forever.training.loop.perform", count)
    execute(base_config.override({"method.name": method, "optim.epochs": 2}), tmp_path / "run")
    (run,) = read_study(tmp_path / "run").runs
    assert run.replayed_rows == len(replayed)
    assert bool(replayed) == (method not in ("finetune", "mtl"))
    learned = 2 * sum(rows["train"] for rows in run.outcome["rows"].values())
    assert run.outcome["examples"] == {
        "task": learned, "replayed": len(replayed), "padded": 0, "probed": len(probed), "written": 0
    }  # fmt: skip
    assert run.padded_rows is None
    edit(run.directory.result, examples=run.outcome["examples"] | {"padded": 5})
    assert read_study(tmp_path / "run").runs[0].padded_rows == 5
    edit(run.directory.result, examples=None)
    (run,) = read_study(tmp_path / "run").runs
    assert run.replayed_rows == len(replayed)


@pytest.mark.parametrize(
    ("variant", "scheduled", "came", "degenerate"),
    [
        ({}, 4, 2, False),
        ({}, 4, 1, True),
        ({"budget.examples": 9}, 4, 1, False),  # the first event may have spent it
        ({"budget.examples": 9}, 4, 0, True),
        ({"method.days": "decreasing"}, 0, 0, True),  # none would come in updates of equal length
        ({"method.days": "decreasing"}, 0, 1, False),
        ({"method.days": "end_only"}, 0, 0, False),
        ({"method.name": "vbm", "method.days": "equal"}, 0, 0, False),  # of a short task: its end
        ({"method.name": "vbm"}, 4, 1, True),
        ({"method.name": "finetune"}, 0, 0, False),
    ],
)
def test_a_schedule_whose_days_do_not_come_is_degenerate(
    variant: dict[str, Any], scheduled: int, came: int, degenerate: bool, tmp_path: Path
) -> None:
    """Fewer than half of them over all runs; of two here the second has none at all."""
    sweep = Sweep("toy", base_run(), {"v": variant}, (0, 1), reference="v")
    make_up(tmp_path, sweep)
    for times, trial in zip((1, 0), sweep.trials(), strict=True):
        notes = {"colour": {"scheduled_events": times * scheduled}}
        events = {"colour": {"replay": times * came, "consolidation": 1}}
        budget = "exact" if "budget.examples" in variant else None
        edit(tmp_path / trial.key / "result.json", notes=notes, events=events, budget=budget)
    (row,) = read_study(tmp_path).rows
    assert row.degenerate is degenerate


def test_a_row_shows_whether_its_runs_kept_to_their_budget(folder: Path) -> None:
    """The worst run counts, and without a budget there is no such column."""
    assert "budget" not in text_table(frame_of([*rows_of(folder).values()]), "console").columns
    marks = {"base": ("exact", "exact"), "+FIR": ("exact", "under"), "finetune": ("under", "over")}
    for name, of_runs in marks.items():
        for run, mark in zip(rows_of(folder)[name].runs, of_runs, strict=True):
            edit(run.directory.result, budget=mark)
    table = text_table(frame_of([*rows_of(folder).values()]), "console").set_index("variant")
    assert [table["budget"][name] for name in (*marks, "mtl")] == ["exact", "under", "over", "–"]


def test_variants_of_unequal_doses_have_no_verdict_and_the_table_says_so(folder: Path) -> None:
    """The rest is judged, and corrected for what is judged. What cannot have a verdict for its dose
    is told with one seed, too."""
    before = rows_of(folder)["+FIR"]
    doses = {"base": 1000, "+FIR": 979, "-IAR": 981, "finetune": 0, "mtl": 0}
    for name, row in rows_of(folder).items():
        for run in row.runs:
            edit(run.directory.result, examples={"replayed": doses[name], "padded": 0})
    rows = rows_of(folder)
    assert rows["+FIR"].compared("difference") == before.compared("difference")
    assert {name: row.compared("verdict") for name, row in rows.items()} == {
        "base": None, "+FIR": "not comparable", "-IAR": None, "finetune": None, "mtl": None,
    }  # fmt: skip
    assert {name: row.footing.equal for name, row in rows.items()} == {
        "base": "", "+FIR": "", "-IAR": "examples", "finetune": "", "mtl": "",
    }  # fmt: skip
    assert rows["+FIR"].agreement == ""
    table = text_table(frame_of([*rows.values()]), "scores").set_index("variant")
    assert table["verdict"]["+FIR"] == "≠ dose"


def test_a_method_that_does_nothing_of_its_own_is_told(folder: Path) -> None:
    """It is fine-tuning, digit for digit, and agrees with nobody's replay."""
    sweep = Sweep("toy <sweep>", base_run(), {"empty": {"method.name": "mix_replay"}}, (0, 1))
    for trial in sweep.trials():
        shutil.copytree(next(folder.glob(f"finetune*s{trial.seed}*")), folder / trial.key)
        changes = {"method": "mix_replay", "fingerprint": trial.config.fingerprint()}
        edit(folder / trial.key / "result.json", **changes)
        config = folder / trial.key / "config.yaml"
        config.write_text(config.read_text().partition("\n")[2])
    sweep.write_manifest(folder)
    assert {name for name, row in rows_of(folder).items() if row.idle} == {"empty"}


# ---- folders that were used again, or hold no sweep


def test_variants_of_another_base_are_compared_with_that_base(folder: Path) -> None:
    """In a folder that was used twice; those of a base that is not there, with none."""
    variants = {"base": {}, "-IAR": {"method.regularizer": "none"}}
    sweep = Sweep("toy <sweep>", base_run(**{"optim.lr": 1e-5}), variants, seeds=(0, 1))
    sweep.write_manifest(folder)
    changed = " (optim.lr=1e-05)"
    base, variant = [trial for trial in sweep.trials() if trial.seed == 0]
    make_up_run(folder / variant.key, "-IAR", variant.config)
    assert rows_of(folder)["-IAR"].reference == "base"
    assert rows_of(folder)[f"-IAR{changed}"].compared("difference") is None
    make_up_run(folder / base.key, "base", base.config)
    rows = rows_of(folder)
    ours, base_row = rows[f"-IAR{changed}"], rows[f"base{changed}"]
    assert ours.reference == f"base{changed}"
    apart = ours.compared("op").value - base_row.compared("op").value
    assert ours.compared("difference").value == pytest.approx(apart)
    assert base_row.compared("difference") is None
    assert len(rows["base"].runs) == 2


def test_a_folder_of_runs_groups_seeds_and_tells_settings_apart(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    counts = {name: len(row.runs) for name, row in rows_of(folder).items()}
    assert (sum(counts.values()), len(counts)) == (9, 5)
    assert counts["finetune"] == counts["mtl"] == 2
    assert read_study(folder).reference == "forever"
    shutil.copytree(next(folder.glob("base*s0*")), folder / "copy")
    with pytest.raises(InputError, match="copy"):
        read_study(folder)


def test_runs_on_other_tasks_are_another_variant(tmp_path: Path) -> None:
    """Their scores have no common mean; another order of the same tasks is no other variant."""
    orders = (TASKS, TASKS[::-1], TASKS[:3], (*TASKS[1:], "smell"))
    for number, tasks in enumerate(orders):
        config = base_run(**{"data.order": list(tasks)})
        make_up_run(tmp_path / str(number), "forever", config)
    assert {name: len(row.runs) for name, row in rows_of(tmp_path).items()} == {
        "forever": 2,
        "forever (without taste)": 1,
        "forever (with smell, without colour)": 1,
    }


def test_each_benchmark_of_a_folder_of_runs_has_its_own_reference(tmp_path: Path) -> None:
    """Whatever the settings of FOREVER on another benchmark are; without it there is none."""
    other = {"data.benchmark": "other", "data.train_rows": 24, "optim.lr": 1e-3}
    plain = {"method.name": "finetune"}
    for name, changes in {
        "a": {}, "b": other, "c": {**other, **plain}, "d": {**plain, "data.benchmark": "third"},
    }.items():  # fmt: skip
        make_up_run(tmp_path / name, name, base_run(**changes))
    study = read_study(tmp_path)
    rows = {(part.benchmark, row.variant): row for part in study.parts for row in part.rows}
    assert [*rows] == [
        ("toy", "forever"), ("other", "forever"), ("other", "finetune"), ("third", "finetune"),
    ]  # fmt: skip
    assert rows["other", "finetune"].compared("difference") is not None
    assert facts.changes(study)["finetune"] == "method.name=finetune"
    assert "optim.lr=0.001" in facts.facts(study)["settings of forever on other"]


def test_versions_of_a_benchmark_do_not_mix(folder: Path) -> None:
    """Order 1 of `mini` had five tasks once: what they were is known from the results."""
    path = next(folder.glob("base*s0*")) / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    result["rows"]["smell"] = result["rows"][result["tasks"][-1]]
    result["tasks"][-1] = "smell"
    path.write_text(json.dumps(result), encoding="utf-8")
    with pytest.raises(InputError, match="smell"):
        read_study(folder)


def test_a_single_run_has_no_verdict(reported: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(next(reported.glob("base*s0*")), tmp_path / "one"))
    assert write_report(run) == run / "report.html"
    assert "verdict" not in text_table(frame_of(read_study(run).rows), "scores").columns


def test_each_variant_has_its_own_reference(two_benchmarks: Path) -> None:
    """As `backbones` has: two pairs, compared within."""
    before = rows_of(two_benchmarks)["+FIR"]
    names = {"base": "forever, L", "+FIR": "vbm, L", "finetune": "forever <Q>"}
    trials = json.loads((two_benchmarks / "sweep.json").read_text(encoding="utf-8"))["trials"]
    for trial in trials:
        trial["variant"] = names[trial["variant"]]
    references = {"forever, L": "forever, L", "vbm, L": "forever, L"}
    edit(two_benchmarks / "sweep.json", trials=trials,
         references=references, reference="forever <Q>")  # fmt: skip
    after = rows_of(two_benchmarks)
    assert after["vbm, L"].compared("difference") == before.compared("difference")
    assert after["forever, L"].compared("difference") is None
    assert read_study(two_benchmarks).others == {"vbm, L": "forever, L"}


# ---- what is paired


def test_runs_are_paired_if_their_test_rows_are_the_same(two_benchmarks: Path) -> None:
    """Whatever the digests of the tasks say, which cover training rows, too."""
    for path in two_benchmarks.glob("plus_FIR-o1-*/result.json"):
        edit(path, data={"colour": "0"})
    assert rows_of(two_benchmarks)["+FIR"].compared("difference").runs == 2
    # As many rows with another answer among them.
    for path in two_benchmarks.glob("plus_FIR-o1-s0*/predictions/*/1.jsonl"):
        text = path.read_text(encoding="utf-8").replace('"yes"', '"other"', 1)
        path.write_text(text, encoding="utf-8")
    assert rows_of(two_benchmarks)["+FIR"].compared("difference").runs == 1


# ---- damage


def _nothing_finished(folder: Path) -> None:
    for result in folder.glob("*/result.json"):
        result.unlink()


def _holding(pattern: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: next(folder.glob(pattern)).write_text(content)


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        _nothing_finished,
        _holding("sweep.json", '{"name": "x"}'),
        _holding("sweep.json", "[]"),
        _holding("sweep.json", "[" * 100_000),
        lambda folder: (folder / "sweep.json").write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_folder_is_named(folder: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=re.escape(str(folder))):
        write_report(folder)


PLACED = b"seed: 0\ndata: {benchmark: a, order: '1'}\n"
DAMAGE: list[tuple[str, bytes | None]] = [
    ("predictions", None),
    ("predictions/2/2.jsonl", b'{"id": "a", "reference": "b", "score": 0.25}\n'),
    ("predictions/2/2.jsonl", b"{\n"),
    ("predictions/2/2.jsonl", b""),
    ("result.json", b'{"tasks": ["colo'),
    ("result.json", b"{}"),
    ("result.json", b'{"schema_version": 3}'),
    ("config.yaml", b"a: ["),
    ("config.yaml", b"- a"),
    ("config.yaml", b""),
    ("config.yaml", PLACED + b"method: {name: b}"),
    ("config.yaml", PLACED + b"model: {name: a}\nmethod: {name: b}"),
    ("environment.json", b""),
]


@pytest.mark.parametrize(("name", "content"), DAMAGE)
def test_a_damaged_run_is_named_and_the_others_are_reported(
    folder: Path, name: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(read_study(folder).finished)
    run = next(folder.glob("base*s0*"))
    shutil.rmtree(run / name) if content is None else (run / name).write_bytes(content)
    for is_sweep in (True, False):
        if not is_sweep:
            (folder / "sweep.json").unlink()
        study = read_study(folder)
        message = capsys.readouterr().err
        assert str(run) in message
        assert message.count("\n") == 1
        assert len(study.finished) == before - 1
        assert [other.key for other in study.missing if other.damage] == [run.name]
    with pytest.raises(InputError, match=re.escape(str(run))):
        read_study(run)
