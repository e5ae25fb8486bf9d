"""Linear algebra, as np.linalg has it: by LAPACK, on matrices that a rank has whole.

A batch may be split. What NumPy defines by other functions is written with those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import DtypeError, ShapeError, UnsupportedError
from codegen.library_routines import LETTERS
from codegen.ops import Broadcast, Cholesky, Eig, Eigh, Full, Kind, Lu, LuSolve, Map, Qr, Svd
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, number, wrap
from codegen.trace.constants import broadcast_value
from codegen.trace.expecting import AT, expect, may_be_empty
from codegen.trace.numpy import linear_back, ordering, picking, products, reducing, shaping
from codegen.trace.numpy.creation import arange, eye
from codegen.trace.numpy.derived import derived
from codegen.trace.numpy.elementwise import (
    apply,
    broadcast_shapes,
    result_type,
    same_extent,
    store,
)

# Functions for split matrices, which registration.py enters: they are written with those below.
# Each gives None where a matrix is gathered.
BLOCKED: dict[str, Callable[..., Any]] = {}

SINGULAR = ("np.linalg.{}: the matrix is singular\n  expected: one that can be inverted\n"
            "  try:      np.linalg.pinv(a), or add eps * np.eye(n) to the matrix")
_DIVERGED = ("np.linalg.{} did not converge\n  expected: a matrix of finite numbers\n"
             "  try:      assert np.isfinite(a).all() before it, to see where they are made")


# ---- arguments and results ----------------------------------------------------------------------


def _matrix(function: str, x: Any, square: bool = False) -> Array:
    """Return x as an array of matrices, of a type that LAPACK computes with; integers become
    float64, as in NumPy. Raise ShapeError for fewer than two dims."""
    array = as_array(x)
    if array.ndim < 2:
        raise ShapeError(f"np.linalg.{function} takes matrices", expected="2 dims or more",
                         found=str(array.type))
    if square and not same_extent(*array.extents[-2:]):
        raise ShapeError(f"np.linalg.{function} takes square matrices",
                         expected="last 2 dims of one extent", found=str(array.type))
    return _numbers(function, array)


def _numbers(function: str, array: Array) -> Array:
    dtype = array.type.dtype
    if dtype.kind in "iub":
        return as_array(array, np.float64)
    if dtype.name not in LETTERS:
        raise UnsupportedError(f"np.linalg.{function} of {dtype}",
                               expected="float32, float64, complex64 or complex128",
                               found=str(dtype), remedy="x.astype(np.float32)")
    return array


def emitted(kind: Kind, *operands: Array) -> list[Array]:
    """Return the results of an op."""
    context = operands[0].context
    results = context.emit(kind, [x.read() for x in operands])
    return [wrap(context, v, scalar=not v.type.shape) for v in results]


def _blocked(of: str, x: Array, *more: Any) -> Any:
    """Return the result of the function for split matrices; None where the matrix is to be gathered
    instead."""
    return BLOCKED[of](x, *more)


def hold(info: Array, message: str, routine: str = "") -> None:
    """End the run with `message` where `info` of a factorisation is not 0; before that, where it is
    negative, which says that the named LAPACK routine refuses an argument."""
    context, value = info.context, info.read()
    zero = context.emit_one(Full(0, value.type.dtype, ()))
    if value.type.shape:
        zero = context.emit_one(Broadcast((), value.type.shape), zero)
    where = (" (matrix ", AT, " of the batch)") if value.type.shape else ()
    if routine:
        expect(context, context.emit_one(Map("ge"), value, zero),
               f"LAPACK's {routine} does not take an argument: it returned ", value, *where,
               "\n  expected: 0 or more: this is a defect of spmd")
    if message:
        first, *more = message.split("\n", 1)
        holds = context.emit_one(Map("eq"), value, zero)
        expect(context, holds, first, *where, *("\n" + text for text in more))


def transposed(x: Any) -> Any:
    """Return x with every matrix transposed."""
    return shaping.swapaxes(x, -1, -2)


def adjoint(x: Any) -> Array:
    return products.conjugate(transposed(x))


def spread(x: Array, lead: Sequence[Any], own: int) -> Array:
    """Return x with these leading dims; the last `own` dims stay."""
    extents = x.extents
    shape = (*lead, *extents[len(extents) - own :])
    return wrap(x.context, broadcast_value(x.context, x.read(), shape), scalar=False)


@cache
def _named(of: str) -> Any:
    """Return NumPy's named tuple for the results of a function: EighResult for "eigh"."""
    return type(getattr(np.linalg, of)(np.eye(1)))


