"""The programs that `bench` measures: each a loop over a barrier and one collective.

In: elements per rank. Out: a program for each collective, which counts what was wrong.
Always holds: what goes in differs in every turn and on every rank, what comes out is compared with
a formula; all values are small whole numbers, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmd
from codegen.trace.program import Program

AXIS = "r"


def _program(
    given: Callable[..., Any], exchange: Callable[..., Any], gotten: Callable[..., Any],
    pieces: bool = False,
) -> Program:  # fmt: skip
    """given, gotten: of the pattern, the position, the number of ranks and the turn.

    pieces: the pattern is as long as the pieces of all ranks together, not as one piece.
    """

    @spmd.program(mesh=(AXIS,))  # type: ignore[untyped-decorator]
    def turns(count: int = 2) -> Any:
        turns = spmd.scalar("turns", 10)
        one = spmd.input("one", (count,), np.float32, layout=(None,), default=lambda j: j % 7)
        every = spmd.input("every", (spmd.axis_size(AXIS) * count if pieces else 1,), np.float32,
                           layout=(None,), default=lambda j: j % count % 7 + j // count)
        mine = spmd.input("mine", (count,), np.float32, layout=(AXIS,), default=lambda j: j % 7)

        @spmd.shard_map(mesh=AXIS, out_layouts=(AXIS,))  # type: ignore[untyped-decorator]
        def loop(one: Any, every: Any, mine: Any) -> Any:
            i, n = spmd.axis_index(AXIS), spmd.axis_size(AXIS)
            wrong = np.zeros(1, np.int64)
            for k in spmd.range(turns):
                t = k % 5
                x = given(one, every, i + t)
                spmd.barrier()
                y = exchange(x)
                wrong = wrong + np.sum(y != gotten(one, every, mine, i, n, t))
            return wrong

        return {"wrong": loop(one, every, mine)}

    return turns


def _sum(pattern: Any, n: Any, t: Any) -> Any:
    return n * (pattern + t) + n * (n - 1) // 2


PROGRAMS = {
    "barrier": _program(
        lambda one, every, own: one,
        lambda x: spmd.barrier() or x,
        lambda one, every, mine, i, n, t: one,
    ),
    "permute": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.ppermute(x, AXIS, shift=1),
        lambda one, every, mine, i, n, t: one + ((i - 1) % n + t),
    ),
    "broadcast": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.pbroadcast(x, AXIS, 0),
        lambda one, every, mine, i, n, t: one + t,
    ),
    "all-reduce": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.psum(x, AXIS),
        lambda one, every, mine, i, n, t: _sum(one, n, t),
    ),
    "reduce-scatter": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.psum_scatter(x, AXIS, tiled=True),
        lambda one, every, mine, i, n, t: _sum(mine, n, t),
    ),
    "all-gather": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.all_gather(x, AXIS, tiled=True),
        lambda one, every, mine, i, n, t: every + t,
        pieces=True,
    ),
    "all-to-all": _program(
        lambda one, every, own: every + own,
        lambda x: spmd.all_to_all(x, AXIS, 0, 0, tiled=True),
        lambda one, every, mine, i, n, t: every + (i + t),
        pieces=True,
    ),
    "reduce": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.preduce(x, AXIS),
        lambda one, every, mine, i, n, t: _sum(one, n, t) * (i == 0),
    ),
    "gather": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.pgather(x, AXIS, tiled=True),
        lambda one, every, mine, i, n, t: every[: every.shape[0] * (i == 0)] + t,
        pieces=True,
    ),
    "scatter": _program(
        lambda one, every, own: every + own,
        lambda x: spmd.pscatter(x, AXIS, tiled=True),
        lambda one, every, mine, i, n, t: one + (i + t),
        pieces=True,
    ),
    "scan": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.pscan(x, AXIS),
        lambda one, every, mine, i, n, t: _sum(one, i + 1, t),
    ),
    "exscan": _program(
        lambda one, every, own: one + own,
        lambda x: spmd.pexscan(x, AXIS),
        lambda one, every, mine, i, n, t: _sum(one, i, t),
    ),
}
