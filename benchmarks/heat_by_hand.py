"""The heat example as people write it with mpi4py, beside the image with `transport="mpi"`.

In: an image of examples/heat.py, its n, steps, rounds. Out, from process 0: seconds of each, as a
line of JSON: for every round the worst rank after a barrier, the three ways alternating.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from mpi4py import MPI

import spmd

comm = MPI.COMM_WORLD


def spread(v: np.ndarray) -> None:
    v[1:-1, 1:-1] += 0.1 * (v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
                            - 4 * v[1:-1, 1:-1])


@numba.njit  # type: ignore[misc]
def spread_compiled(v: np.ndarray, new: np.ndarray) -> None:
    tenth, four = np.float32(0.1), np.float32(4)
    for i in range(1, v.shape[0] - 1):
        for j in range(1, v.shape[1] - 1):
            around = v[i - 1, j] + v[i + 1, j] + v[i, j - 1] + v[i, j + 1]
            new[i - 1, j - 1] = v[i, j] + tenth * (around - four * v[i, j])
    v[1:-1, 1:-1] = new


def by_hand(cart: MPI.Cartcomm, v: np.ndarray, steps: int, compute: Callable[[], Any]) -> None:
    """Four exchanges and the stencil, per step; columns travel packed."""
    up, down = cart.Shift(0, 1)
    left, right = cart.Shift(1, 1)
    column = np.empty(v.shape[0] - 2, np.float32)
    for _ in range(steps):
        cart.Sendrecv(v[-2], down, recvbuf=v[0], source=up)
        cart.Sendrecv(v[1], up, recvbuf=v[-1], source=down)
        for mine, ghost, to, source in ((-2, 0, right, left), (1, -1, left, right)):
            column[:] = 0
            cart.Sendrecv(v[1:-1, mine].copy(), to, recvbuf=column, source=source)
            v[1:-1, ghost] = column
        compute()


def timed(work: Callable[[], Any]) -> float:
    comm.Barrier()
    start = time.perf_counter()
    work()
    return comm.allreduce(time.perf_counter() - start, op=MPI.MAX)


def main(path: str, n: int, steps: int, rounds: int) -> None:
    cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
    rows, columns = (
        len(np.array_split(np.arange(n), size)[coordinate])
        for size, coordinate in zip(cart.dims, cart.coords)
    )
    v = np.zeros((rows + 2, columns + 2), np.float32)
    new = np.empty((rows, columns), np.float32)
    spread_compiled(v, new)
    ways: dict[str, Callable[[], Any]] = {
        "mpi4py and NumPy": lambda: by_hand(cart, v, steps, lambda: spread(v)),
        "mpi4py and numba": lambda: by_hand(cart, v, steps, lambda: spread_compiled(v, new)),
    }
    times: dict[str, list[float]] = {}
    with spmd.load(path).open(comm=comm, transport="mpi") as job:
        with open("/dev/null", "w") as quiet:
            out, sys.stdout = sys.stdout, quiet
            job(steps=steps)
            ways["spmd, --transport mpi"] = lambda: job(steps=steps)
            for _ in range(rounds):
                for name, work in ways.items():
                    v[:] = 0
                    times.setdefault(name, []).append(timed(work))
            sys.stdout = out
    if comm.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
