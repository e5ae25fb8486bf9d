"""spmd.random on NumPy's arrays: the engine's routine gives what an image gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen import philox
from codegen.trace.numpy import random as drawing

FLOATS = (np.float32, np.float64)
BOUNDS = [(1, 2), (1e7, 1e7 + 1), (-0.1, 0.7), (0.3, 0.1), (-2, -1), (0, 1e-44), (5, 5), (0, 3e38)]


@spmd.program(mesh=("r",))
def draws(n: int = 1003):
    half = spmd.scalar("half", 0.5)
    out = {}
    for t in FLOATS:
        name = np.dtype(t).name
        out[f"normal {name}"] = spmd.random.normal(1, n, dtype=t)
        out[f"moved {name}"] = spmd.random.normal(-3, (n, 1), 2, 0.1, t, stream=7, start=2**40 + 5)
        out[f"traced {name}"] = spmd.random.uniform(9, n, half, 2 * half, t)
        for k, (low, high) in enumerate(BOUNDS):
            out[f"uniform {name} {k}"] = spmd.random.uniform(k, n, low, high, t, stream=2**63)
    out["below"] = spmd.random.randint(5, n, -7, 10**12)
    out["all"] = spmd.random.randint(5, n, -2**63, 2**63)
    out["bits"] = spmd.random.bits(5, (7, n), np.int16)
    out["order"] = spmd.random.permutation(4, n)
    out["classes"] = spmd.random.categorical(4, np.zeros((n, 3)))
    return out


def test_an_eager_run_draws_what_an_image_draws():
    image, eager = spmd.build(draws), draws.eager()
    for ranks in (1, 3, 5):
        found = image.run(ranks=ranks)
        assert [k for k in found if not np.array_equal(found[k], eager[k])] == []


def test_the_engine_draws_what_philox_says():
    """codegen/philox.py is the oracle: words of the published generator, from odd places on."""
    position = np.arange(2**32 - 3, 2**32 + 600, dtype=np.uint64)
    seed, stream = 2**64 - 5, 2**33 + 1
    words = philox.first(position, np.uint64(stream), np.uint64(seed))
    def drawn(kind, span=0):
        return philox.drawn(kind, len(position), seed, stream, 2**32 - 3, span)

    np.testing.assert_array_equal(drawn("bits"), words)
    np.testing.assert_array_equal(drawn("uniform_f64"), (words >> np.uint64(11)) * 2.0**-53)
    below = [int(w) * 12345678901234567 >> 64 for w in words]
    assert drawn("below", 12345678901234567).tolist() == below


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 300_000])
def test_order_is_that_of_argsort(count):
    words = spmd.random.bits(3, count)
    words[::50] = words[::50] % 2**12 + np.uint64(2**63)  # some that begin alike
    words = np.unique(words)[np.argsort(spmd.random.bits(4, len(np.unique(words))))]
    np.testing.assert_array_equal(philox.order(words), np.argsort(words))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("low, high", BOUNDS)
def test_uniform_is_below_its_end(dtype, low, high, monkeypatch):
    """The least and the largest fraction that bits can give, in an eager run and in an image."""
    last = 1 - 2.0**-24 if dtype == np.float32 else 1 - 2.0**-53
    fractions = np.array([0, last], dtype)
    monkeypatch.setattr(drawing, "_drawn", lambda *_, **__: fractions)
    monkeypatch.setattr(drawing, "_fraction", lambda *_, **__: spmd.asarray(fractions))
    eager = spmd.random.uniform(0, 2, low, high, dtype)

    @spmd.program(mesh=("r",))
    def ends():
        made = spmd.input("f", (2,), dtype, layout=("r",))
        a, b = spmd.scalar("a", float(low)), spmd.scalar("b", float(high))
        element = np.dtype(dtype)
        there = drawing._below((low + (high - low) * made).astype(dtype), low, high, element)
        return there, drawing._below((a + (b - a) * made).astype(dtype), a, b, element)

    for found in (eager, *spmd.build(ends, cache=False).run(ranks=2, f=fractions)):
        assert found.dtype == dtype
        a, b = dtype(low), dtype(high)
        inside = (a <= found) & (found < b) if a < b else (b < found) & (found <= a)
        assert (inside | (a == b)).all(), found
