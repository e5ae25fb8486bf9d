"""Attention step by step: keys and values of earlier positions are kept in a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import spmd
from spmd import ShapeError
from spmd.extend import as_array, expect, is_proved_at_most, is_traced, user_place
from spmd.nn.attention_heads import attention


def attention_cache(
    shape: Any, capacity: int, heads: int, size: int, dtype: Any = np.float32, layout: Any = None
) -> dict[str, Any]:
    """Return room for the keys and values of `capacity` positions, for attention_with_cache: a dict
    of two arrays (…, capacity, heads, size) of zeros, "key" and "value".

    - shape: an extent or a tuple of them: the batch, or the batch and the beams of beam_search.
    - heads: the number of key heads; a spmd.Dim lays it out by its rules.
    - layout: of both arrays.

    Made in a program, or in an eager run; the example is attention_with_cache's.
    """
    shape = (*(shape if isinstance(shape, tuple) else (shape,)), capacity, heads, size)
    return {name: spmd.zeros(shape, dtype, layout=layout) for name in ("key", "value")}


def attention_with_cache(
    query: Any, key: Any, value: Any, cache: Mapping[str, Any], at: Any, *, scale: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Compute causal attention, step by step: the positions from `at` on look at themselves and at
    all that steps before have left in the cache.

    - query, key, value: (…, new, heads, size), as of attention: of one new position or of some.
    - cache: what attention_cache makes, or a step before returns.
    - at: an integer, how many positions came before; the run may decide it.

    Returns a pair: (…, new, heads, size), and the cache with the new keys and values in it. A step
    costs as much as one look at the whole cache. ShapeError where the new positions are beyond the
    cache's capacity; where only the run knows that, it ends with a message.

    Example::

        @spmd.program(mesh=("r",))
        def steps():
            x = spmd.input("x", (3, 1, 2, 4), np.float32, default=lambda step, new, head, i: step)
            cache = spmd.nn.attention_cache((), 3, 2, 4)
            means = spmd.zeros(3, np.float32)
            for k in spmd.range(3):
                made, cache = spmd.nn.attention_with_cache(0 * x[k], x[k], x[k], cache, k)
                means[k] = made[0, 0, 0]
            return means

        print(steps.eager())    # [0.  0.5 1. ]
    """
    capacity, new = cache["key"].shape[-3], query.shape[-3]
    _check_room(at, new, capacity)
    places = at + (np.arange(new) if isinstance(new, int) else spmd.arange(new))
    kept = {name: cache[name].copy() for name in ("key", "value")}
    kept["key"][..., places, :, :], kept["value"][..., places, :, :] = key, value
    seen = np.arange(capacity) <= places[:, None]
    return attention(query, kept["key"], kept["value"], mask=seen, scale=scale), kept


def _check_room(start: Any, new: Any, capacity: Any) -> None:
    end, text = start + new, "spmd.nn.attention_with_cache: the cache is full"
    if not is_traced(end):
        if isinstance(capacity, int) and int(end) > capacity:
            raise ShapeError(text, place=user_place(), found=f"{new} new after {start}",
                             expected=f"at most {capacity} positions", remedy="a larger capacity")
    elif not is_proved_at_most(end, capacity):
        expect(as_array(end) <= capacity, f"{text}\n  expected: at most {capacity} positions\n"
               "  found:    ", as_array(new), " new after ", as_array(start),
               "\n  try:      a larger capacity")
