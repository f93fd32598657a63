"""Write docs/reference/: verbs, keys of a configuration, fields of a run's files, and the Python
interface, each from the code itself: `python -m scripts.reference`."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from forever import api
from forever.cli.main import app
from forever.config.parts import DatasetConfig, Part, RunParts
from forever.launch.local import Placement
from forever.training.events import LossEvent, ReplayEvent
from scripts.fields import RESULT, STEP
from scripts.markdown import allowed, head, row, text

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_WRITTEN = "<!-- written by scripts/reference.py -->\n\n"
_KINDS: dict[Any, str] = {int: "NUMBER", float: "NUMBER", Path: "PATH"}
_MARKUP = re.compile(r"\\(?=\[)")  # which rich needs


def pages() -> dict[str, str]:
    """All pages by the names of their files."""
    return {
        "commands.md": commands(),
        "configuration.md": configuration(),
        "files.md": files(),
        "python.md": python(),
    }


# ---- verbs


def commands() -> str:
    """Each verb with its arguments and options."""
    page = "# All options\n\n" + _WRITTEN
    page += (
        "What `forever VERB --help` says. The pages of the verbs, such as [run](../verbs/run.md), "
        "explain them with examples.\n"
    )
    for name, command in _verbs(typer.main.get_command(app)):
        page += f"\n## forever {name}\n\n{text(command.help)}\n\n"
        rows = [_parameter(parameter) for parameter in command.params]
        shown = [cells for cells in rows if cells]
        if shown:
            page += head(["argument or option", "default", "what it says"])
            page += "".join(map(row, shown))
    return page


def _verbs(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The verbs in their order, those of a group by both names."""
    for name, part in command.commands.items():
        if hasattr(part, "commands"):
            yield from _verbs(part, f"{above}{name} ")
        else:
            yield above + name, part


def _parameter(parameter: Any) -> list[str]:
    """The cells of an argument or an option; none for those that are not shown."""
    if parameter.hidden or parameter.name == "help":
        return []
    about = _MARKUP.sub("", text(parameter.help))
    if parameter.min is not None:
        about += f" At least {parameter.min:g}."
    optional = parameter.default in (None, False, ()) or callable(parameter.default)
    default = "" if optional or parameter.default is ... else f"`{parameter.default}`"
    if not parameter.opts[0].startswith("-"):
        dots = "..." if parameter.nargs == -1 else ""
        return [f"`{text(parameter.metavar or parameter.name.upper())}{dots}`", default, about]
    name = ", ".join(parameter.opts)
    if not parameter.is_flag:
        kind = parameter.type_descriptor.annotation
        name += f" {text(parameter.metavar or _KINDS.get(kind, 'TEXT'))}"
    return [f"`{name}`", default, about]


# ---- keys


def configuration() -> str:
    """Each key of a configuration but those of methods."""
    page = "# Configuration\n\n" + _WRITTEN
    page += (
        "The keys of a run's YAML file, as they are given on the command line: "
        "`forever run mini/forever optim.lr=1e-3`. Defaults are the paper's implementation details "
        "unless the line says otherwise ([the protocol](../protocol.md)). The keys of methods, "
        "`method.name` and what it has, are in [methods](../methods.md).\n"
    )
    for name, field in RunParts.model_fields.items():
        part = field.annotation
        if not (isinstance(part, type) and issubclass(part, Part)):
            page += f"\n## {name}\n\n" + _keys(RunParts, "", only=name)
            continue
        page += f"\n## {name}\n\n"
        # Of a class without words of its own, inspect gives the base's.
        page += f"{text(part.__doc__)}\n\n" if part.__doc__ else ""
        page += _keys(part, f"{name}.")
        if name == "data":
            page += "\nA task in `data.datasets`:\n\n" + _keys(DatasetConfig, "data.datasets.TASK.")
    return page


def _keys(part: type[BaseModel], prefix: str, only: str = "") -> str:
    """A table of a class's fields, those of a part in it in its place."""
    return head(["key", "default", "allowed", "what it is"]) + "".join(_rows(part, prefix, only))


