"""Clocks that a pipeline does not change: its code may set those of the module time to others.

Used in workers as that module is: `from spmd.feeding.host import steady_clock as time`.
"""

from __future__ import annotations

from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime, clock_gettime_ns

monotonic = perf_counter = partial(clock_gettime, CLOCK_MONOTONIC)
monotonic_ns = partial(clock_gettime_ns, CLOCK_MONOTONIC)
