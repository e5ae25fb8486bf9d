"""Programs on global arrays: layouts and the number of ranks never change what they compute.

Random recipes (hypothesis): the program run as plain NumPy, its Graph, its Program on several
meshes, and, for some, its image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import spmd
from codegen.checks.check_graph import check
from codegen.checks.matching import check as check_matching
from codegen.checks.uniformity import check_uniform
from codegen.dtypes import numpy_dtype
from codegen.graph.sink_allreduce import sink_allreduce
from codegen.graph.split_at_edges import split_at_edges
from codegen.layouts.partition import partition
from codegen.oracle.interpret import run
from codegen.user.numbers import element_type
from tests.programs import global_recipes as recipes

pytestmark = pytest.mark.usefixtures("vectors_cc")

# The profile that tests/conftest.py loads says how many: few, and always the same, or many.
EXAMPLES, SHORT = settings().max_examples, settings().derandomize


def same(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    for name, e in expected.items():
        e, f = np.asarray(e), np.asarray(found[name])
        found_type, wanted = (f.dtype, f.shape), (e.dtype, e.shape)
        assert found_type == wanted, (what, name, found_type, wanted)
        np.testing.assert_allclose(f, e, rtol=1e-9, atol=1e-9, err_msg=f"{what}: {name}")


def expected_of(program: Any, **inputs: Any) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        out: dict[str, Any] = program.eager(**inputs)
    return out


PARTS = 2  # of each search, so that workers share them
PACK = 13  # recipes in an image: most of a build's time does not depend on what is built
RANKS, CHOICE = st.integers(1, 12), st.integers(0, 5)


def search(part: int, count: int, body: Callable[..., None], *drawn: Any) -> None:
    """Always the same programs in a short run; others each time in a long one."""
    searching = settings(max_examples=count, print_blob=False, derandomize=False)
    test = searching(given(*drawn)(body))
    (seed(part)(test) if SHORT else test)()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_recipes(part: int) -> None:
    search(part, EXAMPLES * 7, interpreted, recipes.recipes(), RANKS, CHOICE)


def interpreted(recipe: Any, ranks: int, choice: int) -> None:
    """Without defaults, which cost a fifth of it: those of images are compared."""
    program, inputs = recipes.program_of(recipe, given=True), recipes.inputs_of(recipe)
    expected = expected_of(program, **inputs)
    graph = check(program.capture())
    mesh = recipes.sizes(ranks, recipe.axes, choice)
    same(run(graph, mesh, inputs), expected, "the Graph")
    graph = check(split_at_edges(graph))
    lowered = check_matching(check_uniform(check(sink_allreduce(partition(graph)))))
    same(run(lowered, mesh, inputs), expected, f"the Program over {mesh}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_recipes_as_images(part: int) -> None:
    several = st.lists(RANKS, min_size=3, max_size=3, unique=True)
    search(part, EXAMPLES // 6, executed, recipes.several(PACK), several)


def executed(followed: Any, ranks: list[int]) -> None:
    program = recipes.program_of(*followed)
    expected = expected_of(program)
    image = spmd.build(program)
    for n in ranks:
        same(image.run(ranks=n), expected, f"the image on {n} ranks")


@spmd.program(mesh=("x", "y"))
def in_place(n: int = 9, m: int = 7):
    """Writes rows in place that rows written later read, in every direction."""
    a = spmd.input("a", (n, m), np.float32, layout=("x", "y"), default=lambda i, j: (i + 3 * j) % 7)
    w = spmd.input("w", (4, n, m), np.float64, layout=spmd.replicated,
                   default=lambda i, j, k: (i * 7 + j * 3 + k * k) % 11)

    @spmd.shard_map(out_layouts=spmd.replicated)
    def alone(u):
        for _ in spmd.range(3):
            u[:, 1:-1, 1:-1] = 0.25 * (u[:, :-2, 1:-1] + u[:, 2:, 1:-1] + u[:, 1:-1, 2:])
            u[:, 2:] = u[:, :-2] + u[:, 1:-1]
            u[:-1] = u[1:] * 0.5
            u[:, :, 1:] = u[:, :, :-1] + 1
            u[3:, 1:] = u[:-3, :-1] - u[3:, 1:]
            u[1:-1, 1:-1, 1:-1] = u[:-2, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] - u[2:, 2:, 2:]
            u[1:] = u[:-1, ::-1] + u[1:]
            u[1:] = u[:-1] + u.sum(axis=0)
            u[-2::-1] = u[:0:-1] * 0.5
            u[:0:-1] = u[-2::-1] + 1
        return u

    b, c = a + 1, a * 2
    for _ in spmd.range(4):
        a[1:-1, 1:-1] += 0.1 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
        b = 0.5 * b + 0.1 * np.roll(b, 1, axis=0)
        c[2:] = c[:-2] * 0.5
        c[:, 1:] = c[:, :-1] + 1
        c[-2::-1] = c[:0:-1] + 3
    return {"a": a, "b": b, "c": c, "w": alone(w)}


@pytest.mark.parametrize("n,m", [(9, 40), (3, 3), (40, 5)])
def test_in_place(n: int, m: int) -> None:
    expected = in_place.eager(n=n, m=m)
    image = spmd.build(in_place, n=n, m=m)
    for ranks in (1, 4, 6):
        found = image.run(ranks=ranks)
        for name, e in expected.items():
            np.testing.assert_allclose(found[name], e, rtol=1e-5, err_msg=f"{name}, {ranks}")


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_large_halos_in_an_image(ranks: int) -> None:
    """Pieces so large that their owner writes them to others, and of different sizes."""

    @spmd.program(mesh=("x",))
    def shifted() -> Any:
        u = spmd.input("u", (500, 700), np.float32, layout=("x", None),
                       default=lambda i, j: (700 * i + j) % 1013)
        return {"d": u[4:] - u[:-4], "sum": u + np.roll(u, 3, axis=0)}

    same(spmd.build(shifted).run(ranks=ranks), shifted.eager(), f"{ranks} ranks")


@spmd.program(mesh=("x",))
def turning(n: int = 23) -> Any:
    """Fetches parts that depend on the turn's number, so a carried array has no ghost cells for
    them."""
    u = spmd.input("u", (n, 5), np.int64, layout=("x", None), default=lambda i, j: 5 * i + j)
    for k in spmd.range(1, 5):
        u[k:] = u[k:] * 2 + u[: n - k]
    return {"u": u}


def test_halos_of_a_loops_number() -> None:
    image = spmd.build(turning)
    for ranks in (1, 2, 6):
        same(image.run(ranks=ranks), turning.eager(), f"{ranks} ranks")


@spmd.program(mesh=("x",))
def running_on(far: int) -> Any:
    """Rows of an extent known at launch; what a row reads of the flat array runs on into others."""

    @spmd.shard_map(out_layouts=spmd.replicated)
    def alone() -> Any:
        m = 20 * spmd.axis_size("x")
        u = spmd.zeros((40, m), np.int64)
        u += np.arange(40)[:, None] * 100
        u[1:] = u.reshape((40 * m,))[m - far : 40 * m - far].reshape((39, m)) + 1
        return u

    return {"u": alone()}


@pytest.mark.parametrize("far", [1, 20])
def test_rows_that_run_on(far: int) -> None:
    image = spmd.build(running_on, far=far)
    for ranks in (1, 2):
        m = 20 * ranks
        u = np.zeros((40, m), np.int64) + np.arange(40)[:, None] * 100
        u[1:] = u.reshape(-1)[m - far : 40 * m - far].reshape((39, m)) + 1
        np.testing.assert_array_equal(image.run(ranks=ranks)["u"], u)


@spmd.program(mesh=("x",))
def told() -> Any:
    x = spmd.input("x", (20,), np.float64, layout=("x",))
    if np.sum(x) > 3:
        spmd.print("largest {}", np.max(x))
    return {"x": x}


def test_a_branch_that_only_prints(capfd: pytest.CaptureFixture[str]) -> None:
    image = spmd.build(told)
    image.run(ranks=2, x=np.zeros(20))
    assert capfd.readouterr().out == ""
    image.run(ranks=2, x=np.ones(20))
    assert capfd.readouterr().out == "largest 1.0\n"


@spmd.program(mesh=("x",))
def one_side() -> Any:
    """All ghost cells lie on one side of a rank's own."""
    u = spmd.input("u", (50, 20), np.float64, layout=("x", None),
                   default=lambda i, j: i * 3 % 7 + j)
    if np.sum(u) > 3:
        for _ in spmd.range(2):
            u[:-1] = u[1:] - 0.25 * u[:-1]
    h = u.astype(np.float16)
    return {"u": u, "first": np.argmax(h), "last": np.argmin(h[::-1])}


