"""A number that is not finite ends the run with its reason, or is left out as often as allowed."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CONFIGS, execute, lines, outcome
from torch import Tensor

from forever.config.run import RunConfig
from forever.launch.local import Placement, run_local
from forever.models.parameters import FlatParameters
from forever.replay.clock import ModelClock
from forever.report.figures.runs import table_of
from forever.runs.console import update_text
from forever.runs.session import Session
from forever.runs.tracking import Tracker
from forever.training import importance, loop, step
from forever.training.importance import gradients_apart
from forever.training.learner import Learner
from forever.training.steps import Step
from forever.world import World

Bad = Callable[[Learner, Step], bool]


def spoil(monkeypatch: pytest.MonkeyPatch, bad: Bad, gradient: bool = False) -> None:
    """Make the loss NaN in updates that are `bad`, or their gradient infinite and not the loss."""
    honest_encode, honest_clip = step.optimizer_step, step.clip_gradient
    now: list[bool] = []

    def optimizer_step(learner: Learner, method: Any, action: Step) -> Any:
        now[:] = [bad(learner, action)]
        return honest_encode(learner, method, action)

    def clip_gradient(parameters: FlatParameters, clip: float) -> Tensor:
        if gradient and now[0]:
            parameters.grad[0] = math.inf
        return honest_clip(parameters, clip)

    honest_logits = step.answer_logits

    def answer_logits(*arguments: Any) -> tuple[Tensor, Tensor]:
        logits, targets = honest_logits(*arguments)
        return logits * (math.nan if now[0] and not gradient else 1), targets

    monkeypatch.setattr(step, "optimizer_step", optimizer_step)
    monkeypatch.setattr(step, "clip_gradient", clip_gradient)
    monkeypatch.setattr(step, "answer_logits", answer_logits)


def in_second_task(learner: Learner, updates: tuple[int, ...]) -> bool:
    return learner.stage == 1 and learner.updates in updates


@pytest.fixture
def config(small_config: RunConfig) -> RunConfig:
    return small_config.override({"data.order": ["colour", "shape"]})


@pytest.mark.parametrize(("kind", "gradient"), [("task", False), ("replay", True)])
def test_a_run_ends_at_the_first_and_says_why(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, gradient: bool
) -> None:
    spoil(monkeypatch, lambda learner, step: learner.stage == 1 and step.kind == kind, gradient)
    problem = "norm of the gradient inf" if gradient else "loss nan"
    with pytest.raises(FloatingPointError, match=problem) as error:
        execute(config, tmp_path / "run")
    journal = lines(tmp_path / "run" / "steps.jsonl")
    last = sum(line["task"] == "shape" for line in journal)
    assert f"task shape, update {last + 1}: " in str(error.value)
    ended = json.loads((tmp_path / "run" / "ended.json").read_text())
    assert (ended["state"], ended["reason"]) == ("failed", str(error.value))
    assert all(math.isfinite(line["tau"]) for line in journal if "tau" in line)
    assert not (tmp_path / "run" / "result.json").exists()


class KillAfter(Tracker):
    """Ends the process after so many updates."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def step(self, line: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_few_may_be_skipped_and_no_clock_hears_of_them(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run is resumed bit for bit if it is killed after one of them."""
    spoil(monkeypatch, lambda learner, step: in_second_task(learner, (1, 2)))
    method = {**CONFIGS["forever"], "days": [9.0]}
    config = RunConfig.parse(config.model_dump(mode="json") | {"method": method})
    config = config.override({"optim.nonfinite_skips": 2})
    result = execute(config, tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert said[0].startswith("task shape, update 2: loss nan")
    assert said[0].endswith("; skipped, 1 of at most 2 in the task")
    assert len(said) == 2
    journal = lines(tmp_path / "run" / "steps.jsonl")
    skipped = [line for line in journal if line.get("skipped")]
    assert [line["update"] for line in skipped] == [2, 3]
    assert [line["loss"] for line in skipped] == [None, None]
    assert [line["update_norm"] for line in skipped] == [0, 0]
    of_task = [line for line in journal if (line["task"], line["kind"]) == ("shape", "task")]
    of_shape = [[line[name] for name in ("tau", "mu", "days")] for line in of_task]
    assert of_shape[0] == of_shape[1] == of_shape[2] != of_shape[3]
    assert of_shape[0][1] is not None  # a day has been measured
    assert [update_text(line) for line in skipped] == ["update left out  day 1.0, next at 9"] * 2
    drawn: Any = table_of(journal)[["loss", "penalty", "update_norm"]].isna().all(axis=1)
    assert [line["update"] for line, blank in zip(journal, drawn, strict=True) if blank] == [2, 3]
    assert result["notes"]["shape"]["skipped"] == 2
    assert "skipped" not in result["notes"]["colour"]

    path = tmp_path / "killed"
    first = sum(line["task"] == "colour" for line in journal)
    for updates in (first + 2, 1):
        place, trackers = Placement("cpu", checkpoint_s=0), [KillAfter(updates)]
        with pytest.raises(KeyboardInterrupt):
            run_local(config, path, resume=True, trackers=trackers, placement=place)
    run_local(config, path, resume=True, placement=Placement("cpu"))
    assert outcome(tmp_path / "run").differences(outcome(path)) == []

    with pytest.raises(FloatingPointError, match="task shape, update 3: loss nan"):
        execute(config.override({"optim.nonfinite_skips": 1}), tmp_path / "bounded")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("task", "aimmerging"),
        ("task", "ewc"),
        ("task", "recurrent_kif"),
        ("replay", "recurrent_kif"),
    ],
)
def test_a_skipped_update_leaves_no_trace_in_a_method(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """Once it has heard of it, all that it has is what it was when it yielded the update."""
    long = {"inner_steps": 4 if kind == "task" else 2} if name == "recurrent_kif" else {}
    values = config.override({"optim.nonfinite_skips": 2}).model_dump(mode="json")
    if kind == "task":
        spoil(monkeypatch, lambda learner, step: in_second_task(learner, (1, 2)))
    else:
        spoil(monkeypatch, lambda learner, step: step.kind == "replay" and learner.updates > 3)
    compared: list[str] = []
    honest_perform, honest_record = loop.perform, Session.record
    before: dict[str, Tensor] = {}

    def state(learner: Learner, method: Any) -> dict[str, Tensor]:
        tensors = method.tensors | {"theta": learner.parameters.flat}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def perform(learner: Learner, method: Any, action: Any) -> Any:
        if isinstance(action, Step):
            before.clear()
            before.update(state(learner, method))
        return honest_perform(learner, method, action)

    def record(self: Session, action: Any, result: Any) -> None:
        if result.skipped:
            after = state(self.learner, self.method)
            # After the last update on memory of a block come its merge and a new block.
            names = before if kind == "task" else ["outer_I", "outer_U"]
            compared.extend(names)
            assert [name for name in names if not torch.equal(before[name], after[name])] == []
        honest_record(self, action, result)

    monkeypatch.setattr(loop, "perform", perform)
    monkeypatch.setattr(Session, "record", record)
    execute(RunConfig.parse(values | {"method": CONFIGS[name] | long}), tmp_path / "run")
    assert compared
    for tensor in outcome(tmp_path / "run").adapter.values():
        assert tensor.isfinite().all()


def test_an_update_waits_for_the_device_once(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    honest_step, honest_read = step.optimizer_step, World.from_leader

    def optimizer_step(*parts: Any) -> Any:
        waits.append(0)
        record = honest_step(*parts)
        assert waits[-1] == 1
        return record

    def from_leader(self: World, values: Tensor) -> Tensor:
        if waits:
            waits[-1] += 1
        return honest_read(self, values)

    monkeypatch.setattr(step, "optimizer_step", optimizer_step)
    monkeypatch.setattr(World, "from_leader", from_leader)
    execute(config, tmp_path / "run")
    assert waits


def test_an_update_that_ruins_the_weights_ends_the_run(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient was finite, and it cannot be left out any more."""
    ruined = torch.tensor(math.inf, dtype=torch.float64)
    monkeypatch.setattr(step, "apply_update", lambda *parts: ruined)
    with pytest.raises(FloatingPointError, match="task colour, update 1: update norm inf"):
        execute(config.override({"optim.nonfinite_skips": 9}), tmp_path / "run")


def test_fisher_information_that_is_not_finite_ends_the_run(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(learner: Learner, examples: Any) -> Tensor | None:
        apart = gradients_apart(learner, examples)
        return None if apart is None else apart * math.inf

    monkeypatch.setattr(importance, "gradients_apart", spoilt)
    with pytest.raises(FloatingPointError, match="ewc would carry 'fisher', which is not"):
        execute(config.override({"method.name": "ewc"}), tmp_path / "run")


def test_a_merge_that_is_not_finite_ends_the_run(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FlatParameters.merge

    def merge(self: FlatParameters, start: Tensor, middle: Tensor, w_in: Any, w_out: Any) -> None:
        honest(self, start, middle, w_in, math.inf)

    monkeypatch.setattr(FlatParameters, "merge", merge)
    values = config.model_dump(mode="json") | {"method": CONFIGS["recurrent_kif"]}
    with pytest.raises(FloatingPointError, match=r"shape, .* a merge gave weights that"):
        execute(RunConfig.parse(values), tmp_path / "run")


def test_a_probe_that_is_not_finite_ends_the_run(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = step.answer_logits

    def answer_logits(*given: Any) -> tuple[Any, Any]:
        logits, targets = honest(*given)
        return (logits if torch.is_grad_enabled() else logits * math.nan), targets

    monkeypatch.setattr(step, "answer_logits", answer_logits)
    with pytest.raises(FloatingPointError, match="a probe has loss nan"):
        execute(config, tmp_path / "run")


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_model_time_never_takes_up_what_is_not_finite(norm: float) -> None:
    clock = ModelClock(day_steps=2, smoothing=0.05)
    for _ in range(3):
        clock.advance(1.0)
    with pytest.raises(FloatingPointError, match="cannot be counted as time"):
        clock.advance(norm)
    assert (clock.tau, clock.mu, clock.days) == (3.0, 1.0, 1.5)


def test_workers_are_not_started_again_for_it() -> None:
    """Ray Train would start them three times, and each would diverge at the same update."""
    pytest.importorskip("ray")
    from forever.launch.train import _Refusals

    error: Any = FloatingPointError("task shape, update 2: loss nan")
    with pytest.raises(FloatingPointError, match="update 2"):
        _Refusals().after_exception(None, {1: error})
    _Refusals().after_exception(None, {1: RuntimeError("a machine is gone")})