def column(x: Any) -> Any:
    return shaping.expand_dims(x, -1)


# ---- factorisations ------------------------------------------------------------------------------


@derived(linear_back.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Array:
    """Return the Cholesky factor of a positive definite matrix, of which one triangle is read."""
    x = _matrix("cholesky", a, square=True)
    if (blocked := _blocked("cholesky", x, upper)) is not None:
        return as_array(blocked)
    factor, info = emitted(Cholesky(upper), x)
    hold(info, "np.linalg.cholesky: the matrix is not positive definite\n"
         "  expected: one whose eigenvalues are all more than 0\n"
         "  try:      add eps * np.eye(n) to the matrix, or np.linalg.eigh")
    return factor


@derived(linear_back.qr)
def qr(a: Any, mode: str = "reduced") -> Any:
    """Factor by reflections, with LAPACK's signs: R may have negative numbers on its diagonal."""
    x = _matrix("qr", a)
    if mode not in ("reduced", "complete", "r", "raw"):
        raise UnsupportedError(f"np.linalg.qr with mode={mode!r}",
                               expected='"reduced", "complete", "r" or "raw"')
    if mode != "raw" and (blocked := _blocked("qr", x, mode)) is not None:
        return blocked[1] if mode == "r" else _named("qr")(*blocked)
    kind = Qr("r" if mode == "raw" else mode)  # type: ignore[arg-type]
    h, tau, info, *q = emitted(kind, transposed(x))
    hold(info, "", "geqrf or orgqr")
    if mode == "raw":
        return h, tau
    factor = transposed(h)
    r = shaping.triu(factor if mode == "complete" else factor[..., : tau.shape[-1], :])
    return _named("qr")(transposed(q[0]), r) if q else r


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True,
        hermitian: bool = False) -> Any:
    """Find singular values by LAPACK's gesdd, as NumPy does; of a hermitian matrix, by its
    eigenvalues."""
    if hermitian:
        return _hermitian_svd(a, compute_uv)
    return _any_svd(a, full_matrices, compute_uv)


@derived(linear_back.svd)
def _any_svd(a: Any, full_matrices: bool, compute_uv: bool) -> Any:
    kind, x = "N" if not compute_uv else "A" if full_matrices else "S", _matrix("svd", a)
    if kind != "A" and (tall := _blocked("tall", x)) is not None:
        if kind == "N":
            return svd(tall[1], compute_uv=False)
        u, s, v = svd(tall[1])
        return _named("svd")(tall[0] @ u, s, v)
    s, info, *vectors = emitted(Svd(kind), transposed(x))
    hold(info, _DIVERGED.format("svd"), "gesdd")
    return _named("svd")(transposed(vectors[0]), s, transposed(vectors[1])) if vectors else s


def _hermitian_svd(a: Any, vectors: bool) -> Any:
    if not vectors:
        return shaping.flip(ordering.sort(apply(np.absolute, eigvalsh(a))), -1)
    w, u = eigh(a)
    s = as_array(apply(np.absolute, w))
    order = shaping.flip(ordering.argsort(s), -1)
    u = picking.take_along_axis(u, order[..., None, :] + arange(u.shape[-1])[:, None] * 0, -1)
    w, s = (picking.take_along_axis(x, order, -1) for x in (w, s))
    return _named("svd")(u, s, adjoint(u * apply(np.sign, w)[..., None, :]))


