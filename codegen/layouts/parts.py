"""Parts of global arrays on a rank: held, made of the parts of other arrays, or exchanged.

Goes in: a Graph's values and the Windows that are needed of them. Comes out: ops of the Program.
Always holds: a part is made once in a region; one that others hold comes out of balanced blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen import mesh
from codegen.errors import Place
from codegen.graph.builder import Builder
from codegen.ir import cuts
from codegen.ir.cuts import Window, home, layout_of
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.layouts.demands import Demands
from codegen.ops import Exchange, Kind, Move, Reshape, Slice
from codegen.ops.group import along
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


class Parts(Builder):
    def __init__(self, demands: Demands) -> None:
        super().__init__()
        graph = demands.graph
        self.mesh = graph.mesh
        self.demands = demands
        self.rules = self.demands.rules
        self.parts: list[dict[Any, Value]] = [{}]  # what was made, per open region
        self.made: dict[Value, Op] = {}
        self.at: Op | None = None  # of the Graph, what is being made
        self.wants: Op | None = None  # of the Graph, whose operands are being made
        self.asked: Place | None = None  # who wants what is fetched
        self.fetching: Value | None = None  # of the Graph
        self.starts: dict[Value, Shape] = {}  # of what is checked: where it is in its array
        self.checks = bool(graph.checks)
        self.origins: dict[Value, Value] = {}  # of results of exchanges

    # ---- building --------------------------------------------------------------------------------

    def emit(self, kind: Kind, operands: Sequence[Value] = ()) -> Value:
        if isinstance(kind, (Slice, Reshape)):
            kind, operands = self.through(kind, operands)
            if isinstance(kind, Reshape) and operands[0].type.shape == kind.shape:
                return operands[0]
        names = [v.name for v in (*(self.at.results if self.at else ()), *operands)]
        by = self.at or self.wants
        self.name = names[0] if names else ""
        self.place = self.asked or (by.place if by else None)
        result = super().emit(kind, operands)
        self.made[result] = self.ops[-1]
        if isinstance(kind, Exchange):
            whose = self.fetching or (self.at.results[0] if self.at and self.at.results else None)
            if whose is not None:
                self.origins[result] = whose
        return result

    def through(
        self, kind: Slice | Reshape, operands: Sequence[Value]
    ) -> tuple[Slice | Reshape, Sequence[Value]]:
        """Return one op for two: a slice of a slice as a slice of the first operand, a reshape of a
        reshape as one reshape; other ops as they are."""
        op = self.made.get(operands[0])
        below = op.kind if op else None
        if op is None or type(below) is not type(kind):
            return kind, operands
        if isinstance(kind, Slice) and isinstance(below, Slice):
            inner = zip(below.start, below.step, strict=True)
            outer = zip(kind.start, kind.step, strict=True)
            start, step = [], []
            for (a, k), (b, m) in zip(inner, outer, strict=True):
                start.append(a + k * b)
                step.append(k * m)
            kind = kind.but(start=tuple(start), step=tuple(step))
        return kind, op.operands

    def integer(self, e: Expr) -> Value:
        """Return a symbolic integer as a value, made once in a region."""
        key = ("integer", e)
        value = self.known(key)
        if value is None:
            value = self.parts[-1][key] = super().integer(e)
        return value

    def known(self, key: Any) -> Value | None:
        return next((scope[key] for scope in reversed(self.parts) if key in scope), None)

    def local_type(self, value: Value) -> ArrayType:
        return ArrayType(value.type.dtype, cuts.extents(self.mesh, home(value)))

    # ---- parts of values -------------------------------------------------------------------------

    def need(self, value: Value, window: Window) -> Value:
        """Return the part of a global value, made now if it is a view."""
        key = (value, window)
        known = self.known(key)
        if known is not None:
            return known
        op = self.demands.defs.get(value)
        if op is not None and self.demands.is_view(op):
            part = self.make(op, window)
        else:
            parts = self.demands.of[value]
            serves = parts.of.get(window)
            held = None if serves is None else self.known((value, serves))
            if serves is not None and held is not None:
                part = self.rules.part(held, serves, window, self)
            else:
                part = self.fetch(value, window)
        self.parts[-1][key] = part
        return part

    def make(self, op: Op, window: Window) -> Value:
        """Return a part of the result of an op, of the parts of its operands."""
        wants, self.wants = self.wants, self.wants or op
        operands = [
            self.need(v, w)
            for v, w in zip(op.operands, self.rules.needs(op, window), strict=True)
        ]
        self.wants = wants
        outer, self.at = self.at, op
        part = self.rules.make(op, window, operands, self)
        self.at = outer
        if self.checks:
            self.starts[part] = cuts.lows(self.mesh, window)
        return part

    def have(self, value: Value, local: Value) -> None:
        """Note that a rank holds its blocks of a value, and fetch what else is wanted of it."""
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
        """Return a part that other ranks hold, out of the balanced blocks."""
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
        if moved and not axes:  # around the ends of dims that a rank has whole
            for d in moved:
                x = self.rules.around(x, d, window[d], self)
                now[d] = window[d]
        elif moved:
            self.fetching = value
            x, now = self.exchange(x, tuple(now), window, axes, moved)
            self.fetching = None
        return self.rules.part(x, tuple(now), window, self)

    def held(self, wanted: cuts.Cut, have: cuts.Cut) -> bool:
        """Return whether a rank evidently has a part already."""
        if wanted.inside(have) or wanted.bounds(self.mesh) == have.bounds(self.mesh):
            return True
        own = {s for s in wanted.symbols() if s.lo is not None  # of a loop over a rank's own rows
               and any(b.kind == "coord" for b in s.lo.symbols())}
        if not own or wanted.axes or wanted.period or have.period:
            return False
        (low, high), (begin, end) = wanted.bounds(self.mesh), have.bounds(self.mesh)
        return expr.nonneg(low - begin) and expr.nonneg(end - high)

    def exchange(
        self, x: Value, have: Window, window: Window, axes: tuple[str, ...], moved: Sequence[int]
    ) -> tuple[Value, list[cuts.Cut]]:
        """Emit the exchange along these axes after which members hold what they want of the dims
        that move; return its value, and the cuts that a rank then has."""
        coords = {self.mesh.axis(a).coord_sym for a in axes}
        now = [
            c if d in moved or (_symbols(c, self.mesh) & coords) else h
            for d, (c, h) in enumerate(zip(window, have))
        ]
        if len(moved) == 1 and all(
            self.in_parts(d in moved, h, c, axes) for d, (c, h) in enumerate(zip(now, have))
        ):
            split = {d: c.bounds(self.mesh) for d, (c, h) in enumerate(zip(now, have))
                     if c != h and d not in moved}
            joined = along(x.type.ndim, {d: have[d].bounds(self.mesh) for d in moved})
            want = along(x.type.ndim, split) if split else ()
            move = Move(axes, joined, want, self.stated(x, now))
        else:
            move = self.move(axes, have, now, self.stated(x, now))
        return self.emit(move, (x,)), now

    def in_parts(self, moves: bool, have: cuts.Cut, want: cuts.Cut, axes: tuple[str, ...]) -> bool:
        """Return whether members have all of a dim that others have or want one block after the
        other. They are in the mesh's order; the blocks of an entry ("y", "x") are not."""
        if moves:
            return have == cuts.block(axes, have.extent) and want == cuts.whole(have.extent)
        if have != want:
            return have == cuts.whole(have.last) and want == cuts.block(axes, have.last)
        return not _symbols(want, self.mesh) & {self.mesh.axis(a).coord_sym for a in axes}

    def move(
        self, axes: tuple[str, ...], have: Sequence[cuts.Cut], want: Sequence[cuts.Cut],
        types: tuple[ArrayType, ...] = (), room: Window = (),
    ) -> Move:
        """Return the Move from what members hold to what they want; room: where it is done in
        place."""
        wraps = tuple(c.wraps() for c in want)
        held, wanted, around = (tuple(c.bounds(self.mesh) for c in cut)
                                for cut in (have, want, room))
        return Move(axes, held, wanted, types, around, near=cuts.near(self.mesh, axes, have, want),
                    wraps=wraps if any(wraps) else ())

    def moving(self, value: Value, dims: Sequence[int]) -> tuple[str, ...]:
        """Return the axes that split some dims of a value, in the mesh's order."""
        layout = layout_of(value)
        return tuple(a for a in self.mesh.names if any(a in layout[d] for d in dims))

    def stated(self, x: Value, now: Sequence[cuts.Cut]) -> tuple[ArrayType, ...]:
        """Return the type of an exchange's result, whose dims are cut as `now` says."""
        return (ArrayType(x.type.dtype, cuts.extents(self.mesh, tuple(now))),)


def _symbols(cut: cuts.Cut, mesh_: mesh.Mesh) -> set[Sym]:
    return {s for e in cut.bounds(mesh_) for s in e.symbols()}
