"""The machine that programs are compiled for: what costs and thresholds assume of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    op_seconds: float = 3e-9
    element_seconds: float = 0.125e-9
    exchange_seconds: float = 0.7e-6
    byte_seconds: float = 1 / 4e9
    least_gain: float = 0.5e-3
    least_speedup: float = 1.2
    copies_most: int = 32 << 20


TARGET = Target()