def svdvals(x: Any, /) -> Any:
    return svd(x, compute_uv=False)


def _eigh(function: str, a: Any, UPLO: str, vectors: bool) -> list[Array]:
    if UPLO.upper() not in ("L", "U"):
        raise ShapeError("UPLO says which triangle counts", expected='"L" or "U"', found=repr(UPLO))
    triangle: Any = UPLO.upper()
    w, info, *v = emitted(Eigh(triangle, vectors), transposed(_matrix(function, a, square=True)))
    hold(info, _DIVERGED.format(function), "syevd or heevd")
    return [w, *map(transposed, v)]


@derived(linear_back.eigh)
def eigh(a: Any, UPLO: str = "L") -> Any:
    return _named("eigh")(*_eigh("eigh", a, UPLO, True))


@derived(linear_back.eigvalsh)
def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    return _eigh("eigvalsh", a, UPLO, False)[0]


def _eig(function: str, a: Any, vectors: bool) -> list[Array]:
    x = _matrix(function, a, square=True)
    finite = as_array(apply(np.isfinite, x)).read()
    expect(x.context, finite, f"np.linalg.{function}: the matrix has infs or NaNs\n"
           "  expected: a matrix of finite numbers\n  try:      np.nan_to_num(a)")
    w, info, *v = emitted(Eig(vectors), transposed(x))
    hold(info, _DIVERGED.format(function), "geev")
    return [w, *map(transposed, v)]


@derived(linear_back.eig)
def eig(a: Any) -> Any:
    """Return eigenvalues and eigenvectors, always complex: whether all are real is known only at
    run time."""
    return _named("eig")(*_eig("eig", a, True))


@derived(linear_back.eigvals)
def eigvals(a: Any) -> Any:
    return _eig("eigvals", a, False)[0]


# ---- linear systems ------------------------------------------------------------------------------


def _solved(x: Array, b: Array) -> tuple[Array, Array]:
    """Solve x for b, with broadcast leading dims; return the solutions, and 0 for each matrix that
    is not singular."""
    lead = broadcast_shapes([x.extents[:-2], b.extents[:-2]], "np.linalg.solve")
    lu, pivots, info = emitted(Lu(), transposed(x))
    operands = spread(lu, lead, 2), spread(pivots, lead, 1), spread(transposed(b), lead, 2)
    return transposed(emitted(LuSolve(), *operands)[0]), info


def _solution(function: str, x: Array, b: Array) -> Array:
    if (split := _blocked("solve", x, function, b)) is not None:
        return as_array(split)
    solution, info = _solved(x, b)
    hold(info, SINGULAR.format(function))
    return solution


def _pair(function: str, a: Any, b: Any) -> tuple[Array, Array]:
    """Return a square matrix, and what it is solved for, of one element type."""
    x, y = _matrix(function, a, square=function == "solve"), as_array(b)
    dtype = dtypes.numpy_dtype(result_type(x, _numbers(function, y)))
    vector = y.ndim == 1
    if y.ndim == 0 or not same_extent(x.extents[-2], y.extents[-1 if vector else -2]):
        raise ShapeError(f"np.linalg.{function}: a and b have unequal numbers of rows",
                         expected=f"{x.extents[-2]} rows", found=str(y.type))
    return as_array(x, dtype), as_array(column(y) if vector else y, dtype)


@derived(linear_back.solve)
def solve(a: Any, b: Any) -> Any:
    """Solve by elimination with partial pivoting."""
    x, y = _pair("solve", a, b)
    solution = _solution("solve", x, y)
    return shaping.squeeze(solution, -1) if as_array(b).ndim == 1 else solution


def _inverse(x: Array) -> tuple[Array, Array]:
    return _solved(x, as_array(eye(x.shape[-1], dtype=x.dtype)))


