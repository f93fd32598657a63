"""Two processes, one process, and one process with accumulation do the same: real gloo processes,
dropout off.

One pair of processes runs all scenarios (starting it costs seconds) and writes folders; the tests
compare them.
"""

import gc
import json
import os
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faults.inject import Point, watched
from helpers import (
    CONFIGS,
    KILLED_CLOSES_NO_FILES,
    ONE_EACH,
    Outcome,
    canned_sample,
    execute,
    lines,
    outcome,
)

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.local import Placement, run_local
from forever.training import step as step_module
from forever.world import World, pick_device

pytestmark = KILLED_CLOSES_NO_FILES

CPU = torch.device("cpu")
# What each rank gathers: text of different length, empty lists, nothing at all.
GATHERED: list[list[list[Any]]] = [
    [['é 你好 🙂 \u2028 \x00 "quoted"', 1.5, None], ["x" * 1000]],
    [[], ["only the leader"]],
    [["only the other"], []],
    [[], []],
]
METHODS = {name: fields for name, fields in ONE_EACH.items() if name != "forever"}
# A stronger pull is at the edge of stability, where rounding grows.
for name in ("ewc", "ewc separate"):
    METHODS[name] = CONFIGS[name] | {"strength": 1e5}
# Its balance term is computed a rank (f * P is not linear), so equality is that without it.
METHODS["moelora"] = {"name": "moelora", "balance": 0, "contrast": 0}


class Killed(BaseException):
    """Ends a run in the middle, on every rank at the same point."""


def killed_run(config: RunConfig, path: Path, world: World, micro_batch: int | None = None) -> None:
    """A run that dies before a replay in its second task, with a checkpoint after each action."""

    def die(point: Point) -> None:
        if (point.phase, point.task) == ("replay", 1):
            raise Killed

    placement = Placement(device="cpu", checkpoint_s=0.0, micro_batch=micro_batch)
    with watched(die), pytest.raises(Killed):
        run_local(config, path, placement=placement, world=world)
    gc.collect()


def process(rank: int, folder: Path, configs: dict[str, RunConfig]) -> None:
    """One of two ranks."""
    torch.set_num_threads(int(os.environ.get("FOREVER_TEST_THREADS", "1")))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        run_everything(rank, folder, configs)
    finally:  # without it the process would abort, and an error be hidden
        dist.destroy_process_group()
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (folder / f"threads{rank}.json").write_text(json.dumps(threads), encoding="utf-8")


def run_everything(rank: int, folder: Path, configs: dict[str, RunConfig]) -> None:
    """Run all configurations as a rank, and write down what its world says."""
    world = World(rank, 2, CPU)
    decoding.sample = canned_sample  # this process ends with the function
    # An update takes the leader a second, and the other one five.
    step_module.perf_counter = count(step=1.0 + 4 * rank).__next__  # type: ignore[assignment]
    # Ranks come when they come: the leader's files must not pass for an older run.
    time.sleep(1.5 * rank)

    def run(name: str, path: str, resume: bool = False, micro: int | None = None) -> dict[str, Any]:
        place = Placement(device="cpu", micro_batch=micro)
        return run_local(configs[name], folder / path, resume=resume, placement=place, world=world)

    results: dict[str, Any] = {name: run(name, name) for name in configs}
    killed_run(configs["forever"], folder / "killed by two", world)
    world.wait()
    run("forever", "killed by one", resume=True)
    run("forever", "accumulating", micro=1)
    numbers = torch.tensor([1.0 + rank, 10.0])
    results |= {
        "gathered": [world.gather(list(case[rank])) for case in GATHERED],
        "sum": world.sum_(numbers.clone()).tolist(),
        "from leader": world.from_leader(numbers.clone()).tolist(),
        "spread": [world.spread(range(n), tens) for n in (0, 1, 5)],
        "share": [world.share(range(n)) for n in range(4)],
    }
    world.wait()
    (folder / f"rank{rank}.json").write_text(json.dumps(results), encoding="utf-8")


