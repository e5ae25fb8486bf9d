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
    from here rather than write its own; a comment says its unit, and where the value comes from."""

    # Caches: bytes. The least of the x86-64 and aarch64 servers since 2013.
    line: int = 64
    l1: int = 1 << 15
    l2: int = 1 << 18
    # Bytes that are still in `l2` when they are used again: half of it, as other data go through.
    reused: int = 1 << 17
    # Arrays that a loop reads side by side: hardware prefetches about so many streams.
    streams: int = 16

    # Registers: bytes of running totals, 8 vectors of AVX2. More are spilled to memory.
    accumulators: int = 256
    # Turns of an innermost loop: of fewer, vectors and what stands around the loop gain nothing.
    short_loop: int = 16
    # Turns that look-ups are read ahead of their use: addresses and values stay in `l1`.
    lookahead: int = 256

    # Seconds: what an op costs beside its elements, as measured on one element.
    op_seconds: float = 3e-9
    # Seconds for one operation on one element, as with vectors of 4 at 2 GHz.
    element_seconds: float = 0.125e-9
    # Operations that a function takes for an element; one of a header, as exp; a sort of many.
    function_steps: int = 4
    header_function_steps: int = 40
    sort_steps: int = 512

    # Seconds for two ranks of one host to exchange a few bytes, and for each byte more.
    exchange_seconds: float = 0.7e-6
    byte_seconds: float = 1 / 4e9
    # Ranks along the first axis of a mesh, and along each other one, of the two meshes for which
    # estimates are made.
    few_ranks: tuple[int, int] = (2, 1)
    many_ranks: tuple[int, int] = (16, 4)

    # A form of a program is taken if it saves so many seconds and is so many times as fast: the
    # estimates are no better than that.
    least_gain: float = 0.5e-3
    least_speedup: float = 1.2
    # Bytes of arrays that a rank may hold whole in place of its part, for one loop.
    most_copied: int = 1 << 25
    # Bytes from which on a user is told of such copies.
    large_copy: int = 1 << 20

    # Ops in one expression that is computed where it is used: C compilers recurse over it.
    deepest_expression: int = 40

TARGET = Machine()
