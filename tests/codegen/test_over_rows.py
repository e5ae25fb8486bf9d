"""Python's loops: those over rows and np.ndindex are compiled; the run may end others early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import UnsupportedError
from codegen.ir.graph import walk
from codegen.ops import Loop
from codegen.oracle import interpret
from codegen.trace.program import Program

TABLE = np.array([[1.0, 2.0, 0.5, 3.0]] * 90)


def squares(x):
    out = np.zeros(100)
    for k in np.arange(100):
        out[k] = x[k % 4] * k
    return out


def places(x):
    """The loop variable is two of Python's integers."""
    out = np.zeros((12, 12))
    for i, j in np.ndindex(10, 10):
        out[i + 1, j + 1] = x[(i + j) % 4] + out[i, j]
    return out


def integers(x):
    """Computes with NumPy's integers: quotients, truth values, powers and their promotion."""
    s = x.astype(np.float32)
    for k in np.arange(70, 0, -1):
        s = s + 1 / k + k // 7 + k % 5 + k**2 + ~(k > 5) + (k > 3) * (k < 7)
        s = s + min(k, 3) - abs(-k)
        s = (s + np.float32(isinstance(k, np.integer)) + isinstance(k, int)).astype(np.float32)
    y = x.astype(np.float32)
    return s, y * k, y * int(k), y * k.item()


def rows_that_are_written(x):
    a = np.outer(np.arange(100.0), x)
    for row in a:
        row *= 2
    return a


def ended(x):
    for k in np.arange(200):
        if x[2] * k > 50:
            break
        x[1] += k
    return x + k


def constants(x):
    for row in TABLE:
        x = x * 0.5 + row
    for t in np.linspace(0, 1, 70):
        x = x + t
    return x


def asked_before(x):
    """Takes an index from np.ndindex before the loop, so that Python runs the loop."""
    at = np.ndindex(70)
    next(at)
    for (k,) in at:
        x = x + k
    return x


def two_loops_over_one(x):
    """Loops twice over one np.ndindex, which goes on where the first loop has left it, as iterators
    do."""
    at, ended = np.ndindex(70), np.ndindex(70)
    for _ in range(2):
        for (k,) in at:
            x = x + k
    for (k,) in ended:
        x = x * 0.5 + k
        if k == 3:
            break
    return x + next(ended)[0]


def texts(x):
    for name in np.array(["a", "b"] * 40):
        x = x * 0.5 + (name == "a")
    return x


def rows_of_a_matrix(x):
    for row in TABLE.view(np.matrix):
        x = x * 0.5 + row.shape[0]
    return x


def appended(x):
    out = []
    for k in np.arange(70):
        out.append(x[0] + k)
    return np.stack(out)


def shapes(x):
    for k in np.arange(1, 70):
        x = x + np.sum(np.ones(k))
    return x


def few(x):
    for k in np.arange(5):
        x = x + k
    return x


@pytest.mark.parametrize(("f", "compiled"), [
    (squares, 1), (places, 1), (integers, 1), (rows_that_are_written, 1), (ended, 1),
    (constants, 2), (asked_before, 0), (two_loops_over_one, 0), (texts, 0),
    (rows_of_a_matrix, 0), (appended, 0), (shapes, 0), (few, 0),
])
def test_as_in_python(f: Any, compiled: int) -> None:
    def program() -> Any:
        x = spmd.input("x", (4,), np.float64, layout=("r",), default=lambda i: i + 1)
        return f(x)

    graph = Program(program, ("r",)).capture()
    assert sum(isinstance(op.kind, Loop) for op in walk(graph.body)) == compiled
    made = f(np.arange(1.0, 5.0))
    made = made if isinstance(made, tuple) else (made,)
    for found, expected in zip(interpret.run(graph, {"r": 3}).values(), made, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("items", [
    lambda: iter(range(4)), lambda: np.ndindex(2, 2), lambda: np.ndindex(90),
    lambda: enumerate([3, 5]),
])
@pytest.mark.parametrize("use", [next, list, set, lambda it: (7 in it,)])
def test_an_iterator_after_a_loop_that_may_end_early(items: Any, use: Any) -> None:
    def program() -> Any:
        x = spmd.input("x", (4,), np.float64, layout=("r",))
        it = items()
        for _ in it:
            x = x + 1
            if x[0] > 5:
                break
        return x, len(use(it))

    with pytest.raises(UnsupportedError, match="after a loop that the run may end early"):
        Program(program, ("r",)).capture()


def test_a_loop_over_texts_and_functions_that_may_end_early() -> None:
    """Nobody reads the loop variables after a turn: they need not be numbers."""
    def left(x: Any) -> Any:
        for name, factor in {"a": 1.5, "b": 3.0}.items():
            for f in (np.sin, np.cosh):
                x = f(x) * factor
                if x[0] > 1.7:
                    break
            if x[1] > 2 and name:
                break
        return x

    def program() -> Any:
        return left(spmd.input("x", (4,), np.float64, layout=("r",)))

    graph = Program(program, ("r",)).capture()
    for start in (0.0, 1.0, 2.0):
        x = start + np.arange(4.0) / 4
        (found,) = interpret.run(graph, {"r": 2}, {"x": x}).values()
        np.testing.assert_allclose(found, left(x))


def test_do_while_and_for_each() -> None:
    """Both become loops of the program; the body of a do-while runs once at least."""

    @spmd.program(mesh=("r",))
    def forms():
        x = spmd.input("x", TABLE.shape, np.float64, layout=("r", None))
        number, digits = spmd.scalar("number", 0), 0
        while True:
            digits += 1
            number = number // 10
            if number == 0:
                break
        total = np.zeros(4)
        for row in x:
            if np.sum(row) < 0:
                continue
            total = total * 0.5 + row
        return digits, total

    loops = [op for op in walk(forms.capture().body) if isinstance(op.kind, Loop)]
    assert len(loops) == 2
    image = spmd.build(forms)
    expected = np.zeros(4)
    for row in TABLE:
        expected = expected * 0.5 + row
    for ranks, number in ((1, 0), (3, 1234567)):
        digits, total = image.run(ranks=ranks, x=TABLE, number=number)
        assert digits == len(str(number))
        np.testing.assert_array_equal(total, expected)
