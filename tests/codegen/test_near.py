"""Who reads whom among neighbours: formulas against enumeration, for every rank of many meshes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from codegen import mesh
from codegen.ir import cuts
from codegen.mesh import Axis, Mesh
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym, const, symbol

X, Y = Axis("x"), Axis("y")
MESH = Mesh((X, Y))
e, v = symbol(Sym("e", "scalar")), symbol(Sym("v", "scalar"))


def blocks(extent: int, parts: int) -> list[tuple[int, int]]:
    ends = np.cumsum([len(p) for p in np.array_split(np.arange(extent), parts)]).tolist()
    return list(zip([0, *ends], ends))


def test_which_block_an_element_lies_in() -> None:
    owner = mesh.owner(e, X.size, v)
    ended, begun = mesh.blocks_ended(e, X.size, v), mesh.blocks_begun(e, X.size, v)
    for extent, parts in itertools.product(range(14), range(1, 9)):
        known = blocks(extent, parts)
        for at in range(-3, extent + 4):
            values = {"n_x": parts, "e": extent, "v": at}
            inside = [k for k, (begin, end) in enumerate(known) if begin <= at < end]
            assert [owner.evaluate(values)] == inside or not inside
            assert ended.evaluate(values) == (at >= 0) * sum(end <= at for _, end in known)
            assert begun.evaluate(values) == sum(begin < at for begin, _ in known)


@pytest.mark.parametrize(("least", "most"), [
    (-1, 1), (0, 0), (0, 2), (-5, -3), (3, 3), (-40, 40), (2, 1),
])
@pytest.mark.parametrize("other", [0, -2, 5])
def test_neighbours_are_those_that_have_what_is_wanted(least: int, most: int, other: int) -> None:
    """Neighbours are exactly the ranks that hold wanted elements; `other` is the second dim's
    excess."""
    held = cuts.block(("x",), e)
    wanted = cuts.Cut(("x",), const(0), e, e + other, const(least), const(most), open=True)
    (ranges,) = cuts.near(MESH, ("x",), [held], [wanted])
    for extent, parts in itertools.product(range(max(0, -other), 12), (1, 2, 3, 5, 8, 15)):
        mine, theirs = blocks(extent, parts), blocks(extent + other, parts)
        for me in range(parts):
            values = {"n_x": parts, "e": extent, "i_x": me, "n_y": 1, "i_y": 0}
            begin, end, first, last = (r.evaluate(values) for r in ranges)
            assert set(range(begin, end)) == {
                k for k in range(parts) if reads(mine[k], theirs[me], least, most)
            }
            assert set(range(first, last)) == {
                k for k in range(parts) if reads(mine[me], theirs[k], least, most)
            }
            assert begin >= end or 0 <= begin < end <= parts
            assert first >= last or 0 <= first < last <= parts


@pytest.mark.parametrize(("least", "most"), [(-1, 1), (0, 2), (-5, -3), (3, 3), (-40, 40)])
def test_neighbours_around_the_ends(least: int, most: int) -> None:
    held = cuts.block(("x",), e)
    wanted = cuts.Cut(("x",), const(0), e, e, const(least), const(most), open=True, period=e)
    (ranges,) = cuts.near(MESH, ("x",), [held], [wanted])
    for extent, parts in itertools.product(range(12), (1, 2, 3, 5, 8, 15)):
        mine = blocks(extent, parts)
        images = [k * extent for k in range(-50, 51)]
        known = np.array([
            [any(reads((a + k, b + k), at, least, most) and a < b for k in images)
             for a, b in mine] for at in mine
        ])
        listed, told = np.zeros_like(known), np.zeros_like(known)
        for me in range(parts):
            values = {"n_x": parts, "e": extent, "i_x": me, "n_y": 1, "i_y": 0}
            begin, end, first, last = (r.evaluate(values) for r in ranges)
            listed[me, [k % parts for k in range(begin, end)]] = True
            told[[k % parts for k in range(first, last)], me] = True
        assert (listed == told).all() and (listed >= known).all()
        assert extent < parts or (listed == known).all()


def reads(holds: tuple[int, int], follows: tuple[int, int], least: int, most: int) -> bool:
    low, high = follows[0] - most, follows[1] - least
    return holds[0] < holds[1] and holds[0] < high and holds[1] > low


def test_what_is_not_among_neighbours() -> None:
    held = [cuts.block(("x",), e), cuts.block(("y",), e)]
    halo = [cuts.Cut(c.axes, const(0), e, e, const(-1), const(1), open=True) for c in held]
    assert len(cuts.near(MESH, ("x", "y"), held, halo)) == 2
    assert len(cuts.near(MESH, ("x",), held, [halo[0], held[1]])) == 1
    counter = symbol(Sym("i", "counter"))
    moving = cuts.Cut(("x",), const(0), e, e, counter, counter, open=True)
    backwards = cuts.Cut(("x",), const(0), e, e, const(-1), const(1), -1)
    both = cuts.block(("x", "y"), e)
    wide = cuts.Cut(("x", "y"), const(0), e, e, const(-1), const(1), open=True)
    for have, want in (
        ([held[0]], [cuts.whole(e)]),
        ([held[0]], [cuts.interval(("x",), expr.const(1), expr.const(2))]),
        ([held[0]], [moving]),
        ([held[0]], [backwards]),
        (held, [cuts.block(("y",), e), cuts.block(("x",), e)]),
        ([both], [wide]),
    ):
        assert cuts.near(MESH, ("x", "y") if len(have) > 1 or have == [both] else ("x",),
                         have, want) == ()
