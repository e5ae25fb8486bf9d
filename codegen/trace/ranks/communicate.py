"""Exchange between ranks inside a shard_map: ppermute, all_gather, all_to_all, barriers.

Shapes of results are seen from the receiver: the sender's extents with the mesh coordinates of
the axes replaced by the sender's.
Always holds: what is wrong for every mesh is refused here; everything else is proved by the passes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from codegen.errors import CarryError, MatchingError, ProgramError, ShapeError, UsageError
from codegen.ir.graph import ArrayType, Shape, Value
from codegen.mesh import block_extent, block_offset
from codegen.ops import Barrier, Move, Permute, Symbolic
from codegen.ops.group import Bounds, Span, along
from codegen.symbolic import estimate, expr, prove
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.array import Array, as_array, number, wrap
from codegen.trace.context import Context, require_context
from codegen.trace.control.computed_symbols import as_symbol
from codegen.trace.control.conversion import checked_callback
from codegen.trace.number import expr_of, maybe
from codegen.trace.numpy.elementwise import same_extent, shape_text
from codegen.trace.ranks.layout_forms import axes_of
from codegen.user import pytree

Axes = tuple[str, ...]


def inside(function: str) -> Context:
    """Return the context, which must be in a rank's view."""
    context = require_context(function)
    if not context.rank_view:
        raise ProgramError(f"{function} stands outside a shard_map",
                           expected="one rank's view, where the index can be read",
                           remedy="write it inside a function given to spmd.shard_map")
    return context


def members(axis: Any, function: str) -> tuple[Context, Axes]:
    """Return the context, in a rank's view, and the axes along which ranks exchange."""
    context = inside(function)
    return context, axes_of(context, axis, function)


def member_of(context: Context, axes: Axes) -> Sym:
    """Return a symbol for the position of any member along these axes."""
    return Sym("p", "var", expr.const(0), context.mesh.size(axes) - 1)


def at_member(context: Context, axes: Axes, e: Expr, position: Expr) -> Expr:
    """Return e as the member at this position evaluates it."""
    return e.subst(context.mesh.coordinates(axes, position))


def independent(
    context: Context, axes: Axes, shape: Shape, function: str, but: int | None = None,
    remedy: str = "",
) -> None:
    """Raise ShapeError where an extent, except that of dim `but`, differs between the members."""
    var = expr.symbol(member_of(context, axes))
    for d in range(len(shape)):
        if d != but and not same_extent(shape[d], at_member(context, axes, shape[d], var)):
            raise ShapeError(f"{function}: dim {d} has different extents on different ranks",
                             expected=f"one shape on all ranks along {', '.join(axes)}",
                             found=f"{shape_text(shape)}, in which {shape[d]} depends on the index",
                             remedy=remedy or
                             "spmd.require(extent % axis_size == 0) states that all are equal; "
                             "else pad to one extent, or reduce over that dim first")


# ---- ppermute --------------------------------------------------------------------------------


def ppermute(
    x: Any, axis: Any, perm: Any = None, *, shift: Any = None, to: Callable[..., Any] | None = None
) -> Any:
    """Send x to another rank along the axis, and return what arrives here.

    x: arrays, in any nest of tuples, lists and dicts. axis: one, or a tuple of axes that are taken
    as one, row-major. Exactly one of:

    - shift: k, to the rank k places on; it wraps around.
    - to: a function f(i, n) of a position and the number of ranks, which returns the receiver's
      position, or None for nobody. It is arithmetic on i, n and integers on which all ranks agree.
    - perm: pairs [(source, destination), …], as in JAX.

    A rank to which nothing is sent gets zeros of the sender's shape. MatchingError where two ranks
    send to the same one, or one sends to a rank that does not exist, for any size of the mesh.

    On 4 ranks, x is [index]:

    >>> ppermute(x, "r", shift=1)
    [3.], [0.], [1.], [2.]
    >>> ppermute(x, "r", to=lambda i, n: i - 1 if i > 0 else None)
    [1.], [2.], [3.], [0.]
    """
    context, axes = members(axis, "ppermute")
    if sum(choice is not None for choice in (perm, shift, to)) != 1:
        raise UsageError(
            "ppermute needs one of shift=, to= and perm=",
            expected="shift=k, to=lambda i, n: ..., or perm=[(source, destination), ...]",
        )
    n = context.mesh.size(axes)
    p = member_of(context, axes)
    if shift is not None:
        route = _shifted(context, p, n, shift)
    else:
        to_, sends = _destination(context, axes, p, to) if to else _pairs(p, perm)
        route = (to_, sends, *_sources(to_, sends, p, n))
    return pytree.map_tree(lambda leaf: _permute(context, axes, p, route, leaf), x)


