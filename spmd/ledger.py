"""Exchanges and arrays of an image, evaluated for one mesh after the other.

In: an image's manifest and notes. Out: nothing, or an ImageError that names the exchange, both
ranks and what does not fit.
Always holds: expressions are checked before they are evaluated; nothing of the image is executed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from codegen.errors import ImageError
from codegen.image import manifest as reader
from spmd.files.npy import SIZES
from spmd.launch import sizes
from spmd.ledger_row import Row, Values


class Ledger:
    """The table of an image's exchanges. unknown: sites that depend on what a program computes."""

    def __init__(self, image: reader.Image, path: str) -> None:
        self.manifest, self.path = image.manifest, path
        notes = image.notes()
        if "exchanges" not in notes:
            raise ImageError(f"{path}: the image has no table of its exchanges",
                             remedy="build it again with this version of spmd")  # fmt: skip
        self.rows: list[Any] = notes.get("exchanges") or []
        self.coordinates: list[str] = notes.get("coordinates") or []
        self.at_load: list[Any] = notes.get("load") or []
        self.axes = [axis["name"] for axis in self.manifest["mesh"]]
        self.unknown: set[int] = set()
        try:
            self._check_notes()
            self.exchanges = [Row(row, self) for row in self.rows]
        except (KeyError, TypeError, ValueError, IndexError, RecursionError):
            raise self.wrong("damaged notes", "a table of exchanges", "something else") from None

    def _check_notes(self) -> None:
        tables = (self.rows, self.coordinates, self.at_load)
        if not all(isinstance(t, list) for t in tables) or len(self.coordinates) != len(self.axes):
            raise ValueError
        self.known = {f"n_{name}" for name in self.axes} | set(self.coordinates)
        self.known |= {scalar["name"] for scalar in self.manifest["scalars"]}
        known = set(self.known)
        for name, e in self.at_load:  # an entry may name those before it
            reader.check_expression(e, known)
            known.add(name)

    def wrong(self, what: str, expected: str, found: str) -> ImageError:
        return ImageError(f"{self.path}: {what}", expected=expected, found=found)

    def ranks(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> Iterator[Values]:
        """What every rank's expressions may name, in the order of the index."""
        for index in range(math.prod(mesh)):
            yield self.rank(mesh, scalars, index)

    def rank(self, mesh: tuple[int, ...], scalars: dict[str, Any], index: int) -> Values:
        """What the expressions of the rank with this index may name."""
        values = self.common(mesh, scalars)
        for name, size in reversed(list(zip(self.coordinates, mesh))):
            index, values[name] = divmod(index, size)
        return values

    def common(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> Values:
        """What the expressions of all ranks may name."""
        return {**scalars, **sizes.mesh_symbols(self.manifest, mesh)}

    def capacity(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> list[int]:
        """Elements of every buffer, of which all ranks have equally many."""
        first = self.rank(mesh, scalars, 0)
        return [reader.evaluate(b["bytes"], first) // SIZES[b["dtype"]]
                for b in self.manifest["buffers"]]  # fmt: skip

    # ---- arrays ------------------------------------------------------------------------------

    def shard(
        self, array: dict[str, Any], mesh: tuple[int, ...], at: Values
    ) -> tuple[list[int], list[int]]:
        """Offset and extent of a rank's part: balanced blocks along the axes of each dim."""
        size = dict(zip(self.axes, mesh))
        place = {name: at[symbol] for name, symbol in zip(self.axes, self.coordinates)}
        offsets, extents = [], []
        for entry, extent in zip(array["layout"], array["shape"]):
            parts, k = 1, 0
            for name in entry:
                parts, k = parts * size[name], k * size[name] + place[name]
            whole = reader.evaluate(extent, at)
            small, longer = divmod(whole, parts)
            offsets.append(k * small + min(k, longer))
            extents.append(small + (k < longer))
        return offsets, extents

    def check_arrays(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> None:
        """The first rank's parts, which are the largest, fit the buffers they lie in."""
        first = self.rank(mesh, scalars, 0)
        for array in (*self.manifest["inputs"], *self.manifest["outputs"]):
            need = SIZES[array["dtype"]]
            for extent in self.shard(array, mesh, first)[1]:
                need *= extent
            buffer = self.manifest["buffers"][array["buffer"]]
            have = reader.evaluate(buffer["bytes"], first)
            if have < need:
                raise self.wrong(f"array {array['name']} does not fit its buffer on {mesh}",
                                 f"{need} bytes", f"{have} bytes")  # fmt: skip

    # ---- exchanges ---------------------------------------------------------------------------

    def check_exchanges(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> int:
        """Every exchange matches on this mesh; how many transfers were compared."""
        everyone, capacity = list(self.ranks(mesh, scalars)), self.capacity(mesh, scalars)
        known = [row for row in self.exchanges if row.site not in self.unknown]
        return sum(row.check(self.groups(row, everyone), capacity) for row in known)

    def groups(self, row: Row, everyone: list[Values]) -> list[list[Values]]:
        """The members of every group of an exchange, by their position along its axes."""
        along = [self.coordinates[self.axes.index(name)] for name in row.axes]
        across = [name for name in self.coordinates if name not in along]
        groups: dict[tuple[int, ...], list[Values]] = {}
        for rank in everyone:
            groups.setdefault(tuple(rank[name] for name in across), []).append(rank)
        for members in groups.values():
            members.sort(key=lambda rank: [rank[name] for name in along])
        return list(groups.values())


class Group(Sequence[Values]):
    """The members of one group, each made when it is asked for: there may be a million.

    common: what all of them may name. across: their place along axes that are not the exchange's.
    """

    def __init__(self, row: Row, mesh: dict[str, int], common: Values,
                 across: dict[str, int]) -> None:  # fmt: skip
        self.sizes = [(name, mesh[name]) for name in row.axes]
        self.symbol = dict(zip(row.ledger.axes, row.ledger.coordinates))
        self.common = {**common, **{self.symbol[name]: k for name, k in across.items()}}

    def __len__(self) -> int:
        return math.prod(size for _, size in self.sizes)

    def __getitem__(self, member: Any) -> Any:
        if not 0 <= member < len(self):
            raise IndexError(member)
        at = {}
        for name, size in reversed(self.sizes):
            at[self.symbol[name]], member = member % size, member // size
        return {**self.common, **at}
