"""Attention of arrays that lie split over ranks: each computes its part of heads and queries.

Goes in: global arrays, as their layouts say. Comes out: one shard_map, in which keys whose
positions are split travel around (attention_rings.py).
"""

from __future__ import annotations

from typing import Any

import spmd
from spmd import Array, custom_vjp
from spmd.nn.attention_blocks import Scores, is_one
from spmd.nn.attention_rings import backward, forward

Axes = tuple[str, ...]
Layout = tuple[Axes, ...]


def axes_of(x: Any, dim: int) -> Axes:
    """Return the mesh axes that split a dim of a global array."""
    return _layout(x)[dim]


def is_split(*arrays: Any) -> bool:
    return any(axes for x in arrays for axes in _layout(x))


def over_ranks(q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores) -> Any:
    """Compute attention over ranks of arrays (…, key heads, heads of each, length, size), as in
    attention_blocks.py."""
    *rows, length, keys = _scores_layout(q, k, v)
    at_queries, at_keys = (*rows, length, ()), (*rows[:-1], (), keys, ())
    at_scores = (*rows, length, ())
    extras = [None if x is None else _laid(x, _fitting(x, at_scores)) for x in (mask, bias)]
    operands = [_laid(q, at_queries), _laid(k, at_keys), _laid(v, at_keys)]

    def part(q: Any, k: Any, v: Any, others: Any) -> Any:
        return forward(how, q, k, v, others, keys, length)

    def kept(q: Any, k: Any, v: Any, *biases: Any) -> Any:
        others = extras[0], (biases[0] if biases else None)
        results = spmd.shard_map(part, out_layouts=(_written(at_queries),) * 2)(q, k, v, others)
        return results[0], (q, k, v, others, *results)

    def back(kept: Any, g: Any) -> Any:
        bias = kept[3][1]
        at_bias = () if bias is None else (_fitting(bias, at_scores),)
        shared = () if bias is None else _missing(at_scores, *at_bias)

        alike = _missing(at_scores, at_keys)  # axes along which all have the same keys

        def part(kept: Any, g: Any) -> Any:
            dq, dk, dv, *last = backward(how, kept, g, keys, length)
            if alike:
                dk, dv = spmd.psum((dk, dv), alike)
            return dq, dk, dv, *(spmd.psum(x, shared) if shared else x for x in last)

        out = (at_queries, at_keys, at_keys, *at_bias)
        return spmd.shard_map(part, out_layouts=tuple(map(_written, out)))(
            kept, _laid(g, at_queries))

    function = custom_vjp(lambda *operands: kept(*operands)[0])
    function.defvjp(kept, back)
    return function(*operands, *(() if bias is None else (extras[1],)))


def _scores_layout(q: Any, k: Any, v: Any) -> Layout:
    """Return the axes that split examples and heads, then queries, then keys: all different
    ones."""
    used: set[str] = set()

    def first_of(*entries: Axes) -> Axes:
        axes = next((e for e in entries if e), ())
        axes = tuple(a for a in axes if a not in used)
        used.update(axes)
        return axes

    of_q, of_k, of_v = (_layout(x) for x in (q, k, v))
    rows = [first_of(of_q[d], of_k[d], of_v[d]) for d in range(q.ndim - 3)]
    rows.append(first_of(of_q[-3]))
    keys = first_of(of_k[-2], of_v[-2])
    return *rows, keys or first_of(of_q[-2]), keys


def _fitting(x: Any, layout: Layout) -> Layout:
    """Return the layout, for what has one element for all of some dims."""
    return tuple(() if is_one(e) else axes for e, axes in zip(x.shape, layout))


def _missing(layout: Layout, other: Layout) -> Axes:
    there = {a for axes in other for a in axes}
    return tuple(a for axes in layout for a in axes if a not in there)


def _layout(x: Any) -> Layout:
    """Return the layout of x, without the axes of dims that have one element."""
    return tuple(() if is_one(n) else axes for n, axes in zip(x.shape, _entries(x)))


def _entries(x: Any) -> Layout:
    entries = (x.layout if isinstance(x, Array) else None) or (None,) * x.ndim
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)


def _written(layout: Layout) -> tuple[Any, ...]:
    return tuple(axes or None for axes in layout)


def _laid(x: Any, layout: Layout) -> Any:
    if not isinstance(x, Array):
        return spmd.asarray(x, layout=_written(layout))
    return x if _entries(x) == layout else x.relayout(_written(layout))
