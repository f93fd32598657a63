"""What tests of the command line share: a call of it, and a run's file."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from commands import Call

from forever.cli.main import main
from forever.config.run import RunConfig


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Do `forever ARGUMENTS` in this process: its exit code, and what came on stdout and stderr."""

    def forever(*arguments: str, begin: Callable[[], None] = main) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forever", *arguments])
        code = 0
        try:
            begin()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    before = signal.getsignal(signal.SIGINT)
    yield forever
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run_file(base_config: RunConfig, tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(base_config.model_dump(mode="json")), encoding="utf-8")
    return str(path)