@derived(linear_back.inv)
def inv(a: Any) -> Any:
    x = _matrix("inv", a, square=True)
    return _solution("inv", x, as_array(eye(x.shape[-1], dtype=x.dtype)))


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    x, y = as_array(a), as_array(b)
    for axis in axes or ():
        x = shaping.moveaxis(x, axis, -1)
    shape = x.shape[y.ndim :]
    solution = solve(shaping.reshape(x, (y.size, -1)), shaping.ravel(y))
    return shaping.reshape(solution, shape)


def tensorinv(a: Any, ind: int = 2) -> Any:
    x = as_array(a)
    rows = int(np.prod([int(n) for n in x.shape[ind:]]))
    inverse = inv(shaping.reshape(x, (rows, -1)))
    return shaping.reshape(inverse, (*x.shape[ind:], *x.shape[:ind]))


def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Solve by singular values. The sums of squares of the residues are given where there are more
    rows than columns; NumPy gives none where the rank is not full, which is known only at run
    time."""
    x, y = _pair("lstsq", a, b)
    if x.ndim != 2:
        raise ShapeError("np.linalg.lstsq takes one matrix", expected="2 dims", found=str(x.type))
    m, n = x.extents
    if not (expr.nonneg(m - n - 1) or expr.nonneg(n - m)):
        raise UnsupportedError("np.linalg.lstsq where it is not known whether rows are more than "
                               "columns", found=str(x.type),
                               remedy="np.linalg.pinv(a) @ b")
    u, s, v = svd(x, full_matrices=False)
    least = _least(x) if rcond is None else rcond
    large = s > least * _largest(s)
    scaled = picking.where(large, 1 / picking.where(large, s, 1), 0)
    solution = adjoint(v) @ (column(scaled) * (adjoint(u) @ y))
    squares = reducing.squares_of(y - x @ solution)
    sums = reducing.sum_(squares, axis=0)
    vector = as_array(b).ndim == 1
    rank = reducing.count_nonzero(large).astype(np.int32)
    return (shaping.squeeze(solution, -1) if vector else solution,
            sums if expr.nonneg(m - n - 1) else np.empty(0, squares.dtype), rank, s)


def _largest(s: Array) -> Any:
    """Return the largest of each row of singular values, with the dim kept."""
    known = s.extents[-1].is_const
    return s[..., :1] if known else _most(s, axis=-1, keepdims=True)


def _least(x: Array, of: Array | None = None) -> Any:
    """Return up to which part of the largest singular value others count as 0: one rounding unit
    for each row or column."""
    longest = expr.maximum(*(x if of is None else of).extents[-2:])
    eps = np.finfo(x.dtype).eps
    return eps * longest.value if longest.is_const else as_array(number(longest), x.dtype) * eps


@derived(linear_back.pinv)
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = 0) -> Any:
    """Invert by singular values; those up to rcond times the largest count as 0."""
    x = _matrix("pinv", a)
    if rcond is None:
        rcond = _least(x) if rtol is None else rtol or 1e-15
    u, s, v = svd(x, full_matrices=False, hermitian=hermitian)
    large = s > column(as_array(rcond, s.dtype)) * _largest(s)
    scaled = picking.where(large, 1 / picking.where(large, s, 1), 0)
    return adjoint(v) @ (column(scaled) * adjoint(u))


# ---- determinants, ranks and norms ---------------------------------------------------------------


@derived(linear_back.slogdet)
def slogdet(a: Any) -> Any:
    """Return the sign of the determinant and the logarithm of its size, by elimination."""
    x = _matrix("slogdet", a, square=True)
    blocked = _blocked("slogdet", x)
    return _named("slogdet")(*(blocked or pivots_product(*emitted(Lu(), transposed(x)))))


def pivots_product(lu: Array, pivots: Array, info: Array) -> tuple[Array, Array]:
    """Return what `slogdet` returns, from the factors of the matrix."""
    diagonal = as_array(shaping.diagonal(lu, 0, -2, -1))
    size, regular = apply(np.absolute, diagonal), apply(np.equal, info, 0)
    kept = as_array(apply(np.not_equal, size, 0))
    if lu.type.dtype.kind == "c":
        ratio = diagonal / picking.where(kept, size, 1)
    else:  # as NumPy, which has a sign of infinity and of NaN too
        ratio = picking.where(diagonal < 0, -1, 1).astype(lu.dtype)
    unit = picking.where(kept, ratio, 0)
    stays = arange(1, pivots.shape[-1] + 1, dtype=np.int32)
    swaps = reducing.count_nonzero(pivots != stays, axis=-1)
    sign = reducing.prod(unit, axis=-1) * picking.where(swaps % 2 == 0, 1, -1).astype(lu.dtype)
    logs = reducing.sum_(apply(np.log, picking.where(kept, size, 1)), axis=-1)
    return (as_array(picking.where(regular, sign, 0).astype(lu.dtype)),
            as_array(picking.where(regular, logs, -np.inf).astype(size.dtype)))


@derived(linear_back.det)
def det(a: Any) -> Any:
    sign, logarithm = slogdet(a)
    return sign * apply(np.exp, logarithm)


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    x = as_array(A)
    if x.ndim < 2:
        return reducing.any_(x != 0).astype(np.int64)
    s = svd(x, compute_uv=False, hermitian=hermitian)
    if tol is None:
        least = _largest(s) * (_least(s, x) if rtol is None else column(as_array(rtol, s.dtype)))
    else:
        least = column(as_array(tol, s.dtype))
    return reducing.count_nonzero(s > least, axis=-1)


def cond(x: Any, p: Any = None) -> Any:
    array = _matrix("cond", x, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        s = svdvals(array)
        ratio = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
        nan = reducing.any_(apply(np.isnan, array), (-2, -1))  # of a zero matrix it is infinite
        return picking.where(apply(np.isnan, ratio) & ~nan, np.inf, ratio).astype(s.dtype)
    inverse, info = _inverse(array)
    size = norm(array, p, (-2, -1)) * norm(inverse, p, (-2, -1))
    return picking.where(apply(np.equal, info, 0), size, np.inf).astype(size.dtype)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return a norm of vectors or matrices along one or two dims; by default the root of the sum of
    squares."""
    array = as_array(x)
    floats = array if array.type.dtype.kind in "fc" else as_array(array, np.float64)
    dims = tuple(range(array.ndim)) if axis is None else reducing.dims_of(axis, array.ndim, "norm")
    euclidean = ord is None or (len(dims) == 1 and ord == 2) or (
        len(dims) == 2 and ord in ("fro", "f"))
    if euclidean and (axis is None and ord is None or len(dims) in (1, 2)):
        over = None if axis is None else tuple(dims)
        return apply(np.sqrt, reducing.sum_(reducing.squares_of(floats), over, keepdims=keepdims))
    if len(dims) == 1:
        return _vector_norm(apply(np.absolute, floats), ord, dims[0], keepdims)
    if len(dims) != 2:
        raise ShapeError("np.linalg.norm is of vectors or matrices", expected="1 or 2 dims",
                         found=f"{len(dims)}")
    return _matrix_norm(array, apply(np.absolute, floats), ord, dims, keepdims)


