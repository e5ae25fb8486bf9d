"""The ways back through linear algebra: cotangents of results to those of matrices.

Always holds: a matrix that counts as symmetric has a symmetric cotangent, or a Hermitian one; of
complex ones, JAX's convention is the conjugate of what these have.
"""

# M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
# differentiation" (2008); of singular vectors J. Townsend, "Differentiating the singular value
# decomposition" (2016); of QR M. Seeger et al., "Auto-differentiating linear algebra" (2017).

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.errors import UnsupportedError
from codegen.places import user_place
from codegen.trace.array import as_array, as_value
from codegen.trace.expecting import expect
from codegen.trace.numpy.derived import derived

Found = Sequence[Any]
_NEAR = 0.75  # a singular matrix is moved by this power of the rounding unit


def _hold(holds: Any, what: str, expected: str) -> None:
    """The run ends where something does not hold."""
    array = as_array(holds)
    expect(array.context, as_value(array.context, array), f"{what}\n  expected: {expected}")


def _any_matrix(what: str, hermitian: bool) -> None:
    if hermitian:
        raise UnsupportedError(f"np.linalg.{what} with hermitian=True has no derivative here",
                               place=user_place(), expected="hermitian=False",
                               remedy="np.linalg.eigh(a)")


def _t(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _h(x: Any) -> Any:
    return _conj(_t(x))


def _conj(x: Any) -> Any:
    return np.conj(x) if x is not None and x.dtype.kind == "c" else x


def _symmetric(x: Any) -> Any:
    return (x + _h(x)) * 0.5


def _apart(x: Any) -> Any:
    """1 / (x_j - x_i), and 0 on the diagonal."""
    gaps = x[..., None, :] - x[..., :, None]
    same = np.eye(x.shape[-1], dtype=bool)
    return np.where(same, 0, 1 / np.where(same, 1, gaps)).astype(x.dtype)


def solve(args: Any, x: Any, given: Any) -> Found:
    (a, b), (g,) = map(as_array, args), given
    if b.ndim == 1:
        x, g = x[..., None], g[..., None]
    gb = np.linalg.solve(_t(a), g)
    ga = -(gb @ _t(x))
    return [_as(ga, a), _as(gb[..., 0] if b.ndim == 1 else gb, b)]


def _as(g: Any, x: Any) -> Any:
    """A cotangent, summed along the dims along which the operand was repeated."""
    while g.ndim > x.ndim:
        g = np.sum(g, axis=0)
    repeated = tuple(d for d in range(x.ndim) if x.extents[d] == 1 and g.extents[d] != 1)
    return np.sum(g, axis=repeated, keepdims=True) if repeated else g


def inv(args: Any, x: Any, given: Any) -> Found:
    (g,) = given
    return [-(_t(x) @ g @ _t(x))]


def cholesky(args: Any, lower: Any, given: Any, upper: bool) -> Found:
    g = _conj(given[0])
    if upper:
        lower, g = _h(lower), _h(g)
    inner = np.tril(_h(lower) @ g)
    half = 1 - 0.5 * np.eye(lower.shape[-1], dtype=lower.dtype)
    left = np.linalg.solve(_h(lower), inner * half)
    return [_conj(_symmetric(_h(np.linalg.solve(_h(lower), _h(left)))))]


def slogdet(args: Any, made: Any, given: Any) -> Found:
    """Of a real matrix the sign is a step; of a complex one it turns."""
    (a,), (sign, _), (turning, g) = args, made, given
    if a.dtype.kind == "c" and turning is not None:
        turned = 1j * (turning * sign).imag
        g = turned if g is None else g + turned
    return [None if g is None else g[..., None, None] * _t(np.linalg.inv(a))]


def det(args: Any, d: Any, given: Any) -> Found:
    (a,), (g,) = map(as_array, args), given
    return [g[..., None, None] * _cofactors(a)]


def _cofactors_back(args: Any, made: Any, given: Any) -> Found:
    (a,), (g,) = map(as_array, args), given
    d = np.linalg.det(a)
    _hold(d != 0, "the second derivative of np.linalg.det of a singular matrix",
         "matrices that are not singular")
    x = _t(np.linalg.inv(a))
    return [np.sum(g * x, axis=(-2, -1), keepdims=True) * made
            - d[..., None, None] * (x @ _t(g) @ x)]


@derived(_cofactors_back)
def _cofactors(a: Any) -> Any:
    """The determinant times the inverse, transposed; of a matrix nearby where there is none."""
    d, size = np.linalg.det(a), np.max(np.abs(a), axis=(-2, -1))
    aside = np.where(size == 0, 1, size) * np.finfo(a.dtype).eps ** _NEAR
    aside = np.where(d == 0, aside, 0).astype(a.dtype)
    moved = a + aside[..., None, None] * np.eye(a.shape[-1], dtype=a.dtype)
    return np.linalg.det(moved)[..., None, None] * _t(np.linalg.inv(moved))


def eigh(args: Any, made: Any, given: Any) -> Found:
    (w, v), (gw, gv) = made, given
    inner = 0 if gv is None else _apart(w) * (_h(v) @ _conj(gv))
    if gw is not None:
        inner = inner + gw[..., None, :] * np.eye(w.shape[-1], dtype=w.dtype)
    return [_conj(_symmetric(v @ inner @ _h(v)))]


def eigvalsh(args: Any, w: Any, given: Any) -> Found:
    v = np.linalg.eigh(*args)[1]
    return [_conj(v * given[0][..., None, :] @ _h(v))]


def svd(args: Any, made: Any, given: Any) -> Found:
    a, whole, vectors, hermitian = args
    _any_matrix("svd", hermitian)
    if not vectors:
        u, _, vt = np.linalg.svd(a, full_matrices=False)
        return [_conj(u * given[0][..., None, :] @ vt)]
    (u, s, vt), (gu, gs, gvt) = made, (_conj(g) for g in given)
    square = u.shape[-1] == u.shape[-2] and vt.shape[-1] == vt.shape[-2]
    if whole and not square:
        raise UnsupportedError("np.linalg.svd with full_matrices=True has no derivative here",
                               place=user_place(), expected="full_matrices=False",
                               found=str(a.type))
    v, apart = _h(vt), _apart(s * s)
    found = 0 if gs is None else u * gs[..., None, :] @ vt
    if gu is not None:
        inner = _h(u) @ gu
        found = found + u @ (apart * (inner - _h(inner)) * s[..., None, :]) @ vt
        if a.dtype.kind == "c":  # what turns u and v together
            turns = np.diagonal(inner, axis1=-2, axis2=-1).imag / s
            found = found + u * (1j * turns)[..., None, :] @ vt
        rest = gu / s[..., None, :]
        found = found + (rest - u @ (_h(u) @ rest)) @ vt
    if gvt is not None:
        inner = vt @ _h(gvt)
        found = found + u @ (s[..., :, None] * apart * (inner - _h(inner))) @ vt
        rest = gvt / s[..., :, None]
        found = found + u @ (rest - (rest @ v) @ vt)
    return [_conj(found)]


def qr(args: Any, made: Any, given: Any) -> Found:
    a, mode = args
    if mode != "reduced":
        raise UnsupportedError("np.linalg.qr has a derivative where mode is reduced",
                               place=user_place(), expected='mode="reduced"', found=repr(mode))
    (q, r), (gq, gr) = made, (_conj(g) for g in given)
    if r.shape[-1] != r.shape[-2]:
        raise UnsupportedError("np.linalg.qr of a wide matrix has no derivative here",
                               place=user_place(), expected="at least as many rows as columns",
                               found=str(a.type))
    m = 0 if gr is None else r @ _h(gr)
    m = m if gq is None else m - _h(gq) @ q
    below = np.tril(m, -1)
    m = below + _h(below) + np.eye(r.shape[-1], dtype=r.dtype) * m.real
    right = q @ m if gq is None else gq + q @ m
    return [_conj(_h(np.linalg.solve(r, _h(right))))]


def pinv(args: Any, p: Any, given: Any, rtol: Any) -> Found:
    a, g = args[0], _conj(given[0])
    _any_matrix("pinv", args[2])
    gt = _h(g)
    left = gt - a @ (p @ gt)
    right = gt - (gt @ p) @ a
    return [_conj(-(_h(p) @ g @ _h(p)) + left @ p @ _h(p) + _h(p) @ p @ right)]
