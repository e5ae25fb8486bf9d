"""Arrays that are reshaped again and again are split along what stays: few exchanges, same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Const, Move


def stockham(x: Any, r: int, k: int, y: Any) -> Any:
    """The FFT of r**k numbers in k stages; the butterflies of each are a small product."""
    n = r**k
    i, j = np.mgrid[0:r, 0:r]
    butterfly = np.exp(-2j * np.pi * i * j / r)
    i, j = np.mgrid[0:r, 0:n]
    y[:] = x[:]
    for stage in range(k):
        v = np.transpose(np.reshape(y, (r**stage, r, n // r ** (stage + 1))), axes=(1, 0, 2))
        turn = np.exp(-2j * np.pi * i[:, :r**stage] * j[:, :r**stage] / r ** (stage + 1))
        factors = np.repeat(np.reshape(turn, (r, r**stage, 1)), n // r ** (stage + 1), axis=2)
        v = np.reshape(v, (n,)) * np.reshape(factors, (n,))
        y[:] = np.reshape(butterfly @ np.reshape(v, (r, n // r)), (n,))
    return y


@spmd.program(mesh=("r",))
def transform(r: int = 2, k: int = 12):
    x = spmd.input("x", (r**k,), np.complex128, layout=("r",))
    return stockham(x, r, k, spmd.zeros(r**k, np.complex128, layout=("r",)))


@spmd.program(mesh=("r",))
def mixed(r: int = 4):
    """Rows that are used twice, a layout that the user says, and matrices that are no constants."""
    x = spmd.input("x", (64, 64), np.float64, layout=("r", None))
    turn = np.arange(16.0).reshape(4, 4) / 7
    a = np.reshape(turn @ np.reshape(x, (4, 1024)), (64, 64))
    b = np.reshape(np.reshape(a.T, (4096,)), (4, 1024)) + a[0, 0]
    c = np.reshape(turn @ np.reshape(turn @ b, (4, 1024)), (64, 64)).relayout((None, "r"))
    e = np.reshape(turn @ np.reshape(np.reshape(c.T, (4096,)), (4, 1024)), (8, 512)) * 2
    f = turn @ np.reshape(np.transpose(np.reshape(e, (16, 4, 64)), (2, 0, 1)), (4, 1024))
    return a, c, np.reshape(x[:4, :4] @ f, (16, 256)), f


@pytest.mark.parametrize(("r", "k"), [(2, 16), (4, 8), (3, 10)])
def test_stages_exchange_little_and_give_numpys_results(r: int, k: int):
    levels = lower(transform.graph({"r": r, "k": k}))
    moves = [op for op in walk(levels.program.body) if isinstance(op.kind, Move)]
    assert 3 <= len(moves) <= 5
    constants = [op.kind.data.size for op in levels.graph.body.ops if isinstance(op.kind, Const)]
    assert max(constants) == r**k and sum(constants) < 3 * r**k  # each factor once
    random = np.random.default_rng(5)
    x = random.normal(size=r**k) + 1j * random.normal(size=r**k)
    wanted = np.fft.fft(x)
    image = spmd.build(transform, r=r, k=k)
    first = image.run(ranks=1, x=x)
    np.testing.assert_allclose(first, wanted, rtol=1e-9, atol=1e-9)
    for ranks in (2, 3, 5, 16, 70):
        assert (image.run(ranks=ranks, x=x) == first).all()


def test_chains_end_where_arrays_are_used_otherwise():
    x = np.random.default_rng(6).normal(size=(64, 64))
    wanted = mixed.eager(x=x)
    image = spmd.build(mixed)
    for ranks in (1, 2, 3, 5, 16):
        for found, e in zip(image.run(ranks=ranks, x=x), wanted, strict=True):
            np.testing.assert_allclose(found, e, rtol=1e-12, atol=1e-9)
