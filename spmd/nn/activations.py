"""Activations, with the names and the meaning that jax.nn gives them.

Always holds: gradients are finite wherever the function is, at large arguments too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmd import ShapeError
from spmd.extend import user_place
from spmd.nn.shared import constant, erf, floats, in_float32


def relu(x: Any) -> Any:
    """Return max(x, 0); its gradient at 0 is 0.

    >>> spmd.nn.relu(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    return np.where(x <= 0, 0, x)


def relu6(x: Any) -> Any:
    """Return min(max(x, 0), 6); its gradient at both ends is 0."""
    return np.where(x >= 6, 6, relu(x))


@in_float32
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)).

    >>> spmd.nn.sigmoid(np.array([-1000.0, 0.0]))
    array([0. , 0.5])
    """
    x = floats(x, "sigmoid")
    small = np.exp(np.where(x >= 0, -x, x))  # never overflows, so that gradients are finite too
    return np.where(x >= 0, 1, small) / (1 + small)


@in_float32
def log_sigmoid(x: Any) -> Any:
    """Return log(sigmoid(x)), computed without overflow."""
    return -softplus(-floats(x, "log_sigmoid"))


@in_float32
def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), without overflow.

    >>> spmd.nn.softplus(np.array([0.0, 100.0])).round(3)
    array([  0.693, 100.   ])
    """
    x = floats(x, "softplus")
    small = np.exp(np.where(x > 0, -x, x))  # whose slope is finite at infinities too
    return np.where(x > 0, x, 0) + np.log1p(small)


@in_float32
def soft_sign(x: Any) -> Any:
    """Return x / (1 + abs(x))."""
    return x / (1 + np.abs(x))


@in_float32
def silu(x: Any) -> Any:
    """Return x * sigmoid(x), which is also called swish.

    >>> spmd.nn.silu(np.array([0.0, 1.0])).round(3)
    array([0.   , 0.731])
    """
    return x * sigmoid(x)


swish = silu


@in_float32
def mish(x: Any) -> Any:
    """Return x * tanh(softplus(x)) (D. Misra, 2019)."""
    return x * np.tanh(softplus(x))


@in_float32
def gelu(x: Any, approximate: bool = True) -> Any:
    """Return x times the normal distribution's chance of less than x (D. Hendrycks, K. Gimpel,
    2016).

    approximate: by tanh, as in GPT-2 and jax.nn; else by the error function.

    >>> spmd.nn.gelu(np.array([1.0, -1.0]), approximate=False).round(4)
    array([ 0.8413, -0.1587])
    """
    x = floats(x, "gelu")
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


@in_float32
def elu(x: Any, alpha: float = 1.0) -> Any:
    """Return x where it is positive, else alpha * (exp(x) - 1)."""
    x = floats(x, "elu")
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x)))


@in_float32
def celu(x: Any, alpha: float = 1.0) -> Any:
    """Return x where it is positive, else alpha * (exp(x / alpha) - 1)."""
    x = floats(x, "celu")
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x) / alpha))


@in_float32
def selu(x: Any) -> Any:
    """Return elu, scaled so that deep networks keep mean 0 and variance 1 (G. Klambauer et al.,
    2017)."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


@in_float32
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """Return x where it is 0 or more, else negative_slope * x."""
    return np.where(x >= 0, x, negative_slope * x)


def hard_tanh(x: Any) -> Any:
    """Return x, but at most 1 and at least -1; its gradient at both is 0, as outside."""
    return np.where(x >= 1, 1, np.where(x <= -1, -1, x))


@in_float32
def hard_sigmoid(x: Any) -> Any:
    """Return relu6(x + 3) / 6."""
    return relu6(x + 3) / 6


@in_float32
def hard_silu(x: Any) -> Any:
    """Return x * hard_sigmoid(x), which is also called hard swish."""
    return x * hard_sigmoid(x)


hard_swish = hard_silu


@in_float32
def glu(x: Any, axis: int = -1) -> Any:
    """Return the first half of a dim times the sigmoid of its second half. ShapeError for odd
    extents."""
    if x.shape[axis] % 2:
        raise ShapeError("spmd.nn.glu halves a dim", place=user_place(),
                         expected=f"an even extent of dim {axis}", found=str(x.shape[axis]))
    first, second = np.split(x, 2, axis)
    return first * sigmoid(second)


# ---- along a dim -------------------------------------------------------------------------------


@in_float32
def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """Return exp(x) divided by its sum along a dim, or several; the dim may be split over ranks.

    where: which elements take part; the others are 0, and all where none takes part.

    >>> spmd.nn.softmax(np.array([0.0, 0.0, 1000.0]))
    array([0., 0., 1.])
    """
    powers = np.exp(_shifted(floats(x, "softmax"), axis, where)[0])
    if where is None:
        return powers / np.sum(powers, axis, keepdims=True)
    total = np.sum(np.where(where, powers, 0), axis, keepdims=True)
    return np.where(where, powers / np.where(total == 0, 1, total), 0)


@in_float32
def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """Return log(softmax(x)), computed without underflow. where: which elements take part; others
    are -inf.

    >>> spmd.nn.log_softmax(np.array([0.0, 1000.0]))
    array([-1000.,     0.])
    """
    less, _ = _shifted(floats(x, "log_softmax"), axis, where)
    logarithms = less - np.log(_sum_of_powers(less, axis, where))
    return logarithms if where is None else np.where(where, logarithms, -np.inf)


@in_float32
def logsumexp(x: Any, axis: Any = -1, keepdims: bool = False, where: Any = None) -> Any:
    """Return log(sum(exp(x))) along a dim, without overflow.

    >>> float(spmd.nn.logsumexp(np.array([1000.0, 1000.0])).round(3))
    1000.693
    """
    less, most = _shifted(floats(x, "logsumexp"), axis, where)
    logarithm = np.log(_sum_of_powers(less, axis, where)) + most
    return logarithm if keepdims else np.squeeze(logarithm, axis)


def _sum_of_powers(less: Any, axis: Any, where: Any) -> Any:
    powers = np.exp(less) if where is None else np.where(where, np.exp(less), 0)
    return np.sum(powers, axis, keepdims=True)


def _shifted(x: Any, axis: Any, where: Any) -> tuple[Any, Any]:
    """Return x minus its largest element along a dim, and that; elements that take no part are
    0."""
    if where is not None:
        x = np.where(where, x, -np.inf)
    most = np.max(constant(x), axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0)
    less = x - most
    return (less if where is None else np.where(where, less, 0)), most


def one_hot(x: Any, num_classes: int, dtype: Any = np.float32, axis: int = -1) -> Any:
    """Return 1 where an integer is, 0 elsewhere, along a new dim; all 0 for an integer outside of
    it.

    >>> spmd.nn.one_hot(np.array([2, 0]), 3)
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    hot = np.expand_dims(x, -1) == np.arange(num_classes)
    hot = hot.astype(dtype)
    return hot if axis == -1 else np.moveaxis(hot, -1, axis)
