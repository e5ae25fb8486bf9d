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
    """A batch comes when all ranks have left the one before, whose memory is used again at once."""

    def _has_room(self, rings, k):
        while not self.stops and any(ring.taken < k for ring in rings):
            self._wait(rings, 0.001)
        for array in self.held.get(k - 1, {}).values():
            array[...] = 1
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
    """Of 6 rows, split unevenly: zeros and False where the last batch has none."""
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
    """As eager runs: on every mesh, answers too."""
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


@spmd.program(mesh=("r",))
def asked_before_use(n: int = 6):
    """Whoever asks whether there are more batches gives the memory of the last one back."""
    feed = spmd.feed(x=spmd.spec((n, 3), np.float64), i=spmd.spec((n,), np.int32))
    seen = spmd.zeros((n, 3))
    goes = feed.more()
    while goes:
        b = feed.next()
        goes = feed.more()
        seen = seen * 0.5 + b.x[b.i] + np.roll(b.x, 1, axis=0) * b.x
    return seen


def test_a_batch_is_used_after_its_memory_was_given_back():
    """One rank reads what it would exchange where it lies, too."""
    rng = np.random.default_rng(3)
    stream = [{"x": rng.normal(size=(6, 3)), "i": rng.integers(0, 6, 6)} for _ in range(5)]
    expected, image = asked_before_use.eager(feed=stream), spmd.build(asked_before_use)
    for ranks in (1, 2, 3):
        found = image.run(ranks=ranks, feed=Overwritten(stream))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
