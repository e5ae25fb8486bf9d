"""The machine that programs are compiled for: what the estimates and thresholds of passes assume.

One table for every instruction set: it decides the order in which numbers are added up, and results
have the same bits on every processor. Always holds: nothing here is measured where a build runs, so
that the same program gives the same image; importing this imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A core, the ranks that it exchanges with, and what is worth a change. A pass takes a number
    from here rather than write its own."""

    # Caches, in bytes: those of Intel's Haswell (2013). Newer cores have as much or more.
    line: int = 64
    l1: int = 1 << 15
    l2: int = 1 << 18
    # Bytes that are still in `l2` when they are used again: half of it, as other data go through.
    reused: int = 1 << 17
    # Arrays that one loop reads: caches keep few streams apart.
    streams: int = 16

    # Bytes of running totals that stay in registers: 8 vectors of AVX2.
    accumulators: int = 256
    # Turns of an innermost loop: with fewer, vectors and what stands around the loop gain nothing.
    short_loop: int = 16
    # Turns that look-ups are read ahead of their use: what is read stays in `l1`.
    lookahead: int = 256

    # Seconds that an op takes beside those of its elements.
    op_seconds: float = 3e-9
    # Seconds for one operation on one element, with vectors of 4 at 2 GHz.
    element_seconds: float = 0.125e-9
    # Operations for an element: of a plain function, of one that needs a header, as exp, of a sort.
    function_steps: int = 4
    header_function_steps: int = 40
    sort_steps: int = 512

    # Extents of products that are computed in loops: a call of BLAS would take longer.
    looped_product: int = 12
    # Rows of a matrix that such a loop multiplies together by a vector, which is read once for all.
    jammed_rows: int = 4
    # Terms of the sums in x.T @ x: with fewer, syrk, which computes half of the product, and a copy
    # to the other half take longer than the whole product.
    gram_terms: int = 64
    # Columns for which LAPACK gets workspace: with more it is no faster.
    lapack_block: int = 64

    # Seconds for two ranks of one host to exchange a few bytes, and for each byte more.
    exchange_seconds: float = 0.7e-6
    byte_seconds: float = 1 / 4e9
    # The two meshes for which times are estimated: ranks along the first axis, and along others.
    few_ranks: tuple[int, int] = (2, 1)
    many_ranks: tuple[int, int] = (16, 4)
    # Right sides of a system: with fewer, sharing them among ranks is not worth an exchange.
    shared_columns: int = 32

    # A form of a program is taken if it saves more than so many seconds on few ranks, and is more
    # than so many times as fast on few and on many: the estimates are no better than that.
    least_gain: float = 0.5e-3
    least_speedup: float = 1.2
    # Bytes of arrays of which every rank may get a copy for one loop.
    most_copied: int = 1 << 25
    # Bytes of copies from which on a build tells the user of them.
    large_copy: int = 1 << 20

    # Ops in one expression that is computed where it is used: C compilers recurse over it.
    deepest_expression: int = 40


TARGET = Machine()
