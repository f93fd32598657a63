"""What Ray runs is killed, or gets no room: it resumes with the same bits, or says what is short.

The processes of this module's cluster do what the file `faults` says (see faults/inject.py).
"""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import ray
from faults.inject import children, environment
from helpers import Outcome, lines, outcome
from machines import Head, this_cluster
from marks import ON_RAY
from ray_commands import begin, sweep_command

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch import cluster
from forever.launch.local import prepare
from forever.launch.resources import Placement, Resources
from forever.launch.start import run_sweep
from forever.launch.train import run_workers
from forever.runs.directory import RunDirectory
from forever.sweeps.sweep import Sweep

pytestmark = ON_RAY

# A checkpoint after every update: what is lost is at most one.
PLACEMENT = Placement(device="cpu", checkpoint_s=0.0)


@pytest.fixture(scope="module")
def faulty(private_ray: Path) -> Iterator[Path]:
    """The file of faults, which the cluster's processes know from their environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(private_ray / "faults").items():
            patch.setenv(name, value)
        yield private_ray / "faults"


@pytest.fixture
def faults(faulty: Path, two_cores: None) -> Iterator[Path]:
    """The file of faults, empty, and a cluster whose processes read it."""
    faulty.write_text("")
    yield faulty
    faulty.unlink()


def test_every_process_knows_its_own_cluster(faults: Path) -> None:
    """Others on this machine know nothing of a run's controller, which would pass for dead."""
    from ray.dashboard.utils import get_address_for_submission_client

    @ray.remote
    def address_here() -> str:
        return get_address_for_submission_client(None)

    address = f"http://{ray._private.worker.get_dashboard_url()}"  # type: ignore[attr-defined]
    assert ray.get(address_here.remote()) == address


# ---- killed workers


@pytest.mark.slow
def test_a_killed_rank_is_started_again(
    faults: Path, tmp_path: Path, small_config: RunConfig
) -> None:
    """In the middle of a replay; the group resumes from the checkpoint, with the same bits."""
    resources = Resources(workers=2, placement=PLACEMENT)
    run_workers(prepare(small_config, tmp_path / "whole"), resources)
    mark = tmp_path / "mark"
    faults.write_text(f"kill phase=replay task=1 rank=1 once={mark}")
    run_workers(prepare(small_config, tmp_path / "killed"), resources)
    assert mark.exists()
    assert outcome(tmp_path / "killed").differences(outcome(tmp_path / "whole")) == []


@pytest.mark.slow
def test_a_rank_that_always_dies_is_given_up(
    faults: Path, tmp_path: Path, small_config: RunConfig
) -> None:
    """After three restarts; its run resumes when it no longer dies."""
    faults.write_text(f"count phase=merge once={tmp_path / 'deaths'}\nkill phase=merge")
    method = {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 1}
    config = RunConfig.parse(small_config.model_dump(mode="json") | {"method": method})
    resources = Resources(workers=1, placement=PLACEMENT)
    with pytest.raises(RuntimeError, match="run: "):
        run_workers(prepare(config, tmp_path / "run"), resources)
    assert len((tmp_path / "deaths").read_text().splitlines()) == 4
    assert this_cluster().living() == []
    faults.write_text("")
    assert run_workers(prepare(config, tmp_path / "run", resume=True), resources)["updates"]


@pytest.mark.slow
def test_a_killed_trial_is_tried_again_and_no_more_than_that(
    faults: Path, tmp_path: Path, small_config: RunConfig, alone: Callable[[RunConfig], Outcome]
) -> None:
    """One dies once while it is scored, one always before its first replay."""
    sweep = Sweep("toys", small_config, {"once": {}, "always": {"seed": 1}})
    once, always = sweep.trials()
    faults.write_text(
        f"kill run=once phase=scoring task=1 once={tmp_path / 'mark'}\n"
        f"count run=always phase=replay once={tmp_path / 'deaths'}\n"
        "kill run=always phase=replay"
    )
    out = tmp_path / "out"
    first = run_sweep(sweep, out, Resources(placement=PLACEMENT, retries=1, show=False))
    assert (first.finished, [*first.failed]) == ([once.key], [always.key])
    assert (tmp_path / "mark").exists()
    assert len((tmp_path / "deaths").read_text().splitlines()) == 2
    assert outcome(out / once.key).differences(alone(once.config)) == []
    assert this_cluster().living() == []
    faults.write_text("")
    again = Resources(placement=PLACEMENT, retry_failed=True, show=False)
    assert run_sweep(sweep, out, again).finished == [always.key]
    assert outcome(out / always.key).differences(alone(always.config)) == []


@pytest.mark.slow
def test_a_cluster_that_is_gone_costs_no_finished_run(
    faulty: Path,
    head: Head,
    tmp_path: Path,
    small_config: RunConfig,
    alone: Callable[[RunConfig], Outcome],
) -> None:
    """Head node and all, while the last run is in its second task: its driver ends, and the same
    command resumes elsewhere, with as many threads, though the run has a machine of its own now. No
    update of a finished run is done again."""
    held, counted = tmp_path / "held", tmp_path / "counted"
    count = f"count phase=journal once={counted}"
    faulty.write_text(f"{count}\nhold run=v1 phase=replay task=1 once={held}")
    variants = {f"v{number}": {"optim.lr": 1e-3 * (number + 1)} for number in range(3)}
    command = sweep_command(tmp_path, None, small_config, variants)
    there = {"RAY_ADDRESS": head.environment["ADDRESS"], "RAY_AUTH_MODE": "token"}
    process = begin(command, tmp_path, "out/*/*/result.json", 1, **there)
    finished: set[Path] = set()
    while not held.exists() or len(finished) < len(variants) - 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
        finished = {path.parent for path in tmp_path.glob("out/*/*/result.json")}
    head.kill()
    print(*process.communicate(timeout=90), process.returncode)
    assert process.returncode != 0
    assert not children(process.pid)

    faulty.write_text(count)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    updates = Counter(line.split()[0] for line in counted.read_text().splitlines())
    for trial in tmp_path.glob("out/*/*/result.json"):
        if trial.parent in finished:
            assert updates[trial.parent.name] == len(lines(trial.parent / "steps.jsonl"))
        config = RunDirectory(trial.parent).read_config()
        assert outcome(trial.parent).differences(alone(config)) == []
    assert len(updates) == len(variants)


# ---- no room


@pytest.fixture
def occupied(two_cores: None) -> Iterator[None]:
    """Somebody else holds both processors of the cluster."""

    @ray.remote(num_cpus=2)
    class Holder:
        def ready(self) -> bool:
            return True

    holder: Any = Holder.remote()
    ray.get(holder.ready.remote())
    yield
    ray.kill(holder)


def test_runs_that_get_no_room_say_what_is_short(
    faults: Path,
    occupied: None,
    tmp_path: Path,
    small_config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither an actor nor a reservation is left of them."""
    monkeypatch.setattr(cluster, "PATIENCE_S", 2.0)
    sweep = Sweep("toys", small_config, {"base": {}})
    begun = time.monotonic()
    with pytest.raises(InputError, match="no room"):
        run_sweep(sweep, tmp_path / "out", Resources(placement=PLACEMENT, show=False))
    two = Resources(workers=2, placement=PLACEMENT, show=False)
    with pytest.raises(InputError, match="no room"):
        run_workers(prepare(small_config, tmp_path / "run"), two)
    assert time.monotonic() - begun < 120
    (holder,) = this_cluster().living(others=1)
    assert holder.endswith("Holder")
    assert not list((tmp_path / "out").glob("*/ended.json"))  # what did not begin did not fail
