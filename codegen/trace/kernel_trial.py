"""Whether a kernel gives the same on parts of arrays as on the whole, which halo= says: tried.

Goes in: NumPy arrays, of an eager run or made up while building. Comes out: nothing, or a
KernelError with an element that differs. A kernel that cannot run on what is made up passes.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from types import FrameType
from typing import Any

import numpy as np

from codegen import dtypes, gufunc
from codegen.errors import KernelError
from codegen.expr import Expr
from codegen.trace.array import Array, Number
from codegen.trace.reads import digest
from codegen.trace.windows import Box, Form, Start

Passed = dict[str, Any]

SHORT = 5  # elements of a dim that is cut; more where ghost cells are many
LONG = 16  # of a dim that is not
STEPS = 100_000  # lines of Python that a trial may take


def call(function: Any, form: Form, passed: Mapping[str, Any], box: Box | None = None) -> None:
    """The function once, or for every turn of its loops. box: which part of arrays these are."""
    args = [
        form.first(form.starts[n], box or {}) if isinstance(x, Start) else x
        for n, x in passed.items()
    ]
    gufunc.call(function, args, form.follows, [n in form.outputs for n in passed])


def try_parts(
    kernel: Any, form: Form, passed: Mapping[str, Any], results: Mapping[str, Any], where: str = ""
) -> None:
    """passed: what the kernel got, ghost cells and outputs as they were included."""
    extents = {c: results[form.outputs[0]].shape[form.place(form.outputs[0], c)] for c in form.cut}
    for half in np.ndindex(*[2] * len(form.cut)):
        box = {
            c: (0, n // 2) if h == 0 else (n // 2, n)
            for (c, n), h in zip(extents.items(), half, strict=True)
        }
        if any(first == last for first, last in box.values()):
            continue
        parts = {
            n: np.array(x[form.slices(n, box)]) if isinstance(x, np.ndarray) else x
            for n, x in passed.items()
        }
        call(kernel.function, form, parts, box)
        for n in form.outputs:
            slices = form.slices(n, box)
            whole, part = np.asarray(results[n])[slices], parts[n]
            same = (whole == part) | ((whole != whole) & (part != part))
            if same.all():
                continue
            at = tuple(np.argwhere(~same)[0])
            index = ", ".join(str(k + (s.start or 0)) for k, s in zip(at, slices))
            raise kernel.refused(
                "another result on a part of the arrays than on the whole",
                "the same on every part, since halo= lets ranks compute their own",
                f"{n}[{index}] is {whole[at]} on the whole and {part[at]} on a part{where}",
                "read no further than the ghost cells; or None for that dim in halo=: the kernel "
                "then gets it whole",
            )


def try_made_up(kernel: Any, form: Form, bound: Mapping[str, Any]) -> None:
    """While building: on small arrays of random numbers."""
    passed = _made_up(form, bound)
    given = ((x.shape, x.dtype) if isinstance(x, np.ndarray) else repr(x)
             for n, x in passed.items() if n not in form.starts)  # fmt: skip
    read = digest(kernel.function) or object()  # what cannot be seen may have changed
    key = (read, form.outputs, tuple(form.starts.items()), tuple(form.halo.items()), *given)
    if key in kernel.tried:
        return
    results = {n: np.array(x) if isinstance(x, np.ndarray) else x for n, x in passed.items()}
    before, at = sys.gettrace(), _Budget()
    try:
        sys.settrace(at.line)
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
    """Ends what takes too many lines."""

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
            made = _random(rng, small, dtype)
            if name in form.outputs:
                made[...] = 0
            passed[name] = made if shape else made[()]
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
