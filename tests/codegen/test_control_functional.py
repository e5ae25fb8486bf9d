"""fori_loop, while_loop, cond, switch and scan: the Graph against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import CarryError, ProgramError, ShapeError, UsageError
from tests.codegen.test_control import agree, graph, kinds

# mypy: ignore-errors


def fori(x, steps, limit):
    def body(i, state):
        y, (total, k) = state
        if i % 2 == 0:
            y = y + total
        return y * 0.5, (total + y.sum(), k + i)

    y, (total, k) = spmd.fori_loop(1, steps + 2, body, (x, (0.0, 0)))
    return y + total + k


def by_value(x, steps, limit):
    def body(i, y):
        y[:, 0] += i
        return y

    y = spmd.fori_loop(0, steps, body, x)
    return x * 10 + y


def whiles(x, steps, limit):
    y, k = spmd.while_loop(
        lambda s: s[1] < steps and np.abs(s[0]).sum() < 1000,
        lambda s: (s[0] * 2 + s[1], s[1] + 1),
        (x, 0),
    )
    return y + k


def conds(x, steps, limit):
    i = spmd.axis_index("r")
    y = spmd.cond(i == 0, lambda a: a + 1, lambda a: a * 2, x)
    z = spmd.cond(x.sum() > limit, lambda a, b: {"s": a - b}, lambda a, b: {"s": a}, x, y)
    w = spmd.cond(True, lambda a: a, lambda a: None, z["s"])
    return y + z["s"] + w


def switches(x, steps, limit):
    i = spmd.axis_index("r")
    f = [lambda a: a, lambda a: a * 2, lambda a: -a]
    y = spmd.switch(i, f, x) + spmd.switch(steps - 2, f[:2], x) * 3
    k = spmd.switch(i - 1, [lambda: 0, lambda: 1, lambda: 2])
    z = spmd.switch((x.sum() * 0 + 1.5).astype(np.int32) + steps, f, x)
    return y + z + x[:, k : k + 1] + spmd.switch(9, f, x)


def scans(x, steps, limit):
    def f(carry, row):
        total, k = carry
        total = total + row.sum()
        return (total, k + 1), {"t": total * row, "n": None}

    (total, k), ys = spmd.scan(f, (0.0, 0), x.T)
    _, doubled = spmd.scan(lambda c, _: (c * 2, c), 1, None, length=4)
    return x + total + k + ys["t"].T + doubled


def scan_over_a_shard(x, steps, limit):
    def f(carry, pair):
        row, k = pair
        carry = carry * 0.5 + row
        return carry, carry[0] * k

    carry, ys = spmd.scan(f, np.zeros(4), (x, x[:, 1]))
    return x + ys[:, None] + carry if x.shape[0] else x


@pytest.mark.parametrize(
    "f", [fori, by_value, whiles, conds, switches, scans, scan_over_a_shard],
    ids=lambda f: f.__name__,
)
def test_agrees_with_numpy(f: Callable[..., Any]) -> None:
    agree(f)


def test_scan_backwards() -> None:
    def backwards(x, steps, limit):
        return spmd.scan(lambda c, row: (c + row, c), x[:, 0] * 0, x.T, reverse=True)[1].T

    agree(backwards)  # the rows of the result in the order of x's
    module = graph(backwards)
    assert kinds(module).count("loop") == 1


def test_arms_are_regions() -> None:
    module = graph(switches)
    regions = [len(op.regions) for op in _ops(module) if op.kind.name == "branch"]
    assert regions == [3, 2, 3]


def _ops(module):
    from codegen.ir.graph import walk

    return list(walk(module.body))


def refused(f: Callable[..., Any], kind: type[ProgramError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        graph(f)
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_errors() -> None:
    refused(lambda x, s, t: spmd.fori_loop(0, s, lambda i, y: y[:, :1], x), CarryError, "init")
    refused(lambda x, s, t: spmd.switch(0.5, [lambda: x], x), ShapeError, "no integer")
    refused(lambda x, s, t: spmd.switch(s, []), UsageError, "at least one")
    refused(lambda x, s, t: spmd.scan(lambda c, y: c, x, x), UsageError, "pair")
    refused(lambda x, s, t: spmd.scan(lambda c, y: (c, y), x, None), UsageError, "length")
    refused(
        lambda x, s, t: spmd.cond(s > 1, lambda a: (a, a), lambda a: a, x), CarryError, "changes"
    )
