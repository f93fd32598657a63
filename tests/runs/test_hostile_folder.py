"""A run folder from somebody else reads and writes nothing outside of itself."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_up import base_run, edit, make_up
from pydantic import ValidationError

from forever.errors import InputError
from forever.files import Shape, read_sums, shaped, write_noted
from forever.launch.local import Placement, run_local
from forever.reading import check_links, check_within
from forever.report.report import write_report
from forever.report.study import read_study
from forever.runs.checkpoint import Progress
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin
from forever.runs.shapes import Environment, Place, Result, check_weights
from forever.sweeps.sweep import Sweep, read_manifest

VARIANTS = {"base": {}, "finetune": {"method.name": "finetune"}}
MANY = {str(number): "x" for number in range(20_000)}
ELSEWHERE = [
    "../outside",
    "/tmp/outside",
    "..",
    ".",
    "a/../../b",
    "a\\b",
    "a\0b",
    "\x1b[2J",
    "",
    "a" * 256,
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = Sweep("toy", base_run(), VARIANTS, seeds=(0, 1))
    return make_up(tmp_path_factory.mktemp("sweeps") / "toy", sweep)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "in" / "toy"))


@pytest.fixture
def outside(folder: Path, tmp_path: Path) -> Path:
    """A run that lies elsewhere, and is sound."""
    run = next(folder.glob("base*s0*"))
    return Path(shutil.copytree(run, tmp_path / "outside"))


# ---- much that is wrong


@pytest.mark.parametrize(
    ("shape", "field"),
    [(Progress, "records"), (Progress, "data"), (Result, "matrix"), (Place, "argv")],
)
def test_the_first_of_many_bad_entries_is_enough(shape: type[Shape], field: str) -> None:
    """A million of them would take gigabytes."""
    with pytest.raises(ValidationError) as raised:
        shape.model_validate({field: [5j] * 9})
    assert raised.value.error_count() == 1


@pytest.mark.parametrize(
    ("shape", "content"),
    [(Result, MANY), (Result, {"updates": MANY}), (Result, {"notes": {"a": MANY}}),
     (Progress, {"notes": [MANY]}), (Progress, {"method": {"rows": {"a": [MANY]}}}),
     (Environment, {"resumed": [{"packages": MANY}]})],
    ids=["fields", "entries", "notes", "list", "deep", "lives"],
)  # fmt: skip
def test_more_fields_than_any_run_has_are_refused(
    tmp_path: Path, shape: type[Shape], content: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="has 20000 fields in one place, and 10000 are read"):
        shaped(tmp_path / "result.json", content, shape)


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", -(10**30)), ("day", "aaaa"), ("day", 10**400), ("update_norm", -1.0),
     ("update_norm", 1e308), ("loss_before", 1e308)],
)  # fmt: skip
def test_a_line_that_nothing_could_show_is_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path)
    directory.steps.write_text(json.dumps({"task": "a", field: value}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"steps\.jsonl has a strange field '{field}"):
        directory.read_steps()


STRANGE_SETTINGS = {
    "seed": {"seed": None},
    "data.order": {"data": {"benchmark": "mini", "order": 5}},
    "method": {"method": []},
}


@pytest.mark.parametrize("field", STRANGE_SETTINGS)
def test_a_strange_configuration_damages_one_run(folder: Path, field: str) -> None:
    """Also in a folder that is no sweep, where it tells what the run is."""
    run = next(folder.glob("base*s0*"))
    values = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    text = yaml.safe_dump(values | STRANGE_SETTINGS[field])
    (run / "config.yaml").write_text(text, encoding="utf-8")
    for name in ("toy", None):
        if name is None:
            (folder / "sweep.json").unlink()
        damage = [read.damage for read in read_study(folder).runs if read.state == "damaged"]
        assert len(damage) == 1
        assert f"config.yaml has a strange field '{field}'" in damage[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\n" * 30_000 + "a: b\n" * 10_000, "290000 characters, and"),
        ("seed: " + "[" * 200_000, "values in values, more than 30 times"),
        ("a: &a [1]\nb: [*a, *a]", "an alias is not allowed here"),
    ],
    ids=["long", "deep", "aliases"],
)
def test_a_configuration_that_takes_minutes_to_read_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    directory = RunDirectory(tmp_path)
    write_noted(tmp_path, "config.yaml", text)
    began = time.process_time()
    with pytest.raises(InputError, match=rf"config\.yaml cannot be read \({problem}"):
        directory.read_settings()
    assert time.process_time() - began < 1


# ---- names


@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_name_of_a_sweep_leads_elsewhere(folder: Path, name: str) -> None:
    """Files of MLflow are put into a folder of this name."""
    edit(folder / "sweep.json", name=name)
    for read in (read_manifest, read_study):
        with pytest.raises(InputError, match=r"sweep\.json: .* is no name of a sweep") as refusal:
            read(folder)
        assert str(refusal.value).isprintable()


@pytest.mark.parametrize("key", [*ELSEWHERE, "a/b", "a b", "é"])
def test_no_key_of_a_run_leads_elsewhere(folder: Path, outside: Path, key: str) -> None:
    trials = json.loads((folder / "sweep.json").read_text())["trials"]
    trials[0]["key"] = key
    edit(folder / "sweep.json", trials=trials)
    for read in (read_manifest, read_study):
        with pytest.raises(InputError, match=r"sweep\.json: .* is no name of a run's folder"):
            read(folder)


def test_no_line_of_the_sums_leads_elsewhere(tmp_path: Path) -> None:
    digest = "0" * 64
    names = ["../x", "/etc/passwd", "a/../../x", "..", "a/..", "x\0", "a//b", ""]
    sums = "".join(f"{digest}  {name}\n" for name in (*names, "a.b/c-1.d"))
    (tmp_path / "SHA256SUMS").write_text(sums)
    assert read_sums(tmp_path) == {"a.b/c-1.d": {digest}}


# ---- links


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "environment.json", "result.json", "steps.jsonl", "events.jsonl",
     "predictions", "predictions/1", "predictions/2/1.jsonl"],
)  # fmt: skip
def test_a_run_with_a_link_to_elsewhere_is_named_and_left_out(
    folder: Path, outside: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(folder.glob("base*s0*"))
    link = path / name
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to(outside / name)  # the same content
    with pytest.raises(InputError, match=f"{link} leads out of {path}"):
        RunDirectory(path).verify()
    with pytest.raises(InputError, match=f"{link} leads out of {path}"):
        find_origin(f"{path}@1")
    study = read_study(folder)
    assert [run.key for run in study.runs if run.state == "damaged"] == [path.name]
    assert f"left out of the report: {link} leads out of {path}" in capsys.readouterr().err


def circle(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "reason"), [(circle, "leads nowhere"), (os.mkfifo, "is a pipe, not a file")]
)
@pytest.mark.parametrize("name", ["x", "environment.json", "adapter/x"])
def test_a_run_with_what_is_no_file_is_named_and_left_out(
    folder: Path, name: str, make: Callable[[Path], None], reason: str
) -> None:
    """A link to itself has no end, and a pipe would be waited for."""
    path = next(folder.glob("base*s0*"))
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).unlink(missing_ok=True)
    make(path / name)
    for read in (RunDirectory(path).verify, lambda: find_origin(f"{path}@1")):
        with pytest.raises(InputError, match=f"{path / name} {reason}"):
            read()
    assert [run.key for run in read_study(folder).runs if run.state == "damaged"] == [path.name]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_no_digest_of_weights_leads_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} leads out of {tmp_path}"):
        check_weights(tmp_path, {"weights": {name: "0" * 64}})


def test_a_run_that_is_a_link_to_elsewhere_is_left_out(folder: Path, outside: Path) -> None:
    path = next(folder.glob("base*s0*"))
    shutil.rmtree(path)
    path.symlink_to(outside)
    (run,) = [run for run in read_study(folder).runs if run.state == "damaged"]
    assert run.damage == f"{path} leads out of {folder}; put a copy in its place"
    (folder / "sweep.json").unlink()
    damaged = [run.key for run in read_study(folder).runs if run.state == "damaged"]
    assert damaged == [path.name]


def test_a_link_within_a_folder_is_no_harm(folder: Path) -> None:
    path = next(folder.glob("base*s0*"))
    (path / "events.jsonl").rename(path / "other")
    (path / "events.jsonl").symlink_to("other")
    check_links(path)
    check_within(folder, path)
    assert not any(run.damage for run in read_study(folder).runs)


def test_pictures_of_a_report_stay_in_its_folder(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (folder / "figures").symlink_to(target)
    with pytest.raises(InputError, match=f"{folder / 'figures'} leads out of {folder}"):
        write_report(folder)
    assert [*target.iterdir()] == []


@pytest.mark.parametrize("name", ["steps.jsonl", ".lock", "checkpoints", "predictions"])
def test_a_run_goes_on_in_its_own_folder_alone(
    small_config: object, tmp_path: Path, name: str
) -> None:
    config = base_run()
    path, target = tmp_path / "run", tmp_path / "target"
    path.mkdir()
    target.write_text("mine")
    (path / name).symlink_to(target)
    with pytest.raises(InputError, match=f"{path / name} leads out of {path}"):
        RunDirectory(path).check(config, resume=True)
    with pytest.raises(InputError, match="leads out of"):
        run_local(small_config, path, resume=True, placement=Placement(device="cpu"))  # type: ignore[arg-type]
    assert target.read_text() == "mine"
