"""A name that means two things: it has another type in a loop, where nobody reads the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import CarryError
from tests.codegen.test_control import agree

# ruff: noqa: B007
# mypy: ignore-errors


def in_a_loop(x, steps, limit):
    y = None
    for i in spmd.range(3):
        y = x * 2
        x = x + y * i
    return x + y


def of_other_shapes(x, steps, limit):
    part = np.zeros(7)
    for i in spmd.range(steps):
        part = x[:, 0] * i
        x = x + part.sum()
    part = x.sum()
    return x + part


def in_a_while(x, steps, limit):
    y, k = "text", 0
    while k < steps:
        y = x.sum(axis=0) + k
        x = x + y.sum()
        k += 1
    return x


def by_an_inner_loop(x, steps, limit):
    y = "text"
    for i in spmd.range(steps):
        for y in (1.0, 2.0):
            x = x * y
        for y in spmd.range(3):
            x = x + y
    return x


def in_a_branch(x, steps, limit):
    y = None
    if x.sum() > 0:
        y = x * 2
        x = x + y
    if x.sum() > limit:
        y = "up"
    else:
        y = 3
    y = x.sum(axis=0)
    return x + y.sum()


def in_a_branch_of_a_loop(x, steps, limit):
    y = [1, 2]
    for i in spmd.range(steps):
        if x.sum() > 0:
            y = x.sum(axis=0)
            x = x - y.sum()
        else:
            y = x
            x = x + y
    return x


def left_by_a_break(x, steps, limit):
    y = None
    for i in spmd.range(5):
        y = x * i
        if y.sum() > 10:
            break
        x = x + y + 1
    return x


def is_added_to(x, steps, limit):
    """`y += …` reads y."""
    y = np.zeros(())
    for i in spmd.range(steps):
        y += x.sum()
    if x.sum() > 0:
        y += 1
    z = 1
    for i in spmd.range(3):
        z += i
    z += 1
    return x + y + z


@pytest.mark.parametrize("f", [
    in_a_loop, of_other_shapes, in_a_while, by_an_inner_loop, in_a_branch, in_a_branch_of_a_loop,
    left_by_a_break, is_added_to,
], ids=lambda f: f.__name__)
def test_agrees_with_numpy(f: Callable[..., Any]) -> None:
    agree(f)


def read_after_no_turn(x, steps):
    y = None
    for i in spmd.range(steps):
        y = x
    return x if y is None else y


def read_in_the_next_turn(x, steps):
    y = 0
    for i in spmd.range(3):
        x = x + y
        y = x
    return x


def read_after_a_branch(x, steps):
    y = None
    if x[0] > 0:
        y = x
    return x if y is None else y


@pytest.mark.parametrize("f", [read_after_no_turn, read_in_the_next_turn, read_after_a_branch])
def test_what_is_read_keeps_its_type(f: Callable[..., Any]) -> None:
    @spmd.program(mesh=("r",))
    def program():
        return f(spmd.input("x", (6,), np.float64, layout=("r",)), spmd.scalar("steps", 3))

    with pytest.raises(CarryError, match='"y" changes'):
        program.capture()
