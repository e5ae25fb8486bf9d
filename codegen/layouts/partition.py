"""Graph to Program: from global arrays to one rank's view of them.

Every global value becomes the parts that its uses need (codegen.layouts.demands), every op the
local ops that compute them (codegen.layouts.localize), every shard_map the ops of its region. What
a rank needs and does not hold is exchanged where the array is defined (codegen.layouts.parts).
Always holds: the Program computes the Graph's values; no number of ranks is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from codegen.ir import cuts
from codegen.ir.cuts import Window, home, layout_of
from codegen.ir.graph import ArrayType, Module, Op, Region, Value
from codegen.layouts.demands import Demands
from codegen.layouts.parts import Parts
from codegen.ops import (
    Branch,
    Expect,
    Full,
    Kernel,
    Kind,
    Loop,
    Point,
    Save,
    Send,
    ShardMap,
    Take,
    Update,
)
from codegen.ops.views import begin
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def partition(graph: Module, demands: Demands | None = None) -> Module:
    """Return the Program of a Graph. `demands` are those of the Graph, if the caller has them
    already."""
    work = _Partition(demands or Demands(graph))
    inputs = []
    for i in graph.inputs:
        local = Value(i.name, work.local_type(i.value))
        inputs.append(replace(i, value=local))
        work.have(i.value, local)
    work.region(graph.body)
    outputs = tuple(
        replace(o, value=work.need(o.value, cuts.blocks(o.shape, o.layout))) for o in graph.outputs
    )
    body = Region((), tuple(work.ops), ())
    return replace(graph, level="program", inputs=tuple(inputs), body=body, outputs=outputs,
                   origins=work.origins, starts=work.starts)


class _Partition(Parts):
    """Builds the Program of a Graph: emits, for each op, the ops of one rank."""

    def __init__(self, demands: Demands) -> None:
        super().__init__(demands)
        self.local: dict[Value, Value] = {}  # values of shard_maps, which are local already
        self.rooms = self.demands.rooms
        self.with_room: dict[Value, Value] = {}  # the arrays of values that have room

    # ---- ops -------------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[list[Op]]:
        """Collect the ops of a region. Parts that are computed inside it are not known after it."""
        self.parts.append({})
        with self.inside() as ops:
            yield ops
        self.parts.pop()

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Emit the local ops of one op of the Graph."""
        if self.demands.is_view(op):
            return
        kind = op.kind
        if isinstance(kind, ShardMap):
            self.shard_map(op, kind)
        elif isinstance(kind, Loop | Branch):
            self.control(op)
        elif isinstance(kind, Kernel):
            self.kernel(op, kind)
        elif isinstance(kind, Point):
            self.point(op, kind)
        elif isinstance(kind, Send):
            self.sent(op, kind)
        elif kind.at_home:
            operands = tuple(self.need(v, home(v)) for v in op.operands)
            results = tuple(Value(v.name, self.local_type(v)) for v in op.results)
            if isinstance(kind, Expect):
                kind = kind.but(start=cuts.lows(self.mesh, home(op.operands[0])))
            elif isinstance(kind, Take):
                homes = tuple((v.type.shape, layout_of(v)) for v in op.results)
                kind = kind.but(types=tuple(v.type for v in results), homes=homes)
            elif isinstance(kind, Save):
                (v,) = op.operands
                kind = kind.but(home=(v.type.shape, layout_of(v)))
            self.place = op.place
            self.add(kind, operands, results)
            for value, local in zip(op.results, results):
                self.have(value, local)
        elif len(op.results) > 1:
            self.several(op)
        else:
            (value,) = op.results
            if value in self.rooms.of:
                self.keep(op)
                return
            for window in self.demands.of[value].made:
                self.parts[-1][value, window] = self.make(op, window)
            self.fetch_wanted(value)

    def point(self, op: Op, kind: Point) -> None:
        """Add a point to the Program. Carried values lie in balanced blocks, or whole in an array
        with ghost cells."""
        rooms = [self.rooms.of.get(v) for v in op.results]
        operands, results, homes = [], [], []
        for x, v, room in zip(op.operands, op.results, rooms, strict=True):
            operands.append(self.need(x, home(x)) if room is None else self.roomy(x, room))
            results.append(Value(v.name, operands[-1].type))
            lows = zip(cuts.lows(self.mesh, home(v)), cuts.lows(self.mesh, room or home(v)))
            before = tuple(own - first for own, first in lows)
            homes.append((v.type.shape, layout_of(v), None if room is None else before))
        self.place = op.place
        self.add(kind.but(homes=tuple(homes)), operands, results)
        for v, local, room in zip(op.results, results, rooms, strict=True):
            if room is None:
                self.have(v, local)
            else:
                self.lies(v, local)

    def sent(self, op: Op, kind: Send) -> None:
        """Add a send to the Program. The answers to a batch are laid out as the op says."""
        homes = tuple((v.type.shape, to) for v, to in zip(op.operands, kind.layouts, strict=True))
        operands = [self.need(v, cuts.blocks(*home)) for v, home in
                    zip(op.operands, homes, strict=True)]
        self.place = op.place
        self.add(kind.but(homes=homes), operands)

    def several(self, op: Op) -> None:
        """Add an op with several results, such as those of one batched routine, on balanced
        blocks."""
        windows = self.rules.needs(op, home(op.results[0]))
        operands = tuple(self.need(v, w) for v, w in zip(op.operands, windows, strict=True))
        results = tuple(Value(v.name, self.local_type(v)) for v in op.results)
        self.place = op.place
        self.add(op.kind, operands, results)
        for value, local in zip(op.results, results, strict=True):
            self.have(value, local)

    def kernel(self, op: Op, call: Kernel) -> None:
        """Add a call of a kernel on the parts of arrays that its op asks for. Results that are
        private copies of operands are not made known."""
        windows = self.rules.needs(op, home(op.results[0]))
        operands = tuple(self.need(v, w) for v, w in zip(op.operands, windows, strict=True))
        own = {j: operands[k] for how, argument in call.args if how == "own" for j, k in [argument]}
        results = tuple(
            Value(v.name, own[j].type if j in own else self.local_type(v))
            for j, v in enumerate(op.results)
        )
        args = tuple(
            (how, argument) if how != "start" else ("starts", self.first(op, argument))
            for how, argument in call.args
        )
        local_call = call.but(args=args, types=tuple(v.type for v in results), along=())
        self.place = op.place
        self.add(local_call, operands, results)
        for j, (value, local) in enumerate(zip(op.results, results)):
            if j not in own:
                self.have(value, local)

    def first(self, op: Op, dims: Sequence[tuple[int, int] | None]) -> tuple[Expr, ...]:
        """Return where a rank's part begins along some dims of results; 0 for an unsplit dim."""
        return tuple(
            expr.const(0) if d is None else home(op.results[d[0]])[d[1]].bounds(self.mesh)[0]
            for d in dims
        )

    def control(self, op: Op) -> None:
        """Add a loop or branch. Carried values lie in balanced blocks, or in an array with memory
        for the ghost cells around them."""
        rooms: list[Window | None] = [None] * max(len(op.operands), len(op.results))
        if isinstance(op.kind, Loop):
            rooms = [self.rooms.of.get(v) for v in op.regions[-1].args]
        operands = tuple(
            self.need(v, home(v)) if room is None else self.roomy(v, room)
            for v, room in zip(op.operands, rooms)
        )
        regions = []
        for number, inner in enumerate(op.regions):
            is_body = inner is op.regions[-1]
            with self.opened() as ops:
                if op is self.demands.graph.entry_branch:
                    self.begin_entry(number)
                args = tuple(
                    self.argument(v, room, is_body) for v, room in zip(inner.args, rooms)
                )
                carried = rooms if is_body else [None] * len(inner.results)
                self.region(inner)
                ends = tuple(
                    self.need(v, home(v)) if room is None else self.with_room[v]
                    for v, room in zip(inner.results, carried)
                )
            regions.append(Region(args, tuple(ops), ends))
        types = [
            self.local_type(v) if room is None else self.room_type(v, room)
            for v, room in zip(op.results, rooms)
        ]
        kind = op.kind.but(types=tuple(types)) if isinstance(op.kind, Branch) else op.kind
        if isinstance(kind, Loop) and kind.over:
            assert kind.counter is not None and kind.counter.lo and kind.counter.hi
            kind = kind.but(start=kind.counter.lo, stop=kind.counter.hi + 1, over=())
        results = tuple(Value(v.name, t) for v, t in zip(op.results, types))
        self.place = op.place
        self.add(kind, operands, results, regions)
        for value, local, room in zip(op.results, results, rooms):
            if room is None:
                self.have(value, local)
            else:
                self.lies(value, local)

    def begin_entry(self, number: int) -> None:
        """Fetch the parts of inputs that one entry needs; other entries do not fetch them."""
        demands = self.demands
        demands.of |= demands.in_entry[number]
        for value in demands.inputs:
            self.fetch_wanted(value)

    # ---- arrays with room for ghost cells --------------------------------------------------------

    def room_type(self, value: Value, room: Window) -> ArrayType:
        return ArrayType(value.type.dtype, cuts.extents(self.mesh, room))

    def empty(self, value: Value, room: Window, like: Kind | None = None) -> Value:
        """Return a new array with memory for ghost cells, filled as `like` says, or blank."""
        shape = cuts.extents(self.mesh, room)
        blank = Full(0, value.type.dtype, shape, blank=True)
        return self.emit(like.but(shape=shape) if isinstance(like, Full) else blank)

    def written(self, around: Value, mine: Value, value: Value, room: Window) -> Value:
        """Return an array with ghost cells whose interior, the rank's own part, is `mine`."""
        lows = zip(cuts.lows(self.mesh, home(value)), cuts.lows(self.mesh, room))
        start = tuple(own - first for own, first in lows)
        return self.emit(Update(start, (1,) * len(start), cut=True), (around, mine))

    def roomy(self, value: Value, room: Window) -> Value:
        """Return a value as a loop takes it: in an array with memory for ghost cells."""
        if value in self.with_room and self.rooms.of[value] == room:
            return self.with_room[value]
        mine = self.need(value, home(value))
        return self.written(self.empty(value, room), mine, value, room)

    def argument(self, value: Value, room: Window | None, is_body: bool) -> Value:
        """Return the local argument of a region for a global value, and make it known there."""
        if room is None:
            local = Value(value.name, self.local_type(value))
            self.have(value, local)
            return local
        local = Value(value.name, self.room_type(value, room))
        if is_body:
            self.lies(value, local)
        else:
            self.parts[-1][value, home(value)] = self.rules.part(local, room, home(value), self)
        return local

    def lies(self, value: Value, around: Value) -> None:
        """Record that a value lies in an array with ghost cells, and exchange the ghost cells that
        are read."""
        room, blocks = self.rooms.of[value], home(value)
        window = self.rooms.ghosts.get(value)
        if window is not None:
            moved = [d for d, c in enumerate(window) if c.period or blocks[d].axes]
            moved = [d for d in moved if window[d] != blocks[d]]
            have = tuple(h if d in moved else c for d, (c, h) in enumerate(zip(window, blocks)))
            halo = self.move(self.moving(value, moved), have, window, room=room)
            self.asked, self.fetching = self.demands.of[value].places.get(window), value
            around = self.emit(halo, (around,))
            self.asked = self.fetching = None
            self.parts[-1][value, window] = self.rules.part(around, room, window, self)
        self.with_room[value] = around
        self.have(value, self.rules.part(around, room, blocks, self))

    def keep(self, op: Op) -> None:
        """Compute the result of an op into an array with ghost cells: into the one of the value
        that it updates or replaces if that has one, else into a new one."""
        (value,) = op.results
        room = self.rooms.of[value]
        kind = op.kind
        under = op.operands[0] if isinstance(kind, Update) else value
        made_of = self.demands.defs.get(under)
        full = made_of.kind if made_of else None
        if isinstance(kind, Update) and (under in self.with_room or isinstance(full, Full)):
            part = self.rules.needs(op, home(value))[1]
            v = self.need(op.operands[1], part)
            self.at = op
            around = self.with_room.get(under) or self.empty(value, room, full)
            start = begin(kind, part, room, self.rules)
            written = self.emit(kind.but(start=start, cut=True), (around, v))
        else:
            v = self.make(op, home(value))
            self.at = op
            before = self.rooms.in_place.get(value, value)
            around = self.with_room.get(before) or self.empty(value, room)
            written = self.written(around, v, value, room)
        self.at = None
        self.lies(value, written)

    def shard_map(self, op: Op, call: ShardMap) -> None:
        (body,) = op.regions
        for arg, operand, layout in zip(body.args, op.operands, call.in_layouts, strict=True):
            self.asked = op.place
            self.local[arg] = self.need(operand, cuts.blocks(operand.type.shape, layout))
            self.asked = None
        for inner in body.ops:
            self.copy(inner)
        for result, local in zip(op.results, body.results, strict=True):
            self.have(result, self.of(local))

    def of(self, value: Value) -> Value:
        """Return the local value for one that is used inside a shard_map: defined in it, or a 0-d
        value from around it."""
        local = self.local.get(value)
        return self.need(value, home(value)) if local is None else local

    def copy(self, op: Op) -> None:
        """Add an op from inside a shard_map; it is local already."""
        operands = tuple(self.of(v) for v in op.operands)
        regions = []
        for inner in op.regions:
            with self.opened() as ops:
                args = tuple(map(self.define, inner.args))
                for o in inner.ops:
                    self.copy(o)
                ends = tuple(self.of(v) for v in inner.results)
            regions.append(Region(args, tuple(ops), ends))
        self.place = op.place
        self.add(op.kind, operands, tuple(map(self.define, op.results)), regions)

    def define(self, value: Value) -> Value:
        self.local[value] = Value(value.name, value.type)
        return self.local[value]
