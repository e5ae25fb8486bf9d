"""The ways back through linear algebra: cotangents of results to those of matrices, all real.

M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008); of singular vectors J. Townsend, "Differentiating the singular value
decomposition" (2016); of QR M. Seeger et al., "Auto-differentiating linear algebra" (2017).
Always holds: a matrix that counts as symmetric has a symmetric cotangent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.errors import UnsupportedError
from codegen.places import user_place
from codegen.trace.array import as_array

Found = Sequence[Any]


def _real(what: str, x: Any) -> None:
    if x.dtype.kind == "c":
        raise UnsupportedError(f"np.linalg.{what} of complex matrices has no derivative here",
                               place=user_place(), expected="real matrices", found=str(x.type))


def _any_matrix(what: str, hermitian: bool) -> None:
    if hermitian:
        raise UnsupportedError(f"np.linalg.{what} with hermitian=True has no derivative here",
                               place=user_place(), expected="hermitian=False",
                               remedy="np.linalg.eigh(a)")


def _t(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _symmetric(x: Any) -> Any:
    return (x + _t(x)) * 0.5


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
    _real("cholesky", lower)
    (g,) = given
    if upper:
        lower, g = _t(lower), _t(g)
    inner = np.tril(_t(lower) @ g)
    half = 1 - 0.5 * np.eye(lower.shape[-1], dtype=lower.dtype)
    left = np.linalg.solve(_t(lower), inner * half)
    return [_symmetric(_t(np.linalg.solve(_t(lower), _t(left))))]


def slogdet(args: Any, made: Any, given: Any) -> Found:
    (a,), (_, g) = args, given
    _real("slogdet", a)
    return [None if g is None else g[..., None, None] * _t(np.linalg.inv(a))]


def eigh(args: Any, made: Any, given: Any) -> Found:
    (w, v), (gw, gv) = made, given
    _real("eigh", v)
    inner = 0 if gv is None else _apart(w) * (_t(v) @ gv)
    if gw is not None:
        inner = inner + gw[..., None, :] * np.eye(w.shape[-1], dtype=w.dtype)
    return [_symmetric(v @ inner @ _t(v))]


def eigvalsh(args: Any, w: Any, given: Any) -> Found:
    v = np.linalg.eigh(*args)[1]
    _real("eigvalsh", v)
    return [v * given[0][..., None, :] @ _t(v)]


def svd(args: Any, made: Any, given: Any) -> Found:
    a, whole, vectors, hermitian = args
    _real("svd", a)
    _any_matrix("svd", hermitian)
    if not vectors:
        u, _, vt = np.linalg.svd(a, full_matrices=False)
        return [u * given[0][..., None, :] @ vt]
    (u, s, vt), (gu, gs, gvt) = made, given
    square = u.shape[-1] == u.shape[-2] and vt.shape[-1] == vt.shape[-2]
    if whole and not square:
        raise UnsupportedError("np.linalg.svd with full_matrices=True has no derivative here",
                               place=user_place(), expected="full_matrices=False",
                               found=str(a.type))
    v, apart = _t(vt), _apart(s * s)
    found = 0 if gs is None else u * gs[..., None, :] @ vt
    if gu is not None:
        inner = _t(u) @ gu
        found = found + u @ (apart * (inner - _t(inner)) * s[..., None, :]) @ vt
        rest = gu / s[..., None, :]
        found = found + (rest - u @ (_t(u) @ rest)) @ vt
    if gvt is not None:
        inner = vt @ _t(gvt)
        found = found + u @ (s[..., :, None] * apart * (inner - _t(inner))) @ vt
        rest = gvt / s[..., :, None]
        found = found + u @ (rest - (rest @ v) @ vt)
    return [found]


def qr(args: Any, made: Any, given: Any) -> Found:
    a, mode = args
    _real("qr", a)
    if mode != "reduced":
        raise UnsupportedError("np.linalg.qr has a derivative where mode is reduced",
                               place=user_place(), expected='mode="reduced"', found=repr(mode))
    (q, r), (gq, gr) = made, given
    if r.shape[-1] != r.shape[-2]:
        raise UnsupportedError("np.linalg.qr of a wide matrix has no derivative here",
                               place=user_place(), expected="at least as many rows as columns",
                               found=str(a.type))
    m = 0 if gr is None else r @ _t(gr)
    m = m if gq is None else m - _t(gq) @ q
    m = np.tril(m) + _t(np.tril(m, -1))
    right = q @ m if gq is None else gq + q @ m
    return [_t(np.linalg.solve(r, _t(right)))]


def pinv(args: Any, p: Any, given: Any, rtol: Any) -> Found:
    a, (g,) = args[0], given
    _real("pinv", a)
    _any_matrix("pinv", args[2])
    gt = _t(g)
    left = gt - a @ (p @ gt)
    right = gt - (gt @ p) @ a
    return [-(_t(p) @ g @ _t(p)) + left @ p @ _t(p) + _t(p) @ p @ right]
