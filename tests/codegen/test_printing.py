"""print, f-strings and assert in programs: what Python would write; elsewhere the way out.

PYTEST_DONT_REWRITE: the programs have asserts.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import SpmdError
from codegen.oracle import interpret
from codegen.printed import written
from codegen.progress import ARRAY, ERROR
from codegen.trace.program import Program

# ruff: noqa: F502, F505, F507, F524, UP030, UP031, UP032

N = 6


def says(text, *values):
    """A helper, which prints for its caller."""
    print("helper:", text, *values, sep="-")


def everything(n=3):
    """Prints in every way that Python has."""
    x = spmd.input("x", (N,), np.float64, layout=("r",), default=lambda i: i * 0.5)
    k = spmd.input("k", (2, 3), np.int32, layout=(None, None), default=lambda i, j: i * 100 - j)
    width = 9
    print()
    print("start", n, None, {"a": 1}, "{literal} %d {0}", x.shape, sep=", ")
    total = 0.0
    for i in spmd.range(n):
        total = total + x.sum()
        print("turn", i, total, sep="|", end=";\n")
        print("a constant in a loop")
        print("one", end=" ")
        print("line", i, end="")
        print("", "", sep="...")
        print(f"{i:3d} {i!r} {total:.3f} {{}} {n} {total!r} {total!s} {x[1]=} {width:{width}d}|"
              f"{total:{width}.2f}|{'text':>8}")
        print("to standard error", i, total, "and\na second line", file=sys.stderr)
        says(i, total, "text")
        if i > 0:
            print("later" + f" {i}", i > 0)
        else:
            print("first")
    print(x, x.astype(np.float32) / 3, k * 7, x > 1, k, x * (1 + 2j))
    print([total, 1, (total,)], {"k": x[1], 2: [x[2] > 5]}, (n, "text"), x[:0])
    print(f"{x} {x=} {k!r}", file=None, flush=True)
    print(np.arange(300), np.float32(0.1), np.array([1.5]), "long" * 500)
    print(np.float32(0.1) * x[1].astype(np.float32), x[1] * 1e300, x[3] / 3, x[0], -x[0], 1 / x[0])
    assert total > 0, f"not positive: {total:.2f}"
    print(f"{x!s:>40}|{x[1]!r:<22}|{n!r:^5}|{x[0]!a:.5}", str(x), repr(k), format(x[1], ".1e"))
    print("%s %5.2f %-6d| %+d %08.3f %d %%" % (x, x[1], n, k[1, 1], x[3], x[3]), "%(a)r" % {"a": x})
    print("{} {x!s:>{w}}".format(x[1], x=x, w=30), "{1} {0}".format(k, 2))
    print("{:>{}.{}f} {}|".format(x[1], 9, 2, n), "%s" % {"a": x[1]}, "%r" % [x[1], "%d"])
    print(*[f"{v:.1f}" for v in (1.25, 2)], sep=None, end=None)
    return total


@pytest.mark.parametrize("ranks", [1, 3])
def test_prints_as_python(ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = Program(everything, ("r",))
    with np.errstate(divide="ignore"):
        program.eager(ranks=ranks)
    expected = capsys.readouterr()
    image = spmd.build(program)
    assert capsys.readouterr() == ("", "")  # nothing while it is built
    image.run(ranks=ranks)
    said = capsys.readouterr()
    assert said.out.splitlines() == expected.out.splitlines()
    assert said == expected


def test_the_oracle_prints_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    program = Program(everything, ("r",))
    with np.errstate(divide="ignore"):
        program.eager(ranks=2)
    expected = capsys.readouterr().out
    prints: list[str] = []
    interpret.run(program.capture(), {"r": 2}, prints=prints)
    assert "\n".join(p for p in prints if not p.startswith(ERROR)) + "\n" == expected


def test_an_fstring_of_spmd_print(capsys: pytest.CaptureFixture[str]) -> None:
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (6,), np.float64, layout=("r",), default=lambda i: i)
        for i in spmd.range(2):
            spmd.print(f"turn {i} {x[i + 1]:.1f}")
        return x

    prints: list[str] = []
    interpret.run(program.capture(), {"r": 2}, prints=prints)
    program.eager(ranks=2)
    assert prints == capsys.readouterr().out.splitlines() == ["turn 0 1.0", "turn 1 2.0"]


def test_one_rank_prints_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (6,), np.float64, layout=("r",), default=lambda i: i)

        @spmd.shard_map(mesh="r", out_layouts=("r",))
        def doubled(mine):
            print("I am", spmd.axis_index("r"), mine.shape[0], mine[0])
            return mine * 2

        return doubled(x)

    spmd.build(program).run(ranks=3)
    assert capsys.readouterr().out == "I am 0 2 0.0\n"


@pytest.mark.parametrize("array", [
    np.array([1.0, 1e-20, np.nan, -np.inf]), np.array([[True, False]]), np.array([], np.int8),
    np.array([1 + 2j, 3e9 - 1j], np.complex64), np.array([0.1, 2.5], np.float16),
    np.array([2**63 - 1, -(2**63)]), np.array([2**64 - 1], np.uint64),
    np.linspace(0, 1, 60).astype(np.float32),
], ids=lambda a: a.dtype.name)
def test_arrays_are_written_by_numpy(array: np.ndarray) -> None:
    for kind, expected in (("s", str(array)), ("r", repr(array))):
        elements = " ".join(str(x) for x in array.ravel())
        mark = f"{kind}{array.dtype.name}{array.shape}:"
        assert written(f"<{ARRAY}{mark}{elements}{ARRAY}>") == f"<{expected}>"


@dataclasses.dataclass
class Holder:
    x: Any


def text_of(f: Callable[[Any, Any], Any]) -> str:
    """The error of a program that makes a text of an array, or of a number that the run knows."""

    def program():
        steps = spmd.scalar("steps", 3)
        return f(spmd.input("x", (100,), np.float64, layout=("r",)), steps)

    with pytest.raises(SpmdError) as caught:
        Program(program, ("r",)).capture()
    text = str(caught.value)
    assert text.startswith(__file__), text
    return text


def under_a_condition(x, n):
    if x[0] > 0:
        raise ValueError("positive")
    return x


MADE_ELSEWHERE = [
    lambda x, n: "x is " + str(x), lambda x, n: str(x[0]), lambda x, n: str(n),
    lambda x, n: repr(x), lambda x, n: ascii(n), lambda x, n: "%s" % x, lambda x, n: "%d" % n,
    lambda x, n: "%d %r" % (1, x), lambda x, n: f"{x[0]:.2f}", lambda x, n: f"{x[0]:.2f}",
    lambda x, n: f"{x}", lambda x, n: f"{x!r}", lambda x, n: f"{n!s}", lambda x, n: f"{n=}",
    lambda x, n: str([x, 1]), lambda x, n: ",".join(map(str, [1, n])), lambda x, n: str(Holder(x)),
    lambda x, n: print(Holder(x)), lambda x, n: "{}".format(x[0]), lambda x, n: print("%c" % n),
    lambda x, n: logging.warning("x is %s", x[0]),
    lambda x, n: logging.getLogger("mine").info("n", extra={"n": n}),
]


@pytest.mark.parametrize("f", MADE_ELSEWHERE)
def test_texts_elsewhere_are_refused_with_the_way_out(f: Callable[[Any, Any], Any]) -> None:
    text = text_of(f)
    assert 'print(f"… {value}")' in text and "assert test, f" in text, text


@pytest.mark.parametrize(("f", "said"), [
    (lambda x, n: print(x), r"up to 64 elements"),
    (lambda x, n: print(x, file=io.StringIO()), r"file=sys.stdout or file=sys.stderr"),
    (lambda x, n: print(f"{x:.2f}"), r"the format '.2f' is for one number"),
    (lambda x, n: print(f"{n!r:d}"), r"expected: a format that a str has"),
    (lambda x, n: print("{:d}".format(x[0])), r"expected: a format that a float has"),
    (lambda x, n: print("{} {}".format(x[0])), r"no value for \{1\}"),
    (lambda x, n: print("%d" % (n, x[0])), r"expected: 1, for '%d'\n  found:    2"),
    (lambda x, n: print("%(a)s" % [x]), r"no value for %\(a\)"),
    (lambda x, n: print("%(a)s %(b)d" % {"a": x}), r"no value for %\(b\)"),
    (lambda x, n: print("{:>{}}".format(1, n)), r"found:    the format of a value"),
    (under_a_condition, "assert test, \"…\" ends the run"),
])
def test_refused(f: Callable[[Any, Any], Any], said: str) -> None:
    assert re.search(said, text_of(f)), text_of(f)


def test_a_file_of_the_programs_own_is_written_now() -> None:
    def program():
        file = io.StringIO()
        print("known", 1, file=file)
        print(f"{np.pi:.3f}", file=file, end="")
        return spmd.asarray(np.float64(len(file.getvalue())))

    (out,) = interpret.run(Program(program, ("r",)).capture(), {"r": 1}).values()
    assert out == len("known 1\n3.142")


def test_an_assert_says_what_the_run_knows() -> None:
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (4,), np.float64, layout=("r",))
        worst = x.max()
        assert worst < 5, "worst " + f"{worst:.2f} of {x.shape[0]}, {worst!s}"
        return worst

    image = spmd.build(program)
    assert image.run(ranks=2, x=np.ones(4)) == 1
    with pytest.raises(spmd.CheckError, match=re.escape("worst 7.00 of 4, 7.0")):
        image.run(ranks=2, x=np.full(4, 7.0))
