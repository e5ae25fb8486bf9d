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

    given: the axes over which values from outside are split; others are equal on all ranks.
    """

    def __init__(self, mesh: Mesh, given: Mapping[Value, Iterable[str]]) -> None:
        self.alone = frozenset(a.name for a in mesh.axes if a.fixed == 1)
        self.coords = {a.coord_sym.name: frozenset({a.name}) - self.alone for a in mesh.axes}
        self.counters: dict[str, Axes] = {}
        self.trips: dict[Op, Axes] = {}
        self.of: dict[Value, Axes] = {v: frozenset(axes) - self.alone for v, axes in given.items()}

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        what = op.what
        if isinstance(what, Loop):
            self.loop(op, what)
        elif isinstance(what, Branch):
            self.branch(op, what)
        elif isinstance(what, Let):
            self.counters[what.counter.name] = self.values(op.operands)
        elif isinstance(what, Point):
            self.of.update((v, self.values([x])) for x, v in zip(op.operands, op.results))
        elif isinstance(what, Take):
            for value, layout in zip(op.results, layouts_of(op), strict=True):
                self.of[value] = self.taken(layout)
        elif op.regions:  # of what is said together, while a program is traced
            for region in op.regions:
                self.region(region)
                for value, made in zip(op.results, region.results, strict=True):
                    self.of[value] = self.values([made])
        else:
            given = self.values(op.operands)
            if isinstance(what, Exchange):
                axes = self.exchanged(what, given)
            else:
                axes = given | self.exprs(what.exprs())
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
        if isinstance(op.what, Loop):
            return self.trips[op]
        return self.on(op, op.what) if isinstance(op.what, Branch) else NONE

    def exchanged(self, what: Exchange, given: Axes) -> Axes:
        """Return the axes over which an exchange's result varies, whose operand varies over the
        axes `given`."""
        axes = (given | self.exprs(what.exprs())) - set(what.axes)
        by = what.differs()
        return axes | (frozenset(what.axes) - self.alone if by is None else self.exprs(by))

    def branch(self, op: Op, what: Branch) -> None:
        on = self.on(op, what)
        for arm in op.regions:
            self.region(arm)
        for k, value in enumerate(op.results):
            given = [arm.results[k] for arm in op.regions]
            one = all(v is given[0] for v in given)
            self.of[value] = self.values(given) | (NONE if one else on)

    def on(self, op: Op, what: Branch) -> Axes:
        """Return the axes over which the choice of a branch's arm varies."""
        return self.values(op.operands) if what.on is None else self.expr(what.on)

    def loop(self, op: Op, what: Loop) -> None:
        bounds = self.exprs(e for e in (what.start, what.stop, what.step) if e is not None)
        if what.counter is not None:
            self.counters[what.counter.name] = bounds
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
        self, mesh: Mesh, given: Mapping[Value, Iterable[str]], said: Mapping[Value, Axes]
    ) -> None:
        super().__init__(mesh, given)
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

    def branch(self, op: Op, what: Branch) -> None:
        before, self.around = self.around, self.around | self.on(op, what)
        super().branch(op, what)
        self.around = before

    def loop(self, op: Op, what: Loop) -> None:
        super().loop(op, what)
        if more := self.trips[op] - self.around:
            self.around |= more
            super().loop(op, what)
            self.around -= more


class Received(Variance):
    """The axes along which a value may depend on what other ranks have: that came from there, and
    is not the same for all. Such values may be equal though they were made differently."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh, {})
        self.coords = {}

    def taken(self, layout: Layout) -> Axes:
        return NONE

    def exchanged(self, what: Exchange, given: Axes) -> Axes:
        axes = given | self.exprs(what.exprs())
        if what.differs() == []:
            return axes - set(what.axes)
        return axes | set(what.axes) if what.moves else axes


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
            for loop in walk(body) if isinstance(loop.what, Loop)
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
        found: Place | None = None
        while left:
            value = left.pop()
            if value in seen or axis not in self.varies(value):
                continue
            seen.add(value)
            op = self.made.get(value)
            if op is None and value in self.body.args:
                return f'argument "{value.name}", which is split over "{axis}", goes in', found
            before = self._ends.get(value, ()) if op is None else tuple(self._before(op, value))
            found = op.place if op else found
            if op is not None and isinstance(op.what, Take):
                return (f'field "{op.what.fields[op.results.index(value)]}" of feed '
                        f'"{op.what.feed}", which is split over "{axis}", goes in'), found
            if op is not None and not any(axis in self.varies(v) for v in before):
                break
            left += before
        return f'the index along "{axis}" goes in', found

    def _before(self, op: Op, value: Value) -> Iterator[Value]:
        """Yield the values that a result follows from."""
        k = op.results.index(value)
        if isinstance(op.what, Loop):
            yield op.regions[-1].results[k]
            yield from (v for test in op.regions[:-1] for v in test.results)
        else:
            yield from (region.results[k] for region in op.regions)
        yield from op.operands


def layouts_of(op: Op) -> tuple[Layout, ...]:
    """Return the layouts of the fields that a Take makes."""
    assert isinstance(op.what, Take)
    if op.what.homes:
        return tuple(layout for _, layout in op.what.homes)
    return tuple(layout_of(v.type) for v in op.results)


def analysed(program: Module) -> Variance:
    """Return the variance of the values of a Program."""
    split = {i.value: [a for entry in i.layout for a in entry] for i in program.inputs}
    found = Variance(program.mesh, split)
    for region in program.regions:
        found.region(region)
    return found


def turns_apart(program: Module) -> dict[Value, Axes]:
    """Return, by result of a loop, the axes along which ranks may have made other turns of it,
    anywhere in the program. Defaults: an input may be given to some processes only."""
    found = analysed(program)
    apart: dict[Value, Axes] = {}

    def within(region: Region, around: Axes) -> None:
        for op in region.ops:
            axes = around | found.passing(op)
            if isinstance(op.what, Loop):
                apart.update(dict.fromkeys(op.results, axes))
            for inner in op.regions:
                within(inner, axes)

    for i in program.inputs:
        if i.default is not None:
            within(i.default, frozenset(program.mesh.names) - found.alone)
    within(program.body, NONE)
    return apart
