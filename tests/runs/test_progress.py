"""Who follows a run from another process sees what the run itself would have told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.launch.local import run_local
from forever.runs.directory import RunDirectory
from forever.runs.progress import Follower
from forever.runs.tracking import SilentTracker


class Listener(SilentTracker):
    """Keeps what it is told, and does something each time."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def step(self, line: Mapping[str, Any]) -> None:
        self.heard.append(line)

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        self.heard.append((number, scores))


class Looking(Listener):
    """Lets a follower look whenever it is told something itself."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self.follower = follower

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        self.follower.look()

    def stage(self, number: int, scores: Mapping[str, float]) -> None:
        super().stage(number, scores)
        self.follower.look()


@pytest.mark.parametrize("method", ["forever", "mtl"])
def test_a_follower_tells_what_the_run_tells(
    small_config: RunConfig, tmp_path: Path, method: str
) -> None:
    config = RunConfig.parse(
        {**small_config.model_dump(exclude={"method"}), "method": {"name": method}}
    )
    told = Listener()
    follower = Follower(config, RunDirectory(tmp_path / "run"), load_benchmark(config.data), [told])
    follower.look()  # nothing is there yet
    assert told.heard == []
    telling = Looking(follower)
    run_local(config, tmp_path / "run", trackers=[telling])
    follower.look()
    assert telling.heard == told.heard
    before = len(told.heard)
    follower.look()
    assert len(told.heard) == before


def test_a_follower_who_comes_late_tells_where_the_run_is(
    small_config: RunConfig, tmp_path: Path
) -> None:
    run_local(small_config, tmp_path / "run")
    told = Listener()
    Follower(
        small_config, RunDirectory(tmp_path / "run"), load_benchmark(small_config.data), [told]
    ).look()
    line, *stages = told.heard
    assert (line["task"], line["planned"]) == ("weight", 4)
    assert [number for number, _ in stages] == [0, 1, 2]
