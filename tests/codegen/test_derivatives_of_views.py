"""Derivatives of functions whose results are views, of every kind: grad, value_and_grad, vjp, jvp,
and jvp of grad, beside differences; eager, built, in a shard_map, on 1, 3 and 5 ranks."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import spmd
from codegen.errors import InternalError
from codegen.oracle import interpret
from codegen.trace.context import require_context
from codegen.trace.derive.derivatives import _Recording

# mypy: ignore-errors

ROWS = 15  # each rank takes its first one
X = np.linspace(-0.8, 0.9, ROWS * 6).reshape(ROWS, 2, 3)
V = np.cos(np.arange(6.0)).reshape(2, 3)
A = np.linspace(0.5, 1.5, 6).reshape(3, 2)
KERNEL = np.linspace(-1, 1, 12).reshape(2, 3, 2)
TALL = np.array([[3.0, 0], [1, 4], [0, 2]])
HEADS = np.linspace(-1, 1, 12).reshape(3, 2, 2)


def written(x):
    y = x * x
    z = y.T
    y[0] = x[1] * 3
    z[1:] *= 2
    return z


def written_around(x):
    w = np.zeros((2, 3))
    w[:, 1:] = x[:, 1:] ** 2
    w[0] += x[1]
    return w.T[1:]


def chosen(x):
    y = x * x
    return y[:, np.argmax(y[0])]


def traced(x):
    return isinstance(x, spmd.Array)


def looped(x):
    y = x * 1
    for _ in spmd.range(2) if traced(x) else range(2):
        y = (y * y + x).reshape(3, 2).T.reshape(2, 3)
    return y[0]


def branched(x):
    y = x * x
    if y[0, 0] > 0.1:
        z = y.T
    else:
        z = (2 * y).T
    return z[::-1]


def convolved(x):
    """Return, by NumPy, the result of nn.conv for one row of 3 channels."""
    padded = np.concatenate([x, np.zeros((1, 3))])
    return np.stack([padded[0] @ KERNEL[0] + padded[1] @ KERNEL[1], x[1] @ KERNEL[0]])


VIEWS = {
    "itself": lambda x: x,
    "its T": lambda x: x.T,
    "T": lambda x: (x * x).T,
    "slice": lambda x: (x * x)[:, 1:],
    "row": lambda x: (x * x)[0],
    "element": lambda x: (x**3)[1, 2],
    "back to front": lambda x: (x * x)[::-1, ::2],
    "newaxis": lambda x: (x * x)[:, None],
    "chosen": chosen,
    "reshape": lambda x: (x * x).reshape(3, 2),
    "ravel": lambda x: np.ravel(x**3),
    "squeeze": lambda x: np.squeeze(np.sum(x**2, axis=0, keepdims=True)),
    "one float": lambda x: np.squeeze(np.sum(x**3, keepdims=True)),
    "reshaped to one": lambda x: np.sum(x**3, keepdims=True).reshape(()),
    "expand_dims": lambda x: np.expand_dims(x * x, 1),
    "swapaxes": lambda x: np.swapaxes(x * x, 0, 1),
    "moveaxis": lambda x: np.moveaxis((x * x)[None], 0, -1),
    "broadcast": lambda x: np.broadcast_to((x * x)[0], (2, 3)),
    "diagonal": lambda x: np.diagonal(x * x),
    "diag": lambda x: np.diag((x * x) @ A),
    "real": lambda x: ((x + 2j) ** 3).real,
    "imag": lambda x: ((x * (1 + 2j)) ** 2).imag,
    "written": written,
    "written around": written_around,
    "view of a view": lambda x: (x * x).T[1:].reshape(-1)[::2],
    "flip": lambda x: np.flip(x * x, 1),
    "rot90": lambda x: np.rot90(x * x),
    "split": lambda x: np.split(x * x, 3, axis=1),
    "unpacked": lambda x: tuple(x * x),
    "nested": lambda x: {"a": (x * x).T, "b": [x[0] * 2, (x**3)[1, 1]]},
    "looped": looped,
    "branched": branched,
    "product by a vector": lambda x: x @ (x[0] * 2),
    "product of three": lambda x: np.linalg.multi_dot([x, A, x[:, :2]]),
    "tensordot": lambda x: np.tensordot(x, x, ([1], [1]))[0],
    "einsum": lambda x: np.einsum("ij,ij->i", x, x),
    "outer": lambda x: np.outer(x[0], x[1]).T,
    "conv": lambda x: spmd.nn.conv(x[None], KERNEL)[0] if traced(x) else convolved(x),
    "dense with heads": lambda x: spmd.nn.dense(x, HEADS),
    "logsumexp": lambda x: spmd.nn.logsumexp(x),
    "lstsq": lambda x: np.linalg.lstsq(TALL + x.T, x[0], rcond=None)[0],
    "solve": lambda x: np.linalg.solve(np.eye(2) * 3 + x[:, :2], x[:, 2]),
    "scalar": lambda x: (x * x).mean(),
}
ENDS = [np.squeeze, lambda s: s.reshape(()), lambda s: s[0, 0], lambda s: s.T.real[0].reshape(())]


def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    return sum(map(leaves, x), []) if isinstance(x, (tuple, list)) else [x]


def filled(like, numbers):
    """The structure of an object, with these arrays."""
    if isinstance(like, dict):
        return {k: filled(x, numbers) for k, x in like.items()}
    if isinstance(like, (tuple, list)):
        return type(like)([filled(x, numbers) for x in like])
    return next(numbers)


def loss_of(name):
    """One float that depends on all that the function returns, and is a view itself."""
    end = ENDS[list(VIEWS).index(name) % len(ENDS)]

    def loss(x):
        made = leaves(VIEWS[name](x))
        total = sum(np.sum(weight(y) * y * y) for y in made)
        return end(np.reshape(total, (1, 1)))

    return loss


def weight(y):
    return np.cos(np.arange(y.size)).reshape(y.shape) if y.ndim else 0.7


def derivatives(name, x):
    """All of them, in one vector."""
    f, loss = VIEWS[name], loss_of(name)
    value, gradient = spmd.value_and_grad(loss)(x)
    made, back = spmd.vjp(f, x)
    again, change = spmd.jvp(f, (x,), (V,))
    cotangents = filled(made, iter([weight(y) + 0 * y for y in leaves(made)]))
    out = [value, gradient, spmd.grad(loss)(x), *back(cotangents),
           spmd.jvp(spmd.grad(loss), (x,), (V,))[1],
           *leaves(made), *leaves(again), *leaves(change)]
    if len(leaves(made)) == 1 and not leaves(made)[0].ndim:
        out.append(spmd.grad(f)(x))
    return np.concatenate([np.ravel(y) for y in out])


def numbers(name, x):
    f = VIEWS[name]
    return np.concatenate([np.ravel(y) for y in leaves(f(x))])


def jacobian(f, x, step=1e-4):
    """By differences of the fourth order."""
    columns = []
    for h in np.eye(x.size).reshape(-1, *x.shape) * step:
        near, far = f(x + h) - f(x - h), f(x + 2 * h) - f(x - 2 * h)
        columns.append((8 * near - far) / (12 * step))
    return np.stack(columns, -1).reshape(*np.shape(columns[0]), *x.shape)


@functools.cache
def expected(name, row):
    """The same as derivatives(), of NumPy's values."""
    x = X[row]

    def gradient(x):
        return jacobian(loss_of(name), x)

    made = leaves(VIEWS[name](x))
    slopes = jacobian(lambda x: numbers(name, x), x)
    weights = np.concatenate([np.ravel(weight(np.asarray(y))) for y in made])
    parts = np.split(np.tensordot(slopes, V, 2), np.cumsum([np.size(y) for y in made])[:-1])
    change = [p.reshape(np.shape(y)) for p, y in zip(parts, made)]
    g = gradient(x)
    out = [loss_of(name)(x), g, g, np.tensordot(weights, slopes, 1),
           np.tensordot(jacobian(gradient, x, 1e-3), V, 2), *made, *made, *change]
    if len(made) == 1 and not np.ndim(made[0]):
        out.append(slopes[0])
    return np.concatenate([np.ravel(y) for y in out])


