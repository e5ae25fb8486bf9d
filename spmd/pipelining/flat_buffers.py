"""Trees of arrays of unlike stages in flat buffers, so that all stages have arrays of one shape.

In: for each stage, the types of its leaves. Out: where each of them lies in the buffer of its
element type, whose length is what the stage with most of them needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from codegen.ir.graph import ArrayType
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.number import number

Buffers = Mapping[str, Any]


class Packing:
    """A packing says where the leaves of each stage lie. lengths: of the buffers, by the name of
    the dtype; ends: how much of these each stage has. Always holds: nothing else of a row is read
    or written.

    most: of a number of elements that differs between ranks, the largest one, for which there is
    room.
    """

    def __init__(self, stages: Sequence[Sequence[ArrayType]],
                 most: Callable[[Expr], Expr] = lambda e: e) -> None:
        self.places: list[list[tuple[str, Any, Any, tuple[Any, ...]]]] = []
        ends: list[dict[str, Expr]] = []
        for types in stages:
            end: dict[str, Expr] = {}
            places = []
            for t in types:
                begin = end.get(t.dtype.name, expr.const(0))
                size = reduce(lambda a, b: a * b, t.shape, expr.const(1))
                end[t.dtype.name] = begin + most(size)
                shape = tuple(map(_extent, t.shape))
                places.append((t.dtype.name, _extent(begin), _extent(begin + size), shape))
            self.places.append(places)
            ends.append(end)
        self.ends = [{name: _extent(e) for name, e in end.items()} for end in ends]
        names = dict.fromkeys(name for end in ends for name in end)
        self.lengths = {
            name: _extent(reduce(expr.maximum, [e.get(name, expr.const(0)) for e in ends]))
            for name in names}

    def read(self, buffers: Buffers, index: tuple[Any, ...], stage: int, version: Any = 0
             ) -> list[Any]:
        """Return the leaves of a stage, which lie in the row of each buffer at this index.

        version: where several of them lie behind each other in a row, which one.
        """
        leaves = []
        for name, a, b, shape in self.places[stage]:
            begin = version * self.lengths[name]
            leaves.append(buffers[name][(*index, slice(begin + a, begin + b))].reshape(shape))
        return leaves

    def slices(self, buffers: Buffers, index: tuple[Any, ...], stage: int
               ) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Yield (buffer, subscript) of each leaf of a stage, to write it."""
        for k in range(len(self.places[stage])):
            yield self.part(buffers, index, stage, k)

    def part(self, buffers: Buffers, index: tuple[Any, ...], stage: int, leaf: int
             ) -> tuple[Any, tuple[Any, ...]]:
        """Return the buffer and the subscript of one leaf of a stage."""
        name, a, b, _ = self.places[stage][leaf]
        return buffers[name], (*index, slice(a, b))

    def write(self, buffers: Buffers, index: tuple[Any, ...], stage: int, leaves: Sequence[Any]
              ) -> None:
        """Write the leaves of a stage."""
        for (buffer, where), leaf in zip(self.slices(buffers, index, stage), leaves, strict=True):
            buffer[where] = leaf.reshape(-1)

    def clear(self, buffers: Buffers, index: tuple[Any, ...], stage: int) -> None:
        """Write zeros over all that a stage has."""
        for name, end in self.ends[stage].items():
            buffers[name][(*index, slice(0, end))] = 0

    def add(self, buffers: Buffers, index: tuple[Any, ...], stage: int, leaves: Sequence[Any]
            ) -> None:
        """Add the leaves of a stage to what is there."""
        for (buffer, where), leaf in zip(self.slices(buffers, index, stage), leaves, strict=True):
            buffer[where] += leaf.reshape(-1)


def _extent(e: Expr) -> Any:
    return e.value if e.is_const else number(e)
