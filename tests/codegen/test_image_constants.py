"""Constants are read where they lie in the image, and copied for those only who need a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_plan import check_plan
from codegen.compile import lower
from codegen.errors import InternalError
from codegen.ir.plan import Exchange, KernelCall, LibraryCall, Load, Phase, Plan, Store
from codegen.ir.plan_text import plan_text
from codegen.ir.steps import mapped_steps, simple_works, walk_steps

rng = np.random.default_rng(0)
N = 16  # products of fewer elements are loops
W, V = rng.normal(size=(2, N, N))
STACK = rng.normal(size=(5, N, N))
ROWS = rng.normal(size=(12, N))


def plan_of(f: Callable[[], Any]) -> Plan:
    return lower(spmd.program(mesh=("r",))(f).capture()).plan


def works(plan: Plan) -> list[Any]:
    return [w for s in walk_steps(plan.steps) if isinstance(s, Phase) for w in simple_works(s)]


def copies(plan: Plan) -> list[str]:
    """The buffers into which a constant is copied as it is."""
    return [w.buffer.name for w in works(plan) if isinstance(w, Store)
            and isinstance(w.value, Load) and w.value.buffer.data is not None
            and not w.value.bounds]


def test_a_network_has_buffers_for_what_it_computes_only() -> None:
    def network():
        x = spmd.input("x", (12, N), layout=("r", None))
        h = np.tanh(x @ W)
        return spmd.grad(lambda h: np.sum(np.tanh(h @ V)))(h) @ W[:, :13]

    plan = plan_of(network)
    calls = [w for w in works(plan) if isinstance(w, LibraryCall)]
    assert len(calls) == 4 and all(any(p.buffer.data is not None for p in w.parts) for w in calls)
    assert copies(plan) == []
    rank = {axis.size_sym: 1 for axis in plan.mesh.axes}
    assert sum(b.capacity.subst(rank).value for b in plan.buffers) <= 4 * 12 * N
    assert len(plan.constants) == 3  # W is read twice, and lies there once


def test_a_rank_reads_its_part_of_a_constant() -> None:
    @spmd.kernel(signature="(n),(n)->(n)")
    def added(a, b, out):
        for i in range(a.shape[0]):
            out[i] = a[i] + b[i]

    def parts():
        x = spmd.input("x", (12, N), layout=("r", None))
        y = spmd.input("y", (5, 13, N), layout=("r", None, None))
        return added(x, ROWS, out=spmd.like(x)), y @ STACK

    plan = plan_of(parts)
    (kernel,) = (w for w in works(plan) if isinstance(w, KernelCall))
    (call,) = (w for w in works(plan) if isinstance(w, LibraryCall))
    rows, stack = kernel.arguments[1], call.parts[1]
    assert rows.value.data is not None and rows.offset != 0
    assert stack.buffer.data is not None and stack.offset != 0
    assert copies(plan) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float16", "bfloat16"])
def test_the_cast_of_a_constant_is_a_constant(dtype: str) -> None:
    def cast():
        x = spmd.input("x", (12, N), np.float32, layout=("r", None))
        w = spmd.numpy.asarray(W.astype(np.float32))
        return x.astype(dtype) @ w.astype(dtype)

    plan = plan_of(cast)
    (constant,) = plan.constants
    assert constant.dtype.name == dtype
    np.testing.assert_array_equal(constant.data, W.astype(np.float32).astype(constant.data.dtype))


def test_a_run_casts_what_loses_numbers() -> None:
    """Checks may ask for them: here infinities, and integers beyond their type."""

    def lost():
        x = spmd.input("x", (N,), np.float32, layout=("r",))
        lose = spmd.vmap(lambda big, wide, x: big.astype(np.float32) + x + wide.astype(np.int8))
        return lose(1e300 * W[0], np.arange(N) ** 2 % 7 * 90, x)

    text = plan_text(plan_of(lost))
    assert "cast float32(constant_0" in text and "cast int8(constant_1" in text


def test_a_layout_moves_no_constant() -> None:
    """Every rank has all of it, wherever the program says that it lies."""

    def laid_out():
        x = spmd.input("x", (12, N), layout=("r", None))
        i = spmd.input("i", (12,), np.int64, layout=("r",))
        w = spmd.numpy.asarray(W).relayout(("r", None))
        return x @ w, w.T[1:][i], w

    plan = plan_of(laid_out)
    assert not [s for s in walk_steps(plan.steps) if isinstance(s, Exchange)]
    assert len(copies(plan)) == 1  # of the rank's rows, for the output


def test_one_copy_for_each_who_carries_writes_or_sends_it() -> None:
    def carried():
        x = spmd.input("x", (12, N), layout=("r", None))
        w = W
        for _ in spmd.range(3):
            w = w - spmd.grad(lambda w: np.sum((x @ w) ** 2))(w)
        return w, x @ W

    def written():
        x = spmd.input("x", (12, N), layout=("r", None))
        for k in spmd.range(3):
            w = spmd.numpy.array(W)
            w[k] = x[0]
            x = x @ w @ W
        return x

    def exchanged():
        @spmd.shard_map(out_layouts=("r", None))
        def f():
            return spmd.ppermute(W, "r", shift=1) @ W

        return f()

    for f in (carried, written, exchanged):
        assert len(copies(plan_of(f))) == 1, f.__name__


def test_a_plan_that_writes_a_constant_is_refused() -> None:
    def f():
        x = spmd.input("x", (12, N), layout=("r", None))
        return x @ W

    plan = plan_of(f)
    (constant,) = plan.constants
    (call,) = works(plan)

    def broken(step: Any) -> Any:
        if not isinstance(step, Phase):
            return step
        parts = tuple(replace(p, buffer=constant) if p.writes else p for p in call.parts)
        return replace(step, work=(replace(call, parts=parts),))

    with pytest.raises(InternalError, match="no constant is written"):
        check_plan(replace(plan, steps=mapped_steps(plan.steps, broken)))


@spmd.program(mesh=("r",))
def everything():
    x = spmd.input("x", (12, N), layout=("r", None))
    shown = {"returned": spmd.numpy.asarray(W), "read": x @ W, "part": x @ W[:, 2:15],
             "steps": x @ W[::-1, ::-1], "left": W @ x.T, "batch": x[:5, None] @ STACK,
             "solved": np.linalg.solve(W, x.T), "factored": np.linalg.inv(V) @ x.T,
             "picked": W[(x[0] > 0).astype(int)], "transform": np.fft.fft(V * 1.0, axis=0),
             "back": spmd.grad(lambda x: np.sum(np.tanh(x @ W)))(x)}
    laid_out = spmd.numpy.asarray(W)
    if not isinstance(laid_out, np.ndarray):  # eager
        laid_out = laid_out.relayout(("r", None))
    shown |= {"laid out": laid_out, "of that": x @ laid_out[:, ::-1], "sum": np.sum(laid_out) + x}
    y = spmd.numpy.array(W)
    y[0] = x[0]
    shown["written over"] = x @ y
    z = W
    for k in spmd.range(3):
        z = 0.1 * z @ W
        z[k] = x[1]
    shown["carried"] = z
    for k in spmd.range(2):
        g = spmd.numpy.array(W)
        g[k] = z[0]
        z = z + g @ V
    shown["in turns"] = z
    c = spmd.numpy.array(W) if x[0, 0] > 0 else spmd.numpy.array(V)
    shown["either"] = c @ x.T
    c[:] = x[0]
    return {**shown, "both": c @ W, "after": x @ W}


@pytest.mark.parametrize("ranks", [1, 3])
def test_results_in_one_job_run_after_run(ranks: int) -> None:
    """Whoever wrote a constant would crash, or the next run would differ."""
    before = W.copy()
    with spmd.build(everything).open(ranks=ranks) as job:
        for sign in (1, -1, 1):
            x = sign * np.abs(rng.normal(size=(12, N)))
            wanted = everything.eager(x=x)
            for name, found in job(x=x).items():
                np.testing.assert_allclose(found, wanted[name], 1e-9, 1e-9, err_msg=name)
    np.testing.assert_array_equal(W, before)
