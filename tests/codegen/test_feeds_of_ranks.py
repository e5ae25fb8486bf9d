"""Feeds inside of shard_map: each rank takes its own block, and all ranks take alike."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import (
    InputError,
    LayoutError,
    MatchingError,
    ProgramError,
    ShapeError,
    UnsupportedError,
)
from codegen.explain import reasons
from codegen.oracle import interpret
from codegen.trace.program import Program
from tests.codegen.sample_programs import fed_ranks
from tests.codegen.test_feeds import Told

# mypy: ignore-errors

MESHES = ({"r": 1, "c": 1}, {"r": 1, "c": 2}, {"r": 3, "c": 1}, {"r": 2, "c": 2}, {"r": 1, "c": 4})


@spmd.program(mesh=("r", "c"), layout={"batch": "c"})
def of_ranks(steps: int = 2):
    """Weights what a rank takes by its place, so that other blocks would give another result.
    Layouts are stated by rules, over both dims or not split; it answers, and has loops of each
    kind."""
    batch = spmd.Dim("batch", 7)
    feed = spmd.feed("train", x=spmd.spec((batch, 3), np.float64), y=spmd.spec((batch,), np.int32))
    grid = spmd.feed("grid", x=spmd.spec((7, 4), np.float64, layout=("r", "c")),
                     all=spmd.spec((7,), np.float64, layout=spmd.replicated))
    first = feed.next()

    @spmd.shard_map(out_layouts=(spmd.replicated, ("r", "c")))
    def learn(w):
        last = grid.next().x
        for _ in spmd.range(steps):
            b, g = feed.next(), grid.next()
            w = w + spmd.psum(b.y @ b.x * (spmd.axis_index("c") + 1), "c")
            feed.send(a=b.y * 2, b=b.x + spmd.axis_index("c"))
            last = last * np.sum(g.all) + g.x * (spmd.index() + 1)
        return w, last

    @spmd.shard_map
    def rest(w):
        while feed.more() and np.max(w) < 1e6:
            if spmd.psum(np.sum(feed.next().x), "c") > 0:
                w = w + grid.next().all[:3]
        return w

    w, last = learn(np.sum(first.x, axis=0))
    return rest(w), last


def given():
    rng = np.random.default_rng(0)
    return {"train": Told({"x": rng.normal(size=(7, 3)), "y": rng.integers(-5, 5, 7)}
                          for _ in range(9)),
            "grid": [{"x": rng.normal(size=(7, 4)), "all": rng.normal(size=7)} for _ in range(12)]}


def test_graph_program_and_eager_run_agree_on_every_mesh():
    graph = of_ranks.capture()
    program = lower(graph).program
    for sizes in MESHES:
        feeds, sent, also = given(), [], []
        expected = of_ranks.eager(mesh=sizes, feed=feeds)
        whole = interpret.run(graph, sizes, feeds=given(), sent=sent)
        parts = interpret.run(program, sizes, feeds=given(), sent=also)
        for k, array in enumerate(expected):
            np.testing.assert_allclose(whole[str(k)], array, rtol=1e-12)
            np.testing.assert_allclose(parts[str(k)], array, rtol=1e-12)
        assert [number for number, _ in feeds["train"].back] == [1, 2]
        for (number, values), one, other in zip(feeds["train"].back, sent, also, strict=True):
            assert one[:2] == other[:2] == ("train", number)
            for name, array in values.items():
                np.testing.assert_array_equal(one[2][name], array)
                np.testing.assert_array_equal(other[2][name], array)


def test_on_one_rank_the_views_are_one():
    """The same loop over whole arrays."""
    @spmd.program(mesh=("x",))
    def whole(batch: int = 6, turns: int = 2):
        train = spmd.feed("train", x=spmd.spec((batch, 4), np.float32))
        rates = spmd.feed("rates", rate=spmd.spec((1,), np.float32))
        w = np.ones(4, np.float32)
        for _ in range(turns):
            x = train.next().x
            error = x @ w
            w = w - rates.next().rate[0] * (error @ x)
            train.send(error)
        for b in train:
            w = w + np.max(b.x, axis=0, initial=0)
        return w, error

    rng = np.random.default_rng(1)
    batches = [{"x": rng.normal(size=(6, 4)).astype(np.float32)} for _ in range(5)]
    rates = [{"rate": np.float32([0.1 * k])} for k in range(1, 4)]
    expected = whole.eager(feed={"train": Told(batches), "rates": rates})
    for n in (1, 2, 3, 4, 7):
        found = fed_ranks.eager(ranks=n, feed={"train": Told(batches), "rates": rates})
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_layouts_of_results_follow_from_fields():
    @spmd.program(mesh=("r", "c"))
    def laid():
        feed = spmd.feed(x=spmd.spec((7, 5), np.float64, layout=("r", "c")),
                         y=spmd.spec((7,), np.float64, layout=spmd.replicated))

        @spmd.shard_map
        def doubled():
            b = feed.next()
            return b.x * 2, b.y * 2

        return doubled()

    found = [o.layout for o in laid.capture().outputs]
    assert found == [(("r",), ("c",)), ((),)]


def test_fields_that_only_ranks_take_are_shown():
    rows = {row["name"]: row for row in reasons.tables(lower(fed_ranks.capture()))["arrays"]}
    assert rows["train.x"]["layout"] == [["x"], []]
    assert rows["train.x"]["what"] == ["field"]
    assert rows["train.x"]["place"]["text"].strip().startswith("train = spmd.feed")
    assert rows["rates.rate"]["bytes"] == 4


# ---- what is refused -----------------------------------------------------------------------------


def in_a_branch(feed):
    x = feed.next().x
    if spmd.axis_index("r") > 0:
        x = x + feed.next().x  # here
    return x


def in_a_switch(feed):
    return spmd.switch(spmd.axis_index("r"), [lambda: feed.next().x,  # here
                                              lambda: feed.next().x * 2])


def in_a_loop_of_its_own_length(feed):
    x = feed.next().x
    for _ in spmd.range(spmd.axis_index("r") + 1):
        x = x + feed.next().x  # here
    return x


def while_its_own_rows_say_so(feed):
    x = feed.next().x
    while np.sum(x) < 5:
        x = x + feed.next().x  # here
    return x


def left_as_its_own_rows_say(feed):
    total = spmd.asarray(0.0)
    for b in feed:  # here
        total = total + np.sum(b.x)
        if total > 5:
            break
    return spmd.psum(total, "r")[None]


def asked_in_a_branch(feed):
    x = feed.next().x
    if spmd.axis_index("r") > 0:
        x = np.where(feed.more(), x, 0)  # here
    return x


def sent_by_some(feed):
    x = feed.next().x
    if spmd.axis_index("r") == 0:
        feed.send(x)  # here
    return x


def sent_whole(feed):
    x = feed.next().x
    feed.send(spmd.zeros(7))  # here
    return x


def sent_of_unequal_rows(feed):
    x = feed.next().x
    feed.send(np.zeros((len(x), spmd.axis_index("r") + 1)))  # here
    return x


REFUSED = {
    in_a_branch: (MatchingError, "take the batch on every rank and choose with np.where"),
    in_a_switch: (MatchingError, "a batch is of all ranks, each takes its part of it"),
    in_a_loop_of_its_own_length: (MatchingError, 'stop = axis_index("r") + 1'),
    while_its_own_rows_say_so: (MatchingError, 'spmd.any_ranks(condition, "r")'),
    left_as_its_own_rows_say: (MatchingError, "a loop whose number of turns may differ"),
    asked_in_a_branch: (MatchingError, "only some ranks along"),
    sent_by_some: (MatchingError, "only some ranks along"),
    sent_whole: (ShapeError, "a row for each example that the rank has: (7 // n_r"),
    sent_of_unequal_rows: (ShapeError, "rows of one shape on all ranks"),
}


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused(f):
    def program():
        feed = spmd.feed(x=spmd.spec((7,), np.float64))
        return spmd.shard_map(lambda: f(feed), out_layouts=("r",))()

    expected, text = REFUSED[f]
    with pytest.raises(expected, match=re.escape(text)) as caught:
        lower(Program(program, mesh=("r",)).capture())
    assert "# here" in caught.value.place.source_line()


def test_a_result_that_follows_from_a_split_field():
    def program():
        feed = spmd.feed(x=spmd.spec((7,), np.float64))

        @spmd.shard_map(out_layouts=())
        def inner():
            x = feed.next().x  # taken here
            return np.sum(x)

        return inner()

    with pytest.raises(MatchingError, match="differs between the ranks along") as caught:
        lower(Program(program, mesh=("r",)).capture())
    ((why, where),) = caught.value.also
    assert why == 'field "x" of feed "feed", which is split over "r", goes in here:'
    assert "# taken here" in where.source_line()


def two_fields():
    return spmd.feed("b", x=spmd.spec((7,), np.float64),
                     all=spmd.spec((7,), np.float64, layout=spmd.replicated))


ROWS = {
    lambda b: b.all * spmd.axis_index("r"): (MatchingError, "the ranks along \"r\", which answer"),
    lambda b: b.x * 2: (ShapeError, "lay out dim 0 of all fields alike"),
}


@pytest.mark.parametrize("values", ROWS, ids=["differ", "too few"])
def test_answers_for_all_rows(values):
    """If not all fields are split alike, each rank answers for all rows, and all give the same
    answer."""
    def program(values=values):
        feed = two_fields()

        def inner():
            b = feed.next()
            feed.send(values(b))
            return b.x

        return spmd.shard_map(inner)()

    expected, text = ROWS[values]
    with pytest.raises(expected, match=re.escape(text)):
        lower(Program(program, mesh=("r",)).capture())
    lower(Program(lambda: program(lambda b: b.all * 2), mesh=("r",)).capture())


@pytest.mark.parametrize("way", ["grad", "jvp", "remat"])
def test_a_shard_map_with_a_feed_is_not_differentiated(way):
    def program():
        feed = spmd.feed(x=spmd.spec((7,), np.float64))

        @spmd.shard_map(out_layouts=())
        def loss(w):
            return spmd.psum(np.sum(w * feed.next().x), "r")

        w = spmd.asarray(1.0)
        if way == "jvp":
            return spmd.jvp(loss, (w,), (w,))
        return spmd.grad(loss if way == "grad" else spmd.remat(loss))(w)

    with pytest.raises(UnsupportedError, match="take the batch first"):
        Program(program, mesh=("r",)).capture()


# ---- what eager runs say -------------------------------------------------------------------------


def eagerly(f, ranks=3, layout=("r",), count=9, **more):
    def program():
        feed = spmd.feed(x=spmd.spec((7,), np.float64, **more))
        return spmd.shard_map(lambda: f(feed), out_layouts=layout)()

    return Program(program, mesh=("r",)).eager(
        ranks=ranks, feed=Told({"x": np.arange(7.0)} for _ in range(count)))


def test_eager_ranks_that_take_differently():
    for f in (in_a_branch, in_a_loop_of_its_own_length, asked_in_a_branch, sent_by_some):
        with pytest.raises(MatchingError, match=r"waits in feed\.") as caught:
            eagerly(f)
        assert "# here" in caught.value.place.source_line()


def test_eager_rows_of_another_number():
    with pytest.raises(ShapeError, match=re.escape("a row for each example: (3, …)")) as caught:
        eagerly(sent_whole)
    assert "# here" in caught.value.place.source_line()


def test_an_eager_stream_that_ends():
    with pytest.raises(InputError, match="has no more batches") as caught:
        eagerly(lambda feed: feed.next().x + feed.next().x, count=1)  # here
    assert "# here" in caught.value.place.source_line()


def test_a_layout_that_only_the_compiler_knows():
    """An eager run asks it; what does not build says so."""
    def program():
        feed = spmd.feed(x=spmd.spec((spmd.Dim("batch", 7),), np.float64))
        return spmd.shard_map(lambda: feed.next().x + spmd.axis_index("c"), out_layouts=("c",))()

    batches = [{"x": np.zeros(7)}]
    rules = {"mesh": ("r", "c"), "layout": {"batch": "c"}}
    found = Program(program, **rules).eager(mesh={"r": 1, "c": 2}, feed=batches)
    np.testing.assert_array_equal(found, [0, 0, 0, 0, 1, 1, 1])

    def wrong():
        feed = spmd.feed(x=spmd.spec((spmd.Dim("batch", 7),), np.float64))
        spmd.feed("other", x=spmd.spec((7,), np.float64))  # nothing is taken of it
        return spmd.shard_map(lambda: feed.next().x, out_layouts=("c",))()

    with pytest.raises(LayoutError, match="the program does not build: nothing is taken"):
        Program(wrong, **rules).eager(mesh={"r": 1, "c": 2},
                                      feed={"feed": batches, "other": batches})


def test_a_feed_is_not_declared_by_a_rank():
    def program():
        return spmd.shard_map(lambda: spmd.feed(x=spmd.spec((4,), np.float64)).next().x)()

    for run in (Program(program, mesh=("r",)).capture,
                lambda: Program(program, mesh=("r",)).eager(feed=[{"x": np.zeros(4)}])):
        with pytest.raises(ProgramError, match="shard_map"):
            run()