Route = tuple[Expr, Expr, "Expr | None", "Expr | None"]


def _sources(to: Expr, sends: Expr, p: Sym, n: Expr) -> tuple[Expr | None, Expr | None]:
    """Return the position of the sender to p, and 1 where there is one; None for both where members
    find out while they run.

    They do where a counter or a computed integer decides and nothing is proved: then the run ends
    with an error where two members send to one.
    """
    decided = any(s.kind == "counter" for s in to.symbols() | sends.symbols())
    if decided and not prove.proved(to, sends, p, n):
        return None, None
    return prove.inverse(to, sends, p, n) or (None, None)


def _shifted(context: Context, p: Sym, n: Expr, shift: Any) -> Route:
    k = expr_of(as_symbol(shift))
    if k is None:
        raise UsageError("the shift of a ppermute must be an integer",
                         expected="an integer on which all ranks agree",
                         found=repr(shift))
    member = expr.symbol(p)
    same_on_all(context, k, "shift")
    return (member + k) % n, expr.const(1), (member - k) % n, expr.const(1)


def same_on_all(context: Context, e: Expr, subject: str) -> None:
    """Raise MatchingError where an integer depends on this rank's position."""
    coords = [s for s in e.symbols() if s.kind == "coord"]
    if coords:
        raise MatchingError(
            f"{subject} differs between the ranks, so two ranks may send to the same one",
            expected="one value on all ranks", found=str(e),
            remedy="ppermute(..., to=lambda i, n: ...) gives each rank's destination",
        )


def _destination(context: Context, axes: Axes, p: Sym, to: Callable[..., Any]) -> tuple[Expr, Expr]:
    """Return what the user's `to` gives for member p: the destination, and 1 where there is one.
    Raise an error where only the run knows it."""
    called = checked_callback(to, "to= of ppermute", "i", "n")
    context.selecting = len(context.blocks)
    before = [len(block.ops) for block in context.blocks]
    try:
        result = called(number(expr.symbol(p)), number(context.mesh.size(axes)))
    except CarryError:
        raise _no_destination("a choice by a value that is known at run time only") from None
    finally:
        context.selecting = 0
    destination = maybe(as_symbol(result))
    emitted = [op for block, n in zip(context.blocks, before) for op in block.ops[n:]]
    if any(isinstance(op.kind, Symbolic) and p in op.kind.value.symbols() for op in emitted):
        raise _no_destination("an array that is computed of i")
    if destination is None:
        raise _no_destination(f"{type(result).__name__}: {result!r}"[:80])
    # the function may have read this rank's own coordinates: they are member p's
    own = context.mesh.coordinates(axes, expr.symbol(p))
    return destination.value.subst(own), destination.holds.subst(own)


def _no_destination(found: str) -> UsageError:
    return UsageError(
        "to= must give a destination",
        expected="a formula (+ - * // % and comparisons) of i, n and integers on which all ranks "
        "agree; None sends nothing", found=found,
        remedy="TABLE[i] of a list or array of integers that is known while building; 2**i where "
        "the axis has a fixed size",
    )


def _pairs(p: Sym, perm: Any) -> tuple[Expr, Expr]:
    """Return the destination of member p from JAX's pairs (source, destination), and 1 where p is a
    source."""
    perm = _integers(perm)
    to, sends = expr.const(0), expr.const(0)
    for k, role in enumerate(("source", "destination")):
        ends = [pair[k] for pair in perm]
        twice = next((e for j, e in enumerate(ends) if e in ends[:j]), None)
        if twice is not None:
            raise MatchingError(f"rank {twice} stands twice as a {role} in perm",
                                expected=f"each {role} once",
                                found=repr(list(perm))[:80])
    for source, destination in perm:
        here = expr.eq(expr.symbol(p), source)
        to, sends = to + here * destination, sends + here
    return to, sends


def _integers(perm: Any) -> list[tuple[int, int]]:
    try:
        return [(operator.index(source), operator.index(to)) for source, to in perm]
    except (TypeError, ValueError):
        raise UsageError(
            "perm= of ppermute must be pairs of ranks",
            expected="[(source, destination), ...], known while building", found=repr(perm)[:80],
            remedy="shift=k sends to the rank k places on; to=lambda i, n: ... to any other",
        ) from None


