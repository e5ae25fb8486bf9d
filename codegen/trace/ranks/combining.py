"""Reductions over ranks inside a shard_map: the psum family, psum_scatter, preduce, scans, flags.

In: arrays of one shape on all members. Out: where all members get a result, it has the same bits.
Always holds: COMBINE names what is combined with; types for which it means nothing are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import DtypeError
from codegen.functions import fn_of
from codegen.ir.graph import Value
from codegen.ops import Fold, Kind
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, cast_value, number, wrap
from codegen.trace.context import Context
from codegen.trace.ranks.communicate import Axes, dim_of, independent, inside, kept_part, members
from codegen.trace.ranks.folding import folded
from codegen.trace.ranks.layout_forms import axes_of
from codegen.trace.ranks.rooted import root_of
from codegen.user import half_types, pytree

__all__ = [  # that users import from spmd
    "all_ranks", "any_ranks", "pand", "pargmax", "pargmin", "pexscan", "pmax", "pmean", "pmin",
    "por", "pprod", "preduce", "pscan", "psum", "psum_scatter", "pxor",
]


def _all_reduce(x: Any, axis: Any, fn: str, function: str) -> Any:
    context, axes = members(axis, function)

    def reduce_leaf(leaf: Any) -> Any:
        if fn == "add" and isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            return leaf * number(context.mesh.size(axes))  # psum(1, axis): the number of members
        value = contributed(as_array(leaf), fn, function)
        independent(context, axes, value.type.shape, function)
        return combined(context, Fold(axes, fn), value)

    return pytree.map_tree(reduce_leaf, x)


def combined(context: Context, kind: Kind, value: Value) -> Array:
    """Emit an exchange that combines the members' values, half types in float32, and round the
    result once."""
    stored = value.type.dtype
    total = context.emit_one(kind, widened(context, value))
    return wrap(context, cast_value(context, total, stored))


def widened(context: Context, value: Value) -> Value:
    return cast_value(context, value, dtypes.folded_in(value.type.dtype))


def contributed(array: Array, fn: str, function: str) -> Value:
    """Return the value that a rank contributes: bools as int64 in sums and products, as in NumPy.
    Raise DtypeError for bitwise functions of floats."""
    value = array.read()
    kind = value.type.dtype.kind
    if fn.startswith("bit_") and kind in "fc":
        raise DtypeError(
            f"{function} of {value.type.dtype}: its bits are not truth values",
            expected="bools, which it combines as truth values, or integers, bit by bit",
            found=str(value.type), remedy="compare first: x != 0",
        )
    if kind == "b" and fn in ("add", "mul"):
        return cast_value(array.context, value, dtypes.INT64)
    return value


def psum(x: Any, axis: Any) -> Any:
    """Return the sum of x over all ranks along the axis (or axes), element by element, on each of
    them.

    x: arrays of one shape on all ranks, in any nest; the results have the same shapes and dtypes,
    and the same bits on all ranks. ShapeError where a shape depends on the index.

    On 4 ranks, x is [index]:

    >>> psum(x, "r")
    [6.], [6.], [6.], [6.]
    """
    return _all_reduce(x, axis, "add", "psum")


def pprod(x: Any, axis: Any) -> Any:
    """Return the product over all ranks along the axis, as psum.

    >>> pprod(x + 1, "r")
    [24.], [24.], [24.], [24.]
    """
    return _all_reduce(x, axis, "mul", "pprod")


def pmax(x: Any, axis: Any) -> Any:
    """Return the maximum over all ranks along the axis, as psum; NaN wins.

    >>> pmax(x, "r")
    [3.], [3.], [3.], [3.]
    """
    return _all_reduce(x, axis, "max", "pmax")


def pmin(x: Any, axis: Any) -> Any:
    """Return the minimum over all ranks along the axis, as psum; NaN wins.

    >>> pmin(x, "r")
    [0.], [0.], [0.], [0.]
    """
    return _all_reduce(x, axis, "min", "pmin")


def pmean(x: Any, axis: Any) -> Any:
    """Return the mean over all ranks along the axis, as psum, divided by their number.

    >>> pmean(x, "r")
    [1.5], [1.5], [1.5], [1.5]
    """
    context, axes = members(axis, "pmean")
    size = number(context.mesh.size(axes))

    def mean_of_leaf(leaf: Any) -> Any:
        half = half_types.half_type_of(array := as_array(leaf))
        total = psum(half_types.widened(array), axis)  # it may be beyond what half types can hold
        return half_types.narrowed(total / size, half)

    return pytree.map_tree(mean_of_leaf, x)


def pand(x: Any, axis: Any) -> Any:
    """Return whether x holds on all ranks along the axis, as psum; of integers, bit by bit.

    >>> pand(x < 3, "r")
    [0], [0], [0], [0]
    """
    return _all_reduce(x, axis, "bit_and", "pand")


def por(x: Any, axis: Any) -> Any:
    """Return whether x holds on any rank along the axis, as psum; of integers, bit by bit.

    >>> por(x.astype(int), "r")
    [3], [3], [3], [3]
    """
    return _all_reduce(x, axis, "bit_or", "por")


def pxor(x: Any, axis: Any) -> Any:
    """Return whether x holds on an odd number of ranks along the axis, as psum; of integers, bit by
    bit.

    >>> pxor(x > 0, "r")
    [1], [1], [1], [1]
    """
    return _all_reduce(x, axis, "bit_xor", "pxor")


def _flag(flag: Any, axis: Any, fn: str, function: str) -> Array:
    context = inside(function)
    axes = context.mesh.names if axis is None else axes_of(context, axis, function)
    array = as_array(flag, dtypes.BOOL)
    independent(context, axes, array.extents, function)
    return wrap(context, context.emit_one(Fold(axes, fn), array.read()))


def all_ranks(flag: Any, axis: Any = None) -> Array:
    """Return whether the flag holds on all ranks, or on all along the axis: a bool array of shape
    ().

    Every rank gets the same answer, so `while not spmd.all_ranks(done)` ends on all of them at
    once.
    """
    return _flag(flag, axis, "and", "all_ranks")


def any_ranks(flag: Any, axis: Any = None) -> Array:
    """Return whether the flag holds on any rank, or on any along the axis: as all_ranks."""
    return _flag(flag, axis, "or", "any_ranks")


def psum_scatter(
    x: Any, axis: Any, dim: int = 0, tiled: bool = False, *, scatter_dimension: int | None = None
) -> Any:
    """Sum x over all ranks along the axis; each rank keeps its part of the sum along `dim`.

    As in JAX, the extent of dim is the number of ranks, and the dim is dropped. tiled=True keeps
    dim and cuts it into balanced blocks, so that any extent will do.

    On 4 ranks, x is [index]:

    >>> psum_scatter(x + np.arange(8), "r", tiled=True)
    [ 6. 10.], [14. 18.], [22. 26.], [30. 34.]
    """
    context, axes = members(axis, "psum_scatter")
    dim = dim if scatter_dimension is None else scatter_dimension

    def scatter_leaf(leaf: Any) -> Array:
        value = contributed(as_array(leaf), "add", "psum_scatter")
        shape = value.type.shape
        d = dim_of(dim, len(shape), "psum_scatter")
        independent(context, axes, shape, "psum_scatter")
        wide = widened(context, value)
        kept, _ = kept_part(context, axes, shape, d, tiled, "psum_scatter")
        part = wrap(context, context.emit_one(Fold(axes, "add", want=kept), wide))
        part = part if tiled else part.squeeze(d)
        return as_array(part, value.type.dtype)

    return pytree.map_tree(scatter_leaf, x)


def preduce(x: Any, axis: Any, op: Any = "sum", root: Any = 0) -> Any:
    """Return what psum gives, but only on the rank at position `root`; zeros on all others.

    - x: arrays of one shape on all ranks, in any nest.
    - op: "sum", "prod", "min" or "max" (NaN wins); "and", "or" or "xor", of bools as truth values
      and of integers bit by bit; a function of two arrays that returns a third one like them; or a
      kernel (a, b, out). The ranks' arrays are combined one after the other, in their order.
    - root: None for all of them.

    A function of your own that does the same with every element (arithmetic, np.where and the like,
    of its arguments and numbers) takes two exchanges. Any other, and every kernel, takes one for
    each rank.

    UsageError for another op, DtypeError for bits of floats, ShapeError where a shape depends on
    the index, MatchingError where there is no such rank, CarryError where op changes the type.

    On 4 ranks, x is [index]:

    >>> preduce(x, "r", "max", root=1)
    [0.], [3.], [0.], [0.]
    >>> preduce(x, "r", lambda a, b: 10 * a + b, root=None)
    [123.], [123.], [123.], [123.]
    """
    context, axes = members(axis, "preduce")
    position = None if root is None else root_of(context, axes, root, "preduce")
    if callable(op):
        here = expr.const(1) if position is None else expr.eq(context.mesh.position(axes), position)

        def mine(leaf: Any) -> Any:
            total = _folded(context, axes, leaf, op, "preduce", False)
            return np.where(number(here), total, np.zeros_like(total))

        return pytree.map_tree(mine, x)
    fn = fn_of(op, "preduce")

    def reduce_leaf(leaf: Any) -> Array:
        value = contributed(as_array(leaf), fn, "preduce")
        independent(context, axes, value.type.shape, "preduce")
        if position is None:
            return combined(context, Fold(axes, fn), value)
        return combined(context, Fold(axes, fn, "to_root", position), value)

    return pytree.map_tree(reduce_leaf, x)


def _folded(context: Context, axes: Axes, leaf: Any, op: Any, function: str, prefix: bool) -> Array:
    array = as_array(leaf)
    independent(context, axes, array.extents, function)
    return folded(context, axes, array, op, function, prefix)


def _prefix(x: Any, axis: Any, op: Any, exclusive: bool, function: str) -> Any:
    context, axes = members(axis, function)
    if callable(op) and not exclusive:
        return pytree.map_tree(lambda leaf: _folded(context, axes, leaf, op, function, True), x)
    fn = fn_of(op, function)

    def scan_leaf(leaf: Any) -> Array:
        value = contributed(as_array(leaf), fn, function)
        if exclusive and value.type.dtype.kind == "c" and fn in ("min", "max"):
            raise DtypeError(
                f"{function} of {value.type.dtype}: no complex number is the largest or smallest",
                expected="an op for which the first rank has something to begin with",
                found=f"op={op!r} of {value.type}", remedy="pscan, or the real and imaginary parts",
            )
        independent(context, axes, value.type.shape, function)
        return combined(context, Fold(axes, fn, "before" if exclusive else "up_to"), value)

    return pytree.map_tree(scan_leaf, x)


def pscan(x: Any, axis: Any, op: Any = "sum") -> Any:
    """Combine x of all ranks up to this one along the axis, element by element, in their order.

    op and x: as of preduce, a function or a kernel also. The bits of a result depend on the mesh,
    not on which process hosts which rank.

    On 4 ranks, x is [index]:

    >>> pscan(x + 1, "r")
    [1.], [3.], [6.], [10.]
    """
    return _prefix(x, axis, op, False, "pscan")


def pexscan(x: Any, axis: Any, op: str = "sum") -> Any:
    """Combine x of all ranks before this one, as pscan does without this rank's own x. With sizes
    as x, it gives where this rank's part begins.

    op: a name, no function. The first rank gets what changes no other value: 0 for sums, 1 for
    products, the largest number (inf for floats) for minima.

    >>> pexscan(x + 1, "r")
    [0.], [1.], [3.], [6.]
    """
    return _prefix(x, axis, op, True, "pexscan")


def pargmax(x: Any, axis: Any) -> Any:
    """Return the largest x along the axis, element by element, and the position of the rank that
    has it.

    Two arrays of x's shape, or of each leaf of a nest: the values, and int64 positions; the first
    rank among equals, NaN counts as larger than all. Both have the same bits on all ranks.

    On 4 ranks, x is [index]:

    >>> pargmax(x * (3 - x), "r")[1]
    [1], [1], [1], [1]
    """
    return _located(x, axis, "max", "pargmax")


def pargmin(x: Any, axis: Any) -> Any:
    """Return the smallest x along the axis and the position of the rank that has it: as pargmax.

    NaN counts as smaller than all.

    >>> pargmin(x * (3 - x), "r")[1]
    [0], [0], [0], [0]
    """
    return _located(x, axis, "min", "pargmin")


def _located(x: Any, axis: Any, fn: str, function: str) -> Any:
    """Return the best values and the positions of the ranks that have them, by two all-reduces: of
    the values, then of the positions of the ranks with the best one."""
    context, axes = members(axis, function)
    size, own = (number(e) for e in (context.mesh.size(axes), context.mesh.position(axes)))
    values = _all_reduce(x, axis, fn, function)
    bests = (leaf for leaf in pytree.leaves(values) if leaf is not None)

    def where(leaf: Any) -> Any:
        mine, best = as_array(leaf), next(bests)
        has = (mine == best) | ((mine != mine) & (best != best))
        return _all_reduce(np.where(has, own, size), axis, "min", function)

    return values, pytree.map_tree(where, x)
