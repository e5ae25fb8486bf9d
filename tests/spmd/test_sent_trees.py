"""feed.send takes trees of arrays: they are told as they were sent, in every way to run."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

import spmd

# mypy: ignore-errors

Pair = namedtuple("Pair", "x y")


@spmd.program(mesh=("r",))
def sends_trees(n: int = 5, turns: int = 4, inside: bool = False):
    feed = spmd.feed(at=spmd.spec((n, 2), np.float64, layout=("r", None)))

    def turn(seen):
        b = feed.next()
        feed.send(move={"push": b.at[:, 0] - 1, "by": (b.at, [b.at[:, 1], b.at[:, 1] * 2])},
                  pair=Pair(b.at[:, 0] > 2, b.at[:, 1]), plain=b.at[:, 0])
        return seen + spmd.psum(np.sum(b.at), "r") if inside else seen + np.sum(b.at)

    def loop(seen):
        for _ in spmd.range(turns):
            seen = turn(seen)
        return seen

    return (spmd.shard_map(loop, out_layouts=())(spmd.asarray(0.0)) if inside
            else loop(spmd.asarray(0.0)))


def moved(told):
    at = np.arange(10.0).reshape(5, 2)
    while True:
        back = yield {"at": at}
        told.append(back)
        at = back["move"]["by"][0] + back["move"]["push"][:, None]


def same_trees(found, expected):
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
        return
    assert type(found) is type(expected)
    keys = expected.keys() if isinstance(expected, dict) else range(len(expected))
    assert not isinstance(expected, dict) or [*found] == [*expected]
    for key in keys:
        same_trees(found[key], expected[key])


@pytest.mark.parametrize("inside", [False, True])
def test_trees_are_told_as_they_were_sent(inside):
    """Dicts and tuples; lists come as tuples, named tuples as dicts, in every way to run."""
    image, eagerly = spmd.build(sends_trees, inside=inside), []
    expected = sends_trees.eager(inside=inside, feed=moved(eagerly))
    at = np.arange(10.0).reshape(5, 2)
    same_trees(eagerly[0], {
        "move": {"push": at[:, 0] - 1, "by": (at, (at[:, 1], at[:, 1] * 2))},
        "pair": {"x": at[:, 0] > 2, "y": at[:, 1]}, "plain": at[:, 0]})
    for ranks in (1, 3):
        told = []
        assert image.run(ranks=ranks, feed=lambda: moved(told)) == expected
        for one, other in zip(told, eagerly):
            same_trees(one, other)


@pytest.mark.parametrize(("sent", "match"), [
    (lambda x: {"a-b": x}, "'a-b' cannot be the name of what is sent"),
    (lambda x: {0: x}, "0 cannot be the name"),
    (lambda x: {"a": {}}, "dict of nothing"),
    (lambda x: ({"a": x}, 1.0), "has another shape"),
])
@pytest.mark.parametrize("eager", [False, True])
def test_trees_that_cannot_be_sent(sent, match, eager):
    @spmd.program(mesh=("r",))
    def sends():
        feed = spmd.feed(x=spmd.spec((3,), np.float64))
        x = feed.next().x
        feed.send(sent(x))
        return x

    with pytest.raises(spmd.SpmdError, match=match) as caught:
        sends.eager(feed=[{"x": np.zeros(3)}]) if eager else sends.capture()
    assert caught.value.place.file == __file__


def test_a_list_of_numbers_is_one_array():
    @spmd.program(mesh=("r",))
    def sends():
        feed = spmd.feed(x=spmd.spec((3,), np.float64))
        x = feed.next().x
        feed.send([1, 2.5, 3])
        return x + feed.next().x

    def adds():
        told = yield {"x": np.zeros(3)}
        yield {"x": told["values"]}

    assert sends.eager(feed=adds()).tolist() == [1, 2.5, 3]
    assert spmd.build(sends).run(ranks=2, feed=adds).tolist() == [1, 2.5, 3]
