"""Arrays of programs as NumPy has them: element types, and the text of an output that is printed.

In: our names of element types, buffers, arrays. Out: dtypes, text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen import dtypes

SMALL = 100  # elements that are printed in full
AT_ONCE = 1 << 20  # elements that are summarised at a time: no second copy of a large array


def numpy_dtype(dtype: str) -> np.dtype:
    """Return the NumPy dtype of one of our element types."""
    result: np.dtype = dtypes.numpy_dtype(dtypes.BY_NAME[dtype])
    return result


def as_array(elements: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of this dtype and shape over a buffer; return an array as it is."""
    is_array = isinstance(elements, np.ndarray)
    return elements if is_array else np.ndarray(shape, numpy_dtype(dtype), elements)


def output_text(name: str, dtype: str, elements: np.ndarray) -> str:
    """Return the text of one output: as NumPy prints it, or its shape, dtype, min, max and mean."""
    head = f"{name}: {dtype} {elements.shape}"
    if elements.ndim == 0:
        return f"{name}: {dtype} {elements[()]!s}"
    if elements.size == 0:
        return f"{head} []"
    if elements.size <= SMALL:
        text = np.array2string(elements)
        return f"{head} {text}" if "\n" not in text else f"{head}\n{text}"
    low, high, mean = summary(elements)
    if dtype.startswith("complex"):
        return f"{head} mean {mean:.6g}"
    return f"{head} min {low!s} max {high!s} mean {mean:.6g}"


def summary(array: np.ndarray) -> tuple[Any, Any, Any]:
    """Return min, max and mean, in pieces; min and max are None for complex numbers."""
    flat = array.reshape(-1)
    ordered = array.dtype.kind != "c"
    wide = np.float64 if ordered else np.complex128
    low, high, total = None, None, wide(0)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, AT_ONCE):
            piece = flat[start : start + AT_ONCE]
            total += piece.astype(wide).sum()
            if ordered:
                low = piece.min() if low is None else np.minimum(low, piece.min())
                high = piece.max() if high is None else np.maximum(high, piece.max())
        return low, high, total / flat.size
