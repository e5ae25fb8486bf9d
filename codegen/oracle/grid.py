"""Who holds what, for given axis sizes: coordinates of ranks, groups along axes, shards of arrays.

Always holds: shards are cut as numpy.array_split cuts, whatever the compiler does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from codegen.mesh import Layout

Box = tuple[slice, ...]


class Grid:
    """All ranks of a mesh. sizes: ranks along each axis, in the mesh's order."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        places = itertools.product(*(range(n) for n in sizes.values()))
        self.coords = [dict(zip(sizes, place, strict=True)) for place in places]

    def position(self, rank: int, axes: Sequence[str]) -> int:
        """Return a rank's position along axes taken as one, row-major."""
        position = 0
        for name in axes:
            position = position * self.sizes[name] + self.coords[rank][name]
        return position

    def group(self, rank: int, axes: Sequence[str]) -> list[int]:
        """Return the ranks that differ from this one along `axes` only, by position along them."""
        rest = [a for a in self.sizes if a not in axes]
        mine = self.coords[rank]
        members = [k for k, c in enumerate(self.coords) if all(c[a] == mine[a] for a in rest)]
        return sorted(members, key=lambda k: self.position(k, axes))

    def box(self, shape: Sequence[int], layout: Layout, rank: int) -> Box:
        """Return a rank's part of a global array."""
        out = []
        for extent, axes in zip(shape, layout, strict=True):
            blocks = int(np.prod([self.sizes[a] for a in axes], dtype=np.int64))
            cuts = [len(part) for part in np.array_split(np.arange(extent), blocks)]
            position = self.position(rank, axes)
            out.append(slice(sum(cuts[:position]), sum(cuts[: position + 1])))
        return tuple(out)


def join(
    shape: Sequence[int], parts: Sequence[np.ndarray[Any, Any]], boxes: Sequence[Box],
    misfit: Callable[[int, tuple[int, ...]], Exception], differ: Callable[[int, int], Exception],
) -> np.ndarray[Any, Any]:
    """Return the array whose parts in these boxes the ranks have. misfit: the error where a rank's
    part has not the shape of its box; differ: where two ranks hold other values of one part."""
    whole = np.zeros(shape, parts[0].dtype)
    held: dict[str, int] = {}
    for rank, (part, box) in enumerate(zip(parts, boxes, strict=True)):
        expected = tuple(s.stop - s.start for s in box)
        if part.shape != expected:
            raise misfit(rank, expected)
        first = held.setdefault(str(box), rank)
        if part.tobytes() != parts[first].tobytes():
            raise differ(first, rank)
        whole[box] = part
    return whole
