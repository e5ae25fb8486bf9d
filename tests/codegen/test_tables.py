"""Tables and powers of two in to= of ppermute; lists that the run's numbers subscript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import MatchingError, SpmdError, TracedValueError, UsageError
from codegen.oracle import interpret
from codegen.trace.program import Program
from codegen.verify.sample import check_exchanges
from codegen.verify.small import check

TABLE = np.array([[1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]])
PARTNERS = [1, 0, 3, 2]


def sent(to: Callable[[Any, Any, Any], Any], size: int | None = 4, turns: int = 3) -> list[float]:
    """Return what four ranks have after turns in which each adds what it is sent."""

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


@pytest.mark.parametrize("rows", [[1.0, 2.0], [np.ones(2), np.zeros(2)]])
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


# ---- tables and powers outside of to= ------------------------------------------------------------

SHIFTS = np.array([1, 2, 3, 1, 2])
WHAT = np.array([[0, 1, 2, 1, 0], [1, 2, 1, 0, 0], [2, 1, 0, 0, 1], [1, 1, 0, 2, 2]])
FIRST = [0, 1, 3]


def shifted(x):
    for k in spmd.range(5):
        x = x + spmd.ppermute(x, "r", shift=SHIFTS[k] * 2 - 1)
    return x


def doubling(x):
    for k in spmd.range(3):
        x = x + spmd.ppermute(x, "r", to=lambda i, n: (i ^ 2**k) if (i ^ 2**k) < n else None)
    return x


def turns_of_a_table(x):
    for k in spmd.range(5):
        for j in spmd.range(SHIFTS[k], 4):
            x = x + spmd.ppermute(x, "r", to=lambda i, n: (i + SHIFTS[j] * 3**k) % n)
    return x


def turns_of_a_power(x):
    for k in spmd.range(3):
        for j in spmd.range(2**(2 - k)):
            x = x + spmd.ppermute(x, "r", shift=2**(j % 3) + FIRST[k])
    return x


def arms_of_a_table(x):
    for k in spmd.range(5):
        if SHIFTS[k] == 2:
            x = x + spmd.ppermute(x, "r", shift=SHIFTS[k])
        elif SHIFTS[k] > 2:
            x = x + spmd.psum(x, "r")
    return x


def arms_of_each_rank(x):
    i = spmd.axis_index("r")
    for k in spmd.range(5):
        x = spmd.switch(WHAT[i % 4, k], [lambda x: x, lambda x: x * 2, lambda x: x - 3], x)
        for _ in spmd.range(FIRST[i % 3]):
            x = x * 3 + FIRST[i % 3]
    return x


def mesh_says(x):
    for k in spmd.range(5):
        if spmd.axis_size("r") % 4 == SHIFTS[k]:
            x = x + spmd.ppermute(x, "r", shift=2**k)
    return x


LONG = np.arange(40).reshape(20, 2) ** 3 % 7


def turns_of_a_long_table(x):
    for t in spmd.range(20):
        row = np.asarray(LONG)[t]
        x = x + spmd.ppermute(x, "r", to=lambda i, n: (i + row[t % 2]) % n)
    return x


BODIES = [shifted, turns_of_a_long_table, doubling, turns_of_a_table, turns_of_a_power,
          arms_of_a_table, arms_of_each_rank, mesh_says]


def on_ranks(body):
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (spmd.axis_size("r"), 3), np.float64, layout=("r", None),
                       default=lambda i, j: i * 3 + j)
        return spmd.shard_map(body, mesh="r", out_layouts=("r", None))(x)

    return program


@pytest.mark.parametrize("body", BODIES)
def test_tables_and_powers_in_messages_branches_and_loops(body) -> None:
    """They agree with NumPy on any number of ranks; verify evaluates all messages without a run."""
    program = on_ranks(body)
    image = spmd.build(program)
    for ranks in (1, 2, 3, 4, 5, 8):
        np.testing.assert_array_equal(image.run(ranks=ranks), program.eager(ranks=ranks))
    table = check_exchanges(lower(program.graph({})).plan)
    assert len(table.rows) == sum("site" in row for row in image.manifest["operations"])
    assert not any(row.unknown for row in table.rows)
    agreed = check(table, [{"n_r": n} for n in range(1, 9)], 10**6)
    assert agreed.transfers > 0 or not table.rows


def test_a_list_of_integers_promotes_as_its_elements() -> None:
    @spmd.program(mesh=("r",))
    def program():
        x = np.ones(3, np.float32)
        for k in spmd.range(3):
            x = x * FIRST[k] + 1
        return x

    out = spmd.build(program).run(ranks=2)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, program.eager(ranks=2))
