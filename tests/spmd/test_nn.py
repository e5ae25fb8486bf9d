"""spmd.nn beside closed formulas: values, gradients, layouts, and what ranks exchange for them."""

from __future__ import annotations

import doctest
import math
from types import ModuleType

import numpy as np
import pytest

import spmd
from spmd import nn

pytestmark = pytest.mark.one_mpi

RNG = np.random.default_rng(1)


def modules() -> list[ModuleType]:
    return [module for module in vars(nn).values() if isinstance(module, ModuleType)]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_examples_of_docstrings(module):
    options = doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, extraglobs={"spmd": spmd}, optionflags=options).failed == 0


def test_every_name_says_what_it_does():
    assert [name for name in nn.__all__ if len((getattr(nn, name).__doc__ or "").split()) < 3] == []


# ---- activations ---------------------------------------------------------------------------------

X = np.array([-1000.0, -30.0, -3.5, -1.0, -0.25, 0.0, 0.25, 1.0, 2.75, 3.25, 6.5, 40.0, 1000.0])
logistic = np.where(X < 0, np.exp(np.minimum(X, 0)), 1) / (1 + np.exp(-np.abs(X)))
other = np.where(X > 0, np.exp(-np.maximum(X, 0)), 1) / (1 + np.exp(-np.abs(X)))  # of -X
cdf = 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2)))
density = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)
inner = np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))
negative = np.exp(np.minimum(X, 0))
ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805

# by name: the value, and the derivative
ACTIVATIONS = {
    "relu": (np.maximum(X, 0), X > 0),
    "relu6": (X.clip(0, 6), (X > 0) & (X < 6)),
    "sigmoid": (logistic, logistic * other),
    "log_sigmoid": (np.minimum(X, 0) - np.log1p(np.exp(-np.abs(X))), other),
    "softplus": (np.maximum(X, 0) + np.log1p(np.exp(-np.abs(X))), logistic),
    "soft_sign": (X / (1 + np.abs(X)), (1 + np.abs(X)) ** -2),
    "silu": (X * logistic, logistic + X * logistic * other),
    "gelu": (0.5 * X * (1 + inner), 0.5 * (1 + inner) + 0.5 * X * (1 - inner**2)
             * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * X * X)),
    "elu": (np.where(X > 0, X, negative - 1), np.where(X > 0, 1, negative)),
    "celu": (np.where(X > 0, X, negative - 1), np.where(X > 0, 1, negative)),
    "selu": (SCALE * np.where(X > 0, X, ALPHA * (negative - 1)),
             SCALE * np.where(X > 0, 1, ALPHA * negative)),
    "leaky_relu": (np.where(X > 0, X, 0.01 * X), np.where(X >= 0, 1, 0.01)),
    "hard_tanh": (X.clip(-1, 1), np.abs(X) < 1),
    "hard_sigmoid": ((X + 3).clip(0, 6) / 6, (np.abs(X) < 3) / 6),
    "hard_silu": (X * (X + 3).clip(0, 6) / 6, (X + 3).clip(0, 6) / 6 + X * (np.abs(X) < 3) / 6),
}  # fmt: skip


def test_activations_and_their_gradients():
    @spmd.program(mesh=("r",))
    def all_of_them():
        x = spmd.input("x", X.shape, np.float64, layout=("r",))
        out = {name: (f(x), spmd.grad(lambda x, f=f: np.sum(f(x)))(x))
               for name in ACTIVATIONS if (f := getattr(nn, name))}
        exact = lambda x: nn.gelu(x, approximate=False)
        return {**out, "exact": (exact(x), spmd.grad(lambda x: np.sum(exact(x)))(x))}

    found = spmd.build(all_of_them).run(ranks=3, x=X)
    rows = {**ACTIVATIONS, "exact": (X * cdf, cdf + X * density)}
    for name, (value, slope) in rows.items():
        got_value, got_slope = found[name]
        np.testing.assert_allclose(got_value, value, 1e-12, 1e-13, err_msg=name)
        np.testing.assert_allclose(got_slope, slope, 1e-11, 1e-12, err_msg=name)
