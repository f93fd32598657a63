"""What a fork goes on from, and which method may."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forever.config.methods.base import MethodConfig
from forever.config.overrides import difference_lines


@dataclass(frozen=True)
class Past:
    """A trained stage of another run.

    Attributes:
        config: the hyper-parameters of its method.
        private: whether that method trains weights that no other one has.
        state: what the method carries from task to task, as JSON values.
        tensors: the names of the tensors that it carries.
        run: the name of the run. task: the task that it learned last. tasks: how many it had.
    """

    config: MethodConfig
    private: bool
    state: Mapping[str, Any]
    tensors: tuple[str, ...]
    run: str
    task: str
    tasks: int

    def refuses(self, config: MethodConfig, private: bool) -> str | None:
        """Why a method with this `config` cannot go on from here; None if it can.

        What carries nothing can be followed by any method, for example fine-tuning by FOREVER; a
        method that would like to know more of the past than the weights (Fisher information,
        written examples) then has nothing of the tasks before.
        """
        there, here = self.config.model_dump(), config.model_dump()
        other = there["name"] != here["name"]
        names = f"method.name is {there['name']!r} there, {here['name']!r} here"
        for name, alone in ((there["name"], self.private), (here["name"], private)):
            if other and alone:
                return (
                    f"{names}, and {name} trains weights that no other method has; "
                    "fork it with the same method"
                )
        carried = sorted({*self.state, *self.tensors})
        if not carried:
            return None
        carries = f"{there['name']} carries {', '.join(carried[:3])} from task to task"
        if other:
            return f"{names}, and {carries}; fork it with the same method"
        # Modes decide what is carried; numbers only how it is used.
        modes = {key: value for key, value in there.items() if isinstance(value, str | bool)}
        ours = {key: here[key] for key in modes}
        lines = difference_lines({"method": modes}, {"method": ours})
        return f"{carries}, and {lines[0]}" if lines else None
