"""What every op kind that stays within a rank computes, in NumPy: one rule per row of codegen.ops.

A rule takes the operands, the op's attrs and a function that evaluates Exprs; it gives the results.
Always holds: operands are never written to; results have exactly the dtype that `infer` states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen import dtypes, gufunc
from codegen.errors import InternalError
from codegen.expr import Expr, IntLike, as_expr
from codegen.functions import COMBINE, FUNCTIONS, neutral

Array = NDArray[Any]
Attrs = Mapping[str, Any]
Eval = Callable[[IntLike], int]
Rule = Callable[[Sequence[Array], Attrs, Eval], list[Array]]

# The ufunc that combines in place (`np.add.at`), by scatter's fn.
_SCATTER = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def extents(shape: Sequence[Expr], value: Eval) -> tuple[int, ...]:
    return tuple(map(value, shape))


# ---- sources -------------------------------------------------------------------------------------


def _const(_: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    return [np.asarray(attrs["data"])]


def _full(_: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    dtype = dtypes.numpy_dtype(attrs["dtype"])
    return [np.full(extents(attrs["shape"], value), attrs["value"], dtype)]


def _iota(_: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    shape = extents(attrs["shape"], value)
    dim = attrs["dim"]
    along = [1] * len(shape)
    along[dim] = shape[dim]
    line = np.arange(shape[dim]).astype(dtypes.numpy_dtype(attrs["dtype"])).reshape(along)
    return [np.broadcast_to(line, shape)]


def _expr(_: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    dtype = dtypes.numpy_dtype(attrs["dtype"])
    return [np.asarray(np.int64(value(attrs["value"]))).astype(dtype)]


# ---- element by element --------------------------------------------------------------------------


def _map(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    fn = FUNCTIONS[attrs["fn"]]
    if fn.name == "cast":
        return [operands[0].astype(dtypes.numpy_dtype(attrs["dtype"]))]
    return [np.asarray(fn.numpy(*operands))]


# ---- views and static writes ---------------------------------------------------------------------


def _broadcast(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    (x,) = operands
    shape = extents(attrs["shape"], value)
    spread = [1] * len(shape)
    for k, d in enumerate(attrs["dims"]):
        spread[d] = x.shape[k]
    return [np.broadcast_to(x.reshape(spread), shape)]


def _positions(
    shape: Sequence[int], attrs: Attrs, value: Eval, taken: Sequence[int]
) -> tuple[slice, ...]:
    """The positions start + step * j, j < taken[d] > 0, in an operand of `shape`: all inside."""
    parts = []
    for d, extent in enumerate(taken):
        start, step = value(attrs["start"][d]), value(attrs["step"][d])
        last = start + step * (extent - 1)
        if min(start, last) < 0 or max(start, last) >= shape[d]:
            raise InternalError(
                f"dim {d} is read or written from {min(start, last)} to {max(start, last)}",
                expected=f"positions from 0 to {shape[d] - 1}",
            )
        end = last + (1 if last >= start else -1)
        parts.append(slice(start, None if end < 0 else end, step if extent > 1 else None))
    return tuple(parts)


def _slice(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    (x,) = operands
    shape = extents(attrs["shape"], value)
    if 0 in shape:
        return [np.empty(shape, x.dtype)]
    return [x[_positions(x.shape, attrs, value, shape)]]


def _update(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    x, v = operands
    out = x.copy()
    if v.size:
        out[_positions(x.shape, attrs, value, v.shape)] = v
    return [out]


def _transpose(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    return [operands[0].transpose(attrs["perm"])]


def _reshape(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    shape = extents(attrs["shape"], value)
    if int(np.prod(shape)) != operands[0].size:
        raise InternalError(f"reshape of {operands[0].shape} to {shape} changes the size")
    return [operands[0].reshape(shape)]


# ---- indices known only at run time --------------------------------------------------------------


def _dynamic_slice(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    x, starts = operands[0], operands[1:]
    shape = extents(attrs["shape"], value)
    if x.size == 0 or 0 in shape:  # nothing to read: zeros, as where nothing is received
        return [np.zeros(shape, x.dtype)]
    box = tuple(
        slice(at, at + n)
        for at, n in (
            (min(max(int(s), 0), have - n), n)
            for s, have, n in zip(starts, x.shape, shape, strict=True)
        )
    )
    return [x[box]]


def _dynamic_update(operands: Sequence[Array], _: Attrs, value: Eval) -> list[Array]:
    x, v, starts = operands[0], operands[1], operands[2:]
    out = x.copy()
    into, part = [], []
    for start, have, n in zip(starts, x.shape, v.shape, strict=True):
        first = int(start)
        low, high = max(first, 0), max(min(first + n, have), max(first, 0))
        into.append(slice(low, high))
        part.append(slice(low - first, high - first))
    out[tuple(into)] = v[tuple(part)]
    return [out]


def _gather(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    x, index = operands[0], operands[1:]
    dims, at = list(attrs["dims"]), attrs["at"]
    front = np.moveaxis(x, dims, range(len(dims)))
    if 0 in front.shape[: len(dims)]:
        picked = np.zeros((*index[0].shape, *front.shape[len(dims) :]), x.dtype)
    else:
        clamped = tuple(np.clip(k, 0, n - 1) for k, n in zip(index, front.shape, strict=False))
        picked = front[clamped]
    k = index[0].ndim
    return [np.moveaxis(picked, range(k), range(at, at + k))]


def _scatter(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    x, v, index = operands[0], operands[1], operands[2:]
    dims, at, k = list(attrs["dims"]), attrs["at"], operands[2].ndim
    out = x.copy()
    front = np.moveaxis(out, dims, range(len(dims)))  # a view of `out`
    values = np.moveaxis(v, range(at, at + k), range(k))
    inside = np.ones(index[0].shape, bool)
    for position, extent in zip(index, front.shape, strict=False):
        inside &= (position >= 0) & (position < extent)
    where = tuple(position[inside] for position in index)
    if attrs["fn"] == "set":
        for *one, source in zip(*where, values[inside], strict=True):  # in order: the last one wins
            front[tuple(one)] = source
    else:
        _SCATTER[attrs["fn"]].at(front, where, values[inside])
    return [out]


# ---- reductions and friends ----------------------------------------------------------------------


def combine(fn: str) -> np.ufunc:
    """The ufunc of a combining function."""
    ufunc = FUNCTIONS[COMBINE[fn]].numpy
    assert isinstance(ufunc, np.ufunc)
    return ufunc


def _reduce(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    (x,) = operands
    dims = tuple(attrs["dims"])
    dtype = dtypes.from_numpy(x.dtype)
    assert dtype is not None
    if x.size == 0:
        shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
        return [np.full(shape, neutral(attrs["fn"], dtype), x.dtype)]
    ufunc = combine(attrs["fn"])
    if ufunc in (np.logical_and, np.logical_or):
        return [np.asarray(ufunc.reduce(x, axis=dims)).astype(x.dtype)]
    return [np.asarray(ufunc.reduce(x, axis=dims, dtype=x.dtype))]


def _argreduce(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    (x,) = operands
    dim = attrs["dim"]
    if x.shape[dim] == 0:
        return [np.zeros(x.shape[:dim] + x.shape[dim + 1 :], np.int64)]
    first = np.argmin if attrs["fn"] == "min" else np.argmax
    return [np.asarray(first(x, axis=dim)).astype(np.int64)]


def _cumulative(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    (x,) = operands
    return [combine(attrs["fn"]).accumulate(x, axis=attrs["dim"], dtype=x.dtype)]


def _roll(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    (x,), d = operands, attrs["dim"]
    at = np.arange(value(attrs.get("extent", x.shape[d]))) - value(attrs["shift"])
    return [np.take(x, at % max(x.shape[d], 1), d)]


def _edge(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    return [np.pad(operands[0], attrs["widths"], mode="edge")]


def _matmul(operands: Sequence[Array], _: Attrs, __: Eval) -> list[Array]:
    product = np.asarray(np.matmul(operands[0], operands[1]))
    return [product.astype(operands[0].dtype)]  # of bfloat16, NumPy's is float32


def _sort(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    return [np.sort(operands[0], axis=attrs["dim"], kind="stable")]


def _argsort(operands: Sequence[Array], attrs: Attrs, _: Eval) -> list[Array]:
    return [np.argsort(operands[0], axis=attrs["dim"], kind="stable").astype(np.int64)]


def _kernel(operands: Sequence[Array], attrs: Attrs, value: Eval) -> list[Array]:
    """The user's Python function on contiguous copies; 0-d operands arrive as scalars. What it
    says that it fills holds a pattern before."""
    outs = [
        np.full(extents(t.shape, value), 85, np.uint8).astype(dtypes.numpy_dtype(t.dtype))
        for t in attrs["types"]
    ]
    args: list[Any] = []
    for how, what in attrs["args"]:
        if how == "in":
            x = operands[what]
            args.append(x[()] if x.ndim == 0 else np.array(x, order="C"))
        elif how in ("out", "own"):
            j, begins = what
            if begins is not None:
                outs[j] = np.array(operands[begins], order="C")
            args.append(outs[j])
        elif how == "expr":
            args.append(value(what))
        else:  # of a whole array, places are 0
            first = tuple(0 if how == "start" else value(e) for e in what)
            args.append(first if len(first) > 1 else first[0])
    kernel: Any = attrs["kernel"]
    if not attrs.get("apart") or all(x.size for x in outs):
        writes = [how == "out" for how, _ in attrs["args"]]
        follows = attrs.get("follows") or [None] * len(args)
        gufunc.call(getattr(kernel, "function", kernel), args, follows, writes)
    return outs


REFERENCE: dict[str, Rule] = {
    "const": _const, "full": _full, "iota": _iota, "expr": _expr,
    "map": _map,
    "broadcast": _broadcast, "slice": _slice, "transpose": _transpose, "reshape": _reshape,
    "roll": _roll, "edge": _edge, "update": _update,
    "dynamic_slice": _dynamic_slice, "dynamic_update": _dynamic_update,
    "gather": _gather, "scatter": _scatter,
    "reduce": _reduce, "argreduce": _argreduce, "cumulative": _cumulative,
    "matmul": _matmul, "sort": _sort, "argsort": _argsort,
    "kernel": _kernel,
    "relayout": lambda operands, _, __: [operands[0]],
}  # fmt: skip


def evaluator(values: Mapping[str, int]) -> Eval:
    """A function that evaluates Exprs and ints for these symbol values, which must stay."""
    known: dict[Expr, int] = {}

    def value(e: IntLike) -> int:
        if e.__class__ is int:
            return e
        found = known.get(as_expr(e))
        return as_expr(e).evaluate(values, known) if found is None else found

    return value
