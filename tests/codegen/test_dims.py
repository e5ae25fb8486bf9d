"""Named dims: what they are in programs, and what is refused where only a run knows an extent."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.mesh import block_extent, block_offset
from codegen.ops import Exchange
from codegen.symbolic import expr
from codegen.symbolic.estimate import lower_bound, upper_bound
from codegen.symbolic.expr import Sym, const, symbol
from codegen.user.named import named

D = spmd.Dim("batch", at_most=16)


def test_the_objects():
    plain = spmd.Dim("batch", 64)
    assert (plain, plain.name, repr(plain)) == (64, "batch", 'Dim("batch", 64)')
    assert (D.name, D.at_most, repr(D)) == ("batch", 16, 'Dim("batch", at_most=16)')
    assert spmd.Dim("batch", at_most=16) == D != spmd.Dim("batch", at_most=7)
    assert len({D, spmd.Dim("batch", at_most=16)}) == 1
    for use in (lambda: D + 1, lambda: np.zeros(D), lambda: int(D)):
        with pytest.raises(spmd.UsageError, match="known only when a run begins"):
            use()
    for wrong in ((), ("batch",), ("batch", 3, 4), (3, 4), ("batch", -1)):
        with pytest.raises((spmd.UsageError, TypeError)):
            spmd.Dim(*wrong)
    for wrong in ({"at_most": -1}, {"extent": 3, "at_most": 4}, {"at_most": "many"}):
        with pytest.raises(spmd.UsageError, match="a named dim has a name and an extent"):
            spmd.Dim("batch", **wrong)


def test_numbers_of_elements_in_programs():
    """In formulas, shapes, comparisons and NumPy's functions, in images and in eager runs."""
    @spmd.program(mesh=("r",))
    def counts():
        x = spmd.input("x", (D, 2), np.float64)
        here = spmd.Dim("batch", at_most=16)
        total = 0
        for i in spmd.range(D):
            total = total + i
        return {
            "arithmetic": [D + 1, 1 + D, D - 1, 2 * D, D // 2, 7 % (D + 1), D**2, -D, here + D],
            "floats": [x / (D + 1), x * D, np.sqrt(D), 1.5 + D, D / 2], "total": total,
            "most": [max(D, 3), min(here, 3), len(x)], "more": np.where(D > 3, 1, 0),
            "arrays": [np.zeros((D, 2)), np.arange(here), np.full(D, 2.5), np.eye(D)],
            "same": D == here, "slices": [x[: D // 2], x[D // 2 :]], "number": D,
        }

    image = spmd.build(counts)
    for rows in (1, 5, 16):
        x = np.arange(2.0 * rows).reshape(rows, 2)
        out, want = (dict(named(found, "o")) for found in (image.run(ranks=2, x=x),
                                                           counts.eager(x=x)))
        assert out.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_allclose(out[name], value, err_msg=f"{name} of {rows}")
        assert out["o.number"] == rows and out["o.arithmetic.8"] == 2 * rows


def refused(body, *fragments, error=spmd.SpmdError):
    def program():
        return body(spmd.input("x", (D, 4), np.float64))

    with pytest.raises(error) as caught:
        spmd.program(mesh=("r",), layout={"batch": "r"})(program).graph({})
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_what_is_right_for_some_extents_only_is_refused():
    other = spmd.Dim("other", at_most=16)
    refused(lambda x: x + spmd.input("y", (other, 4), np.float64), "batch and other are not proved",
            "one spmd.Dim in the shapes of both inputs")
    refused(lambda x: x + np.ones((16, 4)), "for batch = 0 they are 0 and 16")
    refused(lambda x: x.reshape(8, -1), "cannot reshape (batch, 4)")
    refused(lambda x: np.squeeze(x[:, :1]), "only a run knows whether dim 0 has one element",
            "squeeze(axis=…)")
    refused(lambda x: np.array_equal(x[:3], x[1:4]), "only a run knows to be equal or not")
    refused(lambda x: list(x), "spmd.range(x.shape[0])")
    refused(lambda x: np.linalg.lstsq(x, x[:, 0])[0], "np.linalg.pinv(a) @ b")
    refused(lambda x: spmd.feed(y=spmd.spec((D, 2))).next().y, "all batches of a feed have it")
    refused(lambda x: spmd.scalar("batch", 3) * x, '"batch" is declared twice')
    refused(lambda x: spmd.input("y", (spmd.Dim("batch", at_most=7),), np.float64),
            "has the name of something else", "'batch' is a dim of at most 16")
    refused(lambda x: spmd.input("z", (D, 2), np.float64, default=np.ones((16, 2))),
            "default=lambda i: table[i]")
    refused(lambda x: np.zeros(other), 'no input has the dim "other"')
    refused(lambda x: spmd.input("y", (2 * other,), np.float64), 'no input has the dim "other"')


def test_memory_does_not_depend_on_the_extent():
    """Not of inputs, of what is computed, of what is exchanged, nor of what gradients keep."""
    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def many():
        x = spmd.input("x", (D, 4), np.float64)

        def loss(w):
            h = np.zeros(4)
            for i in spmd.range(x.shape[0]):
                h = np.tanh(h * w + x[i])
            return np.sum(h) + np.mean(np.sort(x, axis=0) @ w)

        return {"g": spmd.grad(loss)(np.ones(4)), "c": np.cumsum(x, axis=0), "s": x[1:-1] * 2,
                "r": np.roll(x, 2, axis=0), "p": x @ x.T, "t": x.relayout((None, "r")) * 2}

    plan = lower(many.graph({})).finished
    used = {s.name for b in plan.buffers for s in b.capacity.symbols()}
    assert plan.buffers and used == {"n_r"}


@pytest.mark.parametrize("most", [0, 1, 7])
def test_bounds_of_blocks_of_an_extent(most):
    """A block grows with the extent of its dim, and so does its beginning: bounds are reached."""
    n, k = Sym("n", "extent", const(0), const(most)), Sym("k", "coord", const(0), const(2))
    for e in (block_extent(symbol(n), 3, symbol(k)), block_offset(symbol(n), 3, symbol(k)),
              block_extent(symbol(n), 3, symbol(k)) * 5 + symbol(n),
              expr.maximum(symbol(n) - 2, 0) - block_extent(symbol(n), 3, symbol(k))):
        values = [e.evaluate({"n": i, "k": j}) for i in range(most + 1) for j in range(3)]
        top, bottom = (bound(e, {n, k}) for bound in (upper_bound, lower_bound))
        assert bottom.value <= min(values) and max(values) <= top.value
    longest = upper_bound(block_extent(symbol(n), 3, symbol(k)), {n, k})
    assert longest == -(-most // 3)


def test_layouts_and_exchanges_are_those_of_the_most():
    """A bounded dim has the layouts and exchanges of a fixed dim of its largest size."""
    def layouts(batch):
        @spmd.program(mesh=("r",))
        def net():
            x = spmd.input("x", (batch, 64), np.float64)
            h = np.tanh(x @ spmd.input("w", (64, 16), np.float64))
            for _ in spmd.range(4):
                h = h - np.mean(h, axis=0) + 0.1 * np.roll(h, 1, axis=0)
            return {"h": h, "gram": h.T @ h, "sorted": np.sort(h[:, 0])}

        program = lower(net.graph({})).program
        return ([i.layout for i in program.inputs], [o.layout for o in program.outputs],
                [type(op.kind) for op in walk(program.body) if isinstance(op.kind, Exchange)])

    assert layouts(spmd.Dim("batch", at_most=256)) == layouts(spmd.Dim("batch", 256))