def test_ghost_cells_on_one_side() -> None:
    expected = one_side.eager()
    lowered = check(partition(one_side.capture()))
    image = spmd.build(one_side)
    for ranks in (1, 3, 60):
        same(run(lowered, {"x": ranks}), expected, f"the Program on {ranks} ranks")
        same(image.run(ranks=ranks), expected, f"the image on {ranks} ranks")


def test_loops_that_read_on_one_side_only() -> None:
    """Room for ghost cells holds a rank's own part too; nobody else's where that is far off."""

    @spmd.program(mesh=("x",))
    def one_sided() -> Any:
        u, v, w, a, b = (spmd.input(name, (200,), np.float64, layout=("x",),
                                    default=lambda i: i * i % 11) for name in "uvwab")
        for _ in spmd.range(3):
            u[1:] += 0.5 * u[:-1]
            v[:-3] -= 0.5 * v[3:]
            w[120:] -= 0.5 * w[:-120]
            a[:] -= 0.5 * b + a * 0.1  # more of a than a rank's own part is made at once
            b[1:] = a[:-1] - 0.25 * b[:-1]
        return {"u": u, "v": v, "w": w, "a": a, "b": b}

    expected, image = one_sided.eager(), spmd.build(one_sided)
    lowered = partition(check(one_sided.capture()))
    for ranks in (1, 3, 8):
        same(run(lowered, {"x": ranks}), expected, f"the Program on {ranks} ranks")
        same(image.run(ranks=ranks), expected, f"the image on {ranks} ranks")