FIRST = {1: [0], 3: [0, 5, 10]}  # of each rank, by how many there are
NAMES = [list(VIEWS)[k::3] for k in range(3)]


def packed(names):
    """A program of these functions: of a global array, of the same on all ranks, of each rank's."""

    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (ROWS, 2, 3), np.float64, layout=("r", None, None))
        one = spmd.input("one", (2, 3), np.float64, layout=("r", None))

        def alike(x):
            return [derivatives(name, x) for name in names]

        def own(x):
            return [derivatives(name, x[0])[None] for name in names]

        same = spmd.shard_map(alike, mesh="r", in_layouts=spmd.replicated,
                              out_layouts=spmd.replicated)(one)
        each = spmd.shard_map(own, mesh="r", out_layouts=("r", None))(x)
        return {f"{mode}{k}": y for mode, made in (("global", alike(one)), ("same", same),
                                                   ("each", each)) for k, y in enumerate(made)}

    return program


def check(found, names, ranks, first):
    for k, name in enumerate(names):
        for mode in ("global", "same"):
            np.testing.assert_allclose(found[f"{mode}{k}"], expected(name, 0), 1e-6, 1e-7,
                                       err_msg=f"{name} {mode} {ranks}")
        for y, row in zip(found[f"each{k}"], first, strict=True):
            np.testing.assert_allclose(y, expected(name, row), 1e-6, 1e-7,
                                       err_msg=f"{name} of row {row} of {ranks} ranks")


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_results_that_are_views_are_differentiated(names):
    program = packed(names)
    graph = program.capture()
    for ranks, first in FIRST.items():
        found = interpret.run(graph, {"r": ranks}, {"x": X, "one": X[0]})
        check(found, names, ranks, first)
    check(program.eager(ranks=3, x=X, one=X[0]), names, "eager", FIRST[3])


def test_a_value_that_was_not_recorded_is_refused():
    """It would have a gradient of zero."""

    @spmd.program
    def program():
        context = require_context("the test")
        recording = _Recording(context, "spmd.vjp", [spmd.asarray(X[0])], (0,))
        (y, _), (out,) = recording.run(lambda x: x * x, {}, recording.leaves)
        recording.back([(out, recording.reverse.full(1, out))])
        late = y.T.read()
        recording.back([(late, recording.reverse.full(1, late))])

    with pytest.raises(InternalError, match="a value that its recording has not seen"):
        program.capture()