def tens(numbers: list[int]) -> list[int]:
    return [10 * number for number in numbers]


@pytest.fixture(scope="module")
def configs(small_config: RunConfig) -> dict[str, RunConfig]:
    """Batches of 3 leave 2 rows at the end of an epoch of 8; batches of 7 leave 1, so that a rank
    has none.

    AdamW divides a gradient by its own size. Where one is next to nothing, its sign is that of the
    rounding, and with the usual eps = 1e-8 the entry moves by the whole learning rate all the same.
    With eps = 1e-4 the two worlds agree.
    """
    small_config = small_config.override({"optim.eps": 1e-4})
    importance: dict[str, Any] = {
        "method.regularizer": "intensity_importance",
        "method.beta": 0.05,
        "method.days": [1, 2, 3.3],
    }
    changes: dict[str, dict[str, Any]] = {
        "forever": {"evaluation.forward_transfer": True},
        "odd": {"optim.batch_size": 3, "data.test_rows": 3},
        "lonely": {"optim.batch_size": 7, "data.test_rows": 1},
        "seconds": {"budget.seconds": 4.5},
    }
    values = small_config.model_dump(mode="json")
    configs = {name: RunConfig.parse(values | {"method": m}) for name, m in METHODS.items()}
    for name, change in changes.items():
        configs[name] = small_config.override({**importance, **change})
    return configs


