"""What shares a loop: how many loops a program takes, and which values need memory."""

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.passes.fuse import LARGEST
from codegen.plan import Apply, Keep, Nest, Phase, Reduce, Store
from codegen.steps import walk_steps

F64 = np.float64


def work_of(program, **parameters):
    """What the program itself computes: the defaults of its inputs are left out."""
    plan = lower(program.capture(**parameters)).plan
    inside = [s for s in plan.steps if type(s).__name__ != "Default"]
    return plan, [w for s in walk_steps(inside) if isinstance(s, Phase) for w in s.work]


def vector(name, n=40):
    return spmd.input(name, (n,), F64, layout=("r",), default=lambda i: i * i % 7 / 4)


def matrix(name, n=20, m=17):
    return spmd.input(name, (n, m), F64, layout=("r", None), default=lambda i, j: (i * j) % 5 / 4)


def used_twice(a, b, x, p):
    d = a - b
    return np.sqrt(d * d + 1) * d


def sines(a, b, x, p):
    s = np.sin(a)
    return s * s + s


def two_results(a, b, x, p):
    d = np.exp(a - b)
    return d + 1, d * a


def moments(a, b, x, p):
    return np.sum(a), np.sum(a * a), np.max(a)


def softmax(a, b, x, p):
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def normalised(a, b, x, p):
    mean, var = np.mean(x, axis=1, keepdims=True), np.var(x, axis=1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5)


def rows_and_columns(a, b, x, p):
    y = np.sin(x)
    return np.sum(y, axis=0), np.max(y, axis=1)


def all_pairs(a, b, x, p):
    d = p[:, None] - p
    r2 = np.sum(d * d, axis=2) + 0.01
    return np.sum(d / (r2 * np.sqrt(r2))[:, :, None], axis=1)


def program_of(function):
    @spmd.program(mesh=("r",))
    def program():
        return function(vector("a"), vector("b"), matrix("x"), matrix("p", 20, 3))

    return program


ONE_NEST = {  # buffers, the four inputs not among them; turns over the data
    used_twice: (1, 1), sines: (1, 1), two_results: (2, 1), moments: (6, 1), softmax: (1, 3),
    normalised: (1, 3), rows_and_columns: (3, 1), all_pairs: (2, 2),
}  # fmt: skip


@pytest.mark.parametrize("function", ONE_NEST, ids=lambda f: f.__name__)
def test_one_nest(function):
    plan, work = work_of(program_of(function))
    buffers, turns = ONE_NEST[function]
    nests = [w for w in work if isinstance(w, Nest)]
    assert len(nests) == len(work) == 1
    assert len([s for s in nests[0].sweeps if s.loops]) == turns
    assert len(plan.buffers) - 4 <= buffers


def test_nests_compute_what_numpy_does():
    def everything(*arrays):
        return {f.__name__: f(*arrays) for f in ONE_NEST}

    program = program_of(everything)
    image, expected = spmd.build(program), program.eager()
    for ranks in (1, 3):
        out = image.run(ranks=ranks)
        for name, values in expected.items():
            np.testing.assert_allclose(np.concatenate([np.ravel(v) for v in out[name]]),
                                       np.concatenate([np.ravel(v) for v in values]), rtol=1e-12,
                                       atol=1e-12, err_msg=name)  # fmt: skip


def applied(node, fn):
    inside = sum(applied(a, fn) for a in node.args) if isinstance(node, Apply) else 0
    return inside + (isinstance(node, Apply) and node.fn == fn)


@pytest.mark.parametrize(("function", "fn"), [
    (sines, "sin"), (two_results, "exp"), (softmax, "exp"), (rows_and_columns, "sin"),
    (all_pairs, "sqrt"),
])  # fmt: skip
def test_what_is_dear_is_computed_once(function, fn):
    _, work = work_of(program_of(function))
    assert sum(applied(p.value, fn) for w in work for p in w.parts) == 1


def test_what_is_stretched_is_computed_once_with_all_it_is_made_of():
    @spmd.program(mesh=("r",))
    def scaled():
        w = spmd.input("w", (17,), layout=(None,), default=np.ones(17))
        return matrix("x") * (np.exp(w) + 1)

    _, work = work_of(scaled)
    (once,) = [w for w in work if applied(w.value, "exp")]
    assert len(once.loops) == 1


def test_equal_reductions_are_one():
    """np.var computes a mean of its own."""
    _, (nest,) = work_of(program_of(normalised))
    assert [p.fn for p in nest.parts if isinstance(p, Keep) and p.fn] == ["add", "add"]


def test_what_is_read_elsewhere_is_no_part():
    """A neighbour's element is not there yet, and all of a column's sum only after the last row."""

    @spmd.program(mesh=("r",))
    def neighbours():
        x = spmd.input("x", (9, 17), F64, layout=(None, None), default=lambda i, j: (i * j) % 5)
        y = np.sin(x)
        z = y[:, 1:] * y[:, :-1]
        return z, np.cos(x) - np.sum(x, axis=0)

    _, work = work_of(neighbours)
    assert len(work) == 3
    nests = [w for w in work if isinstance(w, Nest)]
    assert len(nests) == 1 and any(isinstance(p, Reduce) for p in nests[0].parts)
    for found, expected in zip(spmd.build(neighbours).run(ranks=2), neighbours.eager()):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_is_overwritten_in_place_was_read_before():
    @spmd.program(mesh=("r",))
    def steps(n: int = 5):
        x, v = vector("x"), vector("v")
        for _ in spmd.range(n):
            r = np.roll(x, 1)
            a = np.tanh(x - r)
            x, v = x + 0.5 * v * a, v - a * x
        return x, v

    image = spmd.build(steps)
    for ranks in (1, 4):
        for found, expected in zip(image.run(ranks=ranks), steps.eager(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_nests_are_bounded():
    @spmd.program(mesh=("r",))
    def unrolled(n: int = 300):
        x = vector("x")
        for k in range(n):
            x = x * x * 0.25 + k % 3
        return x

    _, work = work_of(unrolled)
    nests = [w for w in work if isinstance(w, Nest)]
    assert max(sum(_size(p.value) for p in w.parts) for w in nests) <= LARGEST
    assert len(work) <= 3 * 300 / LARGEST * 1.5


def _size(node):
    return 1 + sum(_size(a) for a in node.args) if isinstance(node, Apply) else 0


def test_stores_only_what_leaves():
    _, (nest,) = work_of(program_of(two_results))
    assert len([p for p in nest.parts if isinstance(p, Store)]) == 2
