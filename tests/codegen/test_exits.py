"""Leaving loops: return from inside, break, else; what they bind is there after them; assert."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.errors import CarryError, CheckError, ProgramError
from codegen.oracle import interpret

# mypy: ignore-errors

X = np.array([0.3, 2.0, -1, 4, 0.5, 1])


def capture(f, in_ranks=False):
    @spmd.program(mesh=("r",))
    def program():
        t, n = spmd.scalar("t", 0.5), spmd.scalar("n", 4)
        x = spmd.input("x", (6,))
        if not in_ranks:
            return f(x, t, n)
        return spmd.shard_map(lambda x: f(x, t, n), out_layouts=spmd.replicated)(x)

    return program


def first_above(x, t, n):
    for i in spmd.range(n):
        if x[i] > t:
            return i
    return -1


def of_two_loops(x, t, n):
    for i in spmd.range(n):
        for j in spmd.range(i, n):
            if x[i] + x[j] > t * 2:
                return x * i + j, x[j]
        x = x + 0.25
    return x, x[0]


def several_returns(x, t, n):
    total = 0.0
    for i in spmd.range(n):
        if x[i] < 0:
            return total
        total = total + x[i]
        if total > t:
            return total * 100
    return -1.0


def from_a_while(x, t, n):
    turns = 0
    while True:
        x = x / 2
        turns += 1
        if x.max() < t:
            return x, turns


def in_the_first_turn(x, t, n):
    for i in spmd.range(4):
        return x + i


def from_a_branch(x, t, n):
    if t > 1:
        for i in spmd.range(n):
            if x[i] > t:
                return x * i
        x = x + 1
    return x


def leaves(x):
    return [y for e in x for y in leaves(e)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


class Searcher:
    def __init__(self, t):
        self.t = t

    def find(self, x, n):
        for k in range(2):
            for i in spmd.range(k, n):
                if x[i] > self.t:
                    return {"at": x[i], "k": k}
        return {"at": 0.0, "k": -1}


def from_a_method(x, t, n):
    found = Searcher(t).find(x, n)
    return found["at"], found["k"]


def bound_inside(x, t, n):
    for i in spmd.range(3):
        y = x + i
        z, w = (i * 2, "text")
        made = np.zeros(2)
        made[1] = i
    unused = x
    for _ in spmd.range(2):
        unused = y * 2
    return y, z, i, y[i], len(w), made, unused


def bound_before_the_break(x, t, n):
    while True:
        x = x * 0.5
        worst = np.abs(x).max()
        if worst < t:
            break
    return x, worst


def bound_in_inner_loops(x, t, n):
    total = np.zeros(6)
    for i in spmd.range(2):
        for j in spmd.range(i, 4):
            last = x * j
        total += last
        best = last
        while True:
            step = best.max()
            if step < t:
                break
            best = best / 2
        total[0] += step
    return total, last, step


def else_break_continue(x, t, n):
    for i in spmd.range(n):
        if x[i] > t:
            if x[i] > 3 * t:
                continue
            break
    else:
        x = x - 1
    k = 0
    while k < n:
        k += 1
        if x[0] > 2:
            if t > 1:
                break
            else:
                x = x / 4
                continue
        x = x + k
    else:
        x = x * 2
    return x, k


def a_counter_that_was_something_else(x, t, n):
    pair, _ = x + 1, x
    for _ in spmd.range(n):
        pair = pair * 2
        for k in spmd.range(2):
            pair, k = pair + k, x
    return pair


CASES = [
    first_above, of_two_loops, several_returns, from_a_while, in_the_first_turn, from_a_branch,
    from_a_method, bound_inside, bound_before_the_break, bound_in_inner_loops, else_break_continue,
    a_counter_that_was_something_else,
]


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_as_in_plain_python(f):
    for in_ranks in (False, True):
        program = capture(f, in_ranks)
        module = program.capture()
        for t, n in ((0.4, 4), (1.5, 3), (10.0, 4), (0.2, 0)):
            want = program.eager(x=X.copy(), t=t, n=n)
            want = want if isinstance(want, tuple) else (want,)
            got = interpret.run(module, {"r": 2}, {"x": X}, {"t": t, "n": n})
            assert len(got) == len(want)
            for a, b in zip(got.values(), want):
                np.testing.assert_allclose(a, b, rtol=1e-13)


def test_what_leaves_a_loop_or_a_branch_is_laid_alike_on_every_way():
    """The input itself, a place that no turn filled, a view that is split only after a write."""

    def first(x):
        for k in spmd.range(5):
            if x[0] > k:
                return x, k
        return x * 2, 7

    def rebound(x):
        m, w = np.zeros((3, 3)), np.zeros((2, 3))
        r, v = m[0], w[0]
        for k in spmd.range(3):
            r = m[k]
            r += x * k
        if x[0] > 0:
            v = w[1]
            v += x
        return m, w, r + v

    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (3,), layout=("r",), default=lambda i: i + 1.0)
        return first(x), first(x - 5), first(x + 3), rebound(x), rebound(-x)

    image = spmd.build(program)
    want = leaves(program.eager())
    for ranks in (1, 2):
        for a, b in zip(leaves(image.run(ranks=ranks)), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_nobody_reads_after_a_loop_is_not_carried():
    def f(x, t, n):
        for i in spmd.range(3):
            part = x * i
            x = x + part
        for _ in spmd.range(3):
            part = x * 2
            x = x + part
        return x

    loops = [op for op in capture(f).capture().body.ops if op.kind.name == "loop"]
    assert [len(op.operands) for op in loops] == [1, 1]


def forever(x, t, n):
    while True:  # here
        x = x + 1
    return x


def maybe_no_turn(x, t, n):
    for i in spmd.range(n):
        y = x * i
    return y  # here


def before_it_is_bound(x, t, n):
    for i in spmd.range(3):
        if x[i] > t:
            break
        y = x * i
    return y  # here


def of_two_types(x, t, n):
    for i in spmd.range(n):  # here
        if x[i] > t:
            return x
    return 1.0


REFUSED = [
    (forever, ProgramError, "this loop never ends"),
    (maybe_no_turn, ProgramError, '"y" has no value here'),
    (before_it_is_bound, ProgramError, '"y" has no value here'),
    (of_two_types, CarryError, "the returned value changes"),
]


@pytest.mark.parametrize("k", range(len(REFUSED)))
def test_refused(k):
    f, error, text = REFUSED[k]
    with pytest.raises(error, match=text) as caught:
        capture(f).capture()
    assert k == 3 or "# here" in str(caught.value)


# ---- assert --------------------------------------------------------------------------------------


@spmd.program(mesh=("r",))
def asserting(size: int = 6):
    x = spmd.input("x", (size,), layout="r")
    k = spmd.scalar("k", 2)
    assert size == 6, f"{size} is known while building"
    for i in spmd.range(4):
        x = x + 1
        assert np.all(x < 100), f"x grew to {x.max():.2f} in turn {i} of {size}"
    if k > 3:
        assert k > 5

    def body(part):
        assert part.sum() < 280, ("the part", "is too large")
        return part * 2

    return spmd.shard_map(body, out_layouts="r")(x)


def test_assert_ends_the_run_with_its_line_message_and_rank():
    image, module = spmd.build(asserting), asserting.capture()
    large = np.repeat([0.0, 95.0], [2, 4])
    for ranks in (3, 6):  # the parts are small
        np.testing.assert_array_equal(image.run(ranks=ranks, x=large), (large + 4) * 2)
        asserting.eager(ranks, x=large)
    for given, first, rank in (
        ({"x": np.full(6, 97.5)}, "x grew to 100.50 in turn 2 of 6", ""),
        ({"x": np.zeros(6), "k": 4}, "assert k > 5 does not hold", ""),
        ({"x": large}, "('the part', 'is too large')", "1"),
    ):
        run = {"x": given["x"]}
        ranks, k = 2, given.get("k", 2)
        with pytest.raises(CheckError) as error:
            image.run(ranks=ranks, k=k, **run)
        assert first in str(error.value) and error.value.exit_code == 65
        assert "test_exits.py:" in str(error.value)
        assert f"rank {rank}" in str(error.value)
        with pytest.raises(CheckError) as error:
            interpret.run(module, {"r": ranks}, run, {"k": k})
        assert first in str(error.value)
        with pytest.raises(AssertionError):
            asserting.eager(ranks, k=k, **run)
