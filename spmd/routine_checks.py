"""Routines of libraries, called on small matrices: does each give what NumPy gives?

In: the name of a library. Out: for each of its routines its name, and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from codegen.dtypes import DType, numpy_dtype
from codegen.errors import EnvironmentFault
from codegen.library_routines import Routine, every, routine
from codegen.routine_trials import Key, MakesTrial, SampleMatrices
from spmd.engine import ffi
from spmd.launch import routines

DIGITS = {"float32": 4, "float64": 10}  # on which results agree, beside the largest element


def beside_numpy(source: str) -> Iterator[tuple[str, str]]:
    """Call every routine of a library once for each element type; yield its name and what is wrong
    with it, "" where nothing is."""
    for row, dtype in every():
        if row.source == source and row.trial is not None:
            yield row.of(dtype).name, _fault(row.of(dtype), row.trial, dtype)


def _fault(called: Routine, trial: MakesTrial, dtype: DType) -> str:
    matrices = SampleMatrices(np.dtype(numpy_dtype(dtype)))
    arguments, result, expected = trial(matrices)
    try:
        address = routines.address(called.source, called.name)
        handed = [_handed(x, dtype) for x in arguments]
    except EnvironmentFault as error:
        return error.message
    info = ffi.cast(f"{called.result}(*)({called.takes})", address)(*handed)
    if info:
        return f"it returns {info}"
    for got, want in zip(result(), expected, strict=True):
        apart = np.max(abs(np.asarray(got) - want), initial=0) / np.max(abs(want), initial=1)
        if not apart < 10.0 ** -DIGITS[matrices.real.name]:
            return f"an element differs by {apart:.1e} of the largest one"
    return ""


def _handed(x: Any, dtype: DType) -> Any:
    """Return an argument as C takes it."""
    if x is None:
        return ffi.NULL
    if isinstance(x, Key):
        other = routine(x, dtype)
        return ffi.cast("void *", routines.address(other.source, other.name))
    if isinstance(x, str):
        return x.encode()
    return ffi.cast("void *", x.ctypes.data) if isinstance(x, np.ndarray) else x
