"""`forever submit` on a cluster: started once, joined, left by Ctrl-C, ended."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
from helpers import wait_until
from machines import Head
from marks import ON_RAY
from ray_commands import FOREVER, sweep_command

from forever.config.run import RunConfig
from forever.launch.submit import stage
from forever.runs.environment import code

pytestmark = [*ON_RAY, pytest.mark.slow]


class Project:
    """A folder with a sweep of two runs, from which it is submitted as by several users."""

    def __init__(self, folder: Path, base: RunConfig, head: Head) -> None:
        folder.mkdir()
        variants = {"one": {"optim.epochs": 40}, "two": {"optim.lr": 1e-3}}
        words = sweep_command(folder, None, base, variants)[len(FOREVER) + 1 :]
        # What travels is named as it is called in the job.
        self.words = [word.replace(f"{folder}/", "") if "yaml" in word else word for word in words]
        self.folder, self.environment = folder, {**head.environment, "PYTHONUNBUFFERED": "1"}
        self.environment.pop("PYTHONPATH", None)

    def change_code(self) -> str:
        """Put a copy of this program beside the sweep, with a line more; returns its digest."""
        copy = self.folder.with_name("copy")
        stage(self.folder, copy)
        shutil.copytree(copy, self.folder, dirs_exist_ok=True)
        with (self.folder / "forever/__init__.py").open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        command = [sys.executable, "-c", "from forever.runs.environment import code; print(code())"]
        return subprocess.check_output(command, cwd=self.folder, text=True).strip()

    def submit(self, *more: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*FOREVER, "submit", *self.words, *more],
            cwd=self.folder, env={**self.environment, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def test_a_sweep_is_submitted_joined_and_followed(
    head: Head, tmp_path: Path, small_config: RunConfig
) -> None:
    """By one who sees all, one who joins, and one who leaves. All processes run the copy of the
    code in the folder that is submitted, and not the one that is installed."""
    project = Project(tmp_path / "project", small_config, head)
    digest = project.change_code()
    assert digest != code()
    head.await_nodes(1)
    first = project.submit()
    wait_until(lambda: first.poll() or [*project.folder.glob("out/*/one*/steps.jsonl")], 120)
    assert first.poll() is None, first.communicate()
    second, third = project.submit(), project.submit()
    assert third.stdout is not None
    assert third.stdout.readline().startswith("joined")
    third.send_signal(signal.SIGINT)
    outs = [process.communicate(timeout=180) for process in (first, second, third)]
    assert (first.returncode, second.returncode) == (0, 0), outs
    assert third.returncode == 128 + signal.SIGINT, outs[2]
    for (shown, _), how in zip(outs, ("started", "joined"), strict=False):
        assert f"{how}  forever-toys-" in shown
        assert shown.count("] two, order custom, seed 0: done") == 1, shown
        assert shown.count("] one, order custom, seed 0: done") == 1, shown
        assert "report  " in shown
    for run in project.folder.glob("out/*/*/environment.json"):
        assert json.loads(run.read_text())["code"] == digest


def test_what_a_cluster_refuses_and_a_job_that_fails(
    head: Head, tmp_path: Path, small_config: RunConfig
) -> None:
    """The exit code is the job's; what failed is started again, with the next number."""
    project = Project(tmp_path / "project", small_config, head)
    head.await_nodes(1)
    process = project.submit(RAY_AUTH_TOKEN="0" * 64)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, "RAY_AUTH_MODE=token" in errors) == (2, True), errors
    names = []
    for _ in range(2):
        process = project.submit("data.root=/nowhere")
        shown, errors = process.communicate(timeout=120)
        assert process.returncode == 2, (shown, errors)
        assert "nowhere" in shown
        names.append(shown.split()[1])
    assert names[1] == f"{names[0]}-2"
