"""Programs with feeds: eager runs, the Graph interpreted and the image agree on 1 to 7 ranks."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

import spmd
from codegen.oracle import interpret
from spmd.launch.iterable_supply import IterableSupply
from tests.codegen import test_feeds_of_ranks as ranks_take
from tests.codegen.sample_programs import fed
from tests.codegen.test_feeds import Told, given, two_feeds

# mypy: ignore-errors


class Collecting(IterableSupply):
    """Whole batches, and the values that come back: as pipelines get them. first: the batch that
    is answered first."""

    def __init__(self, source, first=0):
        super().__init__(source)
        self.back, self.first = {}, first

    def begin(self, feed, rings, start):
        plain = copy.copy(feed)
        plain.sends = ()
        super().begin(plain, rings, start)
        self.rings = rings
        self.collector = threading.Thread(target=self.collect, daemon=True)
        self.ends = threading.Event()
        self.collector.start()

    def collect(self):
        k = self.first
        while True:
            over = self.ends.is_set()  # by then all is there that ranks have sent
            rows = {ring.rows: found for ring in self.rings if (found := ring.sent(k))}
            if len(rows) == len({ring.rows for ring in self.rings}):
                parts = [rows[r] for r in sorted(rows) if r[0] < r[1]]
                self.back[k] = {name: np.concatenate([p[name] for p in parts])
                                for name in parts[0]}
                k += 1
            elif over:
                return
            else:
                self.ends.wait(0.0005)

    def finish(self):
        self.ends.set()
        self.collector.join()
        super().finish()


class Overwritten(IterableSupply):
    """A batch comes when all ranks have left the one before, whose memory is used again at once.
    Nobody else has written there."""

    def __init__(self, source):
        super().__init__(source)
        self.plain = {}  # copies of what they are

    def _whole(self, feed, k, given, into):
        found = super()._whole(feed, k, given, into)
        self.plain[k] = copy.deepcopy(found)
        return found

    def _has_room(self, rings, k):
        while not self.stops and any(ring.taken < k for ring in rings):
            self._wait(rings, 0.001)
        for left in [n for n in self.plain if n < k]:
            for name, array in self.plain.pop(left).items():
                np.testing.assert_array_equal(self.held[left][name], array)
                self.held[left][name][...] = 77
        return not self.stops


@pytest.fixture(scope="module")
def images():
    return {p: spmd.build(p) for p in (two_feeds, fed)}


def test_two_feeds_in_branches_and_inner_loops(images):
    sent = []
    whole = interpret.run(two_feeds.capture(), {"r": 1, "c": 1}, feeds=given(), sent=sent)
    for ranks in (1, 2, 3, 4):
        back = Collecting(given()["tests"])
        found = images[two_feeds].run(ranks=ranks, feed={"train": given()["train"], "tests": back})
        for k, array in enumerate(found):
            np.testing.assert_allclose(array, whole[str(k)], rtol=1e-12)
        assert sorted(back.back) == [0, 1]
        for _, number, arrays in sent:
            for name, array in arrays.items():
                np.testing.assert_allclose(back.back[number][name], array, rtol=1e-12)


def test_streams_that_end_in_the_middle_of_a_batch(images):
    """Streams of 6 rows, split unevenly: rows that the last batch lacks are zeros and False."""
    rng = np.random.default_rng(0)
    stream = [{"x": rng.normal(size=(rows, 4)).astype(np.float32)} for rows in (6, 6, 6, 6, 3)]
    expected = fed.eager(feed=Told(stream))
    for ranks in (1, 2, 3, 7):
        found = images[fed].run(ranks=ranks, feed=Collecting(stream))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_one_more_batch_than_there_are(images):
    with pytest.raises(spmd.SpmdError, match="has ended after 2 batches"):
        images[two_feeds].run(ranks=2, feed={"train": given()["train"][:2],
                                             "tests": Collecting([])})


def test_ranks_take_their_own_blocks_in_a_shard_map():
    """Images give what eager runs give on every mesh, answers to the feed included."""
    image = spmd.build(ranks_take.of_ranks)
    for mesh in ranks_take.MESHES:
        feeds = ranks_take.given()
        expected = ranks_take.of_ranks.eager(mesh=mesh, feed=feeds)
        back = Collecting(list(feeds["train"]), first=1)
        found = image.run(mesh=mesh, feed={**ranks_take.given(), "train": back})
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
        assert sorted(back.back) == [1, 2]
        for number, values in feeds["train"].back:
            for name, array in values.items():
                np.testing.assert_array_equal(back.back[number][name], array)


def test_a_loop_of_a_shard_map_is_resumed(tmp_path):
    """The very next batch, and the part of each rank as before."""
    @spmd.program(mesh=("r",))
    def until():
        feed = spmd.feed(x=spmd.spec((7,), np.float64))
        first = feed.next().x[0]

        @spmd.shard_map(out_layouts=())
        def rest(w):
            for b in feed:
                w = w * 1.5 + spmd.psum(np.sum(b.x) * (spmd.index() + 1), "r") / spmd.ranks()
            return w

        return rest(first)

    stream = [{"x": np.full(7, k) / 4} for k in range(9)]

    def broken():
        yield from stream[:6]
        raise OSError("the disk is gone")

    image = spmd.build(until, checkpoint=True, check=["equal"])
    expected = {n: until.eager(ranks=n, feed=stream) for n in (1, 3)}
    for n in (3, 1):
        kept = tmp_path / str(n)
        with pytest.raises(spmd.InputError, match="the disk is gone"):
            image.run(ranks=n, feed=broken, checkpoint=kept, every=1)
        found = image.run(ranks=n, feed=stream, resume=kept)
        np.testing.assert_allclose(found, expected[n], rtol=1e-12)


def of_feed(name="feed", n=6):
    return spmd.feed(name, x=spmd.spec((n, 3), np.float64), i=spmd.spec((n,), np.int32))


@spmd.program(mesh=("r",))
def asked_before_use():
    """Whoever asks whether there are more batches gives the memory of the last one back."""
    feed, seen = of_feed(), spmd.zeros((6, 3))
    goes = feed.more()
    while goes:
        b = feed.next()
        goes = feed.more()
        seen = seen * 0.5 + b.x[b.i] + np.roll(b.x, 1, axis=0) * b.x
    return seen


@spmd.program(mesh=("r",))
def exchanged_before_asking():
    """One rank reads what it would exchange where it lies: after it has asked, too."""
    feed, seen = of_feed(), spmd.zeros((6, 3))
    goes = feed.more()
    while goes:
        b = feed.next()
        change = np.diff(b.x, axis=0)
        near = np.zeros((6, 3))
        near[1:-1] = b.x[:-2] * b.x[2:]
        goes = feed.more()
        seen = seen * 0.5 + near
        seen[1:] += change
    return seen


@spmd.program(mesh=("r",))
def exchanged_and_asked():
    feed, seen = of_feed(), spmd.zeros((6, 3))
    while feed.more():
        b = feed.next()
        seen = seen * 0.5 + np.roll(b.x, 1, axis=0) * b.x
    return seen


@spmd.program(mesh=("r",))
def over_turns():
    """A turn begins with a batch of the turn before, behind which another one was taken."""
    feed, w = of_feed(), spmd.zeros(3)
    before = feed.next().x
    for _ in spmd.range(7):
        w = w * 0.5 + np.sum(before, axis=0)
        before = feed.next().x
        w = w * 0.5 + np.sum(feed.next().x, axis=0)
    return w


@spmd.program(mesh=("r",))
def learnt_and_tried():
    """Two loops over one feed, and a batch that is kept for the second; what is computed of a
    batch, another batch, a batch as the result."""
    feed, w = of_feed(), spmd.zeros(3)
    kept = spmd.zeros((6, 3))
    for _ in spmd.range(3):
        for k in spmd.range(4):
            b = feed.next()
            x = (b.x - 0.5) * 2
            w = w * 0.9 + np.sum(x * x + np.sum(x), axis=0)
            if k % 3 == 0:
                kept = b.x
        b = feed.next()
        w = w + np.sum(kept * b.x, axis=0)
        w = w + np.sum(feed.next().x * b.x, axis=0)
    return w, kept, feed.next().x


@spmd.program(mesh=("r",))
def changed():
    feed, w = of_feed(), spmd.zeros((6, 3))
    for _ in spmd.range(7):
        x = feed.next().x
        x[1:] *= 2
        w = w * 0.5 + np.sum(x, axis=0)
    return w


@spmd.program(mesh=("r",))
def one_or_the_other():
    """Branches take of different feeds, and give one array."""
    one, two, w = of_feed("one"), of_feed("two", 5), spmd.zeros(3)
    for k in spmd.range(9):
        b = one.next()
        w = w * 0.5 + b.x[0]
        if k % 2 == 0:
            x = two.next().x[:4]
        else:
            x = one.next().x[:4]
        more = two.more()
        w = w + np.sum(x, axis=0) * more + np.sum(b.x, axis=0)
    return w


def a_stream(count, rows=6):
    rng = np.random.default_rng(rows)
    return [{"x": rng.normal(size=(rows, 3)), "i": rng.integers(0, rows, rows)}
            for _ in range(count)]


@pytest.mark.parametrize("program", [
    asked_before_use, exchanged_before_asking, exchanged_and_asked, over_turns, learnt_and_tried,
    changed, one_or_the_other,
], ids=lambda program: program.name)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_nobody_looks_at_a_batch_that_was_left(program, checkpoint):
    streams = {"feed": a_stream(19)}
    if program is one_or_the_other:
        streams = {"one": a_stream(19), "two": a_stream(19, 5)}
    expected = program.eager(feed=streams)
    image = spmd.build(program, checkpoint=checkpoint)
    for ranks, threads in ((1, 1), (1, 2), (2, 1), (3, 2)):
        found = image.run(ranks=ranks, threads=threads, feed={
            name: Overwritten(stream) for name, stream in streams.items()})
        several = isinstance(expected, tuple)
        for one, other in zip(found if several else [found], expected if several else [expected],
                              strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


@spmd.program(mesh=("r",))
def beside():
    """A batch that was taken before the loop: as it lies, and what an exchange shows of it."""
    first, also, feed = of_feed("first").next(), of_feed("also").next(), of_feed()
    w = spmd.zeros((6, 3))
    while feed.more():
        w = w * 0.5 + np.sum(feed.next().x * first.x, axis=0)
        w[1:] += np.diff(also.x, axis=0)
    return w


def test_what_was_taken_before_the_loop_is_read_where_a_run_goes_on(tmp_path):
    """It is taken again, and its memory given back where the run comes to the kept turn."""
    def broken():
        yield from a_stream(6)
        raise OSError("the disk is gone")

    def given(stream):
        streams = {"first": a_stream(3), "also": a_stream(2), "feed": stream}
        return {name: Overwritten(batches) for name, batches in streams.items()}

    image = spmd.build(beside, checkpoint=True)
    expected = beside.eager(feed={name: a_stream(n) for name, n in (
        ("first", 3), ("also", 2), ("feed", 19))})
    for ranks in (1, 3):
        kept = tmp_path / str(ranks)
        with pytest.raises(spmd.InputError, match="the disk is gone"):
            image.run(ranks=ranks, checkpoint=kept, every=1, feed=given(broken))
        for other in (1, 2):
            found = image.run(ranks=other, resume=kept, feed=given(a_stream(19)))
            np.testing.assert_allclose(found, expected, rtol=1e-12)
