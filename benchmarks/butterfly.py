"""How far rounding alone moves the scores of a language model at scale `cpu`.

    python -m benchmarks.butterfly cpu/superni/7 --model MODEL --root DATA --out DIR [--copies 4]

The same runs are made from copies of the model in which every weight is moved by a relative 1e-6.
benchmarks/butterfly.json keeps what was measured for each benchmark.
"""

import json
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from benchmarks.instrument import run_sweep, shaken
from forever.models.backbone import load

RESULTS = Path(__file__).with_name("butterfly.json")
METHODS = ("finetune", "mix_replay", "forever")


def main(
    base: Annotated[str, typer.Argument(help="The runs' benchmark, e.g. cpu/superni/7.")],
    model: Annotated[str, typer.Option(help="A folder or a GGUF file.")],
    root: Annotated[Path, typer.Option(help="Folder with the benchmarks' folders.")],
    out: Annotated[Path, typer.Option(help="Folder for the copies and the sweep.")],
    copies: Annotated[int, typer.Option(min=2)] = 4,
) -> None:
    """Make the runs that are not there yet, and write down how far their OP is apart."""
    variants: dict[str, Any] = {}
    for number, method in product(range(copies), METHODS):
        moved = moved_copy(model, out.absolute() / "models" / str(number), number)
        variants[f"{method} {number}"] = {"method": method, "model.name": str(moved)}
    place = out.absolute() / base.replace("/", "_")
    options = ("--on", f"{base}/forever", f"data.root={root.absolute()}")
    ops: dict[str, list[float]] = {method: [] for method in METHODS}
    runs = run_sweep(place, variants, options=options).runs
    for run in runs:
        ops[run.variant.rpartition(" ")[0]].append(run.outcome["op"])
    measured = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    spread = {method: stdev(values) for method, values in ops.items()}
    measured[base] = dict(runs[0].environments[0]) | {
        "argv": ["butterfly.py", base],  # places differ between machines
        "model": Path(model).name,
        "op": ops,
        "sd": spread,
    }
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print("\n".join(f"{method}: sd {sd:.2f}, OP {ops[method]}" for method, sd in spread.items()))


def moved_copy(model: str, folder: Path, number: int) -> Path:
    """A copy of a model as a folder, every weight moved by a relative 1e-6."""
    if not (folder / "config.json").is_file():
        backbone = load(model, torch.float32, torch.device("cpu"))
        config = backbone.model.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # that of a GGUF file, whose weights are plain by now
        backbone.tokenizer.save_pretrained(folder)
        backbone.model.generation_config.save_pretrained(folder)
        with torch.no_grad():
            weights = shaken(dict(backbone.model.named_parameters()), number)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        config.save_pretrained(folder)  # config.json, when all else is there
    return folder


if __name__ == "__main__":
    typer.run(main)
