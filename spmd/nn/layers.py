"""Layers: dense, embedding, dropout. Parameters are arguments; dims lie as their layouts say."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

import spmd
from spmd import Array, DtypeError, ShapeError, UsageError, custom_vjp, random
from spmd.extend import differs_from_run_to_run, is_local, user_place
from spmd.nn.shared import check_dim, in_float32


@in_float32
def dense(x: Any, w: Any, b: Any = None, axes: int = 1) -> Any:
    """Return x @ w + b: a linear layer.

    - x: (…, in). w: (in, out), or any more dims: (in, heads, size) gives (…, heads, size).
    - b: what is added, of w's later dims.
    - axes: how many dims of x, its last, are summed over with w's first: 2 for a w of
      (heads, size, out).

    ShapeError where dims do not fit. Where w's second dim is split over an axis, so is the result,
    and nothing is exchanged; where its first is, ranks sum up their results.

    >>> spmd.nn.dense(np.ones((3, 2)), np.eye(2), np.array([0.0, 1.0]))[0]
    array([1., 2.])
    """
    for k in range(axes):
        if k >= min(x.ndim, w.ndim):
            raise ShapeError("spmd.nn.dense sums over dims that are not there", place=user_place(),
                             expected=f"{axes} dims of x and of w", found=f"{x.ndim} and {w.ndim}")
        check_dim("dense", f"dim {k - axes} of x", x.shape[k - axes], w.shape[k], f"dim {k} of w")
    product = x @ w if axes == 1 and w.ndim == 2 else _product(x, w, axes)
    return product if b is None else product + b


def _product(x: Any, w: Any, axes: int) -> Any:
    """Return the product, with split dims of w before others: dims that are taken as one, as the
    product takes w's later ones, stay split by the first of them."""
    later = list(range(axes, w.ndim))
    split = w.layout if isinstance(w, Array) and w.layout else (None,) * w.ndim
    order = sorted(later, key=lambda d: not split[d])
    if order == later:
        return _summed(x, w, axes)
    product = _summed(x, np.transpose(w, (*range(axes), *order)), axes)
    first = x.ndim - axes
    back = [first + order.index(d) for d in later]
    return np.transpose(product, (*range(first), *back))


def _summed(x: Any, w: Any, axes: int) -> Any:
    """Return np.tensordot(x, w, axes). Where only the run knows how many rows x has along a dim,
    compute it by `@`, which keeps that dim. Merged with others its blocks would have no formula."""
    if not any(differs_from_run_to_run(e) for e in x.shape[: x.ndim - axes]):
        return np.tensordot(x, w, axes)
    inner, later = math.prod(w.shape[:axes]), w.shape[axes:]
    product = x.reshape((*x.shape[: x.ndim - axes], inner)) @ w.reshape((inner, math.prod(later)))
    return product.reshape((*product.shape[:-1], *later))


def embedding(ids: Any, table: Any) -> Any:
    """Return rows of a table: table[ids], of shape (…, features) for ids (…) and a table (rows,
    features).

    Where the table's rows are split over ranks, each looks up those that it has, and one all-reduce
    of the result brings them together; the gradient exchanges nothing for that. Ids beyond the ends
    are clamped, as indices are; negative ones count from the end. DtypeError for ids that are no
    integers.

    >>> spmd.nn.embedding(np.array([1, 1, 0]), np.array([[0.0, 1.0], [2.0, 3.0]]))
    array([[2., 3.],
           [2., 3.],
           [0., 1.]])
    """
    ids = ids if hasattr(ids, "ndim") else np.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise DtypeError("spmd.nn.embedding takes integers", place=user_place(),
                         expected="the numbers of rows", found=str(ids.dtype),
                         remedy="ids.astype(np.int32)")
    if not isinstance(table, Array) or is_local(table):
        return table[ids]
    axes = (table.layout or ((),))[0]
    axes = (axes,) if isinstance(axes, str) else axes
    if not axes or isinstance(ids, Array) and set(axes) & _axes(ids):
        return table[ids]
    return _of_split(ids, table, axes)


def _axes(x: Array) -> set[str]:
    entries = (() if e is None else (e,) if isinstance(e, str) else e for e in x.layout or ())
    return {axis for entry in entries for axis in entry}


def _of_split(ids: Any, table: Array, axes: tuple[str, ...]) -> Any:
    """Look ids up in a table whose rows are split over these axes: ranks sum what each has, and 0
    for the rest."""
    rows, layout = table.shape[0], table.layout
    ids = ids.astype(np.int64)
    row = np.where(ids < 0, ids + rows, ids).clip(0, rows - 1)
    own = row.layout if isinstance(row, Array) else (None,) * row.ndim
    wide = (1,) * (table.ndim - 1)

    @spmd.shard_map(out_layouts=(*own, *layout[1:]))
    def look(row: Any, part: Any, numbers: Any) -> Any:
        local = row - np.sum(numbers[:1])  # of no rows, where ranks are more than these
        here = (local >= 0) & (local < part.shape[0])
        taken = part[np.where(here, local, 0)]
        return spmd.psum(np.where(here.reshape(*here.shape, *wide), taken, 0), axes)

    def looked_up(table: Any) -> Any:
        return look(row, table, spmd.arange(rows, layout=(axes,)))

    def back(_: Any, g: Any) -> tuple[Any]:
        return (spmd.zeros(table.shape, table.dtype, layout=layout).at[row].add(g),)

    function = custom_vjp(looked_up)
    function.defvjp(lambda table: (looked_up(table), None), back)
    return function(table)


class DropoutKey(NamedTuple):
    """A place in a batch and a pipeline, which chooses the elements that dropout sets to 0.

    stream: a number that is added to the stream that dropout is given. part: the array is part
    number `part`, counted from 0, of a batch that is cut into parts of its size.
    """

    stream: Any
    part: Any


AS_GIVEN = DropoutKey(0, 0)
# set where spmd.pipeline calls layers; None where dropout is left out
dropout_key: ContextVar[DropoutKey | None] = ContextVar("dropout_key", default=AS_GIVEN)


@in_float32
def dropout(x: Any, rate: float, seed: Any, stream: Any = 0) -> Any:
    """Return x with some of its elements 0, each with the chance `rate`; the others are divided by
    1 - rate (N. Srivastava et al., 2014).

    - seed, stream: integers, as of spmd.random: another stream (a step's number, say) gives other
      zeros. They are the same on any mesh and in any layout.

    In inference, leave it out. In a layer of spmd.pipeline it follows from the layer and the
    microbatch, too (see there), and `evaluate` leaves it out. UsageError for a rate that is not
    from 0 to below 1.

    >>> spmd.nn.dropout(np.ones(6), 0.5, seed=1)
    array([2., 2., 2., 0., 2., 0.])
    """
    if not 0 <= rate < 1:
        raise UsageError("the rate of spmd.nn.dropout is a chance", place=user_place(),
                         expected="0 <= rate < 1", found=str(rate))
    key = dropout_key.get()
    if rate == 0 or key is None:
        return x
    start: Any = 0
    if key is not AS_GIVEN:
        stream, start = stream + key.stream, key.part * math.prod(x.shape)
    kept = random.uniform(seed, x.shape, dtype=np.float32, stream=stream, start=start) >= rate
    return np.where(kept, x * (1 / (1 - rate)), 0)
