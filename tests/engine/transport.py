"""Jobs whose processes share memory in part, or not at all: what `mpirun` starts in test_transport.

In: the library of images, as the first argument. Out: a line for every case, from process 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mpi4py import MPI

from codegen.symbolic.meaning import block
from spmd.engine import ffi, lib
from spmd.launch import transport
from spmd.launch.hosts import Hosts, contribution
from spmd.launch.processes import Processes
from tests.engine.harness import Images, Job, check

comm = MPI.COMM_WORLD
PROGRAMS = [
    "ring", "edge", "route", "reduce", "axes", "gather", "swap", "scatter", "scan", "near", "halo",
]
SIZES = [(4,), (2, 2, 4), (19,)]
# Which arena each of four processes shares: none, two by two, alternating, all but one.
ARENAS = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]]
# Elements and seeds; the second with strict barriers.
CASES = [(130, 5), (1, 0)]


def hosts_of(ranks: int, arenas: list[int]) -> Hosts:
    everyones = []
    for number in range(comm.size):
        first, count = block(number, ranks, comm.size)
        everyones.append(contribution("", {}, first, count))
        everyones[-1]["place"] = (str(arenas[number]),)
    return Hosts(comm.rank, everyones)


def run(images: Images, name: str, size: tuple[int, ...], arenas: list[int], **options) -> str:
    """Runs twice; "" or what is wrong."""
    hosts = hosts_of(_product(size), arenas)
    moved = transport.Transport(Processes(comm), hosts)
    first, arena = ffi.new("int64_t[]", hosts.first), ffi.new("int64_t[]", hosts.arenas)
    processes = ffi.new(
        "spmd_processes *", [comm.size, comm.rank, first, arena, arena, moved.settings]
    )
    mine = hosts.first[comm.rank], hosts.first[comm.rank + 1] - hosts.first[comm.rank]
    mates = hosts.in_this_arena()
    job = made = None
    for turn in (True, False):  # the first of an arena makes it, then the others come
        if (comm.rank == mates[0]) == turn:
            job = Job(
                images, name, size, min(2, mine[1]), first=mine[0], count=mine[1], shared=True,
                arena=None if turn else made[mates[0]], processes=processes, **options,
            )
        made = comm.allgather(job.address if job and turn else None)
    comm.Barrier()
    wrong = ""
    for _ in range(2):
        job.start()
        if job.wait() != lib.SPMD_FINISHED:
            wrong = job.reason()
            break
        if job.wrong():
            wrong = f"{job.wrong()} wrong values"
    wrong = "; ".join(text for text in comm.allgather(wrong) if text)
    check(lib.spmd_job_free(job.job))
    lib.spmd_arena_free(job.arena)
    moved.close()
    return wrong


def _product(size: tuple[int, ...]) -> int:
    total = 1
    for extent in size:
        total *= extent
    return total


def main() -> None:
    images = Images(Path(sys.argv[1]))
    for k, arenas in enumerate(ARENAS):
        for j, name in enumerate(PROGRAMS):
            size = SIZES[(j + k) % len(SIZES)]  # each program at each, in one of the ways to share
            for elements, seed in CASES:
                wrong = run(images, name, size, arenas, elements=elements, seed=seed,
                            strict=seed == 0)
                if comm.rank == 0:
                    print(f"{name} {size} {arenas} {elements}: {wrong or 'right'}", flush=True)
        for algorithm in ("flat", "blocks", "ring"):  # long enough for a ring between arenas
            wrong = run(images, "reduce", (7,), arenas, elements=20_000, algorithm=algorithm)
            if comm.rank == 0:
                print(f"{algorithm} {arenas}: {wrong or 'right'}", flush=True)


if __name__ == "__main__":
    main()
