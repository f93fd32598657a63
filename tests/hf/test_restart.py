"""A training that is killed resumes with the bits of one that was not.

Each life is a process of its own, forked from this one, since importing TRL takes long.
"""

import multiprocessing
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from datasets import Dataset
from helpers import flip
from hf.conftest import digest
from marks import TRL_WARNS

from forever.errors import InputError
from forever.hf import Forever

pytestmark = [*TRL_WARNS, pytest.mark.slow]
# Eight updates an epoch, a checkpoint after every third, events of four after 4, 8 and 15, and one
# of two at the end. So the first checkpoint comes after 3 updates in all, the second after 10.
EVENTS = {"clock": "steps", "day_steps": 4, "days": [1.0, 2.0, 3.75], "beta": 0.05}
KILLS = {"before an event": 3, "within it": 6, "after it": 11, "within one of epoch 2": 25}


def live(
    make: Any,
    old: Any,
    folder: Path,
    kill: int | None,
    ranks: int,
    anchor: Any = None,
    **changes: Any,
) -> None:
    """Train in children of this process, from the last checkpoint if there is one, until an
    optimiser has done `kill` updates; else leave the weights' digest."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def train(rank: int) -> None:
        if ranks > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        settings = {"max_steps": 16, "save_strategy": "steps", "save_steps": 3} | changes
        trainer = make(output_dir=str(folder), **settings)
        Forever(memory=old, anchor=anchor, **EVENTS).attach(trainer)
        create, updates = trainer.create_optimizer, iter(range(kill or 1000))

        def counted(*arguments: Any) -> Any:
            optimizer = create(*arguments)
            step = optimizer.step

            def update(*options: Any, **named: Any) -> Any:
                if next(updates, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(*options, **named)

            optimizer.step = update
            return optimizer

        trainer.create_optimizer = counted
        trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
        (folder / f"digest-{rank}").write_text(digest(trainer), encoding="utf-8")
        if dist.is_initialized():
            dist.destroy_process_group()

    children = [
        multiprocessing.get_context("fork").Process(target=train, args=(rank,))
        for rank in range(ranks)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    wanted = 0 if kill is None else -signal.SIGKILL
    assert [child.exitcode for child in children] == [wanted] * ranks


def digests(folder: Path) -> set[str]:
    return {path.read_text(encoding="utf-8") for path in folder.glob("digest-*")}


@pytest.mark.parametrize(("accumulated", "anchor"), [(1, None), (4, None), (1, "task")])
def test_killed_and_resumed(
    make: Any, old: Any, tmp_path: Path, accumulated: int, anchor: str | None
) -> None:
    changes: dict[str, Any] = {"gradient_accumulation_steps": accumulated, "anchor": anchor}
    changes |= {"per_device_train_batch_size": 4 // accumulated}
    live(make, old, tmp_path / "whole", None, 1, **changes)
    (whole,) = digests(tmp_path / "whole")
    for name, kill in KILLS.items():
        folder = tmp_path / name
        live(make, old, folder, kill, 1, **changes)
        assert digests(folder) == set()
        live(make, old, folder, None, 1, **changes)
        assert digests(folder) == {whole}, name


def two_ranks(make: Any, old: Any, folder: Path, kills: dict[str, int], **changes: Any) -> None:
    """Both ranks end with the weights of a training that was not killed, wherever it was."""
    live(make, old, folder / "whole", None, 2, **changes)
    (whole,) = digests(folder / "whole")  # both ranks hold the same weights
    for name, kill in kills.items():
        live(make, old, folder / name, kill, 2, **changes)
        live(make, old, folder / name, None, 2, **changes)
        assert digests(folder / name) == {whole}, name


@pytest.mark.parametrize("accumulated", [1, 2])
def test_two_ranks_killed_and_resumed(
    make: Any, old: Any, tmp_path: Path, accumulated: int
) -> None:
    changes = {"gradient_accumulation_steps": accumulated}
    changes |= {"per_device_train_batch_size": 2 // accumulated}
    two_ranks(make, old, tmp_path, KILLS, **changes)


def test_two_ranks_with_a_part_each_killed_and_resumed(make: Any, old: Any, tmp_path: Path) -> None:
    layers = {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}
    changes = {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2, **layers}}
    changes |= {"activation_checkpointing": False, "per_device_train_batch_size": 2}
    two_ranks(make, old, tmp_path, {"within it": KILLS["within it"]}, **changes)


def test_what_cannot_resume_is_refused(make: Any, old: Any, tmp_path: Path) -> None:
    """Another memory, other settings, a checkpoint without replay, or Theta* that was changed."""
    first = make(output_dir=str(tmp_path), max_steps=4, save_strategy="steps", save_steps=2)
    Forever(memory=old, day_steps=2).attach(first)
    first.train()
    again = {"output_dir": str(tmp_path), "max_steps": 6}
    for other in (Forever(memory=old[1:], day_steps=2), Forever(memory=old, day_steps=3)):
        trainer = make(**again)
        other.attach(trainer)
        with pytest.raises(InputError):
            trainer.train(resume_from_checkpoint=True)
    flip(tmp_path / "forever.safetensors")
    trainer = make(**again)
    Forever(memory=old, day_steps=2).attach(trainer)
    with pytest.raises(InputError):
        trainer.train(resume_from_checkpoint=True)


def test_a_later_task_is_resumed_by_another_script(make: Any, old: Any, tmp_path: Path) -> None:
    """With the memory from a file, whose integers have another width, and the task's number."""
    first = make(max_steps=2)
    forever = Forever(memory=old, clock="steps", day_steps=2).attach(first)
    first.train()
    file, settings = tmp_path / "memory.jsonl", {"output_dir": str(tmp_path), "max_steps": 4}
    forever.close_task().to_json(file)
    whole = make(save_strategy="steps", save_steps=2, **settings)
    forever.attach(whole)
    whole.train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    memory = Dataset.from_json(str(file))
    for task in (0, 1):
        again = make(**settings)
        later = Forever(memory=memory, clock="steps", day_steps=2, task=task).attach(again)
        if task == 0:
            with pytest.raises(InputError):
                again.train(resume_from_checkpoint=True)
    again.train(resume_from_checkpoint=True)
    assert digest(again) == digest(whole)
    assert later.close_task().to_list() == forever.close_task().to_list()


def test_a_forever_without_work_joins_a_checkpoint_that_had_none(make: Any, tmp_path: Path) -> None:
    settings = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 2}
    make(max_steps=2, **settings).train()
    trainer = make(max_steps=4, **settings)
    Forever().attach(trainer)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4


def test_replay_does_not_begin_in_the_middle_of_a_task(make: Any, old: Any, tmp_path: Path) -> None:
    plain = make(output_dir=str(tmp_path), max_steps=2, save_strategy="steps", save_steps=2)
    plain.train()
    trainer = make(output_dir=str(tmp_path), max_steps=4)
    Forever(memory=old).attach(trainer)
    with pytest.raises(InputError):
        trainer.train(resume_from_checkpoint=True)
