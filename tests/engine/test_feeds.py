"""Rings of batches: what may be put into them, and when; a supply that ranks of fed.c wait for."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from spmd.engine import ffi, lib
from tests.conftest import until
from tests.engine.harness import EngineError, Images, Job, check

ROWS, DEPTH = 6, 3
ASKS_NOT, EARLY, SPLITS = 4, 2, 16
SHAPE = [2, ROWS, 3, 1, ROWS, 2, ROWS, 5, 1, ROWS]


class Rings:
    """The rings of the feed of fed.c; `kept` holds the batches that were put, so that they stay."""

    def __init__(self, job: Job) -> None:
        keep = ffi.new("char[]", b"feed"), ffi.new("int64_t[]", SHAPE)
        given = ffi.new("spmd_feed *", [keep[0], DEPTH, 3, 1, keep[1]])
        check(lib.spmd_job_feed(job.job, 0, given))
        count = lib.spmd_job_feed_rings(job.job, 0)
        self.rings = [lib.spmd_job_feed_ring(job.job, 0, k) for k in range(count)]
        self.kept = []

    def rows(self, ring) -> tuple[int, int]:
        found = ffi.new("int64_t[2]")
        lib.spmd_ring_rows(ring, found, found + 1)
        return found[0], found[1]

    def put(self, ring, k: int, first: int, end: int) -> int:
        """Rows first to end of batch k, without row 1, which fed.c takes for a hole."""
        i = np.arange(ROWS)
        fields = [k * 1000 + i[:, None] * 10 + np.arange(3), (k * 100 + i).astype(np.int32),
                  (k + i[:, None] * 10 + np.arange(5)).astype(np.uint8)]
        spans = [(a, b) for a, b in ((first, min(1, end)), (max(2, first), end)) if a < b]
        pieces = np.array([[a, b - a, *(x[a:].ctypes.data for x in fields)] for a, b in spans])
        self.kept.append((fields, pieces))
        row = ffi.cast("int64_t *", pieces.ctypes.data)
        return int(lib.spmd_ring_put(ring, k, len(spans), row))

    def put_all(self, k: int) -> list[int]:
        return [self.put(ring, k, *self.rows(ring)) for ring in self.rings]


def fed(images: Images, size=(3, 2), batches: int = 5, flags: int = 0) -> Job:
    return Job(images, "fed", size, threads=2, elements=ROWS, steps=batches, seed=flags)


def test_ranks_with_the_same_rows_share_a_ring(images: Images):
    """All have all of y and z: so all rows are one ring's."""
    with fed(images) as job:
        rings = Rings(job)
        assert [rings.rows(ring) for ring in rings.rings] == [(0, ROWS)]
        with pytest.raises(EngineError, match="running"):
            Rings(job)  # a feed is given once
    with fed(images, (4, 2), flags=SPLITS) as job:
        rings = Rings(job)
        assert [rings.rows(ring) for ring in rings.rings] == [(0, 1), (1, 3), (3, 4), (4, 6)]
    with fed(images, (8, 1), flags=SPLITS) as job:  # two ranks have no rows, and hear with others
        rings = Rings(job)
        assert len(rings.rings) == 6


def test_what_is_put_has_room_and_fits(images: Images):
    with fed(images) as job:
        rings = Rings(job)
        ring = rings.rings[0]
        assert rings.put(ring, 3, 0, ROWS) == lib.SPMD_BUSY  # as many as the ring is deep
        assert rings.put(ring, 0, 0, ROWS + 1) == lib.SPMD_RANGE
        assert [rings.put(ring, k, 0, ROWS) for k in (1, 0, 2)] == [0] * 3  # in any order
        assert rings.put(ring, 1, 0, ROWS) == lib.SPMD_RANGE  # it is there
        job.start()
        while lib.spmd_ring_taken(ring) < 3:
            time.sleep(0.001)
        assert rings.put(ring, 1, 0, ROWS) == lib.SPMD_OK  # nobody waits for it: dropped
        assert [rings.put(ring, k, 0, ROWS) for k in (3, 4)] == [0, 0]
        assert lib.spmd_ring_end(ring, 5) == lib.SPMD_OK
        assert lib.spmd_ring_end(ring, 4) == lib.SPMD_RANGE
        assert rings.put(ring, 5, 0, ROWS) == lib.SPMD_RANGE  # behind the end
        assert job.wait() == lib.SPMD_FINISHED and job.wrong() == 0


def test_ranks_that_wait_are_not_stuck(images: Images):
    """Nobody can advance, for longer than ranks look: the supply is late, and is waited for."""
    with fed(images, (8, 1), flags=EARLY | SPLITS) as job:
        rings = Rings(job)
        job.start()
        numbers = ffi.new("int64_t[3]")
        until(lambda: lib.spmd_job_starves(job.job, numbers, numbers + 1, numbers + 2) > 5e7)
        assert (numbers[1], numbers[2]) == (0, 0)
        assert lib.spmd_ring_wants(rings.rings[0], 0) and not lib.spmd_ring_wants(rings.rings[0], 1)

        def supply() -> None:
            for k in range(5):
                while not all(lib.spmd_ring_wants(ring, k) for ring in rings.rings):
                    time.sleep(0.001)
                time.sleep(0.005)
                assert not any(rings.put_all(k))
            for ring in rings.rings:
                lib.spmd_ring_end(ring, 5)

        thread = threading.Thread(target=supply)
        thread.start()
        assert job.wait() == lib.SPMD_FINISHED and job.wrong() == 0
        thread.join()
        assert lib.spmd_job_starves(job.job, numbers, numbers + 1, numbers + 2) == 0
        found = ffi.new("int64_t[2]")
        lib.spmd_job_feed_waits(job.job, 0, found, found + 1)
        assert 1e7 < found[0] <= found[1]  # the first batch is not waited for: 4 are
        check(lib.spmd_job_feed_taken(job.job, 0, found, found + 1))
        assert list(found) == [5, 1]


def test_next_behind_the_end_is_an_error(images: Images):
    with fed(images, flags=ASKS_NOT) as job:
        rings = Rings(job)
        rings.put_all(0)
        for ring in rings.rings:
            lib.spmd_ring_end(ring, 1)
        job.start()
        assert job.wait() == lib.SPMD_ABORTED
        assert job.failure().code == 65
        assert job.reason().startswith("feed 'feed' has ended after 1 batches, and next() asks")
