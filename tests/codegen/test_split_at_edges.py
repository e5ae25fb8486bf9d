"""Arrays in pieces: which loops run over the inside of a grid, and that nothing else changes."""

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.graph.split_at_edges import split_at_edges
from codegen.ir.graph import walk
from codegen.ir.plan import Loop, Phase, Store
from codegen.ir.steps import walk_steps

N = 20


def laplacian(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


def leapfrog(u, p):
    new = 2 * u - p
    new[1:-1, 1:-1] += laplacian(u) / 8
    return new, u


def with_a_rim(u, p):
    new = 2 * u - p
    new[1:-1, 1:-1] += laplacian(u) / 8
    new[0], new[:, 0] = 1, 2
    return new, u


def padded_with_zeros(u, p):
    around = np.zeros_like(u)
    around[1:-1, 1:-1] = laplacian(u)
    return u + around / 8, p


def several_times(u, p):
    new = u * 0.5
    new[1:-1, 1:-1] += laplacian(u) / 8
    new[1:-1, 1:-1] *= 0.5
    return 1 + new * 2, p


def two_of_them(u, p):
    a, b = np.zeros_like(u), np.ones_like(u)
    a[1:-1, 1:-1] = laplacian(u)
    b[1:-1, 1:-1] = laplacian(p)
    return a - b / 4, a * 0 + u


def one_side(u, p):
    new = u + p
    new[:-3] -= u[3:]
    return new / 2, u


def read_beside(u, p):
    new = 2 * u - p
    new[1:-1, 1:-1] = new[2:, 1:-1] - new[:-2, 1:-1]
    return new / 4, u


def read_whole(u, p):
    new = 2 * u - p
    old = new + 0
    new[1:-1, 1:-1] += laplacian(u) / 8
    return new, np.sqrt(old * old + u)


def thick(u, p):
    new = 2 * u - p
    new[18:, :] += u[:2, :]
    return new / 4, u


def strided(u, p):
    new = 2 * u - p
    new[::2] += u[1::2]
    return new / 4, u


def slice_kept(u, p):
    new = 2 * u - p
    old = new[1:-1, 1:-1].copy()
    new[1:-1, 1:-1] += laplacian(u) / 8
    for _ in spmd.range(2):
        new[1:-1, 1:-1] += old
    p = p + 0
    p[1:-1, 1:-1] = old
    return new / 4, p


def of_other_boxes(u, p):
    a, b = np.zeros_like(u), np.zeros_like(u)
    a[1:-1, 1:-1] = u[1:-1, 1:-1]
    b[2:, 2:] = p[2:, 2:]
    both = a + b
    both[:-2, :-2] += 1
    return both / 2, u


def of_sums(u, p):
    total = np.sum(u, axis=1) + np.sum(p, axis=1)
    total[1:-1] += 1
    return u - total / 40, p
def with_other_rims(u, p):
    a, b = 2 * u, 3 * p
    a[1:-1, 1:-1] += laplacian(u)
    b[2:-2] -= u[:-4]
    new = a - b
    new[1:-1, 1:-1] += laplacian(p)
    return new / 8, u


INSIDE = [leapfrog, with_a_rim, padded_with_zeros, several_times]
WHOLE = [of_sums, read_beside, read_whole, thick, strided]


def program_of(step, turns=3, n=N):
    @spmd.program(mesh=("x", "y"))
    def program():
        u = spmd.input("u", (n, n), layout=("x", "y"), default=lambda i, j: (i * 3 + j * j) % 7)
        p = u * 0.5
        for _ in spmd.range(turns):
            u, p = step(u, p)
        return {"u": u, "p": p}

    return program


@pytest.mark.parametrize("step", INSIDE, ids=lambda f: f.__name__)
def test_one_loop_over_the_inside(step):
    """In one rank's plan, the loops of the body visit each point of the grid once, except edges
    that are written again."""
    plan = lower(program_of(step).capture()).plan
    (loop,) = [s for s in plan.steps if isinstance(s, Loop)]
    alone = {"n_x": 1, "n_y": 1, "i_x": 0, "i_y": 0}
    points = 0
    for phase in (s for s in walk_steps(loop.body) if isinstance(s, Phase)):
        for w in phase.work:
            assert isinstance(w, Store)
            extents = [v.extent.evaluate(alone) for v in w.loops]
            points += int(np.prod(extents))
    assert N * N <= points <= N * N + 2 * N


@pytest.mark.parametrize("step", WHOLE, ids=lambda f: f.__name__)
def test_not_split(step):
    graph = program_of(step).capture()
    assert split_at_edges(graph).body.ops == graph.body.ops


@pytest.mark.parametrize("n", [N, 5, 3, 2])
def test_the_same_results(n):
    steps = [*INSIDE, slice_kept, of_other_boxes, of_sums, with_other_rims, two_of_them, one_side,
             read_beside, read_whole][: None if n > 3 else 5]

    @spmd.program(mesh=("x", "y"))
    def program():
        out = {}
        for step in steps:
            u = spmd.input(step.__name__, (n, n), layout=("x", "y"),
                           default=lambda i, j: (i * 3 + j * j) % 7)
            p = u * 0.5
            for _ in spmd.range(3):
                u, p = step(u, p)
            out |= {f"{step.__name__}_u": u, f"{step.__name__}_p": p}
        return out

    image, expected = spmd.build(program), program.eager()
    for ranks in (1, 2, 6):
        found = image.run(ranks=ranks)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-12, err_msg=name)


def test_results_that_are_pieces_or_computed_of_them():
    @spmd.program(mesh=("x",))
    def program(n: int = 12):
        u = spmd.input("u", (n, n), layout=("x", None), default=lambda i, j: i * 3 + j)
        new = 2 * u - 1
        inside = new[1:-1].copy()
        new[1:-1] += u[2:]
        padded = np.zeros_like(u)
        padded[1:] = u[:-1]
        return {"inside": inside, "new": new, "beside": u * 3, "padded": padded * 2,
                "again": inside[1:] + 1}

    found = spmd.build(program).run(ranks=3)
    for name, values in program.eager().items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, err_msg=name)


def test_what_is_used_twice_is_looked_at_once():
    @spmd.program(mesh=("x",))
    def program(n: int = 12):
        u = spmd.input("u", (n,), layout=("x",), default=lambda i: i / n)
        new = u
        for _ in range(60):
            new = new * new + 0.1
        new[1:-1] += u[2:]
        return new

    found = spmd.build(program).run(ranks=2)
    np.testing.assert_allclose(found, program.eager(), rtol=1e-12)


def test_no_op_is_left_over():
    graph = split_at_edges(program_of(leapfrog).capture())
    (loop,) = [op for op in graph.body.ops if op.kind.name == "loop"]
    whole = [op for op in walk(loop.regions[0]) if op.kind.name == "map"
             and op.result.type.shape == loop.results[0].type.shape]
    assert not whole
