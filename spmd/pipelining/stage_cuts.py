"""Layers cut into contiguous stages, so that the largest stage is least."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache


def cut(sizes: Sequence[float], stages: int) -> list[int]:
    """Return where each stage begins, and where the last one ends: stages + 1 positions.

    Each stage has at least one layer. Of cuts with the least largest stage, the first one is taken
    in which early stages are large.

    >>> cut([1, 1, 1, 3], 2)
    [0, 3, 4]
    """
    sums = [0.0]
    for size in sizes:
        sums.append(sums[-1] + size)

    @cache
    def best(first: int, count: int) -> tuple[float, int]:
        """Return the largest of so many stages from a layer on, and where the first one ends."""
        last = len(sizes)
        if count == 1:
            return sums[last] - sums[first], last
        ends = range(last - count + 1, first, -1)
        return min(((max(sums[end] - sums[first], best(end, count - 1)[0]), end) for end in ends),
                   key=lambda candidate: candidate[0])

    positions = [0]
    for count in range(stages, 0, -1):
        positions.append(best(positions[-1], count)[1])
    return positions


def cut_text(sizes: Sequence[float], positions: Sequence[int], unit: str) -> str:
    """Return the cut as text, with the speed over one stage that it allows."""
    parts = [sum(sizes[a:b]) for a, b in zip(positions, positions[1:])]
    total, largest = sum(parts), max(parts)
    many = ",.4g" if unit == "seconds" else ",.0f"
    rows = [f"stage {s}: layers {a} to {b - 1}, {part:{many}} {unit}" if b - a > 1 else
            f"stage {s}: layer {a}, {part:{many}} {unit}"
            for s, (a, b, part) in enumerate(zip(positions, positions[1:], parts))]
    fastest = total / largest if largest else len(parts)
    return "\n".join([*rows, f"at most {fastest:.2f} times as fast as one stage"])
