"""Meshes of ranks, and how a dim is cut into balanced blocks.

The index is row-major over the mesh, last axis fastest. Block k of n of a dim of extent e holds
e // n elements, one more for the first e % n blocks (as numpy.array_split cuts).
Always holds: everything here is an Expr; no number of ranks is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from operator import index
from typing import Any

from codegen.errors import Place, UsageError
from codegen.symbolic import expr
from codegen.symbolic.block_laws import begins
from codegen.symbolic.expr import Expr, IntLike, Sym

# One layout entry per dim: the mesh axes that split it, () for replicated.
LayoutEntry = tuple[str, ...]
Layout = tuple[LayoutEntry, ...]


class Owned(tuple[str, ...]):
    """The layout entry of a dim of which a rank has all or nothing: all where a row of some other
    dim, which is cut into blocks over these axes, is the rank's own. has: 1 on such ranks, else 0.
    """

    rows: int
    row: int
    has: Expr

    def __new__(cls, axes: LayoutEntry, rows: int, row: int, has: Expr) -> Owned:
        entry = super().__new__(cls, axes)
        entry.rows, entry.row, entry.has = rows, row, has
        return entry

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Owned) and (*self, self.rows, self.row)
                == (*other, other.rows, other.row))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.rows, self.row))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.rows, self.row, self.has


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh, and what is known of its size.

    fixed: the program fixed it. most: an upper bound. divides: a number that it divides.
    like: the axis that has the same size; the two share one symbol.
    """

    name: str
    fixed: int | None = None
    most: int | None = None
    divides: int = 0
    like: str = ""

    @property
    def size_name(self) -> str:
        """The name of its size in conditions and manifests."""
        return f"n_{self.name}"

    @cached_property
    def size_sym(self) -> Sym:
        most = None if self.most is None else expr.const(self.most)
        return Sym(f"n_{self.like or self.name}", "size", expr.const(1), most, self.divides)

    @cached_property
    def size(self) -> Expr:
        return expr.const(self.fixed) if self.fixed is not None else expr.symbol(self.size_sym)

    @cached_property
    def coord_sym(self) -> Sym:
        return Sym(f"i_{self.name}", "coord", expr.const(0), self.size - 1)

    @cached_property
    def coord(self) -> Expr:
        return expr.const(0) if self.fixed == 1 else expr.symbol(self.coord_sym)


@dataclass(frozen=True)
class Mesh:
    """The axes that the ranks form, in row-major order."""

    axes: tuple[Axis, ...]

    def axis(self, name: str) -> Axis:
        """Raises KeyError where the mesh has no such axis."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def told(self, more: Mapping[str, Axis]) -> Mesh:
        """Return the mesh of which more is known; what is known of one axis holds for those like
        it."""
        axes = [more.get(a.name, a) for a in self.axes]
        out = []
        for axis in axes:
            same = [a for a in axes if (a.like or a.name) == (axis.like or axis.name)]
            most = min((a.most for a in same if a.most is not None), default=None)
            divides = gcd(*(a.divides for a in same))
            out.append(replace(axis, most=most, divides=divides))
        return Mesh(tuple(out))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.axes)

    @property
    def ranks(self) -> Expr:
        return expr.product(a.size for a in self.axes)

    @property
    def index(self) -> Expr:
        return self.position(self.names)

    def size(self, names: tuple[str, ...]) -> Expr:
        """Return how many ranks lie along these axes taken as one."""
        return expr.product(self.axis(n).size for n in names)

    def position(self, names: tuple[str, ...]) -> Expr:
        """Return a rank's position along these axes taken as one, row-major."""
        total = expr.const(0)
        for name in names:
            axis = self.axis(name)
            total = total * axis.size + axis.coord
        return total

    def coordinates(self, names: tuple[str, ...], position: IntLike) -> dict[Sym, Expr]:
        """Return the coordinates along these axes of the rank at a position, by their symbols, for
        subst()."""
        out: dict[Sym, Expr] = {}
        left = expr.as_expr(position)
        axes = [self.axis(name) for name in names if self.axis(name).fixed != 1]
        for k, axis in reversed(list(enumerate(axes))):
            out[axis.coord_sym] = left % axis.size if k else left
            left = left // axis.size
        return out


def block_extent(extent: IntLike, blocks: IntLike, k: IntLike) -> Expr:
    """Return the number of elements in block k when a dim of this extent is cut into so many
    balanced blocks."""
    k = expr.as_expr(k)
    return expr.begin(k + 1, extent, blocks) - expr.begin(k, extent, blocks)


def block_offset(extent: IntLike, blocks: IntLike, k: IntLike) -> Expr:
    """Return the first element of block k."""
    return expr.begin(k, extent, blocks)


