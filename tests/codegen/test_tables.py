"""Tables and powers of two in to= of ppermute; lists that the run's numbers subscript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import MatchingError, SpmdError, TracedValueError, UsageError
from codegen.oracle import interpret
from codegen.trace.program import Program

TABLE = np.array([[1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]])
PARTNERS = [1, 0, 3, 2]


def sent(to: Callable[[Any, Any, Any], Any], size: int | None = 4, turns: int = 3) -> list[float]:
    """What four ranks have after turns in which each adds what it is sent."""

    def program():
        x = spmd.input("x", (4,), np.float64, layout=("r",))

        @spmd.shard_map(mesh="r", out_layouts=("r",))
        def body(x):
            for t in spmd.range(turns):
                x = x + spmd.ppermute(x, "r", to=lambda i, n: to(t, i, n))
            return x

        return body(x)

    module = Program(program, {"r": size} if size else ("r",)).capture()
    (result,) = interpret.run(module, {"r": 4}, {"x": np.arange(4.0)}).values()
    return result.tolist()


def expected(to: Callable[[int, int, int], int | None], turns: int = 3) -> list[float]:
    x = np.arange(4.0)
    for t in range(turns):
        got = np.zeros(4)
        for i in range(4):
            if (k := to(t, i, 4)) is not None:
                got[k] += x[i]
        x = x + got
    return x.tolist()


@pytest.mark.parametrize("to", [
    lambda t, i, n: TABLE[t % 3, i], lambda t, i, n: TABLE[0, i], lambda t, i, n: TABLE[-1, i - 4],
    lambda t, i, n: (i + TABLE[t % 3, 0]) % n, lambda t, i, n: PARTNERS[i],
    lambda t, i, n: (3, 2, 1, 0)[i], lambda t, i, n: np.roll(np.arange(4), 1)[i],
    lambda t, i, n: (2**i - 1 + i // 2 * 3) % 4 if i < 2 else None,
    lambda t, i, n: (i + 2**t) % n, lambda t, i, n: i ^ (2**(t % 2)),
    lambda t, i, n: i ^ 1 if TABLE[t % 3, 0] > 1 else None,
])
def test_tables_and_powers_of_two(to: Callable[[Any, Any, Any], Any]) -> None:
    assert sent(to) == expected(to)


@pytest.mark.parametrize(("to", "error", "said"), [
    (lambda t, i, n: np.zeros(4, int)[i], MatchingError, "both send to 0"),
    (lambda t, i, n: np.array([1.0, 0, 3, 2])[i], UsageError, "must give a destination"),
    (lambda t, i, n: np.arange(4096)[i], UsageError, "too large for a formula"),
])
def test_refused(to: Callable[[Any, Any, Any], Any], error: type[SpmdError], said: str) -> None:
    with pytest.raises(error, match=said):
        sent(to)


def test_powers_of_two_of_any_size_say_what_is_needed() -> None:
    with pytest.raises(UsageError, match=r"2\*\*i where the axis has a fixed size"):
        sent(lambda t, i, n: 2**i % n, None)


@pytest.mark.parametrize("rows", [[1.0, 2.0], (1, 2), [np.ones(2), np.zeros(2)]])
def test_a_list_says_that_an_array_is_needed(rows: Any) -> None:
    def program():
        total = spmd.zeros(())
        for i in spmd.range(2):
            total = total + np.sum(rows[i])
        return total

    with pytest.raises(TracedValueError, match=r"np.array\(…\)\[i\] of a list of numbers"):
        Program(program, ("r",)).capture()


def summed(x: Any, n: int) -> Any:
    for i in spmd.range(n):
        x = x + i
    for i in reversed(spmd.range(1, n, 2)):
        x = x * 2 - i
    return x


def test_spmd_range_outside_of_programs_is_range() -> None:
    @spmd.program(mesh=("r",))
    def program():
        return summed(spmd.input("x", (3,), np.float64, layout=("r",)), 5)

    assert list(spmd.range(5)) == [0, 1, 2, 3, 4] and len(spmd.range(1, 9, 2)) == 4
    (result,) = interpret.run(program.capture(), {"r": 2}, {"x": np.ones(3)}).values()
    np.testing.assert_array_equal(result, summed(np.ones(3), 5))
