"""Matrix products: matmul, dot, outer, tensordot, einsum, all through the one op `matmul`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.errors import ShapeError
from codegen.ops import MatMul
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, cast_value, constant, number, wrap
from codegen.trace.constants import broadcast_value
from codegen.trace.numpy import shaping
from codegen.trace.numpy.elementwise import (
    apply,
    broadcast_shapes,
    result_type,
    same_extent,
    shape_text,
    store,
)
from codegen.trace.numpy.reducing import dims_of, sum_


def _mismatch(function: str, a: Array, b: Array, reason: str) -> ShapeError:
    return ShapeError(
        f"{function}: {reason}", expected="equal extents in the summed dims",
        found=f"shapes {shape_text(a.extents)} and {shape_text(b.extents)}",
    )


def matmul(x: Any, y: Any) -> Array:
    """Multiply as NumPy's matmul: 1-D operands count as a row and a column, leading dims
    broadcast."""
    a, b = as_array(x), as_array(y)
    if a.ndim == 0 or b.ndim == 0:
        raise _mismatch("matmul", a, b, "an operand has no dims; use *")
    kind = result_type(a, b)
    row, column = a.ndim == 1, b.ndim == 1
    wide_a = shaping.expand_dims(a, 0) if row else a
    wide_b = shaping.expand_dims(b, 1) if column else b
    if not same_extent(wide_a.extents[-1], wide_b.extents[-2]):
        raise _mismatch("matmul", a, b,
                        f"{wide_a.extents[-1]} columns meet {wide_b.extents[-2]} rows")
    lead = broadcast_shapes([wide_a.extents[:-2], wide_b.extents[:-2]], "matmul operands")
    context = a.context
    values = [
        broadcast_value(context, cast_value(context, w.read(), kind), (*lead, *w.extents[-2:]))
        for w in (wide_a, wide_b)
    ]
    result = wrap(context, context.emit_one(MatMul(), *values), scalar=False)
    if row:
        result = shaping.squeeze(result, -2)
    if column:
        result = shaping.squeeze(result, -1)
    return wrap(context, result.read()) if result.ndim == 0 else result


def dot(x: Any, y: Any, out: Any = None) -> Any:
    a, b = as_array(x), as_array(y)
    if a.ndim == 0 or b.ndim == 0:
        return store(apply(np.multiply, a, b), out)
    if a.ndim <= 2 and b.ndim <= 2:
        return store(matmul(a, b), out)
    return store(tensordot(a, b, ((a.ndim - 1,), (max(b.ndim - 2, 0),))), out)


def conjugate(x: Any) -> Array:
    """Return the conjugate of complex numbers, others as they are; np.conjugate would make integers
    of bools."""
    array = as_array(x)
    return as_array(apply(np.conjugate, array)) if array.type.dtype.kind == "c" else array


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    terms = apply(np.multiply, conjugate(x), y)
    return sum_(terms, axis=axis, dtype=terms.type.dtype)


def vdot(x: Array, y: Array) -> Any:
    """Return the dot product; of complex numbers in one loop, as a product would want conjugates in
    memory."""
    if x.shape == y.shape and x.type.dtype.kind == "c":
        return vecdot(x, y)
    return matmul(conjugate(x), y)


def matvec(x: Any, y: Any) -> Any:
    """Multiply matrices by vectors; leading dims broadcast."""
    return shaping.squeeze(matmul(x, shaping.expand_dims(y, -1)), -1)


def vecmat(x: Any, y: Any) -> Any:
    product = matmul(shaping.expand_dims(conjugate(x), -2), y)
    return shaping.squeeze(product, -2)


def inner(x: Any, y: Any) -> Any:
    a, b = as_array(x), as_array(y)
    if a.ndim == 0 or b.ndim == 0:
        return apply(np.multiply, a, b)
    return tensordot(a, b, ((a.ndim - 1,), (b.ndim - 1,)))


def outer(x: Any, y: Any, out: Any = None) -> Any:
    a, b = shaping.ravel(x), shaping.ravel(y)
    return store(apply(np.multiply, shaping.expand_dims(a, 1), shaping.expand_dims(b, 0)), out)


def kron(x: Any, y: Any) -> Array:
    a, b = as_array(x), as_array(y)
    n = max(a.ndim, b.ndim)
    a, b = (shaping.reshape(m, (*[1] * (n - m.ndim), *m.shape)) for m in (a, b))
    wide_a = shaping.expand_dims(a, tuple(range(1, 2 * n, 2)))
    wide_b = shaping.expand_dims(b, tuple(range(0, 2 * n, 2)))
    return shaping.reshape(apply(np.multiply, wide_a, wide_b),
                           tuple(p * q for p, q in zip(a.shape, b.shape)))


def tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Sum over dims of both operands: they are transposed and reshaped into one matmul."""
    a, b = as_array(x), as_array(y)
    if isinstance(axes, int):
        da, db = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    else:
        da, db = dims_of(axes[0], a.ndim, "tensordot"), dims_of(axes[1], b.ndim, "tensordot")
    matched = len(da) == len(db) and all(
        same_extent(a.extents[p], b.extents[q]) for p, q in zip(da, db)
    )
    if not matched:
        raise _mismatch("tensordot", a, b, "shape-mismatch for sum")
    rest_a = [d for d in range(a.ndim) if d not in da]
    rest_b = [d for d in range(b.ndim) if d not in db]
    left = shaping.transpose(a, (*rest_a, *da))
    right = shaping.transpose(b, (*db, *rest_b))
    rows = [a.extents[d] for d in rest_a]
    columns = [b.extents[d] for d in rest_b]
    middle = number(expr.product(a.extents[d] for d in da))
    result = matmul(shaping.reshape(left, (number(expr.product(rows)), middle)),
                    shaping.reshape(right, (middle, number(expr.product(columns)))))
    product = shaping.reshape(result, tuple(number(e) for e in (*rows, *columns)))
    return wrap(product.context, product.read()) if product.ndim == 0 else product


