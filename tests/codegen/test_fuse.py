"""What shares a loop: how many loops a program takes, and which values need memory."""

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.plan import Apply, LocalValue, Nest, Phase, Reduce, Store
from codegen.ir.plan_text import loops_text
from codegen.ir.steps import walk_steps
from codegen.loops.fuse import LARGEST

F64 = np.float64


def work_of(program, **parameters):
    """Return the Plan and the works of a program, without the defaults of its inputs."""
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


def vectors(a, b, x, p):
    return x @ b[:17], p[:, 0] @ x


def chained(a, b, x, p):
    return (x @ b[:17]) @ x


def program_of(function):
    @spmd.program(mesh=("r",))
    def program():
        return function(vector("a"), vector("b"), matrix("x"), matrix("p", 20, 3))

    return program


ONE_NEST = {  # buffers, the four inputs not among them; turns over the data
    used_twice: (1, 1), sines: (1, 1), two_results: (2, 1), moments: (6, 1), softmax: (1, 3),
    normalised: (1, 3), rows_and_columns: (3, 1), all_pairs: (2, 2),
    vectors: (5, 1), chained: (5, 2),
}


def test_rows_of_a_matrix_are_read_together():
    """Four long ones at once; of short ones each by itself, before all four are added up."""
    def program(width):
        @spmd.program(mesh=("r",))
        def two():
            a = spmd.input("a", (30, width), F64, layout=("r", None))
            return (a @ np.ones(width)) @ a

        plan = lower(two.capture()).finished
        work = [w for s in walk_steps(plan.steps) if isinstance(s, Phase) for w in s.work]
        return [[len(s.folds) for s in nest.sweeps if s.loops] for nest in work
                if isinstance(nest, Nest)]

    assert program(4096) == [[4, 0], [1, 0]]
    assert program(100) == [[1, 1, 1, 1, 0], [1, 0]]


