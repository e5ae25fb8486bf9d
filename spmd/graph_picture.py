"""The operation graph of an image as a picture (SVG): boxes in columns, a column for each stream.

In: regions of boxes. Out: the text of an SVG file, which browsers open; a box says more where a
pointer rests on it.
Always holds: a box stands below all that it waits for; nothing in the file is a script.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from spmd.graph_boxes import GraphBox, GraphRegion, line_text, touched_text

WIDTH, LINE, PAD, GAP = 250, 14, 6, 22  # of a box, of a line of text, inside and between boxes
LOW = 3 * LINE + 2 * PAD  # a box without regions
LETTERS = 35  # of a line of text
HEAD = 2 * LINE + PAD  # what a box with regions says of itself
COLOURS = {"nest": "#dbeafe", "library": "#dcfce7", "exchange": "#fed7aa", "kernel": "#e9d5ff",
           "loop": "#f8fafc", "branch": "#f8fafc", "entries": "#f8fafc", "default": "#f1f5f9"}
OTHERS = "#fef9c3"  # what a user sees, and feeds
LEGEND = (("nest", "loops that compute"), ("library", "a routine of a library"),
          ("kernel", "a kernel"), ("exchange", "ranks exchange"), ("print", "seen outside"))
STYLE = ("text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#0f172a}"
         ".head{font-weight:bold}.dim{fill:#64748b}.edge{fill:none;stroke:#94a3b8}"
         ".many{stroke-opacity:.4}.box{stroke:#64748b}.exchange{stroke:#c2410c;stroke-width:2.5}")


@dataclass
class _Placed:
    """A box with its position and size in its region, in pixels."""

    box: GraphBox
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def fall(self, placed: list[_Placed]) -> float:
        """Move down until it covers no placed box; return where it then is. placed: boxes in the
        order of their lower edges."""
        for p in placed[bisect_left(placed, self.y - GAP, key=_bottom):]:
            beside = p.right + GAP <= self.x or self.right + GAP <= p.x
            if not beside and self.y < p.bottom + GAP and p.y < self.bottom + GAP:
                self.y = p.bottom + GAP
        return self.y

    def toward(self, other: _Placed) -> float:
        """Return where, along its edge, a line to or from another box begins."""
        middle = other.x + min(other.width, WIDTH) / 2
        half = min(self.width, WIDTH) / 2
        return min(max(middle, self.x + half), self.right - half)


def _bottom(placed: _Placed) -> float:
    return placed.bottom


def picture(region: GraphRegion, title: str) -> str:
    """Return the graph as the text of an SVG file."""
    width, height, inside = _region(region)
    top: float = 3 * LINE + 2 * PAD
    whole, tall = max(width, 900) + 2 * GAP, height + top + 2 * GAP
    legend = _legend(GAP, GAP + LINE + PAD)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:g}" height="{tall:g}" '
        f'viewBox="0 0 {whole:g} {tall:g}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{whole:g}" height="{tall:g}" fill="#ffffff"/>',
        _text(GAP, GAP, f"operations of {title}: a box waits for those from which lines come",
              "head"),
        *legend, f'<g transform="translate({GAP},{top + GAP:g})">', *inside, "</g>", "</svg>",
    ]) + "\n"


def _legend(x: float, y: float) -> Iterator[str]:
    for kind, said in LEGEND:
        yield _rect(x, y - LINE + 3, 16, LINE, kind)
        yield _text(x + 22, y, said, "dim")
        x += 22 + 7 * len(said) + GAP


def _region(region: GraphRegion) -> tuple[float, float, list[str]]:
    """Return the width and height of a region, and its elements, from its upper left corner on."""
    placed: list[_Placed] = []
    by_number: dict[int, _Placed] = {}  # by number of a row
    drawn: list[str] = []
    y = 0.0
    for box in region.boxes:
        width, height, lines = _box(box)
        above = [by_number[k].bottom + GAP for k in box.waits if k in by_number]
        # What waits for nothing stands where the program has it.
        rectangle = _Placed(box, box.column * (WIDTH + GAP), max(above, default=y), width, height)
        y = rectangle.fall(placed)
        insort(placed, rectangle, key=_bottom)
        by_number |= {row["number"]: rectangle for row in box.rows}
        drawn += [f'<g transform="translate({rectangle.x:g},{rectangle.y:g})">', *lines, "</g>"]
    edges = [edge for p in placed for edge in _edges(p, by_number)]
    return (max((p.right for p in placed), default=0), max((p.bottom for p in placed), default=0),
            [*edges, *drawn])


def _edges(p: _Placed, by_number: dict[int, _Placed]) -> Iterator[str]:
    """Yield a line from each box that a box waits for: straight down where that is possible."""
    others = {id(by_number[k]): by_number[k] for k in p.box.waits if k in by_number}.values()
    style = "edge many" if len(others) > 8 else "edge"
    for other in others:
        x, to_x = other.toward(p), p.toward(other)
        bend = min(max((p.y - other.bottom) / 2, 10), 60)
        yield (f'<path class="{style}" d="M{x:g},{other.bottom:g} C{x:g},{other.bottom + bend:g} '
               f'{to_x:g},{p.y - bend:g} {to_x:g},{p.y:g}"/>')


def _box(box: GraphBox) -> tuple[float, float, list[str]]:
    """Return the width and height of a box, and its elements."""
    if not box.regions:
        return WIDTH, LOW, [
            "<g>", f"<title>{escape(_said(box))}</title>",
            *([_rect(5, 5, WIDTH, LOW, box.kind)] if len(box.rows) > 1 else []),
            _rect(0, 0, WIDTH, LOW, box.kind), *_head(box, LETTERS),
            _text(PAD, 3 * LINE + PAD - 3, _cut(touched_text(box), LETTERS), "dim"), "</g>"]
    lines: list[str] = []
    x, height = float(PAD), 0.0
    for region in box.regions:
        wide, tall, inside = _region(region)
        if region.title:
            lines.append(_text(x, HEAD + LINE, region.title, "head"))
        top: float = HEAD + (LINE if region.title else 0) + PAD
        lines += [f'<g transform="translate({x:g},{top:g})">', *inside, "</g>"]
        x, height = x + wide + 2 * GAP, max(height, top + tall + PAD)
    width = max(x - 2 * GAP + PAD, WIDTH)
    head = list(_head(box, int(width / WIDTH * LETTERS)))
    return width, height, [_rect(0, 0, width, height, box.kind), *head, *lines]


def _head(box: GraphBox, letters: int) -> Iterator[str]:
    """Yield two lines of text: what a box does, and the line of the source."""
    many = f" ×{len(box.rows)}" if len(box.rows) > 1 else ""
    yield _text(PAD, LINE, _cut(f"{box.number} {box.action}{many}", letters), "head")
    line = line_text(box.place).rpartition(":")[2]
    yield _text(PAD, 2 * LINE, _cut(f"{line}: {box.text}" if box.place else "", letters))


def _said(box: GraphBox) -> str:
    streams = sorted({row["stream"] for row in box.rows})
    which = str(streams[0]) if len(streams) == 1 else f"{streams[0]} to {streams[-1]}"
    return "\n".join([
        f"{box.number} {box.action}, stream {which}", f"{line_text(box.place)}: {box.text}",
        f"reads {', '.join(box.reads) or 'nothing'}",
        f"writes {', '.join(box.writes) or 'nothing'}",
        f"waits for {', '.join(map(str, box.waits)) or 'nothing'}",
    ])


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    style = "box exchange" if kind == "exchange" else "box"
    return (f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="4" fill="{COLOURS.get(kind, OTHERS)}"/>')


def _text(x: float, y: float, text: str, style: str = "") -> str:
    of = f' class="{style}"' if style else ""
    return f'<text{of} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[:letters - 1]}…"
