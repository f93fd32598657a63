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
from made_up import base_run, make_up, make_up_run

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.report.report import write_report
from forever.report.study import read_study
from forever.runs.directory import RunDirectory, read_lines
from forever.sweeps.files import load_sweep
from forever.sweeps.sweep import Sweep
from forever.training.learner import Learner
from forever.training.step import perform
from forever.training.steps import Step


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def comparisons(folder: Path) -> dict[str, Any]:
    return {row.variant: row.comparison for row in read_study(folder).parts[0].rows}


def test_numbers_are_those_of_the_runs(reported: Path) -> None:
    study = read_study(reported)
    for row in study.rows:
        ops, bwts = ([result[name] for result in row.results] for name in ("op", "bwt"))
        assert row.compared("op").value == pytest.approx(sum(ops) / len(ops))
        if row.variant == "mtl":
            assert row.compared("bwt") is None
        else:
            assert row.compared("bwt").value == pytest.approx(sum(bwts) / len(bwts))
    for run in study.finished:
        assert run.matrix.overall() == pytest.approx(run.outcome["op"])
        assert run.matrix.backward_transfer() == pytest.approx(run.outcome["bwt"])


def test_a_report_reads_each_file_of_answers_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    read_text = Path.read_text

    def read(path: Path, *args: Any, **named: Any) -> str:
        opened.append(path)
        return read_text(path, *args, **named)

    monkeypatch.setattr(Path, "read_text", read)
    write_report(folder)
    of_runs = [path for path in opened if path.is_relative_to(folder)]
    read_once = sorted(path for path in of_runs if "predictions" in path.parts)
    assert read_once == sorted(folder.glob("*/predictions/*/*.jsonl"))
    assert len(of_runs) == len(set(of_runs))


