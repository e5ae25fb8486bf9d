"""Copy elision: what is computed in the part of an array that it is stored in, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower

F64 = np.float64
ROWS, N = 6, 40


def start(m):
    """Return weights, gradients and rows of two moments each, of any rows."""
    i, j = np.arange(m)[:, None], np.arange(N)
    return (i * 3 + j) % 7 / 4.0, (i + 2 * j) % 5 / 3.0, (i * j) % 11 / 8.0


def adam(w, g, m, s):
    """Update row s of weights by its gradient; both moments lie in row s of m."""
    first = 0.9 * m[s, :N] + 0.1 * g[s]
    second = 0.99 * m[s, N:] + 0.01 * g[s] * g[s]
    w[s] = w[s] - 0.1 * first / (np.sqrt(second) + 1e-3)
    m[s, :N] = first
    m[s, N:] = second


def second_first(w, g, m, s):
    """The parts are stored in another order than they are made."""
    first = 0.9 * m[s, :N] + 0.1 * g[s]
    second = 0.99 * m[s, N:] + 0.01 * g[s] * g[s]
    m[s, N:] = second
    m[s, :N] = first
    w[s] = w[s] - 0.1 * first / (np.sqrt(second) + 1e-3)


def read_behind(w, g, m, s):
    """The values are read once they are stored."""
    first = 0.9 * m[s, :N] + 0.1 * g[s]
    m[s, :N] = first
    second = m[s, N:] - first * first
    m[s, N:] = second
    w[s] += first * second


def unlike_shapes(w, g, m, s):
    """A matrix is stored as a row."""
    a = np.sqrt(g[s].reshape(8, 5) + 1)
    b = a * m[s, N:].reshape(8, 5)
    w[s] = (a - b).reshape(-1)
    m[s, :N] = a.reshape(-1)
    m[s, N:] = b.reshape(-1)


def crossed(w, g, m, s):
    """Each part is made of the other one: none can be written before both are made."""
    first = 0.5 * m[s, N:] + g[s]
    second = 0.5 * m[s, :N] - g[s]
    w[s] = first * second
    m[s, :N] = first
    m[s, N:] = second


def shifted(w, g, m, s):
    """A part is made of elements beside it."""
    first = m[s, 1:N + 1] + g[s]
    w[s] = first * first
    m[s, :N] = first


def old_read_behind(w, g, m, s):
    """Reads the old value after the new one is computed and before it is stored."""
    first = 0.9 * m[s, :N] + g[s]
    w[s] = np.cumsum(m[s, :N]) * first
    m[s, :N] = first


def overwritten(w, g, m, s):
    """The value is read after others have been stored over it."""
    first = np.sqrt(m[s, :N] + g[s])
    m[s, :N] = first
    m[s, :N] = np.cumsum(first)
    w[s] = np.cumsum(first[::-1])


def another_row(w, g, m, s):
    """Meanwhile a row is read that may be the same one."""
    first = np.sqrt(m[s, :N] + g[s])
    w[s] = first + m[(s + 1) % 2 + s - s % 2, :N]
    m[s, :N] = first * 1
    w[s] += first


def kept_whole(w, g, m, s):
    """The array as it was is read behind it."""
    before = m.copy()
    first = np.sqrt(m[s, :N] + g[s])
    m[s, :N] = first
    w[s] = first + before[s, :N] + before[s, N:]


def leaves(w, g, m, s):
    """Stores all first moments before all second ones, as optimizers of trees do."""
    cuts = 0, 7, 20, N
    new = []
    for a, b in zip(cuts[:-1], cuts[1:]):
        new.append((0.9 * m[s, a:b] + 0.1 * g[s, a:b],
                    0.99 * m[s, N + a:N + b] + 0.01 * g[s, a:b] ** 2))
    for a, b, (first, second) in zip(cuts[:-1], cuts[1:], new):
        w[s, a:b] -= np.sum(g[s]) * first / (np.sqrt(second) + 1e-3)
    for a, b, (first, _) in zip(cuts[:-1], cuts[1:], new):
        m[s, a:b] = first
    for a, b, (_, second) in zip(cuts[:-1], cuts[1:], new):
        m[s, N + a:N + b] = second


def padded(w, g, m, s):
    """An array of the turn, whose edges are made of its inner elements."""
    row = np.zeros(N + 2)
    row[1:-1] = w[s]
    ends = np.sqrt(row[1:3] ** 2 + 1)
    row[0:2] = ends
    row[-1] = row[-2]
    w[s] = row[:-2] + row[2:] + np.sum(ends) + g[s]
    inner = np.sqrt(np.abs(row[4:20]))
    row[20:36] = inner
    m[s, :N] = row[1:-1] + np.sum(inner)


IN_PLACE = [adam, unlike_shapes, leaves]
EITHER = [second_first, read_behind, padded]
NOT = [crossed, shifted, old_read_behind, overwritten, another_row, kept_whole]


def program_of(step, turns=3):
    @spmd.program(mesh=("r",))
    def rows():
        w = spmd.input("w", (ROWS, N), F64, layout=("r", None))
        g = spmd.input("g", (ROWS, N), F64, layout=("r", None))
        m = spmd.input("m", (ROWS, 2 * N), F64, layout=("r", None))

        @spmd.shard_map(mesh="r", out_layouts=(("r", None), ("r", None)))
        def local(w, g, m):
            w, m = w.copy(), m.copy()
            for _ in spmd.range(turns):
                for s in spmd.range(w.shape[0]):
                    step(w, g, m, s)
            return w, m

        return local(w, g, m)

    return rows


def wanted(step, ranks, turns=3):
    """Return what NumPy computes, block by block."""
    w, g, m = start(ROWS)
    m = np.concatenate([m, m[:, ::-1]], axis=1)
    blocks = [[x.copy() for x in part] for part in zip(
        *(np.array_split(x, ranks) for x in (w, g, m)), strict=True)]
    for w, g, m in blocks:
        for _ in range(turns):
            for s in range(len(w)):
                step(w, g, m, s)
    return [np.concatenate([b[k] for b in blocks]) for k in (0, 2)]


def temporaries(program) -> int:
    """Return how many buffers have room for a row, or for an array, beside inputs and outputs."""
    plan = lower(program.graph({})).plan
    whole = {a.buffer for a in (*plan.inputs, *plan.outputs)}
    return sum(b not in whole and (not b.capacity.is_const or b.capacity.value >= N)
               for b in plan.buffers)


@pytest.mark.parametrize("step", IN_PLACE + EITHER + NOT, ids=lambda f: f.__name__)
def test_rows_beside_numpy(step):
    image = spmd.build(program_of(step))
    w, g, m = start(ROWS)
    m = np.concatenate([m, m[:, ::-1]], axis=1)
    for ranks in (1, 3, 5):
        if ranks == 5 and step is another_row:
            continue  # rows in pairs
        for found, want in zip(image.run(ranks=ranks, w=w, g=g, m=m), wanted(step, ranks)):
            np.testing.assert_allclose(found, want, rtol=1e-12, err_msg=f"{ranks} ranks")


@pytest.mark.parametrize("step", IN_PLACE, ids=lambda f: f.__name__)
def test_values_need_no_memory_of_their_own(step):
    assert temporaries(program_of(step)) == 0


@pytest.mark.parametrize("step", NOT, ids=lambda f: f.__name__)
def test_values_that_are_needed_apart_have_memory(step):
    assert temporaries(program_of(step)) > 0


def test_values_that_are_outputs_too():
    """They are read behind all ops, though the body of a program has no results."""
    @spmd.program(mesh=("r",))
    def returned():
        x, y, z = (spmd.input(name, (3, N), F64) for name in "xyz")
        row = np.cumsum(x[0]) + y[0]
        first = z.copy()
        y[2] = row
        z[0] = y[0] + 1
        return first, y, z, row

    x, y, z = (np.arange(3.0 * N).reshape(3, N) % k for k in (5, 7, 11))
    image = spmd.build(returned)
    for ranks in (1, 3):
        found = image.run(ranks=ranks, x=x, y=y, z=z)
        for array, wanted in zip(found, returned.eager(x=x, y=y, z=z), strict=True):
            np.testing.assert_array_equal(array, wanted)


def test_two_copies_of_an_array_that_is_read_behind():
    """Both begin as it is, in one nest; neither may be written over it."""
    @spmd.program(mesh=("r",))
    def copies():
        x, y = (spmd.input(name, (6, N), F64, layout=(None, None)) for name in "xy")
        row = np.tanh(y[1] * 2 + x[3])
        sums = np.cumsum(row) * np.sum(row)
        first, second = x.copy(), x.copy()
        first[0] = y[0] * 2
        second[0] = y[0] * 3
        first[1] = row
        return first, second, np.cumsum(x, axis=0), sums

    x, y = np.arange(6.0 * N).reshape(6, N) % 11, np.arange(6.0 * N).reshape(6, N) % 7
    image = spmd.build(copies)
    for ranks in (1, 3):
        found = image.run(ranks=ranks, x=x, y=y)
        for array, wanted in zip(found, copies.eager(x=x, y=y), strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-12)


def test_an_array_that_begins_as_another_still_does():
    """A later array, into which something is computed, begins as it."""
    @spmd.program(mesh=("r",))
    def begun():
        a, b = (spmd.input(name, (5, N), F64, layout=(None, None)) for name in "ab")
        b[4, 2:6] = a[0, :4]
        row = a[1] * 3 + b[2]
        total = np.cumsum(row)
        first, second = b.copy(), b.copy()
        first[3], second[3] = a[4] * 2, a[4] * 3
        b[-1] = row
        return b, first, second, total

    a, b = (np.arange(5.0 * N).reshape(5, N) % k + 1 for k in (5, 7))
    image = spmd.build(begun)
    for ranks in (1, 3):
        found = image.run(ranks=ranks, a=a, b=b)
        for array, wanted in zip(found, begun.eager(a=a, b=b), strict=True):
            np.testing.assert_array_equal(array, wanted)
