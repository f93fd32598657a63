"""The main effects of a sweep of two factors, by the report and by a script of its own."""

import shutil
from pathlib import Path

from made_up import base_run, make_up

from forever.files import read_json
from forever.report.effects import effects_of, effects_table
from forever.report.joined import read_studies
from forever.report.report import write_report
from forever.report.study import read_study
from forever.sweeps.files import read_sweep
from scripts.effects import reported, table_of
from scripts.keep import REPORT, RESULTS

FILE = """
reference: days none
factors: [when, how]
variants:
  days: {method.clock: model}
  steps: {method.clock: steps}
  mixed: {method.name: mix_replay}
each:
  none: {}
  clipped: {optim.clip: 0.5}
"""


def two_folders(folder: Path) -> list[Path]:
    """The sweep at a constant rate and at a decaying one, with a budget for each task that differs
    as FOREVER's own dose does, four seeds each; one run is missing."""
    path = folder / "when_how.yaml"
    path.write_text(FILE, encoding="utf-8")
    folders = [folder / "constant", folder / "linear"]
    for each, last in zip(folders, (24, 32), strict=True):
        base = base_run(**{"optim.schedule": each.name, "budget.examples": [8, 16, last]})
        make_up(each, read_sweep(path).expand(base, seeds=range(4)))
    (missing,) = folders[1].glob("mixed_none-*-s3-*")
    shutil.rmtree(missing)
    return folders


def test_a_script_that_shares_no_code_finds_the_same(tmp_path: Path) -> None:
    folders = two_folders(tmp_path)
    manifest = read_json(folders[0] / "sweep.json")
    assert manifest["factors"]["when"]["steps clipped"] == "steps"
    for each, blocks in ((folders, 7), (folders[:1], 4)):
        study = read_studies(each, tmp_path / "both") if len(each) > 1 else read_study(each[0])
        write_report(study, tmp_path / "both")
        path = tmp_path / "both" / "report.json"
        (part,) = read_json(path)["parts"]
        effects = part["analyses"]["main_effects"]
        assert (effects["blocks"], effects["comparisons"]) == (blocks, 3)
        assert effects["incomplete"] == (1 if len(each) > 1 else 0)
        assert list(table_of(each)) == [
            "when: days", "when: steps", "when: mixed", "how: none", "how: clipped",
        ]  # fmt: skip
        assert table_of(each) == reported(path)
        assert len(effects_table(study.parts[0])) == 5


def test_the_script_agrees_with_a_committed_report() -> None:
    folder = RESULTS / "when_how-mini"
    assert table_of([folder]) == reported(folder / REPORT)


def test_a_level_that_was_edited_is_another_one(tmp_path: Path) -> None:
    """Its new runs are the cell; without them its blocks lack it, and no other is lost."""
    path, folder = tmp_path / "when_how.yaml", tmp_path / "runs"
    for text in (FILE, FILE.replace("clip: 0.5", "clip: 0.25")):
        path.write_text(text, encoding="utf-8")
        make_up(folder, read_sweep(path).expand(base_run(), seeds=range(4)))
    (part,) = read_study(folder).parts
    effects = effects_of(part)
    assert effects is not None
    assert (effects.blocks, effects.incomplete) == (4, 0)
