"""Views of a storage: how to read the elements that a view shows, and how to write through it.

A view is a tuple of steps from the storage's value to the array that the user holds; most of them
are ops themselves.
Always holds: `put` gives a value of the storage's type; steps are compared to recognise
`x[k] += v`, whose last act assigns a view to itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from codegen import dtypes, ops
from codegen.dtypes import DType
from codegen.errors import ProgramError
from codegen.functions import FUNCTIONS
from codegen.ir.graph import Shape, Value
from codegen.ops import Broadcast, Diagonal, Reshape, Slice, Transpose
from codegen.symbolic.expr import Expr, as_expr, const
from codegen.trace.context import Context


@dataclass(frozen=True)
class Dynamic:
    """A box whose starts are not proved in bounds: Exprs, or 0-d values known only at run time.

    Negative values count from the end. Reads are clamped, writes beyond the ends dropped.
    """

    starts: tuple[Expr | Value, ...]
    shape: Shape


@dataclass(frozen=True)
class Part:
    """The real or the imaginary parts of complex numbers."""

    fn: str
    shape: Shape


Step = Slice | Transpose | Reshape | Broadcast | Dynamic | Part | Diagonal
View = tuple[Step, ...]


def then(view: View, step: Step, before: Shape) -> View:
    """Return the view followed by one more step; `before` is the shape that the step meets."""
    if isinstance(step, Slice):
        if step.shape == before and set(step.step) <= {1} and all(s == 0 for s in step.start):
            return view
        if view and isinstance(view[-1], Slice):
            last = view[-1]
            start = tuple(a + k * b for a, k, b in zip(last.start, last.step, step.start))
            steps = tuple(a * b for a, b in zip(last.step, step.step))
            return (*view[:-1], Slice(start, steps, step.shape))
        if view and isinstance(view[-1], Transpose):  # a part of x.T is the transposed part of x
            back = inverse(view[-1].perm)
            part = _permuted(step, back)
            return (*then(view[:-1], part, tuple(before[d] for d in back)), view[-1])
        if len(view) > 1 and isinstance(view[-1], Reshape) and isinstance(view[-2], Slice):
            inner = _under_unit_dims(view[-2].shape, before, step)
            if inner is not None:
                return (*then(view[:-1], inner, view[-2].shape), Reshape(step.shape))
    if isinstance(step, Reshape):
        if step.shape == before:
            return view
        if view and isinstance(view[-1], Reshape):
            view = view[:-1]
    if isinstance(step, Transpose):
        if view and isinstance(view[-1], Transpose):
            step = Transpose(tuple(view[-1].perm[d] for d in step.perm))
            view = view[:-1]
        if step.perm == tuple(range(len(step.perm))):
            return view
    return (*view, step)


def _permuted(step: Slice, perm: tuple[int, ...]) -> Slice:
    return Slice(tuple(step.start[d] for d in perm), tuple(step.step[d] for d in perm),
                 tuple(step.shape[d] for d in perm))


def _under_unit_dims(inner: Shape, outer: Shape, step: Slice) -> Slice | None:
    """Return a slice of `outer` as a slice of `inner`, where the two differ by dims of extent 1
    only."""
    if [e for e in inner if e != 1] != [e for e in outer if e != 1]:
        return None
    if any(e == 1 and n != 1 for e, n in zip(outer, step.shape)):
        return None
    long = iter([k for k, e in enumerate(outer) if e != 1])
    start, steps, shape = [], [], []
    for e in inner:
        k = -1 if e == 1 else next(long)
        start.append(const(0) if k < 0 else step.start[k])
        steps.append(1 if k < 0 else step.step[k])
        shape.append(e if k < 0 else step.shape[k])
    return Slice(tuple(start), tuple(steps), tuple(shape))


def shape_of(view: View, base: Shape) -> Shape:
    for step in view:
        if isinstance(step, Transpose):
            base = tuple(base[d] for d in step.perm)
        elif isinstance(step, Diagonal):
            base = (*base[: step.second], *base[step.second + 1 :])
        else:
            base = step.shape
    return base


def dtype_of(view: View, base: DType) -> DType:
    for step in view:
        if isinstance(step, Part):
            return FUNCTIONS[step.fn].result_dtype(base)
    return base


def is_static(view: View) -> bool:
    """Return whether the view shows the same elements whatever is known at run time only."""
    return all(
        isinstance(step, (Slice, Transpose, Reshape, Broadcast, Part))
        and (not isinstance(step, Slice) or all(e.is_const for e in (*step.start, *step.shape)))
        for step in view
    )


def shown(data: Any, view: View) -> Any:
    """Return the elements of a NumPy array that a static view shows, in the same memory."""
    for step in view:
        if isinstance(step, Part):
            data = getattr(data, step.fn)
        else:
            assert isinstance(step, (Slice, Transpose, Reshape, Broadcast))
            (data,) = step.reference([data], lambda e: as_expr(e).value)
    return data


def may_reshape(view: View, base: Shape, shape: Shape) -> bool:
    """Return whether NumPy's reshape of this view shows the same memory: the strides that it would
    have decide. Extents that follow from the mesh: assumed so."""
    steps = [step for step in (*view, Reshape(shape)) if not isinstance(step, Diagonal)]
    if len(steps) <= len(view):
        return False
    shapes = (base, *(s.shape for s in steps if not isinstance(s, Transpose)))
    if not view or not all(e.is_const for dims in shapes for e in dims):
        return True
    extents = tuple(e.value for e in base)
    strides = _contiguous(extents)
    for step in steps:
        if isinstance(step, Transpose):
            extents = tuple(extents[d] for d in step.perm)
            strides = tuple(strides[d] for d in step.perm)
            continue
        now = tuple(e.value for e in step.shape)
        if isinstance(step, Reshape):
            new_strides = reshaped_strides(extents, strides, now)
            if new_strides is None:
                return False
            strides = new_strides
        elif isinstance(step, Broadcast):
            stride_of = {d: s for d, s, e in zip(step.dims, strides, extents) if e != 1}
            strides = tuple(stride_of.get(d, 0) for d in range(len(now)))
        elif isinstance(step, Slice):
            strides = tuple(s * k for s, k in zip(strides, step.step))
        extents = now
    return True


def _contiguous(extents: Sequence[int]) -> tuple[int, ...]:
    """Return strides of an array in row-major order, in elements."""
    return tuple(math.prod(extents[d + 1 :]) for d in range(len(extents)))


def reshaped_strides(
    extents: Sequence[int], strides: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Return strides that show the same elements in another shape of as many, None where there are
    none.

    The rule of NumPy's _attempt_nocopy_reshape: dims are taken in groups of equal size on both
    sides, and the old dims of a group must run through memory as one.
    """
    if 0 in extents:
        return _contiguous(wanted)
    old = [(e, s) for e, s in zip(extents, strides) if e != 1]
    new = [d for d, e in enumerate(wanted) if e != 1]
    result = [0] * len(wanted)
    while old:
        (have, step), group = old.pop(0), [new.pop(0)]
        need = wanted[group[0]]
        while have != need:
            if have > need:
                group.append(new.pop(0))
                need *= wanted[group[-1]]
                continue
            extent, inner = old.pop(0)
            if step != extent * inner:
                return None
            have, step = have * extent, inner
        for d in reversed(group):
            result[d], step = step, step * wanted[d]
    return tuple(result)


