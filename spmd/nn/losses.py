"""Losses, with the names and the meaning that optax gives them: one for each example, no mean.

Always holds: rows of logits may be split over ranks; what they exchange are numbers of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd import DtypeError, ShapeError
from spmd.extend import user_place
from spmd.nn.activations import log_sigmoid, log_softmax
from spmd.nn.shared import constant, floats, in_float32


@in_float32
def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the cost, in nats, of guessing labels with the probabilities softmax(logits).

    - logits: (…, classes), any floats.
    - labels: (…) integers, the classes; or (…, classes) floats, their probabilities.

    Returns (…). Where a label is none of the classes, NaN. ShapeError for other shapes.

    >>> logits = np.array([[0.0, 0.0], [9.0, -9.0]])
    >>> spmd.nn.softmax_cross_entropy(logits, np.array([1, 0])).round(4)
    array([0.6931, 0.    ])
    """
    logits = floats(logits, "softmax_cross_entropy")
    labels = _array(labels)
    if labels.ndim == logits.ndim - 1:
        return softmax_cross_entropy_with_integer_labels(logits, labels)
    if labels.ndim != logits.ndim or labels.shape[-1] != logits.shape[-1]:
        raise _other_shapes("softmax_cross_entropy", logits, labels)
    return np.sum(_cost(labels, log_softmax(logits)), -1)


@in_float32
def softmax_cross_entropy_with_integer_labels(logits: Any, labels: Any) -> Any:
    """Return softmax_cross_entropy for labels (…) that are integers, of logits (…, classes).

    The gradient is softmax(logits) - one_hot(labels): one more pass over the logits.

    >>> logits = np.array([0.0, 1000.0])
    >>> float(spmd.nn.softmax_cross_entropy_with_integer_labels(logits, np.array(0)))
    1000.0
    """
    logits = floats(logits, "softmax_cross_entropy_with_integer_labels")
    labels = _array(labels)
    if labels.dtype.kind not in "iu":
        raise DtypeError("labels are integers", place=user_place(), found=str(labels.dtype),
                         expected="integers (…), or probabilities (…, classes) of every class",
                         remedy="labels.astype(np.int32)")
    if labels.ndim != logits.ndim - 1:
        raise _other_shapes("softmax_cross_entropy_with_integer_labels", logits, labels)
    classes = logits.shape[-1]
    less = logits - np.max(constant(logits), -1, keepdims=True)
    labels = labels.astype(np.result_type(labels.dtype, np.int32))  # classes beyond 127
    is_label = np.arange(classes, dtype=labels.dtype) == labels[..., None]
    loss = np.log(np.sum(np.exp(less), -1)) - np.sum(np.where(is_label, less, 0), -1)
    return np.where((labels >= 0) & (labels < classes), loss, np.nan)


def _other_shapes(function: str, logits: Any, labels: Any) -> ShapeError:
    return ShapeError(f"spmd.nn.{function}: labels do not fit the logits", place=user_place(),
                      expected=f"integers of shape {tuple(logits.shape[:-1])}, or probabilities of "
                      f"shape {tuple(logits.shape)}", found=str(tuple(labels.shape)))


def _array(x: Any) -> Any:
    return x if hasattr(x, "ndim") else np.asarray(x)


@in_float32
def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the cost, in nats, of guessing labels, 0 or 1 or a probability, with sigmoid(logits).

    >>> spmd.nn.sigmoid_binary_cross_entropy(np.array([0.0, 50.0]), np.array([1, 0])).round(4)
    array([ 0.6931, 50.    ])
    """
    logits = floats(logits, "sigmoid_binary_cross_entropy")
    labels = _array(labels).astype(logits.dtype)
    return _cost(labels, log_sigmoid(logits)) + _cost(1 - labels, log_sigmoid(-logits))


def _cost(chances: Any, logarithms: Any) -> Any:
    """Return -chances * logarithms, and 0 where the chance is, also of what is impossible."""
    impossible = (chances == 0) & (logarithms == -np.inf)
    return -chances * np.where(impossible, 0, logarithms)


@in_float32
def squared_error(predictions: Any, targets: Any = None) -> Any:
    """Return (predictions - targets)², or predictions² without targets."""
    error = predictions if targets is None else predictions - targets
    return error * error


@in_float32
def l2_loss(predictions: Any, targets: Any = None) -> Any:
    """Return half of the squared error, whose gradient is the error.

    >>> float(spmd.nn.l2_loss(np.array(3.0), 1.0))
    2.0
    """
    return 0.5 * squared_error(predictions, targets)


@in_float32
def huber_loss(predictions: Any, targets: Any = None, delta: float = 1.0) -> Any:
    """Return half of the squared error up to delta, then linear (P. Huber, 1964).

    >>> spmd.nn.huber_loss(np.array([0.5, 3.0]))
    array([0.125, 2.5  ])
    """
    error = predictions if targets is None else predictions - targets
    small = np.minimum(np.maximum(error, -delta), delta)
    return 0.5 * small * small + delta * (np.abs(error) - np.abs(small))


@in_float32
def log_cosh(predictions: Any, targets: Any = None) -> Any:
    """Return log(cosh(error)), which is half of the square of small errors, the size of large
    ones."""
    error = predictions if targets is None else predictions - targets
    return np.logaddexp(error, -error) - np.log(2.0).astype(error.dtype)


@in_float32
def hinge_loss(predictions: Any, targets: Any) -> Any:
    """Return max(0, 1 - predictions * targets), for targets -1 and 1."""
    return np.maximum(0, 1 - predictions * targets)


@in_float32
def kl_divergence(log_predictions: Any, targets: Any) -> Any:
    """Return sum of targets * log(targets / predictions) along the last dim; predictions as
    logarithms.

    A target of 0 counts 0 (S. Kullback, R. Leibler, 1951).
    """
    counts = targets > 0
    safe, log_predictions = np.where(counts, targets, 1), np.where(counts, log_predictions, 0)
    return np.sum(np.where(counts, targets * (np.log(safe) - log_predictions), 0), -1)


@in_float32
def cosine_similarity(predictions: Any, targets: Any, epsilon: float = 0.0) -> Any:
    """Return the cosine of the angle between vectors, along the last dim. epsilon: their least
    length."""
    def unit(x: Any) -> Any:
        squares = np.sum(x * x, -1, keepdims=True)
        return x / np.sqrt(np.maximum(squares, epsilon * epsilon))

    return np.sum(unit(predictions) * unit(targets), -1)


@in_float32
def cosine_distance(predictions: Any, targets: Any, epsilon: float = 0.0) -> Any:
    """Return 1 - cosine_similarity, a number from 0 to 2."""
    return 1 - cosine_similarity(predictions, targets, epsilon)


@in_float32
def smooth_labels(labels: Any, alpha: float) -> Any:
    """Return probabilities (…, classes), of which alpha is spread evenly (C. Szegedy et al.,
    2016)."""
    return (1 - alpha) * labels + alpha / labels.shape[-1]
