"""Routines of libraries that images call: one row each, read by ops, passes, the emitter, `doctor`.

Goes in: the key of a row and an element type. Comes out: a Routine, which has a name in its library
and a C prototype. Always holds: every routine that an image calls is of this table, and every row
has a trial beside NumPy, or is what another row's trial hands over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from codegen import routine_trials as trials
from codegen.dtypes import BY_NAME, FLOAT32, FLOAT64, DType
from codegen.routine_trials import MakesTrial

LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
MOST = (1 << 31) - 1  # what BLAS and LAPACK count with: C's int


@dataclass(frozen=True)
class Routine:
    """A function of a library, which ranks find there (spmd/launch/routines.py). source: of which
    library; name: what it is called there; result and takes: its C prototype."""

    source: str
    name: str
    result: str
    takes: str

    @property
    def called(self) -> str:
        """Return its name in generated C."""
        return "spmd_" + "".join(c if c.isalnum() else "_" for c in self.name)

    @property
    def counts_in_ints(self) -> bool:
        """Return whether the routine takes extents as C's int."""
        return "int" in self.takes.split(", ")


# Called before a store into a state, of the bytes that it overwrites: they are put back if the run
# fails. The engine's own, so it is in no library, and no row of the table.
KEEP_ROUTINE = Routine("engine", "keep", "void", "void *, int64_t")


@dataclass(frozen=True)
class RoutineRow:
    """A routine for each of some element types; ops find it by its key. In its name stand {x} for
    the letter that BLAS has for the type, {R} and {C} for NumPy's letters of the real and the
    complex type; among its parameters T is the type of elements, R that of their parts, and `one`
    an element, by value, or by address where it is complex. trial: makes a call on small matrices,
    with what NumPy computes of them; None for what another row's trial hands over."""

    key: str
    source: str
    name: str
    result: str
    takes: str
    trial: MakesTrial | None
    types: tuple[str, ...] = tuple(LETTERS)

    def of(self, dtype: DType) -> Routine:
        """Return the routine for elements of this type."""
        is_complex, real = dtype.kind == "c", real_of(dtype)
        words = {"T": "void" if is_complex else dtype.c, "R": real.c,
                 "one": "const void *" if is_complex else dtype.c}
        letters = {"x": LETTERS[dtype.name], "R": "fd"[real == FLOAT64],
                   "C": "FD"[real == FLOAT64]}
        takes = re.sub(r"\b(T|R|one)\b", lambda word: words[word[1]], self.takes)
        return Routine(self.source, self.name.format(**letters), self.result, takes)


def real_of(dtype: DType) -> DType:
    """Return the type of the parts of a number."""
    return {"complex64": FLOAT32, "complex128": FLOAT64}.get(dtype.name, dtype)


_ALL, _REAL, _COMPLEX = tuple(LETTERS), ("float32", "float64"), ("complex64", "complex128")


def _blas(name: str, takes: str, trial: MakesTrial) -> RoutineRow:
    return RoutineRow(name, "openblas", "{x}" + name, "void", takes, trial)


def _lapack(name: str, takes: str, trial: MakesTrial, types: tuple[str, ...] = _ALL,
            key: str = "") -> RoutineRow:
    """Return the row of a routine of LAPACKE, which is told first how matrices lie."""
    return RoutineRow(key or name, "openblas", "{x}" + name, "int", f"int, {takes}", trial, types)


def _fft(key: str, loop: str, trial: MakesTrial | None) -> RoutineRow:
    """Return the loop of a ufunc of numpy.fft; with "data" behind its name, what it is handed
    last."""
    name, *data = key.split(" ")
    name = " ".join((f"fft._pocketfft_umath.{name}", loop, *data))
    takes = "char **, const intptr_t *, const intptr_t *, void *"
    return RoutineRow(key, "numpy", name, "void", takes, trial, _REAL)


ROWS = (
    _blas("gemm", "int, int, int, int, int, int, one, const T *, int, const T *, int, one, T *, "
          "int", trials.gemm),
    _blas("syrk", "int, int, int, int, int, one, const T *, int, one, T *, int", trials.syrk),
    _blas("trsm", "int, int, int, int, int, int, int, one, const T *, int, T *, int", trials.trsm),
    _lapack("potrf", "char, int, T *, int", trials.potrf),
    _lapack("getrf", "int, int, T *, int, int *", trials.getrf),
    _lapack("getrs", "char, int, int, const T *, int, const int *, T *, int", trials.getrs),
    _lapack("laswp", "int, T *, int, int, int, const int *, int", trials.laswp),
    _lapack("geqrf", "int, int, T *, int, T *, T *, int", trials.geqrf),
    _lapack("orgqr", "int, int, int, T *, int, const T *, T *, int", trials.orgqr, _REAL),
    _lapack("ungqr", "int, int, int, T *, int, const T *, T *, int", trials.orgqr, _COMPLEX,
            key="orgqr"),
    _lapack("gesdd", "char, int, int, T *, int, R *, T *, int, T *, int, T *, int, int *",
            trials.gesdd, _REAL),
    _lapack("gesdd", "char, int, int, T *, int, R *, T *, int, T *, int, T *, int, R *, int *",
            trials.gesdd, _COMPLEX),
    _lapack("syevd", "char, char, int, T *, int, R *, T *, int, int *, int", trials.syevd, _REAL),
    _lapack("heevd", "char, char, int, T *, int, R *, T *, int, R *, int, int *, int",
            trials.syevd, _COMPLEX, key="syevd"),
    _lapack("geev", "char, char, int, T *, int, T *, T *, T *, int, T *, int, T *, int",
            trials.geev, _REAL),
    _lapack("geev", "char, char, int, T *, int, T *, T *, int, T *, int, T *, int, R *",
            trials.geev, _COMPLEX),
    _fft("fft", "{C}{R}->{C}", trials.fft),
    _fft("fft data", "{C}{R}->{C}", None),
    _fft("ifft", "{C}{R}->{C}", trials.ifft),
    _fft("ifft data", "{C}{R}->{C}", None),
    _fft("rfft_n_even", "{R}{R}->{C}", trials.rfft_even),
    _fft("rfft_n_odd", "{R}{R}->{C}", trials.rfft_odd),
    _fft("irfft", "{C}{R}->{R}", trials.irfft),
)
_FOUND = {(row.key, name): row for row in ROWS for name in row.types}


def routine(key: str, dtype: DType) -> Routine:
    """Return the routine of a row for elements of this type."""
    return _FOUND[key, dtype.name].of(dtype)


def named_in(text: str, dtype: DType) -> tuple[str, tuple[Routine, ...]]:
    """Return a text of C in which routines stand by their keys, as <gemm>, with their names in C
    instead; and these routines, in the order of the table."""
    keys = [row.key for row in ROWS if f"<{row.key}>" in text and dtype.name in row.types]
    routines = tuple(routine(key, dtype) for key in keys)
    for key, each in zip(keys, routines):
        text = text.replace(f"<{key}>", each.called)
    return text, routines


def every() -> Iterator[tuple[RoutineRow, DType]]:
    """Yield all rows with each of their element types."""
    return ((row, BY_NAME[name]) for row in ROWS for name in row.types)
