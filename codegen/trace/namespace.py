"""What of NumPy's namespace works in programs: a state for every function, made from the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from codegen.dtypes import BY_NAME
from codegen.ops.transforms import FACTOR, FOUR_STEPS
from codegen.trace import (
    blocked_linalg,
    methods,  # noqa: F401  # what Array has
)
from codegen.trace.array import Array
from codegen.trace.numpy import elementwise, sized, special
from codegen.trace.numpy.dispatch import ALIASES, numpy_names
from codegen.trace.numpy.function_table import LINALG, of_numpy_name, table
from codegen.trace.numpy.refused import BUILD_TIME, NOT_ABOUT_ARRAYS, RANDOM, REMEDIES

# Of linear algebra, what does with parts of matrices.
_PARTS = ("norm", "vector_norm", "matrix_norm", "matrix_power", "multi_dot")

# Along a dim that is split, these need all of an operand.
GATHERS = frozenset(
    "cov corrcoef interp polymul tile "
    "resize diag take take_along_axis matmul dot inner outer tensordot "
    "einsum polyfit roots linalg.matmul linalg.outer linalg.tensordot "
    "ufunc.outer".split()
) | {f"linalg.{name}" for name in LINALG.split() if name not in _PARTS}

# Those of them that codegen/trace/blocked_linalg.py has, and what is written with each.
_BLOCKED = {"cholesky": "cholesky", "solve": "solve inv tensorinv tensorsolve",
            "slogdet": "slogdet det", "qr": "qr", "tall": "svd svdvals pinv lstsq matrix_rank cond"}
_LARGE = f"from {blocked_linalg.LEAST * blocked_linalg.BLOCK:,} rows on"
_TALL = f"with at least {blocked_linalg.TALL} rows for each column"
_WHEN = {"qr": f"{_LARGE.replace('rows', 'rows and columns')}, or {_TALL}",
         "tall": f"{_TALL}, unless U is to be square"}
_IN_PARTS = {
    f"linalg.{name}": f"of a matrix, in parts {_WHEN.get(of, _LARGE)}"
    for of in _BLOCKED for name in _BLOCKED[of].split()
}

# What works, but not everywhere alike.
NOTES: dict[str, str] = {
    **dict.fromkeys(
        "polymul polydiv".split(), "coefficients that turn out to be 0 and stand first stay: the "
        "polynomial is NumPy's, with more of them"),
    "roots": "always complex; a run ends where the first coefficient is 0",
    **dict.fromkeys(
        "ufunc.accumulate ufunc.reduce ufunc.reduceat".split(), "of ufuncs that do not combine in "
        "any order: in a loop, for which every rank gets the dim whole"),
    "ufunc.at": "of ufuncs that do not combine in any order, where an index may come twice: one "
    "after the other",
    **dict.fromkeys("compress extract where".split(),
                    "spmd.numpy's with size= where the shape would depend on data"),
    **dict.fromkeys(
        (f"fft.{name}" for name in "fft hfft ifft ihfft irfft rfft".split()),
        "along a split dim, the split moves to another dim: one all-to-all. An array of one dim is "
        f"transformed in four steps if its length has two factors of at least {FACTOR}, of "
        f"{FOUR_STEPS} elements on; else every rank gets it whole"),
    **dict.fromkeys(
        (f"fft.{name}" for name in "fft2 fftn ifft2 ifftn irfft2 irfftn rfft2 rfftn".split()),
        "dims that are not split first; then each split dim, as a transform of one dim"),
}


class State(NamedTuple):
    """A row says what becomes of a NumPy function in a program. note: for a refused one, what to
    write instead."""

    name: str
    state: str
    note: str


def states() -> Iterator[State]:
    """Return a State for every function of NumPy's namespace, every attribute of its arrays and
    method of its ufuncs.

    name: as after `np.`, or "ndarray.sort", "ufunc.reduce". state: "works", "gathers" (it works,
    but every rank gets the whole operand), "sized" (refused, but spmd.numpy's works), "refused",
    "not about arrays", or "unknown" of a later NumPy.
    """
    for name in numpy_names():
        yield State(name, *_state(name))
    yield State("vectorize", "works", "numba compiles the function, which is called at each point")
    for name in special.names():
        yield State(f"scipy.special.{name}", "works", "")
    for name, instead in RANDOM.items():
        if hasattr(np.random, name):
            yield State(f"random.{name}", "refused", instead)


def _state(name: str) -> tuple[str, str]:
    of, _, rest = name.partition(".")
    function = of_numpy_name(name)
    if name in REMEDIES:
        return "sized" if name in sized.FUNCTIONS else "refused", REMEDIES[name]
    if name in GATHERS or (of == "ndarray" and rest in GATHERS):
        whole = "every rank gets the whole operand"
        return "gathers", (f"{_IN_PARTS[name]}; else {whole}" if name in _IN_PARTS
                           else f"along a split dim, {whole}")
    if name in BUILD_TIME:
        return "works", BUILD_TIME[name]
    if name in NOT_ABOUT_ARRAYS:
        return "not about arrays", ""
    known = hasattr(Array, rest) if of == "ndarray" else of == "ufunc" or name in table() or (
        isinstance(function, np.ufunc) and elementwise.is_known(function))
    return ("works", NOTES.get(name, "")) if known else ("unknown", "")


def names() -> list[str]:
    """Return what a program can use of the namespace spmd.numpy: functions, element types,
    numbers."""
    there = ("works", "gathers", "sized")
    works = {s.name for s in states() if s.state in there and "." not in s.name}
    types = {n for n in BY_NAME if hasattr(np, n)}
    return sorted({*works, *types, *ALIASES, "e", "inf", "linalg", "nan", "newaxis", "pi"})
