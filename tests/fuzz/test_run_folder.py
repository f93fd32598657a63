"""Run folders in which anything may be wrong: readers refuse in one line, or say what they said of
the sound folder."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz.cases import attempt, cases, changed, damaged
from helpers import KILLED_CLOSES_NO_FILES
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import base_run, make_up

from forever.cli.export.folder import export_run
from forever.cli.view.difference import difference_page
from forever.cli.view.run import run_page
from forever.cli.view.seen import look
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.errors import reading
from forever.files import SUMS, note, read_sums, sha256
from forever.launch.local import Placement, check, run_local
from forever.launch.mlflow.mirror import points_of
from forever.launch.mlflow.place import PLACE, place_of
from forever.report.facts import facts
from forever.report.study import read_study
from forever.runs import checkpoint
from forever.runs.checkpoint import State
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.runs.journal import Journal
from forever.runs.progress import stage_scores
from forever.runs.tracking import Tracker
from forever.sweeps.files import load_sweep
from forever.sweeps.rounds import FILE as ROUNDS
from forever.sweeps.search import Search, find_search
from forever.sweeps.studies import JOURNAL as JOURNAL_OF_STUDY
from forever.sweeps.studies import Studies, importances
from forever.sweeps.sweep import Sweep

pytestmark = [*KILLED_CLOSES_NO_FILES, pytest.mark.slow]
ANSWERS = ("predictions/1/1.jsonl", "predictions/2/1.jsonl", "predictions/2/2.jsonl")
JOURNAL = ("steps.jsonl", "events.jsonl")
DESCRIBED = ("config.yaml", "environment.json", "result.json", *ANSWERS)
WHOLE = (*DESCRIBED, *JOURNAL)
ADAPTER = ("adapter/adapter_config.json", "adapter/adapter_model.safetensors")
SWEEP = "sweep.json"


class Killed(BaseException):
    """Stands for SIGKILL."""


class Trap(Tracker):
    """Kills in the second task, after its third update."""

    updates = 0

    def step(self, line: Any) -> None:
        self.updates += line["task"] == "shape"
        if self.updates == 3:
            raise Killed


@pytest.fixture(scope="module")
def config(small_config: RunConfig) -> RunConfig:
    metrics = {"data.metrics": {"shape": "rouge_l", "colour": "rouge_l"}}
    return small_config.override({"data.order": ["colour", "shape"], **metrics})


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / config.key()
    run_local(config, path, placement=Placement(device="cpu", keep_stages=True))
    return path


@pytest.fixture(scope="module")
def interrupted(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interrupted") / config.key()
    place = Placement(device="cpu", checkpoint_s=0.0, keep_stages=True)
    with pytest.raises(Killed):
        run_local(config, path, trackers=[Trap()], placement=place)
    return path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two runs as the first release left it, without sums."""
    folder = tmp_path_factory.mktemp("sweeps") / "toy"
    return make_up(
        folder, Sweep("toy", base_run(), {"base": {}, "+FIR": {"method.clock": "steps"}})
    )


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of sweeps and of runs that are no results: a fork's, an end's, those of rounds and of
    a search."""
    pytest.importorskip("optuna")
    folder, search = (tmp_path_factory.mktemp(name) for name in ("beside", "search"))
    toy = Sweep("toy", base_run(), {"base": {}, "+FIR": {"method.clock": "steps"}})
    make_up(folder, toy)
    whole, ended = (RunDirectory(folder / trial.key) for trial in toy.trials())
    whole.write(whole.fork, json.dumps({"run": "a", "task": "colour", "stage": 1, "origin": "b"}))
    whole.write(whole.shared, json.dumps({"run": "a"}))
    ended.result.unlink()
    ended.end("failed", "no room")
    rounds = folder / ROUNDS
    rounds.write_text(json.dumps({"alpha": 0.05, "comparisons": 1, "points": 1.0}))
    studies = Studies(searched(), search)
    trial = studies.ask()
    assert trial is not None
    studies.tell(trial.key, "failed")
    return [whole.fork, whole.shared, ended.ended, rounds, search / JOURNAL_OF_STUDY]


def searched() -> Search:
    return find_search(load_sweep("search"), base_run())


@contextmanager
def holding(path: Path, content: bytes) -> Iterator[bool]:
    """A file with other content for a while; says whether it differs."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield content != before
    finally:
        path.write_bytes(before)


def numbers(folder: Path) -> Any:
    """What a report is computed from."""
    study = read_study(folder)
    assert facts(study)
    return [
        (run.variant, run.seed, run.outcome, run.matrix.items, run.steps, run.events)
        for run in study.finished
    ]


def pages(folder: Path) -> Any:
    """What `show` and `diff` say."""
    with reading(folder):
        left, right = look(folder), look(folder)
        return run_page(left).data(), difference_page(left, right).data()


