"""A table of exchanges in prefix form, as a Plan gives it and as images carry it in their notes.

In: rows, one per exchange: who sends to whom, which boxes of which buffers, inside which loops and
branches. Out: the same, with the names that their formulas use.
Always holds: only cheap modules are imported.
"""

from __future__ import annotations

from codegen.symbolic.meaning import names_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

BOXES = ("from", "into", "send", "give")
PEERS = ("sends", "dest", "receives", "source", "root")


class ExchangeTable:
    """A table of the exchanges of one program.

    axes: those of its mesh. coordinates: for each axis, the symbol of a rank's position along it.
    capacity: elements of every buffer. scalars: names of the numbers that are bound at launch."""

    def __init__(
        self, axes: Sequence[str], coordinates: Sequence[str], scalars: Collection[str],
        capacity: Sequence[Any], rows: Sequence[dict[str, Any]],
    ) -> None:
        self.axes, self.coordinates, self.capacity = axes, coordinates, capacity
        self.sizes = [f"n_{name}" for name in axes]
        self.known = {*self.sizes, *coordinates, *scalars}
        if len(coordinates) != len(axes):
            raise ValueError
        self.rows = [Row(row, self) for row in rows]


class Row:
    """A row of the table, which describes one exchange. loops: the loops around it whose counters
    its formulas name. used: the names in its formulas. unknown: names of values that the program
    computes."""

    def __init__(self, said: dict[str, Any], table: ExchangeTable) -> None:
        """Read a row. Raise ValueError, KeyError or TypeError where it is not of the form that a
        Plan writes."""
        self.said, self.table = said, table
        self.site, self.kind, self.place = int(said["site"]), str(said["kind"]), str(said["place"])
        self.member = str(said["member"])
        self.axes: list[str] = list(said["axes"])
        self.around = said["wraps"] != 1  # dims go on beyond their ends, ranges of members too
        near = len(self.axes) if said["flow"] == "near" else 0
        boxes = [said[name] for name in BOXES if said[name]]
        if not (set(self.axes) <= set(table.axes) and len(set(self.axes)) == len(self.axes)
                and len(said["near"]) == near and all(len(r) == 4 for r in said["near"])
                and all(len(box["extent"]) == len(box["stride"]) and box["buffer"] in range(
                    len(table.capacity)) for box in boxes)
                and (said["sends"] is None) == (said["dest"] is None)):
            raise ValueError
        used = names_in(*(said[name] for name in PEERS), said["wraps"],
                      *(on for on, *_ in said["guards"]), *(e for r in said["near"] for e in r))
        for box in boxes:
            inside = names_in(box["offset"], *box["extent"], *box["stride"])
            for name, e in reversed(box["names"]):  # one may name those before it
                inside = inside - {name} | names_in(e) if name in inside else inside
            used |= inside - {self.member, "wrap"}
        for loop in reversed(said["loops"]):  # an outer one may bound an inner
            used |= names_in(*loop[1:]) if loop[0] in used else set()
        self.loops = [loop for loop in said["loops"] if loop[0] in used]
        self.used = used
        self.unknown = used - table.known - {loop[0] for loop in self.loops}

    @property
    def buffers(self) -> set[int]:
        return {self.said[name]["buffer"] for name in BOXES if self.said[name]}


class Mismatch(Exception):
    """Two members of an exchange disagree. title: the exchange and the mesh."""

    def __init__(self, row: Row, title: str, expected: str, found: str) -> None:
        super().__init__(title)
        self.row, self.title, self.expected, self.found = row, title, expected, found
