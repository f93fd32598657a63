"""A folder of runs is read as what it is: which runs there are, which are missing, which belong
together."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import execute
from made_up import TASKS, base_run, edit, make_up, make_up_run, rewrite

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.report.facts import cautions, notes
from forever.report.frame import frame_of, text_table
from forever.report.report import write_report
from forever.report.row import Row
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Step


def rows_of(folder: Path) -> dict[str, Row]:
    """The rows of the first benchmark."""
    return {row.variant: row for row in read_study(folder).parts[0].rows}


@pytest.mark.parametrize("method", ["finetune", "mix_replay", "recurrent_kif", "vbm"])
def test_replayed_examples_are_those_of_other_tasks(
    method: str, base_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repetitions and views are counted, also where a method mixes them into a task's batches."""
    replayed: list[Any] = []

    def count(learner: Learner, method: Any, action: Any) -> Any:
        if isinstance(action, Step):
            assert learner.task is not None
            others = [each for each in action.batch.examples if each not in learner.task.train]
            replayed.extend(others * action.batch.views)
        return perform(learner, method, action)

    monkeypatch.setattr("forever.training.loop.perform", count)
    execute(base_config.override({"method.name": method, "optim.epochs": 2}), tmp_path / "run")
    (run,) = read_study(tmp_path / "run").runs
    assert run.examples_of("replayed") == len(replayed)
    assert bool(replayed) == (method != "finetune")


# ---- rows


@pytest.mark.parametrize(
    ("variant", "scheduled", "came", "degenerate"),
    [
        ({}, 4, 2, False),
        ({}, 4, 1, True),
        ({"budget.examples": 9}, 4, 1, False),  # the first event may have spent it
        ({"budget.examples": 9}, 4, 0, True),
        ({"method.days": "decreasing"}, 0, 0, True),  # none would come in updates of equal length
        ({"method.days": "end_only"}, 0, 0, False),
        ({"method.name": "finetune"}, 0, 0, False),
    ],
)
def test_a_schedule_whose_days_do_not_come_is_degenerate(
    variant: dict[str, Any], scheduled: int, came: int, degenerate: bool, tmp_path: Path
) -> None:
    """Fewer than half of them over all runs; the second of two has none at all."""
    sweep = Sweep("toy", base_run(), {"v": variant}, (0, 1), reference="v")
    make_up(tmp_path, sweep)
    for times, trial in zip((1, 0), sweep.trials(), strict=True):
        notes = {"colour": {"scheduled_events": times * scheduled}}
        events = {"colour": {"replay": times * came, "consolidation": 1}}
        budget = "exact" if "budget.examples" in variant else None
        edit(tmp_path / trial.key / "result.json", notes=notes, events=events, budget=budget)
    (row,) = read_study(tmp_path).rows
    assert row.degenerate is degenerate


def test_of_the_budgets_of_runs_the_worst_counts(folder: Path) -> None:
    marks = {"base": ("exact", "exact"), "+FIR": ("exact", "under"), "finetune": ("under", "over")}
    for name, of_runs in marks.items():
        for run, mark in zip(rows_of(folder)[name].runs, of_runs, strict=True):
            edit(run.directory.result, budget=mark)
    budgets = {name: row.budget for name, row in rows_of(folder).items() if row.budget}
    assert budgets == {"base": "exact", "+FIR": "under", "finetune": "over"}


def test_variants_of_unequal_doses_have_no_verdict(folder: Path) -> None:
    """They keep their difference; the others are judged."""
    before = rows_of(folder)["+FIR"]
    doses = {"base": 1000, "+FIR": 979, "-IAR": 981, "finetune": 0, "mtl": 0}
    for name, row in rows_of(folder).items():
        for run in row.runs:
            edit(run.directory.result, examples={"replayed": doses[name], "padded": 0})
    rows = rows_of(folder)
    assert rows["+FIR"].compared("difference") == before.compared("difference")
    assert (rows["+FIR"].compared("verdict"), rows["+FIR"].agreement) == ("not comparable", "")
    assert {name: row.dose_gap.equal for name, row in rows.items() if row.dose_gap.kind} == {
        "+FIR": "", "-IAR": "examples",
    }  # fmt: skip
    table = text_table(frame_of([*rows.values()]), "scores").set_index("variant")
    assert table["verdict"]["+FIR"] == "≠ dose"


