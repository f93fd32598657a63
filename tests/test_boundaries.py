"""Rules about the code itself: imports, what must not occur, and how much of it there may be."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "forever").rglob("*.py"))
OUTSIDE = [*sorted((ROOT / "scripts").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
CODE = [*LIBRARY, *OUTSIDE]
NO_LAUNCHER = [path for path in LIBRARY if "launch" not in path.parts]
LAUNCHERS = {"ray", "mlflow"}
HEAVY = {"torch", "transformers", "optuna", *LAUNCHERS}
# What a user may leave out; modules made of it are loaded when they are needed.
EXTRAS = {"ray", "mlflow", "optuna", "matplotlib", "jinja2", "scipy"}
EXTRAS |= {"pandas", "sklearn", "peft", "datasets", "gguf"}
PICKLES = {"pickle", "dill", "cloudpickle", "joblib"}
RUNS_CODE = "TID251,S102,S301,S307,S602,S604"  # rules of ruff
LOADED_LATE = ("forever/cli/", "forever/launch/")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE |= {tokenize.ENCODING, tokenize.ENDMARKER}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


MODULES = {module_of(path): path for path in CODE}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in CODE:
        for node in ast.walk(tree(path)):
            if isinstance(node, FUNCTIONS):
                yield path, node


def imported(node: ast.AST) -> Iterator[str]:
    """Names of the modules that a tree imports anywhere, also inside functions."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module:
            for alias in part.names:
                full = f"{part.module}.{alias.name}"
                yield full if full in MODULES else part.module


def imported_at_once(path: Path) -> set[str]:
    """Names of the modules that a file imports when it is loaded, which is outside of functions."""
    late = set[ast.AST]()
    for node in ast.walk(tree(path)):
        if isinstance(node, FUNCTIONS):
            late |= {*ast.walk(node)}
    early = [node for node in ast.walk(tree(path)) if node not in late]
    imports = [node for node in early if isinstance(node, ast.Import | ast.ImportFrom)]
    return {name for node in imports for name in imported(node)}


def reached_from(module: str) -> set[str]:
    """Names of everything that comes with a module of ours."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imported_at_once(MODULES[name]) if name in MODULES else ()
    return reached


def loaded_by(statements: str) -> set[str]:
    """Top-level names of everything that a fresh process has loaded after these statements."""
    code = f"import sys\n{statements}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-W", "error", "-c", code]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()}


# ---- what may import what


def test_library_loads_neither_ray_nor_mlflow() -> None:
    loaded = loaded_by("\n".join(f"import {module_of(path)}" for path in NO_LAUNCHER))
    assert "torch" in loaded
    assert not loaded & {*LAUNCHERS, "optuna"}


@pytest.mark.parametrize(
    "statements",
    [
        "import forever.cli.main",
        "import forever.config.run, forever.config.methods",
        "import forever.sweeps.sweep",
        "import forever.data.benchmarks",
        "from forever.config.run import RunConfig\n"
        "try: RunConfig.parse({'optim': {'lrr': 1}})\nexcept ValueError: pass",
    ],
)
def test_what_refuses_bad_input_loads_quickly(statements: str) -> None:
    """Neither torch nor transformers are loaded, which takes seconds."""
    assert not loaded_by(statements) & HEAVY


def test_only_launchers_import_ray_and_mlflow() -> None:
    for path in (*NO_LAUNCHER, *OUTSIDE):
        assert not {name.split(".")[0] for name in imported(tree(path))} & LAUNCHERS, name_of(path)


def test_only_public_parts_of_ray_are_used() -> None:
    """What begins with an underscore, or lies in such a module, may be gone in the next version."""
    for path in LIBRARY:
        names = {name for name in imported(tree(path)) if name.split(".")[0] == "ray"}
        names |= set(re.findall(r"\bray(?:\.\w+)+", path.read_text("utf-8")))
        private = [name for name in names if any(part[:1] == "_" for part in name.split("."))]
        assert private == [], name_of(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
                assert not [each.name for each in node.names if each.name[0] == "_"], name_of(path)


def test_the_library_does_not_know_what_is_made_with_it() -> None:
    above = {"experiments", "ablations", "benchmarks", "scripts", "tests"}
    for path in LIBRARY:
        assert not {name.split(".")[0] for name in imported(tree(path))} & above, name_of(path)


def test_no_import_circle() -> None:
    graph = {name: imported_at_once(path) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


# From the ground up: a room imports what stands before it, also inside functions.
ROOMS = (
    "errors", "seeding", "scores", "format", "text", "reading", "yaml_file", "files", "stopping",
    "storage", "replay", "config", "data", "models", "world", "evaluation", "stats", "training",
    "methods", "hf", "runs", "sweeps", "report", "launch", "plan", "api", "cli",
)  # fmt: skip


def test_rooms_import_downward_only() -> None:
    upward: list[str] = []
    for module, path in MODULES.items():
        if not module.startswith("forever."):
            continue  # forever/__init__.py names the interface, which is above all rooms
        room = module.split(".")[1]
        for name in imported(tree(path)):
            if name in MODULES and name.startswith("forever."):
                other = name.split(".")[1]
                if ROOMS.index(other) > ROOMS.index(room):
                    upward.append(f"{module} imports {name}")
    assert upward == []


def test_our_own_modules_are_imported_at_the_top() -> None:
    """The command line and the launchers may load torch late, and anything may load an extra so."""
    late: list[str] = []
    for path, function in functions():
        ours = [name for name in imported(function) if name in MODULES]
        if not name_of(path).startswith(LOADED_LATE):
            late += [f"{name_of(path)}: {name}" for name in ours if not with_extra(name)]
    assert late == []


def with_extra(module: str) -> bool:
    return bool({name.split(".")[0] for name in reached_from(module)} & EXTRAS)


# ---- how long


def code_lines(text: str) -> int:
    """Counts the lines that hold code: not the blank ones, comments and docstrings."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines -= {*range(docstring.lineno, (docstring.end_lineno or 0) + 1)}
    return len(lines)


