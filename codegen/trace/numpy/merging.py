"""Sorting along a split dim: ranks sort their blocks, then merge them pairwise.

By Batcher's odd-even merge sort (Knuth, The Art of Computer Programming, 5.2.2), whose exchanges
depend on the index alone. Always holds: no rank holds more of the dim than its block and another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.mesh import as_written, local_offset
from codegen.ops import ArgSort, Merge, Sort
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, as_value, number, wrap
from codegen.trace.control.functional import while_loop
from codegen.trace.control.letting import as_symbol
from codegen.trace.number import expr_of
from codegen.trace.numpy import joining, picking, shaping
from codegen.trace.numpy.elementwise import apply, select
from codegen.trace.numpy.order_keys import axes_of_dim, emit_op, keys_of, order_by, padded_rows
from codegen.trace.ranks import communicate, mapping

_LAST = 2**63 - 1  # place of the padding of a block, which sorts behind all elements


def sort_over_ranks(
    array: Array, d: int, axes: tuple[str, ...], signed: bool | None,
) -> list[Array]:
    """Return the keys sorted along a split dim. Unless `signed` is None, return their places before
    sorting too: p; if `signed` is true, 2 p, and 2 p + 1 for a negative element."""
    context = array.context
    mesh, n = context.mesh, array.extents[d]
    size = mesh.size(axes)
    most = expr.floordiv(n + size - 1, size)  # how long the longest block is
    begin = local_offset(mesh, n, axes)
    layout = array.read().type.layout
    assert layout is not None

    def blocks(part: Array) -> Any:
        mine = shaping.moveaxis(part, d, -1)
        block = padded_rows(keys_of(mine, signed is not None), most)
        if signed is None:
            rows = [emit_op(block, Sort(dim=block.ndim - 1))]
        else:
            order = emit_op(block, ArgSort(dim=block.ndim - 1))
            place = order + number(begin)
            if signed:
                signs = padded_rows(as_array(keys_of(mine) < 0, dtypes.INT64), most)
                place = 2 * place + picking.take_along_axis(signs, order, -1)
            there = apply(np.less, order, part.shape[d])
            place = as_array(select(there, place, _LAST))
            rows = [picking.take_along_axis(block, order, -1), place]
        merged = tuple(shaping.moveaxis(x, -1, d) for x in _merge_blocks(axes, rows, Merge()))
        return merged if len(merged) > 1 else merged[0]

    blocks.__name__ = "sorted"
    spec = as_written(layout)
    results = mapping.call(context, blocks, (array,), {}, None, None,
                         spec if signed is None else (spec, spec))
    whole = (slice(None),) * d
    arrays = results if signed is not None else (results,)
    return [x[(*whole, slice(0, number(n)))] for x in arrays]


def lexsort_over_ranks(
    keys: list[Array], d: int, axes: tuple[str, ...], carried: Sequence[Array] = (),
) -> list[Array]:
    """Return the places of elements sorted along a split dim, by the first key, then by the next;
    and what is carried along. Equal ones stay in their order."""
    context = keys[0].context
    mesh, n = context.mesh, keys[0].extents[d]
    size = mesh.size(axes)
    most = expr.floordiv(n + size - 1, size)
    split = next(x for x in keys if axes_of_dim(x, d) == axes).read().type.layout
    assert split is not None

    def blocks(*parts: Array) -> Any:
        rows = [padded_rows(as_array(shaping.moveaxis(p, d, -1), dtypes.INT64), most)
                for p in parts]
        order = order_by(rows[: len(keys)][::-1], rows[0].ndim - 1)
        there = apply(np.less, order, parts[0].shape[d])
        place = select(there, order + number(local_offset(mesh, n, axes)), _LAST)
        column = [picking.take_along_axis(row, order, -1) for row in rows]
        column.insert(len(keys), as_array(place))
        (merged,) = _merge_blocks(axes, [joining.stack(column, -2)], Merge(tuples=True))
        return tuple(shaping.moveaxis(merged[..., k, :], -1, d)
                     for k in range(len(keys), len(column)))

    spec = as_written(split)
    operands = (*keys, *carried)
    results = mapping.call(context, blocks, operands, {}, None, (spec,) * len(operands),
                         (spec,) * (1 + len(carried)))
    whole = (slice(None),) * d
    return [x[(*whole, slice(0, number(n)))] for x in results]


def _merge_blocks(axes: tuple[str, ...], rows: list[Array], kind: Merge) -> list[Array]:
    """Turn blocks of one length, sorted on each rank, into blocks that are sorted from rank to
    rank."""
    context = rows[0].context
    mesh, n = context.mesh, context.mesh.size(axes)
    p = communicate.member_of(context, axes)
    position = expr.symbol(p)

    def exchanged(rows: Sequence[Array], to: Expr, sends: Expr) -> list[Array]:
        """Merge the blocks of two partners: the one that stands first keeps the first half of
        both."""
        theirs = communicate.send_by(context, axes, p, to, sends, rows)
        side = (sends * (1 + expr.lt(to, position))).subst({p: mesh.position(axes)})
        values = [x.read() for pair in zip(rows, theirs, strict=True) for x in pair]
        values.append(as_value(context, number(side), dtypes.INT64))
        return [wrap(context, v, scalar=False) for v in context.emit(kind, values)]

    def swapped(distance: Expr, down: int) -> Expr:
        """Return the position of the partner at a distance: above this member where its position
        // distance is even, else below; with down=1, the other way round."""
        odd = expr.eq(expr.mod(expr.floordiv(position, distance), expr.const(2)), 1)
        return position + distance * ((1 - 2 * odd) * (1 - 2 * down))

    def stage(state: Any) -> Any:
        rows, length = state
        half = _symbol(length)
        to = swapped(half, 0)
        rows = exchanged(rows, to, expr.lt(to, n))

        def finer(state: Any) -> Any:
            rows, distance = state
            to = swapped(_symbol(apply(np.maximum, distance, 1)), 1)
            together = expr.eq(expr.floordiv(to, 2 * half), expr.floordiv(position, 2 * half))
            sends = expr.ge0(to) * expr.lt(to, n) * together
            return exchanged(rows, to, sends), distance // 2

        rows, _ = while_loop(lambda state: state[1] > 0, finer, (rows, length // 2))
        return rows, length * 2

    first_length = as_array(1, dtypes.INT64)
    merged, _ = while_loop(lambda state: state[1] < number(n), stage, (rows, first_length))
    return list(merged)


def _symbol(x: Any) -> Expr:
    """Return an integer that the run computes as a formula: a symbol that stands for it."""
    formula = expr_of(as_symbol(x))
    assert formula is not None
    return formula
