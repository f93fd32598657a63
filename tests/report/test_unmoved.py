"""The numbers of made-up sweeps as the first version of reports gave them: intervals, p-values,
verdicts and analyses do not move when the code does."""

import json
from pathlib import Path

import pytest
from made_up import base_run, leaves, make_up

from forever.report.report import stored
from forever.report.study import read_study
from forever.sweeps.sweep import Sweep

PINNED = json.loads(Path(__file__).with_name("unmoved.json").read_text(encoding="utf-8"))
METHODS = ("forever", "mix_replay", "vbm", "finetune", "mtl")
BY_METHOD = {name: {"method.name": name} for name in METHODS}
ORDERS = {"1": {}, "2": {"data.order": ["shape", "colour", "taste", "weight"]}}
PROBING = {"finetune": {"method.name": "finetune", "method.probe_every": 3}}
SWEEPS = {
    "baselines": Sweep("baselines", base_run(), BY_METHOD, (0, 1, 2), ORDERS, reference="forever"),
    "model_day": Sweep("model_day", base_run(), BY_METHOD, (0, 1), ORDERS, reference="forever"),
    "training_time": Sweep("training_time", base_run(), BY_METHOD, (0,), reference="forever"),
    "forgetting_rate": Sweep("forgetting_rate", base_run(), PROBING, (0, 1), reference="finetune"),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_no_number_moves(name: str, tmp_path: Path) -> None:
    parts = json.loads(stored(read_study(make_up(tmp_path, SWEEPS[name]))))["parts"]
    now, pinned = leaves(parts), leaves(PINNED[name]["parts"])
    assert now.keys() >= pinned.keys()  # a new column may come
    assert {place: now[place] for place in pinned} == pytest.approx(pinned, abs=1e-6)
