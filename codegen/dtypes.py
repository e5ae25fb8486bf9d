"""The element types, one row for each, which the tracer, the emitter and the runtime read.

In: names and NumPy dtypes. Out: rows, and the NumPy dtype of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.errors import InputError


@dataclass(frozen=True)
class DType:
    """A row describes an element type. name: as in NumPy. c: the type in memory. compute: the C
    type arithmetic is done in."""

    name: str
    kind: str  # b bool, i signed, u unsigned, f float, c complex
    size: int  # bytes
    c: str
    compute: str

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


_ROWS = (
    DType("bool", "b", 1, "uint8_t", "uint8_t"),
    DType("int8", "i", 1, "int8_t", "int8_t"),
    DType("int16", "i", 2, "int16_t", "int16_t"),
    DType("int32", "i", 4, "int32_t", "int32_t"),
    DType("int64", "i", 8, "int64_t", "int64_t"),
    DType("uint8", "u", 1, "uint8_t", "uint8_t"),
    DType("uint16", "u", 2, "uint16_t", "uint16_t"),
    DType("uint32", "u", 4, "uint32_t", "uint32_t"),
    DType("uint64", "u", 8, "uint64_t", "uint64_t"),
    DType("float16", "f", 2, "spmd_float16", "float"),
    DType("bfloat16", "f", 2, "spmd_bfloat16", "float"),
    DType("float32", "f", 4, "float", "float"),
    DType("float64", "f", 8, "double", "double"),
    DType("complex64", "c", 8, "float _Complex", "float _Complex"),
    DType("complex128", "c", 16, "double _Complex", "double _Complex"),
)

BY_NAME: dict[str, DType] = {row.name: row for row in _ROWS}

BOOL = BY_NAME["bool"]
INT64 = BY_NAME["int64"]
FLOAT32 = BY_NAME["float32"]
FLOAT64 = BY_NAME["float64"]
COMPLEX128 = BY_NAME["complex128"]


def numpy_dtype(dtype: DType) -> Any:
    """Return the NumPy dtype of one of our element types."""
    if dtype.name == "bfloat16":
        import ml_dtypes  # ten milliseconds, for one type

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype.name)


def from_numpy(dtype: Any) -> DType | None:
    """Return our element type for anything NumPy accepts as a dtype; None when we have none."""
    if isinstance(dtype, DType):
        return dtype
    if dtype == "bfloat16":
        return BY_NAME["bfloat16"]
    return BY_NAME.get(np.dtype(dtype).name)


def as_numpy(x: Any) -> Any:
    """Return np.asarray(x); raise InputError for masked arrays, whose mask it would lose."""
    several = isinstance(x, (list, tuple))
    parts = x if several else (x,)
    if any(hasattr(e, "filled") and hasattr(e, "mask") for e in parts):
        masked: Any = np.ma
        count = sum(masked.count_masked(e) for e in parts)
        raise InputError(
            "a masked array would lose its mask",
            expected="an array without a mask",
            found=f"a masked array, {count} of whose elements are masked",
            remedy="x.filled(v), with v where the mask is; pass the mask as an array of bools",
        )
    return np.asarray(x)


def totalled_in(fn: str, dtype: DType) -> DType:
    """Return the type in which a rank combines elements by a row of COMBINE: float64 for sums of
    float32, float32 for all of 16 bits."""
    if dtype == FLOAT32 and fn == "add":
        return FLOAT64
    return FLOAT32 if dtype.kind == "f" and dtype.size == 2 else dtype


def folded_in(dtype: DType) -> DType:
    """Return the type in which ranks reduce elements of `dtype`: float32 for half types, else
    itself."""
    return dtype if dtype.c == dtype.compute else FLOAT32
