"""The layouts of a shard_map's results where its call has no out_layouts.

A result that is equal on all ranks is replicated. One that may vary over some axes is joined along
the dims that are cut over just those axes, as an argument's; LayoutError where there are no such
dims, or several choices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from codegen.errors import LayoutError, Place
from codegen.graph.variance import Axes, InBody
from codegen.ir.graph import Region, Shape, Value, layout_text, walk
from codegen.ir.graph_text import axes_text
from codegen.mesh import Layout, LayoutEntry, Mesh, local_extent
from codegen.ops import Take
from codegen.places import user_place
from codegen.symbolic.expr import Expr
from codegen.trace.context import Context
from codegen.trace.numpy.elementwise import same_extent


def computed_layouts(
    context: Context, returned: Any, body: Region, operands: Sequence[Value]
) -> list[Layout]:
    """Return one layout per result of the body. operands: the global arrays that its arguments are
    shards of."""
    layouts = [v.type.layout or () for v in operands]
    known = InBody(context.mesh, body, layouts)
    cuts = _Cuts(context.mesh, [*((v.type.shape, v.type.layout or ()) for v in operands),
                                *fields_in(body)])
    fitting = [cuts.fitting(v.type.shape, known.varies(v)) for v in body.results]
    for k, candidates in enumerate(fitting):
        if len(candidates) != 1:
            raise _Refused(cuts, returned, known, fitting, k).error()
    return [candidates[0] for candidates in fitting]


def fields_in(body: Region) -> list[tuple[Shape, Layout]]:
    """Return shapes and layouts of the fields of batches that a rank takes."""
    return [home for op in walk(body) if isinstance(op.kind, Take) for home in op.kind.homes]


class _Cuts:
    """How the arguments of a shard_map are cut, and the fields of batches taken in it."""

    def __init__(self, mesh: Mesh, arguments: Sequence[tuple[Shape, Layout]]) -> None:
        self.mesh, self.arguments = mesh, arguments
        self.alone = {a.name for a in mesh.axes if a.fixed == 1}

    def fitting(self, shape: Shape, axes: Axes) -> list[Layout]:
        """Return the layouts for a result of this local shape that may vary over these axes."""
        if not axes:
            return [((),) * len(shape)]
        whole = [layout for wide, layout in self.arguments
                 if len(wide) == len(shape) and self.over(layout) == axes
                 and all(self.is_part(e, n, entry) for e, n, entry in zip(shape, wide, layout))]
        return list(dict.fromkeys(whole)) or list(self.by_dims(shape, axes))

    def over(self, entries: Sequence[LayoutEntry]) -> Axes:
        return frozenset(a for entry in entries for a in entry) - self.alone

    def is_part(self, extent: Expr, wide: Expr, entry: LayoutEntry) -> bool:
        return same_extent(local_extent(self.mesh, wide, entry), extent)

    def by_dims(self, shape: Shape, axes: Axes) -> Iterator[Layout]:
        """Yield layouts in which every dim that is cut has the extent of a cut dim of an
        argument."""
        entries = self.entries(axes)
        choices = [[*(e for e in entries if self.cut(extent, e)), ()] for extent in shape]
        for layout in itertools.product(*choices):
            used = [a for entry in layout for a in entry]
            if len(used) == len(set(used)) and axes == set(used) and self.joins(shape, layout):
                yield layout

    def entries(self, axes: Axes) -> list[LayoutEntry]:
        """Return the layout entries that may cut a dim within these axes: one axis, or as a dim of
        an argument is cut."""
        single: list[LayoutEntry] = [(a,) for a in self.mesh.names if a in axes]
        argument_entries = [self.real(entry) for _, layout in self.arguments for entry in layout]
        return [e for e in dict.fromkeys([*single, *argument_entries]) if e and axes.issuperset(e)]

    def cut(self, extent: Expr, entry: LayoutEntry) -> bool:
        """Return whether a dim of an argument is cut over these axes into parts of this extent.
        Where the extent differs between ranks, it is enough that a dim could be cut so: equal
        formulas are no coincidence."""
        uneven = bool(_coords(extent))
        return any(self.is_part(extent, n, entry) for wide, layout in self.arguments
                   for n, its in zip(wide, layout)
                   if self.real(its) == entry or uneven)

    def real(self, entry: LayoutEntry) -> LayoutEntry:
        """Return the entry without axes that have one rank."""
        return tuple(a for a in entry if a not in self.alone)

    def joins(self, shape: Shape, layout: Layout) -> bool:
        """Return whether these extents are balanced blocks."""
        return all(not _coords(e) or bool(entry) and self.cut(e, entry)
                   for e, entry in zip(shape, layout))


def _coords(extent: Expr) -> list[str]:
    return [s.name for s in extent.symbols() if s.kind == "coord"]


# ---- the error where they do not follow ----------------------------------------------------------


class _Refused:
    """Result k of a shard_map, whose layout does not follow. fitting: for each result, the layouts
    that fit. axis: the axis because of which none fits, as far as that is known.
    """

    def __init__(
        self, cuts: _Cuts, returned: Any, known: InBody, fitting: Sequence[Sequence[Layout]], k: int
    ) -> None:
        self.cuts, self.returned, self.known = cuts, returned, known
        self.fitting, self.k = fitting, k
        self.value = known.body.results[k]
        self.shape = self.value.type.shape
        varies = known.varies(self.value)
        self.axes = [a for a in cuts.mesh.names if a in varies]
        without = {a: cuts.fitting(self.shape, varies - {a}) for a in self.axes}
        self.axis = next((a for a in self.axes if len(without[a]) == 1), self.axes[0])
        self.rest = without[self.axis]

    def error(self) -> LayoutError:
        cause, place = self.known.cause(self.value, self.axis)
        here = user_place()
        also: tuple[tuple[str, Place], ...] = ()
        if place is not None and str(place) != str(here):
            also = ((f"{cause} here:", place),)
        fits = " and ".join(layout_text(layout) for layout in self.fitting[self.k])
        known = f"{self.value.type}: " if all(e.is_const for e in self.shape) else ""
        entries = self.cuts.entries(frozenset(self.axes))
        other = [d for d, e in enumerate(self.shape)
                 if not any(self.cuts.joins((e,), (entry,)) for entry in entries)]
        uneven = f"dim {other[0]} has other extents on other ranks; " if other else ""
        which = f"result {self.k} of this" if len(self.fitting) > 1 else "the result of this"
        differs = "differs" if self.sure else "may differ"
        return LayoutError(
            f"{which} shard_map needs out_layouts: it {differs} between the ranks along "
            f"{axes_text(self.axes)}", place=here, also=also,
            expected="a result that is equal on all ranks, or one that is cut as an argument is",
            found=f"{known or uneven}{cause}" + (f"; {fits} fit" if fits else ""),
            remedy="; ".join(self.ways()),
        )

    @property
    def sure(self) -> bool:
        return self.axis in self.known.surely(self.value)

    def ways(self) -> Iterator[str]:
        name = f'"{self.axis}"'
        if fits := self.fitting[self.k]:
            yield f"{self.written(fits[0])}, or as you mean it"
            return
        joined = self.suggested(self.value, self.known.varies(self.value))
        if self.shape and self.cuts.joins(self.shape, joined):
            yield f"{self.written(joined)} joins the parts"
        elif len(self.rest) == 1 and self.cuts.joins(self.shape, self.rest[0]):
            more = self.written(((self.axis,), *self.rest[0]))
            yield f"np.expand_dims(value, 0) with {more} returns every rank's"
        elif not self.shape:
            yield f"np.reshape(value, 1) with {self.written(joined)} returns every rank's"
        else:
            yield "give it one shape on all ranks, or the extent of an argument's part"
            yield f"{self.even()} makes those parts equal"
            return
        yield f"spmd.psum(value, {name}) combines what the ranks have"
        if not self.sure:
            yield "out_layouts=spmd.replicated where you know that they have the same"

    def even(self) -> str:
        """Return a condition as text: the number of ranks divides the dims that this axis cuts."""
        dims = [n for wide, layout in self.cuts.arguments
                for n, entry in zip(wide, layout) if self.axis in entry]
        n = str(dims[0]) if dims and dims[0].is_const else "n"
        return f'spmd.require({n} % spmd.axis_size("{self.axis}") == 0)'

    def suggested(self, value: Value, axes: Axes) -> Layout:
        """Return a layout with each axis along the dim that it cuts, the first dim where there is
        none."""
        shape = value.type.shape
        entries: list[LayoutEntry] = [()] * max(len(shape), 1)
        for axis in self.cuts.mesh.axes:
            if axis.name in axes:
                cut = [d for d, e in enumerate(shape) if axis.coord_sym.name in _coords(e)]
                d = cut[0] if cut else 0
                entries[d] = (*entries[d], axis.name)
        return tuple(entries)

    def written(self, layout: Layout) -> str:
        """Return out_layouts=, with this layout for result k, and a place for each other."""
        layouts = [candidates[0] if candidates else self.suggested(v, self.known.varies(v))
                   for v, candidates in zip(self.known.body.results, self.fitting)]
        layouts[self.k] = layout
        return _written(self.returned, layouts)


def _written(returned: Any, layouts: Sequence[Layout]) -> str:
    """Return out_layouts=, with a place for each result."""
    if isinstance(returned, dict) and len(returned) == len(layouts):
        items = ", ".join(f"{k!r}: {layout_text(x)}" for k, x in zip(returned, layouts))
        return f"out_layouts={{{items}}}"
    if isinstance(returned, (tuple, list)):
        inner = ", ".join(map(layout_text, layouts))
        return f"out_layouts=({inner},)" if len(layouts) == 1 else f"out_layouts=({inner})"
    return f"out_layouts={layout_text(layouts[0])}"
