"""What the operations of expressions mean for integers: the one table that all readers have.

Always holds: every operation is total, and nothing is imported: ranks read manifests with this.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def floordiv(a: int, b: int) -> int:
    """Division by zero gives 0, as NumPy's integers do."""
    return a // b if b else 0


def mod(a: int, b: int) -> int:
    return a % b if b else 0


def begin(k: int, extent: int, blocks: int) -> int:
    """Where balanced block k of so many begins, as numpy.array_split cuts."""
    return k * floordiv(extent, blocks) + min(k, mod(extent, blocks))


# Beside sums and products.
OPERATIONS: dict[str, Callable[..., int]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": min,
    "max": max,
    "ge0": lambda a: int(a >= 0),
    "eq0": lambda a: int(a == 0),
    "begin": begin,
}
ARGUMENTS = {op: {"ge0": 1, "eq0": 1, "begin": 3}.get(op, 2) for op in OPERATIONS}
