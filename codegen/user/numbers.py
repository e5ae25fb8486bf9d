"""Element types as users name them, and Python numbers rounded to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import DtypeError


def element_type(dtype: Any) -> DType:
    """Return our element type for a NumPy dtype, scalar type, name or Python type."""
    try:
        an_array = hasattr(type(dtype), "__array_priority__")
        element = None if an_array else dtypes.from_numpy(dtype)
    except TypeError:
        element = None
    if element is None:
        is_time = any(text in repr(dtype) for text in ("datetime64", "timedelta64", "M8", "m8"))
        try:
            fields = np.dtype(dtype).names or ()
        except TypeError:
            fields = ()
        remedy = "integers of a unit of time that you choose" if is_time else ""
        if fields:
            remedy = f"an array for each field: {', '.join(fields)}"
        raise DtypeError(f"{dtype!r} is not an element type", expected=", ".join(dtypes.BY_NAME),
                         found=repr(dtype), remedy=remedy)
    return element


def rounded(value: Any, dtype: DType) -> int | float | complex | bool:
    """Return a Python number as it is in this element type. Raises where an integer does not
    fit."""
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind != "c" and isinstance(value, (complex, np.complexfloating)):
        raise DtypeError(
            f"a complex number in an array of {dtype}", expected="a real number", found=str(value),
            remedy="take its .real, or make the array complex: x.astype(np.complex128)",
        )
    if dtype.kind in "iu":
        info = np.iinfo(dtype.name)
        if not info.min - 1 < value < info.max + 1:  # nor is nan
            raise DtypeError(
                f"Python {'integer' if isinstance(value, int) else 'number'} {value} out of bounds "
                f"for {dtype}", expected=f"{info.min} to {info.max}", found=str(value),
                remedy="convert the array first: x.astype(np.int64)" if isinstance(value, int) else
                "an array of floats: dtype=np.float64",
            )
        return int(value)
    if isinstance(value, int) and value.bit_length() > 1023:
        raise DtypeError("this integer is too large for a float", expected="less than 2**1023",
                         found=f"an integer of {value.bit_length()} bits")
    kept = np.asarray(value).astype(dtypes.numpy_dtype(dtype))
    return complex(kept) if dtype.kind == "c" else float(kept)


def pace_spec(value: Any) -> str:
    """Return how spmd.progress writes a value."""
    return ".4g" if np.asarray(value).dtype.kind in "fc" else ""


def owner_of(x: Any) -> Any:
    """Return the object that owns the memory of a NumPy array: the array, unless it is a view."""
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    return x
