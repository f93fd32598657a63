"""A figure inside of a page: in the colours of its scheme, with ids of its own, and with variants
that the page's script finds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from forever.report.figures import style
from forever.report.figures.style import Picture
from forever.text import visible

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# The page's custom properties (templates/page.css) by the colours that figures are drawn in.
_COLOURS = {
    "#000000": "ink", "#ffffff": "paper", style.INK: "ink", style.GREY: "soft",
    style.ACCENT: "accent", style.GRID: "grid", style.GROUND["color"]: "ground",
    "#EE7733": "replay", "#009988": "consolidation", "#88AACC": "move",
    **{colour: f"line{n}" for n, colour in enumerate(style.PALETTE)},
}  # fmt: skip
_VARIABLES = {colour.lower(): f"var(--{name})" for colour, name in _COLOURS.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_LONG = re.compile(r"-?\d+\.\d{3,}")  # a number that is exacter than a screen
_DOT = re.compile(r"M 0 ([\d.]+)\s+C")  # a circle around zero, by its radius
_TARGETS = {f"{{{_SVG}}}path", f"{{{_SVG}}}clipPath"}  # what others refer to
_MANY = 60  # dots of one line, from where they are drawn as one path


def inline(picture: Picture, names: Mapping[str, str]) -> str:
    """The figure as an element of a page.

    Args:
        names: of variants by their marks (forever.report.format.mark), shown on hovering.
    """
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(picture.svg)
    for element in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(element)
    points = float(root.attrib.pop("width").removesuffix("pt"))
    del root.attrib["height"]
    root.attrib |= {"role": "img", "aria-label": visible(picture.caption)}
    root.attrib["style"] = f"width:{points * 96 / 72:.0f}px"
    radii: dict[str, float] = {}
    for path in root.iter(f"{{{_SVG}}}path"):
        if (dot := _DOT.match(path.get("d", ""))) and "id" in path.attrib:
            radii[f"#{path.attrib['id']}"] = float(dot[1])
    for group in list(root.iter(f"{{{_SVG}}}g")):
        _join_dots(group, radii)
    _rename(root, picture.name, names)
    return ElementTree.tostring(root, encoding="unicode")


def _join_dots(group: ElementTree.Element, radii: Mapping[str, float]) -> None:
    """Draw many equal dots as one path, which is a tenth of the text."""
    dots = group.findall(f"{{{_SVG}}}use")
    kinds = {(dot.get(f"{{{_XLINK}}}href", ""), dot.get("style", "")) for dot in dots}
    if len(dots) < _MANY or len(kinds) != 1:
        return
    ((href, look),) = kinds
    if href not in radii:
        return
    # Those that a screen cannot tell apart are one.
    places = dict.fromkeys(
        f"M{float(d.get('x', 0)):.1f} {float(d.get('y', 0)):.1f}h0" for d in dots
    )
    for dot in dots:
        group.remove(dot)
    colour = _COLOUR.search(look)
    line = f"fill:none;stroke-linecap:round;stroke-width:{2 * radii[href]:.2f}"
    line += f";stroke:{colour[0] if colour else style.INK.lower()}"
    ElementTree.SubElement(group, f"{{{_SVG}}}path", {"d": "".join(places), "style": line})


def _rename(root: ElementTree.Element, name: str, names: Mapping[str, str]) -> None:
    """Give what is referred to an id that is the figure's alone, and variants their marks."""
    for element in list(root.iter()):
        for key, value in list(element.attrib.items()):
            if key == "id":
                del element.attrib["id"]
                if value in names:
                    element.attrib |= {"class": "variant", "data-variant": value}
                    title = ElementTree.Element(f"{{{_SVG}}}title")
                    title.text = visible(names[value])
                    element.insert(0, title)
                elif element.tag in _TARGETS:
                    element.set("id", f"{name}-{value}")
            elif key == f"{{{_XLINK}}}href":
                del element.attrib[key]
                element.set("href", f"#{name}-{value[1:]}")
            elif key == "clip-path":
                element.set(key, value.replace("url(#", f"url(#{name}-"))
            elif key not in ("aria-label", "data-variant"):
                element.set(key, _LONG.sub(_short, _COLOUR.sub(_variable, value)))


def _variable(colour: re.Match[str]) -> str:
    return _VARIABLES.get(colour[0], colour[0])


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"
