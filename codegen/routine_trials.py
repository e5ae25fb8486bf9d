"""Calls of library routines on small matrices, each beside what NumPy computes of the same.

Goes in: an element type. Comes out: the arguments of a call, and two lists of arrays to compare
once it is done. Always holds: what a routine may choose (signs, an order) is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class Word(IntEnum):
    """Numbers by which CBLAS and LAPACKE say how a matrix lies, and which part of it counts."""

    ROW_MAJOR = 101
    BY_COLUMNS = 102
    PLAIN = 111
    TRANSPOSED = 112
    ADJOINT = 113
    UPPER = 121
    LOWER = 122
    ANY_DIAGONAL = 131
    UNIT_DIAGONAL = 132
    LEFT = 141
    RIGHT = 142


class Key(str):
    """An argument that is the address of another routine of the table, for the same type."""


class Trial(NamedTuple):
    """A call to try. arguments: numbers, letters, keys, None for no address, and arrays, by
    address. result: what the call has left, as arrays; expected: what NumPy makes of the same
    matrices."""

    arguments: Sequence[Any]
    result: Callable[[], Sequence[Any]]
    expected: Sequence[Any]


class SampleMatrices:
    """Small matrices of one element type, always the same."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.real = np.zeros(0, dtype).real.dtype
        self.is_complex = dtype.kind == "c"
        self.rng = np.random.default_rng(2)
        self.zero, self.unit = self._number(0), self._number(1)

    def _number(self, value: int) -> Any:
        """Return a number as a call takes it: by value, or where it is complex by address."""
        return np.full(1, value, self.dtype) if self.is_complex else value

    def matrix(self, *shape: int) -> Any:
        parts = self.rng.normal(size=(2, *shape))
        return (parts[0] + 1j * parts[1] if self.is_complex else parts[0]).astype(self.dtype)

    def regular(self, n: int) -> Any:
        """Return a matrix that is far from a singular one."""
        return self.matrix(n, n) + 4 * np.eye(n, dtype=self.dtype)

    def symmetric(self, n: int) -> Any:
        """Return a symmetric or Hermitian matrix; all eigenvalues are positive, and differ."""
        x = self.matrix(n, n) / 4
        return x + x.conj().T + np.diag(4.0 * np.arange(1, n + 1)).astype(self.dtype)

    def zeros(self, *shape: int) -> Any:
        return np.zeros(shape, self.dtype)

    def reals(self, *shape: int) -> Any:
        return np.zeros(shape, self.real)


MakesTrial = Callable[[SampleMatrices], Trial]


# ---- BLAS: matrices row by row -------------------------------------------------------------------


def gemm(x: SampleMatrices) -> Trial:
    a, b, c = x.matrix(3, 4), x.matrix(4, 5), x.zeros(3, 5)
    return Trial((Word.ROW_MAJOR, Word.PLAIN, Word.PLAIN, 3, 5, 4, x.unit, a, 4, b, 5, x.zero, c,
                  5),
                 lambda: [c], [a @ b])


def syrk(x: SampleMatrices) -> Trial:
    a, c = x.matrix(5, 3), x.zeros(5, 5)
    return Trial((Word.ROW_MAJOR, Word.UPPER, Word.PLAIN, 5, 3, x.unit, a, 3, x.zero, c, 5),
                 lambda: [c], [np.triu(a @ a.T)])


def trsm(x: SampleMatrices) -> Trial:
    a, b = x.regular(4), x.matrix(4, 3)
    expected = np.linalg.solve(np.triu(a), b)
    which = (Word.LEFT, Word.UPPER, Word.PLAIN, Word.ANY_DIAGONAL)
    return Trial((Word.ROW_MAJOR, *which, 4, 3, x.unit, a, 4, b, 3), lambda: [b], [expected])


# ---- LAPACK: matrices column by column -----------------------------------------------------------


def _columns(x: Any) -> Any:
    """Return a matrix as LAPACK has it: the array is its transpose."""
    return np.array(x.T, order="C")


def potrf(x: SampleMatrices) -> Trial:
    a = x.symmetric(4)
    factor = _columns(a)
    return Trial((Word.BY_COLUMNS, "L", 4, factor, 4),
                 lambda: [np.tril(factor.T)], [np.linalg.cholesky(a)])


def _exchanged(rows: Any, pivots: Any) -> Any:
    """Return rows, after each has changed places with the one that its pivot says."""
    rows = rows.copy()
    for k, p in enumerate(pivots):
        rows[[k, p - 1]] = rows[[p - 1, k]]
    return rows


def getrf(x: SampleMatrices) -> Trial:
    a = x.matrix(4, 4)
    lu, pivots = _columns(a), np.zeros(4, np.int32)

    def result() -> Sequence[Any]:
        product = (np.tril(lu.T, -1) + np.eye(4, dtype=x.dtype)) @ np.triu(lu.T)
        order = _exchanged(np.arange(4), pivots)
        return [product[np.argsort(order)]]

    return Trial((Word.BY_COLUMNS, 4, 4, lu, 4, pivots), result, [a])


