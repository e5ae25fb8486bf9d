"""Exchange with a root inside a shard_map: pbroadcast, pgather, pscatter.

Shapes of results are seen from the receiver; a rank that receives nothing has an empty array.
Always holds: all members name one root, which exists; what it is may depend on loop counters.
"""

from __future__ import annotations

from typing import Any

from codegen.errors import MatchingError, UsageError
from codegen.ir.graph import ArrayType
from codegen.ops import Move
from codegen.ops.group import along
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, wrap
from codegen.trace.context import Context
from codegen.trace.number import expr_of
from codegen.trace.ranks.communicate import (
    Axes,
    at_member,
    dim_of,
    joined,
    kept_part,
    members,
    same_on_all,
)
from codegen.user import pytree


def root_of(context: Context, axes: Axes, root: Any, function: str, word: str = "root") -> Expr:
    """Return the position of the root along these axes. Raise UsageError where it is not known at
    launch, MatchingError where it differs between ranks or does not exist."""
    position = expr_of(root)
    n = context.mesh.size(axes)
    if position is None:
        raise UsageError(
            f"the {word} of a {function} must be known at launch",
            expected="an integer, or a formula of axis sizes, scalars and loop counters",
            found=repr(root),
        )
    same_on_all(context, position, f"the {word}")
    if expr.nonneg(position - n) or expr.nonneg(-position - 1):
        raise MatchingError(
            f"the {word} of a {function} is rank {position} of the axis, which does not exist",
            expected=f"a position from 0 to {n - 1}", found=str(position),
        )
    return position


def pbroadcast(x: Any, axis: Any, source: Any = 0, *, root: Any = None) -> Any:
    """Return the x of the rank at position `source` along the axis, on all ranks.

    >>> pbroadcast(x, "r", 2)
    [2.], [2.], [2.], [2.]
    """
    context, axes = members(axis, "pbroadcast")
    position = root_of(context, axes, source if root is None else root, "pbroadcast", "source")

    def broadcast_leaf(leaf: Any) -> Array:
        value = as_array(leaf).read()
        shape = tuple(at_member(context, axes, e, position) for e in value.type.shape)
        types = (ArrayType(value.type.dtype, shape),)
        send = Move(axes, types=types, flow="from_root", root=position)
        return wrap(context, context.emit_one(send, value))

    return pytree.map_tree(broadcast_leaf, x)


def pgather(x: Any, axis: Any, root: Any = 0, dim: int = 0, tiled: bool = False) -> Any:
    """Return x of all ranks along the axis, on the rank at position `root` only: as all_gather.

    Stacked along a new dim, in their order; tiled=True joins them along the existing dim, then
    their extents may differ. On all other ranks that dim of the result is empty. ShapeError where
    another extent differs between the ranks, MatchingError where there is no such rank.

    On 4 ranks, x is [index]:

    >>> pgather(x, "r", root=1, tiled=True)
    [], [0. 1. 2. 3.], [], []
    """
    context, axes = members(axis, "pgather")
    position = root_of(context, axes, root, "pgather")
    here = expr.eq(context.mesh.position(axes), position)

    def gather_leaf(leaf: Any) -> Array:
        value, d, part, shape = joined(context, axes, leaf, dim, tiled, "pgather")
        shape = (*shape[:d], shape[d] * here, *shape[d + 1 :])
        have, types = along(len(shape), {d: part}), (ArrayType(value.type.dtype, shape),)
        gather = Move(axes, have, types=types, flow="to_root", root=position)
        return wrap(context, context.emit_one(gather, value))

    return pytree.map_tree(gather_leaf, x)


def pscatter(x: Any, axis: Any, root: Any = 0, dim: int = 0, tiled: bool = False) -> Any:
    """Give each rank its part, along `dim`, of the x of the rank at position `root`.

    As psum_scatter: without tiled=True the extent of dim is the number of ranks, and the dim is
    dropped; tiled=True keeps dim and cuts it into balanced blocks. What other ranks pass has x's
    number of dims and its dtype, and is not read: it may be empty, as what pgather gives them.

    On 4 ranks, x is [index]:

    >>> pscatter(np.arange(8) + 10 * x, "r", root=2, tiled=True)
    [20. 21.], [22. 23.], [24. 25.], [26. 27.]
    """
    context, axes = members(axis, "pscatter")
    position = root_of(context, axes, root, "pscatter")

    def scatter_leaf(leaf: Any) -> Array:
        value = as_array(leaf).read()
        d = dim_of(dim, value.type.ndim, "pscatter")
        shape = tuple(at_member(context, axes, e, position) for e in value.type.shape)
        kept, part_shape = kept_part(context, axes, shape, d, tiled, "pscatter")
        types = (ArrayType(value.type.dtype, part_shape),)
        scatter = Move(axes, want=kept, types=types, flow="from_root", root=position)
        part = wrap(context, context.emit_one(scatter, value))
        return part if tiled else part.squeeze(d)

    return pytree.map_tree(scatter_leaf, x)
