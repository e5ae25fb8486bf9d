"""Reverse-mode derivatives: cotangents go backwards through ops, by the rule of each op's kind.

In: recorded ops, and cotangents of some of their results. Out: more ops in the open block, and the
cotangents of the values that the recorded ops began with.
Always holds: a cotangent has the shape of its value; sums of cotangents are made in the order in
which the ops are met, last one first. In a rank's view one may be in shares, as shares.py says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from codegen import dtypes, ops
from codegen.dtypes import DType
from codegen.errors import InternalError, UnsupportedError
from codegen.graph.variance import NONE, Axes
from codegen.ir.graph import ArrayType, Op, Shape, Value, free_values, walk
from codegen.ops import Kind
from codegen.ops.partials import OUT, Form
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, IntLike
from codegen.trace.context import Context
from codegen.trace.control.regions import laid_as
from codegen.trace.derive.shares import Shares
from codegen.trace.runtime_checks import expect
from codegen.trace.view import index_value


class Reverse:
    """The reverse-mode derivative of some ops. cotangents: those added up so far. reach: the axes
    over which the cotangents of the current op's results, or their shares, vary. in_turn: whether
    the ops are those of one iteration of a loop."""

    def __init__(
        self, context: Context, active: Iterable[Value], shares: Shares | None = None,
        in_turn: bool = False,
    ) -> None:
        self.in_turn = in_turn
        self.context = context
        self.shares = shares or Shares.none(context.mesh)
        self.reach: Axes = NONE
        self.active: set[Value] = set(active)
        self.cotangents: dict[Value, Value] = {}
        # cotangents that are an array but for a box of zeros: the box, and the array
        self.emptied: dict[Value, tuple[ops.Slice, Value]] = {}
        self.numbers = context.numbers
        self.recorded = context.blocks[-1].ops  # where the ops stand: perhaps around what is open
        # what all passes through these ops share: by value, its kept stack or copy; by loop,
        # its number of iterations; by loop, the nested loops, and the copies of its values there
        self.kept: dict[Value, Value] = {}
        self.counts: dict[Op, tuple[Expr, Op]] = {}
        self.parts: dict[Op, tuple[Op, list[tuple[Value, Value]], dict[Value, Value]]] = {}

    # ---- what matters -------------------------------------------------------------------------

    def mark(self, recorded: Iterable[Op]) -> None:
        """Mark as active the results that depend on active values, and that have derivatives."""
        for op in recorded:
            if isinstance(op.kind, ops.Full):
                self.numbers[op.result] = op.kind.value
            if op.kind.flat or not any(v in self.active for v in read_by(op)):
                continue
            rule = ACTIVE.get(type(op.kind))
            self.active.update(moving(op) if rule is None else rule(self, op))
        if self.shares.reached is not None:
            self.active &= self.shares.reached

    def replacement_of(self, op: Op) -> Op:
        """Return the op by which a recorded op has been replaced; itself if by none."""
        while op in self.context.replaced:
            op = self.context.replaced[op]
        return op

    def replace(self, op: Op, new: Op, before: Sequence[Op] = ()) -> None:
        """Put another op in the place of a recorded one."""
        place = self.recorded.index(op)
        self.recorded[place : place + 1] = [*before, new]
        self.context.replaced[op] = new

    def add_after(self, op: Op, more: Sequence[Op]) -> None:
        place = self.recorded.index(op) + 1
        self.recorded[place:place] = more

    # ---- back ---------------------------------------------------------------------------------

    def pull(self, recorded: Sequence[Op]) -> None:
        """Compute the cotangents of what the ops read from those of their results, last op
        first."""
        for op in reversed(recorded):
            cotangents = [self.taken(v) for v in op.results]
            if all(g is None for g in cotangents):
                continue
            if not any(v in self.active for v in read_by(op)):
                continue
            _refuse_feeds(op)
            with self.context.standing_at(op.place):
                rule = RULES.get(type(op.kind))
                if not isinstance(op.kind, ops.Exchange):
                    cotangents = [g and self.whole(v, g) for v, g in zip(op.results, cotangents)]
                if rule is not None:
                    rule(self, op, cotangents)
                    continue
                self.reach = NONE.union(
                    *(self.shares.reach(v) for v, g in zip(op.results, cotangents) if g))
                cotangents = [g and self.shared(g, self.shares.reach(v), self.reach)
                         for v, g in zip(op.results, cotangents)]
                for v, g in zip(op.operands, op.kind.vjp(op, cotangents, self)):
                    if g is not None and v in self.active:
                        self.add(v, g)

    # ---- shares -------------------------------------------------------------------------------

    def whole(self, value: Value, g: Value) -> Value:
        """Return the complete cotangent of a value, with its shares summed where that is
        planned."""
        return self.summed(g, self.shares.sums(value))

    def summed(self, g: Value, axes: Axes) -> Value:
        """Return the sum of the shares along these axes."""
        if not axes:
            return g
        names = tuple(a for a in self.context.mesh.names if a in axes)
        dtype = g.type.dtype
        wide = self.cast(g, dtypes.folded_in(dtype))
        return self.cast(self.emit(ops.Fold(names, "add"), wide), dtype)

    def shared(self, g: Value, have: Axes, want: Axes) -> Value:
        """Return a cotangent in shares along `want`, from one along `have`: along the other axes,
        the first rank holds all of it and others zeros."""
        if have - want:
            raise InternalError(f"a cotangent in shares along {', '.join(sorted(have - want))}, "
                                "where it was to be whole")
        if not want - have:
            return g
        names = tuple(a for a in self.context.mesh.names if a in want - have)
        first = expr.eq(self.context.mesh.position(names), 0)
        return self.where(first, g)

    def brought(self, g: Value, have: Axes, want: Axes) -> Value:
        """Return a cotangent in the shares `want` from the shares `have`, by a sum where that is
        needed."""
        return self.shared(self.summed(g, have - want), have & want, want)

    def where(self, holds: Expr, g: Value) -> Value:
        """Return g on ranks for which this is 1, zeros on others."""
        if holds == 1:
            return g
        mask = self.spread(self.emit(ops.Symbolic(holds, dtypes.BOOL)), (), g.type.shape)
        return self.map("select", mask, g, self.full(0, g))

    def add(self, value: Value, part: Value, have: Axes | None = None) -> None:
        """Add one more part to a cotangent. have: the axes along which the part is in shares; for
        None, those of the current op's cotangents."""
        if part.type.dtype != value.type.dtype and value.type.dtype.kind in "fc":
            part = self.cast(part, value.type.dtype)
        part = self._as_value(value, part, have)
        before = self.cotangents.get(value)
        self.put(value, part if before is None else self.map("add", before, part))

    def _as_value(self, value: Value, part: Value, have: Axes | None = None) -> Value:
        """Return a part in shares along the axes along which the cotangent of the value is in
        shares."""
        if have is None:
            have = self.reach - self.shares.varies(value)
        return self.shared(part, have, self.shares.of(value))

    def put(self, value: Value, whole: Value) -> None:
        """Replace the cotangent of a value."""
        self.emptied.pop(value, None)
        self.cotangents[value] = whole

    def add_at(self, value: Value, box: ops.Slice, part: Value) -> None:
        """Add one more part to a cotangent, at the elements that a slice shows, in place."""
        if value not in self.active:
            return
        part = self._as_value(value, part)
        whole = self.taken(value)
        around = self.emptied.pop(value, None)
        if around is not None and around[0] == box:
            whole = around[1]
        elif whole is None:
            whole = self.zeros(value.type, part.type.dtype)
        else:
            part = self.map("add", self.emit(box, whole), part)
        self.cotangents[value] = self.emit(ops.Update(box.start, box.step), whole, part)

    def add_around(self, value: Value, box: ops.Slice, whole: Value) -> None:
        """Add one more part to a cotangent: `whole`, with zeros at the elements that a slice
        shows."""
        if value not in self.active:
            return
        alone = value not in self.cotangents
        whole = self._as_value(value, whole)
        nothing = self.emit(ops.Full(0, whole.type.dtype, box.shape))
        self.add(value, self.emit(ops.Update(box.start, box.step), whole, nothing),
                 self.shares.of(value))
        if alone:
            self.emptied[value] = (box, whole)

    def taken(self, value: Value) -> Value | None:
        """Remove and return the cotangent; None where there is none."""
        return self.cotangents.pop(value, None)

    def of(self, value: Value) -> Value:
        """Return the cotangent; zeros where there is none."""
        return self.cotangents.get(value) or self.zeros(value.type)

    def all_of(self, value: Value) -> Value:
        """Return the cotangent, with its shares summed where that is planned; zeros where there is
        none."""
        g = self.cotangents.get(value)
        return self.of(value) if g is None else self.whole(value, g)

    def of_result(self, value: Value, g: Value | None) -> Value:
        """Return a cotangent in the layout of its value; zeros for None."""
        g = self.zeros(value.type) if g is None else g
        return laid_as(self.context, g, value.type.layout)

    # ---- ops ----------------------------------------------------------------------------------

    def emit(self, kind: Kind, *operands: Value) -> Value:
        return self.context.emit_one(kind, *operands)

    def map(self, fn: str, *operands: Value) -> Value:
        return self.emit(ops.Map(fn), *operands)

    def cast(self, x: Value, dtype: DType) -> Value:
        """Return x in another element type; the real part of a complex number that becomes a real
        one."""
        if x.type.dtype == dtype:
            return x
        if x.type.dtype.kind == "c" and dtype.kind != "c":
            x = self.map("real", x)
        return x if x.type.dtype == dtype else self.emit(ops.Map("cast", dtype=dtype), x)

    def full(self, value: complex, like: Value) -> Value:
        """Return an array filled with a number, of the shape and type of a value."""
        return self.emit(ops.Full(value, like.type.dtype, like.type.shape))

    def zeros(self, t: ArrayType, dtype: DType | None = None) -> Value:
        return self.emit(ops.Full(0, dtype or t.dtype, t.shape))

    def integer(self, e: IntLike, shape: Shape = ()) -> Value:
        """Return an array of this shape, filled with a symbolic integer."""
        return self.spread(index_value(self.context, expr.as_expr(e)), (), shape)

    def spread(self, x: Value, dims: tuple[int, ...], shape: Shape) -> Value:
        """Return x repeated along the dims of a shape that it does not have."""
        return x if x.type.shape == shape else self.emit(ops.Broadcast(dims, shape), x)

    def clipped(self, index: Value, most: Expr) -> Value:
        """Return indices, with those beyond the ends moved to them."""
        shape = index.type.shape
        index = self.cast(index, dtypes.INT64)
        least = self.map("maximum", index, self.integer(0, shape))
        return self.map("minimum", least, self.integer(most, shape))

    def sum(self, x: Value, dims: tuple[int, ...]) -> Value:
        return self.emit(ops.Reduce("add", dims), x) if dims else x

    def reshaped(self, x: Value, shape: Shape) -> Value:
        return x if x.type.shape == shape else self.emit(ops.Reshape(shape), x)

    def form(self, form: Form, operands: Sequence[Value], out: Value) -> Value:
        """Emit a formula of codegen.ops.partials for these operands of a function and its
        result."""
        if isinstance(form, int):
            return operands[form]
        if isinstance(form, float):
            return self.full(form, out)
        if form == OUT:
            return out
        assert isinstance(form, tuple)
        fn, *parts = form
        assert isinstance(fn, str)
        return self.map(fn, *(self.form(part, operands, out) for part in parts))

    def times(
        self, g: Value, form: Form | None, operands: Sequence[Value], out: Value
    ) -> Value | None:
        """Return a cotangent times a partial derivative."""
        if form is None:
            return None
        if isinstance(form, float) and abs(form) == 1.0:
            return g if form > 0 else self.map("neg", g)
        return self.map("mul", g, self.form(form, operands, out))

    def expect(self, holds: Value, text: str) -> None:
        """End the run with this text where something does not hold."""
        expect(self.context, holds, text)

    def none(self, op: Op) -> UnsupportedError:
        called = op.kind.title()
        return UnsupportedError(
            f"{called} has no derivative here", place=op.place,
            expected="operations whose derivatives are known",
            found=f"{called}, between what is differentiated and its argument",
            remedy=op.kind.without_vjp,
        )


