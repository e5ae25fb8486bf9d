"""Work on arrays with a row for each stage: each rank works on the rows that it has, and rows go to
the stages beside.

Always holds: dim 0 is the stage; of arrays with three dims or more, the last but one is the
position along the data axis, where there is one. The last one lies as it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmd
from codegen.mesh import block_offset
from codegen.symbolic import expr
from codegen.trace.array import Array
from codegen.trace.control.functional import changing_loop
from codegen.trace.control.letting import as_symbol
from codegen.trace.number import expr_of
from codegen.trace.ranks.communicate import member_of, send_by
from codegen.trace.state import fill, flatten

Body = Callable[[Any, Any, Any, Any], Any]


def by_rows(
    axis: str, data: str | None, body: Body, state: Any, read: Any, batches: Any = (),
) -> Any:
    """Return `state` after body(j, state, read, batches) for each row j of this rank's.

    state, read: trees of arrays with a row for each stage; body writes into those of the state.
    batches: a tree of arrays (stage, microbatch, example, …).
    """
    tree, leaves = flatten((state, read, batches))
    count, rows = len(flatten(state)[1]), len(flatten((state, read))[1])

    def local(*arrays: Any) -> Any:
        state, read, batches = fill(tree, iter(arrays), fresh=True)

        def row(j: Any, state: Any) -> Any:
            body(j, state, read, batches)
            return state

        state = changing_loop(0, arrays[0].shape[0], row, state, "writes")
        return tuple(flatten(state)[1])

    layouts = [layout_of_rows(axis, data, x) for x in leaves[:rows]]
    layouts += [layout_of_batch(axis, data, x.ndim) for x in leaves[rows:]]
    split = any(x.ndim > 1 and layout[-1] for x, layout in zip(leaves[:rows], layouts))
    mapped = spmd.shard_map(local, in_layouts=tuple(layouts), out_layouts=tuple(layouts[:count]),
                            check_vma=not split)  # buffers also hold what is alike on all ranks
    return fill(flatten(state)[0], iter(mapped(*leaves)), fresh=True)


BITS = 62  # of an int64 that are never its sign


def crossings(happens: np.ndarray) -> np.ndarray:
    """Return int64 (ticks, words), of bool (ticks, borders between stages): a bit for each."""
    ticks, borders = happens.shape
    words = [sum(happens[:, s].astype(np.int64) << s - first
                 for s in range(first, min(first + BITS, borders)))
             for first in range(0, borders, BITS)]
    return np.stack(words, axis=1)


def handed_on(axis: str, data: str | None, step: int, rows: dict[str, Any], words: Any
              ) -> dict[str, Any]:
    """Return arrays with the rows that stages beside had: step 1, those of the stage before; -1, of
    the stage behind. The others are left as they are, or lost.

    words: int64 (words,), as of `crossings`: over which borders rows go. Only the ranks on both
    sides of one of these meet.
    """
    stages = next(iter(rows.values())).shape[0]

    def local(*operands: Any) -> Any:
        *arrays, words = operands
        count = arrays[0].shape[0]
        last = np.maximum(count - 1, 0)
        edge = (last, count) if step > 0 else (0, np.minimum(count, 1))
        sent = [_row_of(x, *edge) for x in arrays]
        sent = _sent(axis, step, stages, sent, words)
        return tuple(_beside(x, step, count, new) for x, new in zip(arrays, sent, strict=True))

    layouts = [layout_of_rows(axis, data, x) for x in rows.values()]
    mapped = spmd.shard_map(local, in_layouts=(*layouts, (None,)), out_layouts=tuple(layouts))
    return dict(zip(rows, mapped(*rows.values(), words), strict=True))


def _row_of(x: Any, begin: Any, end: Any) -> Any:
    """Return the row from `begin` to `end` as an array of its own; anything where that is none."""
    def copy(j: Any, row: Any) -> Any:
        row[0] = x[j]
        return row

    return spmd.fori_loop(begin, end, copy, spmd.empty((1, *x.shape[1:]), x.type.dtype.name))


def _sent(axis: str, step: int, stages: int, rows: Sequence[Array], words: Any) -> list[Array]:
    """Return what comes from the rank before, or behind, where rows go over the border to it."""
    context = rows[0].context
    p, n = member_of(context, (axis,)), context.mesh.size((axis,))
    position = expr.symbol(p)
    border = block_offset(stages, n, position + 1 if step > 0 else position) - 1  # its number
    sends = expr.const(0)
    for k in range(words.shape[0]):
        word = expr_of(as_symbol(words[k], power=False))
        assert word is not None, "a symbol is a formula"
        bits = range(min(BITS, stages - 1 - k * BITS))
        sends = sends + (word // expr.table(border - k * BITS, *(2**bit for bit in bits))) % 2
    inside = expr.lt(position + 1, n) if step > 0 else expr.ge(position, 1)
    return send_by(context, (axis,), p, position + step, inside * expr.ge(sends, 1), rows)


def _beside(x: Any, step: int, count: Any, new: Any) -> Any:
    """Return an array whose rows have moved by one place; `new` is the row that comes in."""
    def move(j: Any, x: Any) -> Any:
        to, source = (count - j, count - j - 1) if step > 0 else (j - 1, j)
        x[to] = x[source]
        return x

    def put(j: Any, x: Any) -> Any:
        x[j] = new[0]
        return x

    x = spmd.fori_loop(1, count, move, x)
    first = 0 if step > 0 else np.maximum(count - 1, 0)
    return spmd.fori_loop(first, np.minimum(count, 1) if step > 0 else count, put, x)


def layout_of_rows(axis: str, data: str | None, x: Any) -> tuple[Any, ...]:
    """Return the layout of an array with a row for each stage."""
    if x.ndim < 2:
        return (axis,)
    last = x.layout[-1] if x.layout else None
    return (axis, *(None,) * (x.ndim - 3), *(data,) * (x.ndim > 2), last)


def layout_of_batch(axis: str, data: str | None, ndim: int) -> tuple[Any, ...]:
    """Return the layout of an array (stage, microbatch, example, …)."""
    return (axis, None, data, *(None,) * (ndim - 3))
