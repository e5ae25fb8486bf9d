"""Several processes share one arena through /proc: the same exchanges, failures, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spmd.engine import ffi, lib
from tests.conftest import PATIENCE, until
from tests.engine.harness import EngineError, Images, Job, check

ROOT = Path(__file__).resolve().parents[2]


class Others:
    """The other processes of a job; use as a context, so that none is left behind."""

    def __init__(
        self, images: Images, arena: tuple[str, int], runs: int, parts, **settings
    ) -> None:
        self.process = []
        for first, count in parts:
            options = {"library": str(images.path), "runs": runs, "arena": arena, **settings}
            text = json.dumps({**options, "first": first, "count": count})
            command = [sys.executable, "-m", "tests.engine.harness", text]
            self.process.append(
                subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            )

    def __enter__(self) -> Others:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.process:
            process.kill()
            process.wait()

    def loaded(self) -> None:
        for process in self.process:
            assert process.stdout.readline() == "loaded\n"

    def said(self) -> list[str]:
        return [process.communicate(timeout=PATIENCE)[0].strip() for process in self.process]


@pytest.mark.parametrize("name", [
    "ring", "route", "reduce", "gather", "scatter", "scan", "near", "halo",
])
def test_three_processes_exchange(images: Images, name):
    settings = {"size": (2, 4), "elements": 40, "steps": 12, "seed": 4}
    with Job(images, name, threads=1, first=0, count=3, shared=True, **settings) as job:
        with Others(images, job.address, 3, [(3, 1), (4, 4)], name=name, **settings) as others:
            for _ in range(3):
                job.run()
            assert [line.splitlines()[-1] for line in others.said()] == ["wrong 0"] * 2
            assert job.wrong() == 0


def test_every_algorithm_across_processes(images: Images):
    for algorithm in ("flat", "blocks", "ring"):
        settings = {"size": (6,), "elements": 500, "steps": 20, "algorithm": algorithm}
        with Job(images, "reduce", threads=1, count=2, shared=True, **settings) as job:
            parts = [(2, 4)]
            with Others(images, job.address, 2, parts, name="reduce", **settings) as others:
                job.run()
                job.run()
                assert others.said()[0].splitlines()[-1] == "wrong 0"
                assert job.wrong() == 0


def test_all_processes_see_a_failure_and_where_ranks_are(images: Images):
    settings = {"size": (4,), "steps": 1 << 40}
    with Job(images, "ring", threads=1, count=2, shared=True, **settings) as job:
        with Others(images, job.address, 1, [(2, 2)], name="ring", **settings) as others:
            others.loaded()
            job.start()
            until(lambda: job.watch(3).superstep > 0)
            assert lib.spmd_job_wait(job.job, 1) == lib.SPMD_RUNNING
            assert job.watch(3).process == others.process[0].pid
            lib.spmd_job_abort(job.job, 143, -1, b"terminated")
            assert job.wait() == lib.SPMD_ABORTED
            assert others.said() == ["aborted: terminated"]


def test_a_process_that_waits_for_a_lost_one_can_be_ended(images: Images):
    settings = {"size": (2,), "steps": 1 << 40}
    with Job(images, "ring", threads=1, count=1, shared=True, **settings) as job:
        with Others(images, job.address, 1, [(1, 1)], name="ring", **settings) as others:
            others.loaded()
            job.start()
            assert lib.spmd_job_wait(job.job, 100) == lib.SPMD_RUNNING
            others.process[0].kill()
            others.process[0].wait()

            def stands() -> bool:
                before = job.watch(0).superstep
                assert lib.spmd_job_wait(job.job, 100) == lib.SPMD_RUNNING
                return job.watch(0).superstep == before and job.watch(0).site == 0

            until(stands)  # it waits for the lost rank
            lib.spmd_job_abort(job.job, 75, 1, b"rank 1 lost")
            assert job.wait() == lib.SPMD_ABORTED


def test_only_the_agreed_memory_is_attached(images: Images, tmp_path):
    with Job(images, "ring", (2,), count=1, shared=True) as job:
        path, nonce = job.address
        size = lib.spmd_job_bytes(job.job)
        made = ffi.new("spmd_arena **")
        short, pipe = tmp_path / "short", tmp_path / "pipe"
        short.write_bytes(b"no arena")
        os.mkfifo(pipe)
        for wrong in [
            (path, size, nonce ^ 1),
            (path, size + 4096, nonce),
            (str(short), size, nonce),
            (str(pipe), size, nonce),
        ]:
            status = lib.spmd_arena_attach(wrong[0].encode(), *wrong[1:], made)
            assert status == lib.SPMD_MISMATCH, wrong
        missing = str(tmp_path / "missing").encode()
        assert lib.spmd_arena_attach(missing, size, nonce, made) == lib.SPMD_SYSTEM
        lib.spmd_arena_close_fd(job.arena)
        assert lib.spmd_arena_attach(path.encode(), size, nonce, made) != lib.SPMD_OK


def test_processes_with_other_sizes_are_refused(images: Images):
    with Job(images, "ring", (2, 3), count=1, shared=True, elements=100) as job:
        with pytest.raises(EngineError, match="agreed on"):
            Job(images, "ring", (3, 2), first=1, elements=100, arena=job.address)


def test_an_arena_leaves_nothing_behind():
    """Others, who run beside this test, may come and go meanwhile."""
    def is_clean() -> bool:
        before = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
        made = ffi.new("spmd_arena **")
        check(lib.spmd_arena_new(1 << 20, 1, made))
        lib.spmd_arena_free(made[0])
        return (set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))) == before

    assert any(is_clean() for _ in range(20))
