"""The exchanges and arrays of an image, as its notes and its manifest say them.

In: an image. Out: the table of its exchanges, for codegen.verify; what the expressions of a rank
may name; or an ImageError that says what does not fit.
Always holds: expressions are checked before they are evaluated; nothing of the image is executed.
"""

from __future__ import annotations

from typing import Any

from codegen.errors import ImageError
from codegen.image import manifest as reader
from codegen.symbolic.meaning import block
from codegen.verify.exchange_table import ExchangeTable
from spmd.files.npy import SIZES
from spmd.launch import sizes

Values = dict[str, int]


class Ledger:
    """A ledger of what an image says of its exchanges and arrays. unknown: sites that depend on
    what a program computes."""

    def __init__(self, image: reader.ImageFile, path: str) -> None:
        self.manifest, self.path = image.manifest, path
        notes = image.notes()
        if "exchanges" not in notes:
            raise ImageError(f"{path}: the image has no table of its exchanges",
                             remedy="build it again with this version of spmd")
        self.coordinates: list[str] = notes.get("coordinates") or []
        self.at_load: list[Any] = notes.get("load") or []
        same = {str(b["bytes"]): (b["name"], b["bytes"]) for b in self.manifest["buffers"]}
        self.sizes = list(same.values())  # of buffers, each formula once
        self.axes = [axis["name"] for axis in self.manifest["mesh"]]
        scalars = {scalar["name"] for scalar in self.manifest["scalars"]}
        capacity = [["floordiv", b["bytes"], SIZES[b["dtype"]]] for b in self.manifest["buffers"]]
        try:
            rows = notes["exchanges"]
            self.table = ExchangeTable(self.axes, self.coordinates, scalars, capacity, rows)
            known = set(self.table.known)
            for name, e in self.at_load:  # an entry may name those before it
                reader.check_expression(e, known)
                known.add(name)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError):
            raise self.wrong("damaged notes", "a table of exchanges", "something else") from None
        self.unknown = {row.site for row in self.table.rows if row.unknown}

    def wrong(self, message: str, expected: str, found: str) -> ImageError:
        return ImageError(f"{self.path}: {message}", expected=expected, found=found)

    def rank(self, mesh: tuple[int, ...], scalars: dict[str, Any], index: int) -> Values:
        """Return the values that the expressions of the rank with this index may name."""
        values = self.common(mesh, scalars)
        for name, size in reversed(list(zip(self.coordinates, mesh))):
            index, values[name] = divmod(index, size)
        return values

    def common(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> Values:
        """Return the values that the expressions of all ranks may name."""
        return {**scalars, **sizes.mesh_symbols(self.manifest, mesh)}

    # ---- arrays ------------------------------------------------------------------------------

    def shard(
        self, array: dict[str, Any], mesh: tuple[int, ...], values: Values
    ) -> tuple[list[int], list[int]]:
        """Return offset and extent of a rank's part: balanced blocks along the axes of each dim."""
        size = dict(zip(self.axes, mesh))
        place = {name: values[symbol] for name, symbol in zip(self.axes, self.coordinates)}
        offsets, extents = [], []
        for entry, extent in zip(array["layout"], array["shape"]):
            parts, k = 1, 0
            for name in entry:
                parts, k = parts * size[name], k * size[name] + place[name]
            first, size_of_block = block(k, reader.evaluate(extent, values), parts)
            offsets.append(first)
            extents.append(size_of_block)
        return offsets, extents

    def check_arrays(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> None:
        """Check that no buffer has a negative size, and that the first rank's parts, which are the
        largest, fit the buffers they lie in."""
        first = self.rank(mesh, scalars, 0)
        for name, size in self.sizes:
            if (have := reader.evaluate(size, first)) < 0:
                raise self.wrong(f"buffer {name} has a negative size on {mesh}",
                                 "0 bytes or more", f"{have} bytes")
        for array in (*self.manifest["inputs"], *self.manifest["outputs"]):
            need = SIZES[array["dtype"]]
            for extent in self.shard(array, mesh, first)[1]:
                need *= extent
            buffer = self.manifest["buffers"][array["buffer"]]
            have = reader.evaluate(buffer["bytes"], first)
            if have < need:
                raise self.wrong(f"array {array['name']} does not fit its buffer on {mesh}",
                                 f"{need} bytes", f"{have} bytes")