def test_a_method_that_does_nothing_of_its_own_is_idle(folder: Path) -> None:
    """It is fine-tuning, digit for digit."""
    sweep = Sweep("toy <sweep>", base_run(), {"empty": {"method.name": "mix_replay"}}, (0, 1))
    for trial in sweep.trials():
        shutil.copytree(next(folder.glob(f"finetune*s{trial.seed}*")), folder / trial.key)
        changes = {"method": "mix_replay", "fingerprint": trial.config.fingerprint()}
        edit(folder / trial.key / "result.json", **changes)
        config = folder / trial.key / "config.yaml"
        config.write_text(config.read_text().partition("\n")[2])
    sweep.write_manifest(folder)
    assert {name for name, row in rows_of(folder).items() if row.idle} == {"empty"}


def test_where_fine_tuning_forgets_nothing_there_is_nothing_to_keep(folder: Path) -> None:
    assert not any(row.nothing_to_forget for row in rows_of(folder).values())
    for path in folder.glob("finetune*/predictions/*/*.jsonl"):
        stage, task = int(path.parent.name), int(path.stem)
        learned = path.parents[1] / str(task) / path.name
        if stage > task:
            path.write_text(learned.read_text(encoding="utf-8"), encoding="utf-8")
    for path in folder.glob("finetune*/result.json"):
        matrix = json.loads(path.read_text(encoding="utf-8"))["matrix"]
        for task, scores in enumerate(matrix):
            scores[task:] = [scores[task]] * len(scores[task:])
        edit(path, matrix=matrix)
    study = read_study(folder)
    assert all(row.nothing_to_forget for row in study.rows)
    assert any("Nothing to forget" in note for note in notes(study.parts[0]))


def test_a_run_that_mixes_test_examples_has_no_bwt(folder: Path) -> None:
    path = next(folder.glob("base*s0*"))
    environment = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    edit(path / "environment.json", resumed=[{**environment, "mixed_tests": ["shape"]}])
    rows = rows_of(folder)
    assert rows["base"].compared("bwt") is rows["+FIR"].compared("bwt_difference") is None
    assert rows["+FIR"].compared("bwt") is not None
    assert rows["+FIR"].compared("difference").runs == 2
    (text,) = [text for text in cautions(read_study(folder).parts[0]) if path.name in text]
    assert "shape" in text


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


def test_runs_are_paired_if_their_test_examples_are_the_same(two_benchmarks: Path) -> None:
    """Whatever the digests of the tasks say, which cover training examples, too."""
    for path in two_benchmarks.glob("plus_FIR-o1-*/result.json"):
        edit(path, data={"colour": "0"})
    assert rows_of(two_benchmarks)["+FIR"].compared("difference").runs == 2
    # As many examples with another answer among them.
    for path in two_benchmarks.glob("plus_FIR-o1-s0*/predictions/*/1.jsonl"):
        text = path.read_text(encoding="utf-8").replace('"yes"', '"other"', 1)
        path.write_text(text, encoding="utf-8")
    assert rows_of(two_benchmarks)["+FIR"].compared("difference").runs == 1


# ---- folders that were used again, or hold no sweep


def test_an_edited_variant_keeps_its_name_and_its_old_run_is_marked(folder: Path) -> None:
    """Whether the new run has begun or not; what is compared is always what the file says now."""
    old = rows_of(folder)["+FIR"].compared("op")
    variants = {"base": {}, "+FIR": {"method.beta": 0.5}}
    sweep = Sweep("toy <sweep>", base_run(), variants, seeds=(0, 1))
    sweep.write_manifest(folder)
    rows = rows_of(folder)
    assert rows["+FIR (earlier)"].compared("op") == old
    assert rows["+FIR (earlier)"].compared("difference") is None
    assert "+FIR" not in rows or not rows["+FIR"].runs
    for trial in sweep.trials():
        if trial.variant == "+FIR":
            make_up_run(folder / trial.key, "+FIR", trial.config)
    rows = rows_of(folder)
    assert rows["+FIR"].reference == "base"
    assert rows["+FIR"].compared("difference").runs == 2
    (earlier,) = [name for name in rows if name.startswith("+FIR (method.")]
    assert rows[earlier].compared("op") == old
    assert rows[earlier].compared("difference") is None


def test_variants_of_another_base_are_compared_with_that_base(folder: Path) -> None:
    """In a folder that was used twice; without that base there, with none."""
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