def exported(run: Path, to: Path) -> dict[str, bytes]:
    """The files of an export, which are not left."""
    try:
        export_run(run, to)
        return {path.name: path.read_bytes() for path in sorted(to.iterdir())}
    finally:
        shutil.rmtree(to, ignore_errors=True)


def damage_of(data: st.DataObject, path: Path) -> bytes:
    """A file with bytes flipped, cut or put in, or with other values, or gone on an earlier
    write."""
    content = path.read_bytes()
    if path.suffix == ".json" and data.draw(st.booleans()):
        return json.dumps(data.draw(changed(json.loads(content)))).encode()
    if path.suffix == ".jsonl" and content and data.draw(st.booleans()):
        lines = [json.loads(line) for line in content.decode().splitlines()]
        return "".join(json.dumps(line) + "\n" for line in data.draw(changed(lines))).encode()
    if path.suffix == ".yaml" and data.draw(st.booleans()):
        values = data.draw(changed(yaml.safe_load(content)))
        return json.dumps(values).encode()  # which is YAML, too
    return data.draw(damaged(content))


# ---- a finished run


@cases
@given(data=st.data())
def test_no_number_of_a_finished_run_changes_in_silence(finished: Path, data: Any) -> None:
    name = data.draw(st.sampled_from((*WHOLE, SUMS)))
    sound, told = numbers(finished), pages(finished)
    with holding(finished / name, damage_of(data, finished / name)) as differs:
        read, shown = attempt(lambda: numbers(finished)), attempt(lambda: pages(finished))
    assert shown is None or shown == told
    assert read is None or read == sound
    assert read is None or not differs or name == SUMS


@cases
@given(data=st.data())
def test_a_hostile_run_is_read_or_refused(finished: Path, data: Any) -> None:
    """One whose sums are those of what it holds."""
    name = data.draw(st.sampled_from(DESCRIBED))
    content, sums = damage_of(data, finished / name), (finished / SUMS).read_bytes()
    with holding(finished / name, content), holding(finished / SUMS, sums):
        note(finished, {name: content})
        attempt(lambda: numbers(finished))
        attempt(lambda: pages(finished))
        attempt(lambda: find_origin(f"{finished}@1"))


@cases
@given(data=st.data())
def test_a_hostile_journal_is_read_or_refused(finished: Path, data: Any) -> None:
    """One that the result, whose sum fits, counts as it is."""
    name = data.draw(st.sampled_from(JOURNAL))
    content, path = damage_of(data, finished / name), finished / "result.json"
    result = json.loads(path.read_bytes())
    result["journal"][name] = sha256(content)
    told = json.dumps(result).encode()
    sums = holding(finished / SUMS, (finished / SUMS).read_bytes())
    with holding(finished / name, content), holding(path, told), sums:
        note(finished, {path.name: told})
        attempt(lambda: numbers(finished))
        attempt(lambda: pages(finished))


@cases
@given(data=st.data(), hostile=st.booleans())
def test_an_export_is_that_of_the_sound_run_or_refused(
    finished: Path, tmp_path: Path, data: Any, hostile: bool
) -> None:
    """A hostile hand has made the sums anew: then something else may come out."""
    name = data.draw(st.sampled_from((*DESCRIBED, *ADAPTER, SUMS)))
    sound = exported(finished, tmp_path / "sound")
    content, sums = damage_of(data, finished / name), (finished / SUMS).read_bytes()
    with holding(finished / name, content), holding(finished / SUMS, sums):
        hostile = hostile and name != SUMS
        if hostile:
            note(finished, {name: content})
        read = attempt(lambda: exported(finished, tmp_path / "damaged"))
    assert read is None or hostile or read == sound
    assert not list(tmp_path.glob(".*"))


@cases
@given(data=st.data())
def test_a_damaged_sweep_of_the_first_release_is_read_or_refused(sweep: Path, data: Any) -> None:
    runs = sorted(path.parent for path in sweep.glob("*/config.yaml"))
    names = [runs[0].relative_to(sweep) / name for name in WHOLE]
    path = sweep / data.draw(st.sampled_from((SWEEP, SWEEP, *names)))
    with holding(path, damage_of(data, path)):
        attempt(lambda: numbers(sweep))


@cases
@given(data=st.data())
def test_what_lies_beside_results_is_read_or_refused(beside: list[Path], data: Any) -> None:
    """One whose sums, if it has some, are those of what it holds."""
    path = data.draw(st.sampled_from(beside))
    content, folder = damage_of(data, path), path.parent
    noted = path.name in (read_sums(folder) or {})
    sums = holding(folder / SUMS, (folder / SUMS).read_bytes()) if noted else nullcontext()
    with holding(path, content), sums:
        if noted:
            note(folder, {path.name: content})
        if path.name == JOURNAL_OF_STUDY:
            attempt(lambda: importances(folder))
            attempt(lambda: Studies(searched(), folder).known())
        elif path.name == ROUNDS:
            attempt(lambda: numbers(folder))
        else:
            attempt(lambda: numbers(folder.parent))
            attempt(lambda: pages(folder))