def test_extremes_of_half_types() -> None:
    @spmd.program(mesh=("x", "y"))
    def first() -> Any:
        u = spmd.input("u", (9, 7), np.float16, layout=("x", "y"),
                       default=lambda i, j: (7 * i + 3 * j + i * j) % 11)
        v = np.where(u == 3, np.float16(np.nan), u)
        w = spmd.input("w", (6, 1300), np.float64, layout=("x", None))  # longer than a block
        long = {f"{f.__name__} {x.dtype}": f(x, axis=1) for f in (np.argmin, np.argmax)
                for x in (w, w.astype(np.float16), (w[3:] * 9).astype(np.int16), w > 0)}
        return {"least": u.argmin(), "most": u.argmax(0), "nan": v.argmin(1), **long}

    w = np.random.default_rng(3).normal(size=(6, 1300)).round(1)
    w[0], w[1, 600], w[1, 900], w[2, 1299] = -np.inf, np.nan, np.inf, -np.inf
    w[3], w[4], w[5, [700, 1200]] = np.arange(1300), -np.arange(1300), 9
    same(spmd.build(first).run(ranks=6, w=w), first.eager(w=w), "6 ranks")


def test_what_shows_the_same_memory() -> None:
    """np.array and np.take copy as in NumPy; reshape views the memory where strides allow it."""

    @spmd.program(mesh=("x", "y"))
    def shared() -> Any:
        u = spmd.input("u", (4, 6), np.float64, layout=("x", "y"), default=lambda i, j: i + j)
        copy, same = np.array(u), u.astype(np.float64, copy=False)
        taken = np.take(u, 1, axis=1)
        copy[0], same[3], taken[2] = 50, 60, 70
        shapes = [
            (u.T, -1), (u[:, 1:], -1), (u[1:], -1), (u[::2], (-1, 2)), (u[:, ::2], (2, 2, 3)),
            (u.T, (3, 2, 4)), (u[::-1], -1), (u[:, None], (4, 6)), (u[2:3].T, (2, 3)),
            (u.reshape(2, 2, 6)[:, 1], -1), (np.broadcast_to(u[0], (2, 6)), -1), (u[0:0], (3, 0)),
        ]
        for k, (part, shape) in enumerate(shapes):
            part.reshape(shape)[:1] = 100 + k
        return {"u": u, "copy": copy, "taken": taken}

    same(spmd.build(shared).run(ranks=6), shared.eager(), "6 ranks")