def owner(extent: IntLike, blocks: IntLike, element: IntLike) -> Expr:
    """Return the block that an element of the dim lies in.

    Of the two quotients the one by the larger blocks is right among those, the other one behind
    them; where it is not, a quotient is too small.
    """
    e, i = expr.as_expr(extent), expr.as_expr(element)
    small = e // blocks
    return expr.most(i // (small + 1), (i - e % blocks) // expr.maximum(small, 1))


def blocks_ended(extent: IntLike, blocks: IntLike, element: IntLike) -> Expr:
    """Return how many blocks end at an element, or before it; beyond both ends of the dim too."""
    inside = expr.most(owner(extent, blocks, element), 0)
    return expr.select(expr.ge(element, extent), blocks, inside)


def blocks_begun(extent: IntLike, blocks: IntLike, element: IntLike) -> Expr:
    """Return how many blocks begin before an element."""
    inside = expr.most(owner(extent, blocks, expr.as_expr(element) - 1) + 1, 0)
    return expr.select(expr.gt(element, extent), blocks, inside)


def part_of_block(e: Expr) -> str:
    """Return "extent" or "offset" where e is that of some block of some dim, else ""."""
    for call in begins(e):
        k, extent, blocks = call.args
        if e is expr.from_atom(call):
            return "extent" if k == 1 else "offset"
        if e is block_extent(extent, blocks, k):
            return "extent"
    return ""


def local_extent(mesh: Mesh, extent: IntLike, entry: LayoutEntry) -> Expr:
    """Return a rank's extent of a dim laid out over these axes."""
    if not entry:
        return expr.as_expr(extent)
    if isinstance(entry, Owned):
        return expr.as_expr(extent) * entry.has
    return block_extent(extent, mesh.size(entry), mesh.position(entry))


def local_offset(mesh: Mesh, extent: IntLike, entry: LayoutEntry) -> Expr:
    """Return the first element of a rank's part of a dim."""
    if not entry or isinstance(entry, Owned):
        return expr.const(0)
    return block_offset(extent, mesh.size(entry), mesh.position(entry))


def joined_layout(layouts: Sequence[Layout]) -> Layout:
    """Return one layout for arrays of one shape: what is split in one of them, most split ones
    first; of equals, what is split in outer dims: inner ones are reduced more often, and lie
    contiguous."""

    def split(entries: Layout) -> tuple[int, list[int]]:
        dims = [d for d, entry in enumerate(entries) if entry]
        return -len(dims), dims

    ordered = sorted(layouts, key=split)
    out = list(ordered[0])
    for layout in ordered[1:]:
        used = {a for entry in out for a in entry}
        for d, entry in enumerate(layout):
            if not out[d] and not used & set(entry):
                out[d] = entry
                used |= set(entry)
    return tuple(out)


def as_written(layout: Layout) -> tuple[Any, ...]:
    """Return a layout as users write it: ("x", None, ("x", "y"))."""
    return tuple(e[0] if len(e) == 1 else (e or None) for e in layout)


def checked_count(noun: str, value: Any) -> int:
    """Return a number of ranks or of threads, as a user gives it. Raises UsageError."""
    try:
        count = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        count = 0
    if count < 1:
        kind = "" if isinstance(value, int) else f" ({type(value).__name__})"
        raise UsageError(f"{noun}={value!r}: a job needs at least one",
                         expected="a whole number from 1", found=f"{value!r}{kind}",
                         remedy=f"{noun}=4, for instance")
    return count


def checked_text(text: Any, place: Place | None) -> None:
    """Check the text of a condition of launches; raise UsageError where it is none: a second
    condition, for example."""
    if not isinstance(text, str):
        raise UsageError(
            "spmd.require takes one condition and a text", place=place,
            expected='spmd.require(n % 2 == 0, "an even n")', found=f"{text!r} as the text",
            remedy="spmd.require(a), then spmd.require(b)",
        )


def checked_sizes(sizes: Any, names: tuple[str, ...]) -> dict[str, int]:
    """Return the sizes of axes that a user gives for a mesh whose axes have these names."""
    example = ", ".join(f'"{name}": 2' for name in names)
    if not isinstance(sizes, Mapping):
        raise UsageError(f"mesh={sizes!r} does not give sizes of axes",
                         expected=f"mesh={{{example}}}", found=type(sizes).__name__)
    for name in sizes:
        if name not in names:
            raise UsageError(f"mesh={sizes!r}: the program has no mesh axis {name!r}",
                             expected=", ".join(names))
    return {name: checked_count(f"mesh axis {name}", size) for name, size in sizes.items()}