@pytest.mark.parametrize("reduced", [np.sum, np.prod, np.min, np.max, np.any, np.all])
def test_columns_are_reduced_beside_a_product(reduced):
    """Terms of rows that are read together are combined, by whatever function."""
    @spmd.program(mesh=("r",))
    def two():
        a = spmd.input("a", (40, 30), F64, default=lambda i, j: np.cos(i * 3.0 + j) * 1.5)
        return reduced(a, axis=0), a @ np.ones(30)

    for one, other in zip(spmd.build(two).run(ranks=2), two.eager(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


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
                                       atol=1e-12, err_msg=name)


def applied(node, fn):
    inside = sum(applied(a, fn) for a in node.args) if isinstance(node, Apply) else 0
    return inside + (isinstance(node, Apply) and node.fn == fn)


@pytest.mark.parametrize(("function", "fn"), [
    (sines, "sin"), (two_results, "exp"), (softmax, "exp"), (rows_and_columns, "sin"),
    (all_pairs, "sqrt"),
])
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
    assert [p.fn for p in nest.parts if isinstance(p, LocalValue) and p.fn] == ["add", "add"]


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


# ---- what is written into parts of arrays --------------------------------------------------------


def stacked(u, v):
    """Stacks three formulas of the same terms, as a person writes it: the terms are computed
    once."""
    total, d = u + v, np.tanh(u - v)
    return np.stack([total * d, total - d, d * d + total])


def joined(u, v):
    d = np.tanh(u * v)
    return np.concatenate([d + u, d - u], axis=1)


def two_arrays(u, v):
    """v is written over, where it was read at the same points."""
    d = np.tanh(u[1:-1, 1:-1] - v[1:-1, 1:-1])
    v[1:-1, 1:-1] += d
    u[1:-1, 1:-1] = d * d
    return u, v


def twice(u, v):
    """The second write reads what the first one wrote, element by element."""
    u[2:-2] = v[2:-2] * 0.5
    u[2:-2] += v[2:-2]
    return u


def every_other(u, v):
    d = np.sin(v[:, :-1:2])
    u[:, :-1:2] = d * d
    u[:, 1::2] = d + 1
    return u


def backwards(u, v):
    d = np.sin(v)
    r = np.zeros_like(v)
    r[:, ::-1] = d * d + d
    return r, d


def still_needed(u, v):
    before, d = u.copy(), np.sin(v[:, :-1])
    u[:, :-1] = d * d
    return u, before, d


TOGETHER = {  # stores of the one nest
    stacked: 3, joined: 2, two_arrays: 2, twice: 2, every_other: 2, backwards: 2, still_needed: 2,
}


def overlapping(u, v):
    d = np.sin(v[:, 2:])
    u[:, 2:] = d
    u[:, :-2] = d + 1
    return u


def overlapping_by_one_column(u, v):
    d = np.sin(v[:, :8])
    u[:, :8] = d * d
    u[:, 7:15] = d
    return u


def read_elsewhere(u, v):
    """A result is read a column further, where the loop comes to it later."""
    d = np.sin(v[:, 2:])
    u[:, 2:] = d * d
    return u, u[:, :-2] * d


def overwritten_elsewhere(u, v):
    d = np.sin(v[:, 2:])
    w = u[:, :-2] * d
    u[:, 2:] = d * d
    return u, w


def read_after_it_is_overwritten(u, v):
    before, d, w = u.copy(), np.sin(v[:, 1:]), np.zeros_like(u)
    u[:, 1:] = d * d
    w[:, 1:] = before[:, 1:] + d
    return u, w


def kept_between(u, v):
    d, w = np.sin(v[:, :8]), np.zeros_like(u)
    w[:, :8] = d
    between = w.copy()
    w[:, 8:16] = d + 1
    return w, between


def rows_wait(u, v):
    """Reads neighbours before they are overwritten, so that it needs a loop of its own, row by
    row."""
    d, w = np.sin(v[:, 1:]), np.zeros_like(u)
    w[:, 1:] = d * d
    u[:, 1:] = u[:, :-1] + d
    return u, w


def other_loops(u, v):
    d = u * 2 - v
    d[1:-1, 1:-1] += u[1:-1, 1:-1]
    return d


APART = (
    overlapping, overlapping_by_one_column, read_elsewhere, overwritten_elsewhere,
    read_after_it_is_overwritten, kept_between, rows_wait, other_loops,
)


def writing(*functions):
    """Each function has arrays of its own: it writes them."""

    @spmd.program(mesh=("r",))
    def program():
        return {f.__name__: f(matrix(f"{f.__name__}_u"), matrix(f"{f.__name__}_v"))
                for f in functions}

    return program


def written(function):
    """By each loop, in a program on the shards of several ranks: the stores that share it."""
    plan, work = work_of(writing(function))
    return plan, [
        [p for p in (w.parts if isinstance(w, Nest) else [w]) if isinstance(p, Store)]
        for w in work
    ]


@pytest.mark.parametrize("function", TOGETHER, ids=lambda f: f.__name__)
def test_parts_of_arrays_in_one_nest(function):
    plan, loops = written(function)
    assert max(len(stores) for stores in loops) == TOGETHER[function]
    assert not [b for b in plan.buffers if b.name in ("d", "total")]


@pytest.mark.parametrize("function", APART, ids=lambda f: f.__name__)
def test_parts_that_disturb_each_other_have_loops_of_their_own(function):
    _, loops = written(function)
    for stores in loops:
        arrays = [s.buffer.name.split("_")[-1] for s in stores]
        assert not {"u", "w"} <= set(arrays) and len(set(arrays)) == len(arrays), arrays


def test_parts_compute_what_numpy_does():
    program = writing(*TOGETHER, *APART)
    image, expected = spmd.build(program), program.eager()
    for ranks in (1, 2, 3):
        out = image.run(ranks=ranks)
        for name, values in expected.items():
            several = isinstance(values, tuple)
            for found, wanted in zip(out[name] if several else [out[name]],
                                     values if several else [values], strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-12, err_msg=f"{name}, {ranks}")


def test_a_collision_of_nine_directions_is_one_loop():
    """Lattice Boltzmann's collision stores once per direction; no intermediate array is stored."""

    @spmd.program(mesh=("r",))
    def collide(n: int = 6):
        f = spmd.input("f", (9, n, 8), F64, layout=(None, "r", None),
                       default=lambda k, i, j: (k * i + j) % 7 + 1)
        for _ in spmd.range(3):
            g = [f[k] for k in range(9)]
            rho = sum(g)
            ux, uy = (g[1] - g[3] + g[5]) / rho, (g[2] - g[4] + g[6]) / rho
            usq = 1.5 * (ux * ux + uy * uy)
            out = []
            for k in range(9):
                cu = 3.0 * (k % 3 * ux + k % 2 * uy)
                out.append(g[k] + 0.1 * (rho * (1 + cu + 0.5 * cu * cu - usq) - g[k]))
            f = np.stack(out)
        return f

    plan, work = work_of(collide)
    nest = next(w for w in work if isinstance(w, Nest))
    assert len([p for p in nest.parts if isinstance(p, Store)]) == 9
    assert len(work) == 1 and len(plan.buffers) == 2  # which change places
    assert "#pragma omp simd" in lower(collide.capture()).source.text
    image = spmd.build(collide)
    for ranks in (1, 3):
        np.testing.assert_allclose(image.run(ranks=ranks), collide.eager(), rtol=1e-12)


def test_the_way_back_of_pairs_is_one_nest_with_one_power():
    @spmd.program(mesh=("r",))
    def pairs(n: int = 40):
        x = spmd.input("x", (n, 3), np.float64, layout=("r", None))

        def energy(x):
            for _ in spmd.range(5):
                d = x[None, :, :] - x[:, None, :]
                r2 = np.sum(d * d, axis=2) + 0.01
                x = x + np.sum(d * (r2**-1.5)[:, :, None], axis=1)
            return np.sum(x * x)

        return spmd.grad(energy)(x)

    loops = lower(pairs.graph({}, ())).loops
    text = loops_text(loops)
    assert text.count("pow(") == 2  # forward, and once again on the way back
    back = text[text.rindex("  loop "):]
    assert back.count("nest for j0") == 1  # of all that is needed of a pair


def test_turns_that_are_taken_together_write_one_row_of_results():
    """A matrix product makes four results in one turn; a sum into a row in the same loops once
    wrote only the first of four rows."""
    @spmd.program(mesh=("r",))
    def both():
        x = spmd.input("x", (5, 4), F64, layout=(None, "r"))
        w = spmd.input("w", (4, 4), F64, layout=("r", None))
        g = np.cos(x)
        each = np.matmul(g[:, None, :], np.broadcast_to(w.T, (5, 4, 4)))[:, 0]
        return each, np.sum(x[:, :, None] * g[:, None, :], axis=0)

    draw = np.random.default_rng(3)
    x, w = draw.normal(size=(5, 4)), draw.normal(size=(4, 4))
    for ranks in (1, 2):
        each, total = spmd.build(both).run(ranks=ranks, x=x, w=w)
        np.testing.assert_allclose(each, np.cos(x) @ w.T)
        np.testing.assert_allclose(total, x.T @ np.cos(x))
