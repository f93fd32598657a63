"""`forever advise`: the smallest dose that is enough, with its interval and its cost."""

import json
from pathlib import Path

import pytest
from commands import Call
from helpers import execute, make_benchmark

from forever.config.run import RunConfig
from forever.data.tasks import Task
from forever.errors import InputError
from forever.hf.advise import COST, DOSES, Advice, Pilot, Rise, advise, smallest
from forever.world import World


def pilot(dose: float, old: float, new: float = 0.0, width: float = 0.04) -> Pilot:
    """A dose's rises of the old loss and of the new one, known to `width`."""
    old_rise, new_rise = (Rise(rise, rise - width, rise + width) for rise in (old, new))
    return Pilot(dose, 10, old_rise, new_rise)


def test_the_smallest_dose_that_keeps_the_old_and_does_not_cost_the_new() -> None:
    """0.05 nats are kept, 0.02 are too much; the interval asks the same of the bounds."""
    pilots = [pilot(0.0, 0.4), pilot(0.02, 0.08), pilot(0.08, 0.05), pilot(0.3, -0.1, -0.1)]
    assert smallest(pilots, "value") == 0.08
    assert smallest(pilots, "low") == 0.02  # 0.08 - 0.04
    assert smallest(pilots, "high") == 0.3  # 0.05 + 0.04 is not shown to be kept
    assert smallest([pilot(0.0, 0.4), pilot(0.02, 0.0, 0.02)], "value") is None
    assert smallest([pilot(0.0, 0.05)], "value") == 0.0


def of(config: RunConfig, old: Task, new: Task, **changes: object) -> Advice:
    settings = {"optim.epochs": 20, "optim.lr": 5e-3, "model.rank": 8, **changes}
    return advise(config.override(settings), old.train, new.train, World())


def test_a_model_that_has_nothing_to_lose_needs_no_old_data(small_config: RunConfig) -> None:
    """A random model learns from any answer how answers look."""
    colour, shape, _ = make_benchmark().tasks
    advice = of(small_config, colour, shape)
    assert advice.dose == 0.0
    assert [each.dose for each in advice.pilots] == list(DOSES)
    assert [each.replayed > 0 for each in advice.pilots] == [False, True, True, True]
    assert advice.cost <= COST
    assert advice.pilots[0].new == Rise(0.0, 0.0, 0.0)


def test_a_model_that_forgets_is_given_old_data(
    small_config: RunConfig, tmp_path: Path, call: Call
) -> None:
    """One that was trained on the old task, by the command."""
    colour, shape, _ = make_benchmark().tasks
    learn = {"data.order": ["colour"], "data.train_rows": None, "model.tuning": "full"}
    execute(small_config.override({**learn, "optim.epochs": 20}), tmp_path / "run")
    for name, task in (("old", colour), ("new", shape)):
        rows = [
            {"instruction": e.instruction, "input": e.input, "output": e.output} for e in task.train
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["--old", str(tmp_path / "old.jsonl"), "--new", str(tmp_path / "new.jsonl")]
    changes = ["optim.epochs=20", "optim.lr=0.01", "optim.batch_size=4", "model.dtype=float32"]
    model = str(tmp_path / "run" / "model")
    code, out, error = call(
        "advise", *files, "--model", model, "--device", "cpu", *changes, "--json"
    )
    assert code == 0, error
    told = json.loads(out)
    nothing = told["pilots"]["rows"][0]
    assert nothing["old examples"] == 0
    assert float(nothing["old loss"].split()[0]) > 0.05
    assert told["dose"] is None or told["dose"] > 0
    assert told["cost"] <= COST


def test_too_few_examples_are_refused(small_config: RunConfig) -> None:
    colour, shape, _ = make_benchmark().tasks
    with pytest.raises(InputError):
        of(small_config, colour, shape, **{"optim.epochs": 1})
    with pytest.raises(InputError):
        advise(small_config, colour.train[:9], shape.train, World())
