"""Named runs: `[cpu/]<benchmark>[/<order>]/<method>`, and what each scale changes in the paper's
settings."""

from pathlib import Path
from typing import Any

from forever.config.methods import METHOD_CONFIGS
from forever.config.run import RunConfig
from forever.data.orders import ORDERS, default_order
from forever.errors import InputError, unknown
from forever.sweeps.reading import read_yaml

# A model of one million parameters learns by other numbers than one of 600 million; these were
# measured on tiny.
MINI: dict[str, Any] = {
    "data.benchmark": "mini",
    "model.name": "tiny",
    # On a CPU a third of an update's time, for an adapter that does not overfit.
    "model.dropout": 0.0,
    # 5e-3 with batches of 8 is at the edge of stability: rounding moved OP by 2 to 4 points.
    "optim.lr": 2e-3,
    "optim.batch_size": 16,
    "optim.epochs": 10,
    # 8 of 200 rows, one batch a task; with 20 rows MixReplay forgets next to nothing.
    "memory.fraction": 0.08,  # 16 of 200 examples, one batch a task
    "evaluation.max_new_tokens": 16,  # the longest answer has 15 tokens and EOS
}
PAPER: dict[str, Any] = {"model.name": "Qwen/Qwen3-0.6B"}

# The run from which each experiment differs, by the size of everything in it.
SCALES = {"mini": "mini/forever", "cpu": "cpu/superni/7/forever", "paper": "superni/7/forever"}

# Real data and a real language model, about twenty minutes of a CPU core: four tasks, 24 updates
# each, not 1250.
CPU: dict[str, Any] = {
    "model.name": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "model.max_length": 384,
    "data.train_rows": 96,
    "data.test_rows": 40,
    "optim.epochs": 2,
    "optim.lr": 1e-3,  # with 3e-3 task363 ends at one answer for all rows
    "memory.fraction": 0.0834,  # 8 of 96 rows, one batch a task; 2 % would be a single row
    "evaluation.max_new_tokens": 24,
}
# What methods need to fit tasks of 130 (mini) or 24 (cpu) updates; everything else is as in their
# papers. mini: 30 days of S = 4 updates are 120, so the standard schedule gets to its end on a step
# clock, as with the paper's 30 days of 24 updates in 1250; on the model clock days grow longer as
# the updates shrink. cpu: S = 24 would be the whole task; 2 leaves room for days 1, 2, 4, 7. SSR's
# continuations of up to 2048 tokens take hours on a CPU; these lengths hold a prompt and three more
# rows.
METHOD_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "mini": {
        **{name: {"method.warmup_steps": 4} for name in ("forever", "fixed_interval", "vbm")},
        "ssr": {"method.max_tokens": 320},
    },
    "cpu": {
        **{name: {"method.warmup_steps": 2} for name in ("forever", "fixed_interval", "vbm")},
        "ssr": {"method.max_tokens": 512, "method.samples": 1},
    },
}
# SuperNI without its long prompts: three classifications and an extraction, in the order in which
# they come.
CPU_TASKS = {
    "superni": {
        "7": ("task363", "task1510", "task1687", "task875"),
        "8": ("task1687", "task363", "task1510", "task875"),
    }
}


def named_run(name: str) -> RunConfig:
    """The run that a name like `mini/forever`, `superni/7/forever` or `long/4/finetune` stands for.

    Raises:
        InputError: unknown benchmark, order or method.
    """
    parts = name.split("/")
    small = parts[0] == "cpu"
    parts = parts[1:] if small else parts
    if len(parts) not in (2, 3):
        raise InputError(
            f"{name!r} is no file and not of the form [cpu/]<benchmark>[/<order>]/<method>, "
            "such as mini/forever"
        )
    benchmark, method = parts[0], parts[-1]
    if benchmark not in ORDERS:
        raise unknown("benchmark", benchmark, ORDERS)
    order = parts[1] if len(parts) == 3 else default_order(benchmark)
    if order not in ORDERS[benchmark]:
        raise unknown(f"order of {benchmark}", order, ORDERS[benchmark])
    if method not in METHOD_CONFIGS:
        raise unknown("method", method, METHOD_CONFIGS)
    settings: dict[str, Any] = {
        "data.benchmark": benchmark,
        "data.order": order,
        "method.name": method,
    }
    scale = "cpu" if small else "paper"
    if benchmark == "mini":
        scale = "mini"
    settings |= {"mini": MINI, "cpu": CPU, "paper": PAPER}[scale]
    if small and order in CPU_TASKS.get(benchmark, {}):
        settings["data.order"] = CPU_TASKS[benchmark][order]
    return RunConfig().override(settings | METHOD_SETTINGS.get(scale, {}).get(method, {}))


def scale_of(run: RunConfig) -> str:
    """The scale that a run has by its data: mini, cpu (few and short rows), paper (a whole
    benchmark), or "other"."""
    data = run.data
    if data.benchmark == "mini":
        return "mini"
    # Other sizes may be asked for.
    if data.train_rows is not None and run.model.max_length == CPU["model.max_length"]:
        return "cpu"
    whole = data.train_rows is None and data.test_rows is None and data.validation is None
    return "paper" if whole and data.order in ORDERS.get(data.benchmark, {}) else "other"


def orders(base: RunConfig, *benchmarks: str) -> dict[str, dict[str, Any]]:
    """All orders of the paper's benchmarks by their numbers, as differences from a run, whose sizes
    stay.

    `mini` stands for each of them: its two orders.
    """
    small = "cpu/" if scale_of(base) == "cpu" else ""
    # Another benchmark would begin without them.
    sizes = base.data.model_dump(mode="json", exclude={"root"})
    if base.data.benchmark == "mini":
        benchmarks = ("mini",)
    places: dict[str, dict[str, Any]] = {}
    for benchmark in benchmarks:
        for order in ORDERS[benchmark]:
            place = named_run(f"{small}{benchmark}/{order}/finetune").data
            data = {**sizes, "benchmark": place.benchmark, "order": place.order}
            places[order] = {f"data.{key}": value for key, value in data.items()}
    return places


def method_settings(base: RunConfig, method: str) -> dict[str, Any]:
    """The dotted keys that put a method in the place of a run's own, as named runs of that scale
    have it.

    The run's own method stays as it is, and S of the run holds for every method that has one.
    """
    if method == base.method.name:
        return {}
    settings = {"method.name": method, **METHOD_SETTINGS.get(scale_of(base), {}).get(method, {})}
    warmup_steps = getattr(base.method, "warmup_steps", None)
    if warmup_steps and hasattr(base.override(settings).method, "warmup_steps"):
        settings["method.warmup_steps"] = warmup_steps
    return settings


def load_run(argument: str) -> RunConfig:
    """A run from a YAML file or by name.

    Raises:
        InputError: no such file or name, or a file that is not a configuration.
    """
    path = Path(argument)
    if path.suffix not in (".yaml", ".yml"):
        return named_run(argument)
    return RunConfig.parse(read_yaml(path)[0])