# ---- a fork


@settings(cases, max_examples=cases.max_examples // 3)  # each copies a folder and waits for a disk
@given(data=st.data())
def test_a_fork_has_the_past_of_its_run_or_is_refused(
    finished: Path, config: RunConfig, tmp_path: Path, data: Any
) -> None:
    files = ("stages/1/state.json", "stages/1/manifest.json", "stages/1/tensors.safetensors", SUMS)
    name = data.draw(st.sampled_from((*DESCRIBED, *JOURNAL, *files)))
    benchmark, target = load_benchmark(config.data), RunDirectory(tmp_path / "fork")

    def planted() -> dict[str, bytes]:
        plant(find_origin(f"{finished}@1"), config, benchmark, target)
        return past_of(target.path)

    sound = planted()
    shutil.rmtree(target.path)
    path = finished / name
    content = data.draw(damaged(path.read_bytes())) if name in files else damage_of(data, path)
    with holding(path, content):
        read = attempt(planted)
    assert (read is None) == (not target.path.exists())
    shutil.rmtree(target.path, ignore_errors=True)
    if read is not None and "predictions/1/1.jsonl" in read:
        assert read == sound


def past_of(folder: Path) -> dict[str, bytes]:
    """What a run that goes on takes from its folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: names[name].read_bytes() for name in names if name not in ("fork.json", SUMS)}


# ---- a run that goes on


@cases
@given(data=st.data())
def test_a_run_goes_on_from_what_it_wrote_or_is_refused(
    interrupted: Path, config: RunConfig, data: Any
) -> None:
    """All that a session reads before it trains; what is damaged counts as not there."""
    checkpoints = sorted((interrupted / "checkpoints").glob("*/*"))
    files = [interrupted / name for name in (*DESCRIBED[:2], ANSWERS[0], *JOURNAL, SUMS)]
    path = data.draw(st.sampled_from((*files, *checkpoints)))
    sound = went_on(interrupted, config)
    in_checkpoint = path in checkpoints
    content = data.draw(damaged(path.read_bytes())) if in_checkpoint else damage_of(data, path)
    steps, events = (interrupted / name for name in JOURNAL)
    cut = holding(steps, steps.read_bytes()), holding(events, events.read_bytes())
    with cut[0], cut[1], holding(path, content):
        read = attempt(lambda: went_on(interrupted, config))
        attempt(lambda: stage_scores(RunDirectory(interrupted)))
    if read is not None:
        for name, value in read.items():
            older = name == "records" and in_checkpoint
            assert value == sound[name] or value is None or older, name


@settings(cases, max_examples=max(cases.max_examples // 10, 1))  # each trains the rest of a run
@given(data=st.data())
def test_a_forged_checkpoint_is_gone_on_from_or_refused(
    interrupted: Path, config: RunConfig, tmp_path: Path, data: Any
) -> None:
    """Its state may say anything, and its manifest fits."""
    path = tmp_path / "run"
    shutil.rmtree(path, ignore_errors=True)  # of the case before
    shutil.copytree(interrupted, path)
    newest = max((path / "checkpoints").iterdir())
    saved = checkpoint.read(newest)
    assert saved is not None
    checkpoint.write(newest, saved.tensors, data.draw(changed(saved.state)))
    place = Placement(device="cpu", accept_changes=True)
    attempt(lambda: run_local(config, path, resume=True, placement=place))


def went_on(folder: Path, config: RunConfig) -> dict[str, Any]:
    directory = RunDirectory(folder)
    check(config, directory, resume=True)
    saved = checkpoint.latest(directory.checkpoints)
    state = State.of(saved, directory.checkpoints) if saved else State()
    journal = Journal(directory, state.steps, state.events, state.digests)
    journal.close()
    return {
        "steps": directory.steps.read_bytes() if state.stage == 1 else None,
        "events": directory.events.read_bytes() if state.stage == 1 else None,
        "answers": directory.sound_answers(0, 0),
        "records": state.records,
    }


# ---- what MLflow is told


@cases
@given(data=st.data())
def test_a_hostile_run_is_sent_or_refused(sweep: Path, data: Any) -> None:
    """What MLflow is told of a run of the first release."""
    run = min(path.parent for path in sweep.glob("*/config.yaml"))
    (run / PLACE).write_text('{"id": "ab", "store": "http://host", "experiment": "1", "run": "cd"}')
    name = data.draw(st.sampled_from((PLACE, "steps.jsonl", "result.json", *ANSWERS[:1])))
    with holding(run / name, damage_of(data, run / name)):
        attempt(lambda: place_of(run))
        attempt(lambda: sent_of(RunDirectory(run)))


def sent_of(directory: RunDirectory) -> Any:
    return [*points_of(directory, directory.read_steps(), directory.finished())]
