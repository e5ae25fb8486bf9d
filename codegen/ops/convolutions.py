"""Sums of products over windows that move along arrays: convolutions, and both their transposes.

Rows of windows are copied together, some at a time, and multiplied by a routine of BLAS: memory for
them does not grow with the array. Source: K. Chellapilla, S. Puri, P. Simard, High Performance
Convolutional Neural Networks for Document Processing, 2006.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from codegen.dtypes import DType
from codegen.errors import InternalError
from codegen.ir import cuts
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import affine, loop_vars, positions, strides
from codegen.ir.plan import Caller, Load, Part
from codegen.library_routines import LETTERS, named_in
from codegen.mesh import joined_layout
from codegen.ops.kind import Array, Eval, Kind, Types, extents, layout_of
from codegen.ops.matmul import shared
from codegen.ops.rules import (
    BatchBuilder,
    CheckBuilder,
    GradientBuilder,
    GraphBuilder,
    LoopBuilder,
    Shards,
    Values,
)
from codegen.ops.views import Broadcast
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

_ROWS_LEAST = 8  # of a wide window
MOST_DIMS = 3  # that a window moves along


@dataclass(frozen=True)
class Convolve(Kind):
    """Compute one of the arrays x, w and y from the other two, by sums of the products x[b, start +
    stride o + dilation k, g, c] w[g, k, c, f] y[b, o, g, f] over all indices that the result lacks.
    gives: the name of the result. o and k have an index for each entry of `stride`; c is summed
    within each group g of channels. Elements beyond the ends of x count as 0. shape: the result's
    extents along the dims of windows."""

    name = "convolve"
    has_room = False
    reads = "boxes"
    laborious = True
    gives: str
    start: tuple[Expr, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    shape: Shape

    @property
    def called(self) -> str:
        return {"y": "convolve", "x": "convolve_back", "w": "convolve_window"}[self.gives]

    @property
    def reads_of(self) -> str:
        """Return the names of the two operands, as letters: two of x, w and y."""
        return "xwy".replace(self.gives, "")

    @property
    def along(self) -> range:
        """Return the dims along which windows move, which have the same numbers in x, w and y."""
        return range(1, 1 + len(self.stride))

    def by_name(self, op: Op) -> dict[str, Value]:
        return dict(zip(self.reads_of, op.operands, strict=True)) | {self.gives: op.result}

    def infer(self, types: Types) -> list[ArrayType]:
        a, b = (t.shape for t in types)
        n = len(self.stride)
        if not len(a) == len(b) == n + 3 or types[0].dtype.name not in LETTERS:
            raise InternalError(f"{self.called} along {n} dims of {types[0]} and {types[1]}")
        if self.gives == "y":
            shape = (a[0], *self.shape, a[-2], b[-1])
        elif self.gives == "x":
            shape = (b[0], *self.shape, b[-2], a[-2])
        else:
            shape = (a[-2], *self.shape, a[-1], b[-1])
        return [ArrayType(types[0].dtype, shape)]

    def work(self, op: Op) -> Iterable[Shape]:
        of = self.by_name(op)
        return [(*of["y"].type.shape, *of["w"].type.shape[1:-1])]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        of = {name: layout_of(t) for name, t in zip(self.reads_of, operands, strict=True)}
        group = joined_layout([(e[0 if name == "w" else -2],) for name, e in of.items()])
        if self.gives == "w":
            return (*group, *((),) * len(self.stride), of["x"][-1], of["y"][-1])
        moved = of["x" if self.gives == "y" else "y"][: 1 + len(self.stride)]
        return (*moved, *group, of["w"][-1 if self.gives == "y" else -2])

    # ---- what it means -------------------------------------------------------------------------

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        of = dict(zip(self.reads_of, operands, strict=True))
        start, shape = extents(self.start, value), extents(self.shape, value)
        if self.gives == "y":
            full_shape = (*of["x"].shape[:1], *shape, of["x"].shape[-2], of["w"].shape[-1])
        elif self.gives == "x":
            full_shape = (*of["y"].shape[:1], *shape, of["y"].shape[-2], of["w"].shape[-2])
        else:
            full_shape = (of["x"].shape[-2], *shape, of["x"].shape[-1], of["y"].shape[-1])
        of[self.gives] = out = np.zeros(full_shape, operands[0].dtype)
        n = len(start)
        for k in product(*map(range, of["w"].shape[1:-2])):
            first = [a + d * j for a, d, j in zip(start, self.dilation, k)]
            box = [_inside(f, s, of["x"].shape[1 + d], of["y"].shape[1 + d])
                   for d, (f, s) in enumerate(zip(first, self.stride))]
            every: list[Any] = [slice(None)]
            x = of["x"][(*every, *(a for a, _ in box))]
            y = of["y"][(*every, *(b for _, b in box))]
            w = of["w"][(*every, *k)]
            rows = tuple(range(n + 1))
            group, c, f = n + 1, n + 2, n + 3
            terms = {"x": (x, (*rows, group, c)), "y": (y, (*rows, group, f)),
                     "w": (w, (group, c, f))}
            into, named = terms.pop(self.gives)
            into += np.einsum(*(part for term in terms.values() for part in term), named)
        return [out]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Fold the members of one operand into the dim that only this operand has in the result
        (batch, channels or filters); where both operands have members, make them further groups."""
        n = len(self.stride)
        groups = {"x": n + 1, "w": 0, "y": n + 1}
        alone = {"y": {"x": (0, 0), "w": (n + 2, n + 2)},
                 "x": {"y": (0, 0), "w": (n + 1, n + 2)},
                 "w": {"x": (n + 2, n + 1), "y": (n + 2, n + 2)}}[self.gives]
        own = [name for name, g in zip(self.reads_of, stacked) if g is not None]
        if len(own) == 2:
            of, into = {name: groups[name] for name in self.reads_of}, groups[self.gives]
        else:
            of, into = {own[0]: alone[own[0]][0]}, alone[own[0]][1]
        operands = [v if g is None else batch.merged(g, of[name])
                    for name, v, g in zip(self.reads_of, op.operands, stacked)]
        return [batch.unmerged(batch.emit(self, *operands), into, op.result.type.shape[into])]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,), of = cotangents, self.by_name(op)
        assert g is not None
        of[self.gives] = g

        def transposed(name: str) -> Value | None:
            if of[name] not in builder.active:
                return None
            shape = tuple(of[name].type.shape[d] for d in self.along)
            kind = self.but(gives=name, shape=shape)
            return builder.emit(kind, *(of[other] for other in kind.reads_of))

        return [transposed(name) for name in self.reads_of]

    def title(self) -> str:
        return "a convolution"

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        """Check that the operands are finite: a number that is not may reach every element of the
        result."""
        some = (builder.any_of(builder.not_finite(v), range(v.type.ndim)) for v in op.operands)
        where = builder.emit(Broadcast((), value.type.shape), (builder.map("logical_or", *some),))
        return builder.unless(value, where)

    # ---- parts of global arrays ----------------------------------------------------------------

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        """Return the cut of a dim of the result: a window belongs to the rank that has its middle
        element."""
        of = self.by_name(op)
        if self.gives == "w" or dim > len(self.stride):
            return None
        if dim == 0:
            return shards.natural(of["x" if self.gives == "y" else "y"], 0)
        if self.gives == "y":
            return self._middle(op, dim, shards)
        x, y, d = of["x"].type.shape[dim], of["y"].type.shape[dim], dim - 1
        middle = self.start[d] + self._span(op, d) // 2
        return shards.natural(of["y"],
                              dim) if middle == 0 and self.stride[d] == 1 and x == y else None

    def _middle(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        """Return the part of y whose windows have their middle in a rank's part of x; None where a
        middle may lie outside x."""
        of, d = self.by_name(op), dim - 1
        x, y = of["x"].type.shape[dim], of["y"].type.shape[dim]
        middle = self.start[d] + self._span(op, d) // 2
        if not (expr.nonneg(middle) and expr.nonneg(x - 1 - middle - self.stride[d] * (y - 1))):
            return None
        return cuts.of_result(shards.natural(of["x"], dim), middle, self.stride[d], y, shards.mesh)

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        return False

    def _span(self, op: Op, d: int) -> Expr:
        """Return the distance from the first element of a window to the last one."""
        return self.dilation[d] * (self.by_name(op)["w"].type.shape[1 + d] - 1)

    def _read(self, op: Op, d: int, of_y: Cut, shards: Shards) -> Cut:
        """Return the part of dim d of x that the windows of this part of y read."""
        span, extent = self._span(op, d), self.by_name(op)["x"].type.shape[1 + d]
        cut = cuts.of_operand(of_y, self.start[d], self.stride[d], shards.mesh)
        return _clipped(_wider(cut, expr.const(0), span, shards), extent, shards)

    def _reached(self, op: Op, d: int, of_x: Cut, shards: Shards) -> Cut:
        """Return the windows along a dim that contain an element of this part of x, as a part of
        y."""
        span, count = self._span(op, d), self.by_name(op)["y"].type.shape[1 + d]
        cut = _wider(of_x, span, expr.const(0), shards)
        return cuts.of_result(cut, self.start[d], self.stride[d], count, shards.mesh)

    def summed(self, op: Op, window: Window, shards: Shards) -> list[Cut] | None:
        """Return the parts of the summed dims that a rank takes: of the channels where the result
        is y or x; of the batch and of all window positions where it is w."""
        if self.gives == "y":
            last = op.operands[1].type.ndim - 2
            return [shared(op, window, shards, op.operands[0].type.ndim - 1, last)]
        if self.gives == "x":
            return [shared(op, window, shards, op.operands[0].type.ndim - 1,
                           op.operands[1].type.ndim - 1)]
        of = self.by_name(op)
        inner = [shared(op, window, shards, 0, 0)]
        for d in self.along:
            cut, used = shards.natural(of["y"], d), {a for c in inner for a in c.axes}
            if not cut.axes:
                cut = self._middle(op, d, shards) or cut
            inner.append(cuts.whole(of["y"].type.shape[d]) if used & set(cut.axes) else cut)
        return inner

    def windows(self, op: Op, window: Window, shards: Shards) -> dict[str, Window]:
        """Return, by name, the parts of x, w and y that a rank computes with."""
        inner = self.summed(op, window, shards)
        assert inner is not None
        held, of = shards.computed(op, window, inner), self.by_name(op)
        kept = tuple(cuts.whole(of["w"].type.shape[d]) for d in self.along)
        n = range(len(self.stride))
        if self.gives == "w":
            (group, *_, c, f), (batch, *y) = held, inner
            x = [self._read(op, d, y[d], shards) for d in n]
        elif self.gives == "y":
            (batch, *y, group, f), (c,) = held, inner
            x = [self._read(op, d, y[d], shards) for d in n]
        else:
            (batch, *x, group, c), (f,) = held, inner
            y = [self._reached(op, d, x[d], shards) for d in n]
        return {"x": (batch, *x, group, c), "w": (group, *kept, c, f), "y": (batch, *y, group, f)}

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        held = self.windows(op, window, shards)
        return [held[name] for name in self.reads_of]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        held, inner = self.windows(op, window, shards), self.summed(op, window, shards)
        assert inner is not None
        lows = {name: shards.lows(held[name]) for name in "xy"}
        start = tuple(
            a + s * lows["y"][d] - lows["x"][d]
            for d, a, s in zip(self.along, self.start, self.stride)
        )
        shape = tuple(shards.shape(held[self.gives])[d] for d in self.along)
        value = build.emit(self.but(start=start, shape=shape), operands)
        if self.gives != "w":
            return shards.combined(op, window, inner, value, "add", build)
        wide = tuple(cuts.whole(e) if d in self.along else c
                     for d, (c, e) in enumerate(zip(window, op.result.type.shape)))
        return shards.part(shards.combined(op, wide, inner, value, "add", build), wide, window,
                           build)

    # ---- how it is computed --------------------------------------------------------------------

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        of, few = self.by_name(op), MOST_DIMS - len(self.stride)
        dtype, ones = op.result.type.dtype, (expr.const(1),) * few
        memory = {name: _Memory.of(of[name], op, builder) for name in self.reads_of}
        memory[self.gives] = _Memory(op.result, expr.const(0), strides(op.result.type.shape))
        batch, group, f, c = *(of["y"].type.shape[d] for d in (0, -2, -1)), of["w"].type.shape[-2]
        read, *apart, next_group, _ = memory["x"].strides
        x, window, y = ((*ones, *(of[name].type.shape[d] for d in self.along)) for name in "xwy")
        deep = c * expr.product(window)
        lanes = c == 1 == f and group != 1
        most = expr.const(TARGET.reused // dtype.size)  # of rows that wait for one product
        room = group * deep if lanes else expr.most(most, _ROWS_LEAST * deep)
        numbers = (
            batch, group, c, f, *window, *x, *y, *(expr.const(0),) * few, *self.start,
            read, *ones, *apart, next_group, room,
        )
        read_from = (memory[name] for name in self.reads_of)
        parts = [Part(m.buffer, m.offset, writes=m.copied) for m in read_from]
        parts.append(Part(op.result, expr.const(0), writes=True))
        spare = builder.spare(f"{op.result.name}_rows", dtype, room)
        parts.append(Part(spare, expr.const(0), writes=True))
        moves = tuple((1,) * few + by for by in (self.stride, self.dilation))
        caller, given_to = _caller(self, dtype, moves, dict(zip(_NUMBERS, numbers)), lanes)
        builder.call(caller, (), given_to, parts, op)


class _Memory(NamedTuple):
    """The memory of an operand: its first element, and its strides along each dim, in elements.
    copied: it is temporary memory of the op."""

    buffer: Value
    offset: Expr
    strides: Shape
    copied: bool = False

    @classmethod
    def of(cls, value: Value, op: Op, builder: LoopBuilder) -> _Memory:
        """Return the memory of an operand if its elements lie contiguously in row-major order (for
        x, it is enough that its channels are contiguous); else that of a new contiguous copy."""
        loops, shape = loop_vars(value.type.shape), value.type.shape
        node, plain = builder.node(value, positions(loops)), strides(shape)
        address = affine(node.offset, loops) if isinstance(node, Load) and not node.bounds else None
        if address is not None:
            assert isinstance(node, Load)
            apart = tuple(b if e == 1 else a for e, a, b in zip(shape, address[1], plain))
            is_x = value is op.operands[0] and op.kind.gives != "x"  # type: ignore[attr-defined]
            if apart == plain or (is_x and apart[-1] == 1):
                return cls(node.buffer, address[0], apart)
        into = builder.spare(f"{value.name}_copy", value.type.dtype, *shape)
        builder.store(into, node, op)
        return cls(into, expr.const(0), plain, copied=True)


def _wider(cut: Cut, before: Expr, behind: Expr, shards: Shards) -> Cut:
    """Return the cut, extended by `before` and `behind` elements at its two ends."""
    if cut.interval is not None or (cut.axes and cut.step < 0):
        low, high = cut.bounds(shards.mesh)
        return cuts.interval(cut.axes, low - before, high + behind)
    return replace(
        cut, first=cut.first - before, last=cut.last + behind,
        least=cut.least - cut.step * behind, most=cut.most + cut.step * before,
    )


def _clipped(cut: Cut, extent: Expr, shards: Shards) -> Cut:
    """Return the cut, limited to a dim of this extent."""
    def inside(e: Expr) -> Expr:
        e = e if expr.nonneg(extent - e) else expr.minimum(e, extent)
        return e if expr.nonneg(e) else expr.maximum(e, 0)

    if cut.interval is not None:
        return cuts.interval(cut.axes, *map(inside, cut.interval))
    return replace(cut, first=inside(cut.first), last=inside(cut.last))


def _inside(first: int, step: int, extent: int, count: int) -> tuple[slice, slice]:
    """Return two slices: the positions first + step * o, for 0 <= o < count, that lie in 0 … extent
    - 1, and the range of those o."""
    low = min(max(0, -(first // step)), count)
    high = min(max(low, -((first - extent) // step)), count)
    begin = first + step * low
    return slice(begin, begin + step * (high - low), step), slice(low, high)


# ---- in C ----------------------------------------------------------------------------------------

_NUMBERS = ("batch", "groups", "c", "f", "k0", "k1", "k2", "x0", "x1", "x2", "y0", "y1", "y2",
            "p0", "p1", "p2", "xb", "xs0", "xs1", "xs2", "xg", "room")
_FIXED = ("groups", "c", "f", "k0", "k1", "k2", "xs2", "xg")  # as constants, where they are known

# Of every place o of a window along all dims: `walk` for what is done there.
_WALK = """
for (int64_t row = 0; row < some; row++) {
    const int64_t i0 = o0 * <s0> + p0, i1 = o1 * <s1> + p1, i2 = o2 * <s2> + p2;
    <at row>
    for (int64_t a = 0; a < k0; a++)
        for (int64_t b = 0; b < k1; b++) {
            const int64_t j0 = i0 + a * <d0>, j1 = i1 + b * <d1>;
            const int inside = j0 >= 0 && j0 < x0 && j1 >= 0 && j1 < x1;
            <in row>
        }
    if (++o2 == y2) {
        o2 = 0;
        if (++o1 == y1) {
            o1 = 0;
            if (++o0 == y0) {
                o0 = 0;
                image++;
            }
        }
    }
}
"""
_IN_LINE = """
<T> *at = x + (inside ? image * xb + j0 * xs0 + j1 * xs1 + i2 * xs2 + group * xg : 0);
if (inside && <d2> == 1 && xs2 == c && i2 >= 0 && i2 + k2 <= x2) {
    for (int64_t j = 0; j < k2 * c; j++)
        <move j>
} else {
    for (int64_t l = 0; l < k2; l++) {
        const int64_t j2 = i2 + l * <d2>, m = l * c;
        <T> *one = at + l * <d2> * xs2;
        if (inside && j2 >= 0 && j2 < x2)
            for (int64_t j = 0; j < c; j++)
                <move one>
        <else>
    }
}
line += k2 * c;
"""
_PACK = {"<move j>": "line[j] = at[j];", "<move one>": "line[m + j] = one[j];",
         "<else>": "else\n            memset(line + m, 0, c * sizeof *line);"}
_ADD = {"<move j>": "at[j] += line[j];", "<move one>": "one[j] += line[m + j];", "<else>": ""}
_BLOCKS = """
const int64_t deep = k0 * k1 * k2 * c, places = batch * y0 * y1 * y2, lead = deep > 0 ? deep : 1;
const int64_t most = room / lead;
<begin>
for (int64_t group = 0; group < groups && <any>; group++) {
    int64_t image = 0, o0 = 0, o1 = 0, o2 = 0;
    for (int64_t first = 0; first < places; first += most) {
        const int64_t some = places - first < most ? places - first : most;
        <block>
    }
}
"""
_FORMS = {
    "y": ("", "f > 0", """
<walk>
<gemm>(SPMD_ROW_MAJOR, SPMD_PLAIN, SPMD_PLAIN, some, f, deep, <one>, rows, lead,
       w + group * deep * f, f, <zero>, y + (first * groups + group) * f, groups * f);
"""),
    "x": ("memset(x, 0, batch * x0 * x1 * x2 * groups * c * sizeof *x);", "deep > 0", """
<gemm>(SPMD_ROW_MAJOR, SPMD_PLAIN, SPMD_TRANSPOSED, some, deep, f, <one>,
       y + (first * groups + group) * f, groups * f > 0 ? groups * f : 1,
       w + group * deep * f, f > 0 ? f : 1, <zero>, rows, lead);
<walk>
"""),
    "w": ("memset(w, 0, groups * deep * f * sizeof *w);", "deep > 0 && f > 0", """
<walk>
<gemm>(SPMD_ROW_MAJOR, SPMD_TRANSPOSED, SPMD_PLAIN, deep, f, some, <one>, rows, lead,
       y + (first * groups + group) * f, groups * f, <one>, w + group * deep * f, f);
"""),
}

# Of groups of one channel each, which lie beside each other: their windows are turned first.
_TURN = """
for (int64_t group = 0; group < groups; group++)
    for (int64_t k = 0; k < k0 * k1 * k2; k++)
        <turned>
"""
_LANES = """
const int64_t some = batch * y0 * y1 * y2;
int64_t image = 0, o0 = 0, o1 = 0, o2 = 0;
<begin>
<walk>
<end>
"""
_IN_LANES = """
for (int64_t l = 0; inside && l < k2; l++) {
    const int64_t j2 = i2 + l * <d2>;
    if (j2 < 0 || j2 >= x2)
        continue;
    <T> *at = x + image * xb + j0 * xs0 + j1 * xs1 + j2 * xs2;
    <R> *by = rows + ((a * k1 + b) * k2 + l) * groups;
    for (int64_t j = 0; j < groups; j++)
        <sum>
}
"""
_TURNED = _TURN.replace("<turned>", "rows[k * groups + group] = w[group * k0 * k1 * k2 + k];")
_LANE_FORMS = {
    "y": ("memset(y, 0, some * groups * sizeof *y);" + _TURNED,
          "to[j] += at[j * xg] * by[j];", ""),
    "x": ("memset(x, 0, batch * x0 * x1 * x2 * groups * sizeof *x);" + _TURNED,
          "at[j * xg] += to[j] * by[j];", ""),
    "w": ("memset(rows, 0, room * sizeof *rows);", "by[j] += at[j * xg] * to[j];",
          _TURN.replace("<turned>", "w[group * k0 * k1 * k2 + k] = rows[k * groups + group];")),
}


def _caller(kind: Convolve, dtype: DType, moves: Sequence[Sequence[int]],
            known: Mapping[str, Expr], lanes: bool) -> tuple[Caller, Shape]:
    """Return the C function of a convolution, and the values of its integer arguments. Numbers that
    are known when the image is built are constants in its text."""
    gives, c = kind.gives, dtype.c
    fixed = {name: known[name].value for name in _FIXED if known[name].is_const}
    if lanes:
        begin, added, end = _LANE_FORMS[gives]
        text = _LANES.replace("<begin>", begin).replace("<end>", end).replace("<walk>", _WALK)
        text = text.replace("<in row>", indented(_IN_LANES.replace("<sum>", added), 12))
        text = text.replace("<at row>", f"{'' if gives == 'y' else 'const '}{c} *restrict to = "
                            "y + row * groups;")
    else:
        begin, some, block = _FORMS[gives]
        text = _BLOCKS.replace("<begin>", begin).replace("<any>", some)
        text = text.replace("<block>", indented(block.replace("<walk>", _WALK), 8))
        line = _IN_LINE
        for word, means in (_ADD if gives == "x" else _PACK).items():
            line = line.replace(word, means)
        text = text.replace("<in row>", indented(line, 20))
        text = text.replace("<at row>", f"{c} *restrict line = rows + row * deep;")
    pointers = dtype.kind == "c"
    text, routines = named_in(text, dtype)
    said = {f"<{k}{d}>": str(by[d]) for k, by in zip("sd", moves) for d in range(MOST_DIMS)}
    said |= {"<T>": c if gives == "x" else f"const {c}", "<R>": c if gives == "w" else f"const {c}",
             "<one>": "&one" if pointers else "1",
             "<zero>": "&zero" if pointers else "0"}
    for word, means in said.items():
        text = text.replace(word, means)
    if pointers and not lanes:
        text = f"const {c} one = 1, zero = 0;\n{text}"
    words = set("".join(x if x.isalnum() else " " for x in text).split())
    read = [name for name in known if name in words]
    text = "".join(f"const int64_t {name} = {fixed[name]};\n"
                   for name in read if name in fixed) + text
    read = [name for name in read if name not in fixed]
    called = "_".join([LETTERS[dtype.name] + kind.called, *(str(m) for by in moves for m in by),
                       *(str(fixed.get(name, "n")) for name in _FIXED)])
    arrays = [f"{'' if name == gives else 'const '}{c} *restrict {name}"
              for name in (*kind.reads_of, gives)]
    parameters = [*(f"int64_t {name}" for name in read), *arrays, f"{c} *restrict rows"]
    caller = Caller(called, ", ".join(parameters), text, routines)
    return caller, tuple(known[name] for name in read)


def indented(text: str, columns: int) -> str:
    return text.strip().replace("\n", "\n" + " " * columns)
