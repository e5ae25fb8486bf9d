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


def may_be_transposed(x: Any) -> bool:
    """Return whether NumPy's array may lie in memory in another order than row by row."""
    if not isinstance(x, Array) or x.ndim < 2:
        return False
    return x.storage.transposed or any(isinstance(step, Transpose) for step in x.seen)


def with_order_of(result: Any, *operands: Any) -> Any:
    """Return the result of an element-wise function, or a copy with order="K", marked as maybe
    transposed where an operand may be."""
    if isinstance(result, Array) and any(may_be_transposed(x) for x in operands):
        result.storage.transposed = True
    return result


def linked_copy(array: Array, reshaped: Array) -> Array:
    """Return a reshaped copy that may be a view in NumPy: a write to one ends the other."""
    link(array.storage, reshaped.storage, "transpose", user_place())
    return reshaped
