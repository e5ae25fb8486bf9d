"""What the engine copies between members, beside NumPy: for `verify --execute`.

In: the table of an image's exchanges, and a mesh. Out: the first box that the engine brings
otherwise than NumPy's assignment does, and how many boxes were tried.
Always holds: boxes of the image are tried with memory of our own; NumPy shares no line with the
engine's way of choosing how to copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.verify.pairs import Pairs
from codegen.verify.small import points
from spmd.engine import ffi, lib
from spmd.files.npy import SIZES
from spmd.ledger import Ledger

MOST_RANKS = 8  # of a mesh whose pairs of members are looked at
MOST_BOXES = 64  # of an exchange on a mesh
MOST_ELEMENTS = 1 << 16  # of a box

Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # extents, strides of both sides


class TriedBoxes:
    """Compares the engine's copies with NumPy's: each box once, however many exchanges have it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.tried = ledger, set[tuple[int, int, Box]]()

    def differs(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> dict[str, str] | None:
        """Return the first difference on a mesh as the words of an error, or None."""
        sizes = [SIZES[buffer["dtype"]] for buffer in self.ledger.manifest["buffers"]]
        common = self.ledger.common(mesh, scalars)
        for row in self.ledger.table.rows:
            if row.unknown or not (row.said["from"] and row.said["into"]):
                continue
            into, source = (sizes[row.said[name]["buffer"]] for name in ("into", "from"))
            for box in boxes(Pairs(row, [common])):
                if (into, source, box) in self.tried:
                    continue
                self.tried.add((into, source, box))
                if not is_right(into, source, box):
                    extent, into_stride, from_stride = box
                    return {"expected": f"exchange {row.site} ({row.place}) on the mesh {mesh} "
                            f"brings {extent} elements from strides {from_stride} to "
                            f"{into_stride}", "found": "others, or elsewhere"}
        return None


def boxes(pairs: Pairs) -> list[Box]:
    """Return the boxes that members pull in an exchange, some of each."""
    into, source = pairs.between["into"], pairs.between["from"]
    kinds: dict[Box, None] = {}
    for places in pairs.each(pairs.symbols(pairs.giver, pairs.taker)):
        moves = pairs.terms.all(pairs.taken(pairs.taker), into.nonempty)
        (some,) = pairs.evaluated(places, moves)
        for point in points({s: a[some != 0] for s, a in places.items()}):
            _, extent, into_stride = into.region(point)
            _, other, from_stride = source.region(point)
            if extent == other and np.prod(extent) <= MOST_ELEMENTS:
                kinds[extent, into_stride, from_stride] = None
            if len(kinds) == MOST_BOXES:
                return list(kinds)
    return list(kinds)


def is_right(into_size: int, from_size: int, box: Box) -> bool:
    """Return whether the engine brings a box as NumPy does, with elements of these sizes."""
    extent, into_stride, from_stride = box
    source = room(extent, from_stride, from_size)
    source[...] = np.random.default_rng(0).integers(0, 256, source.shape, np.uint8)
    there, wanted = (room(extent, into_stride, into_size) for _ in range(2))
    same = min(into_size, from_size)
    target = shown(wanted, extent, into_stride, into_size)
    target[...] = 0
    target[..., :same] = shown(source, extent, from_stride, from_size)[..., :same]
    low = {name: first(extent, stride, size) for name, stride, size in (
        ("into", into_stride, into_size), ("from", from_stride, from_size))}
    lib.spmd_take_probe(
        ffi.cast("char *", there.ctypes.data + low["into"]),
        ffi.new("int64_t[]", [s * into_size for s in into_stride]), into_size,
        ffi.cast("char *", source.ctypes.data + low["from"]),
        ffi.new("int64_t[]", [s * from_size for s in from_stride]), from_size,
        ffi.new("int64_t[]", list(extent)), len(extent))
    return bool((there == wanted).all())


def first(extent: tuple[int, ...], stride: tuple[int, ...], size: int) -> int:
    """Return where the first element lies, in bytes behind the lowest one of a box."""
    return -size * sum(min(0, (e - 1) * s) for e, s in zip(extent, stride))


def room(extent: tuple[int, ...], stride: tuple[int, ...], size: int) -> Any:
    """Return bytes in which a box lies, all 7."""
    elements = 1 + sum(abs((e - 1) * s) for e, s in zip(extent, stride))
    return np.full(elements * size, 7, np.uint8)


def shown(memory: Any, extent: tuple[int, ...], stride: tuple[int, ...], size: int) -> Any:
    """Return a box as an array of bytes, those of an element along the last dim."""
    return np.lib.stride_tricks.as_strided(
        memory[first(extent, stride, size):], (*extent, size), (*(s * size for s in stride), 1))
