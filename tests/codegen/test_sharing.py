"""Lists, dicts and objects with more than one name in loops and branches: as NumPy, or refused."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.errors import CarryError, UnsupportedError
from codegen.oracle import interpret

# ruff: noqa: B007


class V:
    def __init__(self, a):
        self.a = a


def list_rebound(x):
    u = [x]
    w = u
    for k in spmd.range(3):
        w = [w[0] + u[0]]
    return w[0], u[0]


def dict_rebound(x):
    u = {"a": x}
    w = u
    for k in spmd.range(3):
        w = {"a": w["a"] + u["a"]}
    return w["a"], u["a"]


def object_rebound(x):
    u = V(x)
    w = u
    for k in spmd.range(3):
        w = V(w.a + u.a)
    return w.a, u.a


def best_of(x):
    u = [x]
    best = u
    for k in spmd.range(4):
        u = [u[0] * -2]
        if u[0][0] > best[0][0]:
            best = u
    return best[0], u[0]


def swapped_in_list(x):
    u, w = V(x), V(x * 9)
    s = [u, w]
    for k in spmd.range(3):
        s[0].a = s[0].a + 1
        s[0], s[1] = s[1], s[0]
    return u.a, w.a


def rebound_in_object(x):
    u = V(x)
    s = V(u)
    for k in spmd.range(3):
        s.a.a = s.a.a + 1
        s.a = V(s.a.a * 2)
    return u.a, s.a.a


def read_by_a_function(x):
    u = V(x)
    w = u

    def step():
        nonlocal w
        w = V(w.a + u.a)

    for k in spmd.range(3):
        step()
    return u.a, w.a


@pytest.mark.parametrize("f", [
    list_rebound, dict_rebound, object_rebound, best_of, swapped_in_list, rebound_in_object,
    read_by_a_function,
])
def test_a_loop_that_parts_names_of_one_thing_is_refused(f):
    with pytest.raises(CarryError, match=r"are one \w+ before .* two after"):
        program(f).capture()


def branch(x):
    u, w = [x], [x * 9]
    if x[0] > 0:
        t = u
    else:
        t = w
    t[0] = t[0] + 1
    return u[0], t[0]


def expression(x):
    u, w = V(x), V(x * 9)
    t = u if x[0] > 0 else w
    t.a = t.a + 1
    return u.a, t.a


def stored_into_the_other(x):
    u, best = [x], [x * 9]
    if x[0] > 0:
        best = u
    u.append(x)
    return best[0]


def chosen_in_a_loop(x):
    u, best = V(x), V(x)
    for k in spmd.range(3):
        u.a = u.a * 2
        if k == 1:
            best = u
    return best.a, u.a


def inside(x):
    u, w = V(x), V(x * 9)
    s = V(u)
    if x[0] > 0:
        s.a = w
    s.a.a = s.a.a + 1
    return u.a, w.a


@pytest.mark.parametrize("f", [branch, expression, stored_into_the_other, chosen_in_a_loop, inside])
def test_a_store_into_what_a_branch_has_chosen_is_refused(f):
    with pytest.raises(UnsupportedError, match="may or may not be one"):
        program(f).capture()


def allowed(x):
    """Contents that change in place, exchanged names, new things, and what is only read."""
    u = [x]
    w = u
    a, b, first = V(x), V(x * 9), {"a": x}
    state = first
    for k in spmd.range(3):
        w[0] = w[0] + 1
        t = a
        a = b
        b = t
        b.a = b.a + k
        state = {"a": state["a"] * 2}
    best = [x]
    for k in spmd.range(4):
        u = w = [w[0] * -2]
        if u[0][0] > best[0][0]:
            best = [u[0]]
    if x[0] > 0:
        state = {"a": state["a"] + 1}
    state["a"] = state["a"] * 3
    chosen = u if x[0] > 0 else best
    if x[1] > 0:
        p = q = [x]
    else:
        p = q = [x * 2]
    p[0] = p[0] + 1
    return w[0], u[0], a.a, b.a, first["a"], state["a"], best[0], chosen[0], q[0]


def test_what_stays_one_or_two_gives_what_numpy_gives():
    p = program(allowed)
    x = np.arange(3) + 1.0
    got = interpret.run(p.capture(), {"r": 2}, {"x": x}, {})
    for mine, expected in zip(got.values(), p.eager(2, x=x.copy()), strict=True):
        np.testing.assert_allclose(mine, expected)


def program(f):
    @spmd.program(mesh=("r",))
    def traced():
        return f(spmd.input("x", (3,), np.float64, layout=("r",), default=lambda i: i + 1.0))

    return traced
