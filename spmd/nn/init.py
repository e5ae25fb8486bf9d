"""Initial values of parameters, with the names of jax.nn.initializers.

`zeros`, `ones` and `glorot` are functions of (seed, shape, dtype, layout). Every other name takes
settings and returns such a function: `he_normal()(seed, shape)`.

Always holds: the values follow from the seed and the shape; they are the same on any mesh.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmd import Array, UsageError, random
from spmd.extend import scalar_function, user_place

Initializer = Callable[..., Any]


def zeros(seed: Any, shape: Any, dtype: Any = np.float32, layout: Any = None) -> Any:
    """Return zeros, whatever the seed.

    >>> spmd.nn.init.zeros(0, 2)
    array([0., 0.], dtype=float32)
    """
    return random.uniform(0, shape, 0.0, 0.0, dtype, layout)


def ones(seed: Any, shape: Any, dtype: Any = np.float32, layout: Any = None) -> Any:
    """Return ones, whatever the seed."""
    return zeros(seed, shape, dtype, layout) + 1


def constant(value: float) -> Initializer:
    """Return an initializer with this number everywhere."""
    return lambda seed, shape, dtype=np.float32, layout=None: (
        zeros(seed, shape, dtype, layout) + value)


def normal(stddev: float = 1e-2) -> Initializer:
    """Return an initializer of normally distributed values, with mean 0.

    >>> spmd.nn.init.normal(1.0)(1, 3).round(3)
    array([-0.114, -0.289,  0.954], dtype=float32)
    """
    return lambda seed, shape, dtype=np.float32, layout=None: random.normal(
        seed, shape, 0.0, stddev, dtype, layout)


def uniform(scale: float = 1e-2) -> Initializer:
    """Return an initializer of evenly distributed values, from 0 to below scale."""
    return lambda seed, shape, dtype=np.float32, layout=None: random.uniform(
        seed, shape, 0.0, scale, dtype, layout)


def truncated_normal(stddev: float = 1e-2, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """Return an initializer of values normally distributed between lower and upper standard
    deviations.

    >>> made = spmd.nn.init.truncated_normal(1.0)(1, 1000)
    >>> bool(abs(made).max() < 2)
    True
    """
    low, high = (statistics.NormalDist().cdf(x) for x in (lower, upper))

    def make(seed: Any, shape: Any, dtype: Any = np.float32, layout: Any = None) -> Any:
        chance = random.uniform(seed, shape, low, high, np.float64, layout)
        return (stddev * _quantile(chance)).clip(stddev * lower, stddev * upper).astype(dtype)

    return make


def _quantile(chance: Any) -> Any:
    """Return the quantile of the standard normal distribution."""
    if isinstance(chance, Array):
        return math.sqrt(2) * scalar_function("erfinv", 2 * chance - 1)
    return np.vectorize(statistics.NormalDist().inv_cdf, otypes=[np.float64])(chance)


def variance_scaling(
    scale: float, mode: str, distribution: str, in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
) -> Initializer:
    """Return an initializer of variance scale / n, where n is the number of inputs ("fan_in"), of
    outputs ("fan_out"), or their mean ("fan_avg") of a parameter.

    - distribution: "truncated_normal", "normal" or "uniform".
    - in_axis, out_axis: the dims of inputs and of outputs; all others are a receptive field.

    UsageError for another mode or distribution.
    """
    modes, kinds = ("fan_in", "fan_out", "fan_avg"), ("truncated_normal", "normal", "uniform")
    if mode not in modes or distribution not in kinds:
        raise UsageError("spmd.nn.init.variance_scaling knows no such thing", place=user_place(),
                         expected=f"mode {', '.join(modes)}; distribution {', '.join(kinds)}",
                         found=f"{mode!r}, {distribution!r}")

    def make(seed: Any, shape: Any, dtype: Any = np.float32, layout: Any = None) -> Any:
        inputs, outputs = _fans(tuple(shape), in_axis, out_axis)
        fan = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
        deviation = math.sqrt(scale / max(fan, 1))
        if distribution == "uniform":
            most = math.sqrt(3) * deviation
            return random.uniform(seed, shape, -most, most, dtype, layout)
        if distribution == "normal":
            return random.normal(seed, shape, 0.0, deviation, dtype, layout)
        # what is cut off at two deviations has less variance
        return truncated_normal(deviation / 0.87962566103423978)(seed, shape, dtype, layout)

    return make


def _fans(shape: tuple[int, ...], in_axis: Any, out_axis: Any) -> tuple[float, float]:
    dims = [{d % len(shape) for d in (axis if isinstance(axis, Sequence) else (axis,))}
            for axis in (in_axis, out_axis)] if len(shape) > 1 else [set(), set()]
    field = math.prod(int(n) for d, n in enumerate(shape) if d not in dims[0] | dims[1])
    inputs, outputs = (math.prod(int(shape[d]) for d in mine) for mine in dims)
    return inputs * field, outputs * field


def _is_shape(in_axis: Any, out_axis: Any) -> bool:
    """Return whether two axes look like a seed and a shape: no dims, or one of them twice."""
    if isinstance(in_axis, (tuple, list)) or not isinstance(out_axis, (tuple, list)):
        return False
    dims = [in_axis, *out_axis]
    return len(set(dims)) < len(dims) or not all(isinstance(d, int) and -8 <= d < 8 for d in dims)


def _named(scale: float, mode: str, distribution: str, source: str) -> Callable[..., Initializer]:
    def named(in_axis: Any = -2, out_axis: Any = -1, *more: Any) -> Initializer:
        if more or _is_shape(in_axis, out_axis):
            raise UsageError(
                "this makes an initializer, which takes the seed and the shape",
                place=user_place(), expected="in_axis and out_axis, which are dims; or nothing",
                found=repr((in_axis, out_axis, *more))[1:-1],
                remedy=f"a second call: …()({in_axis!r}, {out_axis!r})")
        return variance_scaling(scale, mode, distribution, in_axis, out_axis)

    named.__doc__ = f"variance_scaling({scale}, {mode!r}, {distribution!r}) ({source})."
    return named


_GLOROT, _HE, _LECUN = "X. Glorot, Y. Bengio, 2010", "K. He et al., 2015", "Y. LeCun et al., 1998"
glorot_uniform = xavier_uniform = _named(1.0, "fan_avg", "uniform", _GLOROT)
glorot_normal = xavier_normal = _named(1.0, "fan_avg", "truncated_normal", _GLOROT)
he_uniform = kaiming_uniform = _named(2.0, "fan_in", "uniform", _HE)
he_normal = kaiming_normal = _named(2.0, "fan_in", "truncated_normal", _HE)
lecun_uniform = _named(1.0, "fan_in", "uniform", _LECUN)
lecun_normal = _named(1.0, "fan_in", "truncated_normal", _LECUN)


def glorot(seed: Any, shape: Any, dtype: Any = np.float32, layout: Any = None) -> Any:
    """Return evenly distributed values, with variance 2 / (inputs + outputs): `glorot_uniform()` in
    one call.

    - shape: (…, inputs, outputs).

    >>> spmd.nn.glorot(0, (2, 3)).round(2)
    array([[ 0.83, -0.3 , -0.4 ],
           [-0.19,  0.42, -1.03]], dtype=float32)
    """
    return glorot_uniform()(seed, shape, dtype, layout)


def orthogonal(scale: float = 1.0, column_axis: int = -1) -> Initializer:
    """Return an initializer of a matrix with orthogonal columns, or rows where it is wide, times
    scale (A. Saxe et al., 2014); other dims than column_axis are taken as one.

    >>> q = spmd.nn.init.orthogonal()(1, (3, 2), np.float64)
    >>> (q.T @ q).round(6) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """
    def make(seed: Any, shape: Any, dtype: Any = np.float32, layout: Any = None) -> Any:
        columns = int(shape[column_axis])
        rows = math.prod(map(int, shape)) // columns
        drawn = random.normal(seed, (max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(drawn)
        q = q * np.where(np.diagonal(r) < 0, -1, 1)
        q = q if rows >= columns else q.T
        others = [int(n) for d, n in enumerate(shape) if d != column_axis % len(shape)]
        matrix = np.moveaxis(q.reshape(*others, columns), -1, column_axis)
        matrix = (scale * matrix).astype(dtype)
        if layout is None or not isinstance(matrix, Array):
            return matrix
        return matrix.relayout(layout)

    return make