def test_a_folder_of_runs_groups_seeds_and_separates_settings(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    counts = {name: len(row.runs) for name, row in rows_of(folder).items()}
    assert (sum(counts.values()), len(counts)) == (9, 5)
    assert counts["finetune"] == counts["mtl"] == 2
    assert read_study(folder).reference == "forever"
    shutil.copytree(next(folder.glob("base*s0*")), folder / "copy")
    with pytest.raises(InputError, match="copy"):
        read_study(folder)


def test_a_field_that_an_earlier_version_did_not_have_is_no_difference(folder: Path) -> None:
    before = [row.variant for row in read_study(folder).rows]
    for config in folder.glob("*-s0-*/config.yaml"):
        lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
        older = [line for line in lines if "gradient_checkpointing" not in line]
        assert len(older) == len(lines) - 1
        rewrite(config, "".join(older))
    assert [row.variant for row in read_study(folder).rows] == before


def test_runs_on_other_tasks_are_another_variant(tmp_path: Path) -> None:
    """Their scores have no common mean; another order of the same tasks is the same variant."""
    orders = (TASKS, TASKS[::-1], TASKS[:3], (*TASKS[1:], "smell"))
    for number, tasks in enumerate(orders):
        config = base_run(**{"data.order": list(tasks)})
        make_up_run(tmp_path / str(number), "forever", config)
    assert {name: len(row.runs) for name, row in rows_of(tmp_path).items()} == {
        "forever": 2,
        "forever (without taste)": 1,
        "forever (with smell, without colour)": 1,
    }


def test_a_single_run_has_no_verdict(reported: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(next(reported.glob("base*s0*")), tmp_path / "one"))
    assert write_report(run) == run / "report.html"
    assert "verdict" not in text_table(frame_of(read_study(run).rows), "scores").columns


# ---- what is refused


def test_versions_do_not_mix(folder: Path) -> None:
    """Of a benchmark whose order had other tasks, and of the package of a method."""
    path = next(folder.glob("base*s0*")) / "result.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    edit(path, method_package={"name": "mine", "version": "2"})
    with pytest.raises(InputError) as caught:
        read_study(folder)
    assert caught.value.key == "method.name"
    tasks = [*whole["tasks"][:-1], "smell"]
    edit(path, method_package=None, tasks=tasks, rows=whole["rows"] | {"smell": {"test": 20}})
    with pytest.raises(InputError) as caught:
        read_study(folder)
    assert caught.value.key == "data.benchmark"


@pytest.mark.parametrize(
    ("name", "there", "here", "key"),
    [
        ("data", {"colour": "0", "shape": "0"}, {"colour": "1", "shape": "0"}, "data.root"),
        ("model", {"weights": "0"}, {"weights": "1"}, "model.name"),
    ],
)
def test_runs_of_other_data_or_weights_are_no_seeds(
    name: str, there: Any, here: Any, key: str, folder: Path
) -> None:
    """Nor other variants to compare with; what a result lacks is not compared."""
    for pattern in ("base*s1*", "plus_FIR*s1*"):
        edit(next(folder.glob("base*s0*")) / "result.json", **{name: there})
        edit(next(folder.glob(pattern)) / "result.json", **{name: there})
        read_study(folder)
        edit(next(folder.glob(pattern)) / "result.json", **{name: here})
        with pytest.raises(InputError) as caught:
            read_study(folder)
        assert caught.value.key == key
        edit(next(folder.glob(pattern)) / "result.json", **{name: {}})


def _nothing_finished(folder: Path) -> None:
    for result in folder.glob("*/result.json"):
        result.unlink()


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        _nothing_finished,
        lambda folder: (folder / "sweep.json").write_text('{"name": "x"}'),
        lambda folder: (folder / "sweep.json").write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_folder_is_named(folder: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=re.escape(str(folder))):
        write_report(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("predictions", None),
        ("predictions/2/2.jsonl", b'{"id": "a", "reference": "b", "score": 0.25}\n'),
        ("predictions/2/2.jsonl", b"{\n"),
        ("result.json", b'{"tasks": ["colo'),
        ("result.json", b'{"schema_version": 3}'),
        ("config.yaml", b"- a"),
        ("config.yaml", b"seed: 0\ndata: {benchmark: a, order: '1'}\nmethod: {name: b}"),
        ("environment.json", b""),
    ],
)
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
        assert str(run) in capsys.readouterr().err
        assert len(study.finished) == before - 1
        assert [other.key for other in study.missing if other.damage] == [run.name]
    with pytest.raises(InputError, match=re.escape(str(run))):
        read_study(run)
