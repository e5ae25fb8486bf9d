"""A job from outside: arrays in and out, text, failures, arguments that are refused."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest

from spmd.engine import ffi, lib
from tests.conftest import run, until
from tests.engine.harness import EngineError, Images, Job

ROWS, COLUMNS = 11, 7


def forms(whole: np.ndarray) -> dict[str, np.ndarray]:
    """The same numbers, laid out in memory in different ways."""
    spread = np.zeros((3 * ROWS, 2 * COLUMNS), whole.dtype)
    spread[::3, ::2] = whole
    return {
        "C order": whole.copy(),
        "Fortran order": np.asfortranarray(whole),
        "backwards": whole[::-1, ::-1].copy()[::-1, ::-1],
        "with gaps": spread[::3, ::2],
        "one row for all": np.broadcast_to(whole[0], whole.shape),
    }


@pytest.mark.parametrize("size", [(1,), (3, 2), (4, 5), (16, 1)])
def test_arrays_go_in_and_out_by_any_strides(images: Images, size):
    whole = np.arange(ROWS * COLUMNS, dtype=np.int64).reshape(ROWS, COLUMNS)
    with Job(images, "data", size, 2, elements=ROWS, steps=COLUMNS) as job:
        for name, array in forms(whole).items():
            job.copy("scatter", 0, array)
            job.run(b"\1")
            for out in forms(np.zeros_like(whole)).values():
                if 0 not in out.strides:
                    job.copy("gather", 1, out)
                    assert (out == 2 * array).all(), name


def test_an_input_that_is_not_given_says_so(images: Images):
    out = np.zeros((ROWS, COLUMNS), np.int64)
    with Job(images, "data", (2, 2), 1, elements=ROWS, steps=COLUMNS) as job:
        job.run(b"\0")
        job.copy("gather", 1, out)
        assert (out == -1).all()


def test_foreign_byte_order(images: Images):
    whole = np.arange(ROWS * COLUMNS, dtype=np.int64).reshape(ROWS, COLUMNS)
    out = np.zeros((ROWS, COLUMNS), ">i8")
    with Job(images, "data", (2, 3), 1, elements=ROWS, steps=COLUMNS) as job:
        job.copy("scatter", 0, whole.astype(">i8"), swap=8)
        job.run(b"\1")
        job.copy("gather", 1, out, swap=8)
        assert (out == 2 * whole).all()
        job.copy("scatter", 0, whole.astype(">c8").view(">i8")[:, :COLUMNS], swap=4)
        job.copy("gather", 0, out.view("<i8"))
        halves = whole.astype(np.complex64).view("<i8")[:, :COLUMNS]
        assert (out.view("<i8") == halves).all(), "complex: each half by itself"


def test_the_part_of_one_rank(images: Images):
    whole = np.arange(ROWS * COLUMNS, dtype=np.int64).reshape(ROWS, COLUMNS)
    out = np.zeros_like(whole)
    with Job(images, "data", (3, 2), 1, elements=ROWS, steps=COLUMNS) as job:
        job.copy("scatter", 0, whole)
        job.run(b"\1")
        job.copy("gather", 1, out, rank=3)
        assert (out != 0).sum() == 4 * 3 and (out[4:8, 4:] == 2 * whole[4:8, 4:]).all()
        offset, extent = ffi.new("int64_t[8]"), ffi.new("int64_t[8]")
        address = ffi.new("void **")
        assert lib.spmd_job_shard(job.job, 1, 3, offset, extent, address) == lib.SPMD_OK
        assert (list(offset[0:2]), list(extent[0:2])) == ([4, 4], [4, 3])
        part = np.frombuffer(ffi.buffer(address[0], 4 * 3 * 8), np.int64).reshape(4, 3)
        assert (part == out[4:8, 4:]).all()
        assert lib.spmd_job_shard(job.job, 1, 6, offset, extent, address) == lib.SPMD_RANGE
        assert lib.spmd_job_shard(job.job, 2, 0, offset, extent, address) == lib.SPMD_RANGE


def test_an_array_of_another_shape_is_refused(images: Images):
    with Job(images, "data", (2, 2), 1, elements=ROWS, steps=COLUMNS) as job:
        for shape in [(ROWS - 1, COLUMNS), (ROWS, COLUMNS - 1), (ROWS,), (ROWS, COLUMNS, 1)]:
            with pytest.raises(EngineError, match="out of its range"):
                job.copy("scatter", 0, np.zeros(shape, np.int64))


def test_text_comes_whole_and_in_order(images: Images):
    with Job(images, "print", (8,), 2, steps=300) as job:
        job.run()
        lines = job.text.decode().splitlines()
    assert len(lines) == 8 * 300
    for rank in range(8):
        mine = [line for line in lines if line.endswith(f"rank {rank}")]
        assert mine == [f"step {k} rank {rank}" for k in range(300)]
    steps = [int(line.split()[1]) for line in lines]
    assert all(b >= a - 1 for a, b in zip(steps, steps[1:])), "a barrier separates the steps"


def test_text_that_nobody_fetches_is_kept(images: Images):
    with Job(images, "print", (50,), 1, steps=200) as job:
        job.start()
        while not all(job.watch(k).done for k in range(50)):
            time.sleep(0.01)
        assert job.wait() == lib.SPMD_FINISHED
        assert job.text.count(b"\n") == 50 * 200


def test_waiting_returns_as_soon_as_there_is_text(images: Images):
    with Job(images, "print", (2,), 1, steps=1 << 40) as job:
        job.start()
        begin = time.monotonic()
        assert lib.spmd_job_wait(job.job, 60_000) == lib.SPMD_RUNNING
        assert time.monotonic() - begin < 40


def test_a_failure_ends_a_run_promptly(images: Images):
    def seconds() -> float:
        with Job(images, "ring", (7,), 3, steps=1 << 40) as job:
            job.start()
            until(lambda: all(job.watch(k).superstep > 0 for k in range(7)))
            assert lib.spmd_job_wait(job.job, 1) == lib.SPMD_RUNNING
            assert job.watch(6).process == os.getpid()
            lib.spmd_job_abort(job.job, 130, 4, b"interrupted")
            lib.spmd_job_abort(job.job, 75, 5, b"too late")
            begin = time.monotonic()
            assert job.wait() == lib.SPMD_ABORTED
            failure = job.failure()
            assert (failure.code, failure.rank, job.reason()) == (130, 4, "interrupted")
            assert failure.superstep > 0
            assert lib.spmd_job_free(job.job) == lib.SPMD_OK
            job.job = ffi.NULL
            return time.monotonic() - begin

    assert any(seconds() < 1 for _ in range(5))


def test_a_run_that_cannot_go_on_is_a_failure(images: Images):
    for threads in (1, 3):
        with Job(images, "stuck", (6,), threads) as job:
            job.start()
            assert job.wait() == lib.SPMD_ABORTED
            text = "rank 0 waits in exchange 0 (barrier) and no rank can advance"
            assert (job.reason(), job.failure().rank) == (text, 0)
            with pytest.raises(EngineError, match="is running"):
                job.start()


def test_two_senders_to_one_rank_are_named(images: Images):
    with Job(images, "collide", (5,), 2) as job:
        job.start()
        assert job.wait() == lib.SPMD_ABORTED
        assert "both send to rank 0 in exchange 0" in job.reason()
        assert "rank 3" in job.reason() and "rank 4" in job.reason()
        failure = job.failure()
        assert failure.operation == job.watch(failure.rank).operation


def test_arguments_out_of_range_are_refused(images: Images):
    good = {"size": (4,), "threads": 1}
    wrong = [
        {"size": (0,)},
        {"threads": -1},
        {"first": 4},
        {"first": 2, "count": 3},
        {"count": 0},
    ]
    for change in wrong:
        with pytest.raises(EngineError, match="out of its range"):
            Job(images, "ring", **{**good, **change})
    with pytest.raises(EngineError, match="memory"):
        Job(images, "ring", (4,), elements=1 << 57)
    with pytest.raises(EngineError, match="memory"):
        Job(images, "ring", (1 << 31, 1 << 31))


def test_more_threads_than_ranks_are_not_started(images: Images):
    with Job(images, "ring", (3,), 50) as job:
        assert lib.spmd_job_threads(job.job) == 3


def test_importing_the_engine_imports_little_else():
    code = "import sys; old = set(sys.modules); import spmd.engine; print(*set(sys.modules) - old)"
    done = run([sys.executable, "-c", code])
    allowed = {
        "spmd", "spmd.engine", "spmd.engine._engine", "spmd.engine._engine.lib", "_cffi_backend",
        "__future__", "importlib", "importlib._bootstrap", "importlib._bootstrap_external",
        "warnings",
    }
    assert set(done.out.split()) <= allowed, done.text


def flags_of(address: int) -> list[str]:
    """Return the flags, as /proc tells them, of the memory mapping that holds an address."""
    flags: list[str] = []
    with open("/proc/self/smaps") as file:
        inside = False
        for line in file:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                begin, end = (int(part, 16) for part in head.split("-"))
                inside = begin <= address < end
            elif inside and head == "VmFlags:":
                flags = line.split()[1:]
    return flags


@pytest.mark.skipif(not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="none here")
@pytest.mark.parametrize(("size", "huge"), [(1 << 23, True), (1 << 16, False)])
def test_large_private_memory_asks_for_huge_pages(size, huge):
    made = ffi.new("spmd_arena **")
    assert lib.spmd_arena_new(size, 0, made) == 0
    try:
        word = ffi.cast("uintptr_t *", made[0])  # its first field: where it is mapped
        assert ("hg" in flags_of(int(word[0]))) is huge
    finally:
        lib.spmd_arena_free(made[0])
