"""Attention: every position of a sequence looks at positions of another one, or of its own.

Always holds: scores, their softmax and its sums are float32 at least.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from codegen.errors import DtypeError, ShapeError
from codegen.places import user_place
from codegen.trace.array import Array
from codegen.trace.derive.derivatives import custom_vjp
from spmd.nn.blockwise import Scores, size_of_blocks, wide
from spmd.nn.rings import backward, forward
from spmd.nn.shared import check_dim, constant, floats
from spmd.nn.splits import axes_of, is_split, over_ranks

FEW = 16  # queries: scores of fewer are not made in blocks


def attention(
    query: Any, key: Any, value: Any, *, causal: bool = False, mask: Any = None, bias: Any = None,
    scale: Any = None,
) -> Any:
    """Means of values, weighted by softmax(query · key * scale + bias), for each head (A. Vaswani
    et al., 2017).

    - query: (…, length, heads, size).
    - key, value: (…, positions, key heads, size); value's size may be another. The number of
      heads is a multiple of the number of key heads: that many heads, one after the other, share
      each of these (J. Ainslie et al., 2023).
    - causal: query i sees positions 0 to i only.
    - mask: which positions are seen, True or False; bias: what is added to scores. Both have a
      shape that broadcasts to (…, heads, length, positions).
    - scale: 1 / sqrt(size) unless you say otherwise.

    Returns (…, length, heads, value's size). A query that sees no position gets 0. As
    jax.nn.dot_product_attention, but for that. ShapeError where shapes do not fit, DtypeError for a
    mask that is not bool.

    >>> x = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> spmd.nn.attention(x, x, x, causal=True).round(2)[:, 0]
    array([[1.  , 0.  ],
           [0.33, 0.67]])
    """
    query, key, value = (floats(x, "attention") for x in (query, key, value))
    _checked(query, key, value, mask)
    dtype, heads, shared = query.dtype, query.shape[-2], key.shape[-2]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if not isinstance(scale, (int, float)):
        query, scale = wide(query) * scale, 1
    q, k, v = (_in_groups(x, shared) for x in (query, key, value))
    mask, bias = (_of_scores(x, heads, shared, query.ndim) for x in (mask, bias))
    how = Scores(causal, scale, size_of_blocks(math.prod(query.shape[:-3]) * heads))
    made = _attended(q, k, v, mask, bias, how)
    made = made.reshape((*made.shape[:-4], heads, *made.shape[-2:]))
    return np.swapaxes(made, -3, -2).astype(dtype)


def _checked(query: Any, key: Any, value: Any, mask: Any) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 3 or x.ndim != query.ndim:
            raise ShapeError(f"spmd.nn.attention: {name} has {x.ndim} dims", place=user_place(),
                             expected="(…, length, heads, size), as many dims as query has",
                             found=str(x.shape))
    check_dim("attention", "the size of key", key.shape[-1], query.shape[-1], "that of query")
    for d in range(query.ndim - 1):
        if d != query.ndim - 3:
            of, name = (key, "key") if d == query.ndim - 2 else (query, "query")
            check_dim("attention", f"dim {d} of value", value.shape[d], of.shape[d], f"{name}")
            if of is query:
                check_dim("attention", f"dim {d} of key", key.shape[d], of.shape[d], name)
    check_dim("attention", "the positions of value", value.shape[-3], key.shape[-3], "key")
    heads, shared = query.shape[-2], key.shape[-2]
    if isinstance(heads, int) and isinstance(shared, int) and (not shared or heads % shared):
        raise ShapeError("spmd.nn.attention: heads are shared out unevenly", place=user_place(),
                         expected=f"a number of key heads that divides {heads}", found=str(shared),
                         remedy="give key and value as many heads as query has, or a divisor")
    if mask is not None and getattr(mask, "dtype", None) != np.bool_:
        raise DtypeError("spmd.nn.attention: a mask says True or False", place=user_place(),
                         expected="an array of bool", found=str(getattr(mask, "dtype", mask)),
                         remedy="mask != 0, or bias= for what is added to scores")


def _attended(q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores) -> Any:
    """Arrays are (…, key heads, heads of each, length, size)."""
    if not isinstance(q, Array):
        return _plain(q, k, v, mask, bias, how)
    short, around = _is_short(q, k, how.size), False
    if not q.context.rank_view and isinstance(k, Array):
        keys = axes_of(k, -2)
        around = bool(keys) and (not short or bool(set(keys) & set(axes_of(q, -2))))
    if short and not around:
        return _plain(q, k, v, mask, bias, how)
    if not q.context.rank_view and is_split(q, k, v):
        return over_ranks(q, k, v, mask, bias, how)
    return _made_again(q, k, v, mask, bias, how, ())


def _is_short(q: Any, k: Any, size: int) -> bool:
    length, positions = q.shape[-2], k.shape[-2]
    if not isinstance(length, int) or not isinstance(positions, int):
        return False
    return length * positions <= size * size or length < FEW


def _made_again(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores, axes: Any
) -> Any:
    """By blocks of scores, which the way back makes again."""

    def kept(q: Any, k: Any, v: Any, *biases: Any) -> Any:
        extras = mask, (biases[0] if biases else None)
        means, sums = forward(how, q, k, v, extras, axes)
        return means, (q, k, v, extras, means, sums)

    function = custom_vjp(lambda *given: kept(*given)[0])
    function.defvjp(kept, lambda kept, g: backward(how, kept, g, axes))
    return function(q, k, v, *(() if bias is None else (bias,)))


def _in_groups(x: Any, shared: Any) -> Any:
    """(…, length, heads, size) to (…, key heads, heads of each, length, size)."""
    first, heads = np.swapaxes(x, -3, -2), x.shape[-2]
    if heads is shared or isinstance(heads, int) and heads == shared:
        return first[..., :, None, :, :]
    if isinstance(shared, int) and shared == 1:
        return first[..., None, :, :, :]
    return first.reshape((*first.shape[:-3], shared, heads // shared, *first.shape[-2:]))


def _of_scores(x: Any, heads: Any, shared: Any, ndim: int) -> Any:
    """A mask or a bias, as wide as it is, with dims as scores have them."""
    if x is None:
        return None
    x = x.reshape((*(1,) * (ndim - x.ndim), *x.shape))
    if isinstance(x.shape[-3], int) and x.shape[-3] == 1:
        return x[..., :, None, :, :]
    if isinstance(shared, int) and shared == 1:
        return x[..., None, :, :, :]
    return x.reshape((*x.shape[:-3], shared, heads // shared, *x.shape[-2:]))


def _plain(q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores) -> Any:
    """All scores at once."""
    scores = wide(q) @ np.swapaxes(wide(k), -1, -2) * how.scale
    if bias is not None:
        scores = scores + bias
    seen = mask
    if how.causal:
        before = np.arange(scores.shape[-2])[:, None] >= np.arange(scores.shape[-1])
        seen = before if mask is None else before & mask
    return _softmax(scores, seen, mask is not None) @ wide(v)


def _softmax(scores: Any, seen: Any, some_see_nothing: bool) -> Any:
    """Of what is seen; 0 in rows that see nothing."""
    if seen is not None:
        scores = np.where(seen, scores, scores.dtype.type(-np.inf))
    most = np.max(constant(scores), -1, keepdims=True)
    if some_see_nothing:
        most = np.where(most == -np.inf, 0, most)
    powers = np.exp(scores - most)
    total = np.sum(powers, -1, keepdims=True)
    return powers / (np.where(total == 0, 1, total) if some_see_nothing else total)
