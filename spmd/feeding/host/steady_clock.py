"""Clocks that a pipeline does not change: its code may set those of the module time to others.

Used in workers as that module is: `from spmd.feeding.host import steady_clock as time`.
"""

from __future__ import annotations

from time import CLOCK_MONOTONIC, clock_gettime, clock_gettime_ns


def monotonic() -> float:
    return clock_gettime(CLOCK_MONOTONIC)


def monotonic_ns() -> int:
    return clock_gettime_ns(CLOCK_MONOTONIC)


perf_counter = monotonic
