"""README.md and docs/ hold: commands and options exist, YAML is accepted, links lead somewhere.

A command after `<!-- run -->` is run, too, at a tiny size.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from forever.cli.main import app
from forever.config.overrides import dotted_keys
from forever.config.run import RunConfig

ROOT = Path(__file__).parents[2]
CODE = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
VERBS = sorted((ROOT / "docs" / "verbs").glob("*.md"))
TINY = ["optim.epochs=1", "data.train_rows=8", "data.test_rows=4", "evaluation.max_new_tokens=4"]
each_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES]
)


def blocks(page: Path, language: str) -> Iterator[tuple[str, bool]]:
    """The fenced blocks of a language, each with whether it is marked to be run."""
    text = page.read_text(encoding="utf-8")
    fence = re.compile(r"(<!-- run -->\n)?^```(\w*)\n(.*?)^```", re.M | re.S)
    for mark, name, block in fence.findall(text):
        if name == language:
            yield block, bool(mark)


def commands(page: Path, marked_only: bool = False) -> Iterator[list[str]]:
    """The words of each `forever` command on a page."""
    for block, marked in [*blocks(page, "sh"), *blocks(page, "")]:
        for line in block.splitlines():
            command = re.match(r"(?:.* -- )?forever (.*)", line)
            if command and (marked or not marked_only):
                yield shlex.split(command[1], comments=True)


def verb(words: list[str]) -> tuple[Any, list[str]]:
    """The command of click that is meant, and its arguments."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    return command, words


@each_page
def test_every_command_is_understood(page: Path) -> None:
    for words in commands(page):
        command, arguments = verb(words)
        parsed = command.make_context(words[0], [*arguments]).params
        for change in parsed.get("changes") or []:
            assert change.partition("=")[0] in dotted_keys(RunConfig), change


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in VERBS])
def test_every_option_on_the_page_of_a_verb_exists(page: Path) -> None:
    command, _ = verb([page.stem, "check"] if page.stem == "data" else [page.stem])
    options = {option for parameter in command.params for option in parameter.opts}
    table = re.findall(r"^\| (`--.*?) \|", page.read_text(encoding="utf-8"), re.M)
    assert {*re.findall(r"--[a-z-]+", "".join(table))} <= options


def test_every_verb_has_a_page() -> None:
    command: Any = typer.main.get_command(app)
    assert {page.stem for page in VERBS} == {*command.commands}


MARKED = [words for page in PAGES for words in commands(page, marked_only=True)]


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in MARKED])
def test_what_is_marked_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = [*TINY, "--mlflow", "off"] if words[0] == "run" else []
    done = CliRunner().invoke(app, [*words, *tiny])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.ray
def test_the_tutorial_is_followed(tmp_path: Path) -> None:
    """From the tasks of one's own to the report: its script, files and commands, at a tiny size."""
    pytest.importorskip("ray")
    page = ROOT / "docs" / "tutorial.md"
    (script,) = (block for block, _ in blocks(page, "python"))
    for name, (block, _) in zip(("my.yaml", "days.yaml"), blocks(page, "yaml"), strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    words = list(commands(page))
    own = words[words.index(["data", "check", "data"]) :]
    own[-2][-1] = "0"  # instead of three seeds
    assert [command[0] for command in own] == [
        "data",
        "data",
        "plan",
        "run",
        "run",
        "sweep",
        "report",
    ]
    forever = [sys.executable, "-m", "forever.cli.start"]
    for command in [[sys.executable, "-c", script], *([*forever, *command] for command in own)]:
        tiny = [*TINY, "--mlflow", "off"] if {"run", "sweep"} & {*command} else []
        done = subprocess.run([*command, *tiny], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "days" / "report.html").is_file()
    assert "at the end" in done.stdout


FILES = [block for page in PAGES for block, _ in blocks(page, "yaml")]


@pytest.mark.parametrize("block", FILES)
def test_every_file_on_a_page_is_accepted(block: str, tmp_path: Path) -> None:
    from forever.sweeps.files import load_sweep

    values = yaml.safe_load(block)
    if "variants" in values:
        path = tmp_path / "page.yaml"
        path.write_text(block, encoding="utf-8")
        assert load_sweep(str(path)).expand(RunConfig.parse({}))
    else:
        assert RunConfig.parse(values)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        place = page.parent / target if target else page
        if not link.startswith("http"):
            assert place.exists(), link
            # Behind a picture it says for which theme it is, and no more.
            if anchor and place.suffix == ".md":
                assert anchor in anchors(place), link


def test_every_decision_that_the_code_names_is_in_the_protocol() -> None:
    """By an anchor with a name, not by the number of a list."""
    protocol = anchors(ROOT / "docs" / "protocol.md")
    for path in [*CODE, *PAGES]:
        text = path.read_text(encoding="utf-8")
        assert {*re.findall(r"protocol\.md#([\w-]+)", text)} <= protocol, path
        assert not re.findall(r"\(A\d{1,2}\b|\bA\d{1,2}(?:,| and| to) A\d|md, A\d", text), path
