"""Attention in NumPy, written out: means of values and their derivatives; and small cases of it.

`python -m tests.spmd.attentions` runs jax.nn.dot_product_attention in float64 on the cases and
writes tests/golden/attention.json. It needs jax; the tests do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

# mypy: ignore-errors

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "attention.json"
BATCH, LENGTH, POSITIONS, HEADS, SIZE = 2, 3, 4, 2, 2

# By name: how many key heads, and how attention is called.
CASES = {
    "plain": (2, {}),
    "causal": (2, {"causal": True}),
    "shared": (1, {"causal": True, "scale": 0.3}),
    "masked": (2, {"mask": True}),
    "biased": (1, {"bias": True, "causal": True, "mask": True}),
}


def numbers(phase: float, *shape: int) -> np.ndarray:
    return np.cos(phase + 1.7 * np.arange(np.prod(shape))).reshape(shape)


def arrays(name: str) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Query, key, value, and a cotangent of the result; the other arguments."""
    shared, how = CASES[name]
    given = [numbers(0, BATCH, LENGTH, HEADS, SIZE), numbers(1, BATCH, POSITIONS, shared, SIZE),
             numbers(2, BATCH, POSITIONS, shared, SIZE), numbers(3, BATCH, LENGTH, HEADS, SIZE)]
    how = dict(how)
    if "mask" in how:
        how["mask"] = numbers(4, BATCH, 1, LENGTH, POSITIONS) > -0.5
        how["mask"][..., 0] = True
    if "bias" in how:
        how["bias"] = numbers(5, 1, HEADS, LENGTH, POSITIONS)
    return given, how


def weights(q: Any, k: Any, causal: bool = False, mask: Any = None, bias: Any = None,
            scale: Any = None) -> np.ndarray:
    """(…, heads, length, positions), 0 in rows that see nothing."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k = np.repeat(k, q.shape[-2] // k.shape[-2], -2)
    scores = np.einsum("...lhd,...shd->...hls", q, k) * scale + (0 if bias is None else bias)
    seen = np.tril(np.ones(scores.shape[-2:], bool)) if causal else np.True_
    seen = np.broadcast_to(seen & (True if mask is None else mask), scores.shape)
    powers = np.where(seen, np.exp(scores), 0)
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def plain(q: Any, k: Any, v: Any, **how: Any) -> np.ndarray:
    return np.einsum("...hls,...shd->...lhd", weights(q, k, **how),
                     np.repeat(v, q.shape[-2] // v.shape[-2], -2))


def slopes(q: Any, k: Any, v: Any, g: Any, **how: Any) -> list[np.ndarray]:
    """Return the gradients of sum(g * plain(…)) by query, key, value, and bias before its batch
    sum."""
    each = q.shape[-2] // k.shape[-2]
    many, p = [np.repeat(x, each, -2) for x in (k, v)], weights(q, k, **how)
    scale = how.get("scale") or q.shape[-1] ** -0.5
    dp = np.einsum("...lhd,...shd->...hls", g, many[1])
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    dk, dv = (np.einsum("...hls,...lhd->...shd", a, b) for a, b in ((ds * scale, q), (p, g)))
    own = [x.reshape(*x.shape[:-2], k.shape[-2], each, -1).sum(-2) for x in (dk, dv)]
    return [np.einsum("...hls,...shd->...lhd", ds * scale, many[0]), *own, ds]


def main() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    found = {}
    for name in CASES:
        (*given, g), how = arrays(name)
        causal = how.pop("causal", False)

        def attend(*given: Any, how: Any = how, causal: bool = causal) -> Any:
            return jax.nn.dot_product_attention(*given, is_causal=causal, **how)

        made, back = jax.vjp(attend, *given)
        found[name] = [np.round(np.asarray(x), 8).ravel().tolist() for x in (made, *back(g))]
    GOLDEN.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
