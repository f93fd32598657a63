"""Two processes, one process, and one process with accumulation do the same: real gloo processes,
dropout off.

One pair of processes runs all scenarios (starting it costs seconds) and writes folders; the tests
compare them.
"""

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers import KILLED_CLOSES_NO_FILES, Outcome, canned_sample, execute, lines, outcome

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.local import Placement, run_local
from forever.training import loop
from forever.training.build import build_learner
from forever.training.world import World, pick_device

pytestmark = KILLED_CLOSES_NO_FILES

CPU = torch.device("cpu")
# What each rank gathers: text of different length, empty lists, nothing at all.
GATHERED: list[list[list[Any]]] = [
    [['é 你好 🙂 \u2028 \x00 "quoted"', 1.5, None], ["x" * 1000]],
    [[], ["only the leader"]],
    [["only the other"], []],
    [[], []],
]
KILL_AT = 14
# MoELoRA's balance term is computed a rank (f * P is not linear), so equality is that of the method
# without it.
BASELINES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("finetune", "mtl", "mix_replay")},
    "fixed_interval": {"name": "fixed_interval", "warmup_steps": 1},
    "ewc": {"name": "ewc", "strength": 1e5},
    "ewc separate": {"name": "ewc", "strength": 1e5, "mode": "separate"},
    "olora": {"name": "olora", "norm": 0.1},
    "moelora": {"name": "moelora", "balance": 0, "contrast": 0},
    "sapt": {"name": "sapt"},
    "migu": {"name": "migu"},
    "ssr": {"name": "ssr", "max_tokens": 100},
    "recurrent_kif": {"name": "recurrent_kif", "inner_steps": 2, "outer_steps": 1},
    "aimmerging": {
        "name": "aimmerging",
        "interval": 1,
        "outer_steps": 1,
        "min_interval": 1,
        "cold_merges": 0,
    },
    "vbm": {"name": "vbm", "warmup_steps": 1, "views": 2},
}


class Killed(BaseException):
    """Ends a run in the middle, on every rank at the same action."""


def killed_run(config: RunConfig, path: Path, world: World) -> None:
    """A run that dies after KILL_AT actions, with a checkpoint after each."""
    perform, count = loop.perform, [0]

    def die(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] > KILL_AT:
            raise Killed
        return perform(*arguments)

    loop.perform = die
    try:
        with pytest.raises(Killed):
            run_local(
                config, path, placement=Placement(device="cpu", checkpoint_s=0.0), world=world
            )
    finally:
        loop.perform = perform
        gc.collect()


