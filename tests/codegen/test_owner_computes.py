"""Loops over a split dim whose turns touch their own rows run where the rows lie."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Exchange, Loop

RANKS = (1, 2, 3, 5, 6)


def layer(x, w):
    return np.tanh(x @ w) @ w.T


def arrays(p, rows="stage", inner=None):
    x = spmd.input("x", (p, 8, 6), np.float64, layout=(rows, inner, None))
    w = spmd.input("w", (p, 6, 7), np.float64, layout=(rows, None, None))
    return x, w, spmd.zeros((p, 8, 6), layout=(rows, inner, None))


def given(p):
    rng = np.random.default_rng(p)
    return {"x": rng.normal(size=(p, 8, 6)), "w": rng.normal(size=(p, 6, 7))}


@spmd.program(mesh=("stage",))
def products(p: int = 5):
    x, w, out = arrays(p)
    for s in spmd.range(p):
        out[s] = layer(x[s], w[s])
    return out


@spmd.program(mesh=("data", "stage"))
def on_two_axes(p: int = 5):
    x, w, out = arrays(p, inner="data")
    for s in spmd.range(p):
        out[s] = layer(x[s], w[s])
    return out


@spmd.program(mesh=("data", "stage"))
def exchanged_along_data(p: int = 5):
    """The mean over a row's batch goes over the ranks that have parts of the row."""
    x, w, out = arrays(p, inner="data")
    for s in spmd.range(p):
        h = layer(x[s], w[s])
        out[s] = h - np.mean(h, axis=0)
    return out


@spmd.program(mesh=("stage",))
def in_ticks(p: int = 5):
    """A pipeline, in each tick of which a stage computes on what the one before it made in the
    last."""
    x, w, h = arrays(p)
    for t in spmd.range(7):
        out = spmd.zeros((p, 8, 6), layout=("stage", None, None))
        for s in spmd.range(p):
            out[s] = layer(h[s], w[s])
        h[1:] = out[:-1]
        h[0] = x[t % p]
    return h


@spmd.program(mesh=("stage",))
def of_layers(p: int = 5):
    """Layers that are not alike, with turns of their own, some rows only, backwards."""
    x, w, out = arrays(p)
    for s in reversed(spmd.range(1, p)):
        def short(h):
            return np.cumsum(h, axis=0)

        def long(h):
            for _ in spmd.range(s):
                h = layer(h, w[s])
            return h

        row = spmd.switch(s % 3, [short, long, lambda h: h * s], x[s])
        if row[0, 0] > 0:
            out[s] += row
        else:
            out[s, 2:5] = row[2:5] - 1
    return out


@spmd.program(mesh=("stage",))
def carried_in_place(p: int = 5):
    """Two arrays, of which an inner loop updates the turn's rows."""
    x, w, out = arrays(p)
    v = w * 0
    for s in spmd.range(p):
        for k in spmd.range(3):
            out[s] += layer(x[s], w[s]) * k
            v[s] = v[s] * 0.5 + out[s].T @ layer(x[s], w[s]) @ w[s]
    return out, v


@spmd.program(mesh=("stage",))
def gradients(p: int = 5):
    """Each row has a loss of its own: the way back goes along the rows, too."""
    x, w, out = arrays(p)
    d = w * 0
    for s in spmd.range(p):
        value, grad = spmd.value_and_grad(lambda w, x: np.sum(layer(x, w) ** 2))(w[s], x[s])
        d[s] = grad
        out[s] = value
    return out, d


LOCAL = [products, on_two_axes, in_ticks, of_layers, carried_in_place, gradients]


def spread(program):
    """Return the loops of a Program that go along a rank's rows: from an index-dependent start."""
    levels = lower(program.graph({}))
    return [op for op in walk(levels.program.body) if isinstance(op.kind, Loop)
            and any(s.kind == "coord" for s in op.kind.start.symbols())]


def exchanges(op):
    return [o for region in op.regions for o in walk(region) if isinstance(o.kind, Exchange)]


@pytest.mark.parametrize("program", LOCAL, ids=lambda p: p.name)
def test_no_turn_exchanges_anything(program) -> None:
    """Read from the Program: the loop makes a rank's own turns, and no exchange stands in it."""
    loops = spread(program)
    assert len(loops) == 1 and not exchanges(loops[0])


def test_only_what_other_axes_split_is_exchanged() -> None:
    (loop,) = spread(exchanged_along_data)
    found = exchanges(loop)
    assert found and all(o.kind.axes == ("data",) for o in found)


def test_a_tick_moves_the_rows_that_go_to_other_ranks() -> None:
    """`h[1:] = out[:-1]` moves one row of `out` between ranks, and not what the row is computed
    from."""
    levels = lower(in_ticks.graph({}))
    found = [o for o in walk(levels.program.body) if isinstance(o.kind, Exchange)]
    assert len(found) == 2  # the row of x[t % p], and the last row of each rank's block of out


@pytest.mark.parametrize("p", [1, 4, 5])
@pytest.mark.parametrize("program", [*LOCAL, exchanged_along_data], ids=lambda p: p.name)
def test_as_numpy_on_any_number_of_ranks(program, p) -> None:
    wanted = program.eager(p=p, **given(p))
    image = spmd.build(program, p=p)
    for ranks in RANKS:
        out = image.run(ranks=ranks, **given(p))
        pairs = zip(out, wanted) if isinstance(wanted, tuple) else [(out, wanted)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{ranks} ranks")


# ---- turns that have to do with each other -------------------------------------------------------


@spmd.program(mesh=("stage",))
def of_neighbours(p: int = 5):
    x, w, out = arrays(p)
    for s in spmd.range(1, p):
        out[s] = layer(x[s - 1], w[s])
    return out


@spmd.program(mesh=("stage",))
def of_turns_before(p: int = 5):
    x, w, out = arrays(p)
    for s in spmd.range(1, p):
        out[s] = layer(x[s], w[s]) + out[s - 1]
    return out


@spmd.program(mesh=("stage",))
def summed(p: int = 5):
    x, w, out = arrays(p)
    total = np.zeros((8, 6))
    for s in spmd.range(p):
        out[s] = layer(x[s], w[s]) + total
        total = total + out[s]
    return out, total


@spmd.program(mesh=("stage",))
def reads_all(p: int = 5):
    x, w, out = arrays(p)
    for s in spmd.range(p):
        out[s] = layer(x[s], w[s]) + np.sum(x, axis=0)
    return out


@spmd.program(mesh=("stage",))
def of_other_extents(p: int = 5):
    x, w, out = arrays(p)
    more = spmd.zeros((p + 1, 8, 6), layout=("stage", None, None))
    for s in spmd.range(p):
        more[s] = layer(x[s], w[s])
    return more


DEPENDENT = [of_neighbours, of_turns_before, summed, of_other_extents]


@pytest.mark.parametrize("program", DEPENDENT, ids=lambda p: p.name)
def test_turns_that_need_each_other_stay(program) -> None:
    assert not spread(program)


@pytest.mark.parametrize("program", [*DEPENDENT, reads_all], ids=lambda p: p.name)
def test_they_are_as_numpy(program) -> None:
    wanted = program.eager(**given(5))
    image = spmd.build(program)
    for ranks in RANKS:
        out = image.run(ranks=ranks, **given(5))
        pairs = zip(out, wanted) if isinstance(wanted, tuple) else [(out, wanted)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{ranks} ranks")