def _refuse_feeds(op: Op) -> None:
    """Raise UnsupportedError where a backward pass would save or take batches a second time."""
    if isinstance(op.kind, ops.Defined) and op.kind.back is not None:
        return
    inside = [o for region in op.regions for o in walk(region)]
    if (save := next((o for o in inside if isinstance(o.kind, ops.Save)), None)) is not None:
        assert isinstance(save.kind, ops.Save)
        raise UnsupportedError(
            f"a loop with a save in it is differentiated: {save.kind.series!r}",
            place=save.place or op.place, expected="frames that are written once: the way back "
            "would run the loop again", found="spmd.save in what is differentiated",
            remedy="save what the differentiated function returns")
    if (on := next((o for o in inside if isinstance(o.kind, ops.Feeding)), None)) is not None:
        called = {ops.Loop: "a loop", ops.Branch: "a branch"}.get(type(op.kind), "a function")
        assert isinstance(on.kind, ops.Feeding)
        raise UnsupportedError(
            f"{called} with a feed in it is differentiated", place=on.place or op.place,
            expected="batches that are taken before: the way back would take others",
            found=f'feed "{on.kind.feed}", in {called}',
            remedy="take the batch first, then call spmd.grad with it: b = feed.next(); "
            "g = spmd.grad(loss)(w, b.x)")


def read_by(op: Op) -> Iterable[Value]:
    """Yield the values that an op reads, in its regions too."""
    yield from op.operands
    for region in op.regions:
        yield from free_values(region)


def moving(op: Op) -> Iterable[Value]:
    """Return the results of an op that depend continuously on its operands: floats, and the keys by
    which they are sorted."""
    keys = not isinstance(op.kind, ops.Map) or op.kind.fn == "order_key"
    return (v for v in op.results if keys or differentiable(v.type))


def differentiable(t: ArrayType) -> bool:
    return t.dtype.kind in "fc"


_Rule = Callable[[Reverse, Op, Sequence[Value | None]], None]
RULES: dict[type[Kind], _Rule] = {}
ACTIVE: dict[type[Kind], Callable[[Reverse, Op], Iterable[Value]]] = {}
