"""Whether rows of several calls may be joined into one: what a row of the outputs depends on.

Goes in: a captured Graph. Backwards over it, from a block of rows of the outputs, ops say on which
parts of their operands it depends, as they tell the partitioner; the blocks are those of an axis
that no mesh has. Comes out, of each body of the module: the dim whose rows are independent, or why
none is. Always holds: who joins along that dim gets what each call gives that is made by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen.errors import Place
from codegen.ir import cuts
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import Entry, Module, Op, Output, Region, Scalar, Value, free_values, walk
from codegen.layouts.localize import Localizer
from codegen.mesh import Axis, Mesh
from codegen.ops import Branch, Expect, Feeding, Full, Let, Loop, Point, Print, Reduce, Save
from codegen.ops.kind import exprs_in
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

ROWS = "a call's rows"  # the axis; no name of a user's axis has a blank
EXTENTS = ("shape", "types")  # fields with the extents of results, which windows speak of


@dataclass(frozen=True)
class IndependentRows:
    """The answer for one entry. dim: along which rows of calls may be joined, or "". because,
    place: why not, and where."""

    dim: str = ""
    because: str = ""
    place: Place | None = None


class _DependenceError(Exception):
    """A row depends on more than the same row of the inputs."""

    def __init__(self, because: str, place: Place | None = None) -> None:
        super().__init__(because)
        self.found = IndependentRows("", because, place)


def independent_rows(graph: Module) -> list[IndependentRows]:
    """Return what holds of each entry, in their order, or of a module that has none."""
    if not graph.entries:
        return [_of_body(graph, graph.body, None)]
    return [_of_body(graph, region, entry) for region, entry in zip(graph.bodies, graph.entries)]


def _of_body(graph: Module, region: Region, entry: Entry | None) -> IndependentRows:
    """Return the first dim of the inputs whose rows are independent; else why the first is not."""
    inputs = graph.inputs if entry is None else [graph.inputs[k] for k in entry.inputs]
    extents = {s for i in inputs for e in i.shape for s in e.symbols()}
    dims = [s for s in graph.scalars if s.at_most is not None and s.sym in extents]
    if entry is not None and (entry.rebinds or entry.updates):
        return IndependentRows(because="it changes state", place=entry.place)
    if not dims:
        return IndependentRows(because="no input has a dim with at_most=")
    refusals = []
    for dim in dims:
        try:
            _Dependences(graph, dim).body(region, entry)
            return IndependentRows(dim.name)
        except _DependenceError as error:
            refusals.append(error.found)
    return refusals[0]


class _Dependences:
    """Finds on what a block of rows along one dim depends. wanted: of each value that it
    depends on, the part; a dim that is not cut along ROWS is wanted whole."""

    def __init__(self, graph: Module, dim: Scalar) -> None:
        assert dim.sym is not None
        self.graph, self.dim = graph, dim.name
        self.sym, self.extent = dim.sym, expr.symbol(dim.sym)
        self.mesh = Mesh((*graph.mesh.axes, Axis(ROWS)))
        self.rules = Localizer(self.mesh, lambda value, dim: ())
        self.block = cuts.block((ROWS,), self.extent)
        self.wanted: dict[Value, Window] = {}

    def body(self, region: Region, entry: Entry | None) -> None:
        """Raise _DependenceError unless rows of what the region computes are independent."""
        for op in walk(self.graph.body):
            self.rules.define(op)
        for op in walk(region):
            if isinstance(op.kind, Print | Save | Point | Feeding):
                raise _DependenceError(f"has a {op.kind.name} for each call", op.place)
        outputs = self.graph.outputs
        if entry is None:
            results = [(o, o.value) for o in outputs]
        else:
            branch = self.graph.body.ops[-1]
            arm = dict(zip(branch.results, region.results, strict=True))
            results = [(outputs[k], arm[outputs[k].value]) for k in entry.outputs]
        for output, value in results:
            source = self.rules.defs.get(value)
            self.want(value, self.of_output(output), source.place if source else None)
        self.region(region)
        if entry is not None:
            self.ops(self.graph.body.ops[:-1])
        for i in self.graph.inputs:
            self.check_input(i.value)

    def of_output(self, output: Output) -> Window:
        """Return the block of rows of an output; all of one that has none."""
        window = self.along_rows(output.shape)
        along = [self.is_cut(cut) for cut, e in zip(window, output.shape)
                 if self.sym in e.symbols()]
        if along not in ([], [True]):
            raise _DependenceError(f"output {output.name} has not one row for each of {self.dim}")
        return window

    def along_rows(self, shape: Iterable[Expr]) -> Window:
        """Return the block of rows in a shape."""
        return tuple(self.block if e == self.extent else cuts.whole(e) for e in shape)

    def is_cut(self, cut: Cut) -> bool:
        return cut.axes == (ROWS,)

    def check_input(self, value: Value) -> None:
        """Raise _DependenceError for an input of which other rows are wanted than the block."""
        window = self.wanted.get(value)
        if window is None:
            return
        along = [d for d, cut in enumerate(window) if self.is_cut(cut)]
        if not along:
            return
        same = (value.type.shape[along[0]] == self.extent
                and window[along[0]].bounds(self.mesh) == self.block.bounds(self.mesh))
        if len(along) > 1 or not same:
            raise _DependenceError(f"a row of the outputs follows from another row of {value.name}")

    # ---- backwards -----------------------------------------------------------------------------

    def want(self, value: Value, window: Window, place: Place | None) -> None:
        """Note that a part of a value is wanted, at a place of the source."""
        window = tuple(cut if self.is_cut(cut) else cuts.whole(e)
                       for cut, e in zip(window, value.type.shape, strict=True))
        if any(self.sym in e.symbols() and not self.is_cut(cut)
               for cut, e in zip(window, value.type.shape)):
            raise _DependenceError(f"reads all of {self.dim}", place)
        around = any(cut.period is not None for cut in window)
        if around or self.wanted.setdefault(value, window) != window:
            raise _DependenceError(f"reads other rows of {self.dim}", place)

    def whole(self, value: Value, op: Op) -> None:
        self.want(value, tuple(map(cuts.whole, value.type.shape)), op.place)

    def region(self, region: Region) -> None:
        self.ops(region.ops)

    def ops(self, ops: Iterable[Op]) -> None:
        for op in reversed(tuple(ops)):
            self.op(op)

    def op(self, op: Op) -> None:
        """Note what the parts of an op's results that are wanted depend on."""
        kind = op.kind
        if isinstance(kind, Let):
            self.whole(op.operands[0], op)
            return
        if isinstance(kind, Expect):
            self.expect(op)
            return
        if op.regions:
            self.with_regions(op)
            return
        window = self.of_results(op)
        if window is None:
            return
        self.check_fields(op)
        if isinstance(kind, Full):
            return
        if not op.operands and any(map(self.is_cut, window)):
            raise _DependenceError(f"depends on where in {self.dim} a row stands", op.place)
        parts = kind.depends(op, window, self.rules)
        if not kind.is_view:
            self.check_parts(op, window, parts)
        for value, part in zip(op.operands, parts, strict=True):
            if part is not None:
                self.want(value, part, op.place)

    def expect(self, op: Op) -> None:
        """Record the rows that an assertion reads. An `all` over rows is taken element by element:
        if it holds for the joined rows of several calls, it holds for each call."""
        holds, *shown = op.operands
        source = self.rules.defs.get(holds)
        if source is not None and isinstance(source.kind, Reduce) and source.kind.fn == "and":
            (holds,) = source.operands
        for value in (holds, *shown):
            self.want(value, self.along_rows(value.type.shape), op.place)

    def of_results(self, op: Op) -> Window | None:
        """Return the part of the first result that is wanted. All results are of one batch: a block
        of another one is along the same dim."""
        wanted: Window | None = None
        for value in op.results:
            window = self.wanted.get(value)
            if window is None:
                continue
            along = {d: cut for d, cut in enumerate(window) if self.is_cut(cut)}
            shape = op.results[0].type.shape
            if any(shape[d:d + 1] != value.type.shape[d:d + 1] for d in along):
                raise _DependenceError(f"reads other rows of {self.dim}", op.place)
            part = tuple(along.get(d) or cuts.whole(e) for d, e in enumerate(shape))
            if wanted is not None and wanted != part:
                raise _DependenceError(f"reads other rows of {self.dim}", op.place)
            wanted = part
        return wanted

    def check_fields(self, op: Op) -> None:
        """Raise _DependenceError where an op says something that follows from the number of rows,
        beside the extents of its results."""
        for name, field in op.kind.attributes().items():
            if name not in EXTENTS and any(self.sym in e.symbols() for e in exprs_in(field)):
                raise _DependenceError(f"depends on how many rows {self.dim} has", op.place)

    def check_parts(self, op: Op, window: Window, parts: Sequence[Window | None]) -> None:
        """Raise _DependenceError unless each row is computed of the same rows, and alike: what is
        not read along these rows, or written along them, may be of some rows only."""
        rows = set(filter(self.is_cut, window))
        read = [set(filter(self.is_cut, part or ())) for part in parts]
        if not rows.issuperset(set().union(*read)):
            raise _DependenceError(f"reads other rows of {self.dim}", op.place)
        if not rows <= (read[1] if op.kind.in_place else set().union(*read)):
            raise _DependenceError(f"depends on where in {self.dim} a row stands", op.place)

    # ---- control flow --------------------------------------------------------------------------

    def with_regions(self, op: Op) -> None:
        """Note what loops and branches depend on; of other ops with regions, all that they read."""
        kind = op.kind
        if isinstance(kind, Loop):
            self.loop(op)
            return
        self.check_fields(op)
        for value in op.operands:
            self.whole(value, op)
        if not isinstance(kind, Branch):
            for value in (v for region in op.regions for v in free_values(region)):
                self.whole(value, op)
            return
        for region in op.regions:
            for value, result in zip(op.results, region.results, strict=True):
                if (window := self.wanted.get(value)) is not None:
                    self.want(result, window, op.place)
            self.region(region)

    def loop(self, op: Op) -> None:
        """Want in every turn of a loop what is wanted of a carried value."""
        self.check_fields(op)
        *condition, body = op.regions
        for region in condition:
            for value in region.results[:1]:
                self.whole(value, op)
        before = -1
        while before != len(self.wanted):
            before = len(self.wanted)
            for k, value in enumerate(op.results):
                carried = [value, op.operands[k], body.results[k], *(r.args[k] for r in op.regions)]
                known = next((w for v in carried if (w := self.wanted.get(v)) is not None), None)
                if known is not None:
                    for other in carried:
                        self.want(other, known, op.place)
            for region in op.regions:
                self.region(region)