def _rows(part: type[BaseModel], prefix: str, only: str) -> Iterator[str]:
    schema = part.model_json_schema()
    for name, field in part.model_fields.items():
        inner = field.annotation
        if only and name != only:
            continue
        if isinstance(inner, type) and issubclass(inner, Part):
            yield from _rows(inner, f"{prefix}{name}.", "")
            continue
        told = schema["properties"][name]
        default = "needed" if field.is_required() else f"`{_plain(told.get('default'))}`"
        about = text(field.description)
        yield row([f"`{prefix}{name}`", default, text(allowed(told)), about])


def _plain(value: Any) -> str:
    """A default as YAML says it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) or '""'


# ---- files


def files() -> str:
    """The fields of result.json and of the journal's lines."""
    page = "# Files of a run\n\n" + _WRITTEN
    page += (
        "What [a run's directory](../verbs/run.md#a-run-directory) holds, for programs that read "
        "it. Percent and points are of 100; norms are Euclidean.\n"
    )
    page += "\n## result.json\n\n" + _fields(RESULT)
    page += (
        "\n## steps.jsonl\n\nA line an update. Methods may add readings of their own.\n\n"
        + _fields(STEP)
    )
    events = ReplayEvent, LossEvent
    for event in events:
        page += f"\n## events.jsonl: {event.__name__}\n\n{text(event.__doc__)}\n\n"
        page += _fields(commented(event))
    return page


def _fields(fields: dict[str, str]) -> str:
    rows = [row([f"`{name}`", text(about)]) for name, about in fields.items()]
    return head(["field", "what it is"]) + "".join(rows)


def commented(kind: type[Any]) -> dict[str, str]:
    """The fields of a dataclass with the comments behind them or above them."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if comment := re.match(r"\s+# (.*)", line):
            above.append(comment[1])
        elif field := re.match(r"    (\w+): ([^=#]+?)(?: = [^#]+?)?(?:  # (.*))?$", line):
            values = re.match(r"Literal\[(.*)\]", field[2])
            choices = values[1].replace('"', "`") if values else ""
            found[field[1]] = field[3] or " ".join(above) or choices
            above = []
    return found


# ---- Python


def python() -> str:
    """The functions of the interface, and what they return."""
    page = "# Python\n\n" + _WRITTEN
    page += "`import forever` loads nothing else; [the notebook](../notebook.ipynb) shows it all.\n"
    for function in (api.run, api.sweep, api.load):
        page += f"\n## forever.{function.__name__}\n\n{_function(function)}"
    for kind in (api.RunResult, api.SweepResult):
        page += f"\n## forever.{kind.__name__}\n\n{text(kind.__doc__)}\n\n"
        page += head(["attribute", "type", "what it is"])
        page += "".join(row(cells) for cells in _attributes(kind))
    page += f"\n## forever.Placement\n\n{_paragraphs(inspect.getdoc(Placement) or '')}\n"
    page += head(["field", "default", "what it is"])
    about = commented(Placement)
    for field in dataclasses.fields(Placement):
        page += row([f"`{field.name}`", f"`{field.default!r}`", text(about[field.name])])
    return page


def _function(function: Callable[..., Any]) -> str:
    """A signature, and what its docstring says."""
    signature = inspect.signature(function)
    parameters: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        default = " = Placement()" if parameter.default == Placement() else default
        parameters.append(f"{parameter.name}: {parameter.annotation}{default}")
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    code = (
        f"```python\nforever.{function.__name__}(\n{lines}) -> {signature.return_annotation}\n```"
    )
    return f"{code}\n\n{_paragraphs(inspect.getdoc(function) or '')}"


def _paragraphs(docstring: str) -> str:
    """A docstring with its sections as lists."""
    body, *sections = re.split(r"^(\w+):\n", docstring, flags=re.M)
    page = text(body) + "\n"
    for title, content in zip(sections[::2], sections[1::2], strict=True):
        page += f"\n{title}:\n\n"
        for item in re.split(r"\n(?=    \S)", content.rstrip()):
            name, colon, about = text(item).partition(": ")
            page += f"- `{name}`: {about}\n" if colon else f"- {name}\n"
    return page


def _attributes(kind: type[Any]) -> Iterator[list[str]]:
    """The properties and methods of a class."""
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        call = "" if isinstance(member, property) else "()"
        returned = inspect.signature(function).return_annotation
        yield [f"`{name}{call}`", f"`{text(returned)}`", text(inspect.getdoc(function))]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in pages().items():
        FOLDER.joinpath(name).write_text(page, encoding="utf-8")
        print(FOLDER / name)