def process(rank: int, folder: Path, configs: dict[str, RunConfig]) -> None:
    """One of two ranks."""
    torch.set_num_threads(int(os.environ.get("FOREVER_TEST_THREADS", "1")))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    world, place = World(rank, 2, CPU), Placement(device="cpu")
    results: dict[str, Any] = {}
    decoding.sample = canned_sample  # this process ends with the function
    # Ranks come when they come: the leader's files must not look like an older run.
    time.sleep(1.5 * rank)
    for name, config in configs.items():
        results[name] = run_local(config, folder / name, placement=place, world=world)
    killed_run(configs["forever"], folder / "killed by two", world)
    world.wait()
    results["killed by one"] = run_local(
        configs["forever"], folder / "killed by one", resume=True, placement=place, world=world
    )
    small = Placement(device="cpu", micro_batch=1)
    results["accumulating"] = run_local(
        configs["forever"], folder / "accumulating", placement=small, world=world
    )
    results["gathered"] = [
        world.gather(list(GATHERED[case][rank])) for case in range(len(GATHERED))
    ]
    numbers = torch.tensor([1.0 + rank, 10.0])
    results["sum"] = world.sum_(numbers.clone()).tolist()
    results["from leader"] = world.from_leader(numbers.clone()).tolist()
    results["spread"] = {
        n: world.spread(range(n), lambda mine: [10 * i for i in mine]) for n in (0, 1, 5)
    }
    results["share"] = [world.share(range(n)) for n in range(4)]
    world.wait()
    (folder / f"rank{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def configs(small_config: RunConfig) -> dict[str, RunConfig]:
    """Batches of 3 leave 2 rows at the end of an epoch of 8; batches of 7 leave 1, so that a rank
    has none.

    AdamW divides a gradient by its own size. Where one is next to nothing, its sign is that of the
    rounding, and with the usual eps = 1e-8 the entry moves by the whole learning rate all the same
    (1e-3 for one entry of AIMMerging with another backbone). With eps = 1e-4 the two worlds agree
    to 4e-7 there.
    """
    small_config = small_config.override({"optim.eps": 1e-4})
    importance: dict[str, Any] = {
        "method.regularizer": "intensity_importance",
        "method.beta": 0.05,
        "method.days": [1, 2, 3.3],
    }
    return {
        "forever": small_config.override({**importance, "evaluation.forward_transfer": True}),
        "odd": small_config.override({**importance, "optim.batch_size": 3, "data.test_rows": 3}),
        "lonely": small_config.override({**importance, "optim.batch_size": 7, "data.test_rows": 1}),
        **{
            name: RunConfig.parse(small_config.model_dump(mode="json") | {"method": m})
            for name, m in BASELINES.items()
        },
    }


@pytest.fixture(scope="module")
def two(configs: dict[str, RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have run everything."""
    folder = tmp_path_factory.mktemp("two")
    killed_run(configs["forever"], folder / "killed by one", World())
    torch.multiprocessing.spawn(process, args=(folder, configs), nprocs=2)
    return folder


def close(a: Outcome, b: Outcome) -> None:
    """The same decisions and scores; weights and losses equal up to the order of sums."""
    assert a.result["matrix"] == b.result["matrix"]
    assert a.result["updates"] == b.result["updates"]
    for name in a.files:
        if name.startswith("predictions"):
            assert a.files[name] == b.files[name]
    for file in ("steps.jsonl", "events.jsonl"):
        for one, other in zip(a.files[file].splitlines(), b.files[file].splitlines(), strict=True):
            left, right = json.loads(one), json.loads(other)
            assert left.keys() == right.keys()
            for key, value in left.items():
                assert right[key] == (
                    pytest.approx(value, rel=2e-4, abs=1e-6) if isinstance(value, float) else value
                ), key
    assert a.adapter.keys() == b.adapter.keys()
    for name, tensor in a.adapter.items():
        torch.testing.assert_close(b.adapter[name], tensor, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["forever", "odd", "lonely"])
def test_two_processes_equal_one(
    two: Path, configs: dict[str, RunConfig], tmp_path: Path, name: str
) -> None:
    execute(configs[name], tmp_path)
    alone, shared = outcome(tmp_path), outcome(two / name)
    close(alone, shared)
    replays = [(e["task"], e["step"], e["kind"]) for e in lines(tmp_path / "events.jsonl")]
    assert replays == [
        (e["task"], e["step"], e["kind"]) for e in lines(two / name / "events.jsonl")
    ]
    assert len([r for r in replays if r[2] == "replay"]) >= 2
    penalties = [
        line["penalty"] for line in lines(two / name / "steps.jsonl") if line["kind"] != "task"
    ]
    assert max(penalties) > 1e-4  # the penalty counts once, not once a rank


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_with_two_processes_equals_one(
    two: Path,
    configs: dict[str, RunConfig],
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "sample", canned_sample)
    execute(configs[name], tmp_path, micro_batch=3)  # and accumulation, whose last part is shorter
    close(outcome(tmp_path), outcome(two / name))


def test_two_processes_equal_accumulation(
    two: Path, configs: dict[str, RunConfig], tmp_path: Path
) -> None:
    # The halves of each batch, one after the other.
    execute(configs["forever"], tmp_path, micro_batch=2)
    close(outcome(tmp_path), outcome(two / "forever"))
    close(outcome(tmp_path), outcome(two / "accumulating"))


def test_adapter_moved_far_more_than_the_tolerance(
    two: Path, configs: dict[str, RunConfig]
) -> None:
    start = build_learner(configs["forever"], World())
    end = torch.cat([t.flatten() for t in outcome(two / "forever").adapter.values()])
    assert end.shape == start.parameters.flat.shape
    b_sides = [t for name, t in outcome(two / "forever").adapter.items() if "lora_B" in name]
    assert min(t.abs().mean().item() for t in b_sides) > 100 * 2e-4  # B starts at zero


def test_resumed_with_fewer_processes(
    two: Path, configs: dict[str, RunConfig], tmp_path: Path
) -> None:
    run_local(
        configs["forever"], two / "killed by two", resume=True, placement=Placement(device="cpu")
    )
    execute(configs["forever"], tmp_path)
    close(outcome(tmp_path), outcome(two / "killed by two"))


def test_resumed_with_more_processes(
    two: Path, configs: dict[str, RunConfig], tmp_path: Path
) -> None:
    execute(configs["forever"], tmp_path)
    close(outcome(tmp_path), outcome(two / "killed by one"))
    assert outcome(two / "killed by one").result["updates"] == outcome(tmp_path).result["updates"]


def test_only_the_leader_writes_and_both_know(two: Path) -> None:
    ranks = [json.loads((two / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert ranks[0]["forever"]["world_size"] == 2
    assert ranks[0]["forever"]["op"] == outcome(two / "forever").result["op"]
    assert len(lines(two / "forever" / "steps.jsonl")) == sum(
        ranks[0]["forever"]["updates"].values()
    )


def test_communication(two: Path) -> None:
    for rank in (0, 1):
        found = json.loads((two / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert found["gathered"] == GATHERED
        assert found["sum"] == [3.0, 20.0]
        assert found["from leader"] == [1.0, 10.0]
        assert found["share"] == [[], [[0], []][rank], [[0], [1]][rank], [[0, 2], [1]][rank]]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_work_is_spread_and_comes_back_in_order(two: Path, count: int) -> None:
    expected = [10 * i for i in range(count)]
    assert World().spread(range(count), lambda mine: [10 * i for i in mine]) == expected
    for rank in (0, 1):
        found = json.loads((two / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert found["spread"][str(count)] == expected


def test_alone_communication_falls_away() -> None:
    world, numbers = World(), torch.tensor([1.0, 2.0])
    assert world.leads
    assert world.share("abc") == ["a", "b", "c"]
    assert world.sum_(numbers) is numbers
    assert world.from_leader(numbers) is numbers
    assert world.gather([["é", 1]]) == [[["é", 1]]]
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


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "mps", "CPU"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown device '{name}'"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="this machine has 0 GPUs"):
        pick_device("cuda")
