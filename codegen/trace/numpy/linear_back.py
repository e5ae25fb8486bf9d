"""Derivatives of linear algebra: from the cotangents of results to those of matrices.

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
from codegen.symbolic import expr
from codegen.trace.array import as_array, as_value
from codegen.trace.expecting import expect
from codegen.trace.numpy.derived import derived
from codegen.trace.numpy.elementwise import same_extent

Cotangents = Sequence[Any]
_NEAR = 0.75  # a singular matrix is moved by this power of the rounding unit


def _hold(holds: Any, subject: str, expected: str) -> None:
    """End the run where something does not hold."""
    array = as_array(holds)
    expect(array.context, as_value(array.context, array), f"{subject}\n  expected: {expected}")


def _t(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _h(x: Any) -> Any:
    return _conj(_t(x))


def _conj(x: Any) -> Any:
    return np.conj(x) if x is not None and x.dtype.kind == "c" else x


def _symmetric(x: Any) -> Any:
    return (x + _h(x)) * 0.5


def _inverse_gaps(x: Any) -> Any:
    """Return 1 / (x_j - x_i), and 0 on the diagonal."""
    gaps = x[..., None, :] - x[..., :, None]
    same = np.eye(x.shape[-1], dtype=bool)
    return np.where(same, 0, 1 / np.where(same, 1, gaps)).astype(x.dtype)


def solve(args: Any, x: Any, cotangents: Any) -> Cotangents:
    (a, b), (g,) = map(as_array, args), cotangents
    if b.ndim == 1:
        x, g = x[..., None], g[..., None]
    gb = np.linalg.solve(_t(a), g)
    ga = -(gb @ _t(x))
    return [_as(ga, a), _as(gb[..., 0] if b.ndim == 1 else gb, b)]


def _as(g: Any, x: Any) -> Any:
    """Return a cotangent, summed along the dims along which the operand was repeated."""
    while g.ndim > x.ndim:
        g = np.sum(g, axis=0)
    repeated = tuple(d for d in range(x.ndim) if x.extents[d] == 1 and g.extents[d] != 1)
    return np.sum(g, axis=repeated, keepdims=True) if repeated else g


def inv(args: Any, x: Any, cotangents: Any) -> Cotangents:
    (g,) = cotangents
    return [-(_t(x) @ g @ _t(x))]


def cholesky(args: Any, lower: Any, cotangents: Any, upper: bool) -> Cotangents:
    g = _conj(cotangents[0])
    if upper:
        lower, g = _h(lower), _h(g)
    inner = np.tril(_h(lower) @ g)
    half = 1 - 0.5 * np.eye(lower.shape[-1], dtype=lower.dtype)
    left = np.linalg.solve(_h(lower), inner * half)
    return [_conj(_symmetric(_h(np.linalg.solve(_h(lower), _h(left)))))]


def slogdet(args: Any, outputs: Any, cotangents: Any) -> Cotangents:
    """Return the cotangent of the matrix. The sign of a real determinant is constant but for steps
    and adds nothing; that of a complex one varies."""
    (a,), (sign, _), (turning, g) = args, outputs, cotangents
    if a.dtype.kind == "c" and turning is not None:
        turned = 1j * (turning * sign).imag
        g = turned if g is None else g + turned
    return [None if g is None else g[..., None, None] * _t(np.linalg.inv(a))]


def det(args: Any, d: Any, cotangents: Any) -> Cotangents:
    (a,), (g,) = map(as_array, args), cotangents
    return [g[..., None, None] * _cofactors(a)]


def _cofactors_back(args: Any, cofactors: Any, cotangents: Any) -> Cotangents:
    (a,), (g,) = map(as_array, args), cotangents
    d = np.linalg.det(a)
    _hold(d != 0, "the second derivative of np.linalg.det of a singular matrix",
         "matrices that are not singular")
    x = _t(np.linalg.inv(a))
    return [np.sum(g * x, axis=(-2, -1), keepdims=True) * cofactors
            - d[..., None, None] * (x @ _t(g) @ x)]


@derived(_cofactors_back)
def _cofactors(a: Any) -> Any:
    """Return the determinant times the inverse, transposed; of a singular matrix, that of a regular
    one nearby."""
    d, size = np.linalg.det(a), np.max(np.abs(a), axis=(-2, -1))
    aside = np.where(size == 0, 1, size) * np.finfo(a.dtype).eps ** _NEAR
    aside = np.where(d == 0, aside, 0).astype(a.dtype)
    moved = a + aside[..., None, None] * np.eye(a.shape[-1], dtype=a.dtype)
    return np.linalg.det(moved)[..., None, None] * _t(np.linalg.inv(moved))


def eigh(args: Any, outputs: Any, cotangents: Any) -> Cotangents:
    (w, v), (gw, gv) = outputs, cotangents
    inner = 0 if gv is None else _inverse_gaps(w) * (_h(v) @ _conj(gv))
    if gw is not None:
        inner = inner + gw[..., None, :] * np.eye(w.shape[-1], dtype=w.dtype)
    return [_conj(_symmetric(v @ inner @ _h(v)))]


def eigvalsh(args: Any, w: Any, cotangents: Any) -> Cotangents:
    v = np.linalg.eigh(*args)[1]
    return [_conj(v * cotangents[0][..., None, :] @ _h(v))]


def eigvals(args: Any, w: Any, cotangents: Any) -> Cotangents:
    return _general_cotangent(args[0], np.linalg.eig(args[0])[1], _diagonal(cotangents[0]))


def eig(args: Any, outputs: Any, cotangents: Any) -> Cotangents:
    """Return the cotangent of the matrix. LAPACK's vectors are of length 1, and their largest
    elements real, which says all that the equation leaves open."""
    (w, v), (gw, gv) = outputs, cotangents
    inner = 0 if gw is None else _diagonal(gw)
    if gv is not None:
        rows = np.arange(w.shape[-1])[:, None]
        largest = rows == np.argmax(np.abs(v), axis=-2)[..., None, :]
        along = np.sum(gv * v, axis=-2, keepdims=True)
        turns = 1j * along.imag / np.sum(np.where(largest, v, 0), axis=-2, keepdims=True).real
        gv = gv - along.real * np.conj(v) - np.where(largest, turns, 0)
        inner = inner + _inverse_gaps(w) * (_t(v) @ gv)
    return _general_cotangent(args[0], v, inner)


def _general_cotangent(a: Any, v: Any, inner: Any) -> Cotangents:
    """Return the cotangent of a matrix from `inner`: the cotangent of its change, in the basis of
    its eigenvectors."""
    cotangent = np.linalg.solve(_t(v), inner @ _t(v))
    return [cotangent if as_array(a).dtype.kind == "c" else cotangent.real]


def _diagonal(g: Any) -> Any:
    return g[..., None, :] * np.eye(g.shape[-1], dtype=g.dtype)


def svd(args: Any, outputs: Any, cotangents: Any) -> Cotangents:
    a, whole, vectors = args
    if not vectors:
        u, _, vt = np.linalg.svd(a, full_matrices=False)
        return [_conj(u * cotangents[0][..., None, :] @ vt)]
    (u, s, vt), (gu, gs, gvt) = outputs, (_conj(g) for g in cotangents)
    if whole:
        k = s.shape[-1]
        gu, gv = _thin_cotangents(u, gu, s), _thin_cotangents(_h(vt), _h_or_none(gvt), s)
        u, vt, gvt = u[..., :, :k], vt[..., :k, :], _h_or_none(gv)
    v, inverse_gaps = _h(vt), _inverse_gaps(s * s)
    cotangent = 0 if gs is None else u * gs[..., None, :] @ vt
    if gu is not None:
        inner = _h(u) @ gu
        cotangent = cotangent + u @ (inverse_gaps * (inner - _h(inner)) * s[..., None, :]) @ vt
        if a.dtype.kind == "c":  # the common phase of u and v, which the matrix leaves open
            turns = np.diagonal(inner, axis1=-2, axis2=-1).imag / s
            cotangent = cotangent + u * (1j * turns)[..., None, :] @ vt
        rest = gu / s[..., None, :]
        cotangent = cotangent + (rest - u @ (_h(u) @ rest)) @ vt
    if gvt is not None:
        inner = vt @ _h(gvt)
        cotangent = cotangent + u @ (s[..., :, None] * inverse_gaps * (inner - _h(inner))) @ vt
        rest = gvt / s[..., :, None]
        cotangent = cotangent + u @ (rest - (rest @ v) @ vt)
    return [_conj(cotangent)]


def _h_or_none(g: Any) -> Any:
    return None if g is None else _h(g)


def _thin_cotangents(u: Any, g: Any, s: Any) -> Any:
    """Return the cotangents of the first k singular vectors, which have singular values, from those
    of all. The others are any basis of the orthogonal complement: end the run where a result
    depends on which one it is, since it has no derivative then."""
    if g is None or same_extent(u.extents[-1], s.extents[-1]):
        return g
    k = s.shape[-1]
    rest, rest_cotangents = u[..., :, k:], g[..., :, k:]
    inner = _h(rest) @ rest_cotangents
    size = np.max(np.abs(rest_cotangents), axis=(-2, -1), keepdims=True, initial=0)
    rounding = np.finfo(size.dtype).eps ** _NEAR
    _hold(np.all(np.abs(inner - _h(inner)) <= size * rounding),
         "the derivative of what follows from singular vectors without a singular value",
         "full_matrices=False, or a result that is the same for any basis of them")
    first = u[..., :, :k]
    return g[..., :, :k] - rest @ (_h(rest_cotangents) @ first)


def qr(args: Any, outputs: Any, cotangents: Any) -> Cotangents:
    """Return the cotangent of the matrix; of a wide one, the columns that make it square decide Q.
    Raise UnsupportedError for modes without a derivative."""
    a, mode = args
    rows, columns = a.extents[-2:]
    wide = same_extent(expr.maximum(rows, columns), columns)
    if mode == "raw" or (mode == "complete" and not wide):
        raise UnsupportedError(f"np.linalg.qr with mode={mode!r} has no derivative here",
                               place=user_place(), found=str(a.type),
                               expected='mode="reduced", or "r", or at most as many rows as '
                               'columns where it is "complete"')
    if mode == "r":
        outputs, cotangents = (np.linalg.qr(a)[0], outputs), (None, *cotangents)
    (q, r), (gq, gr) = outputs, (_conj(g) for g in cotangents)
    if not wide or same_extent(rows, columns):
        return [_conj(_tall_cotangent(q, r, gq, gr))]
    k, later = q.shape[-1], None
    if gr is not None:
        later = q @ gr[..., :, k:]
        more = a[..., :, k:] @ _h(gr[..., :, k:])
        gq, gr = more if gq is None else gq + more, gr[..., :, :k]
    first = _tall_cotangent(q, r[..., :, :k], gq, gr)
    later = np.zeros_like(a[..., :, k:]) if later is None else later
    return [_conj(np.concatenate([first, later], axis=-1))]


def _tall_cotangent(q: Any, r: Any, gq: Any, gr: Any) -> Any:
    m = 0 if gr is None else r @ _h(gr)
    m = m if gq is None else m - _h(gq) @ q
    below = np.tril(m, -1)
    m = below + _h(below) + np.eye(r.shape[-1], dtype=r.dtype) * m.real
    right = q @ m if gq is None else gq + q @ m
    return _h(np.linalg.solve(r, _h(right)))


def pinv(args: Any, p: Any, cotangents: Any, rtol: Any) -> Cotangents:
    a, hermitian, g = args[0], args[2], _conj(cotangents[0])
    if hermitian:  # of one triangle
        below = np.tril(a, -1)
        a = below + _h(below) + np.eye(a.shape[-1], dtype=a.dtype) * a.real
    gt = _h(g)
    left = gt - a @ (p @ gt)
    right = gt - (gt @ p) @ a
    cotangent = -(_h(p) @ g @ _h(p)) + left @ p @ _h(p) + _h(p) @ p @ right
    return [_conj(_symmetric(cotangent) if hermitian else cotangent)]