@pytest.mark.parametrize("folder", ["forever", "tests", "scripts"])
def test_the_ratchet(folder: str) -> None:
    """The limits in pyproject.toml are only ever lowered, or raised by an issue that says so."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["forever"]
    files = (ROOT / folder).rglob("*.py")
    total = sum(code_lines(path.read_text(encoding="utf-8")) for path in files)
    assert total <= limits["code_lines"][folder]


def test_what_counts_as_a_line_of_code() -> None:
    text = '"""A docstring."""\n\n# a comment\nx = 1  # another\n'
    text += 'def f():\n    """Doc.\n\n    More.\n    """\n    return (\n        x\n    )\n'
    assert code_lines(text) == 5


def test_file_length() -> None:
    """A file has one subject, and at most 500 lines."""
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in CODE}
    assert [f"{name_of(path)}: {n}" for path, n in lengths.items() if n > 500] == []


def nested(path: Path) -> Iterator[str]:
    """Expressions in expressions of their kind, which have to be unpacked by the eye."""
    for node in ast.walk(tree(path)):
        inside = [*ast.walk(node)][1:]
        if isinstance(node, ast.IfExp) and any(isinstance(part, ast.IfExp) for part in inside):
            yield f"{name_of(path)}:{node.lineno}: a ternary in a ternary"
        comprehensions = [part for part in inside if isinstance(part, COMPREHENSIONS)]
        if isinstance(node, COMPREHENSIONS) and comprehensions:
            loops = [loop for part in (node, *comprehensions) for loop in part.generators]
            if any(loop.ifs for loop in loops):
                yield f"{name_of(path)}:{node.lineno}: nested comprehensions with a condition"


def test_nothing_is_nested() -> None:
    assert [place for path in CODE for place in nested(path)] == []


def test_every_module_says_what_it_is() -> None:
    assert [name_of(path) for path in LIBRARY if not ast.get_docstring(tree(path))] == []


# ---- no code that came as data: ruff bans names (pyproject.toml), here are the rest


def test_ruff_bans_names_that_run_code() -> None:
    calls = ["eval('1')", "torch.load(p)", "torch.save(m, p)", "yaml.load(t)", "os.system('x')"]
    calls += ["os.popen('x')", "run(c, shell=True)", "from pickle import loads", "import joblib"]
    calls += ["exec('1')", "from dill import loads", "import cloudpickle"]
    for call in calls:
        code = f"import os\nimport torch\nimport yaml\n{call}\n"
        told = ruff("--stdin-filename", "x.py", "-", code=code)
        assert "TID251" in told or " S" in told, call
    code = "import yaml\n\nmodel.eval()\nyaml.safe_load('1')\nrun(c, shell=False)\n"
    assert ruff("--stdin-filename", "x.py", "-", code=code) == ""


def test_no_file_of_ours_has_such_a_name() -> None:
    """Whatever a comment allows."""
    assert ruff("--ignore-noqa", "forever", "scripts", "benchmarks", "tests") == ""
    for path in CODE:
        assert not {name.split(".")[0] for name in imported(tree(path))} & PICKLES, name_of(path)


def ruff(*words: str, code: str = "") -> str:
    """What ruff says of names that are banned."""
    options = ["--select", RUNS_CODE, "--output-format", "concise", "--quiet"]
    command = [sys.executable, "-m", "ruff", "check", *options, *words]
    done = subprocess.run(command, input=code, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode < 2, done.stderr
    return done.stdout


def unsafe(module: ast.Module) -> Iterator[int]:
    """Lines with calls that pickle, unpickle, or run a model's own code.

    Unless `from_pretrained` is told not to, transformers asks on stdin whether to run that code.
    """
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        values = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        default = None if name == "from_pretrained" else "False"
        runs_code = values.get("trust_remote_code", default) != "False"
        allows_pickle = values.get("allow_pickle", "False") != "False"
        # Of torch.distributed; PyYAML's `construct_object` makes what a loader allows.
        pickles = name.endswith(("_object", "_object_list")) and name != "construct_object"
        if runs_code or allows_pickle or pickles:
            yield call.lineno


def test_no_code_that_came_as_data() -> None:
    assert {name_of(path): [*unsafe(tree(path))] for path in CODE if [*unsafe(tree(path))]} == {}
    calls = ["A.from_pretrained(n)", "A.from_pretrained(n, trust_remote_code=flag)"]
    calls += ["f(allow_pickle=True)", "dist.all_gather_object(a, b)"]
    for call in calls:
        assert [*unsafe(ast.parse(call))] == [1]
    assert [*unsafe(ast.parse("A.from_pretrained(n, trust_remote_code=False)"))] == []
