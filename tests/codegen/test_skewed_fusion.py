"""Works that pass over the same arrays go row by row together (loops/skewed_fusion.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.plan import Nest, Phase, WorkLoop
from codegen.ir.steps import walk_steps, walk_works
from codegen.loops import skewed_fusion
from codegen.target import TARGET

pytestmark = pytest.mark.usefixtures("vectors_cc")


def lap(u):
    return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]


def wave_loss(u, v, steps):
    u, v = u.copy(), v.copy()
    for _ in spmd.range(steps):
        v[1:-1, 1:-1] += 0.1 * lap(u)
        u += 0.5 * v
    return np.sum(u * u)


@spmd.program(mesh=("x",))
def wave(n: int = 600, m: int = 500, steps: int = 3):
    u = spmd.input("u", (n, m), np.float64, layout=("x", None))
    v = spmd.input("v", (n, m), np.float64, layout=("x", None))
    return spmd.grad(lambda u, v: wave_loss(u, v, steps), (0, 1))(u, v)


@spmd.program(mesh=("x",))
def fields(n: int = 9, m: int = 7, steps: int = 3):  # Maxwell's equations on a plane, as in NPBench
    ex, ey, hz = (spmd.input(k, (n, m), np.float64, layout=("x", None)) for k in ("ex", "ey", "hz"))
    for t in spmd.range(steps):
        ey[0, :] = t
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


@spmd.program(mesh=("x",))
def mixed(n: int = 9, m: int = 7, steps: int = 2):  # backwards, rows on, columns
    a, b = (spmd.input(k, (n, m), np.float64, layout=("x", None)) for k in ("a", "b"))
    for _ in spmd.range(steps):
        c = np.where(a > 0, a, 2 * b)
        b[2:, :] += 0.25 * c[:-2, :]
        b[:, -1] = a[:, 0]
        a[:, 1:-1] += c[:, 2:] - b[:, :-2]
        a[::-1] *= 0.5
        b[::-1] += a
        a[:, ::-1] -= b
        c[3:] -= b[:-3]
        b[0, :] = c[-1, :]
        a += c
    return a, b


@spmd.program(mesh=("x",))
def turned(n: int = 9, m: int = 7):
    a, b = (spmd.input(k, (n, m), np.float64, layout=("x", None)) for k in ("a", "b"))
    c = np.sqrt(a * a + 1)
    b += c[:, ::-1]
    a = a + c * b
    return a, b


@spmd.program(mesh=("x",))
def pieces(n: int = 9, m: int = 7):  # loops of one row, and of one column
    a, b = (spmd.input(k, (n, m), np.float64, layout=("x", None)) for k in ("a", "b"))
    b[2] = 0.5 * a[1]
    b[2] += b[1]
    b[1:, 1:] += a[:-1, 1:]
    d = np.sin(b)
    a += d
    a[:, 1:3] = b[:, m - 2 :]
    a[:, 0:2] -= np.sin(b[:, m - 2 :])
    d[:, 1:] += a[:, :-1]
    return a, b, d


def works(program, **parameters):
    plan = lower(program.graph(parameters, ())).plan
    return [w for s in walk_steps(plan.steps) if isinstance(s, Phase) for w in walk_works(s.work)]


def test_the_way_back_of_a_stencil_is_one_pass():
    loops = [[len(w.sweeps[0].parts) for w in turns.body[0].arms[0] if isinstance(w, Nest)]
             for turns in works(wave) if isinstance(turns, WorkLoop)]
    forward, back = loops
    assert forward == [2]  # u is a row behind v
    assert back == [3, 5]  # what is added, and all additions
    plan = lower(wave.graph({}, ())).plan
    ring = next(b for b in plan.buffers if b.name == "u_part")
    assert str(ring.capacity) == str(3 * 498)  # rows that are read again
    given = {id(a.buffer) for a in (*plan.inputs, *plan.outputs)}
    assert len([b for b in plan.buffers if id(b) not in given]) == 3  # it, and two arrays in place


def test_short_and_small_loops_stay_apart():
    assert not any(isinstance(w, WorkLoop) for w in works(wave, n=60, m=50))
    assert not any(isinstance(w, WorkLoop) for w in works(wave, n=60000, m=20))


@pytest.mark.parametrize("program", [wave, fields, mixed, turned, pieces])
def test_results_are_the_same_to_the_bit(program, monkeypatch):
    rng = np.random.default_rng(5)
    for n, m in ((9, 7), (3, 3)):
        names = {wave: "uv", fields: ("ex", "ey", "hz")}.get(program, "ab")
        given = {k: rng.normal(size=(n, m)) for k in names}
        plain = spmd.build(program, n=n, m=m)
        with monkeypatch.context() as patch:
            patch.setenv("SPMD_CACHE", "off")  # kept images know nothing of what is patched
            patch.setattr(skewed_fusion, "TARGET", replace(TARGET, l2=0, short_loop=0))
            patch.setattr(skewed_fusion, "FEW", 1)
            assert any(isinstance(w, WorkLoop) for w in works(program, n=n, m=m))
            rows = spmd.build(program, n=n, m=m)
        for ranks in (1, 2, 3, 5):
            wanted, found = (image.run(ranks=ranks, **given) for image in (plain, rows))
            for a, b in zip(wanted, found, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{n} x {m} on {ranks} ranks")


