"""What methods carry from task to task, what a fork goes on from, and which method may."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forever.config.methods.base import MethodConfig
from forever.config.overrides import difference_lines


@dataclass(frozen=True)
class Past:
    """A trained stage of another run."""

    config: MethodConfig  # the hyper-parameters of its method
    private: bool  # whether that method trains weights that no other one has
    state: Mapping[str, Any]  # what the method carries from task to task, as JSON values
    tensors: tuple[str, ...]  # the names of the tensors that it carries
    run: str  # the name of the run
    task: str  # the task that it learned last
    tasks: int  # the number of its tasks

    def refuses(self, config: MethodConfig, private: bool) -> str | None:
        """Why a method with this `config` cannot go on from here; None if it can.

        What carries nothing can be followed by any method, for example fine-tuning by FOREVER; a
        method that would like to know more of the past than the weights then has nothing of it.
        """
        carried = sorted({*self.state, *self.tensors})
        reason = ""
        if carried:
            reason = f"{self.config.name} carries {', '.join(carried[:3])} from task to task"
        other = config.name != self.config.name
        for method, alone in ((self.config, self.private), (config, private)):
            if other and alone:
                reason = f"{method.name} trains weights that no other method has"
        if not reason:
            return None
        if other:
            names = f"method.name is {self.config.name!r} there, {config.name!r} here"
            return f"{names}, and {reason}; fork it with the same method"
        # Modes decide what is carried; numbers only how it is used.
        there, here = self.config.model_dump(), config.model_dump()
        modes = {key: value for key, value in there.items() if isinstance(value, str | bool)}
        lines = difference_lines({"method": modes}, {"method": {key: here[key] for key in modes}})
        return f"{reason}, and {lines[0]}" if lines else None
