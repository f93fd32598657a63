"""`forever export`: a run's adapter or model in a folder for others, with a model card.

The folder appears when all of it is written.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from forever.config.parts import is_template
from forever.config.run import RunConfig
from forever.data.prompts import ALPACA, PLAIN, without_clock
from forever.data.tasks import Example
from forever.errors import InputError, one_line
from forever.evaluation.metrics import PerformanceMatrix
from forever.files import writing
from forever.models import location
from forever.report.format import estimated
from forever.report.study import plain_run
from forever.runs.directory import RunDirectory
from forever.stats.compare import compare
from forever.storage.address import portable
from forever.text import markdown
from forever.yaml_file import to_yaml

_TEMPLATE = Path(__file__).with_name("card.md")


def export_run(folder: Path, to: Path, merged: bool = False) -> list[str]:
    """Write what a finished run trained into the folder `to`, and return what was written.

    Args:
        merged: also write the base model with the adapter merged into it.

    Raises:
        InputError: the run is damaged, PEFT could not load what it trained, or the folder exists.
    """
    to = Path(os.path.abspath(to))
    if to == Path.cwd() or (to.exists() and (not to.is_dir() or any(to.iterdir()))):
        raise InputError(f"--to {to} exists, and export overwrites nothing; give another folder")
    run = RunDirectory(folder)
    result = run.verify()
    assert result is not None, "the run is not finished"
    config = run.read_config()
    whole = config.model.tuning == "full"
    if whole and merged:
        raise InputError(f"{portable(folder)} trained the whole model; leave out --merged")
    source = run.path / ("model" if whole else "adapter")
    run.check_weights(complete=True)
    if not whole and not all((source / name).is_file() for name in location.ADAPTER):
        raise InputError(
            f"method {config.method.name} weighs several adapters by the prompt, which PEFT cannot "
            f"load as one; they are in {source}"
        )

    temporary = to.with_name(f".{to.name}.part")
    with writing(to):
        shutil.rmtree(temporary, ignore_errors=True)  # of an export that was killed
        try:
            shutil.copytree(source, temporary)
            name, options = _base(config)
            if not whole:  # its settings name the base, wherever they are read from
                settings = json.loads((source / location.ADAPTER[0]).read_text(encoding="utf-8"))
                settings["base_model_name_or_path"] = name
                text = json.dumps(settings, indent=2) + "\n"
                (temporary / location.ADAPTER[0]).write_text(text, encoding="utf-8")
            template = _template(config)
            card = _card(run, result, config, (name, options), merged, template is not None)
            (temporary / "README.md").write_text(card, encoding="utf-8")
            if merged:
                merge(source, temporary / "merged", config.model.name)
            for folder in (temporary, temporary / "merged"):
                if template is not None and folder.is_dir():
                    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
            if to.is_dir():
                to.rmdir()  # it is empty
            temporary.rename(to)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    written = sorted(path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file())
    return [f"wrote {to / name}" for name in written]


def _base(config: RunConfig) -> tuple[str, str]:
    """The base model's hub name or absolute folder, and all arguments of `from_pretrained`."""
    name = config.model.name
    path = location.locate(name)
    if not path.exists():
        return name, json.dumps(name)
    path = path.resolve()
    if path.suffix == ".gguf":
        folder = str(path.parent)
        return folder, f"{json.dumps(folder)}, gguf_file={json.dumps(path.name)}"
    return str(path), json.dumps(str(path))


def _template(config: RunConfig) -> str | None:
    """The chat template of a run if it is another one than its tokenizer has."""
    if is_template(config.data.prompt):
        return without_clock(config.data.prompt)
    if config.data.prompt == "chat":
        from forever.models.loading import load_tokenizer  # with torch

        with suppress(InputError):  # the model is no longer here
            own = load_tokenizer(config.model.name).get_chat_template()
            return without_clock(own) if without_clock(own) != own else None
    return None


def merge(adapter: Path, folder: Path, name: str) -> None:
    """Write the base model `name` with the adapter merged into it, in the base's own type."""
    import torch

    from forever.models.adapter import attached, restore
    from forever.models.backbone import load

    # Merged in fp32, so that nothing of a small adapter is rounded away before the end.
    backbone = load(name, torch.float32, torch.device("cpu"))
    tied = _untie(backbone.model)
    restore(backbone.model, adapter)
    dtype = torch.float32
    path = location.find(name)
    if path is not None and (path / "config.json").is_file():
        settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
        names = {"bfloat16": torch.bfloat16, "float16": torch.float16}
        dtype = names.get(str(settings.get("dtype") or settings.get("torch_dtype")), dtype)
    try:
        model = attached(backbone.model).merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise InputError(f"{adapter} cannot be merged: {one_line(error)}") from error
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if tied and torch.equal(head.weight, embedding.weight):
        head.weight = embedding.weight
        _say_tied(model, True)
    model.to(dtype).save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)