def getrs(x: SampleMatrices) -> Trial:
    lu, pivots = _columns(x.regular(4)), np.array([2, 4, 3, 4], np.int32)
    b = x.matrix(4, 3)
    solved = _columns(b)
    lower = np.tril(lu.T, -1) + np.eye(4, dtype=x.dtype)
    expected = np.linalg.solve(lower @ np.triu(lu.T), _exchanged(b, pivots))
    return Trial((Word.BY_COLUMNS, "N", 4, 3, lu, 4, pivots, solved, 4),
                 lambda: [solved.T], [expected])


def laswp(x: SampleMatrices) -> Trial:
    a, pivots = x.matrix(4, 3), np.array([3, 3, 4], np.int32)
    turned = _columns(a)
    return Trial((Word.BY_COLUMNS, 3, turned, 4, 1, 3, pivots, 1),
                 lambda: [turned.T], [_exchanged(a, pivots)])


def geqrf(x: SampleMatrices) -> Trial:
    a = x.matrix(5, 3)
    h, tau, room = _columns(a), x.zeros(3), x.zeros(64)
    return Trial((Word.BY_COLUMNS, 5, 3, h, 5, tau, room, 64),
                 lambda: [abs(np.triu(h.T)[:3])], [np.abs(np.asarray(np.linalg.qr(a, "r")))])


def orgqr(x: SampleMatrices) -> Trial:
    a = x.matrix(5, 3)
    h, tau = np.linalg.qr(a, "raw")
    q, tau, room = np.array(h, x.dtype, order="C"), np.array(tau, x.dtype), x.zeros(64)
    return Trial((Word.BY_COLUMNS, 5, 3, 3, q, 5, tau, room, 64),
                 lambda: [q.T], [np.linalg.qr(a)[0]])


def gesdd(x: SampleMatrices) -> Trial:
    a = x.matrix(4, 3)
    b, s, u, v = _columns(a), x.reals(3), x.zeros(3, 4), x.zeros(3, 3)
    room, ints = x.zeros(512), np.zeros(24, np.int32)
    reals = [x.reals(512)] if x.is_complex else []
    return Trial((Word.BY_COLUMNS, "S", 4, 3, b, 4, s, u, 4, v, 3, room, 512, *reals, ints),
                 lambda: [s, (u.T * s) @ v.T], [np.linalg.svd(a, compute_uv=False), a])


def syevd(x: SampleMatrices) -> Trial:
    a = x.symmetric(4)
    v, w, room, ints = _columns(a), x.reals(4), x.zeros(512), np.zeros(64, np.int32)
    reals = [x.reals(512), 512] if x.is_complex else []
    return Trial((Word.BY_COLUMNS, "V", "L", 4, v, 4, w, room, 512, *reals, ints, 64),
                 lambda: [w, v.T * w @ v.conj()], [np.linalg.eigvalsh(a), a])


def geev(x: SampleMatrices) -> Trial:
    a = x.symmetric(4)
    b, v, room = _columns(a), x.zeros(4, 4), x.zeros(512)
    w, parts = x.zeros(4), [x.zeros(4)] if not x.is_complex else []
    reals = [x.reals(16)] if x.is_complex else []
    return Trial((Word.BY_COLUMNS, "N", "V", 4, b, 4, w, *parts, b, 4, v, 4, room, 512, *reals),
                 lambda: [np.sort(w.real), np.linalg.solve(v, w[:, None] * v).T],
                 [np.linalg.eigvalsh(a), a])


# ---- loops of NumPy's ufuncs ---------------------------------------------------------------------


def _transform(
    lanes: Any, transformed: Any, expected: Any, factor: float, data: str = ""
) -> Trial:
    """Return the trial of a transform of lanes to memory for the transformed ones, each times a
    factor."""
    by = np.full(1, factor, lanes.real.dtype)
    arrays = np.array([a.ctypes.data for a in (lanes, by, transformed)], np.uintp)
    extents = np.array([len(lanes), lanes.shape[1], transformed.shape[1]], np.intp)
    steps = np.array([lanes.strides[0], 0, transformed.strides[0], lanes.itemsize,
                      transformed.itemsize], np.intp)
    last = Key(data) if data else None

    def result(read: Any = (lanes, by)) -> Sequence[Any]:
        """Return what the call has left; it keeps what the call reads by address."""
        return [transformed]

    return Trial((arrays, extents, steps, last), result, [expected])


def _complex(x: SampleMatrices, *shape: int) -> Any:
    parts = x.rng.normal(size=(2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.result_type(x.dtype, np.complex64))


def fft(x: SampleMatrices) -> Trial:
    a = _complex(x, 2, 6)
    return _transform(a, np.zeros_like(a), np.fft.fft(a), 1, "fft data")


def ifft(x: SampleMatrices) -> Trial:
    a = _complex(x, 2, 6)
    return _transform(a, np.zeros_like(a), np.fft.ifft(a), 1 / 6, "ifft data")


def _rfft(x: SampleMatrices, n: int) -> Trial:
    a = x.matrix(2, n)
    return _transform(a, np.zeros_like(_complex(x, 2, n // 2 + 1)), np.fft.rfft(a), 1)


def rfft_even(x: SampleMatrices) -> Trial:
    return _rfft(x, 6)


def rfft_odd(x: SampleMatrices) -> Trial:
    return _rfft(x, 7)


def irfft(x: SampleMatrices) -> Trial:
    a = _complex(x, 2, 4)
    return _transform(a, x.zeros(2, 6), np.fft.irfft(a, 6), 1 / 6)
