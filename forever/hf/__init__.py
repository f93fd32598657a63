"""Continual learning in a script with a Hugging Face `Trainer` or TRL's `SFTTrainer`.

    from forever.hf import Forever, mix

`mix` spreads old examples between new ones and works with every trainer. `Forever` replays them
when the model has moved far enough, between the trainer's own updates.
"""

from forever.hf.callback import Forever
from forever.hf.mix import mix

__all__ = ["Forever", "mix"]