def send_by(
    context: Context, axes: Axes, p: Sym, to: Expr, sends: Expr, rows: Iterable[Array]
) -> list[Array]:
    """Send by a formula, as ppermute does: member p sends each of rows to member `to`, where
    `sends` is 1."""
    route = (to, sends, *_sources(to, sends, p, context.mesh.size(axes)))
    return [_permute(context, axes, p, route, x) for x in rows]


def _permute(context: Context, axes: Axes, p: Sym, route: Route, leaf: Any) -> Array:
    to, sends, source, receives = route
    array = as_array(leaf)
    value = array.read()
    if source is None:
        independent(context, axes, value.type.shape,
                    "ppermute with a destination that cannot be inverted")
        shape = value.type.shape
    else:
        here = source.subst({p: context.mesh.position(axes)})
        shape = tuple(at_member(context, axes, e, here) for e in value.type.shape)
    types = (ArrayType(value.type.dtype, shape),)
    permute = Permute(axes, p, to, sends, source, receives, types)
    (result,) = context.emit(permute, [value], names=["received"])
    return wrap(context, result)


def barrier(axis: Any = None) -> None:
    """Wait until all ranks, or all along the axis, are here.

    You rarely need it: exchanges wait for the data that they read. It is for measuring, and for
    what programs do outside of spmd.
    """
    context = require_context("barrier")
    axes = context.mesh.names if axis is None else axes_of(context, axis, "barrier")
    context.emit(Barrier(axes=axes), ())


# ---- gathers ---------------------------------------------------------------------------------


def dim_of(d: Any, ndim: int, function: str) -> int:
    """Return the dim that an argument names, counted from 0; raise ShapeError where there is
    none."""
    value = expr_of(d)
    if value is None or not value.is_const or not -ndim <= value.value < ndim:
        raise ShapeError(f"{function}: no dim {d}", expected=f"a dim from {-ndim} to {ndim - 1}",
                         found=str(d))
    return value.value % ndim


def pieces(context: Context, axes: Axes, extent: Expr, function: str) -> tuple[Span, Expr]:
    """Return where this rank's piece lies when all members' pieces are joined, as (begin, end), and
    the whole extent. Raise ShapeError where no formula gives the sum."""
    n = context.mesh.size(axes)
    k = Sym("k", "var", expr.const(0), n - 1)
    each = at_member(context, axes, extent, expr.symbol(k))
    offset = estimate.prefix_sum(each, k, context.mesh.position(axes))
    total = estimate.prefix_sum(each, k, n)
    if offset is None or total is None:
        raise ShapeError(f"{function}: there is no formula for the sum of the extents on all ranks",
                         expected="equal extents, balanced blocks, or extents linear in the index",
                         found=str(extent), remedy="pad to one extent")
    return (offset, offset + extent), total


def all_gather(
    x: Any, axis: Any, dim: int = 0, tiled: bool = False, *, gather_axis: int | None = None
) -> Any:
    """Return x of all ranks along the axis, stacked along a new dim in their order, on each rank.

    tiled=True joins them along the existing dim instead; then their extents may differ. All other
    extents are equal on all ranks, else ShapeError.

    On 4 ranks, x is [index]:

    >>> all_gather(x, "r", tiled=True)
    [0. 1. 2. 3.], [0. 1. 2. 3.], [0. 1. 2. 3.], [0. 1. 2. 3.]
    """
    context, axes = members(axis, "all_gather")
    dim = dim if gather_axis is None else gather_axis

    def gather_leaf(leaf: Any) -> Array:
        value, d, part, shape = joined(context, axes, leaf, dim, tiled, "all_gather")
        types = (ArrayType(value.type.dtype, shape),)
        gather = Move(axes, along(len(shape), {d: part}), types=types)
        return wrap(context, context.emit_one(gather, value))

    return pytree.map_tree(gather_leaf, x)


def joined(
    context: Context, axes: Axes, leaf: Any, dim: int, tiled: bool, function: str
) -> tuple[Value, int, Span, Shape]:
    """Return the operand of a gather, the dim along which parts are joined, where this rank's part
    begins and ends in it, and the shape of the result."""
    array = as_array(leaf)
    d = dim_of(dim, array.ndim + (not tiled), function)
    if not tiled:
        array = array.reshape((*array.shape[:d], 1, *array.shape[d:]))
    value = array.read()
    shape = value.type.shape
    independent(context, axes, shape, function, d,
                "" if tiled else "tiled=True joins parts of different extents")
    part, total = pieces(context, axes, shape[d], function)
    return value, d, part, (*shape[:d], total, *shape[d + 1 :])