# ---- einsum ----------------------------------------------------------------------------------


def _subscripts(text: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """Return one string of letters per operand, and the result's; `...` becomes capital letters."""
    text = text.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(arrays):
        raise ShapeError("einsum: as many subscripts as operands are needed",
                         expected=f"{len(arrays)}", found=text)
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    spread = max((a.ndim - len(t.replace("...", "")) for t, a in zip(terms, arrays) if "..." in t),
                 default=0)
    dots = "".join(free[:spread])
    out = []
    for t, a in zip(terms, arrays):
        if "..." in t:
            own = a.ndim - (len(t) - 3)
            t = t.replace("...", dots[len(dots) - own :] if own else "")
        if len(t) != a.ndim:
            raise ShapeError(f"einsum: {t!r} for an array of {a.ndim} dims",
                             expected=f"{a.ndim} letters", found=t)
        out.append(t)
    if arrow:
        return out, output.replace("...", dots)
    counted = "".join(out)
    single = sorted(c for c in set(counted) if counted.count(c) == 1 and c not in dots)
    return out, dots + "".join(single)


def einsum(subscripts: Any, *operands: Any, out: Any = None, optimize: Any = None,
           dtype: Any = None, **_: Any) -> Any:
    """Multiply each pair of operands by one matmul, in the order of optimize=, which NumPy finds
    where it is none: results are the same but for rounding."""
    text, inputs = _as_text(subscripts, operands)
    arrays = [as_array(x, dtype) for x in inputs]
    terms, output = _subscripts(text, arrays)
    extents: dict[str, Expr] = {}
    for t, a in zip(terms, arrays):
        for c, e in zip(t, a.extents):
            known = extents.setdefault(c, e)
            if not same_extent(known, e) and e != 1 and known != 1:
                raise ShapeError(f"einsum: {c!r} has two extents", expected=str(known),
                                 found=str(e))
            extents[c] = e if known == 1 else known
    left = [_without_ones(*_without_repeats(t, a), extents) for t, a in zip(terms, arrays)]
    for step in _path(f"{','.join(terms)}->{output}", arrays, optimize):
        (term, array), *others = [left[k] for k in step]
        left = [x for k, x in enumerate(left) if k not in step]
        for j, (t, a) in enumerate(others):
            later = set(output).union(*(x[0] for x in (*left, *others[j + 1 :])))
            term, array = _pair(term, array, t, a, later)
        left.append((term, array))
    ((term, array),) = left
    array = sum_(array, axis=tuple(term.index(c) for c in term if c not in output),
                 dtype=array.dtype) if set(term) - set(output) else array
    term = "".join(c for c in term if c in output)
    result = shaping.transpose(array, [term.index(c) for c in output]) if output else array
    shape = tuple(number(extents[c]) for c in output)
    expanded = shaping.broadcast_to(result, shape) if shape != result.shape else result
    if len(arrays) == 1 and set(output) == set(terms[0]) and out is None:
        return expanded  # a view, as NumPy's is: "ii->i" is a diagonal that can be written
    return store(wrap(expanded.context, expanded.read()), out)


def _as_text(subscripts: Any, operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return subscripts as letters, and the operands: NumPy takes lists of integers behind each
    operand too."""
    if isinstance(subscripts, str):
        return subscripts, list(operands)
    items = (subscripts, *operands)
    lists = [*items[1::2], *items[-1:]] if len(items) % 2 else list(items[1::2])
    used = sorted({k for term in lists for k in term if k is not ...})

    def letters(term: Any) -> str:
        return "".join("..." if k is ... else chr(ord("a") + used.index(k)) for k in term)

    text = ",".join(letters(term) for term in items[1::2])
    return text + (f"->{letters(items[-1])}" if len(items) % 2 else ""), list(items[:-1:2])


def _path(text: str, arrays: Sequence[Array], optimize: Any) -> list[tuple[int, ...]]:
    """Return which operands are combined next; results stand behind those that are left."""
    if isinstance(optimize, (list, tuple)) and optimize and optimize[0] == "einsum_path":
        return [tuple(step) for step in optimize[1:]]
    plain = all(e.is_const for a in arrays for e in a.extents)
    if len(arrays) < 3 or not plain or optimize is False:
        return [tuple(range(len(arrays)))]
    path = np.einsum_path(text, *map(_stand_in, arrays), optimize=optimize or "greedy")[0]
    return [tuple(step) for step in path[1:]]


def _stand_in(x: Any) -> Any:
    """Return an array of NumPy's of the same shape, without elements of its own."""
    array = as_array(x)
    shape = [constant(e, "np.einsum_path", "np.einsum") for e in array.extents]
    return np.broadcast_to(np.empty((), array.dtype), shape)


def einsum_path(subscripts: Any, *operands: Any, optimize: Any = "greedy", **_: Any) -> Any:
    """Return NumPy's own, of the operands' shapes."""
    text, arrays = _as_text(subscripts, operands)
    return np.einsum_path(text, *map(_stand_in, arrays), optimize=optimize)


def _without_repeats(term: str, array: Array) -> tuple[str, Array]:
    """Replace a letter that stands twice by the diagonal of its two dims."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            first = term.index(c)
            second = term.index(c, first + 1)
            array = shaping.diagonal(array, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + c
    return term, array


def _without_ones(term: str, array: Array, extents: dict[str, Expr]) -> tuple[str, Array]:
    """Drop dims of extent 1 that meet longer ones and broadcast: without them, each letter meets
    the same extent."""
    dims = tuple(d for d, c in enumerate(term) if array.extents[d] == 1 and extents[c] != 1)
    kept = "".join(c for d, c in enumerate(term) if d not in dims)
    return (kept, shaping.squeeze(array, dims)) if dims else (term, array)


def _pair(ta: str, a: Array, tb: str, b: Array, later: set[str]) -> tuple[str, Array]:
    """Multiply two operands by one matmul: letters of both that are used later are a batch, the
    others are summed."""
    for t, x, other in ((ta, a, tb), (tb, b, ta)):  # letters of one operand that nobody needs
        alone = tuple(k for k, c in enumerate(t) if c not in other and c not in later)
        if alone:
            kept = "".join(c for k, c in enumerate(t) if k not in alone)
            x = sum_(x, axis=alone, dtype=x.dtype)
            if t is ta:
                return _pair(kept, x, tb, b, later)
            return _pair(ta, a, kept, x, later)
    both = [c for c in ta if c in tb]
    batch = [c for c in both if c in later]
    summed = [c for c in both if c not in later]
    only_a = [c for c in ta if c not in tb]
    only_b = [c for c in tb if c not in ta]
    left = shaping.transpose(a, [ta.index(c) for c in (*batch, *only_a, *summed)])
    right = shaping.transpose(b, [tb.index(c) for c in (*batch, *summed, *only_b)])
    nb, na, ns = len(batch), len(only_a), len(summed)
    if not summed:
        wide = left.reshape((*left.shape, *[1] * len(only_b)))
        narrow = right.reshape((*right.shape[:nb], *[1] * na, *right.shape[nb:]))
        return "".join((*batch, *only_a, *only_b)), apply(np.multiply, wide, narrow)

    def group(extents: Sequence[Expr]) -> Any:
        return number(expr.product(extents))

    rows, columns = left.extents[nb : nb + na], right.extents[nb + ns :]
    lead_a, lead_b = left.shape[:nb], right.shape[:nb]
    product = matmul(
        left.reshape((*lead_a, group(rows), group(left.extents[nb + na :]))),
        right.reshape((*lead_b, group(right.extents[nb : nb + ns]), group(columns))),
    )
    shape = (*product.shape[:nb], *(number(e) for e in (*rows, *columns)))
    return "".join((*batch, *only_a, *only_b)), product.reshape(shape)
