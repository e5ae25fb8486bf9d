"""The operation graph of an image as boxes to draw: in regions, each with a column for a stream.

In: an image's notes and manifest. Out: regions of boxes, outermost first. A box is one row, or many
that are alike: of one line and one kind, side by side in streams of their own.
Always holds: rows that a damaged image may have are refused, not drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from codegen.errors import ImageError
from codegen.image import manifest as reader
from codegen.image.elf import printable

ALIKE = 5  # so many rows that are alike are one box
WIDE = 6  # columns
MOST_NESTED = 50  # regions in regions, into which drawing recurses
MOST_NAMES = 4  # of buffers, before the others are counted

Json = dict[str, Any]


@dataclass
class GraphRegion:
    """A region of the graph: the boxes of its rows. title: "" where it needs none."""

    title: str
    boxes: list[GraphBox] = field(default_factory=list)

    @property
    def columns(self) -> int:
        return 1 + max((box.column for box in self.boxes), default=0)


@dataclass
class GraphBox:
    """One row of the graph, or several that are alike. waits: numbers of rows. column: where its
    stream is drawn. regions: what lies in it."""

    rows: list[Json]
    kind: str
    action: str
    reads: list[str]
    writes: list[str]
    place: str
    text: str
    waits: list[int]
    column: int
    regions: list[GraphRegion]

    @property
    def number(self) -> str:
        """Return the number of its row, or those of its first and last row."""
        first, last = self.rows[0]["number"], self.rows[-1]["number"]
        return str(first) if first == last else f"{first}-{last}"


def region_of(image: reader.ImageFile) -> GraphRegion:
    """Return the whole graph of an image. Raise ImageError where it has none, or a damaged one."""
    rows = image.notes().get("operations")
    if not isinstance(rows, list):
        raise ImageError("the image has no graph of its operations",
                         remedy="build it again with this version of spmd")
    inside: dict[tuple[int, int] | None, list[Json]] = {}
    depth: list[int] = []
    for k, row in enumerate(rows):
        region = tuple(row["region"]) if "region" in row else None
        near = {earlier["number"] for earlier in inside.get(region, ())}
        whole = row["number"] == k and near.issuperset(row["waits"]) and (
            region is None or region[0] < k)
        depth.append(0 if region is None or not whole else depth[region[0]] + 1)
        if not whole or depth[k] > MOST_NESTED:
            raise ImageError("damaged notes", expected="rows of a graph, in order",
                             found=f"row {k}, which is out of order")
        inside.setdefault(region, []).append(_printable(row))
    return _Boxes(image.manifest, inside).region(None, "")


def _printable(row: Json) -> Json:
    """Return a row with printable texts, which move no cursor and may stand in XML."""
    texts = {k: printable(v) for k, v in row.items() if isinstance(v, str)}
    return {**row, **texts, "axes": [printable(axis) for axis in row.get("axes", ())]}


class _Boxes:
    def __init__(
        self, manifest: Json, inside: dict[tuple[int, int] | None, list[Json]]
    ) -> None:
        self.manifest, self.inside = manifest, inside
        self.buffers = [b["name"] for b in manifest["buffers"]]
        self.regions: dict[int, list[int]] = {}  # of each row: those in which something lies
        for number, region in sorted(filter(None, inside)):
            self.regions.setdefault(number, []).append(region)

    def region(self, key: tuple[int, int] | None, title: str) -> GraphRegion:
        region = GraphRegion(title)
        for rows in _alike(self.inside.get(key, [])):
            region.boxes.append(self.box(rows))
        _packed(region.boxes)
        return region

    def box(self, rows: list[Json]) -> GraphBox:
        row = rows[0]
        waits = sorted({w for member in rows for w in member["waits"]})
        return GraphBox(
            rows, row["kind"], self.action(row), self.names(rows, "reads"),
            self.names(rows, "writes"), row.get("place", ""), row.get("text", ""), waits,
            min(member["stream"] for member in rows),
            [self.region((row["number"], k), self.title(row, k))
             for k in self.regions.get(row["number"], ())] if len(rows) == 1 else [])

    def title(self, row: Json, region: int) -> str:
        entries = self.manifest["entries"]
        if row["kind"] == "entries" and region < len(entries):
            return f"entry {entries[region]['name']}"
        if row["kind"] in ("branch", "entries"):
            return f"arm {region}"
        return ("condition", "turn")[region > 0] if len(self.regions[row["number"]]) > 1 else ""

    def action(self, row: Json) -> str:
        """Return what a row does, in a few words."""
        m = self.manifest
        if "exchange" in row:
            over = ", ".join(row.get("axes", ()))
            return f"{row['exchange'].replace('_', '-')} over ({over})"
        if "feed" in row:
            return f'{row["kind"]} of feed "{row["feed"]}"'
        if row["kind"] == "entries":
            return "one entry in each call"
        if row["kind"] == "library":
            known = {entry["number"]: entry["routine"] for entry in m["libraries"]}
            return " ".join(known.get(k, "library") for k in row.get("libraries", ()))
        if row["kind"] == "kernel":
            known = {entry["symbol"]: entry["name"] for entry in m.get("kernels", ())}
            return f"kernel {known.get(row.get('kernel'), '')}".rstrip()
        return str(row["kind"])

    def names(self, rows: list[Json], access: str) -> list[str]:
        """Return the names of the buffers that rows list under `access`: `reads` or `writes`."""
        numbers = dict.fromkeys(k for row in rows for k in row[access] if k < len(self.buffers))
        names = list(dict.fromkeys(self.buffers[k] for k in numbers))
        return [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more"] if (
            len(names) > MOST_NAMES + 1) else names


def _packed(boxes: Sequence[GraphBox]) -> None:
    """Give each stream a column of its own. Where these would be more than WIDE, streams share a
    column if one ends before the other begins."""
    ends = {box.column: k for k, box in enumerate(boxes)}
    columns: dict[int, int] = {}
    busy: list[int] = []  # until which box each column is taken
    for k, box in enumerate(boxes):
        if box.column not in columns:
            free = len(busy)
            if free >= WIDE:
                free = next((c for c, end in enumerate(busy) if end < k), free)
            columns[box.column] = free
            busy[free:free + 1] = [ends[box.column]]
        box.column = columns[box.column]


def _alike(rows: Sequence[Json]) -> list[list[Json]]:
    """Return rows in groups, in their order: each group is one box."""
    groups: list[list[Json]] = []
    for row in rows:
        last = groups[-1] if groups else [row]
        if groups and _like(row, last):
            last.append(row)
        else:
            groups.append([row])
    return [part for group in groups
            for part in ([group] if len(group) >= ALIKE else [[row] for row in group])]


def _like(row: Json, group: list[Json]) -> bool:
    """Return whether a row belongs in one box with others: of one kind and line, in a stream of its
    own, and waiting for none of them."""
    same = all(row.get(k) == group[0].get(k) for k in ("kind", "place", "exchange", "libraries"))
    numbers = {member["number"] for member in group}
    return same and numbers.isdisjoint(row["waits"]) and row["stream"] not in {
        member["stream"] for member in group} and row["kind"] not in ("loop", "branch", "entries")


def line_text(place: str) -> str:
    """Return a place without its folders, `heat.py:36`, to stand before the text of the line."""
    return re.sub(r"^.*/", "", place)


def touched_text(box: GraphBox) -> str:
    """Return `what it reads -> what it writes`; either may be missing."""
    writes = f"-> {', '.join(box.writes)}" if box.writes else ""
    return " ".join(filter(None, (", ".join(box.reads), writes)))
