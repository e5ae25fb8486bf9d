"""Random numbers that follow from a seed: the same for any number of ranks and any layout."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from codegen import philox
from codegen.trace.numpy import random
from codegen.trace.numpy.refused import RANDOM
from spmd.engine import ffi, lib

_NAMES = "bits categorical normal permutation randint uniform".split()
_KINDS = {
    "bits": (lib.SPMD_RANDOM_BITS, np.uint64), "below": (lib.SPMD_RANDOM_BELOW, np.uint64),
    "uniform_f32": (lib.SPMD_RANDOM_UNIFORM_F32, np.float32),
    "uniform_f64": (lib.SPMD_RANDOM_UNIFORM_F64, np.float64),
    "normal_f32": (lib.SPMD_RANDOM_NORMAL_F32, np.float32),
    "normal_f64": (lib.SPMD_RANDOM_NORMAL_F64, np.float64),
}


def _fill(kind: str, count: int, seed: int, stream: int, start: int, span: int) -> Any:
    """Return numbers by the engine: as in images, to the bit."""
    number, dtype = _KINDS[kind]
    out = np.empty(count, dtype)
    lib.spmd_random_fill(ffi.cast("void *", out.ctypes.data), count, number, seed, stream, start,
                         span)
    return out


def _order(words: Any) -> Any:
    out = np.empty(len(words), np.int64)
    status = lib.spmd_random_order(ffi.cast("int64_t *", out.ctypes.data),
                                   ffi.cast("uint64_t *", words.ctypes.data), len(words))
    if status != lib.SPMD_OK:
        raise MemoryError(ffi.string(lib.spmd_status_text(status)).decode())
    return out


philox.use(_fill, _order)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        instead = RANDOM.get(name, f"it has {', '.join(_NAMES)}")
        module = sys.modules[__name__]
        raise AttributeError(f"spmd.random has no {name!r}: {instead}", name=None, obj=module)
    return getattr(random, name)


def __dir__() -> list[str]:
    return _NAMES
