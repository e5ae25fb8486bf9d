"""Functions under @spmd.recursive: in programs, in eager runs and as plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.ir.graph import walk
from codegen.ops import DynamicUpdate

# mypy: ignore-errors

RANKS = (1, 3)


@spmd.recursive(depth=40)
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


@spmd.recursive(depth=30)
def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


@spmd.recursive(depth=100)
def ackermann(m, n):
    if m == 0:
        return n + 1
    elif n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


@spmd.recursive(depth=2)
def gcd(a, b):
    """Far more calls than rows: each of them is the last thing that the function does."""
    if b == 0:
        return a
    return gcd(b, a % b)


@spmd.recursive(depth=16)
def power(x, n):
    if n == 0:
        return 1.0
    half = power(x, n // 2)
    return half * half * (x if n % 2 else 1.0)


@spmd.recursive(depth=16)
def hanoi(n, source, target, spare):
    return 0 if n == 0 else (hanoi(n - 1, source, spare, target) + 1
                             + hanoi(n - 1, spare, target, source))


@spmd.recursive
def is_even(n):
    return True if n == 0 else is_odd(n - 1)


@spmd.recursive
def is_odd(n):
    if n == 0:
        return False
    return is_even(n - 1)


@spmd.recursive
def collatz(n):
    """Steps to 1; both calls stand in a conditional expression, beside a helper that calls, too."""
    def next_of(m):
        return collatz(m // 2) if m % 2 == 0 else collatz(3 * m + 1)

    return 0 if n == 1 else 1 + next_of(n)


def program_of(body: Callable[..., Any]) -> Any:
    return spmd.program(mesh=("r",))(body)


def runs(program: Any, **given: Any) -> list[Any]:
    """Return the results of an image on 1 and 3 ranks, and of an eager run."""
    image = spmd.build(program)
    return [*(image.run(ranks=n, **given) for n in RANKS), program.eager(**given)]


def test_of_numbers() -> None:
    def numbers():
        n = spmd.scalar("n", 12)
        return {
            "fib": fib(n), "known": fib(10), "factorial": factorial(n), "power": power(1.5, n),
            "ackermann": ackermann(2, n // 4), "gcd": gcd(n * 832040, 514229 * 6),
            "hanoi": hanoi(n - 4, 0, 1, 2), "even": is_even(n), "odd": is_odd(n),
            "collatz": collatz(n),
        }

    for n in (12, 7):
        for found in runs(program_of(numbers), n=n):
            expected = {
                "fib": {12: 144, 7: 13}[n], "known": 55, "factorial": math.factorial(n),
                "power": 1.5**n, "ackermann": 2 * (n // 4) + 3,
                "gcd": math.gcd(n * 832040, 514229 * 6), "hanoi": 2 ** (n - 4) - 1,
                "even": n % 2 == 0, "odd": n % 2 == 1, "collatz": {12: 9, 7: 16}[n],
            }
            assert {k: v.item() if hasattr(v, "item") else v for k, v in found.items()} == expected
    assert fib(20) == 6765 and gcd(2**40, 6**9) == 2**9  # plain Python


LEFT, RIGHT = np.array([1, 3, 5, -1, -1, -1, -1]), np.array([2, 4, 6, -1, -1, -1, -1])


@spmd.recursive(depth=4)
def walked(node, values):
    """The sum and the height of a tree."""
    if node < 0:
        return 0.0, 0
    left, below = walked(np.asarray(LEFT)[node], values)
    right, beside = walked(np.asarray(RIGHT)[node], values)
    return left + right + values[node], 1 + (below if below > beside else beside)


@spmd.recursive(depth=12)
def found_at(a, x, lo, hi):
    if lo >= hi:
        return lo
    middle = (lo + hi) // 2
    if a[middle] < x:
        return found_at(a, x, middle + 1, hi)
    return found_at(a, x, lo, middle)


def test_over_arrays() -> None:
    """Arrays are read by closure, passed on, or written in place."""
    data = np.random.default_rng(3).permutation(23).astype(float)

    def arrays():
        x = spmd.input("x", (23,), np.float64, layout=("r",))
        a = x.copy()

        @spmd.recursive(depth=23)
        def sort(lo, hi):
            if hi - lo < 2:
                return
            pivot, at = a[hi - 1], lo
            for k in spmd.range(lo, hi - 1):
                if a[k] < pivot:
                    a[k], a[at] = a[at], a[k]
                    at += 1
            a[hi - 1], a[at] = a[at], a[hi - 1]
            sort(lo, at)
            sort(at + 1, hi)

        @spmd.recursive(depth=8)
        def largest(lo, n):
            if n == 1:
                return x[lo]
            return np.maximum(largest(lo, n // 2), largest(lo + n // 2, n - n // 2))

        sort(0, 23)
        root = spmd.scalar("root", 0)
        return a, largest(0, 23 - root), walked(root, x), found_at(a, 7.5 + root, 0, 23)

    for root in (0, 1):
        for a, most, (total, height), place in runs(program_of(arrays), x=data, root=root):
            np.testing.assert_array_equal(a, np.sort(data))
            assert most == data[: 23 - root].max() and place == 8 + root
            nodes = range(7) if root == 0 else (1, 3, 4)
            assert total == data[list(nodes)].sum() and height == 3 - root


def test_what_a_call_needs_later_is_kept() -> None:
    """Arrays as arguments and results; old contents of an array that calls write."""

    @spmd.recursive(depth=9)
    def pairs(x, y, n):
        if n == 0:
            return y, x
        a, b = pairs(y, x + n, n - 1)
        c = np.sort(a)[::-1] if n % 2 == 1 else b * 2
        d = c + 1
        if n == 2:
            e, _ = pairs(d, a, 0)
            d = d + e
        return d, a - b

    def kept():
        x = spmd.input("x", (5,), layout=("r",), default=lambda i: i + 1.0)
        out = spmd.zeros(12)

        @spmd.recursive(depth=9)
        def count(n, at):
            if n == 0:
                out[at] = 1
            else:
                before = out.copy()
                out[at] += n
                if n > 1:
                    count(n - 2, at + 1)
                out[at + 2] += before[at + 1] + 1
                count(n - 1, at + 2)
                out[0] += before.sum()

        count(spmd.scalar("n", 4), 0)
        return pairs(x, x * x, spmd.scalar("m", 4)), out

    one, three, plain = runs(program_of(kept))
    for found in (one, three):
        for a, b in zip((*found[0], found[1]), (*plain[0], plain[1])):
            np.testing.assert_array_equal(a, b)
    assert plain[1][0] == 181


def test_results_are_no_arguments() -> None:
    """Writing into an array after it was passed on changes no result that was computed."""

    @spmd.recursive
    def scaled(x, n):
        return x * 2 if n == 0 else scaled(x * 2, n - 1)

    @spmd.recursive
    def perhaps(x, n):
        return x if n == 0 else perhaps(x * 2, n - 1)

    def written(function):
        def program():
            x = spmd.zeros(3) + 1
            y = function(x, spmd.scalar("n", 2))
            x[0] = 7
            return x, y

        return program_of(program)

    for x, y in runs(written(scaled)):
        assert x.tolist() == [7, 1, 1] and y.tolist() == [8, 8, 8]
    with pytest.raises(spmd.ProgramError, match="may or may not share memory"):
        spmd.build(written(perhaps))


def test_each_rank_has_its_own() -> None:
    @spmd.recursive
    def shrunk(x, n):
        if n == 0:
            return x
        total = spmd.psum(np.sum(x), "r")
        return shrunk(x / total, n - 1) + total

    def ranks():
        n = spmd.scalar("n", 3)
        x = spmd.input("x", (3 * 4,), layout=("r",), default=lambda i: i + 1.0)
        steps = spmd.shard_map(lambda x: x * 0 + collatz(spmd.axis_index("r") + 3))(x)
        return steps, spmd.shard_map(lambda x: shrunk(x, n))(x)

    program = program_of(ranks)
    image = spmd.build(program)
    for n in RANKS:
        steps, shrunk_ = image.run(ranks=n)
        expected = np.repeat([7.0, 2.0, 5.0][:n], 12 // n)
        np.testing.assert_array_equal(steps, expected)
        np.testing.assert_allclose(shrunk_, program.eager(ranks=n)[1], rtol=1e-13)


def test_derivatives_and_members() -> None:
    def derived():
        n = spmd.scalar("n", 5)
        x = spmd.scalar("x", 1.5)
        return (spmd.grad(power)(x, n), spmd.jvp(lambda y: power(y, n), (x,), (1.0,))[1],
                spmd.vmap(fib)(spmd.arange(10)))

    image = spmd.build(program_of(derived))
    for n in RANKS:
        back, forth, members = image.run(ranks=n)
        assert back == forth == 5 * 1.5**4
        np.testing.assert_array_equal(members, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34])


def test_calls_wherever_they_stand() -> None:
    """In tests, operands, lists, unrolled loops, behind compiled ones; through other functions."""

    @spmd.recursive
    def mixed(n, scale=2, *rest, **more):
        if n <= 0:
            return rest[0] + more["z"]
        if mixed(n - 1, scale, *rest, **more) % 2 == 0 and n > 1:
            x = mixed(n - 2, scale, *rest, **more) + 1
        else:
            x = 3
        for k in spmd.range(n):
            x += k
            if x > 40:
                break
        if x > 40:
            return x - mixed(n - 3, scale, *rest, **more)
        parts = [x]
        for k in range(2):
            parts.append(helped(n - k, scale, *rest, **more))
        return parts[0] * scale + parts[1] - parts[2]

    def helped(n, *rest, **more):
        return mixed(n - 1, *rest, **more) + 1

    @spmd.recursive(depth=7)
    def queens(row, size, board, count):
        if row == size:
            count[...] += 1
            return
        columns(row, 0, size, board, count)

    @spmd.recursive(depth=50)
    def columns(row, column, size, board, count):
        if column == size:
            return
        free = True
        for k in spmd.range(row):
            if board[k] == column or np.abs(board[k] - column) == row - k:
                free = False
        if free:
            board[row] = column
            queens(row + 1, size, board, count)
        columns(row, column + 1, size, board, count)

    def program():
        board, count = spmd.zeros(6, np.int64), spmd.zeros((), np.int64)
        queens(0, spmd.scalar("size", 6), board, count)
        return count, mixed(spmd.scalar("n", 5), 3, 1, z=spmd.scalar("z", 2))

    for n, z in ((6, 2), (7, 5)):
        found = runs(program_of(program), n=n, z=z)
        assert [f[0] for f in found] == [4, 4, 4]
        assert found[0][1] == found[1][1] == found[2][1]


def test_a_function_whose_first_call_stands_inside() -> None:
    @spmd.recursive
    def up(n, x, y):
        return x + y if n == 0 else np.tanh(down(n - 1, y * 0.5, x)) + y

    @spmd.recursive
    def down(n, x, y):
        return x if n == 0 else up(n - 1, x + 1.0, y) * up(n // 2, x, [y][0] * 2)

    def program():
        x = spmd.arange(5) * 0.1
        return up(spmd.scalar("n", 5), x, x + 1)

    one, three, plain = runs(program_of(program))
    np.testing.assert_allclose(one, plain, rtol=1e-13)
    np.testing.assert_allclose(three, plain, rtol=1e-13)


def test_messages_at_distances_that_a_call_computes() -> None:
    @spmd.recursive(depth=9)
    def shifted(x, n):
        if n <= 0:
            return x
        y = spmd.ppermute(x, "r", shift=n)
        z = shifted(y, n - 1)
        return z + spmd.ppermute(y, "r", shift=n) * 10

    def program():
        n = spmd.scalar("n", 3)
        x = spmd.input("x", (spmd.axis_size("r") * 2,), layout=("r",), default=lambda i: i)
        return spmd.shard_map(lambda x: shifted(x, n))(x)

    program = program_of(program)
    image = spmd.build(program)
    for n in RANKS:
        np.testing.assert_array_equal(image.run(ranks=n), program.eager(ranks=n))


def test_a_tail_call_takes_no_row() -> None:
    def tail():
        return gcd(spmd.scalar("a", 6), spmd.scalar("b", 4))

    module = program_of(tail).capture()
    assert not any(isinstance(op.kind, DynamicUpdate) for op in walk(module.body))


def test_too_deep() -> None:
    @spmd.recursive(depth=7)
    def down(x, n):
        if n == 0:
            return x
        return down(x + 1, n - 1) * 2

    def deep():
        return down(spmd.zeros(3, np.float32), spmd.scalar("n", 6))

    program = program_of(deep)
    image = spmd.build(program)
    assert image.run(ranks=3)[0] == program.eager()[0] == 6 * 2**6
    for run in (lambda: image.run(ranks=3, n=9), lambda: program.eager(n=9)):
        with pytest.raises(spmd.CheckError) as error:
            run()
        first, line, *more = str(error.value).split("\n")
        assert first.endswith("the recursion of down is deeper than 7 calls"), first
        assert "test_recursion.py:" in first and line.strip() == "return down(x + 1, n - 1) * 2"
        assert "found:    one more with x = float32[3], n = 2" in more[1]
        assert "depth=…" in more[2]
    assert image.run(ranks=1, n=6)[0] == 384  # the next run begins anew
    with pytest.raises(spmd.CheckError, match="with x = 0, n = 2"):
        down(-7, 9)


@spmd.recursive
def in_a_loop(n):
    total = 1
    if n > 0:
        for _ in spmd.range(3):
            total += in_a_loop(n - 1)
    return total


@spmd.recursive
def endless(n):
    return endless(n - 1)


@spmd.recursive
def shorter(x):
    return x[0] if x[0] > 0 else shorter(x[1:])


@spmd.recursive
def writing(x, n):
    if n > 0:
        x[0] = n
        return writing(x + 1, n - 1)
    return x


@spmd.recursive
def counting(n):
    global COUNT
    COUNT += 1
    return 0 if n == 0 else counting(n - 1)


COUNT = 0
REFUSED = [
    (in_a_loop, int, spmd.UnsupportedError, "in_a_loop calls itself in a loop of the program"),
    (endless, int, spmd.ProgramError, "every way through endless calls it again"),
    (shorter, lambda n: spmd.zeros(8), spmd.CarryError, "the argument x of shorter changes its"),
    (lambda x: writing(x, 3 + 0 * spmd.scalar("m", 1)), lambda n: spmd.zeros(8),
     spmd.UnsupportedError, "writing writes into its argument x"),
    (counting, int, spmd.UnsupportedError, "COUNT is changed in a function under spmd.recursive"),
]


@pytest.mark.parametrize(("function", "argument", "cause", "said"), REFUSED,
                         ids=[c[3][:30] for c in REFUSED])
def test_refused(function: Any, argument: Any, cause: Any, said: str) -> None:
    def program():
        n = spmd.scalar("n", 4)
        return function(n if argument is int else argument(n))

    with pytest.raises(cause, match=said):
        spmd.build(program_of(program))


@pytest.mark.parametrize("depth", [0, 2.5, True])
def test_a_depth_is_a_count(depth: Any) -> None:
    with pytest.raises(spmd.UsageError, match=r"depth= of spmd\.recursive"):
        spmd.recursive(depth=depth)
