"""Checks the installed packages against known security holes, without a network.

    python -m scripts.audit
    python -m scripts.audit --refresh CLONE

scripts/advisories.json holds which versions of which package have a hole, and which packages were
looked up; others are named, since nothing is known of them. The second command writes it again, for
the packages of constraints.txt, from a clone of github.com/pypa/advisory-database; what was entered
by hand stays. Exits with 1 if a hole is found that is not in `ACCEPTED`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

ADVISORIES = Path(__file__).with_name("advisories.json")
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
# Holes that stay, and why they are none here.
ACCEPTED: dict[str, str] = {}

Advisory = Mapping[str, Any]


def main(
    refresh: Annotated[Path | None, typer.Option(help="Clone of the advisory database.")] = None,
) -> None:
    """Print the holes of the installed packages, and how old that knowledge is."""
    if refresh is not None:
        ADVISORIES.write_text(json.dumps(refreshed(refresh), indent=1) + "\n", encoding="utf-8")
    known = json.loads(ADVISORIES.read_text(encoding="utf-8"))
    installed: dict[str, str] = {}
    for package in distributions():
        installed[canonicalize_name(package.name)] = package.version
    open_holes = 0
    for advisory in holes(known["advisories"], installed):
        reason = ACCEPTED.get(advisory["id"])
        open_holes += reason is None
        name = advisory["package"]
        print(f"{name} {installed[name]}: {advisory['id']}: {reason or 'update it'}")
    if unknown := sorted(installed.keys() - {*known["packages"]}):
        print(f"{len(unknown)} packages were never looked up (--refresh): {', '.join(unknown)}")
    by_hand = sum("source" in advisory for advisory in known["advisories"])
    print(
        f"{len(installed)} packages, {len(known['advisories']) - by_hand} advisories of the "
        f"database until {known['until']}, {by_hand} entered by hand: {open_holes} holes"
    )
    raise typer.Exit(open_holes > 0)


def holes(advisories: list[Advisory], installed: Mapping[str, str]) -> Iterator[Advisory]:
    """Yield the advisories that concern an installed version."""
    for advisory in advisories:
        version = installed.get(advisory["package"])
        if version is not None and is_affected(Version(version), advisory["ranges"]):
            yield advisory


def is_affected(version: Version, ranges: list[list[str | None]]) -> bool:
    """Whether a version lies in one of the ranges `[first affected, first that is not]`; None in
    the place of the second: none is mended yet."""
    for first, mended in ranges:
        if version >= Version(first or "0") and (mended is None or version < Version(mended)):
            return True
    return False


def refreshed(clone: Path) -> dict[str, Any]:
    """The content of advisories.json by the advisory database and what was entered by hand."""
    by_hand: list[Any] = []
    if ADVISORIES.is_file():
        old = json.loads(ADVISORIES.read_text(encoding="utf-8"))
        by_hand = [advisory for advisory in old["advisories"] if "source" in advisory]
    read = [*_read(clone)]
    known = {alias for advisory in read for alias in [advisory["id"], *advisory["aliases"]]}
    advisories = read + [advisory for advisory in by_hand if advisory["id"] not in known]
    until = max(advisory["published"] for advisory in read)
    advisories.sort(key=lambda advisory: (advisory["package"], advisory["id"]))
    return {"until": until, "packages": _pinned(), "advisories": advisories}


def _pinned() -> list[str]:
    """The packages of constraints.txt."""
    names = re.findall(r"^([\w.-]+)==", CONSTRAINTS.read_text(encoding="utf-8"), re.M)
    return sorted(map(canonicalize_name, names))


def _read(clone: Path) -> Iterator[dict[str, Any]]:
    for package in _pinned():
        for path in sorted((clone / "vulns" / package).glob("*.yaml")):
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
            if "withdrawn" not in content:
                yield {
                    "package": package,
                    "id": content["id"],
                    "aliases": content.get("aliases", []),
                    "published": str(content.get("published") or content["modified"])[:10],
                    "ranges": [*_ranges(content)],
                }


def _ranges(content: Mapping[str, Any]) -> Iterator[list[str | None]]:
    for affected in content["affected"]:
        for kind in affected.get("ranges", []):
            if kind["type"] == "ECOSYSTEM":
                yield from _between(kind["events"])


def _between(events: list[Mapping[str, str]]) -> Iterator[list[str | None]]:
    first: str | None = None
    for event in events:
        first = event.get("introduced", first)
        if "fixed" in event:
            yield [first, event["fixed"]]
            first = None
    if first is not None:
        yield [first, None]


if __name__ == "__main__":
    typer.run(main)
