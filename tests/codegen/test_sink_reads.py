"""What an update does not touch is read behind it, and not copied; products are added to rows."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.graph.sink_reads import sink_reads
from codegen.ir.graph import walk
from codegen.ir.plan import LibraryCall, Phase
from codegen.ir.steps import walk_steps
from codegen.symbolic import expr

N = 6


def beside(x):
    """All parts are read before the first of them is written."""
    a, b, c = 2 * x[:N] + 1, 3 * x[N:2 * N] - 1, np.sqrt(x[2 * N:])
    x[:N], x[N:2 * N], x[2 * N:] = a, b, c


def crossed(x):
    """The second part is written with what the first one was."""
    a, b = x[N:2 * N] + 1, x[:N] - 1
    x[:N], x[N:2 * N] = a, b


def overlapping(x):
    """A part that is read late is partly written early."""
    a, b = x[:N] * 2, x[2 * N:] + x[2:N + 2]
    x[:N], x[2 * N:] = a, b


@pytest.mark.parametrize(("change", "copies"), [
    (beside, False), (crossed, True), (overlapping, True)])
def test_values_and_copies(change, copies):
    @spmd.program(mesh=("r",))
    def changed():
        x = spmd.input("x", (3 * N,), np.float64, layout=(None,))
        for _ in spmd.range(2):
            change(x)
        return x

    x = np.random.default_rng(1).random(3 * N) + 1
    expected = x.copy()
    change(expected)
    change(expected)
    np.testing.assert_allclose(spmd.build(changed).run(ranks=1, x=x), expected)
    levels = lower(changed.capture())
    assert any(b.capacity == expr.const(N) for b in levels.plan.buffers) == copies
    again = [op.kind for region in sink_reads(levels.program).regions for op in walk(region)]
    assert again == [op.kind for region in levels.program.regions for op in walk(region)]


@pytest.mark.parametrize("shape", [(30 * 40,), (30, 40), (30, 8, 5)])
def test_a_product_is_added_to_a_part_of_a_row_in_any_shape(shape):
    size = 30 * 40

    @spmd.program(mesh=("r",))
    def added():
        a = spmd.input("a", (6, 50, 30), np.float64, layout=(None, None, None))
        b = spmd.input("b", (6, 50, 40), np.float64, layout=(None, None, None))
        out = spmd.ones((3, 2 * size), layout=(None, None))
        for k in spmd.range(6):
            product = (a[k].T @ b[k]).reshape(shape)
            out[k % 3, 7:7 + size] += product.reshape(-1)
        return out

    random = np.random.default_rng(2)
    a, b = random.standard_normal((6, 50, 30)), random.standard_normal((6, 50, 40))
    expected = np.ones((3, 2 * size))
    for k in range(6):
        expected[k % 3, 7:7 + size] += (a[k].T @ b[k]).reshape(-1)
    np.testing.assert_allclose(spmd.build(added).run(ranks=1, a=a, b=b), expected)
    plan = lower(added.capture()).plan
    (call,) = [act for step in walk_steps(plan.steps) if isinstance(step, Phase)
               for act in step.work if isinstance(act, LibraryCall)]
    assert call.parts[2].buffer.capacity == expr.const(6 * size) and call.numbers[-1] == 1