def test_what_random_programs_found() -> None:
    @spmd.program(mesh=("x", "y"))
    def found() -> Any:
        u = spmd.input("u", (33,), np.int64, layout=(("y", "x"),), default=lambda i: i * i % 11)
        never = (u & 3) == 5  # C compilers warn of it
        shard = spmd.shard_map(lambda v: v + 1, in_layouts=(("x",),), out_layouts=("x",))
        return {"sorted": np.sort(u), "whole": u.relayout((None,)), "never": never,
                "one": shard(np.sum(u, keepdims=True))}

    same(spmd.build(found).run(ranks=6), found.eager(), "6 ranks")


@spmd.program(mesh=("x",))
def like_numpy(n: int = 11):
    u = spmd.input("u", (n, 6), np.float64, layout=("x", None))
    k = spmd.scalar("k", 3)
    spmd.require(1 <= k < n)
    v = u * 1.0
    v[v > 0] *= 0.5
    v[v < 0] += v[v < 0] ** 2
    for t in spmd.range(3):
        v[v[:, 0] > t] -= u[v[:, 0] > t] * 0.1
    z = u + 1j * v
    z.imag[1:4] = -1
    z.real = z.imag
    shifted = u[k:] + u[: n - k]
    u[k:] += u[:-k]
    ties = np.round(v)
    turned = spmd.asarray(u, layout=(None, "x"))
    return {"v": v, "z": z, "mean": np.mean(u[u > 0]), "count": u[u > 0].size, "shifted": shifted,
            "u": u, "order": np.argsort(ties, axis=0), "first": np.argmin(ties, axis=0),
            "turned": turned, "row": np.array(u[0], ndmin=2)}


def test_what_users_of_numpy_write() -> None:
    given = {"u": np.random.default_rng(5).standard_normal((11, 6)) * 2}
    lowered = check_matching(check_uniform(check(partition(like_numpy.capture()))))
    for k, ranks in ((3, 1), (1, 2), (10, 3), (4, 5)):
        found = run(lowered, {"x": ranks}, given, {"k": k})
        same(found, like_numpy.eager(k=k, **given), f"{ranks} ranks")


@spmd.program(mesh=("x",))
def halves(dtype: str = "float16"):
    a = spmd.input("a", (40, 6), dtype, layout=("x", None))
    b = spmd.input("b", (6, 40), dtype, layout=(None, "x"))
    sums = np.sum(a, axis=0) + np.sum(b, axis=1) - np.sum(a * a, axis=0)
    contracted = np.einsum("ij,jk->ik", b, a) + b @ (a * 2)
    return {"sums": sums, "products": b @ a, "contracted": contracted, "size": np.linalg.norm(a)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_types_are_reduced_once(dtype: str) -> None:
    """They are folded in float32 and rounded at the end: nearer to the truth than NumPy's."""
    draw, kind = np.random.default_rng(3), numpy_dtype(element_type(dtype))
    given = {"a": draw.random((40, 6)).astype(kind), "b": draw.random((6, 40)).astype(kind)}
    lowered = partition(halves.capture(dtype=dtype))
    kinds = [op.kind.called for op in lowered.body.ops
             if op.place and "sums = " in op.place.source_line()]
    assert kinds.count("all_reduce") == 3  # each sum is rounded before it is added to others
    expected = halves.eager(dtype=dtype, **given)
    for ranks in (1, 3):
        found = run(lowered, {"x": ranks}, given)
        for name, e in expected.items():
            assert np.asarray(found[name]).dtype == e.dtype == kind
            np.testing.assert_allclose(
                np.asarray(found[name], float), e.astype(float), rtol=0.02, atol=0.3
            )
