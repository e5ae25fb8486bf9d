"""Which arrays NumPy would not keep row by row: results of transposed operands keep their order.

In: arrays of a capture, which all keep their elements row by row. Out: whether NumPy's would.
Always holds: where a reshape is a view for one of the two and a copy for the other, what is
written afterwards through one name cannot be read through the other: it is an error.
"""

from __future__ import annotations

from typing import Any

from codegen.ops import Transpose
from codegen.places import user_place
from codegen.trace.array import Array
from codegen.trace.control.regions import link


def is_turned(x: Any) -> bool:
    """Return whether NumPy's array may lie in memory in another order than row by row."""
    if not isinstance(x, Array) or x.ndim < 2:
        return False
    return x.storage.turned or any(isinstance(step, Transpose) for step in x.seen)


def kept(result: Any, *operands: Any) -> Any:
    """Return the result of element-wise work, or a copy with order="K": it lies as its operands
    do."""
    if isinstance(result, Array) and any(is_turned(x) for x in operands):
        result.storage.turned = True
    return result


def apart(array: Array, reshaped: Array) -> Array:
    """Return a reshaped copy that may be a view in NumPy: a write to one ends the other."""
    link(array.storage, reshaped.storage, "transpose", user_place())
    return reshaped
