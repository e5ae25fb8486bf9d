"""Routines of libraries that images call: where each is found, by its source and its name.

Always holds: a library is opened once, and only where an image needs it.
"""

from __future__ import annotations

import os
import sys

from codegen.errors import EnvironmentFault, ImageError
from spmd.engine import ffi, lib

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from typing import Any

# What routines are called in OpenBLAS: those of BLAS, and of LAPACK with their own workspace.
_FORMS = ("scipy_cblas_{}", "cblas_{}", "scipy_LAPACKE_{}_work", "LAPACKE_{}_work")

# Products of which the engine computes some itself, and how many bytes an element of them has.
_GEMM_BYTES = {"sgemm": 4, "dgemm": 8}

_openblas: Any = None


def address(source: str, name: str) -> Any:
    """Return the address of a routine. Raises ImageError for a source that is not known,
    EnvironmentFault where the library is missing, or lacks the routine."""
    if source not in SOURCES:
        raise ImageError(f"the image calls {name} of {source}, which this runtime does not know",
                         expected=f"a routine of {' or '.join(SOURCES)}",
                         found=source)
    return SOURCES[source](name)


def _of_openblas(name: str) -> Any:
    openblas()
    for form in _FORMS:
        symbol = lib.spmd_library_symbol(_openblas, form.format(name).encode())
        if symbol != ffi.NULL:
            size = _GEMM_BYTES.get(name)
            return lib.spmd_gemm_beside(symbol, size) if size else symbol
    raise EnvironmentFault(f"OpenBLAS has no routine {name}", remedy="pip install scipy-openblas32")


def _of_numpy(name: str) -> Any:
    """Return the loop of a ufunc for some types, or what it is handed last:
    "fft._pocketfft_umath.irfft Dd->d", and "data" behind it. They lie in the ufunc as
    numpy/ufuncobject.h declares it."""
    where, types, *data = name.split(" ")
    module, _, attribute = where.rpartition(".")
    try:
        ufunc = getattr(__import__(f"numpy.{module}", fromlist=[attribute]), attribute)
        known = (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes)
        k = ufunc.types.index(types)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvironmentFault(
            f"NumPy has no routine {name}", expected="NumPy 2.0 or later", found=str(error),
            remedy="pip install --upgrade numpy") from None
    begin = ffi.cast("char *", id(ufunc)) + object.__basicsize__
    counts, tables = ffi.cast("int *", begin), ffi.cast("void ***", begin + 16)
    if (*list(counts[0:3]), ffi.cast("int *", begin + 32)[0]) != known:
        raise EnvironmentFault(f"NumPy keeps its routine {name} where it is not found",
                               expected="a ufunc as in NumPy 2",
                               remedy="pip install 'numpy<3'")
    return tables[1 if data else 0][k]


def _of_engine(name: str) -> Any:
    """Return a function of the engine that images call by name."""
    if name != "keep":
        raise ImageError(f"the engine has no routine {name}", expected="keep", found=name)
    return ffi.cast("void *", ffi.addressof(lib, "spmd_keep"))


# Per source: the address of a routine by its name.
SOURCES = {"openblas": _of_openblas, "numpy": _of_numpy, "engine": _of_engine}


def openblas() -> str:
    """Return the file of OpenBLAS, which is opened once, single-threaded."""
    global _openblas
    path = _openblas_path()
    if _openblas is None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _openblas = lib.spmd_library_open(path.encode())
        if _openblas == ffi.NULL:
            _openblas = None
            raise EnvironmentFault(
                "OpenBLAS cannot be loaded", found=linker_error(),
                remedy="pip install --force-reinstall scipy-openblas32",
            )
    return path


def _openblas_path() -> str:
    """Return the library of the package scipy_openblas32, found without importing it (or NumPy)."""
    for folder in sys.path:
        place = os.path.join(folder or ".", "scipy_openblas32", "lib")
        if os.path.isdir(place):
            for name in sorted(os.listdir(place)):
                if name.startswith("libscipy_openblas") and ".so" in name:
                    return os.path.join(place, name)
    raise EnvironmentFault(
        "this image computes with OpenBLAS, which is not installed",
        expected="the package scipy-openblas32", found="none on sys.path",
        remedy="pip install scipy-openblas32",
    )


def linker_error() -> str:
    return str(ffi.string(lib.spmd_library_error()).decode(errors="replace"))
