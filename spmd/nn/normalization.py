"""Normalisation: by mean and variance of rows, or of the whole batch, on all ranks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from spmd.extend import half_type_of, narrowed, widened
from spmd.nn.shared import floats, in_float32


@in_float32
def layer_norm(
    x: Any, scale: Any = None, bias: Any = None, axis: Any = -1, epsilon: float = 1e-5
) -> Any:
    """Return x with mean 0 and variance 1 along a dim, or several; times scale, plus bias (J. Ba et
    al., 2016). Where the dim is split, ranks exchange two numbers for each row.

    >>> spmd.nn.layer_norm(np.array([1.0, 3.0]), epsilon=0.0)
    array([-1.,  1.])
    """
    x = floats(x, "layer_norm")
    less = x - np.mean(x, axis, keepdims=True)
    normal = less / np.sqrt(np.mean(less * less, axis, keepdims=True) + epsilon)
    return _scaled(normal, scale, bias)


@in_float32
def rms_norm(x: Any, scale: Any = None, axis: Any = -1, epsilon: float = 1e-6) -> Any:
    """Return x divided by the root of its mean square along a dim; times scale (B. Zhang, R.
    Sennrich, 2019).

    >>> spmd.nn.rms_norm(np.array([1.0, 7.0]), epsilon=0.0)
    array([0.2, 1.4])
    """
    x = floats(x, "rms_norm")
    normal = x / np.sqrt(np.mean(x * x, axis, keepdims=True) + epsilon)
    return _scaled(normal, scale, None)


def batch_norm(
    x: Any, scale: Any = None, bias: Any = None, axis: Any = -1, epsilon: float = 1e-5,
    ranks: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """Return x with mean 0 and variance 1 over all examples, for training (S. Ioffe, C. Szegedy,
    2015).

    - axis: the dim of features, or several, each with a mean and a variance of its own.
    - ranks: inside a shard_map, the mesh axes over which the batch is split. Outside of it layouts
      say so: the mean is that of the whole batch.

    Returns a pair: the result, and {"mean", "variance"} of the batch (the biased variance), which
    update_statistics takes; these are float32 where x is of a half type.

    >>> y, statistics = spmd.nn.batch_norm(np.array([[1.0], [3.0]]), epsilon=0.0)
    >>> y.tolist(), statistics["mean"].tolist()
    ([[-1.0], [1.0]], [2.0])
    """
    x = floats(x, "batch_norm")
    kept = {a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    over = tuple(d for d in range(x.ndim) if d not in kept)
    half = half_type_of((x, scale, bias))
    x, scale, bias = widened((x, scale, bias))
    mean = _mean(x, over, ranks)
    less = x - mean
    variance = _mean(less * less, over, ranks)
    normal = less / np.sqrt(variance + epsilon)
    scale, bias = (_spread(part, over) for part in (scale, bias))
    statistics = {"mean": np.squeeze(mean, over), "variance": np.squeeze(variance, over)}
    return narrowed(_scaled(normal, scale, bias), half), statistics


def batch_norm_inference(
    x: Any, statistics: dict[str, Any], scale: Any = None, bias: Any = None, axis: Any = -1,
    epsilon: float = 1e-5,
) -> Any:
    """Return batch_norm by statistics that training has left: each example by itself.

    >>> statistics = {"mean": np.array([2.0]), "variance": np.array([1.0])}
    >>> spmd.nn.batch_norm_inference(np.array([[3.0]]), statistics, epsilon=0.0)
    array([[1.]])
    """
    kept = {a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    over = tuple(d for d in range(x.ndim) if d not in kept)
    half = half_type_of((x, scale, bias))
    parts = (statistics["mean"], statistics["variance"], scale, bias)
    mean, variance, scale, bias = (_spread(part, over) for part in widened(parts))
    return narrowed(_scaled((widened(x) - mean) / np.sqrt(variance + epsilon), scale, bias), half)


@in_float32
def update_statistics(
    running: dict[str, Any], batch: dict[str, Any], momentum: float = 0.99
) -> dict[str, Any]:
    """Return running means of a batch's statistics: momentum * running + (1 - momentum) * batch.

    >>> spmd.nn.update_statistics({"mean": 0.0}, {"mean": 1.0}, momentum=0.75)
    {'mean': 0.25}
    """
    return {name: momentum * running[name] + (1 - momentum) * batch[name] for name in running}


def _mean(x: Any, over: tuple[int, ...], ranks: Any) -> Any:
    if ranks is None:
        return np.mean(x, over, keepdims=True)
    total = spmd.psum(np.sum(x, over, keepdims=True), ranks)
    count = spmd.psum(np.sum(np.ones_like(x), over, keepdims=True), ranks)
    return total / count


def _spread(part: Any, over: tuple[int, ...]) -> Any:
    return None if part is None else np.expand_dims(part, over)


def _scaled(x: Any, scale: Any, bias: Any) -> Any:
    if scale is not None:
        x = x * scale
    return x if bias is None else x + bias