def _vector_norm(size: Any, ord: Any, axis: Any, keepdims: bool) -> Any:
    how = {"axis": axis, "keepdims": keepdims}
    if ord in (np.inf, -np.inf):
        return _most(size, **how) if ord > 0 else reducing.min_(size, **how)
    if ord == 0:
        return reducing.sum_((size != 0).astype(size.dtype), **how)
    if ord == 1:
        return reducing.sum_(size, **how)
    if isinstance(ord, str):
        raise ShapeError(f"np.linalg.norm of vectors with ord={ord!r}", expected="a number")
    return reducing.sum_(size**ord, **how) ** (1.0 / ord)


def _most(sizes: Any, axis: int, keepdims: bool = False) -> Any:
    """Return the largest along a dim, of numbers that are not negative; 0 of none, as NumPy has
    it."""
    array = as_array(sizes)
    initial = 0 if may_be_empty(array.extents[axis]) else None
    return reducing.max_(array, axis=axis, keepdims=keepdims, initial=initial)


def _matrix_norm(x: Array, size: Any, ord: Any, dims: Sequence[int], keepdims: bool) -> Any:
    rows, columns = dims
    if ord in (2, -2, "nuc"):
        s = svdvals(shaping.moveaxis(x, (rows, columns), (-2, -1)))
        norms = reducing.sum_(s, axis=-1) if ord == "nuc" else s[..., 0 if ord == 2 else -1]
    elif ord in (1, -1, np.inf, -np.inf):
        summed, other = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = reducing.sum_(size, axis=summed)
        most = _most if ord > 0 else reducing.min_
        norms = most(sums, axis=other - (other > summed))
    else:
        raise UnsupportedError(f"np.linalg.norm of matrices with ord={ord!r}",
                               expected='"fro", "nuc", 1, 2, np.inf, or minus a number')
    return shaping.expand_dims(norms, tuple(dims)) if keepdims else norms


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    array = as_array(x)
    if isinstance(axis, int):
        return norm(array, ord, axis, keepdims)
    dims = tuple(range(array.ndim)) if axis is None else reducing.dims_of(axis, array.ndim, "norm")
    rest = [d for d in range(array.ndim) if d not in dims]
    flat = shaping.reshape(shaping.transpose(array, (*dims, *rest)),
                           (-1, *(array.shape[d] for d in rest)))
    norms = norm(flat, ord, 0)
    return shaping.expand_dims(norms, dims) if keepdims else norms


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return norm(x, ord, (-2, -1), keepdims)


