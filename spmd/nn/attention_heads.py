"""Attention: every position of a sequence looks at positions of another one, or of its own.

Always holds: scores, their softmax and its sums are float32 at least.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

import spmd
from spmd import Array, DtypeError, ShapeError, custom_vjp
from spmd.extend import RankGroup, is_local, is_proved_equal, user_place
from spmd.nn.attention_blocks import Scores, dtype_of_sums, is_one, size_of_blocks, wide
from spmd.nn.attention_layouts import axes_of, is_split, over_ranks
from spmd.nn.attention_rings import backward, forward
from spmd.nn.shared import check_dim, constant, floats

FEW = 16  # queries: scores of fewer are not made in blocks


def attention(
    query: Any, key: Any, value: Any, *, causal: bool = False, mask: Any = None, bias: Any = None,
    scale: Any = None, ranks: Any = None,
) -> Any:
    """Return means of values, weighted by softmax(query · key * scale + bias), for each head (A.
    Vaswani et al., 2017).

    - query: (…, length, heads, size).
    - key, value: (…, positions, key heads, size); value's size may be another. The number of
      heads is a multiple of the number of key heads: that many heads, one after the other, share
      each of these (J. Ainslie et al., 2023).
    - causal: query i sees positions 0 to i only.
    - mask: which positions are seen, True or False; bias: what is added to scores. Both have a
      shape that broadcasts to (…, heads, length, positions). What stands in keys and values that no
      query sees changes nothing, be it NaN.
    - scale: 1 / sqrt(size) unless you say otherwise.
    - ranks: inside a shard_map, the mesh axes over which length and positions are split. A mask and
      a bias are then for this rank's queries and for all positions. Where you say nothing, a rank's
      queries look at the keys that are given, as all of them. Outside of it layouts say so.

    Returns (…, length, heads, value's size). A query that sees no position gets 0; but for that, it
    means what jax.nn.dot_product_attention means. Scores of long sequences are made block by block,
    both ways, so that memory grows as the length does. Split examples or heads exchange nothing;
    keys whose positions are split go from rank to rank, around a ring.

    ShapeError where shapes do not fit, DtypeError for a mask that is not bool.

    >>> x = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> spmd.nn.attention(x, x, x, causal=True).round(2)[:, 0]
    array([[1.  , 0.  ],
           [0.33, 0.67]])
    """
    query, key, value = (floats(x, "attention") for x in (query, key, value))
    _check_shapes(query, key, value)
    dtype, heads, shared = query.dtype, query.shape[-2], key.shape[-2]
    positions = None if ranks else key.shape[-3]  # of all ranks
    _check_extras(mask, bias, (*query.shape[:-3], heads, query.shape[-3], positions))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if not isinstance(scale, (int, float)):
        query, scale = (wide(query) * scale).astype(dtype_of_sums(query)), 1
    common = max((query.dtype, key.dtype, value.dtype), key=lambda t: t.itemsize)
    q, k, v = (_in_groups(x if x.dtype.itemsize == common.itemsize else x.astype(common), shared)
               for x in (query, key, value))
    mask, bias = (_of_scores(x, heads, shared, query.ndim) for x in (mask, bias))
    bias = bias if bias is None else bias.astype(dtype_of_sums(q))
    if mask is not None and not ranks:
        k, v = (_zeros_where_hidden(x, mask) for x in (k, v))
    how = Scores(causal, float(scale), size_of_blocks(math.prod(query.shape[:-3]) * heads))
    means = _attended(q, k, v, mask, bias, how, ranks)
    means = means.reshape((*means.shape[:-4], heads, *means.shape[-2:]))
    return np.swapaxes(means, -3, -2).astype(dtype)


def _check_shapes(query: Any, key: Any, value: Any) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 3 or x.ndim != query.ndim:
            raise ShapeError(f"spmd.nn.attention: {name} has {x.ndim} dims", place=user_place(),
                             expected="(…, length, heads, size), as many dims as query has",
                             found=str(x.shape))
    check_dim("attention", "the size of key", key.shape[-1], query.shape[-1], "that of query")
    check_dim("attention", "the length of value", value.shape[-3], key.shape[-3], "that of key")
    check_dim("attention", "the heads of value", value.shape[-2], key.shape[-2], "those of key")
    for d in range(query.ndim - 3):
        check_dim("attention", f"dim {d} of key", key.shape[d], query.shape[d], "that of query")
        check_dim("attention", f"dim {d} of value", value.shape[d], query.shape[d], "that of query")
    heads, shared = query.shape[-2], key.shape[-2]
    whole = isinstance(heads, int) and isinstance(shared, int)
    if whole and (not shared or heads % shared):
        raise ShapeError("spmd.nn.attention: key heads serve unequal numbers of heads",
                         place=user_place(), expected=f"a number that divides {heads}",
                         found=f"{shared} key heads",
                         remedy="give key and value as many heads as query has, or a divisor")


def _check_extras(mask: Any, bias: Any, shape: tuple[Any, ...]) -> None:
    if mask is not None and getattr(mask, "dtype", None) != np.bool_:
        raise DtypeError("spmd.nn.attention: a mask says True or False", place=user_place(),
                         expected="an array of bool", found=str(getattr(mask, "dtype", mask)),
                         remedy="mask != 0, or bias= for what is added to scores")
    for name, x in (("mask", mask), ("bias", bias)):
        if x is None:
            continue
        wrong = x.ndim > len(shape) or any(
            isinstance(a, int) and isinstance(b, int) and a not in (1, b)
            for a, b in zip(x.shape[::-1], shape[::-1]))
        if wrong:
            raise ShapeError(f"spmd.nn.attention: {name} does not broadcast", place=user_place(),
                             expected=f"to (…, heads, length, positions): {shape}",
                             found=str(x.shape))


def _attended(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores, ranks: Any
) -> Any:
    """Compute attention of arrays (…, key heads, heads of each, length, size)."""
    if not isinstance(q, Array):
        return _eager(q, k, v, mask, bias, how, ranks)
    if ranks is not None:
        return _recomputed(q, k, v, mask, bias, how, RankGroup(ranks, "ranks= of attention").axes)
    short, around = _is_short(q, k, how.size), False
    if not is_local(q):
        keys = axes_of(k, -2)
        around = bool(keys) and (not short or bool(set(keys) & set(axes_of(q, -2))))
    if short and not around:
        return _plain(q, k, v, mask, bias, how)
    if not is_local(q) and is_split(q, k, v):
        return over_ranks(q, k, v, mask, bias, how)
    return _recomputed(q, k, v, mask, bias, how, ())


def _eager(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores, ranks: Any
) -> Any:
    """Compute attention of NumPy's arrays; in a shard_map of an eager run, ranks gather all
    keys."""
    if ranks is not None:
        k, v = (spmd.all_gather(x, ranks, x.ndim - 2, tiled=True) for x in (k, v))
        lengths = spmd.all_gather(np.full(1, q.shape[-2]), ranks, tiled=True)
        places = np.sum(lengths[: spmd.axis_index(ranks)]) + np.arange(q.shape[-2])
        before = places[:, None] >= np.arange(k.shape[-2])
        if how.causal:
            mask, how = before if mask is None else before & mask, replace(how, causal=False)
    return _plain(q, k, v, mask, bias, how)


def _is_short(q: Any, k: Any, size: int) -> bool:
    length, positions = q.shape[-2], k.shape[-2]
    if not isinstance(length, int) or not isinstance(positions, int):
        return False
    return length * positions <= size * size or length < FEW


def _recomputed(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores, axes: Any
) -> Any:
    """Compute attention by blocks of scores, which the way back makes again."""

    def kept(q: Any, k: Any, v: Any, *biases: Any) -> Any:
        extras = mask, (biases[0] if biases else None)
        means, sums = forward(how, q, k, v, extras, axes)
        return means, (q, k, v, extras, means, sums)

    function = custom_vjp(lambda *operands: kept(*operands)[0])
    function.defvjp(kept, lambda kept, g: backward(how, kept, g, axes))
    return function(q, k, v, *(() if bias is None else (bias,)))


def _in_groups(x: Any, shared: Any) -> Any:
    """Reshape (…, length, heads, size) to (…, key heads, heads of each, length, size)."""
    return _grouped(np.swapaxes(x, -3, -2), shared)


def _of_scores(x: Any, heads: Any, shared: Any, ndim: int) -> Any:
    """Return a mask or a bias, as wide as it is, with dims as scores have them."""
    if x is None:
        return None
    x = x.reshape((*(1,) * (ndim - x.ndim), *x.shape))
    return x[..., None, :, :] if is_proved_equal(x.shape[-3], 1) else _grouped(x, shared)


def _grouped(x: Any, shared: Any) -> Any:
    """Reshape (…, heads, length, size) to (…, key heads, heads of each, length, size)."""
    heads = x.shape[-3]
    if is_proved_equal(heads, shared):
        return x[..., None, :, :]
    if isinstance(shared, int) and shared == 1:
        return x[..., None, :, :, :]
    if not isinstance(heads, int) or not isinstance(shared, int):
        raise ShapeError("spmd.nn.attention: a rank's heads share keys in unknown numbers",
                         place=user_place(), expected="as many key heads as heads, or one",
                         found=f"{heads!r} heads and {shared!r} key heads",
                         remedy="key = np.repeat(key, heads_of_each, axis=-2), value likewise")
    return x.reshape((*x.shape[:-3], shared, heads // shared, *x.shape[-2:]))


def _zeros_where_hidden(x: Any, mask: Any) -> Any:
    """Return keys or values, 0 where no query sees them: in products with weights of 0, a NaN or an
    infinity of a padded token would reach all queries."""
    over = tuple(d for d in (-3, -2) if not is_one(mask.shape[d]))
    seen = np.any(mask, over, keepdims=True) if over else mask
    return np.where(np.swapaxes(seen, -1, -2), x, np.zeros((), x.dtype))


def _plain(q: Any, k: Any, v: Any, mask: Any, bias: Any, how: Scores) -> Any:
    """Compute attention with all scores in one array."""
    scores = wide(q) @ np.swapaxes(wide(k), -1, -2) * how.scale
    if bias is not None:
        scores = scores + bias
    seen = mask
    if how.causal:
        before = np.arange(scores.shape[-2])[:, None] >= np.arange(scores.shape[-1])
        seen = before if mask is None else before & mask
    nothing = mask is not None or bias is not None  # a bias may be -inf
    return _softmax(scores, seen, nothing) @ wide(v)


def _softmax(scores: Any, seen: Any, some_see_nothing: bool) -> Any:
    """Return the softmax of the scores that are seen; 0 in rows that see nothing."""
    if seen is not None:
        scores = np.where(seen, scores, scores.dtype.type(-np.inf))
    most = np.max(constant(scores), -1, keepdims=True)
    if some_see_nothing:
        most = np.where(most == -np.inf, 0, most)
    powers = np.exp(scores - most)
    total = np.sum(powers, -1, keepdims=True)
    return powers / (np.where(total == 0, 1, total) if some_see_nothing else total)
