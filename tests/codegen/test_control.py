"""Loops, branches and logic on values known only at run time: the Graph against plain NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.ir.graph import Module, walk
from codegen.oracle import interpret

# ruff: noqa: C408, C416, B007
# mypy: ignore-errors

U = np.round(np.random.default_rng(7).standard_normal((7, 4)), 2)


def case(f: Callable[..., Any], out: Any = ("r", None)) -> Any:
    """A program that applies f(shard, steps, limit) on every rank."""

    @spmd.program(mesh=("r",))
    def program():
        u = spmd.input("u", U.shape, np.float64, layout=("r", None))
        steps, limit = spmd.scalar("steps", 3), spmd.scalar("limit", 0.5)
        return spmd.shard_map(lambda x: f(x, steps, limit), out_layouts=out)(u)

    return program


def graph(f: Callable[..., Any], out: Any = ("r", None)) -> Module:
    return case(f, out).capture()


def kinds(module: Module) -> list[str]:
    return [op.kind.name for op in walk(module.body)]


def agree(f: Callable[..., Any], out: Any = ("r", None), steps: Any = (0, 1, 4)) -> Module:
    """The captured program gives what the source gives as plain NumPy."""
    program = case(f, out)
    module = program.capture()
    for n in (1, 2, 3, 9):
        for count in steps:
            given = {"steps": count, "limit": 0.75}
            expected = program.eager(n, u=U.copy(), **given)
            got = interpret.run(module, {"r": n}, {"u": U}, given)
            got = got["result"] if isinstance(got, dict) and set(got) == {"result"} else got
            np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-13)
    return module


# ---- for ---------------------------------------------------------------------------------------


def rebinding(x, steps, limit):
    for i in spmd.range(steps):
        x = x * 2 + i
    return x


def in_place(x, steps, limit):
    for _ in spmd.range(steps):
        x[:, 1:] += 0.5 * x[:, :-1]
    return x


def through_a_view(x, steps, limit):
    row = x.T[1]
    for i in spmd.range(steps):
        row += i
    return x


def through_a_helper(x, steps, limit):
    def shift(a, k):
        a[:, 0] += k
        if k > 1:
            a[:, 1] -= k
        return a[:, 0].sum()

    total = 0
    for i in spmd.range(steps):
        total = total + shift(x, i)
    return x + total


def python_numbers(x, steps, limit):
    k, total, half, flag = 1, 0, 0.5, False
    for i in spmd.range(steps):
        k = k + 2
        total += k * i
        half = half / 2
        flag = not flag
        x = x + half
    return x * k + total + flag


def nested(x, steps, limit):
    for i in spmd.range(steps):
        for j in spmd.range(i + 1):
            x[:, 0] += i * 10 + j
            for k in spmd.range(2):
                x = x + k
    return x


def negative_step(x, steps, limit):
    for i in spmd.range(steps + 3, -2, -2):
        x = 2 * x + i
    return x


def bounds_by_the_index(x, steps, limit):
    i, n = spmd.axis_index("r"), spmd.axis_size("r")
    for k in spmd.range(i, n):
        x = x + k * i
    return x


def bounds_by_data(x, steps, limit):
    count = (np.abs(x).sum() * 2).astype(np.int64) % 5
    for k in spmd.range(count):
        x = x + k
    for k in spmd.range(count, 0, -1):
        x = x * 1.5 - k
    for k in reversed(spmd.range(1, count, 2)):
        x = x * 0.5 + k
    return x


def backwards(x, steps, limit):
    for bounds in ((0, 7, 3), (6, -1, -4), (3, 3, 1), (5, 2, 2), (4, 5, 9)):
        for k in reversed(spmd.range(*bounds)):
            x = x * 1.25 + k
    for k in reversed(spmd.range(steps)):
        x = x * 1.5 - k
    return x


def swapping(x, steps, limit):
    y = x + 1
    for i in spmd.range(steps):
        x, y = y, x * 0.5 + i
    return x - y


def double_buffer(x, steps, limit):
    now, new = x.copy(), x.copy()
    for i in spmd.range(steps):
        new[:, 1:] = now[:, :-1] * 0.5 + i
        now, new = new, now
    return now * 10 + new


def two_names_of_one(x, steps, limit):
    u = v = x
    for i in spmd.range(steps):
        w = u + i
        u = v = w * 2
    return u - 0.5 * v


def containers(x, steps, limit):
    p = {"w": x, "b": [x[0:1] * 0 if False else x * 0.5, (x + 1, 2)]}
    q = p
    for i in spmd.range(steps):
        p["w"] = p["w"] * 0.5 + i
        p["b"][0] = p["b"][0] + p["w"]
        a, b = p["b"][1]
        p["b"][1] = (a - 1, b)
    return q["w"] + p["b"][0] + p["b"][1][0] * p["b"][1][1]


def rebuilt_containers(x, steps, limit):
    p = {"w": x, "b": [x, 1.0]}
    for i in spmd.range(steps):
        p = {k: v for k, v in p.items()}
        p["w"] = p["w"] + 1
        p = dict(w=p["w"] * 2, b=[p["b"][0] - p["w"], p["b"][1] + 1])
    return p["w"] + p["b"][0] + p["b"][1]


class Model:
    def __init__(self, w):
        self.w = w
        self.steps = 0

    def __call__(self, x):
        self.w = self.w * 0.9 + x.mean() if x.shape[1] else self.w
        self.steps += 1
        return x + self.w


def objects(x, steps, limit):
    model = Model(x * 2)
    for _ in spmd.range(steps):
        x = model(x)
    return x + model.w + model.steps


def unrolled(x, steps, limit):
    for k in range(3):
        if k == 1:
            continue
        x = x + k * steps
    for c in [1.0, 2.0]:
        x *= c
    return x


def break_and_continue(x, steps, limit):
    for i in spmd.range(10):
        if i == steps:
            break
        if i % 2 == 1:
            continue
        x = x + 1
        if x.sum() > 30:
            x = x - 100
            break
        x = x * 1.1
    else:
        x = x + 1000
    return x


def break_in_inner(x, steps, limit):
    found = -1
    for i in spmd.range(steps + 1):
        for j in spmd.range(5):
            if i * j > 3:
                found = i * 10 + j
                break
        if found > 0:
            break
    return x + found


def break_unrolled(x, steps, limit):
    for k in range(4):
        if steps == k:
            break
        x = x + 1
        if x.sum() > 9:
            x = x * 2
            break
    return x + k if False else x


def counter_after(x, steps, limit):
    i = 7
    for i in spmd.range(steps):
        pass
    return x + i


def zero_dim_memory(x, steps, limit):
    total = np.zeros(())
    alias = total
    for i in spmd.range(steps):
        total += i
    return x + alias


# ---- while -------------------------------------------------------------------------------------


def while_data(x, steps, limit):
    while np.abs(x).sum() > limit:
        x = x * 0.5
    return x


def while_known_at_first(x, steps, limit):
    err, k = 1e9, 0
    while err > limit and k < 20:
        x *= 0.5
        err = np.abs(x).sum()
        k += 1
    return x + k


def while_true(x, steps, limit):
    k = 0
    while True:
        if k >= steps:
            break
        k += 1
        x = x + k
    return x


def while_plain(x, steps, limit):
    k = 0
    while k < 3:
        x = x + k
        k += 1
        if k == 2:
            continue
        x = x * 2
    return x


def matches(x, steps, limit):
    """match statements of values: with alternatives, guards, a name, exits."""
    for i in spmd.range(steps + 4):
        match i % 5:
            case 0:
                x = x + 1
            case 1 | 2 if limit > 0.5:
                x = x * 2
            case 3:
                continue
            case other if other > steps:
                x = x - other
            case other:
                x = x + other
        match i:
            case 6:
                break
    match np.sum(x[:1]) > 3:
        case n:
            return x + n


def while_walrus(x, steps, limit):
    k = 0
    while (total := x.sum()) < 50 and k < 9:
        x = x + 1
        k += 1
        if total > 20:
            continue
        x = x * 1.1
    return x + k


def while_else(x, steps, limit):
    k = 0
    while k < steps:
        k = k + 2
        if k == 3:
            break
    else:
        x = x + 100
    return x + k


# ---- if ----------------------------------------------------------------------------------------


def on_the_index(x, steps, limit):
    i, n = spmd.axis_index("r"), spmd.axis_size("r")
    if i == 0:
        y = x + 1
    elif i == n - 1:
        y = x * 2
        x[...] = 5
    elif i % 2 == 0:
        y = x - 1
    else:
        y = x
    return x + y


def on_data(x, steps, limit):
    y = 0
    if x.sum() > limit:
        x += 1
        y = 2
    if x.sum() > 0 and not x.min() > 0:
        x = -x
    return x + y


def numbers_stay_numbers(x, steps, limit):
    i = spmd.axis_index("r")
    if i == 0:
        k = 0
    elif i == 1:
        k = 1
    else:
        k = 2
    return x[:, k : k + 1] + k + x


def early_returns(x, steps, limit):
    i = spmd.axis_index("r")
    if i == 0:
        return x * 2
    y = x + 1
    if y.sum() > limit:
        if x.max() > 1:
            return y
        y = y * 3
    if i == 1:
        return y - 1
    return x - y


def returns_in_unrolled_loop(x, steps, limit):
    for k in range(3):
        x = x + 1
        if x.sum() > 8 * k:
            return x * k
    return x


def conditional_expressions(x, steps, limit):
    i = spmd.axis_index("r")
    a = x[:, :1] if steps > 2 else x[:, 1:2] * 2
    b = 1 if i > 0 else 2
    c = (x.sum() if x.sum() > 0 else 0.0) if i == 0 else -1
    return x + a + b + c + [k if steps else -k for k in range(3)][2]


def logic(x, steps, limit):
    i, n = spmd.axis_index("r"), spmd.axis_size("r")
    a = 0 < i < n - 1
    b = (x.sum() > 0 and i == 0) or steps > 2
    c = not (a or b) and True
    d = 0 <= x.sum() < limit < 2
    e = a and False, True or a, None or i, i and 3
    return x + np.where(a, 1, 2) * np.where(b, 3, 5) + c * 7 + d * 11 + e[1] + np.where(e[0], 1, 0)


def operands(x, steps, limit):
    i, n, first = spmd.axis_index("r"), spmd.axis_size("r"), x.sum()
    a = (i or 9) + 10 * (i and 7) + 100 * (steps or 5) + 1000 * (steps and i and 3)
    b = (n > 1 and 4) + (first or 5) + (first * 0 or 6.5) + (first and 7)
    return x + a * b + ((np.ones(1) * first) and (np.ones(1) * limit))


def membership(x, steps, limit):
    i, first = spmd.axis_index("r"), x.sum()
    a = (i in (0, 2)) + 2 * (i not in [1, steps]) + 4 * (i in {0: "a", 3: "b"})
    return x + a + 8 * (first in (0.0, limit)) + 16 * (0.75 in x) + (1 in (1, i)) + (i in range(2))


def guarded_operands(x, steps, limit):
    def halve(v):  # what stands behind `and` runs only where Python runs it
        v[...] = v / 2
        return v.sum() > 0

    y, k = x.copy(), 0
    if x.sum() > 0 and halve(y) or y.sum() < -5:
        y = y + 1
    x.sum() > 1 and halve(y)
    x.sum() > 2 or halve(y)
    while k < 3 and spmd.pmax(k + x.size * 0, "r") < steps:
        k += 1
    return y + k + (1 if not (x.sum() < 0 or 0 < x.sum() < limit) else 2)


def builtins(x, steps, limit):
    i = spmd.axis_index("r")
    k = min(i, 2, steps) + max(x.sum(), 0.0) + abs(i - 3) + abs(x.sum())
    m = int(steps) + float(i) + int(x.sum() * 0 + 2.7) + len(x) + min([steps, 2])
    return x + k + m + bool(steps) + np.float32(steps) * np.int64(2)


def memory_written_in_both_arms(x, steps, limit):
    view = x[:, 0]
    if steps > 1:
        view += 1
    else:
        x[:, 0] = 9
    return x + view[:, None]


def undefined_is_rebound(x, steps, limit):
    if steps > 1:
        t = x * 2
    t = x + 1
    return t


def trying(x, steps, limit):
    for i in spmd.range(steps):
        try:
            x = x + {"a": 1}["b"]
        except KeyError:
            x = x + 2
        finally:
            x = x * 0.5
    return x


def recursion(x, steps, limit):
    def power(y, k):
        if k == 0:
            return 1.0
        half = power(y, k // 2)
        return half * half * y if k % 2 else half * half

    return power(x, 5)


def builtins_over_elements(x, steps, limit):
    """min, max, any, all and sum go through an array's elements, a generator's, a list's."""
    i = spmd.axis_index("r")
    row = np.sum(x * x, axis=0)
    y = x + min(row) - max(v * v for v in row) + max(row[0], 1.0, i)
    if any(v > 9 for v in row) or all([row[0] > 2, row[1] > -1]):
        y = y * 2
    if any([i == 0, i == 3]) and all(row >= 0) and not any(()):
        y = y + 1
    return y + sum(row) + min(3, 2) + max([1, 2])