# ---- products ------------------------------------------------------------------------------------


def matrix_power(a: Any, n: int) -> Any:
    x = as_array(a)
    if not isinstance(n, (int, np.integer)):
        raise DtypeError("np.linalg.matrix_power: the exponent must be an integer",
                         expected="a Python integer", found=repr(n))
    if x.ndim < 2 or not same_extent(*x.extents[-2:]):
        _matrix("matrix_power", x, square=True)
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        return spread(as_array(eye(x.shape[-1], dtype=x.dtype)), x.extents[:-2], 2)
    power: Any = None
    while n:
        if n % 2:
            power = x if power is None else power @ x
        n //= 2
        x = x @ x if n else x
    return power


def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Multiply in the order that multiplies least, if all extents are known while building."""
    operands = [as_array(x) for x in arrays]
    if len(operands) < 2:
        raise ShapeError("np.linalg.multi_dot: expected at least two arrays",
                         expected="two or more", found=str(len(operands)),
                         remedy="the array itself, if there is one")
    first, *rest = operands
    chain = [shaping.expand_dims(first, 0) if first.ndim == 1 else first, *rest]
    if chain[-1].ndim == 1:
        chain[-1] = column(chain[-1])
    product = _ordered(chain)
    if first.ndim == 1:
        product = product[0]
    product = product[..., 0] if operands[-1].ndim == 1 else product
    return store(product, out)


def _ordered(chain: Sequence[Array]) -> Any:
    """Return the product of matrices in the order with the fewest multiplications: by dynamic
    programming over the place at which a chain is divided."""
    sizes = [x.extents[0] for x in chain] + [chain[-1].extents[1]]
    known = [e.value if e.is_const else 1 for e in sizes]

    @cache
    def best(i: int, j: int) -> tuple[int, int]:
        """Return the least cost of the matrices from i to j, and after which of them they are
        divided."""
        if i == j:
            return 0, i
        return min((best(i, k)[0] + best(k + 1, j)[0] + known[i] * known[k + 1] * known[j + 1], k)
                   for k in range(i, j))

    def product(i: int, j: int) -> Any:
        k = best(i, j)[1]
        return chain[i] if i == j else product(i, k) @ product(k + 1, j)

    return product(0, len(chain) - 1)
