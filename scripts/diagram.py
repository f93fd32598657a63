"""A flowchart of Mermaid as a picture: the subset that docs/index.md has, drawn in SVG.

GitHub draws Mermaid itself. The site would have to load a program from elsewhere for it.
Boxes stand in layers, each below all that lead to it; colours are those of the text around.
"""

import re
from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise

_NODE = re.compile(r'^\s*(\w+)\["(.*)"\]$')
_EDGE = re.compile(r"^\s*(\w+(?:\s*(?:&|-->)\s*\w+)+)$")
_WIDTH, _HEIGHT, _GAP, _FALL = 200, 48, 24, 44  # of a box, and between boxes
_STYLE = "font:13px var(--md-text-font-family,sans-serif)"

Edges = list[tuple[str, str]]
Places = dict[str, tuple[float, float]]


def svg(text: str) -> str:
    """The picture of a flowchart; ValueError for what is none, or is said in other words."""
    nodes: dict[str, str] = {}
    edges: Edges = []
    head, *lines = [line for line in text.splitlines() if line.strip()]
    if head.strip() != "flowchart TB":
        raise ValueError(f"only a 'flowchart TB' can be drawn, not {head.strip()!r}")
    for line in lines:
        if node := _NODE.match(line):
            nodes[node[1]] = node[2]
        elif edge := _EDGE.match(line):
            edges += _edges(edge[1])
        else:
            raise ValueError(f"a flowchart's line that cannot be drawn: {line.strip()!r}")
    layers = _layers(nodes, edges)
    wide = max(len(layer) for layer in layers)
    width = wide * (_WIDTH + _GAP) - _GAP
    height = len(layers) * (_HEIGHT + _FALL) - _FALL
    places: Places = {}
    for number, layer in enumerate(layers):
        left = (width - len(layer) * (_WIDTH + _GAP) + _GAP) / 2
        for place, name in enumerate(layer):
            places[name] = (left + place * (_WIDTH + _GAP), number * (_HEIGHT + _FALL))
    shapes = [*_arrows(edges, places), *_boxes(nodes, places)]
    box = f'viewBox="-2 -2 {width + 4} {height + 4}" role="img" style="max-width:{width}px"'
    return f'<svg class="diagram" xmlns="http://www.w3.org/2000/svg" {box}>{"".join(shapes)}</svg>'


def _edges(text: str) -> Edges:
    """The edges of a line such as `a --> b & c --> d`."""
    groups = [re.split(r"\s*&\s*", part.strip()) for part in text.split("-->")]
    edges: Edges = []
    for sources, targets in pairwise(groups):
        for source in sources:
            edges += [(source, target) for target in targets]
    return edges


def _layers(nodes: Mapping[str, str], edges: Edges) -> list[list[str]]:
    """The nodes by their longest way from the top."""
    depth = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for source, target in edges:
            depth[target] = max(depth[target], depth[source] + 1)
    if max(depth.values()) >= len(nodes):
        raise ValueError("a flowchart that goes round in a circle cannot be drawn")
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, level in depth.items():
        layers[level].append(name)
    return layers


def _arrows(edges: Edges, places: Places) -> Iterator[str]:
    for source, target in edges:
        (x, y), (to_x, to_y) = places[source], places[target]
        x, to_x, y = x + _WIDTH / 2, to_x + _WIDTH / 2, y + _HEIGHT
        bend = (to_y - y) / 2
        path = f"M{x:g} {y:g}C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y - 5:g}"
        yield f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".45"/>'
        tip = f"M{to_x - 4:g} {to_y - 7:g}L{to_x:g} {to_y:g}L{to_x + 4:g} {to_y - 7:g}z"
        yield f'<path d="{tip}" fill="currentColor" fill-opacity=".6"/>'


def _boxes(nodes: Mapping[str, str], places: Places) -> Iterator[str]:
    """A box has its name, and below it what follows the colon."""
    background = "var(--md-default-bg-color,white)"
    for name, text in nodes.items():
        x, y = places[name]
        head, _, rest = text.partition(": ")
        size = f'width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
        yield f'<rect x="{x:g}" y="{y:g}" {size} fill="{background}" stroke="currentColor"/>'
        place = f'x="{x + _WIDTH / 2:g}" text-anchor="middle" fill="currentColor"'
        bold, small = f"{_STYLE};font-weight:bold", f"{_STYLE};font-size:11px"
        yield f'<text y="{y + 20:g}" {place} style="{bold}">{escape(head)}</text>'
        yield f'<text y="{y + 38:g}" {place} style="{small}">{escape(rest)}</text>'
