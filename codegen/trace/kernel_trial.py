"""Whether a kernel gives the same on parts of arrays as on the whole: tried while building.

On small arrays of random numbers; a kernel that cannot run on what is made up passes.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from types import FrameType
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import KernelError
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, Number
from codegen.trace.control.reads import digest
from codegen.user.trial import call, try_parts
from codegen.user.windows import Form, Start

Passed = dict[str, Any]

SHORT = 5  # elements of a dim that is cut; more where ghost cells are many
LONG = 16  # of a dim that is not
STEPS = 100_000  # lines of Python that a trial may take


def try_made_up(kernel: Any, form: Form, bound: Mapping[str, Any]) -> None:
    """Tries the kernel on small arrays of random numbers, while building."""
    passed = _made_up(form, bound)
    arguments = ((x.shape, x.dtype) if isinstance(x, np.ndarray) else repr(x)
                 for n, x in passed.items() if n not in form.starts)
    read = digest(kernel.function) or object()  # what cannot be seen may have changed
    key = (read, form.outputs, tuple(form.starts.items()), tuple(form.halo.items()), *arguments)
    if key in kernel.tried:
        return
    results = {n: np.array(x) if isinstance(x, np.ndarray) else x for n, x in passed.items()}
    before, budget = sys.gettrace(), _Budget()
    try:
        sys.settrace(budget.line)
        with np.errstate(all="ignore"):
            call(kernel.function, form, results)
            sizes = ", ".join(str(results[n].shape) for n in form.outputs)
            try_parts(kernel, form, passed, results, f", tried with an output of shape {sizes}")
    except KernelError:
        raise
    except Exception:  # it wants other arrays
        pass
    finally:
        sys.settrace(before)
    kernel.tried.add(key)


class _Budget:
    """Ends a trial that runs too many lines."""

    def __init__(self) -> None:
        self.left = STEPS

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise TimeoutError
        return self.line


def _made_up(form: Form, bound: Mapping[str, Any]) -> Passed:
    passed: Passed = {}
    wide = [sum(s) for halo in form.halo.values() for s in halo if s]
    short = max([SHORT, *(w + 1 for w in wide)])
    for name, x in bound.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        shape = x.extents if isinstance(x, Array) else getattr(x, "shape", ())
        if isinstance(x, Start):
            passed[name] = x
        elif isinstance(x, Number):
            passed[name] = x.expr.value if x.expr.is_const else 2
        elif not isinstance(x, (Array, np.ndarray)):
            passed[name] = x
        else:
            dtype = dtypes.numpy_dtype(x.type.dtype) if isinstance(x, Array) else x.dtype
            small = tuple(
                _short(extent, LONG if cut is None else short) + (cut[1] if cut else 0)
                for extent, cut in zip(shape, form.cuts(name), strict=True)
            )
            array = _random(rng, small, dtype)
            if name in form.outputs:
                array[...] = 0
            passed[name] = array if shape else array[()]
    return passed


def _short(extent: Any, most: int) -> int:
    known = extent.value if isinstance(extent, Expr) and extent.is_const else extent
    return min(known, most) if isinstance(known, int) else most


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, 5, shape)).astype(dtype)
    parts = rng.normal(size=(2, *shape))
    return np.asarray(parts[0] + (1j * parts[1] if dtype.kind == "c" else 0)).astype(dtype)