def kept_part(
    context: Context, axes: Axes, shape: Shape, d: int, tiled: bool, function: str
) -> tuple[Bounds, Shape]:
    """Return the bounds of this rank's part of dim d in an array of this shape, and the shape of
    that part."""
    n, k = context.mesh.size(axes), context.mesh.position(axes)
    if not tiled:
        _one_per_member(shape, d, n, function)
    first = block_offset(shape[d], n, k) if tiled else k
    own = block_extent(shape[d], n, k) if tiled else expr.const(1)
    return along(len(shape), {d: (first, first + own)}), (*shape[:d], own, *shape[d + 1 :])


def _one_per_member(shape: Shape, d: int, n: Expr, function: str) -> None:
    if not same_extent(shape[d], n):
        raise ShapeError(
            f"{function}: without tiled=True, the extent of dim {d} must be the number of ranks",
            expected=f"extent {n}", found=f"{shape[d]} in shape {shape_text(shape)}",
            remedy="tiled=True cuts any extent into balanced blocks",
        )


def all_to_all(
    x: Any, axis: Any, split_dim: int | None = None, concat_dim: int | None = None,
    tiled: bool = False, *, split_axis: int | None = None, concat_axis: int | None = None,
) -> Any:
    """Send block k of split_dim to rank k along the axis; join what arrives along concat_dim.

    As in JAX, the extent of split_dim is the number of ranks, and the dim is dropped. tiled=True
    cuts any extent into balanced blocks, and keeps the dim. split_axis and concat_axis are JAX's
    names. ShapeError where the pieces do not fit.

    >>> all_to_all(np.arange(4) + 10 * x, "r", split_dim=0, concat_dim=0, tiled=True)
    [ 0. 10. 20. 30.], [ 1. 11. 21. 31.], [ 2. 12. 22. 32.], [ 3. 13. 23. 33.]
    """
    context, axes = members(axis, "all_to_all")
    split = split_axis if split_dim is None else split_dim
    concat = concat_axis if concat_dim is None else concat_dim
    if split is None or concat is None:
        raise UsageError("all_to_all needs split_dim and concat_dim")

    def exchange_leaf(leaf: Any) -> Any:
        array = as_array(leaf)
        s, c = (dim_of(d, array.ndim, "all_to_all") for d in (split, concat))
        if not tiled:
            _one_per_member(array.extents, s, context.mesh.size(axes), "all_to_all")
        elif s != c:
            return _exchange_blocks(context, axes, array, s, c)
        new_dim = c if c <= s else c + 1  # a new dim, along which the blocks are joined
        wide = array.reshape((*array.shape[:new_dim], 1, *array.shape[new_dim:]))
        blocks = _exchange_blocks(context, axes, wide, s + 1 if new_dim <= s else s, new_dim)
        if not tiled:
            return blocks.squeeze(s + 1 if new_dim <= s else s)
        return blocks.reshape((*array.shape[:s], -1, *array.shape[s + 1 :]))

    return pytree.map_tree(exchange_leaf, x)


def _exchange_blocks(context: Context, axes: Axes, array: Array, s: int, c: int) -> Array:
    value = array.read()
    shape = list(value.type.shape)
    independent(context, axes, tuple(shape), "all_to_all", c)
    part, shape[c] = pieces(context, axes, shape[c], "all_to_all")
    block, part_shape = kept_part(context, axes, tuple(shape), s, True, "all_to_all")
    types = (ArrayType(value.type.dtype, part_shape),)
    move = Move(axes, along(len(shape), {c: part}), block, types)
    return wrap(context, context.emit_one(move, value))


def axis_index(axis: Any = None) -> Any:
    """Return this rank's position along the axis, from 0; several axes are taken as one, row-major.

    Without an axis, all axes are taken: the position among all ranks, also called spmd.index().
    A number that may stand in subscripts, extents of blocks and conditions: an `if` on it makes
    ranks run different code.

    >>> x * 10 + axis_index("r")
    [0.], [11.], [22.], [33.]
    """
    context = inside("axis_index")
    axes = context.mesh.names if axis is None else axes_of(context, axis, "axis_index")
    return number(context.mesh.position(axes))


def axis_size(axis: Any = None) -> Any:
    """Return how many ranks lie along the axis (or axes): a number, bound at launch.

    >>> x + axis_size("r")
    [4.], [5.], [6.], [7.]
    """
    context = require_context("axis_size")
    axes = context.mesh.names if axis is None else axes_of(context, axis, "axis_size")
    return number(context.mesh.size(axes))