def _untie(model: Any) -> bool:
    """Give the head a copy of the embedding's weights if they share them; returns whether they did.

    What is merged into one of them would otherwise change the other as well.
    """
    head = model.get_output_embeddings()
    if head is None or head.weight is not model.get_input_embeddings().weight:
        return False
    head.weight = type(head.weight)(head.weight.detach().clone(), requires_grad=False)
    _say_tied(model, False)
    return True


def _say_tied(model: Any, tied: bool) -> None:
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = tied


# ---- the model card


def _card(
    run: RunDirectory,
    result: Mapping[str, Any],
    config: RunConfig,
    base: tuple[str, str],
    merged: bool,
    has_template: bool,
) -> str:
    """The text of README.md: what was trained on which data, how well, and how to load it."""
    name, arguments = base
    on_hub, whole = not Path(name).is_absolute(), config.model.tuning == "full"
    datasets = [data.path for data in config.data.datasets.values() if not data.is_path]
    header = ModelCardData(
        library_name="transformers" if whole else "peft",
        base_model=name if on_hub else None,
        datasets=list(dict.fromkeys(datasets)) or None,
        tags=["continual-learning", "forever-cl", config.method.name],
    )
    made = run.read_environment()
    versions = [f"{name} {version}" for name, version in made["packages"].items() if version]
    hardware = ", ".join(made.get("gpus", [])) or made.get("cpu") or "an unknown processor"
    settings = _settings(config)
    prompt = {"alpaca": ALPACA, "none": PLAIN}.get(config.data.prompt)
    card = ModelCard.from_template(
        header,
        template_path=str(_TEMPLATE),
        text=markdown,
        cell=lambda text: markdown(text).replace("|", r"\|"),
        title=run.path.name,
        base=name if on_hub else Path(name).name,
        licence=_licence(config.model.name) or "not known here",
        on_hub=on_hub,
        whole=whole,
        merged=merged,
        joint=config.method.joint,
        result=result,
        arguments=arguments,
        is_chat=prompt is None,
        has_template=has_template,
        prompt=prompt and prompt.text(Example("", "{instruction}", "{input}", "")),
        prompt_without_input=prompt and prompt.text(Example("", "{instruction}", "", "")),
        limit=config.evaluation.max_new_tokens,
        scores=_scores(run, result),
        why_no_bwt=run.why_no_bwt(),
        made=f"revision {made.get('revision')}, on {hardware}; {', '.join(versions)}",
        settings=settings,
        # A fence of code is longer than any in what it holds.
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", settings + arguments)), default=0)),
    )
    return str(card)


def _licence(name: str) -> str | None:
    """The licence that a model's card gives, if the card is on this machine."""
    path = location.find(name)
    if path is None:
        return None
    file = (path if path.is_dir() else path.parent) / "README.md"
    if not file.is_file():
        return None
    return ModelCard.load(file, ignore_metadata_errors=True).data.get("license")


def _settings(config: RunConfig) -> str:
    """The configuration as YAML, without folders of this machine."""
    settings = config.model_dump(mode="json")
    settings["data"].pop("root")
    for task, dataset in config.data.datasets.items():
        settings["data"]["datasets"][task] = dataset.identity()
    for section, key in (("model", "name"), ("method", "encoder")):
        name = settings[section].get(key) or ""
        if name.startswith(("/", ".", "~")):
            settings[section][key] = Path(name).name
    return to_yaml(settings, default_flow_style=None, width=96)


def _scores(run: RunDirectory, result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """A name, a metric and a score with its interval, for OP, BWT and each task."""
    matrix = plain_run(run.path).matrix
    unit: Any = (result["order"], result["seed"])
    whole = compare({"": {unit: matrix}})[""]
    rows = [("OP, the mean of all tasks", "–", estimated(whole.op, "{:.1f}"))]
    if whole.bwt is not None:
        rows.append(("BWT, gained since learned", "–", estimated(whole.bwt, "{:.1f}")))
    last = len(matrix.stages) - 1
    for number in matrix.scored():
        task = matrix.tasks[number]
        alone = PerformanceMatrix((task,), (task,), {(0, 0): matrix.items[number, last]})
        score = compare({"": {unit: alone}})[""].op
        rows.append((task, result["metrics"].get(task, "–"), estimated(score, "{:.1f}")))
    return rows
