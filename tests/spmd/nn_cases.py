"""A call of every function of spmd.nn: its arrays of floats, and what is computed of them.

What no case can be of stands in WITHOUT, with the reason; a test compares both with the namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from spmd import nn

# mypy: ignore-errors


class Case(NamedTuple):
    """A function of arrays, their shapes, and how many of them, the first ones, are data."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    data: int = 1


def shaped(name: str, *shapes: tuple[int, ...], data: int = 1, **named: Any) -> Case:
    function = getattr(nn, name)
    return Case(lambda *arrays: function(*arrays, **named), shapes, data)


MASK = np.arange(6).reshape(2, 3) % 4 != 0
IDS = np.array([[0, 3], [3, 1]])
LABELS = np.array([2, 0, 1])
LEAVES = "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid mish "
LEAVES += "relu relu6 selu sigmoid silu soft_sign softplus swish"


def lstm(*arrays: Any) -> Any:
    x, out, cell, w, u, b, peepholes = arrays
    return nn.lstm_cell({"w": w, "u": u, "b": b, "peepholes": peepholes}, (out, cell), x)[0]


def cached(key: Any, value: Any, query: Any, new: Any) -> Any:
    made, cache = nn.attention_with_cache(
        query, new, new, {"key": key, "value": value}, 2)
    return made, cache["key"]


def experts(x: Any) -> Any:
    router = (np.arange(12) * 7 % 9 / 4 - 1).reshape(3, 4).astype(x.dtype)
    parts = (0.5 ** np.arange(4)).reshape(4, 1, 1).astype(x.dtype)
    return nn.mixture_of_experts(x, router, lambda t: t * parts, 2, 10)[0]


def recurrent(x: Any, w: Any, u: Any, b: Any) -> Any:
    return nn.recurrent(nn.rnn_cell, {"w": w, "u": u, "b": b}, x)


def rates(x: Any, mean: Any, variance: Any) -> Any:
    return nn.batch_norm_inference(x, {"mean": mean, "variance": np.abs(variance) + 1})


Q, K = (1, 4, 4, 2), (1, 4, 2, 2)
CASES: dict[str, Case] = {
    **{name: shaped(name, (3, 4)) for name in LEAVES.split()},
    "glu": shaped("glu", (3, 4)),
    "softmax": shaped("softmax", (3, 4)), "log_softmax": shaped("log_softmax", (3, 4)),
    "logsumexp": shaped("logsumexp", (3, 4)),
    "softmax masked": shaped("softmax", (2, 3), where=MASK),
    "log_softmax masked": shaped("log_softmax", (2, 3), where=MASK),
    "logsumexp masked": shaped("logsumexp", (2, 3), where=MASK),
    "attention": shaped("attention", Q, Q, Q, data=3),
    "attention causal": shaped("attention", Q, K, K, data=0, causal=True),
    "attention padded": shaped("attention", Q, K, K, data=3, mask=np.arange(4) < 3),
    "attention padded, of each head": shaped(
        "attention", Q, Q, Q, data=3,
        mask=np.arange(4) < np.array([4, 2, 3, 2])[:, None, None] * np.ones((4, 1), int)),
    "attention_with_cache": Case(cached, ((4, 2, 3), (4, 2, 3), (1, 2, 3), (1, 2, 3)), 4),
    "avg_pool": shaped("avg_pool", (2, 6, 3), window=2, strides=1),
    "avg_pool same": shaped("avg_pool", (1, 5, 4, 2), window=(3, 2), padding="SAME",
                            count_include_pad=False),
    "max_pool": shaped("max_pool", (2, 6, 3), window=2, padding="SAME"),
    "adaptive_avg_pool": shaped("adaptive_avg_pool", (1, 5, 6, 2), places=(3, 2)),
    "conv": shaped("conv", (2, 7, 6, 4), (3, 2, 4, 3), (3,), strides=(2, 1), padding="SAME"),
    "conv grouped": shaped("conv", (1, 9, 4), (3, 2, 6), groups=2, dilation=2),
    "conv_transpose": shaped("conv_transpose", (2, 4, 3), (3, 3, 2), (2,), strides=2),
    "dense": shaped("dense", (3, 4), (4, 2), (2,)),
    "embedding": Case(lambda table: nn.embedding(IDS, table), ((4, 3),)),
    "dropout": shaped("dropout", (3, 4), rate=0.4, seed=1),
    "layer_norm": shaped("layer_norm", (3, 4), (4,), (4,)),
    "rms_norm": shaped("rms_norm", (3, 4), (4,)),
    "batch_norm": shaped("batch_norm", (3, 4), (4,), (4,)),
    "batch_norm_inference": Case(rates, ((3, 4), (4,), (4,)), 3),
    "update_statistics": Case(lambda x, y: nn.update_statistics({"mean": x}, {"mean": y}, 0.75),
                              ((4,), (4,)), 2),
    "rotary": shaped("rotary", (3, 2, 4), positions=np.arange(1, 4)),
    "rnn_cell": Case(lambda x, s, w, u, b: nn.rnn_cell({"w": w, "u": u, "b": b}, s, x)[0],
                     ((3, 4), (3, 2), (4, 2), (2, 2), (2,)), 2),
    "gru_cell": Case(lambda x, s, w, u, b: nn.gru_cell({"w": w, "u": u, "b": b, "c": b}, s, x)[0],
                     ((3, 4), (3, 2), (4, 3, 2), (2, 3, 2), (3, 2)), 2),
    "lstm_cell": Case(lstm, ((3, 4), (3, 2), (3, 2), (4, 4, 2), (2, 4, 2), (4, 2), (3, 2)), 3),
    "recurrent": Case(recurrent, ((3, 2, 4), (4, 3), (3, 3), (3,))),
    "mixture_of_experts": Case(experts, ((2, 5, 3),)),
    "softmax_cross_entropy": shaped("softmax_cross_entropy", (3, 4), (3, 4), data=2),
    "softmax_cross_entropy_with_integer_labels": shaped(
        "softmax_cross_entropy_with_integer_labels", (3, 4), labels=LABELS),
    "sigmoid_binary_cross_entropy": shaped("sigmoid_binary_cross_entropy", (3, 4), (3, 4), data=2),
    **{name: shaped(name, (3, 4), (3, 4), data=2) for name in
       "cosine_distance cosine_similarity huber_loss kl_divergence l2_loss log_cosh "
       "squared_error".split()},
    "hinge_loss": shaped("hinge_loss", (3, 4), (3, 4), data=0),
    "smooth_labels": shaped("smooth_labels", (3, 4), alpha=0.1),
}
WITHOUT = {
    "attention_cache": "makes zeros", "beam_search": "returns tokens", "glorot": "draws",
    "one_hot": "is of integers", "sample": "returns tokens",
}


def uncalled() -> set[str]:
    """The functions of spmd.nn that have neither a case nor a reason."""
    functions = {n for n in nn.__all__ if not isinstance(getattr(nn, n), ModuleType)}
    return functions - {name.split()[0] for name in CASES} - WITHOUT.keys()
