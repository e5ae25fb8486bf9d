"""Attention: every position of a sequence looks at positions of another one, or of its own.

Always holds: scores, their softmax and its sums are float32 at least.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from codegen.errors import DtypeError, ShapeError
from codegen.places import user_place
from spmd.nn.activations import softmax
from spmd.nn.shared import check_dim, constant, floats


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
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _plain(query, key, value, causal, mask, bias, scale)


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


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def _heads_first(x: Any) -> Any:
    return np.swapaxes(x, -3, -2)


def _grouped(x: Any, groups: Any) -> Any:
    """(…, heads, length, size) to (…, key heads, heads of each, length, size)."""
    return x.reshape((*x.shape[:-3], groups, x.shape[-3] // groups, *x.shape[-2:]))


def _plain(
    query: Any, key: Any, value: Any, causal: bool, mask: Any, bias: Any, scale: Any
) -> Any:
    """All scores at once."""
    heads, shared, dtype = query.shape[-2], key.shape[-2], query.dtype
    q, k, v = (_heads_first(_wide(x)) for x in (query, key, value))
    alone = heads is shared or heads == shared
    if not alone:
        q, k, v = _grouped(q, shared), k[..., :, None, :, :], v[..., :, None, :, :]
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if not alone:
        scores = scores.reshape((*scores.shape[:-4], heads, *scores.shape[-2:]))
    scores = scores.astype(q.dtype)
    if bias is not None:
        scores = scores + bias
    seen = _seen(scores.shape, causal, mask)
    weights = _softmax(scores, seen)
    if not alone:
        weights = _grouped(weights, shared)
    made = weights.astype(q.dtype) @ v
    if not alone:
        made = made.reshape((*made.shape[:-4], heads, *made.shape[-2:]))
    return _heads_first(made).astype(dtype)


def _softmax(scores: Any, seen: Any) -> Any:
    """Of what is seen; 0 in rows that see nothing."""
    if seen is None:
        return softmax(scores)
    scores = np.where(seen, scores, -np.inf)
    most = np.max(constant(scores), -1, keepdims=True)
    powers = np.exp(scores - np.where(most == -np.inf, 0, most))
    total = np.sum(powers, -1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def _seen(shape: Any, causal: bool, mask: Any) -> Any:
    if not causal:
        return mask
    before = np.arange(shape[-2])[:, None] >= np.arange(shape[-1])
    return before if mask is None else before & mask