def the_first_of_min_and_max(x, steps, limit):
    """Python keeps the first unless the next is beyond it: NaN and another zero never are."""
    nan = limit * np.nan
    row = np.array([1.0, np.nan, 3.0, -2.0]) * limit
    one = max(nan, 1.0), max(1.0, nan), min(limit, nan, 0.25), max(row), min(row), max(row[1:])
    zeros = max(limit * 0, -0.0), min(limit * 0, -limit * 0)
    known = [np.where(np.isnan(v), 10**k, v) for k, v in enumerate(one)]
    return x + sum(known) + np.signbit(zeros[0]) + 2 * np.signbit(zeros[1])


def truths_are_counted(x, steps, limit):
    """Comparisons of Python's numbers are 0 and 1 in sums; elements of an array are not."""
    a, b = limit > 0.1, limit < 2.5
    of_numbers = (a + b) + 10 * (a - b) + 100 * -a + 1000 * (bool(x.sum() + 9) + (steps >= 0))
    of_numbers += ~b + ~(steps > 0)  # -2, as of 1
    of_numbers += (not limit) + (not steps) + any(x[:1, 0] < 99) + (99.0 not in x)
    small = np.ones(1, np.float32) * (a * 2)
    assert small.dtype == np.float32
    for k in spmd.range(3):  # what is carried, or comes out of a branch, is Python's still
        of_numbers += a + b
        a = limit > 0.2
    c = limit > 0.3 if x.sum() < 99 else limit > 9.9
    of_numbers += c + b + (0.1 < limit < 2.5) + (0.2 < limit < 2.6)
    return x + of_numbers + ((x.sum() < 99) + (x.sum() > -99)) * 0.5 + (a & b) + small.sum()


