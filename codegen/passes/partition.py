"""Graph to Program: from global arrays to one rank's view of them.

Every global value becomes the parts that its uses need (codegen.layouts.demands), every op the
local ops that compute them (codegen.layouts.localize), every shard_map the ops of its region. What
a rank needs and does not hold is exchanged where the array is defined.
Always holds: the Program computes the Graph's values; no number of ranks is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen import dtypes, expr, mesh, ops
from codegen.errors import Place
from codegen.expr import Expr, Sym
from codegen.ir import ArrayType, Module, Op, Output, Region, Shape, Value
from codegen.layouts import cuts
from codegen.layouts.cuts import Window
from codegen.layouts.demands import demands_of, home, layout_of


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


class _Partition:
    def __init__(self, graph: Module) -> None:
        self.mesh = graph.mesh
        self.demands = demands_of(graph)
        self.rules = self.demands.rules
        self.local: dict[Value, Value] = {}  # values of shard_maps, which are local already
        self.parts: list[dict[Any, Value]] = [{}]  # what was made, per open region
        self.ops: list[Op] = []
        self.made: dict[Value, Op] = {}
        # what a loop carries with room for ghost cells: results and the arguments they become, the
        # arrays with the room, the parts these have
        self.kept: dict[Value, Value] = {}
        self.with_room: dict[Value, Value] = {}
        self.room_of: dict[Value, Window] = {}
        self.at: Op | None = None  # of the Graph, what is being made
        self.wants: Op | None = None  # of the Graph, whose operands are being made
        self.asked: Place | None = None  # who wants what is fetched
        self.fetching: Value | None = None  # of the Graph
        self.origins: dict[Value, Value] = {}  # of results of exchanges

    # ---- building --------------------------------------------------------------------------------

    def emit(self, kind: str, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        if kind in ("slice", "reshape"):
            operands, attrs = self.through(kind, operands, attrs)
            if operands[0].type.shape == attrs["shape"] and kind == "reshape":
                return operands[0]
        (t,) = ops.infer(kind, [v.type for v in operands], attrs)
        names = [v.name for v in (*(self.at.results if self.at else ()), *operands)]
        name = names[0] if names else kind
        result = Value(name, t)
        by = self.at or self.wants
        place = self.asked or (by.place if by else None)
        self.ops.append(Op(kind, tuple(operands), (result,), attrs, (), place))
        self.made[result] = self.ops[-1]
        if ops.OPS[kind].group == "exchange":
            whose = self.fetching or (self.at.results[0] if self.at and self.at.results else None)
            if whose is not None:
                self.origins[result] = whose
        return result

    def through(
        self, kind: str, operands: Sequence[Value], attrs: Mapping[str, Any]
    ) -> tuple[Sequence[Value], Mapping[str, Any]]:
        """A slice of a slice is a slice of what that one shows; so is a reshape."""
        below = self.made.get(operands[0])
        if below is None or below.kind != kind:
            return operands, attrs
        if kind == "slice":
            inner = zip(below.attrs["start"], below.attrs["step"], strict=True)
            outer = list(zip(attrs["start"], attrs["step"], strict=True))
            start, step = [], []
            for (a, k), (b, m) in zip(inner, outer, strict=True):
                start.append(a + k * b)
                step.append(k * m)
            attrs = {**attrs, "start": tuple(start), "step": tuple(step)}
        return below.operands, attrs

    def integer(self, e: Expr) -> Value:
        if e.is_const:
            attrs: dict[str, Any] = {"value": e.value, "dtype": dtypes.INT64, "shape": ()}
            return self.remember(("integer", e), "full", (), attrs)
        return self.remember(("integer", e), "expr", (), {"value": e, "dtype": dtypes.INT64})

    def remember(
        self, key: Any, kind: str, operands: Sequence[Value], attrs: Mapping[str, Any]
    ) -> Value:
        found = self.known(key)
        if found is None:
            found = self.parts[-1][key] = self.emit(kind, operands, attrs)
        return found

    def known(self, key: Any) -> Value | None:
        return next((scope[key] for scope in reversed(self.parts) if key in scope), None)

    def local_type(self, value: Value) -> ArrayType:
        return ArrayType(value.type.dtype, cuts.extents(self.mesh, home(value)))

    # ---- parts of values -------------------------------------------------------------------------

    def need(self, value: Value, window: Window) -> Value:
        """The part of a global value, made now if it is a view."""
        key = (value, window)
        found = self.known(key)
        if found is not None:
            return found
        op = self.demands.defs.get(value)
        if op is not None and self.demands.is_view(op):
            made = self.make(op, window)
        else:
            parts = self.demands.of[value]
            serves = parts.of.get(window)
            held = None if serves is None else self.known((value, serves))
            if serves is not None and held is not None:
                made = self.rules.part(held, serves, window, self)
            else:
                made = self.fetch(value, window)
        self.parts[-1][key] = made
        return made

    def make(self, op: Op, window: Window) -> Value:
        """A part of the result of an op, of the parts of its operands."""
        wants, self.wants = self.wants, self.wants or op
        operands = [
            self.need(v, w)
            for v, w in zip(op.operands, self.rules.needs(op, window), strict=True)
        ]
        self.wants = wants
        outer, self.at = self.at, op
        made = self.rules.make(op, window, operands, self)
        self.at = outer
        return made

    def have(self, value: Value, local: Value) -> None:
        """A rank holds its blocks of a value: what else is wanted of it is fetched."""
        self.parts[-1][value, home(value)] = local
        self.fetch_wanted(value)

    def fetch_wanted(self, value: Value) -> None:
        parts = self.demands.of[value]
        for window in parts.fetched:
            self.asked = parts.places.get(window)
            self.parts[-1][value, window] = self.fetch(value, window)
            self.asked = None

    # ---- exchange --------------------------------------------------------------------------------

    def fetch(self, value: Value, window: Window) -> Value:
        """A part that other ranks hold, out of the balanced blocks."""
        have = list(home(value))
        x = self.need(value, tuple(have))
        layout = layout_of(value)
        moved = [
            d for d, c in enumerate(window)
            if c.period or (layout[d] and not self.held(c, have[d]))
        ]
        axes = self.moving(value, moved)
        coords = {self.mesh.axis(a).coord_sym for a in axes}
        now = [
            c if d not in moved and not _symbols(c, self.mesh) & coords else h
            for d, (c, h) in enumerate(zip(window, have))
        ]
        x = self.rules.part(x, tuple(have), tuple(now), self)
        if moved:
            self.fetching = value
            x, now = self.exchange(x, tuple(now), window, axes, moved)
            self.fetching = None
        return self.rules.part(x, tuple(now), window, self)

    def held(self, wanted: cuts.Cut, have: cuts.Cut) -> bool:
        """Whether a rank evidently has a part already."""
        return wanted.inside(have) or wanted.bounds(self.mesh) == have.bounds(self.mesh)

    def exchange(
        self, x: Value, have: Window, window: Window, axes: tuple[str, ...], moved: Sequence[int]
    ) -> tuple[Value, list[cuts.Cut]]:
        """What members along these axes hold becomes what they want of the dims that move."""
        coords = {self.mesh.axis(a).coord_sym for a in axes}
        now = [
            c if d in moved or (_symbols(c, self.mesh) & coords) else h
            for d, (c, h) in enumerate(zip(window, have))
        ]
        size = self.mesh.size(axes)
        var = Sym("member", "var", expr.const(0), size - 1)
        if len(moved) == 1 and not any(_symbols(c, self.mesh) & coords for c in now):
            (d,) = moved
            if now[d] == cuts.whole(have[d].extent):
                offset = mesh.block_offset(have[d].extent, size, expr.symbol(var))
                attrs: dict[str, Any] = {"axes": axes, "dim": d, "var": var, "offset": offset}
                return self.stated("all_gather", x, attrs, now), now
        changed = [d for d, (c, h) in enumerate(zip(now, have)) if c != h]
        if len(moved) == 1 and len(changed) == 2:
            (d,), (q,) = moved, [d for d in changed if d not in moved]
            whole = now[d] == cuts.whole(have[d].extent)
            if whole and have[q] == cuts.whole(have[q].last) and now[q] == cuts.block(
                axes, have[q].last
            ):
                offset = mesh.block_offset(have[d].extent, size, expr.symbol(var))
                attrs = {"axes": axes, "split": q, "concat": d, "var": var, "offset": offset}
                return self.stated("all_to_all", x, attrs, now), now
        return self.stated("redistribute", x, self.boxes(axes, have, now), now), now

    def boxes(
        self, axes: tuple[str, ...], have: Sequence[cuts.Cut], want: Sequence[cuts.Cut]
    ) -> dict[str, Any]:
        """What a redistribute or a halo says of its members."""
        attrs: dict[str, Any] = {
            "axes": axes,
            "have": tuple(c.bounds(self.mesh) for c in have),
            "want": tuple(c.bounds(self.mesh) for c in want),
        }
        if near := cuts.near(self.mesh, axes, have, want):
            attrs["near"] = near
        if any(images := tuple(c.images() for c in want)):
            attrs["images"] = images
        return attrs

    def moving(self, value: Value, dims: Sequence[int]) -> tuple[str, ...]:
        """The axes that split some dims of a value, in the mesh's order."""
        layout = layout_of(value)
        return tuple(a for a in self.mesh.names if any(a in layout[d] for d in dims))

    def stated(
        self, kind: str, x: Value, attrs: dict[str, Any], now: Sequence[cuts.Cut]
    ) -> Value:
        shape = cuts.extents(self.mesh, tuple(now))
        return self.emit(kind, (x,), {**attrs, "types": (ArrayType(x.type.dtype, shape),)})

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


def _symbols(cut: cuts.Cut, mesh_: mesh.Mesh) -> set[Sym]:
    return {s for e in cut.bounds(mesh_) for s in e.symbols()}
