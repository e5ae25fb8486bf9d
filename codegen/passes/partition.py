"""Graph to Program: from global arrays to one rank's view of them.

Every global value becomes the parts that its uses need (codegen.layouts.demands), every op the
local ops that compute them (codegen.layouts.localize), every shard_map the ops of its region. What
a rank needs and does not hold is exchanged where the array is defined (codegen.layouts.parts).
Always holds: the Program computes the Graph's values; no number of ranks is known.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.ir import ArrayType, Module, Op, Output, Region, Shape, Value
from codegen.layouts import cuts
from codegen.layouts.cuts import Window
from codegen.layouts.demands import home
from codegen.layouts.parts import Parts


def partition(graph: Module) -> Module:
    """The Program of a Graph."""
    work = _Partition(graph)
    inputs = []
    for i in graph.inputs:
        local = Value(i.name, work.local_type(i.value))
        inputs.append(replace(i, value=local))
        work.have(i.value, local)
    work.region(graph.body)
    outputs = tuple(
        Output(o.name, work.need(o.value, cuts.blocks(o.shape, o.layout)), o.layout, o.shape)
        for o in graph.outputs
    )
    body = Region((), tuple(work.ops), ())
    return replace(graph, level="program", inputs=tuple(inputs), body=body, outputs=outputs,
                   origins=work.origins)  # fmt: skip


class _Partition(Parts):
    def __init__(self, graph: Module) -> None:
        super().__init__(graph)
        self.local: dict[Value, Value] = {}  # values of shard_maps, which are local already
        # what a loop carries with room for ghost cells: results and the arguments they become, the
        # arrays with the room, the parts these have
        self.kept: dict[Value, Value] = {}
        self.with_room: dict[Value, Value] = {}
        self.room_of: dict[Value, Window] = {}

    # ---- ops -------------------------------------------------------------------------------------

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        if self.demands.is_view(op):
            return
        if op.kind == "shard_map":
            self.shard_map(op)
        elif op.kind in ("loop", "branch"):
            self.control(op)
        elif op.kind in ("print", "let", "scalar", "kernel"):
            operands = tuple(self.need(v, home(v)) for v in op.operands)
            results = tuple(Value(v.name, self.local_type(v)) for v in op.results)
            attrs = dict(op.attrs)
            if "types" in attrs:
                attrs["types"] = tuple(v.type for v in results)
            self.ops.append(Op(op.kind, operands, results, attrs, (), op.place))
            for value, local in zip(op.results, results):
                self.have(value, local)
        else:
            (value,) = op.results
            if value in self.kept:
                self.keep(op, self.kept[value])
                self.fetch_wanted(value)
                return
            for window in self.demands.of[value].made:
                self.parts[-1][value, window] = self.make(op, window)
            self.fetch_wanted(value)

    def control(self, op: Op) -> None:
        """A loop or a branch. What is carried lies in balanced blocks, or in an array with room for
        the ghost cells around them."""
        rooms = self.demands.rooms(op)
        operands = tuple(
            self.need(v, home(v)) if room is None else self.padded(v, room)
            for v, room in zip(op.operands, rooms)
        )
        regions = []
        for inner in op.regions:
            is_body = inner is op.regions[-1]
            outer, self.ops = self.ops, []
            self.parts.append({})
            args = tuple(
                self.argument(v, room, is_body) for v, room in zip(inner.args, rooms)
            )
            carried = rooms if is_body and op.kind == "loop" else [None] * len(inner.results)
            for result, argument, room in zip(inner.results, inner.args, carried):
                if room is not None:
                    self.kept[result] = argument
            self.region(inner)
            ends = tuple(
                self.need(v, home(v)) if room is None else self.with_room[v]
                for v, room in zip(inner.results, carried)
            )
            regions.append(Region(args, tuple(self.ops), ends))
            self.parts.pop()
            self.ops = outer
        attrs = dict(op.attrs)
        types = [
            self.local_type(v) if room is None else self.room_type(v, room)
            for v, room in zip(op.results, rooms)
        ]
        if "types" in attrs:
            attrs["types"] = tuple(types)
        results = tuple(Value(v.name, t) for v, t in zip(op.results, types))
        self.ops.append(Op(op.kind, operands, results, attrs, tuple(regions), op.place))
        for value, local, room in zip(op.results, results, rooms):
            if room is not None:
                local = self.rules.part(local, room, home(value), self)
            self.have(value, local)

    # ---- arrays with room for ghost cells --------------------------------------------------------

    def room_type(self, value: Value, room: Window) -> ArrayType:
        return ArrayType(value.type.dtype, cuts.extents(self.mesh, room))

    def offsets(self, value: Value, room: Window) -> Shape:
        """Where a rank's own part begins in an array with room around it."""
        lows = zip(cuts.lows(self.mesh, home(value)), cuts.lows(self.mesh, room))
        return tuple(mine - around for mine, around in lows)

    def padded(self, value: Value, room: Window) -> Value:
        mine = self.need(value, home(value))
        shape = cuts.extents(self.mesh, room)
        empty = self.emit("full", (), {"value": 0, "dtype": value.type.dtype, "shape": shape})
        attrs = {"start": self.offsets(value, room), "step": (1,) * len(shape), "cut": True}
        return self.emit("update", (empty, mine), attrs)

    def argument(self, value: Value, room: Window | None, is_body: bool) -> Value:
        """What a region is given of a value: its ghost cells are filled as the body begins."""
        if room is None:
            local = Value(value.name, self.local_type(value))
            self.have(value, local)
            return local
        local = around = Value(value.name, self.room_type(value, room))
        if is_body:
            moved = [d for d, c in enumerate(room) if c != home(value)[d]]
            attrs = self.boxes(self.moving(value, moved), home(value), room)
            (fetched,) = self.demands.of[value].fetched
            self.asked = self.demands.of[value].places.get(fetched)
            self.fetching = value
            around = self.emit("halo", (local,), attrs)
            self.fetching = self.asked = None
            self.parts[-1][value, fetched] = self.rules.part(around, room, fetched, self)
            self.with_room[value] = around
            self.room_of[value] = room
        self.parts[-1][value, home(value)] = self.rules.part(around, room, home(value), self)
        return local

    def keep(self, op: Op, argument: Value) -> None:
        """The value that a loop carries on, in the array that it carries with room around it."""
        (value,) = op.results
        around, room = self.with_room[argument], self.room_of[argument]
        if op.kind == "update" and op.operands[0] is argument:
            part = self.rules.needs(op, home(value))[1]
            v = self.need(op.operands[1], part)
            start, step = self.rules.start(op, part, room), op.attrs["step"]
        else:
            v = self.make(op, home(value))
            start = self.offsets(argument, room)
            step = (1,) * len(start)
        self.at = op
        attrs = {"start": start, "step": step, "cut": True}
        made = self.with_room[value] = self.emit("update", (around, v), attrs)
        self.parts[-1][value, home(value)] = self.rules.part(made, room, home(value), self)
        self.at = None

    def shard_map(self, op: Op) -> None:
        (body,) = op.regions
        for arg, operand, layout in zip(
            body.args, op.operands, op.attrs["in_layouts"], strict=True
        ):
            self.asked = op.place
            self.local[arg] = self.need(operand, cuts.blocks(operand.type.shape, layout))
            self.asked = None
        for inner in body.ops:
            self.copy(inner)
        for result, local in zip(op.results, body.results, strict=True):
            self.have(result, self.of(local))

    def of(self, value: Value) -> Value:
        """A value met inside a shard_map: its own, or a 0-d one from around it."""
        found = self.local.get(value)
        return self.need(value, home(value)) if found is None else found

    def copy(self, op: Op) -> None:
        """An op inside a shard_map."""
        operands = tuple(self.of(v) for v in op.operands)
        regions = []
        for inner in op.regions:
            outer, self.ops = self.ops, []
            self.parts.append({})
            for value in inner.args:
                self.define(value)
            for o in inner.ops:
                self.copy(o)
            ends = tuple(self.of(v) for v in inner.results)
            args = tuple(self.local[v] for v in inner.args)
            regions.append(Region(args, tuple(self.ops), ends))
            self.parts.pop()
            self.ops = outer
        results = tuple(self.define(v) for v in op.results)
        self.ops.append(Op(op.kind, operands, results, op.attrs, tuple(regions), op.place))

    def define(self, value: Value) -> Value:
        self.local[value] = Value(value.name, value.type)
        return self.local[value]
