"""Made-up sweeps that several tests of reports read."""

import shutil
from pathlib import Path

import pytest
from made_up import TASKS, base_run, make_up

from forever.report.report import write_report
from forever.sweeps.sweep import Sweep

VARIANTS = {
    "base": {},
    "+FIR": {"method.days": "fixed_interval"},
    "-IAR": {"method.regularizer": "none"},
    "finetune": {"method.name": "finetune"},
    "mtl": {"method.name": "mtl"},
}


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two seeds with its report; the second run of -IAR never started."""
    folder = tmp_path_factory.mktemp("sweeps") / "toy"
    sweep = Sweep("toy <sweep>", base_run(), VARIANTS, seeds=(0, 1))
    write_report(make_up(folder, sweep, skip=["minus_IAR-ocustom-s1"]))
    return folder


@pytest.fixture
def folder(reported: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(reported, tmp_path / "sweep"))


@pytest.fixture(scope="session")
def components(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`components` on two benchmarks, with its report."""
    other = {"data.benchmark": "other", "data.order": list(TASKS[:3]), "data.train_rows": 24}
    variants = {name: VARIANTS[name] for name in ("base", "+FIR", "finetune")}
    orders = {"1": {}, "2": other}
    folder = tmp_path_factory.mktemp("sweeps") / "components"
    write_report(make_up(folder, Sweep("components", base_run(), variants, (0, 1), orders)))
    return folder


@pytest.fixture
def two_benchmarks(components: Path, tmp_path: Path) -> Path:
    """A copy of `components` to change."""
    return Path(shutil.copytree(components, tmp_path / "components"))
