"""Rules about the code itself: what may import what, what must not occur, and how long a file may
be."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "forever").rglob("*.py"))
OUTSIDE = [
    p
    for folder in ("experiments", "ablations", "benchmarks", "scripts")
    for p in sorted((ROOT / folder).rglob("*.py"))
]
CORE = [p for p in LIBRARY if "launch" not in p.parts]
LAUNCHERS = {"ray", "mlflow", "optuna"}


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def loaded_by(imports: str) -> set[str]:
    """Top-level names of everything that a fresh process has loaded after these imports."""
    code = f"import sys\n{imports}\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return {*found.stdout.split()}


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Names of modules that a file imports anywhere, also inside functions."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_library_loads_neither_ray_nor_mlflow() -> None:
    loaded = loaded_by("\n".join(f"import {module(p)}" for p in CORE))
    assert "torch" in loaded
    assert not loaded & LAUNCHERS


def test_package_and_command_line_load_quickly() -> None:
    """What is needed to refuse bad input loads no torch (seconds) and no transformers."""
    for name in (
        "forever",
        "forever.config.run",
        "forever.sweeps.sweep",
        "forever.methods.registry",
        "forever.data.benchmarks",
    ):
        assert not loaded_by(f"import {name}") & {"torch", "transformers", *LAUNCHERS}, name
    bad = "from forever.config.run import RunConfig\ntry: RunConfig.parse({'optim': {'lrr': 1}})\nexcept ValueError: pass"
    assert not loaded_by(bad) & {"torch", "transformers", *LAUNCHERS}


def test_only_launchers_import_ray_and_mlflow() -> None:
    offenders = [
        (names(p), n)
        for p in [*CORE, *OUTSIDE]
        for n in imported(p)
        if n.split(".")[0] in LAUNCHERS
    ]
    assert offenders == []
    used = {n.split(".")[0] for p in LIBRARY if "launch" in p.parts for n in imported(p)}
    assert used >= LAUNCHERS  # the scan sees them where they are


def test_the_library_does_not_know_what_is_made_with_it() -> None:
    """The command line and the launchers may look up named runs and figures; nothing else may."""
    above = {"experiments", "ablations", "benchmarks", "scripts", "tests"}
    core = [p for p in CORE if p.name != "cli.py"]
    offenders = [(names(p), n) for p in core for n in imported(p) if n.split(".")[0] in above]
    assert offenders == []


FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec"}


def problems(path: Path) -> Iterator[str]:
    """Ways to run code that came as data."""
    for name in imported(path):
        if name.split(".")[0] in FORBIDDEN_IMPORTS:
            yield f"imports {name}"
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
            yield f"line {node.lineno}: {called.id}"
        if isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            full = f"{owner}.{called.attr}"
            if full in (
                "torch.load",
                "torch.save",
                "os.system",
                "os.popen",
                "yaml.load",
                "yaml.unsafe_load",
                "yaml.full_load",
            ):
                yield f"line {node.lineno}: {full}"
            if called.attr.endswith("_object") or called.attr.endswith("_object_list"):
                yield f"line {node.lineno}: {full} pickles"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and value is not False:
                yield f"line {node.lineno}: {keyword.arg}"


def test_no_code_that_came_as_data() -> None:
    assert {names(p): list(problems(p)) for p in [*LIBRARY, *OUTSIDE] if list(problems(p))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "f(shell=True)",
        "x.from_pretrained(n, trust_remote_code=True)",
        "torch.load(p)",
        "yaml.load(t)",
        "dist.all_gather_object(a, b)",
        "os.system('x')",
        "np.load(f, allow_pickle=flag)",
    ],
)
def test_the_scan_finds(code: str, tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(code, encoding="utf-8")
    assert list(problems(path))


def test_the_scan_lets_through(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "model.eval()\nsubprocess.run(c, shell=False)\nyaml.safe_load(t)\n'pickle'",
        encoding="utf-8",
    )
    assert list(problems(path)) == []


@pytest.mark.parametrize("path", [pytest.param(p, id=names(p)) for p in LIBRARY])
def test_file_length(path: Path) -> None:
    limit = 150 if path.parent.name == "methods" else 300
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit


def test_function_length() -> None:
    """At most 60 lines (style guide), docstring included."""
    long = [
        f"{names(p)}: {node.name}"
        for p in LIBRARY
        for node in ast.walk(tree(p))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


def test_every_module_says_what_it_is() -> None:
    assert [names(p) for p in LIBRARY if not ast.get_docstring(tree(p))] == []


def test_every_decision_that_a_comment_names_is_in_the_protocol() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    decided = set(re.findall(r"^\| (A\d+) \|", protocol, flags=re.MULTILINE))
    for path in (*LIBRARY, *OUTSIDE):
        for name in re.findall(r"\bA\d{1,2}\b", path.read_text(encoding="utf-8")):
            assert name in decided, (
                f"{names(path)} names {name}, which docs/protocol.md does not decide"
            )


def test_every_file_that_the_readme_names_exists() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert link.startswith("http") or (ROOT / link).exists(), f"{page} points to {link}"


def loads_that_may_run_code(path: Path) -> list[str]:
    """Calls of `from_pretrained` that leave it to transformers whether code of the model is run."""
    offenders = []
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "from_pretrained":
            continue
        said = [keyword.value for keyword in node.keywords if keyword.arg == "trust_remote_code"]
        if not said or not isinstance(said[0], ast.Constant) or said[0].value is not False:
            offenders.append(f"{path.name}, line {node.lineno}")
    return offenders


def test_every_load_of_a_model_says_that_no_code_is_run(tmp_path: Path) -> None:
    """Unset, transformers asks on stdin whether to run it."""
    assert [place for path in [*LIBRARY, *OUTSIDE] for place in loads_that_may_run_code(path)] == []
    sample = tmp_path / "x.py"
    lines = ["A.from_pretrained(n)", "A.from_pretrained(n, trust_remote_code=False)"]
    sample.write_text("\n".join(lines), encoding="utf-8")
    assert loads_that_may_run_code(sample) == ["x.py, line 1"]
