"""Cuts against brute force: which elements of a dim a rank has, for every small shape and mesh."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codegen import mesh
from codegen.ir import cuts
from codegen.ir.cuts import Cut
from codegen.symbolic import expr

MESH = mesh.Mesh((mesh.Axis("x"),))
SLICES = [
    (start, step) for step in (1, -1, 2, -2, 3, -3) for start in (0, 1, 2, 5)
]


def elements(cut: Cut, ranks: int) -> list[list[int]]:
    """Return the elements of a dim that each rank has by a cut."""
    low, high = cut.bounds(MESH)
    out = []
    for i in range(ranks):
        values = {"n_x": ranks, "i_x": i}
        first, last = low.evaluate(values), high.evaluate(values)
        assert first <= last
        out.append(list(range(first, last)))
    return out


def sliced(n: int, start: int, step: int) -> list[int]:
    """The positions that start + step * j has in a dim of extent n."""
    count = max(0, -(-(n - start) // step) if step > 0 else start // -step + 1)
    return [start + step * j for j in range(count)] if start < n else []


@pytest.mark.parametrize("start,step", SLICES)
def test_of_result_has_the_elements_that_lie_in_my_block(start: int, step: int) -> None:
    for n, ranks in itertools.product((1, 2, 5, 8, 13), (1, 2, 3, 5, 9)):
        at = sliced(n, start, step)
        own = np.array_split(np.arange(n), ranks)
        block = cuts.block(("x",), expr.const(n))
        cut = cuts.of_result(block, expr.const(start), step, expr.const(len(at)), MESH)
        expected = [[j for j, p in enumerate(at) if p in set(b.tolist())] for b in own]
        assert elements(cut, ranks) == expected, (n, ranks)


@pytest.mark.parametrize("start,step", SLICES)
def test_of_operand_covers_what_a_slice_reads(start: int, step: int) -> None:
    for n, ranks in itertools.product((2, 7, 13), (1, 3, 5)):
        at = sliced(n, start, step)
        if not at:
            continue
        for cut in (
            cuts.block(("x",), expr.const(len(at))),
            cuts.of_result(cuts.block(("x",), expr.const(n)), expr.const(start), step,
                           expr.const(len(at)), MESH),
            cuts.whole(len(at)), cuts.fixed(0, 1),
        ):
            under = elements(cuts.of_operand(cut, expr.const(start), step, MESH), ranks)
            for mine, held in zip(elements(cut, ranks), under):
                assert {at[j] for j in mine} <= set(held)
                assert set(held) <= set(range(n)) or not mine


def test_hull_covers_both_and_stays_near() -> None:
    for n, ranks in itertools.product((3, 8, 13), (1, 2, 5)):
        block = cuts.block(("x",), expr.const(n))
        shifted = [
            cuts.of_operand(
                cuts.of_result(block, expr.const(1), 1, expr.const(n - 2), MESH),
                expr.const(k), 1, MESH,
            )
            for k in (0, 1, 2)
        ]
        joined = cuts.gather([(c,) for c in (block, *shifted)])
        assert len(joined) == 1
        (cut,) = joined[0]
        for c in (block, *shifted):
            assert c.inside(cut)
            for mine, held in zip(elements(c, ranks), elements(cut, ranks)):
                assert set(mine) <= set(held)
        low, high = cut.opened().bounds(MESH)
        assert low == block.bounds(MESH)[0] - 1 and high == block.bounds(MESH)[1] + 1


def test_what_lies_apart_is_not_joined() -> None:
    block = cuts.block(("x",), expr.const(1000))
    far = cuts.of_operand(block, expr.const(500), 1, MESH)
    assert cuts.hull(block, far) is None
    assert cuts.hull(cuts.fixed(0, 1), cuts.fixed(999, 1000)) is None
    assert cuts.hull(block, cuts.whole(1000)) is None


@pytest.mark.parametrize("shift", [1, -1, 3, -4, 9])
def test_rolled_covers_what_a_roll_reads(shift: int) -> None:
    for n, ranks in itertools.product((1, 2, 7, 12), (1, 3, 5)):
        extent = expr.const(n)
        rolled = np.roll(np.arange(n), shift).tolist()
        for cut in (
            cuts.block(("x",), extent), cuts.whole(n), cuts.fixed(0, 1),
            cuts.of_operand(cuts.block(("x",), extent), expr.const(n - 1), -1, MESH),
            cuts.interval(("x",), expr.minimum(1, MESH.axis("x").coord), expr.const(1)),
        ):
            around = cuts.rolled(cut, expr.const(shift), extent, MESH)
            for wanted, found in zip(elements(cut, ranks), elements(around, ranks)):
                assert [p % n for p in found] == [rolled[j] for j in wanted]
                lies_within(around, found, n)
            joined = cuts.hull(cuts.rolled(around, expr.const(2), extent, MESH), cut)
            if joined is not None:
                for wanted, found in zip(elements(cut, ranks), elements(joined, ranks)):
                    assert set(wanted) <= set(found)
                    lies_within(joined, found, n)


def lies_within(cut: Cut, found: list[int], n: int) -> None:
    wraps = cut.wraps()
    assert wraps is not None
    before, beyond = (e.evaluate({}) for e in wraps[:2])
    assert all(-before * n <= p < (beyond + 1) * n for p in found)
