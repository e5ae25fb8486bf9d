"""Where ranks may differ: which values of a Program, or of a shard_map, vary over which axes.

Goes in: a mesh, and what is split over which axes. Comes out: axes per value, of regions walked.
Always holds: a value that is not said to vary over an axis is equal on all ranks along it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from codegen.errors import Place
from codegen.ir.graph import DefUse, Module, Op, Region, Value, walk
from codegen.mesh import Layout, Mesh
from codegen.ops import Branch, Exchange, Let, Loop, Point, Take
from codegen.ops.kind import layout_of
from codegen.symbolic.expr import Expr

Axes = frozenset[str]
NONE: Axes = frozenset()


class Variance:
    """The axes over which values vary. of: per value. counters: per loop counter, by name. trips:
    how often a loop runs.

    split: the axes over which values from outside are split; others are equal on all ranks.
    """

    def __init__(self, mesh: Mesh, split: Mapping[Value, Iterable[str]]) -> None:
        self.alone = frozenset(a.name for a in mesh.axes if a.fixed == 1)
        self.coords = {a.coord_sym.name: frozenset({a.name}) - self.alone for a in mesh.axes}
        self.counters: dict[str, Axes] = {}
        self.trips: dict[Op, Axes] = {}
        self.of: dict[Value, Axes] = {v: frozenset(axes) - self.alone for v, axes in split.items()}

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        kind = op.kind
        if isinstance(kind, Loop):
            self.loop(op, kind)
        elif isinstance(kind, Branch):
            self.branch(op, kind)
        elif isinstance(kind, Let):
            self.counters[kind.counter.name] = self.values(op.operands)
        elif isinstance(kind, Point):
            self.of.update((v, self.values([x])) for x, v in zip(op.operands, op.results))
        elif isinstance(kind, Take):
            for value, layout in zip(op.results, layouts_of(op), strict=True):
                self.of[value] = self.taken(layout)
        elif op.regions:  # of what is said together, while a program is traced
            for region in op.regions:
                self.region(region)
                for value, end in zip(op.results, region.results, strict=True):
                    self.of[value] = self.values([end])
        else:
            axes_in = self.values(op.operands)
            if isinstance(kind, Exchange):
                axes = self.exchanged(kind, axes_in)
            else:
                axes = axes_in | self.exprs(kind.exprs())
            for value in op.results:
                self.of[value] = axes | self.exprs(value.type.shape)

    def taken(self, layout: Layout) -> Axes:
        """Return the axes over which a field of a batch varies."""
        return frozenset(a for entry in layout for a in entry) - self.alone

    def values(self, values: Iterable[Value]) -> Axes:
        return NONE.union(*(self.of.get(v, NONE) for v in values))

    def expr(self, e: Expr) -> Axes:
        tables = {"coord": self.coords, "counter": self.counters}
        return NONE.union(*(tables[s.kind].get(s.name, NONE) for s in e.symbols()
                             if s.kind in tables))

    def exprs(self, exprs: Iterable[Expr]) -> Axes:
        return NONE.union(*map(self.expr, exprs))

    def passing(self, op: Op) -> Axes:
        """Return the axes along which ranks may come through a loop or a branch in different
        ways."""
        if isinstance(op.kind, Loop):
            return self.trips[op]
        return self.on(op, op.kind) if isinstance(op.kind, Branch) else NONE

    def exchanged(self, kind: Exchange, axes_in: Axes) -> Axes:
        """Return the axes over which an exchange's result varies, whose operand varies over the
        axes `axes_in`."""
        axes = (axes_in | self.exprs(kind.exprs())) - set(kind.axes)
        by = kind.differs()
        return axes | (frozenset(kind.axes) - self.alone if by is None else self.exprs(by))

    def branch(self, op: Op, kind: Branch) -> None:
        on = self.on(op, kind)
        for arm in op.regions:
            self.region(arm)
        for k, value in enumerate(op.results):
            ends = [arm.results[k] for arm in op.regions]
            is_same = all(v is ends[0] for v in ends)
            self.of[value] = self.values(ends) | (NONE if is_same else on)

    def on(self, op: Op, kind: Branch) -> Axes:
        """Return the axes over which the choice of a branch's arm varies."""
        return self.values(op.operands) if kind.on is None else self.expr(kind.on)

    def loop(self, op: Op, kind: Loop) -> None:
        bounds = self.exprs(e for e in (kind.start, kind.stop, kind.step) if e is not None)
        if kind.counter is not None:
            self.counters[kind.counter.name] = bounds
        carried = [self.values([v]) for v in op.operands]
        while True:
            for region in op.regions:
                for value, axes in zip(region.args, carried, strict=True):
                    self.of[value] = axes
                self.region(region)
            ends = op.regions[-1].results
            again = [a | self.values([v]) for a, v in zip(carried, ends, strict=True)]
            if again == carried:
                break
            carried = again
        test = self.values(op.regions[0].results) if len(op.regions) == 2 else NONE
        self.trips[op] = bounds | test
        for value, axes in zip(op.results, carried, strict=True):
            self.of[value] = axes | self.trips[op]


