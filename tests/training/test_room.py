"""Where memory runs out, half as much is done at once, and the result is what it was."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CONFIGS, execute, lines
from torch import Tensor

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.models import cache, lora
from forever.models.device import fitting, make_room
from forever.training import forward, importance, step
from forever.training.learner import Learner


def refuse(monkeypatch: pytest.MonkeyPatch, most: int, answers: int = 1000) -> list[int]:
    """Play a device that has room for `most` examples in a pass, and for some rows of a cache.

    It refuses at the end of a pass, which has left its traces. Returns the sizes that were tried.
    """
    sizes: list[int] = []

    def allocate(count: int, room: int) -> None:
        sizes.append(count)
        if count > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    honest_logits, honest_cache = forward.answer_logits, cache.Cache.of

    def answer_logits(learner: Learner, examples: Sequence[Any], *rest: Any) -> Any:
        result = honest_logits(learner, examples, *rest)
        allocate(len(examples), most)
        return result

    def of(self: cache.Cache, layer: int, key: Tensor, value: Tensor) -> Any:
        allocate(self.count, answers)
        return honest_cache(self, layer, key, value)

    for module in (forward, step, importance):
        monkeypatch.setattr(module, "answer_logits", answer_logits)
    monkeypatch.setattr(cache.Cache, "of", of)
    return sizes


def played(config: RunConfig, name: str) -> RunConfig:
    values = config.override({"data.order": ["colour", "shape"]}).model_dump(mode="json")
    return RunConfig.parse(values | {"method": CONFIGS[name]})


# The terms of MoELoRA are means over a micro-batch, and change with it (see its module).
PLAIN_MIXTURE = {"name": "moelora", "balance": 0, "contrast": 0}


@pytest.mark.parametrize("name", ["forever both", "ewc separate", "migu", "moelora"])
def test_a_run_ends_as_on_a_larger_device(
    small_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """Micro-batches add up to the same updates up to rounding, whatever a refused pass left."""
    monkeypatch.setitem(CONFIGS, "moelora", PLAIN_MIXTURE)
    config = played(small_config, name)
    whole = execute(config, tmp_path / "whole")
    assert whole["at_once"] == {"examples": None, "answers": None}
    assert capsys.readouterr().err == ""
    sizes = refuse(monkeypatch, most=2, answers=2)
    result = execute(config, tmp_path / "small")
    assert max(sizes) > 2
    assert result["at_once"] == {"examples": 2, "answers": 2}
    assert len(capsys.readouterr().err.splitlines()) == 2  # once for examples, once for answers
    paths = [tmp_path / run / "steps.jsonl" for run in ("whole", "small")]
    for there, here in zip(*map(lines, paths), strict=True):
        assert here["rows"] == there["rows"]  # the global batch
        assert here["kind"] == there["kind"]
        assert here["loss"] == pytest.approx(there["loss"], rel=1e-3, abs=1e-4)
        assert here["update_norm"] == pytest.approx(there["update_norm"], rel=1e-2)


def test_a_pass_that_did_not_fit_is_let_go(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a router noted of it would keep its memory while half of it is tried."""
    refuse(monkeypatch, most=2)
    held: list[bool] = []
    honest = step.answer_logits

    def answer_logits(learner: Learner, examples: Sequence[Any], *rest: Any) -> Any:
        for _, bank in lora.banks(learner.backbone.model):
            router: Any = bank.router
            held.append(router.balance.requires_grad or router.contrast.requires_grad)
            break
        if len(held) == 2:
            raise KeyboardInterrupt
        return honest(learner, examples, *rest)

    monkeypatch.setattr(step, "answer_logits", answer_logits)
    with pytest.raises(KeyboardInterrupt):
        execute(played(small_config, "moelora"), tmp_path / "run")
    assert held == [False, False]


def test_the_micro_batch_that_is_asked_for_comes_first(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = refuse(monkeypatch, most=1)
    result = execute(played(small_config, "finetune"), tmp_path / "run", micro_batch=3)
    assert sizes[:3] == [3, 1, 1]
    assert result["at_once"] == {"examples": 1, "answers": None}


@pytest.mark.parametrize(("most", "answers"), [(0, 9), (9, 0)])
def test_what_does_not_fit_alone_is_refused(
    small_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    answers: int,
) -> None:
    refuse(monkeypatch, most, answers)
    with pytest.raises(InputError, match=r"out of memory, with one of the .* lower model\.max_l"):
        execute(played(small_config, "finetune"), tmp_path / "run")


def test_other_errors_go_through() -> None:
    def work(size: int) -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        fitting(work, 8, None, "examples")
    assert fitting(lambda size: size, 0, None, "examples") == (1, None)


def test_what_was_used_in_pieces_is_given_back() -> None:
    """A process that trains one run after the other does not grow."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc keeps what is freed")
    make_room()  # else the pieces could lie in what earlier tests left, and not be counted
    before = resident()
    pieces = [torch.ones(15_000) for _ in range(4_000)]  # 60 KB each, which glibc keeps
    used = resident() - before
    del pieces[:-1]  # one that stays at the end holds all others back
    make_room()
    assert used > 200e6
    assert resident() - before < 0.2 * used


def resident() -> int:
    """The bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
