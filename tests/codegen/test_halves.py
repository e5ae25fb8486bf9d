"""A function and its way back in two pieces: gradients, what is kept, weights that have changed."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.errors import UsageError
from codegen.ir.graph import Op
from codegen.ops import Loop, MatMul
from codegen.trace.array import as_array
from codegen.trace.context import require_context
from codegen.trace.derive.backward_parts import backward_parts
from codegen.trace.derive.halves import capture_halves
from codegen.trace.state import fill, flatten


def types_of(tree):
    shape, leaves = flatten(tree)
    return fill(shape, iter([as_array(x).type for x in leaves]), fresh=True)


def layer(w, x, scale):
    h = np.tanh(x @ w["a"])
    return {"out": h @ w["b"] * scale, "rows": np.argmax(h, axis=1)}


def halves(w, x, scale):
    given = types_of((w, x, scale))
    return capture_halves(require_context("a test"), layer, given[0], given[1:], (True, False))


def program(use):
    @spmd.program(mesh=("r",))
    def run():
        w = {"a": spmd.input("a", (4, 5), np.float64, layout=(None, None)),
             "b": spmd.input("b", (5, 3), np.float64, layout=(None, None))}
        x = spmd.input("x", (6, 4), np.float64, layout=(None, None))
        arrays = (w["a"], w["b"], x)

        def local(a, b, x):
            return use({"a": a, "b": b}, x)

        return spmd.shard_map(local, mesh="r", out_layouts=spmd.replicated,
                              in_layouts=((None, None),) * 3)(*arrays)

    return run


GIVEN = {"a": np.random.default_rng(1).standard_normal((4, 5)),
         "b": np.random.default_rng(2).standard_normal((5, 3)),
         "x": np.random.default_rng(3).standard_normal((6, 4))}


def by_hand(a, b, x, later_a, later_b, g):
    """Gradients of a, b and x with what was kept at a and b, and the weights of later."""
    h = np.tanh(x @ a)
    z = (2.0 * g @ later_b.T) * (1 - h * h)
    return x.T @ z, h.T @ (2.0 * g), z @ later_a.T


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_backward_reads_what_was_kept_and_the_weights_it_is_given(change):
    def use(w, x):
        made = halves(w, x, np.float64(2.0))
        out, kept = made.forward(w, x, as_array(np.float64(2.0)))
        later = {k: v + change for k, v in w.items()}
        slopes, (dx,), none = made.backward(later, kept, [np.cos(out["out"])])
        assert none is None
        return out["out"], out["rows"], slopes["a"], slopes["b"], dx

    out, rows, *slopes = spmd.build(program(use)).run(ranks=2, **GIVEN)
    h = np.tanh(GIVEN["x"] @ GIVEN["a"])
    np.testing.assert_allclose(out, 2.0 * h @ GIVEN["b"], rtol=1e-12)
    np.testing.assert_array_equal(rows, np.argmax(h, axis=1))
    a, b = GIVEN["a"], GIVEN["b"]
    expected = by_hand(a, b, GIVEN["x"], a + change, b + change, np.cos(out))
    for mine, theirs in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_kept_arrays_go_through_slots_into_a_branch():
    def use(w, x):
        made = halves(w, x, np.float64(2.0))
        slots = [np.zeros((3, *(int(n.value) for n in t.shape)), t.dtype.name)
                 for t in made.kept_types]
        slots = [as_array(s).copy() for s in slots]
        total = {k: np.zeros_like(v) for k, v in w.items()}

        def turn(t, state):
            slots, total = state

            def forward():
                _, kept = made.forward(w, x * (t + 1), as_array(np.float64(2.0)))
                for slot, value in zip(slots, kept, strict=True):
                    slot[t % 3] = value

            def backward():
                g = made.backward(w, [slot[t % 3] for slot in slots], [np.ones((6, 3))])[0]
                for k in total:
                    total[k] += g[k]

            spmd.cond(t < 3, forward, backward)
            return slots, total

        total = spmd.fori_loop(0, 6, turn, (slots, total))[1]
        return total["a"], total["b"]

    found = spmd.build(program(use)).run(ranks=1, **GIVEN)
    a, b, x = GIVEN["a"], GIVEN["b"], GIVEN["x"]
    each = [by_hand(a, b, x * k, a, b, np.ones((6, 3))) for k in (1, 2, 3)]
    np.testing.assert_allclose(found[0], sum(e[0] for e in each), rtol=1e-12)
    np.testing.assert_allclose(found[1], sum(e[1] for e in each), rtol=1e-12)


def products(ops: tuple[Op, ...]) -> int:
    return sum(isinstance(op.kind, MatMul) for op in ops)


@pytest.mark.parametrize("wanted", [True, False])
def test_gradients_of_weights_follow_from_what_the_other_part_has_found(wanted):
    def use(w, x):
        types = types_of((w, x, np.float64(2.0)))
        made = capture_halves(
            require_context("a test"), layer, types[0], types[1:], (wanted, False))
        parts = backward_parts(made)
        counts = products(parts.sooner), products(parts.later)
        assert counts == ((2, 2) if wanted else (0, 3))  # one layer: nothing before it waits
        _, kept = made.forward(w, x, as_array(np.float64(2.0)))
        out = x @ w["a"]
        found, crossing = parts.of_arguments(w, kept, [np.cos(out[:, :3])])
        later = {k: v + 0.5 for k, v in w.items()}  # which they do not read where z has crossed
        slopes = parts.of_weights(later if wanted else w, kept, crossing)
        return (slopes["a"], slopes["b"], *(found[0] if wanted else []))

    slopes = spmd.build(program(use)).run(ranks=2, **GIVEN)
    a, b, x = GIVEN["a"], GIVEN["b"], GIVEN["x"]
    expected = by_hand(a, b, x, a, b, np.cos((x @ a)[:, :3]))
    for mine, theirs in zip(slopes, expected, strict=False):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def three_layers(w, x):
    return np.tanh(np.tanh(np.tanh(x @ w["a"]) @ w["b"]) @ w["b"].T)


def test_without_an_argument_the_way_that_several_weights_need_goes_first():
    def use(w, x):
        types = types_of((w, x))
        made = capture_halves(
            require_context("a test"), three_layers, types[0], types[1:], (False,))
        parts = backward_parts(made)
        assert (products(parts.sooner), products(parts.later)) == (1, 4)
        out, kept = made.forward(w, x)
        _, crossing = parts.of_arguments(w, kept, [np.ones_like(out)])
        slopes = parts.of_weights(w, kept, crossing)
        return slopes["a"], slopes["b"]

    slopes = spmd.build(program(use)).run(ranks=1, **GIVEN)
    a, b, x = GIVEN["a"], GIVEN["b"], GIVEN["x"]
    h1 = np.tanh(x @ a)
    h2 = np.tanh(h1 @ b)
    z3 = 1 - np.tanh(h2 @ b.T) ** 2
    z2 = z3 @ b * (1 - h2 * h2)
    np.testing.assert_allclose(slopes[0], x.T @ (z2 @ b.T * (1 - h1 * h1)), rtol=1e-12)
    np.testing.assert_allclose(slopes[1], h1.T @ z2 + z3.T @ h2, rtol=1e-12)


def recurrent(w, x):
    h = np.zeros((6, 4))
    for _ in spmd.range(3):
        h = np.tanh(x + h @ (w["a"] @ w["b"]))
    return h


def test_a_loop_goes_back_once_and_its_gradients_of_weights_cross():
    def use(a, x):
        w = {"a": a, "b": np.concatenate([a.T[:, :3], a.T[:, :1]], axis=1)}
        types = types_of((w, x))
        made = capture_halves(require_context("a test"), recurrent, types[0], types[1:], (True,))
        parts = backward_parts(made)
        loops = [[isinstance(op.kind, Loop) for op in ops] for ops in (parts.sooner, parts.later)]
        assert any(loops[0]) and not any(loops[1])
        out, kept = made.forward(w, x)
        found, crossing = parts.of_arguments(w, kept, [np.ones_like(out)])
        slopes = parts.of_weights(w, kept, crossing)
        return slopes["a"], slopes["b"], *found[0]

    def local(a, x):
        return use(a, x)

    @spmd.program(mesh=("r",))
    def run():
        a = spmd.input("a", (4, 5), np.float64, layout=(None, None))
        x = spmd.input("x", (6, 4), np.float64, layout=(None, None))
        return spmd.shard_map(local, mesh="r", out_layouts=spmd.replicated,
                              in_layouts=((None, None),) * 2)(a, x)

    slopes = spmd.build(run).run(ranks=1, a=GIVEN["a"], x=GIVEN["x"])
    a, x = GIVEN["a"], GIVEN["x"]
    b = np.concatenate([a.T[:, :3], a.T[:, :1]], axis=1)
    hs = [np.zeros((6, 4))]
    for _ in range(3):
        hs.append(np.tanh(x + hs[-1] @ (a @ b)))
    d, dm, dx = np.ones((6, 4)), 0, 0
    for before, after in zip(hs[2::-1], hs[:0:-1]):
        z = d * (1 - after * after)
        dm, dx, d = dm + before.T @ z, dx + z, z @ (a @ b).T
    for mine, theirs in zip(slopes, (dm @ b.T, a.T @ dm, dx), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-13)


def test_no_product_is_computed_twice():
    def use(w, x):
        found = halves(w, x, np.float64(2.0))
        counts = products(found.ahead), products(found.later)
        assert counts == (2, 4)
        return found.forward(w, x, as_array(np.float64(2.0)))[0]["out"]

    spmd.build(program(use))


def test_what_cannot_be_differentiated_is_refused():
    def use(w, x):
        types = types_of(({"n": np.arange(3)}, x))
        capture_halves(
            require_context("a test"), lambda w, x: x * w["n"][0], types[0], types[1:], (True,))

    with pytest.raises(UsageError):
        spmd.build(program(use))