@pytest.fixture(scope="module")
def two(configs: dict[str, RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have run everything."""
    folder = tmp_path_factory.mktemp("two")
    killed_run(configs["forever"], folder / "killed by one", World())
    torch.multiprocessing.spawn(process, args=(folder, configs), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def alone(configs: dict[str, RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What FOREVER does in one process."""
    path = tmp_path_factory.mktemp("alone") / "run"
    execute(configs["forever"], path)
    return outcome(path)


def assert_close(a: Outcome, b: Outcome) -> None:
    """The same decisions and scores; weights and losses equal up to the order of sums."""
    assert a.result["matrix"] == b.result["matrix"]
    assert a.result["updates"] == b.result["updates"]
    assert a.files.keys() == b.files.keys()
    for name, text in a.files.items():
        if name.startswith("predictions"):
            assert text == b.files[name]
            continue
        for line, other in zip(text.splitlines(), b.files[name].splitlines(), strict=True):
            left, right = json.loads(line), json.loads(other)
            floats = {key for key, value in left.items() if isinstance(value, float)}
            assert left == {**right, **{key: left[key] for key in floats}}
            for key in floats:
                assert right[key] == pytest.approx(left[key], rel=2e-4, abs=1e-6), key
    assert a.adapter.keys() == b.adapter.keys()
    for name, tensor in a.adapter.items():
        torch.testing.assert_close(b.adapter[name], tensor, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["forever", "odd", "lonely", "seconds", *METHODS])
def test_two_processes_equal_one(
    two: Path,
    configs: dict[str, RunConfig],
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Baselines also with accumulation, whose last part is shorter."""
    monkeypatch.setattr(decoding, "sample", canned_sample)
    monkeypatch.setattr(step_module, "perf_counter", count(step=1.0).__next__)
    execute(configs[name], tmp_path, micro_batch=3 if name in METHODS else None)
    assert_close(outcome(tmp_path), outcome(two / name))
    if name not in METHODS:
        replays = [event["kind"] for event in lines(tmp_path / "events.jsonl")]
        assert replays.count("replay") >= 2
        steps = lines(two / name / "steps.jsonl")
        # The penalty counts once, not once a rank.
        assert max(step["penalty"] for step in steps if step["kind"] != "task") > 1e-4


def test_two_processes_equal_accumulation(
    two: Path, configs: dict[str, RunConfig], alone: Outcome, tmp_path: Path
) -> None:
    """The halves of each batch, one after the other."""
    execute(configs["forever"], tmp_path, micro_batch=2)
    assert_close(outcome(tmp_path), outcome(two / "forever"))
    assert_close(alone, outcome(two / "accumulating"))


def test_adapter_moved_far_more_than_the_tolerance(two: Path) -> None:
    adapter = outcome(two / "forever").adapter
    b_sides = [tensor for name, tensor in adapter.items() if "lora_B" in name]
    assert min(tensor.abs().mean().item() for tensor in b_sides) > 100 * 2e-4  # B starts at zero


def test_resumed_with_fewer_or_more_processes(
    two: Path, configs: dict[str, RunConfig], alone: Outcome
) -> None:
    place = Placement(device="cpu")
    run_local(configs["forever"], two / "killed by two", resume=True, placement=place)
    assert_close(alone, outcome(two / "killed by two"))
    assert_close(alone, outcome(two / "killed by one"))
    for name, sizes in (("killed by two", [2, 1]), ("killed by one", [1, 2])):
        assert [life["workers"] for life in lives(two / name)] == sizes


@pytest.mark.parametrize("sizes", [(None, 1), (3, None)])
def test_resumed_with_another_micro_batch(
    configs: dict[str, RunConfig], alone: Outcome, tmp_path: Path, sizes: tuple[int | None, ...]
) -> None:
    """The same batches in the same order: `assert_close` finds their tokens equal, and losses that
    differ by rounding only. Where it was resumed is written down, and not if nothing changed."""
    killed_run(configs["forever"], tmp_path, World(), sizes[0])
    for _ in range(2):
        place = Placement(device="cpu", micro_batch=sizes[1])
        run_local(configs["forever"], tmp_path, resume=True, placement=place)
    assert_close(alone, outcome(tmp_path))
    assert [life["micro_batch"] for life in lives(tmp_path)] == [*sizes]


def lives(path: Path) -> list[dict[str, Any]]:
    """Where a run was trained, and where it was resumed."""
    first = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    return [first, *first["resumed"]]


def test_communication(two: Path) -> None:
    ranks = [json.loads((two / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    for rank, found in enumerate(ranks):
        assert found["gathered"] == GATHERED
        assert found["sum"] == [3.0, 20.0]
        assert found["from leader"] == [1.0, 10.0]
        assert found["share"] == [[], [[0], []][rank], [[0], [1]][rank], [[0, 2], [1]][rank]]
        assert found["spread"] == [[], [0], [0, 10, 20, 30, 40]]
    # Only the leader writes.
    result = outcome(two / "forever").result
    assert ranks[0]["forever"]["world_size"] == 2
    assert ranks[0]["forever"]["op"] == result["op"]
    assert len(lines(two / "forever" / "steps.jsonl")) == sum(result["updates"].values())


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc names threads here")
def test_a_group_that_was_destroyed_leaves_no_threads(two: Path) -> None:
    """They would live into the end of the interpreter, where one in some processes aborts."""
    for rank in (0, 1):
        threads = json.loads((two / f"threads{rank}.json").read_text(encoding="utf-8"))
        assert threads
        assert not [name for name in threads if "gloo" in name]


def test_alone_communication_falls_away() -> None:
    world, numbers = World(), torch.tensor([1.0, 2.0])
    assert world.leads
    assert world.share("abc") == ["a", "b", "c"]
    assert world.sum_(numbers) is numbers
    assert world.from_leader(numbers) is numbers
    assert world.gather([["é", 1]]) == [[["é", 1]]]
    assert world.spread(range(5), tens) == [0, 10, 20, 30, 40]
    world.wait()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_shares_are_a_partition(size: int, count: int) -> None:
    parts = [World(rank, size).share(range(count)) for rank in range(size)]
    assert sorted(x for part in parts for x in part) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_pick_device() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "cuda:x", "mps", "CPU"):
        with pytest.raises(InputError, match=f"unknown device '{name}'"):
            pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="this machine has 0 GPUs"):
        pick_device("cuda")