class Families(Variance):
    """The axes over which values vary for derivatives: a value counts as one per rank along them.
    What arms and turns make varies as who comes through them does.

    said: of values, axes over which they vary whatever they are made of.
    """

    def __init__(
        self, mesh: Mesh, split: Mapping[Value, Iterable[str]], said: Mapping[Value, Axes]
    ) -> None:
        super().__init__(mesh, split)
        self.mesh, self.around, self.said = mesh, NONE, said

    def copied(self) -> Families:
        """Return a copy, to which others may add values."""
        new = Families(self.mesh, {}, self.said)
        new.of, new.counters, new.trips = dict(self.of), dict(self.counters), dict(self.trips)
        return new

    def values(self, values: Iterable[Value]) -> Axes:
        return super().values(values) | self.around

    def varies(self, value: Value) -> Axes:
        return self.of.get(value, NONE)

    def op(self, op: Op) -> None:
        super().op(op)
        for value in op.results:
            if value in self.said:
                self.of[value] |= self.said[value] - self.alone

    def branch(self, op: Op, kind: Branch) -> None:
        before, self.around = self.around, self.around | self.on(op, kind)
        super().branch(op, kind)
        self.around = before

    def loop(self, op: Op, kind: Loop) -> None:
        super().loop(op, kind)
        if more := self.trips[op] - self.around:
            self.around |= more
            super().loop(op, kind)
            self.around -= more


class Received(Variance):
    """The axes along which a value may depend on what other ranks have: that came from there, and
    is not the same for all. Such values may be equal though they were made differently."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh, {})
        self.coords = {}

    def taken(self, layout: Layout) -> Axes:
        return NONE

    def exchanged(self, kind: Exchange, axes_in: Axes) -> Axes:
        axes = axes_in | self.exprs(kind.exprs())
        if kind.differs() == []:
            return axes - set(kind.axes)
        return axes | set(kind.axes) if kind.moves else axes


class InBody:
    """The variance of one shard_map: over which axes its values may vary, over which surely, and
    because of what.

    layouts: of its arguments.
    """

    def __init__(self, mesh: Mesh, body: Region, layouts: Sequence[Layout]) -> None:
        self.body = body
        split = {v: [a for entry in layout for a in entry]
                 for v, layout in zip(body.args, layouts, strict=True)}
        self._varies, self._received = Variance(mesh, split), Received(mesh)
        self._varies.region(body)
        self._received.region(body)
        self.made = DefUse.of(body).defs
        self._ends = {
            arg: (loop.operands[k], region.results[k] if region is loop.regions[-1] else arg)
            for loop in walk(body) if isinstance(loop.kind, Loop)
            for region in loop.regions for k, arg in enumerate(region.args)
        }

    def varies(self, value: Value) -> Axes:
        """Return the axes over which a value may vary; along others it is equal on all ranks."""
        return self._varies.values([value])

    def surely(self, value: Value) -> Axes:
        """Return those axes of `varies` along which nothing that other ranks sent can make a value
        equal again."""
        return self.varies(value) - self._received.values([value])

    def cause(self, value: Value, axis: str) -> tuple[str, Place | None]:
        """Return why a value varies over an axis: what the index, or an argument, goes into."""
        seen: set[Value] = set()
        left = [value]
        place: Place | None = None
        while left:
            value = left.pop()
            if value in seen or axis not in self.varies(value):
                continue
            seen.add(value)
            op = self.made.get(value)
            if op is None and value in self.body.args:
                return f'argument "{value.name}", which is split over "{axis}", goes in', place
            before = self._ends.get(value, ()) if op is None else tuple(self._before(op, value))
            place = op.place if op else place
            if op is not None and isinstance(op.kind, Take):
                return (f'field "{op.kind.fields[op.results.index(value)]}" of feed '
                        f'"{op.kind.feed}", which is split over "{axis}", goes in'), place
            if op is not None and not any(axis in self.varies(v) for v in before):
                break
            left += before
        return f'the index along "{axis}" goes in', place

    def _before(self, op: Op, value: Value) -> Iterator[Value]:
        """Yield the values that a result follows from."""
        k = op.results.index(value)
        if isinstance(op.kind, Loop):
            yield op.regions[-1].results[k]
            yield from (v for test in op.regions[:-1] for v in test.results)
        else:
            yield from (region.results[k] for region in op.regions)
        yield from op.operands


def layouts_of(op: Op) -> tuple[Layout, ...]:
    """Return the layouts of the fields that a Take makes."""
    assert isinstance(op.kind, Take)
    if op.kind.homes:
        return tuple(layout for _, layout in op.kind.homes)
    return tuple(layout_of(v.type) for v in op.results)


def analysed(program: Module) -> Variance:
    """Return the variance of the values of a Program."""
    split = {i.value: [a for entry in i.layout for a in entry] for i in program.inputs}
    variance = Variance(program.mesh, split)
    for region in program.regions:
        variance.region(region)
    return variance


def turns_apart(program: Module) -> dict[Value, Axes]:
    """Return, by result of a loop, the axes along which ranks may have made other turns of it,
    anywhere in the program. Defaults: an input may be given to some processes only."""
    variance = analysed(program)
    apart: dict[Value, Axes] = {}

    def within(region: Region, around: Axes) -> None:
        for op in region.ops:
            axes = around | variance.passing(op)
            if isinstance(op.kind, Loop):
                apart.update(dict.fromkeys(op.results, axes))
            for inner in op.regions:
                within(inner, axes)

    for i in program.inputs:
        if i.default is not None:
            within(i.default, frozenset(program.mesh.names) - variance.alone)
    within(program.body, NONE)
    return apart
