"""A run is resumed, forked and reused with the data, the model and the code it began with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Call
from helpers import Then, execute, outcome, save_encoder, saved
from made_up import edit
from safetensors.torch import load_file, save_file

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.data.tasks import Benchmark
from forever.errors import InputError
from forever.launch.checks import check_finished
from forever.launch.local import Placement, run_local
from forever.runs.directory import RunDirectory
from forever.runs.fork import find_origin, plant
from forever.sweeps.sweep import Sweep


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


def interrupt() -> None:
    raise KeyboardInterrupt


def begin(config: RunConfig, path: Path) -> None:
    """Train the first of two tasks."""
    tracker = Then(interrupt, after_stage=0)
    with pytest.raises(KeyboardInterrupt):
        run_local(config, path, trackers=[tracker], placement=Placement("cpu"))


def resume(config: RunConfig, path: Path, accept: bool = False) -> dict[str, Any]:
    placement = Placement("cpu", accept_changes=accept)
    return run_local(config, path, resume=True, placement=placement)


def accepted(path: Path) -> list[str]:
    """The changes that a run noted when it was resumed."""
    return RunDirectory(path).read_lives()[-1]["accepted"]


def test_other_weights_or_another_tokenizer_are_refused_on_resume(
    config: RunConfig, model: Path, tmp_path: Path
) -> None:
    path, kept = tmp_path / "run", shutil.copytree(model, tmp_path / "kept")
    begin(config, path)
    scale(model, 1.5)
    edit(model / "tokenizer_config.json", padding_side="left")
    with pytest.raises(InputError, match=r"model tokenizer is .*; model weights is "):
        resume(config, path)
    shutil.copytree(kept, model, dirs_exist_ok=True)
    result = resume(config, path)
    assert result["model"].keys() == {"config", "tokenizer", "weights"}
    assert "resumed" not in RunDirectory(path).read_environment()
    execute(config, tmp_path / "whole")
    assert outcome(tmp_path / "whole").differences(outcome(path)) == []


def test_the_command_resumes_with_accepted_changes(
    config: RunConfig, model: Path, tmp_path: Path, call: Call
) -> None:
    path = tmp_path / config.key()
    begin(config, path)
    scale(model, 1.5)
    command = ["run", saved(config, tmp_path / "run.yaml"), "--out", str(tmp_path), "--resume"]
    command += ["--mlflow", "off", "--device", "cpu", "-q"]
    assert call(*command)[0] == 2
    assert call(*command, "--accept-changes")[0] == 0
    (line,) = accepted(path)
    result = json.loads((path / "result.json").read_text())
    assert line.startswith("model weights is ")
    assert result["model"]["weights"] in line
    assert result["key"] == config.key()  # names stay


def test_scores_on_other_test_examples_make_no_bwt(
    config: RunConfig, data_root: Path, tmp_path: Path, call: Call
) -> None:
    """Other training examples leave BWT what it is, and so do answers that are given again."""
    root = shutil.copytree(data_root, tmp_path / "data")
    config = config.override({"data.root": str(root)})
    path, early = tmp_path / "run", tmp_path / "early"
    in_second_task, placement = [Then(interrupt, update=6)], Placement("cpu", checkpoint_s=0)
    with pytest.raises(KeyboardInterrupt):
        run_local(config, path, trackers=in_second_task, placement=placement)
    begin(config, early)
    shutil.copytree(path, tmp_path / "trained")
    train, test = (root / "toy" / "shape" / f"{split}.jsonl" for split in ("train", "test"))
    train.write_text(train.read_text().replace("train", "drill"))
    assert resume(config, tmp_path / "trained", accept=True)["bwt"] is not None

    test.write_text(test.read_text().replace("test", "exam"))
    assert resume(config, early, accept=True)["bwt"] is not None
    result = resume(config, path, accept=True)
    assert result["bwt"] is result["forgetting"] is None
    assert RunDirectory(path).mixed_tests() == ["shape"]
    assert "no BWT" in call("show", str(path))[1]
    assert call("export", str(path), "--to", str(tmp_path / "out"))[0] == 0
    assert "no BWT" in (tmp_path / "out" / "README.md").read_text()


def test_other_code_is_refused_on_resume_and_may_train_a_fork(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole = tmp_path / "run", tmp_path / "whole"
    begin(config, path)
    execute(config, whole, keep_stages=True)
    for room in ("session", "fork"):
        monkeypatch.setattr(f"forever.runs.{room}.code", lambda: "other")
    with pytest.raises(InputError, match=r"code is '.{12}' there, 'other' here"):
        resume(config, path)
    resume(config, path, accept=True)
    assert len(accepted(path)) == 1
    fork, other = RunDirectory(tmp_path / "fork"), config.override({"optim.lr": 0.5})
    plant(find_origin(f"{whole}@1"), other, load_benchmark(config.data), fork)
    execute(other, fork.path)
    assert json.loads(fork.fork.read_text())["code"] not in ("", "other")


def test_a_finished_run_of_another_model_is_not_reused(
    config: RunConfig, model: Path, tmp_path: Path
) -> None:
    (trial,) = Sweep("s", config, {"base": {}}).trials()
    path = tmp_path / "runs" / trial.key
    result = execute(config, path)
    assert execute(config, path) == result
    check_finished([trial], tmp_path / "runs")
    scale(model, 0.0)
    with pytest.raises(InputError, match=r"model\.weights is"):
        execute(config, path)
    with pytest.raises(InputError, match=r"model\.weights is"):
        check_finished([trial], tmp_path / "runs")
    shutil.rmtree(model)
    check_finished([trial], tmp_path / "runs")  # files that are gone say nothing


def test_a_fork_keeps_the_model_of_its_run(config: RunConfig, model: Path, tmp_path: Path) -> None:
    execute(config, tmp_path / "run", keep_stages=True)
    origin, fork = find_origin(f"{tmp_path / 'run'}@1"), RunDirectory(tmp_path / "fork")
    other, benchmark = config.override({"optim.lr": 0.5}), load_benchmark(config.data)
    kept = shutil.copytree(model, tmp_path / "kept")
    scale(model, 1.5)
    with pytest.raises(InputError, match=r"model\.weights"):
        plant(origin, other, benchmark, fork)
    assert not fork.path.exists()
    shutil.copytree(kept, model, dirs_exist_ok=True)
    plant(origin, other, benchmark, fork)
    scale(model, 1.5)  # after it was planted
    with pytest.raises(InputError, match="model weights"):
        execute(other, fork.path)


def test_an_encoder_is_known_by_its_files_too(
    config: RunConfig,
    benchmark_of_three: Benchmark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SSR writes little here, since it is the encoder that counts."""
    monkeypatch.setattr("forever.methods.ssr._TRIES", 1)
    encoder, path = save_encoder(tmp_path / "bert", benchmark_of_three), tmp_path / "run"
    ssr = {"method.name": "ssr", "method.max_tokens": 150, "method.encoder": str(encoder)}
    begin(config.override(ssr), path)
    scale(encoder, 1.5)
    with pytest.raises(InputError, match="model encoder weights is"):
        resume(config.override(ssr), path)
    result = resume(config.override(ssr), path, accept=True)
    assert {f"encoder {part}" for part in ("config", "tokenizer", "weights")} <= {*result["model"]}
