"""The lines of Python that load what was exported, and where its base model is."""

import json
from dataclasses import dataclass
from pathlib import Path

from forever.config.run import RunConfig
from forever.models import location


@dataclass(frozen=True)
class Base:
    """The base model as transformers is asked for it."""

    name: str  # a hub name, or the absolute path of a folder
    path: Path | None  # its folder or GGUF file, if it is on this machine
    on_hub: bool
    gguf: str = ""  # the file in the folder, if it is one
    dtype: str = ""  # by its config.json

    @property
    def title(self) -> str:
        """How people call it: without the place on this machine."""
        return self.name if self.on_hub else self.gguf or Path(self.name).name

    @property
    def arguments(self) -> str:
        """What `from_pretrained` is given."""
        return json.dumps(self.name) + (f", gguf_file={json.dumps(self.gguf)}" if self.gguf else "")


def locate_base(config: RunConfig) -> Base:
    """Find the base model of a run, which need not be here."""
    name = config.model.name
    path = location.find(name)
    if path is None or not location.locate(name).exists():
        return Base(name, path, on_hub=not location.looks_like_path(name), dtype=_dtype(path))
    path = path.resolve()
    if path.suffix == ".gguf":
        return Base(str(path.parent), path, on_hub=False, gguf=path.name)
    return Base(str(path), path, on_hub=False, dtype=_dtype(path))


def _dtype(path: Path | None) -> str:
    """The type of the weights by a model's own settings; empty if they do not say."""
    if path is None or not (path / "config.json").is_file():
        return ""
    settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return str(settings.get("dtype") or settings.get("torch_dtype") or "")


def adapter_lines(base: Base) -> list[str]:
    """The five lines that load the adapter, in whose folder they are run."""
    return [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f"base = AutoModelForCausalLM.from_pretrained({base.arguments})",
        'model = PeftModel.from_pretrained(base, ".")  # this folder',
        f"tokenizer = AutoTokenizer.from_pretrained({base.arguments})",
    ]


def model_lines(folder: str) -> list[str]:
    """The lines that load a whole model."""
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f"model = AutoModelForCausalLM.from_pretrained({json.dumps(folder)})",
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(folder)})",
    ]
