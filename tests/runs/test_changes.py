"""A run is resumed, forked and reused with the data, the model and the code it began with."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import Then, execute, outcome, save_encoder, saved
from made_up import edit, rewrite
from safetensors.torch import load_file, save_file

from forever.cli.main import main
from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.checks import check_finished
from forever.launch.local import Placement, run_local
from forever.runs import session
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.sweeps.sweep import Sweep

CHANGED = r"this changed since this run began: {}.*; give another --out, or --accept-changes"


@pytest.fixture
def model(backbone_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(backbone_folder, tmp_path / "model")


@pytest.fixture
def config(small_config: RunConfig, model: Path) -> RunConfig:
    changes = {"model.name": str(model), "data.order": ["shape", "colour"]}
    return small_config.override(changes)


def scale(model: Path, factor: float) -> None:
    """Put other weights into a model's folder."""
    tensors = load_file(model / "model.safetensors")
    tensors = {name: tensor * factor for name, tensor in tensors.items()}
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


@pytest.fixture
def encoder(benchmark_of_three: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SSR's own; it writes little here, since it is the encoder that counts."""
    monkeypatch.setattr("forever.methods.ssr.synthesis._TRIES", 1)
    return save_encoder(tmp_path / "bert", benchmark_of_three)


def ssr(encoder: Path) -> dict[str, Any]:
    return {"method.name": "ssr", "method.max_tokens": 150, "method.encoder": str(encoder)}


def interrupt() -> None:
    raise KeyboardInterrupt


def begin(config: RunConfig, path: Path) -> None:
    """Train the first of two tasks."""
    tracker = Then(interrupt, after_stage=0)
    with pytest.raises(KeyboardInterrupt):
        run_local(config, path, trackers=[tracker], placement=Placement("cpu"))


def go_on(config: RunConfig, path: Path, accept: bool = False) -> dict[str, Any]:
    placement = Placement("cpu", accept_changes=accept)
    return run_local(config, path, resume=True, placement=placement)


def test_other_weights_or_another_tokenizer_are_refused_on_resume(
    config: RunConfig, model: Path, tmp_path: Path
) -> None:
    path, kept = tmp_path / "run", shutil.copytree(model, tmp_path / "kept")
    begin(config, path)
    scale(model, 1.5)
    with pytest.raises(InputError, match=CHANGED.format("model weights is '.{12}' there")):
        go_on(config, path)
    edit(model / "tokenizer_config.json", padding_side="left")
    with pytest.raises(InputError, match=r"model tokenizer is .*; model weights is "):
        go_on(config, path)

    shutil.copytree(kept, model, dirs_exist_ok=True)
    result = go_on(config, path)
    assert result["model"].keys() == {"config", "tokenizer", "weights"}
    environment = json.loads((path / "environment.json").read_text())
    assert "resumed" not in environment
    execute(config, tmp_path / "whole")
    assert outcome(tmp_path / "whole").differences(outcome(path)) == []


def test_changes_that_are_accepted_are_noted_down(
    config: RunConfig, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    begin(config, path)
    before = RunDirectory(path)
    scale(model, 1.5)
    result = go_on(config, path, accept=True)
    assert result["key"] == config.key()  # names stay
    resumed = json.loads(before.environment.read_text())["resumed"]
    (line,) = resumed[-1]["accepted"]
    assert line.startswith("model weights is ")
    assert line.endswith(f"{result['model']['weights']!r} here")


def test_other_code_is_refused_on_resume(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    begin(config, path)
    monkeypatch.setattr(session, "code", lambda: "other")
    with pytest.raises(InputError, match=CHANGED.format("code is '.{12}' there, 'other' here")):
        go_on(config, path)
    go_on(config, path, accept=True)
    resumed = json.loads((path / "environment.json").read_text())["resumed"]
    assert len(resumed[-1]["accepted"]) == 1


def test_a_finished_run_of_another_model_is_not_reused(
    config: RunConfig, model: Path, tmp_path: Path
) -> None:
    (trial,) = Sweep("s", config, {"base": {}}).trials()
    path = tmp_path / "runs" / trial.key
    result = execute(config, path)
    assert execute(config, path) == result
    check_finished([trial], tmp_path / "runs")
    scale(model, 0.0)
    for reuse in (
        lambda: execute(config, path),
        lambda: check_finished([trial], tmp_path / "runs"),
    ):
        with pytest.raises(
            InputError, match=r"finished, and the files that it read .*: model\.weights is"
        ):
            reuse()

    kept = json.loads((path / "result.json").read_text())
    del kept["model"]  # a run of an earlier version
    rewrite(path / "result.json", json.dumps(kept))
    assert execute(config, path) == kept
    rewrite(path / "result.json", json.dumps(result))
    shutil.rmtree(model)
    check_finished([trial], tmp_path / "runs")  # files that are gone say nothing


def test_a_fork_keeps_the_model_of_its_run(config: RunConfig, model: Path, tmp_path: Path) -> None:
    execute(config, tmp_path / "run", keep_stages=True)
    origin = find_origin(f"{tmp_path / 'run'}@1")
    other = config.override({"optim.lr": 0.5})
    benchmark = load_benchmark(config.data)
    kept = shutil.copytree(model, tmp_path / "kept")
    scale(model, 1.5)
    with pytest.raises(InputError, match=r"a fork keeps the model of its run, run: model\.weights"):
        plant(origin, other, benchmark, RunDirectory(tmp_path / "fork"))
    assert not (tmp_path / "fork").exists()
    shutil.copytree(kept, model, dirs_exist_ok=True)
    plant(origin, other, benchmark, RunDirectory(tmp_path / "fork"))
    scale(model, 1.5)  # after it was planted
    with pytest.raises(InputError, match=CHANGED.format("model weights")):
        execute(other, tmp_path / "fork")


def test_an_encoder_is_known_by_its_files_too(
    config: RunConfig, encoder: Path, tmp_path: Path
) -> None:
    config, path = config.override(ssr(encoder)), tmp_path / "run"
    begin(config, path)
    scale(encoder, 1.5)
    with pytest.raises(InputError, match=CHANGED.format("model encoder weights is")):
        go_on(config, path)
    result = go_on(config, path, accept=True)
    assert {f"encoder {part}" for part in ("config", "tokenizer", "weights")} <= {*result["model"]}
    assert execute(config, path) == result
    execute(config, tmp_path / "whole", keep_stages=True)
    origin, fork = find_origin(f"{tmp_path / 'whole'}@1"), RunDirectory(tmp_path / "fork")
    scale(encoder, 1.5)
    with pytest.raises(InputError, match=r"finished, and the files .*model\.encoder weights"):
        execute(config, path)
    benchmark, other = load_benchmark(config.data), config.override({"optim.lr": 0.5})
    with pytest.raises(InputError, match=r"a fork keeps the model of its .*model\.encoder weights"):
        plant(origin, other, benchmark, fork)


def test_a_fork_may_be_trained_by_other_code(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(config, tmp_path / "run", keep_stages=True)
    for place in ("session", "fork"):
        monkeypatch.setattr(f"forever.runs.{place}.code", lambda: "other")
    origin = find_origin(f"{tmp_path / 'run'}@1")
    fork = RunDirectory(tmp_path / "fork")
    plant(origin, config.override({"optim.lr": 0.5}), load_benchmark(config.data), fork)
    execute(config.override({"optim.lr": 0.5}), fork.path)
    assert json.loads(fork.fork.read_text())["code"] not in ("", "other")


def test_names_of_runs_do_not_depend_on_what_a_folder_holds(config: RunConfig, model: Path) -> None:
    before = config.key()
    scale(model, 2.0)
    assert config.key() == before


def test_the_command_goes_on_if_it_is_told_to(
    config: RunConfig,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin(config, tmp_path / config.key())
    scale(model, 1.5)
    settings = saved(config, tmp_path / "run.yaml")
    command = ["forever", "run", settings, "--out", str(tmp_path), "--mlflow", "off", "-q"]
    command += ["--device", "cpu", "--resume"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / config.key()}: this changed since this run began: ")
    monkeypatch.setattr(sys, "argv", [*command, "--accept-changes"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert (tmp_path / config.key() / "result.json").is_file()
