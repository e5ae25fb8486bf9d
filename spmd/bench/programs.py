"""The programs that `bench` measures: each a loop over a barrier and one collective.

In: elements per rank. Out: an image for each collective, which counts what was wrong.
Always holds: what goes in differs in every turn and on every rank, what comes out is compared with
a formula; all values are small whole numbers, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmd
from codegen.trace.program import Program
from spmd import source

AXIS = "r"
PERIOD = 7  # of the pattern: prime, so that no block in a wrong place looks right


def pattern(length: Any, begin: Any = 0) -> Any:
    """Return elements `begin` and on of a rank's part. A formula, not an array, and no part of it
    stands in it twice, or it would be stored: what is computed between the turns is to leave the
    caches to what is exchanged."""

    def positions() -> Any:
        return spmd.arange(length, dtype=np.float64) + begin

    return positions() - PERIOD * np.floor(positions() / PERIOD)


def pieces(count: int, many: Any) -> Any:
    """Return the patterns of as many pieces, one after the other, each larger by one than the
    last."""

    def piece() -> Any:
        return np.floor(spmd.arange(count * many, dtype=np.float64) / count)

    def positions() -> Any:
        return spmd.arange(count * many, dtype=np.float64) - count * piece()

    return positions() - PERIOD * np.floor(positions() / PERIOD) + piece()


Operand = Callable[[int, Any, Any], Any]


def _program(
    operand: Operand, exchange: Callable[..., Any],
    expected: Callable[[int, Any, Any, Any, Any], Any],
) -> Program:
    """Make the program of a collective. operand: a function of the elements of a piece, the
    number of ranks, the position plus the turn. expected: a function of the elements of a piece,
    those of the result, the position, the number of ranks, the turn."""

    @spmd.program(mesh=(AXIS,))
    def turns(count: int = 2) -> Any:
        turns = spmd.scalar("turns", 10)

        @spmd.shard_map(mesh=AXIS, out_layouts=(AXIS,))
        def loop() -> Any:
            i, n = spmd.axis_index(AXIS), spmd.axis_size(AXIS)
            wrong = np.zeros(1, np.int64)
            for k in spmd.range(turns):
                t = k % 5
                x = operand(count, n, i + t).astype(np.float32)
                spmd.barrier()
                y = exchange(x)
                spmd.barrier()  # where ranks share cores: who checks keeps nobody from exchanging
                wrong = wrong + np.sum(y != expected(count, y.shape[0], i, n, t))
            return wrong

        return {"wrong": loop()}

    return turns


def _one(count: int, n: Any, own: Any) -> Any:
    return pattern(count) + own


def _every(count: int, n: Any, own: Any) -> Any:
    return pieces(count, n) + own


def _sum(part: Any, n: Any, t: Any) -> Any:
    return n * (part + t) + n * (n - 1) // 2


def _past_a_barrier(x: Any) -> Any:
    spmd.barrier()
    return x


PROGRAMS = {
    "barrier": _program(
        _one,
        _past_a_barrier,
        lambda c, m, i, n, t: pattern(c) + (i + t),
    ),
    "permute": _program(
        _one,
        lambda x: spmd.ppermute(x, AXIS, shift=1),
        lambda c, m, i, n, t: pattern(c) + ((i - 1) % n + t),
    ),
    "broadcast": _program(
        _one,
        lambda x: spmd.pbroadcast(x, AXIS, 0),
        lambda c, m, i, n, t: pattern(c) + t,
    ),
    "all-reduce": _program(
        _one,
        lambda x: spmd.psum(x, AXIS),
        lambda c, m, i, n, t: _sum(pattern(c), n, t),
    ),
    "reduce-scatter": _program(  # of equal blocks
        _one,
        lambda x: spmd.psum_scatter(x, AXIS, tiled=True),
        lambda c, m, i, n, t: _sum(pattern(m, i * m), n, t),
    ),
    "all-gather": _program(
        _one,
        lambda x: spmd.all_gather(x, AXIS, tiled=True),
        lambda c, m, i, n, t: pieces(c, n) + t,
    ),
    "all-to-all": _program(
        _every,
        lambda x: spmd.all_to_all(x, AXIS, 0, 0, tiled=True),
        lambda c, m, i, n, t: pieces(c, n) + (i + t),
    ),
    "reduce": _program(
        _one,
        lambda x: spmd.preduce(x, AXIS),
        lambda c, m, i, n, t: _sum(pattern(c), n, t) * (i == 0),
    ),
    "gather": _program(
        _one,
        lambda x: spmd.pgather(x, AXIS, tiled=True),
        lambda c, m, i, n, t: pieces(c, n * (i == 0)) + t,
    ),
    "scatter": _program(
        _every,
        lambda x: spmd.pscatter(x, AXIS, tiled=True),
        lambda c, m, i, n, t: pattern(c) + (i + t),
    ),
    "scan": _program(
        _one,
        lambda x: spmd.pscan(x, AXIS),
        lambda c, m, i, n, t: _sum(pattern(c), i + 1, t),
    ),
    "exscan": _program(
        _one,
        lambda x: spmd.pexscan(x, AXIS),
        lambda c, m, i, n, t: _sum(pattern(c), i, t),
    ),
}


def built(name: str, count: int) -> bytes:
    """Return the image of a collective of so many elements."""
    return source.build_program(PROGRAMS[name], {"count": count})
