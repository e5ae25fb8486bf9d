"""What control flow refuses: the class, the line and caret, and what the message teaches."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import (
    CarryError,
    ProgramError,
    ShapeError,
    TracedValueError,
    UnsupportedError,
    UsageError,
)
from tests.codegen.test_control import graph

# ruff: noqa: B007
# mypy: ignore-errors


def forgotten_range(x, steps, limit):
    for i in range(steps):  # here
        x = x + 1
    return x


def over_a_number(x, steps, limit):
    for i in steps:  # here
        x = x + 1
    return x


def enumerated(x, steps, limit):
    for k, i in enumerate(spmd.range(steps)):  # here
        x = x + i
    return x


def shape_changes(x, steps, limit):
    y = x[:, :2]
    for i in spmd.range(steps):  # here
        y = x
    return y


def dtype_changes(x, steps, limit):
    y = x.astype(np.float32)
    for i in spmd.range(steps):  # here
        y = y + x
    return y


def number_becomes_array(x, steps, limit):
    acc = 0
    for i in spmd.range(steps):  # here
        acc = acc + x
    return acc


def text_changes(x, steps, limit):
    mode = "a"
    for i in spmd.range(steps):  # here
        mode = mode + "a"
    return x


def list_grows(x, steps, limit):
    rows = []
    for i in spmd.range(steps):  # here
        rows.append(x * i)
    return rows[0]


def dict_entry_changes(x, steps, limit):
    p = {"w": x, "n": None}
    for i in spmd.range(steps):  # here
        p["n"] = x
    return x


def arms_differ(x, steps, limit):
    if steps > 1:  # here
        y = x
    else:
        y = x[:, 0]
    return y


def arms_differ_in_kind(x, steps, limit):
    if x.sum() > 0:  # here
        y = "up"
    else:
        y = "down"
    return x + len(y)


def local_to_the_loop(x, steps, limit):
    for i in spmd.range(steps):
        y = x * i
    return y * 1  # here


def local_counter(x, steps, limit):
    for i in spmd.range(steps):
        x = x * i
    return x + i  # here


def one_arm_only(x, steps, limit):
    if steps > 2:
        y = x
    return y * 1  # here


def raise_in_branch(x, steps, limit):
    if x.sum() > 0:
        raise ValueError("positive")  # here
    return x


def in_a_generator(x, steps, limit):
    def rows():
        if x.sum() > 0:  # here
            yield x[0]
        yield x[0]

    return sum(rows()) + x


def several_elements(x, steps, limit):
    if x > 0:  # here
        x = x + 1
    return x


def falls_off_the_end(x, steps, limit):
    if steps > 1:  # here
        return x


def numpy_constant_written(x, steps, limit, table=np.zeros(3)):  # noqa: B008
    for i in spmd.range(steps):
        table[1] = 5  # here
        x = x + table[1]
    return x


def leaked(x, steps, limit):
    for i in spmd.range(steps):
        linecache.cache["kept"] = x * 2  # nobody looks into the standard library's modules
    return linecache.cache.pop("kept") + x  # here


def stale_alias(x, steps, limit):
    y = x
    for i in spmd.range(steps):
        x += 1
        x = x * 2
    return y + x  # here


def buffers_read_by_their_first_names(x, steps, limit):
    a, b = x.copy(), x.copy()
    now, new = a, b
    for i in spmd.range(steps):
        new[:, 1:] = now[:, :-1]
        now, new = new, now
    return a + now  # here


def one_memory_two_names(x, steps, limit):
    u = v = x
    for i in spmd.range(steps):
        u += 1
        x = v * 2  # here
        u = v = x
    return u


def one_memory_at_first(x, steps, limit):
    u = v = x
    for i in spmd.range(steps):
        u += 1
        u, v = u * 2, v + 1  # here
    return u


def alias_written_in_the_body(x, steps, limit):
    y = x
    for i in spmd.range(steps):
        y[:, 0] = 0
        x = x + 1  # here
    return x


def alias_made_by_a_branch(x, steps, limit):
    y = x + 1
    z = y if steps > 2 else x
    z += 1
    return y + z  # here


def alias_of_a_branch_written(x, steps, limit):
    if x.sum() > 0:
        y = x
    else:
        y = x * 2
    x += 1
    return y * 1  # here


def alias_of_a_branch_in_the_turn_before(x, steps, limit):
    y = x * 0
    for i in spmd.range(steps):
        x[1] *= 2
        y = y * 0.5 + x  # here
        if i % 2 == 0:
            y = x
    return y


def zero_step(x, steps, limit):
    for i in spmd.range(0, steps, 0):  # here
        x = x + 1
    return x


def unknown_step(x, steps, limit):
    for i in spmd.range(0, 10, steps):  # here
        x = x + 1
    return x


def deleted_in_loop(x, steps, limit):
    y = x
    for i in spmd.range(steps):  # here
        del y
    return x


def operands_of_two_types(x, steps, limit):
    return x + (x.sum() > 0 and steps)  # here


def walrus_behind_and(x, steps, limit):
    if x.sum() > 0 and (y := x.sum()) > 1:  # here
        x = x + y
    return x


def list_times_a_number(x, steps, limit):
    return x + sum([1, 2] * steps)  # here


def tuple_times_an_element(x, steps, limit):
    return x + np.sum((1, 2) * x.astype(int).sum())  # here


def list_beside_a_number(x, steps, limit):
    return x + ([1, 2] + steps)[0]  # here


def greater_array(x, steps, limit):
    return max(x, x + 1)  # here


def unknown_bound_of_a_draw(x, steps, limit):
    return x + spmd.random.randint(1, (), 0, steps)  # here


ERRORS = [
    (list_times_a_number, TracedValueError, r"its elements, so many times.*np\.array"),
    (tuple_times_an_element, TracedValueError, r"multiply of tuple and Array.*np\.array"),
    (list_beside_a_number, TracedValueError, "have no operator"),
    (greater_array, ShapeError, r"np\.maximum\(a, b\)"),
    (unknown_bound_of_a_draw, TracedValueError, r"known while building.*low \+ np\.floor"),
    (forgotten_range, TracedValueError, "spmd.range"),
    (over_a_number, TracedValueError, r"for i in spmd\.range\(n\)"),
    (enumerated, TracedValueError, "enumerate"),
    (shape_changes, CarryError, r'"y" changes its type.*float64\[.*, 2\].*float64\[.*, 4\]'),
    (dtype_changes, CarryError, r'"y".*float32.*float64.*y\.astype\(float32\)'),
    (number_becomes_array, CarryError, r'"acc".*int64\[\].*float64\[.*spmd\.zeros'),
    (text_changes, CarryError, r"\"mode\" changes.*'a'.*'aa'"),
    (list_grows, UnsupportedError, r'"rows" grows.*list of 0 items.*list of 1 items.*out\[k\]'),
    (dict_entry_changes, CarryError, r"p\['n'\].*None.*float64"),
    (arms_differ, CarryError, r'"y".*branch'),
    (arms_differ_in_kind, CarryError, r"\"y\".*'up'.*'down'"),
    (local_to_the_loop, ProgramError, r'"y" has no value here.*first bound in the loop at.*bind y'),
    (local_counter, ProgramError, r'"i" has no value here'),
    (one_arm_only, ProgramError, r'"y" has no value here.*one arm only'),
    (raise_in_branch, UnsupportedError, "raise under a condition"),
    (in_a_generator, UnsupportedError, "generator"),
    (several_elements, ShapeError, r"\.any\(\) or \.all\(\)"),
    (falls_off_the_end, CarryError, "the returned value.*None"),
    (numpy_constant_written, ProgramError, r"w = table.copy\(\)"),
    (leaked, ProgramError, "made inside a loop"),
    (stale_alias, ProgramError, r"copy it before the loop"),
    (buffers_read_by_their_first_names, ProgramError, "share memory|written in a loop"),
    (one_memory_two_names, ProgramError, "may or may not share memory"),
    (one_memory_at_first, ProgramError, "may or may not share memory"),
    (alias_written_in_the_body, ProgramError, "may or may not share memory.*loop decides"),
    (alias_made_by_a_branch, ProgramError, "branch decides.*x.copy"),
    (alias_of_a_branch_written, ProgramError, "may or may not share memory"),
    (alias_of_a_branch_in_the_turn_before, ProgramError, "may or may not share memory"),
    (zero_step, UsageError, "zero"),
    (unknown_step, UnsupportedError, "sign of a step"),
    (operands_of_two_types, CarryError, r"`and`.*bool\[\] and int64\[\].*bool\(a\) and bool\(b\)"),
    (walrus_behind_and, UnsupportedError, "`and` decides.*:=.*in a statement before"),
    (deleted_in_loop, CarryError, '"y".*no value'),
]


@pytest.mark.parametrize(("f", "kind", "pattern"), ERRORS, ids=lambda p: getattr(p, "__name__", ""))
def test_refused(f: Callable[..., Any], kind: type[ProgramError], pattern: str) -> None:
    with pytest.raises(kind) as caught:
        graph(f)
    text = str(caught.value)
    assert type(caught.value) is kind
    assert re.search(pattern, text, re.DOTALL), text
    assert text.startswith(__file__ + ":"), text
    shown = text.split("\n")[1]
    assert "# here" in shown, text
    assert set(text.split("\n")[2].strip()) == {"^"}, text


def test_source_that_cannot_be_read() -> None:
    space: dict[str, Any] = {}
    exec("def helper(x):\n    if x.sum() > 0:\n        x = x + 1\n    return x", space)
    helper = space["helper"]
    with pytest.raises(TracedValueError, match="cannot be read"):
        graph(lambda x, steps, limit: helper(x))


def test_called_by_python() -> None:
    def key(x):
        return 1 if x else 2

    with pytest.raises(TracedValueError, match="called by code that is not compiled"):
        graph(lambda x, steps, limit: x + sorted([steps], key=library_of(key))[0])


def library_of(f: Callable[..., Any]) -> Callable[..., Any]:
    space: dict[str, Any] = {"f": f}
    exec("def g(x):\n    return f(x)", space)
    return space["g"]
