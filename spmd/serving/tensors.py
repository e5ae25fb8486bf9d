"""Tensors of the Open Inference Protocol: arrays as JSON, or as bytes behind the JSON.

In: arrays; or name, datatype, shape and elements as a message has them. Out: the other. Always
holds: what a message says raises InputError or gives an array of exactly that datatype and shape.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import InputError
from spmd.arrays import numpy_dtype

# The protocol has no complex numbers: the last two are ours, and travel as bytes only.
DATATYPES = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float32", "FP64": "float64",
    "COMPLEX64": "complex64", "COMPLEX128": "complex128",
}
NAMES = {dtype: datatype for datatype, dtype in DATATYPES.items()}
MOST_DIMS = 8
MOST_ELEMENTS = 1 << 48  # what a shape has without its zeros
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has none


def datatype_of(array: np.ndarray) -> str | None:
    """Return the protocol's name of an array's dtype; None where it has none."""
    return _datatype(array.dtype)


@lru_cache(maxsize=64)
def _datatype(dtype: np.dtype) -> str | None:
    row = dtypes.from_numpy(dtype) if dtype.kind not in "USO" else None
    return None if row is None else NAMES[row.name]


def checked_dtype(name: str, datatype: Any) -> np.dtype:
    """Return the NumPy dtype of a datatype. Raises InputError for one that is unknown."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise InputError(f"tensor {name} has the datatype {brief(datatype)}",
                         expected=f"one of {', '.join(DATATYPES)}", found=brief(datatype))
    return numpy_dtype(DATATYPES[datatype])


def checked_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return a shape of a message. Raises InputError unless it is a list of a few extents."""
    if (not isinstance(shape, list) or len(shape) > MOST_DIMS
            or not all(type(extent) is int and extent >= 0 for extent in shape)):
        raise InputError(f"tensor {name} has no proper shape", found=brief(shape),
                         expected=f"a list of at most {MOST_DIMS} integers of 0 or more")
    if math.prod(filter(None, shape)) >= MOST_ELEMENTS:  # NumPy refuses it beside a 0, too
        raise InputError(f"tensor {name} has no proper shape", found=brief(shape),
                         expected="a shape of which an array can be")
    return tuple(shape)


def from_bytes(name: str, dtype: np.dtype, shape: tuple[int, ...], data: memoryview) -> np.ndarray:
    """Return the array whose elements are these bytes, row-major and little-endian."""
    needed = math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise InputError(f"tensor {name} has the wrong number of bytes",
                         expected=f"{needed}, of {dtype} {shape}", found=str(len(data)))
    if not needed:
        return np.empty(shape, dtype)
    array: np.ndarray = np.ndarray(shape, dtype, data)
    if dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise InputError(f"tensor {name} has bytes that are no BOOL", expected="0 or 1",
                         found=str(array.view(np.uint8).max()))
    return array if array.flags.aligned else array.copy()


def from_list(name: str, dtype: np.dtype, shape: tuple[int, ...], data: Any) -> np.ndarray:
    """Return the array of JSON numbers: a flat list, or lists in lists, row-major. Numbers that
    are not finite are the texts NaN, Infinity and -Infinity."""
    if not isinstance(data, list):
        raise InputError(f"tensor {name} has no data", expected="a list of numbers, or "
                         "parameters.binary_data_size and bytes behind the JSON",
                         found=brief(data))
    array = _numbers(name, dtype, data)
    if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape):
        raise InputError(f"tensor {name} has data of another shape", expected=str(shape),
                         found=str(array.shape))
    with np.errstate(all="ignore"):
        return array.astype(dtype).reshape(shape)


def from_nested(name: str, dtype: np.dtype, value: Any) -> np.ndarray:
    """Return the array that a number, or lists in lists, is: its shape is theirs."""
    array = _numbers(name, dtype, value if isinstance(value, list) else [value])
    with np.errstate(all="ignore"):
        return array.astype(dtype).reshape(array.shape if isinstance(value, list) else ())


def _numbers(name: str, dtype: np.dtype, data: list[Any]) -> np.ndarray:
    """Return numbers as NumPy reads them, if this dtype holds their kind and their range."""
    try:
        array = np.array(data)
        if array.dtype.kind in "UO" and dtype.kind in "fV":  # of kind V: bfloat16
            array = np.array(_finite_or_not(data))
    except (ValueError, OverflowError, RecursionError):
        raise InputError(f"tensor {name} has data that are no numbers in a regular shape",
                         expected=f"numbers of {dtype}", found=brief(data)) from None
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(dtype.kind, "iuf" if dtype.kind != "c" else "")
    if array.size and array.dtype.kind not in kinds:
        expected = {"b": "true and false", "c": "complex numbers as bytes"}.get(
            dtype.kind, f"numbers of {dtype}")
        raise InputError(f"tensor {name} has data that are no {dtype}", found=brief(data),
                         expected=expected)
    if array.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InputError(f"tensor {name} has integers that {dtype} does not hold",
                             expected=f"{limits.min} to {limits.max}",
                             found=f"{array.min()} to {array.max()}")
    return array if array.size else np.zeros(array.shape, dtype)


def _finite_or_not(data: Any) -> Any:
    """Return lists with numbers in the place of the texts that stand for NaN and infinities."""
    if isinstance(data, list):
        return [_finite_or_not(item) for item in data]
    return NOT_FINITE.get(data, data) if isinstance(data, str) else data


def as_list(name: str, array: np.ndarray) -> list[Any]:
    """Return the elements for JSON, flat and row-major. Raises InputError for complex numbers."""
    if array.dtype.kind == "c":
        raise InputError(f"output {name} has complex numbers, and JSON has none",
                         expected="binary data", found="data in JSON",
                         remedy='"parameters": {"binary_data_output": true}')
    if array.dtype.kind not in "fV":
        elements: list[Any] = array.ravel().tolist()
        return elements
    flat = array.ravel().astype(np.float64)
    numbers: list[Any] = flat.tolist()
    for k in np.flatnonzero(~np.isfinite(flat)).tolist():
        number = numbers[k]
        numbers[k] = "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
    return numbers


def as_nested(name: str, array: np.ndarray) -> Any:
    """Return a number, or lists in lists, for JSON. Raises InputError for complex numbers."""
    flat = np.empty(array.size, object)
    flat[:] = as_list(name, array)
    return flat.reshape(array.shape).tolist()


def as_bytes(array: np.ndarray) -> bytes:
    """Return the elements as bytes, row-major and little-endian."""
    return array.tobytes()


def brief(value: Any) -> str:
    """Return the beginning of what a message has where something else was expected."""
    if isinstance(value, list) and len(value) > 8:
        return f"{repr(value[:8])[:72][:-1]}, …]"
    return "nothing" if value is None else repr(value)[:80]
