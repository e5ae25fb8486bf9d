"""Jobs of hand-written images (images.c) for the tests of the engine; also one more process.

In: the name of an image, ranks, scalars. Out: a loaded job that runs and counts wrong values.
As a module (`python -m tests.engine.harness`): joins the arena of the process that started it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from spmd.engine import ffi, lib

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
SOURCES = [str(path) for path in sorted(CSRC.rglob("*.c"))]
# Of them, those that only compute, and take the compiler longest: they share nothing, and the
# images here call none of them. What programs compute with them is compared in Python.
NUMBERS = [path for path in SOURCES if Path(path).name.startswith(("gemm_", "random"))]
ENGINE = [path for path in SOURCES if path not in NUMBERS]
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-g", f"-I{CSRC}"]
ALGORITHMS = {"auto": 0, "flat": 1, "blocks": 2, "ring": 3}
HOOKS = ["-include", str(HERE / "hooks.h"), f"-I{HERE}"]
WORST_SECONDS = 120


class EngineError(Exception):
    """A status that is not SPMD_OK."""


def check(status: int) -> None:
    if status != lib.SPMD_OK:
        raise EngineError(ffi.string(lib.spmd_status_text(status)).decode())


def compile_c(output: Path, *arguments: str) -> None:
    libraries = [] if "-nostdlib" in arguments else ["-lpthread", "-ldl", "-lm"]
    command = ["cc", *FLAGS, *arguments, "-o", str(output), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def compile_hooked(output: Path, *arguments: str) -> None:
    """A test in C, of the engine or of the hooks alone, with hooks.h in front of every file."""
    delays = output.with_suffix(".delays.o")
    compile_c(delays, "-O1", "-c", str(HERE / "delays.c"))
    compile_c(output, *HOOKS, *arguments, str(delays))


class Images:
    """The tables of images.c by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = lib.spmd_library_open(os.fsencode(path))
        assert self.handle != ffi.NULL, ffi.string(lib.spmd_library_error())

    def __getitem__(self, name: str) -> Any:
        found = lib.spmd_library_symbol(self.handle, f"{name}_image".encode())
        assert found != ffi.NULL, name
        return found