@functools.singledispatch
def named(v):
    return 1


@named.register
def _(v: np.ndarray):
    return 2 if v.sum() > 0 else v.ndim + 3


@named.register
def _(v: float):
    return 6


def dispatched_by_type(x, steps, limit):
    return x + named(x[0:]) * 10 + named(x.sum()) + named(limit) * 100 + named("a") * 1000


def rebound_in_an_inner_loop(x, steps, limit):
    """An inner loop that does not read a name binds it; only code behind both loops reads it."""
    last = x + 1
    for k in spmd.range(steps):
        last = x + 2
        for _ in spmd.range(k):
            last = x + 3 + k
    seen, i = x + 1, 0
    while i < steps:
        seen = x * 2
        j = 0
        while j < i:
            seen = x * 3 + j
            j += 1
        i += 1
    return last + seen


PROGRAMS = [
    matches,
    rebinding, in_place, through_a_view, through_a_helper, python_numbers, nested, negative_step,
    bounds_by_the_index, bounds_by_data, backwards, swapping, double_buffer, two_names_of_one,
    containers, rebuilt_containers, objects,
    rebound_in_an_inner_loop, unrolled, break_and_continue, break_in_inner, break_unrolled,
    counter_after, zero_dim_memory,
    while_data, while_known_at_first, while_true, while_plain, while_walrus, while_else,
    on_the_index, on_data, numbers_stay_numbers, early_returns, returns_in_unrolled_loop,
    conditional_expressions, logic, operands, membership, guarded_operands, builtins,
    builtins_over_elements, the_first_of_min_and_max, dispatched_by_type,
    truths_are_counted,
    memory_written_in_both_arms, undefined_is_rebound, trying, recursion,
]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_agrees_with_numpy(f: Callable[..., Any]) -> None:
    agree(f)


# ---- extents that follow from a counter --------------------------------------------------------


def test_a_short_loop_with_extents_of_its_counter_is_run_by_python() -> None:
    """Python unrolls it, as in Stockham's Fourier transform; the loop around it stays one."""

    @spmd.program(mesh=("r",))
    def halves(k: int = 4, turns: int = 3, steps: int = 4):
        y = spmd.input("y", (2**k,), np.float64, layout=("r",), default=lambda i: i * i % 7)
        for _ in spmd.range(turns):
            for i in spmd.range(steps):
                pairs = np.reshape(y, (2**i, 2, 2 ** (k - i - 1)))
                y[:] = np.transpose(pairs, (1, 0, 2)).reshape(-1) + np.arange(2**i).sum()
        return y

    module = halves.capture()
    assert kinds(module).count("loop") == 1
    for n in (1, 3):
        np.testing.assert_array_equal(interpret.run(module, {"r": n}, {})["result"],
                                      halves.eager(n))
    with pytest.raises(spmd.SpmdError, match="reshape takes integers"):
        halves.capture(steps=65, turns=65)
