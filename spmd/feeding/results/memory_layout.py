"""Arrays in a block of memory: the fields of a feed, one behind the other, as all sides lay them.

In: fields as they stand on the wire. Out: where each lies, views of it.
"""

from __future__ import annotations

import numpy as np

from codegen.errors import UsageError
from spmd.data.computing import dtype_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ALIGNED = 64


def dtype_named(name: str) -> np.dtype:
    """Return the dtype of a name on the wire. Raises UsageError where this machine does not have
    it."""
    try:
        dtype = dtype_of(name)
    except (AttributeError, TypeError):
        raise UsageError(f"a field of an unknown dtype {name[:40]!r}") from None
    if dtype.hasobject or not dtype.itemsize:
        raise UsageError(f"a field of dtype {name[:40]!r}: expected numbers")
    return dtype


def dtype_text(dtype: np.dtype) -> str:
    """Return a dtype as text that dtype_named reads: by name, where NumPy itself does not have
    it."""
    return dtype.str if dtype.kind != "V" else dtype.name


def described(field: Any) -> dict[str, Any]:
    """Return a field as wire messages have it: its shape without the batch."""
    return {"name": field.name, "dtype": dtype_text(np.dtype(field.dtype)),
            "shape": [int(n) for n in field.shape[1:]]}


def bytes_of(field: dict[str, Any]) -> int:
    """Return how many bytes a field has in one example."""
    size = int(dtype_named(field["dtype"]).itemsize)
    for extent in field["shape"]:
        size *= extent
    return size


def placed(fields: list[dict[str, Any]], rows: int) -> tuple[list[tuple[Any, ...]], int]:
    """Return (name, shape, dtype, offset, bytes) of each array in one block, and the block's
    bytes."""
    arrays, offset = [], 0
    for field in fields:
        size = rows * bytes_of(field)
        shape = (rows, *field["shape"])
        arrays.append((field["name"], shape, dtype_named(field["dtype"]), offset, size))
        offset += -(-size // ALIGNED) * ALIGNED
    return arrays, offset


def views(places: list[tuple[Any, ...]], memory: Any) -> dict[str, np.ndarray]:
    return {name: np.ndarray(shape, dtype, memory, offset)
            for name, shape, dtype, offset, _ in places}


def bits_of(there: np.ndarray) -> str | None:
    """Return which rows have an example, as text for a message; None where all have one."""
    return None if there.all() else np.packbits(there).tobytes().hex()


def of_bits(bits: str, count: int) -> np.ndarray | None:
    """Return which of `count` rows have an example, from the text of a message; None if the text is
    of another number of rows."""
    if len(bits) != 2 * -(-count // 8):
        return None
    return np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8), count=count).astype(bool)