class Job:
    """Some or all ranks of a job. arena: (path, nonce) of another process's, to attach to."""

    def __init__(
        self,
        images: Images,
        name: str,
        size: tuple[int, ...],
        threads: int = 1,
        *,
        elements: int = 5,
        steps: int = 9,
        seed: int = 0,
        algorithm: str = "auto",
        strict: bool = False,
        limits: dict[str, int] | None = None,
        first: int = 0,
        count: int | None = None,
        shared: bool = False,
        arena: tuple[str, int] | None = None,
        processes: Any = ffi.NULL,
    ) -> None:
        self.ranks = math.prod(size)
        self.first, self.elements = first, elements
        self.count = self.ranks - first if count is None else count
        keep = [
            ffi.new("int64_t[3]", [*size, 1, 1][:3]),
            ffi.new("int64_t[3]", [elements, steps, seed]),
        ]
        settings = ffi.new(
            "spmd_settings *",
            {
                "image": images[name],
                "ranks": self.ranks,
                "size": keep[0],
                "scalar": keep[1],
                "scalars": 3,
                "first": first,
                "count": self.count,
                "threads": threads,
                "algorithm": ALGORITHMS[algorithm],
                "strict": strict,
                "processes": processes,
                "limits": [limits or {}] * 2,
            },
        )
        made, mapped = ffi.new("spmd_job **"), ffi.new("spmd_arena **")
        check(lib.spmd_job_new(settings, made))
        self.job = made[0]
        size_of = lib.spmd_job_bytes(self.job)
        if arena:
            check(lib.spmd_arena_attach(arena[0].encode(), size_of, arena[1], mapped))
        else:
            check(lib.spmd_arena_new(size_of, int(shared), mapped))
        self.arena = mapped[0]
        begin = time.process_time()
        check(lib.spmd_job_load(self.job, self.arena))
        self.load_seconds = time.process_time() - begin
        self.text = b""

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + WORST_SECONDS
        while lib.spmd_job_free(self.job) != lib.SPMD_OK:
            assert time.monotonic() < end, "the job does not end"
            lib.spmd_job_abort(self.job, 70, -1, b"left by the test")
            time.sleep(0.02)
        lib.spmd_arena_free(self.arena)

    @property
    def address(self) -> tuple[str, int]:
        """Return the file and nonce that another process needs to attach to the arena."""
        descriptor = lib.spmd_arena_fd(self.arena)
        return f"/proc/{os.getpid()}/fd/{descriptor}", lib.spmd_arena_nonce(self.arena)

    def start(self, given: bytes = b"") -> None:
        """Once all processes of the arena have loaded. given: one byte per input; all outputs are
        wanted."""
        end = time.monotonic() + WORST_SECONDS
        state = ffi.new("spmd_rank_state *")
        while any(lib.spmd_job_watch(self.job, k, state) == lib.SPMD_OK and state.process == 0
                  for k in range(self.ranks)):
            assert time.monotonic() < end, "a process does not load"
            time.sleep(0.001)
        wanted = given + b"\1" * 64 if given else ffi.NULL
        check(lib.spmd_job_start(self.job, wanted))

    def wait(self) -> int:
        """Collects text until the run is over; fails the test when it takes too long."""
        end = time.monotonic() + WORST_SECONDS
        room = ffi.new("char[]", 1000)
        while True:
            state = lib.spmd_job_wait(self.job, 50)
            while length := lib.spmd_job_text(self.job, room, len(room)):
                self.text += ffi.buffer(room, length)[:]
            if state != lib.SPMD_RUNNING:
                return int(state)
            assert time.monotonic() < end, self.where()

    def run(self, given: bytes = b"\0") -> None:
        self.start(given)
        state = self.wait()
        assert state == lib.SPMD_FINISHED, self.failure()

    def failure(self) -> Any:
        seen = ffi.new("spmd_failure *")
        return seen if lib.spmd_job_failure(self.job, seen) else None

    def reason(self) -> str:
        return str(ffi.string(self.failure().text).decode())

    def watch(self, rank: int) -> Any:
        state = ffi.new("spmd_rank_state *")
        check(lib.spmd_job_watch(self.job, rank, state))
        return state

    def where(self) -> str:
        states = [self.watch(k) for k in range(min(self.ranks, 16))]
        return "still running: " + str([(s.superstep, s.site, s.done) for s in states])

    def copy(self, way: str, number: int, array: np.ndarray, swap: int = 0, rank: int = -1) -> None:
        """Copy a global array to the ranks (way "scatter") or from them ("gather")."""
        shape = ffi.new("int64_t[8]", list(array.shape))
        stride = ffi.new("int64_t[8]", list(array.strides))
        base = ffi.cast("char *", array.__array_interface__["data"][0])
        view = ffi.new("spmd_global *", [base, array.ndim, shape, stride, array.itemsize, swap])
        check(getattr(lib, f"spmd_job_{way}")(self.job, number, rank, view))

    def rows(self, dtype: str = "float64") -> np.ndarray:
        """The result of every hosted rank."""
        result = np.zeros((self.ranks, self.elements), dtype)
        self.copy("gather", 1, result)
        return result

    def wrong(self) -> int:
        """Wrong values that the hosted ranks have seen."""
        errors = np.zeros(self.ranks, np.int64)
        self.copy("gather", 0, errors)
        return int(errors.sum())


def main(argument: str) -> None:
    """Runs twice as one of several processes; prints wrong values, or why it was aborted."""
    options = json.loads(argument)
    images = Images(Path(options.pop("library")))
    runs = options.pop("runs")
    with Job(images, **options) as job:
        print("loaded", flush=True)
        for _ in range(runs):
            job.start()
            if job.wait() != lib.SPMD_FINISHED:
                print(f"aborted: {job.reason()}")
                return
        print(f"wrong {job.wrong()}")


if __name__ == "__main__":
    main(sys.argv[1])
