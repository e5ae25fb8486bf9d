"""Every function of spmd.nn under spmd.vmap, beside a Python loop over members."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import spmd
from spmd import nn

pytestmark = pytest.mark.one_mpi

# mypy: ignore-errors

RNG = np.random.default_rng(5)
MEMBERS = 3
GIVEN = {
    "x": RNG.normal(size=(MEMBERS, 4, 6)), "y": RNG.normal(size=(MEMBERS, 4, 6)),
    "image": RNG.normal(size=(MEMBERS, 2, 6, 3)), "v": RNG.normal(size=(MEMBERS, 4)),
    "heads": RNG.normal(size=(MEMBERS, 2, 4, 2, 4)), "k": RNG.integers(0, 5, (MEMBERS, 4)),
    "w": RNG.normal(size=(6, 6)) / 2,
}


def cell(f, gates, hidden=4):
    """A cell of a recurrent network over two steps, with weights that all members share."""
    def call(a):
        p = {"w": a.w[:, :1, None] * np.linspace(-1, 1, gates * hidden).reshape(gates, hidden),
             "u": a.w[:hidden, :1, None] * np.linspace(1, 2, gates * hidden).reshape(gates, hidden),
             "b": a.w[0, :1] * np.ones((gates, hidden)), "c": a.w[1, :1] * np.ones((gates, hidden))}
        if f is nn.rnn_cell:
            p = {k: v[..., 0, :] for k, v in p.items()}
        state = (a.x[0, :4], a.x[1, :4]) if f is nn.lstm_cell else a.x[0, :4]
        return f(p, state, a.y[0]), nn.recurrent(f, p, a.y, state)

    return call


def cached(a):
    one = lambda k: a.heads[:, k : k + 1]
    cache = nn.attention_cache((2,), 4, 2, 4, np.float64)
    first, cache = nn.attention_with_cache(one(0), one(1), one(2), cache, 0)
    return first, nn.attention_with_cache(one(1), one(2), one(3), cache, 1)


def searched(a):
    step = lambda k, tokens, state: (a.w[:5, :5][tokens] * a.x[0, 0] + state[..., None], state * 2)
    return nn.beam_search(step, np.ones((4, 2)) * a.v[:, None], a.k, 3, 2)


CASES = {
    **{name: lambda a, name=name: getattr(nn, name)(a.x) for name in
       "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid "
       "log_softmax logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus swish "
       "rms_norm layer_norm".split()},
    **{name: lambda a, name=name: getattr(nn, name)(a.x, a.y) for name in
       "cosine_distance cosine_similarity hinge_loss huber_loss l2_loss log_cosh "
       "sigmoid_binary_cross_entropy squared_error".split()},
    "adaptive_avg_pool": lambda a: nn.adaptive_avg_pool(a.image, 4),
    "attention": lambda a: nn.attention(a.heads, a.heads[::-1], a.heads * 2, causal=True),
    "avg_pool": lambda a: nn.avg_pool(a.image, 2), "max_pool": lambda a: nn.max_pool(a.image, 2, 1),
    "batch_norm": lambda a: nn.batch_norm(a.x, a.y[0], a.y[1]),
    "batch_norm_inference": lambda a: nn.batch_norm_inference(
        a.x, {"mean": a.y[0], "variance": a.y[1] ** 2}),
    "update_statistics": lambda a: nn.update_statistics(
        {"mean": a.y[0], "variance": a.y[1] ** 2}, nn.batch_norm(a.x)[1]),
    "conv": lambda a: nn.conv(a.image, a.w[:, :2].reshape(2, 3, 2)),
    "conv_transpose": lambda a: nn.conv_transpose(a.image, a.x[:3].reshape(2, 3, 3), strides=2),
    "dense": lambda a: nn.dense(a.x, a.w, a.y[0]),
    "dropout": lambda a: nn.dropout(a.x, 0.5, a.k[0]),
    "embedding": lambda a: nn.embedding(a.k, a.w),
    "glorot": lambda a: nn.glorot(a.k[0], (3, 2), np.float64),
    "kl_divergence": lambda a: nn.kl_divergence(nn.log_softmax(a.x), nn.softmax(a.y)),
    "smooth_labels": lambda a: nn.smooth_labels(nn.softmax(a.y), 0.1),
    "softmax_cross_entropy": lambda a: nn.softmax_cross_entropy(a.x, nn.softmax(a.y)),
    "softmax_cross_entropy_with_integer_labels":
        lambda a: nn.softmax_cross_entropy_with_integer_labels(a.x, a.k),
    "mixture_of_experts": lambda a: nn.mixture_of_experts(
        a.x[None], a.w[:, :2], lambda x: np.tanh(x), k=1)[0],
    "one_hot": lambda a: nn.one_hot(a.k, 5),
    "rotary": lambda a: nn.rotary(a.heads),
    "sample": lambda a: nn.sample(a.k[0], a.x, top_k=3),
    "rnn_cell": cell(nn.rnn_cell, 1), "gru_cell": cell(nn.gru_cell, 3),
    "lstm_cell": cell(nn.lstm_cell, 4), "attention_with_cache": cached, "beam_search": searched,
}
ALONG = {"attention_cache": "attention_with_cache", "recurrent": "rnn_cell"}  # in that case


class Given:
    """The arrays of one member, by name."""

    def __init__(self, arrays):
        vars(self).update(arrays)


def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    return [y for part in x for y in leaves(part)] if isinstance(x, (list, tuple)) else [x]


def test_every_function_has_a_case() -> None:
    names = {n for n in nn.__all__ if not isinstance(getattr(nn, n), ModuleType)}
    assert names == {*CASES, *ALONG}


PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_members_beside_a_loop(part: int) -> None:
    cases = {name: CASES[name] for name in list(CASES)[part::PARTS]}
    axes = {name: None if name == "w" else 0 for name in GIVEN}

    def member(arrays):
        given = Given(arrays)
        return {name: f(given) for name, f in cases.items()}

    @spmd.program(mesh=("r",))
    def both(split: bool = True):
        first = ("r", None) if split else (None, "r")
        arrays = {name: spmd.input(name, x.shape, x.dtype, layout=None if name == "w" else (
            *first, *[None] * (x.ndim - 2))) for name, x in GIVEN.items()}
        return spmd.vmap(member, in_axes=(axes,))(arrays)

    wanted = both.eager(**GIVEN)  # a Python loop
    for split in (True, False):
        image = spmd.build(both, split=split)
        for ranks in (1, 3, 5):
            found = image.run(ranks=ranks, **GIVEN)
            for name in cases:
                for got, want in zip(leaves(found[name]), leaves(wanted[name]), strict=True):
                    where = f"{name}, {split}, {ranks} ranks"
                    np.testing.assert_allclose(got, want, 1e-5, 1e-6, err_msg=where)