@pytest.mark.parametrize(
    "method", ["finetune", "mtl", "mix_replay", "migu", "recurrent_kif", "forever", "vbm"]
)
def test_rows_that_are_mixed_into_a_tasks_batches_are_replayed_rows(
    method: str, base_config: RunConfig, tmp_path: Path
) -> None:
    """Equal to the rows of other tasks, repetitions counted, in the batches that the run was
    given."""
    config = base_config.override({"method.name": method, "optim.epochs": 2})
    replayed = 0

    def count(learner: Learner, method: Any, action: Any) -> Any:
        nonlocal replayed
        if isinstance(action, Step):
            assert learner.task is not None
            replayed += len([row for row in action.batch.examples if row not in learner.task.train])
        return perform(learner, method, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forever.training.loop.perform", count)
        execute(config, tmp_path / "run")
    (run,) = read_study(tmp_path / "run").runs
    assert run.replayed_rows == replayed
    assert (replayed > 0) == (method not in ("finetune", "mtl"))


def test_a_method_that_does_nothing_of_its_own_is_told(folder: Path) -> None:
    """It is fine-tuning, digit for digit, and agrees with nobody's replay."""
    sweep = Sweep("toy <sweep>", base_run(), {"empty": {"method.name": "mix_replay"}}, (0, 1))
    for trial in sweep.trials():
        shutil.copytree(next(folder.glob(f"finetune*s{trial.seed}*")), folder / trial.key)
        edit(folder / trial.key / "result.json", method="mix_replay")
    sweep.write_manifest(folder)
    assert {row.variant for row in read_study(folder).rows if row.idle} == {"empty"}


def test_bounds_stand_apart_and_are_not_judged(reported: Path) -> None:
    rows = {row.variant: row for row in read_study(reported).rows}
    assert [name for name, row in rows.items() if row.bound] == ["finetune", "mtl"]
    assert list(rows)[-2:] == ["finetune", "mtl"]
    for name in ("base", "finetune", "mtl"):
        assert rows[name].compared("verdict") is None
    assert rows["+FIR"].compared("verdict") in ("win", "tie", "loss")


# ---- folders that were used again, or hold no sweep


def test_variants_of_another_base_are_compared_with_that_base(folder: Path) -> None:
    """In a folder that was used twice; those of a base that is not there, with none."""
    other = base_run(**{"optim.lr": 1e-5})
    variants = {"base": {}, "-IAR": {"method.regularizer": "none"}}
    sweep = Sweep("toy <sweep>", other, variants, seeds=(0, 1))
    sweep.write_manifest(folder)
    changed = " (optim.lr=1e-05)"
    base, variant = [trial for trial in sweep.trials() if trial.seed == 0]
    make_up_run(folder / variant.key, "-IAR", variant.config)
    rows = {row.variant: row for row in read_study(folder).rows}
    assert rows["-IAR"].reference == "base"
    assert rows[f"-IAR{changed}"].compared("difference") is None
    make_up_run(folder / base.key, "base", base.config)
    rows = {row.variant: row for row in read_study(folder).rows}
    ours, base_row = rows[f"-IAR{changed}"], rows[f"base{changed}"]
    assert ours.reference == f"base{changed}"
    apart = ours.compared("op").value - base_row.compared("op").value
    assert ours.compared("difference").value == pytest.approx(apart)
    assert base_row.compared("difference") is None
    assert len(rows["base"].runs) == 2


def test_a_folder_of_runs_groups_seeds_and_tells_settings_apart(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    study = read_study(folder)
    counts = {row.variant: len(row.runs) for row in study.rows}
    assert (sum(counts.values()), len(counts), study.reference) == (9, 5, "forever")
    assert counts["finetune"] == counts["mtl"] == 2


def test_a_run_that_is_there_twice_is_refused(folder: Path) -> None:
    (folder / "sweep.json").unlink()
    shutil.copytree(next(folder.glob("base*s0*")), folder / "copy")
    with pytest.raises(InputError, match="hold the same run"):
        write_report(folder)


def test_each_variant_has_its_own_reference(two_benchmarks: Path) -> None:
    """As `backbones` has: two pairs, compared within."""
    before = comparisons(two_benchmarks)["+FIR"]
    names = {"base": "forever, L", "+FIR": "vbm, L", "finetune": "forever, Q"}
    manifest = json.loads((two_benchmarks / "sweep.json").read_text(encoding="utf-8"))
    for trial in manifest["trials"]:
        trial["variant"] = names[trial["variant"]]
    references = {"forever, L": "forever, L", "vbm, L": "forever, L"}
    edit(two_benchmarks / "sweep.json", trials=manifest["trials"],
         references=references, reference="forever, Q")  # fmt: skip
    after = comparisons(two_benchmarks)
    assert after["vbm, L"].difference == before.difference
    assert after["forever, L"].difference is None
    write_report(two_benchmarks)
    said = "Differences are to forever, Q; of vbm, L to forever, L."
    for name in ("report.md", "report.html", "report.tex"):
        assert said in (two_benchmarks / name).read_text(encoding="utf-8")


# ---- what is paired


def test_runs_are_paired_if_their_test_rows_are_the_same(two_benchmarks: Path) -> None:
    """Whatever the digests of the tasks say, which cover training rows, too."""
    for path in two_benchmarks.glob("plus_FIR-o1-*/result.json"):
        edit(path, data={"colour": "0"})
    assert comparisons(two_benchmarks)["+FIR"].difference.runs == 2
    # As many rows with another answer among them.
    for path in two_benchmarks.glob("plus_FIR-o1-s0*/predictions/*/1.jsonl"):
        first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
        changed = json.dumps(json.loads(first) | {"reference": "other"}) + "\n"
        path.write_text("".join([changed, *rest]), encoding="utf-8")
    assert comparisons(two_benchmarks)["+FIR"].difference.runs == 1


def test_a_difference_counts_the_runs_that_both_have(two_benchmarks: Path) -> None:
    next(two_benchmarks.glob("base-o1-s1*/result.json")).unlink()
    # A run that does not say where it was.
    next(two_benchmarks.glob("finetune-o1-s0*/environment.json")).unlink()
    write_report(two_benchmarks)
    found = comparisons(two_benchmarks)
    assert found["base"].op.runs == 1
    for name in ("+FIR", "finetune"):
        assert (found[name].op.runs, found[name].difference.runs) == (2, 1)
    content = json.loads((two_benchmarks / "report.json").read_text(encoding="utf-8"))
    assert content["hardware"]


def test_benchmarks_are_not_averaged(components: Path) -> None:
    parts = read_study(components).parts
    assert [part.benchmark for part in parts] == ["toy", "other"]
    for row in (row for part in parts for row in part.rows):
        assert row.planned == len(row.runs) == 2
    for part in parts:
        assert {run.outcome["benchmark"] for run in part.finished} == {part.benchmark}


# ---- damage


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _nothing_finished(folder: Path) -> None:
    for result in folder.glob("*/result.json"):
        result.unlink()


def _other_predictions(folder: Path) -> None:
    path = RunDirectory(next(folder.glob("base*"))).predictions(2, 2)
    lines = [json.dumps({**line, "score": 0.25}) for line in read_lines(path)]
    path.write_text("\n".join([*lines, ""]))


def _holding(pattern: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: next(folder.glob(pattern)).write_text(content)


@pytest.mark.parametrize(
    "spoil",
    [
        _empty,
        shutil.rmtree,
        _nothing_finished,
        _other_predictions,
        lambda folder: shutil.rmtree(next(folder.glob("base*")) / "predictions"),
        _holding("base*/predictions/2/2.jsonl", "{\n"),
        _holding("base*/result.json", '{"tasks": ["colo'),
        _holding("base*/result.json", "{}"),
        _holding("base*/config.yaml", "a: ["),
        _holding("sweep.json", '{"name": "x"}'),
        _holding("sweep.json", "[]"),
    ],
)
def test_a_damaged_folder_is_named(folder: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=re.escape(str(folder))):
        write_report(folder)


def test_a_single_run_has_no_verdict(reported: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(next(reported.glob("base*s0*")), tmp_path / "one"))
    assert write_report(run) == run / "report.html"
    (row,) = read_study(run).rows
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert row.compared("op").value == pytest.approx(result["op"])
    text = (run / "report.md").read_text(encoding="utf-8")
    assert "items only, 1 seed" in text
    assert "verdict" not in text


def test_sweeps_of_any_kind_become_reports(tmp_path: Path) -> None:
    """Each with the figures that its file asks for."""
    sizes = {f"forever {p} %": {"memory.fraction": p / 100} for p in (2, 50)}
    probing = {"method.name": "finetune", "method.probe_every": 3}
    orders = {"1": {}, "2": {"data.order": ["shape", "colour", "taste", "weight"]}}
    joint = {"forever": {}, "mtl": {"method.name": "mtl"}}
    days = {"standard": {}, "uniform": {"method.days": "uniform"}}
    sweeps = {
        "sensitivity": Sweep("memory_size", base_run(), sizes, reference="forever 2 %"),
        "forgetting-rate": Sweep("forgetting_rate", base_run(), {"finetune": probing}),
        "model-day": Sweep("model_day", base_run(), joint, (0,), orders, reference="forever"),
        "training-time": Sweep("training_time", base_run(), joint, reference="forever"),
        "backbones": Sweep("backbones", base_run(), joint, reference="forever"),
        "spacing": Sweep("spacing", base_run(), days, reference="standard"),
    }
    for figure, sweep in sweeps.items():
        folder = make_up(tmp_path / sweep.name, sweep)
        write_report(folder)
        name = "sensitivity" if figure == "spacing" else figure
        assert (folder / "figures" / f"{name}.png").is_file()
        title = load_sweep(sweep.name).title
        assert f"**{title}**: " in (folder / "report.md").read_text(encoding="utf-8")