def _starts(context: Context, base: Value, step: Dynamic) -> list[Value]:
    """Return 0-d int64 values, negative ones already counted from the end."""
    out = []
    for start, extent in zip(step.starts, base.type.shape):
        if isinstance(start, Expr):
            out.append(index_value(context, start))
            continue
        emit = context.emit_one
        if start.type.dtype != dtypes.INT64:
            start = emit(ops.Map("cast", dtype=dtypes.INT64), start)
        zero = emit(ops.Full(value=0, dtype=dtypes.INT64, shape=()))
        moved = emit(ops.Map("add"), start, index_value(context, extent))
        out.append(emit(ops.Map("select"), emit(ops.Map("lt"), start, zero), moved, start))
    return out


def index_value(context: Context, e: Expr) -> Value:
    """Return a symbolic integer as a 0-d int64 value."""
    if e.is_const:
        kind: ops.Kind = ops.Full(e.value, dtypes.INT64, ())
    else:
        kind = ops.Symbolic(e, dtypes.INT64)
    return context.remember(("index", e), lambda: context.emit_one(kind))


def _apply(context: Context, base: Value, step: Step) -> Value:
    emit = context.emit_one
    if isinstance(step, Part):
        return emit(ops.Map(step.fn), base)
    if isinstance(step, Dynamic):
        return emit(ops.DynamicSlice(shape=step.shape), base, *_starts(context, base, step))
    return emit(step, base)


def get(context: Context, base: Value, view: View) -> Value:
    """Return the elements that a view of `base` shows."""
    value = base
    for step in view:
        value = context.remember((value, step), partial(_apply, context, value, step))
    return value


def put(context: Context, base: Value, view: View, new: Value) -> Value:
    """Return `base` with the elements that the view shows replaced by `new`, of the view's
    shape."""
    if not view:
        return new
    step, rest = view[0], view[1:]
    if rest:
        new = put(context, get(context, base, (step,)), rest, new)
    emit = context.emit_one
    if isinstance(step, Slice):
        return emit(ops.Update(start=step.start, step=step.step), base, new)
    if isinstance(step, Transpose):
        return emit(ops.Transpose(perm=inverse(step.perm)), new)
    if isinstance(step, Reshape):
        return emit(ops.Reshape(shape=base.type.shape), new)
    if isinstance(step, Dynamic):
        return emit(ops.DynamicUpdate(), base, new, *_starts(context, base, step))
    if isinstance(step, Part):
        wide = emit(ops.Map("cast", dtype=base.type.dtype), new)
        return emit(ops.Map(f"with_{step.fn}"), base, wide)
    picked = isinstance(step, Diagonal)
    raise ProgramError(
        f"this array is a {'diagonal of another' if picked else 'broadcast view'}, which is "
        "read-only", expected="an array that has elements of its own",
        found="the result of np.diagonal or np.diag" if picked else
        "the result of np.broadcast_to, or x.imag of real numbers",
        remedy="np.fill_diagonal(x, v), or x[k, k] = v with k = np.arange(n)" if picked else
        "write into a copy: x = np.broadcast_to(...).copy()",
    )


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    out = [0] * len(perm)
    for k, d in enumerate(perm):
        out[d] = k
    return tuple(out)
