"""Known security holes: what is installed, and what pyproject.toml allows, has none."""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from scripts import audit

ADVISORIES = json.loads(audit.ADVISORIES.read_text(encoding="utf-8"))["advisories"]
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def versions_of(lines: list[str]) -> dict[str, str]:
    """The lowest version by package that requirements name; those without one are left out."""
    found: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        for bound in requirement.specifier:
            if bound.operator in (">=", "=="):
                found[requirement.name.lower()] = bound.version
    return found


def test_neither_what_ci_installs_nor_the_oldest_that_is_allowed_has_a_hole() -> None:
    pinned = audit.CONSTRAINTS.read_text(encoding="utf-8")
    lines = [line for line in pinned.splitlines() if re.match(r"[\w.-]+==", line)]
    assert len(lines) > 100
    assert [*audit.holes(ADVISORIES, versions_of(lines))] == []
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    allowed = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        allowed += extra
    assert [*audit.holes(ADVISORIES, versions_of(allowed))] == []


def test_a_hole_is_found() -> None:
    """By which a model's configuration runs code; the version after it has none."""
    found = audit.holes(ADVISORIES, {"transformers": "5.2.0", "numpy": "2.4.6"})
    assert [advisory["id"] for advisory in found] == ["CVE-2026-4372"]
    assert [*audit.holes(ADVISORIES, {"transformers": "5.3.0"})] == []


def test_a_package_that_was_never_looked_up_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That it has no known hole says nothing."""
    packages = [SimpleNamespace(name=name, version="9999") for name in ("numpy", "No_Such")]
    monkeypatch.setattr(audit, "distributions", lambda: packages)
    with pytest.raises(typer.Exit) as ended:
        audit.main(refresh=None)
    assert ended.value.exit_code == 0
    told = capsys.readouterr().out
    assert "1 packages were never looked up (--refresh): no-such\n2 packages, " in told


@pytest.mark.parametrize(
    ("version", "affected"), [("0.9", False), ("1.0", True), ("1.5rc1", True), ("1.5", False)]
)
def test_first_version_counts_and_the_mended_one_does_not(version: str, affected: bool) -> None:
    assert audit.is_affected(Version(version), [["1.0", "1.5"]]) is affected
    assert audit.is_affected(Version(version), [["1.0", None]]) is (version != "0.9")


def test_the_database_is_read(tmp_path: Path) -> None:
    """Ranges of an entry, one after the other; withdrawn ones and other packages are left out."""
    events = [{"introduced": "0"}, {"fixed": "1.1"}, {"introduced": "2.0"}]
    ranges = [{"type": "ECOSYSTEM", "events": events}, {"type": "GIT", "events": []}]
    entry = {"id": "A-1", "published": "2099-01-02T03:04:05Z", "affected": [{"ranges": ranges}]}
    for name, content in (
        ("numpy/A-1", entry),
        ("numpy/A-2", entry | {"id": "A-2", "withdrawn": "2026-01-01"}),
        ("nosuch/A-3", entry | {"id": "A-3"}),
    ):
        path = tmp_path / "vulns" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
    read = audit.refreshed(tmp_path)
    assert read["until"] == "2099-01-02"
    own = [advisory for advisory in read["advisories"] if "source" not in advisory]
    assert [advisory["id"] for advisory in own] == ["A-1"]
    assert "numpy" in read["packages"]
    assert "nosuch" not in read["packages"]
    assert own[0]["ranges"] == [["0", "1.1"], ["2.0", None]]
    assert len(read["advisories"]) == 11  # those entered by hand stay
