"""Named runs: `<benchmark>[/<order>]/<method>`, and what each benchmark changes in the paper's settings."""

from pathlib import Path
from typing import Any

import yaml

from forever.config import RunConfig
from forever.data.benchmarks import ORDERS, default_order
from forever.errors import InputError, unknown
from forever.methods.registry import METHODS

# A model of one million parameters learns by other numbers than one of 600 million. To be replaced by measured ones.
MINI: dict[str, Any] = {
    "data.benchmark": "mini",
    "model.name": "tiny",
    "model.targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "optim.lr": 5e-3,
    "optim.epochs": 5,
    "memory.fraction": 0.1,
    "evaluation.max_new_tokens": 16,
}
# S = 24 is 2 % of the paper's 1250 updates a task; 6 is as much of mini's.
MINI_WARMUP = 6
PAPER: dict[str, Any] = {"model.name": "Qwen/Qwen3-0.6B"}


def named_run(name: str) -> RunConfig:
    """The run that a name like `mini/forever`, `superni/7/forever` or `long/4/finetune` stands for.

    Raises:
        InputError: unknown benchmark, order or method.
    """
    parts = name.split("/")
    if len(parts) not in (2, 3):
        raise InputError(
            f"{name!r} is no file and not of the form <benchmark>[/<order>]/<method>, such as mini/forever"
        )
    benchmark, method = parts[0], parts[-1]
    if benchmark != "mini" and benchmark not in ORDERS:
        raise unknown("benchmark", benchmark, ["mini", *ORDERS])
    order = parts[1] if len(parts) == 3 else default_order(benchmark)
    if order not in ORDERS.get(benchmark, {"1": ()}):
        raise unknown(f"order of {benchmark}", order, ORDERS.get(benchmark, {"1": ()}))
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    settings = {**(MINI if benchmark == "mini" else PAPER), "method.name": method}
    if benchmark == "mini" and method in ("forever", "fixed_interval"):
        settings["method.warmup_steps"] = MINI_WARMUP
    return RunConfig().override({"data.benchmark": benchmark, "data.order": order, **settings})


def load_run(argument: str) -> RunConfig:
    """A run from a YAML file or by name.

    Raises:
        InputError: no such file or name, or a file that is not a configuration.
    """
    path = Path(argument)
    if path.suffix not in (".yaml", ".yml"):
        return named_run(argument)
    if not path.is_file():
        raise InputError(f"there is no file {argument}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError(f"{argument} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{argument} must hold keys such as method, data, optim; it holds {type(content).__name__}")
    return RunConfig.parse(content)
