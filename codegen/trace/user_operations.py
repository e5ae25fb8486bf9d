"""Operations that users add to the language: a class with rules, and the op that its calls become.

Goes in: a subclass of Operation, and operands. Comes out: an op of the Graph; of one rank's arrays,
and in the Program, what `compute` makes of a rank's parts.
Always holds: a rule that does not fit the operands, or the others, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codegen import dtypes
from codegen.errors import (
    DtypeError,
    LayoutError,
    Place,
    ShapeError,
    UnsupportedError,
    UsageError,
)
from codegen.ir import cuts
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import ArrayType, Op, Value
from codegen.mesh import Layout, joined_layout
from codegen.ops import Exchange, Kind, Slice
from codegen.ops.kind import Array as NumpyArray
from codegen.ops.kind import Eval, Types, layout_of
from codegen.ops.rules import BatchBuilder, GraphBuilder, Shards, Values
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, as_value, wrap
from codegen.trace.context import Context, require_context
from codegen.trace.control.conversion import convert
from codegen.trace.derive.derivatives import custom_vjp
from codegen.trace.number import expr_of, number
from codegen.trace.numpy.elementwise import example_of_difference, shape_text
from codegen.user.absent import computed, needs_of


class Type(NamedTuple):
    """The shape and the element type of an array, as the rule `result` of an operation says them.

    shape: integers; extents that only a run knows are symbolic. dtype: a dtype of NumPy.
    """

    shape: tuple[Any, ...]
    dtype: Any


class Part(NamedTuple):
    """The part of a result that a rank computes: per dim, its first element and how many it has.
    Both are symbolic integers where they depend on the rank.
    """

    start: tuple[Any, ...]
    shape: tuple[Any, ...]


class ResultDim(NamedTuple):
    """A dim of a result, for the rule `needs`: element j needs elements step * j to
    step * j + size - 1 of an operand's dim.
    """

    number: int
    size: int = 1
    step: int = 1

    def windows(self, size: int, step: int = 1) -> ResultDim:
        """Return the rule that element j needs elements step * j to step * j + size - 1.

        LayoutError where a window is empty, or where gaps are between windows.
        """
        if not 1 <= step <= size:
            raise LayoutError("windows of the rule needs have gaps between them",
                              place=user_place(), expected="1 <= step <= size",
                              found=f"size {size}, step {step}",
                              remedy="x[::step] before the call leaves elements out")
        return ResultDim(self.number, size, step)

    def elements(self, result: ArrayType) -> Expr:
        """Return how many elements of an operand's dim a result of this type needs."""
        return self.step * result.shape[self.number] + (self.size - self.step)


Needs = tuple[tuple[ResultDim | None, ...], ...]  # per operand and dim; None: all of the dim


class Operation:
    """An operation that you add to the language: write a subclass, and call an instance of it.

    Its attributes are what it says beside its operands; a frozen dataclass holds them well. Write
    these rules as methods:

    - `result(*operands)`: the Type of the result. Operands have `shape` and `dtype`; one of them
      may be returned, where the result is as that.
    - `numpy(*operands)`: what it means, in NumPy. Eager runs call it.
    - `needs(dims, *operands)`: which part of each operand a part of the result depends on: per
      operand None, for all of it, or a tuple with an entry for each of its dims: one of `dims`,
      which are those of the result, `dims[k].windows(size, step)`, or None for the whole dim. Dims
      that are named stay split, and what of the windows other ranks have is fetched. Without this
      rule every rank computes with all of each operand.
    - `compute(part, *operands)`: the part of the result that a rank computes, of the parts that
      `needs` names; in the language, kernels included, without exchanges between ranks. Without it
      `numpy` is captured.
    - `vjp(operands, result, cotangent)`: the cotangents of the operands, a tuple with None where
      there is none.
    - `batched()`: the operation on arrays that have one more dim, the first, for spmd.vmap. Without
      it a loop calls it for one member after the other.

    Example::

        class Softsign(spmd.extend.Operation):
            def result(self, x):
                return x

            def numpy(self, x):
                return x / (1 + np.abs(x))

            def needs(self, dims, x):
                return [dims]

            def vjp(self, operands, result, cotangent):
                return (cotangent / (1 + np.abs(operands[0])) ** 2,)

        softsign = Softsign()

        @spmd.program
        def signs():
            x = spmd.input("x", (3,), np.float64, layout=("x",), default=lambda i: i)
            return softsign(x) + spmd.grad(lambda x: np.sum(softsign(x)))(x)

        print(spmd.build(signs).run(ranks=2).round(2))    # [1.   0.75 0.78]
    """

    def result(self, *operands: Any) -> Any:
        raise self._missing("result", "def result(self, x): return spmd.extend.Type(shape, dtype)")

    def numpy(self, *operands: Any) -> Any:
        raise self._missing("numpy", "def numpy(self, x): what it means, in NumPy")

    def needs(self, dims: Any, *operands: Any) -> Any:
        return [None] * len(operands)

    def compute(self, part: Any, *operands: Any) -> Any:
        return convert(self.numpy)(*operands)

    def vjp(self, operands: Any, result: Any, cotangent: Any) -> Any:
        raise UnsupportedError(
            f"{self} has no derivative", place=_place(),
            expected="the rule vjp of each operation that is differentiated",
            found=f"{type(self).__name__} without it",
            remedy="def vjp(self, operands, result, cotangent): return a tuple with a cotangent of "
            "each operand; or spmd.stop_gradient(x) before the call")

    def batched(self) -> Operation | None:
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __str__(self) -> str:
        return f'operation "{type(self).__name__}"'

    def __call__(self, *operands: Any) -> Any:
        context = Context.current()
        if not operands:
            raise UsageError(f"{self} is called without operands", place=user_place(),
                             expected="an array, at least", found="()")
        if context is not None:
            differentiated = custom_vjp(self._emitted)
            place = user_place()
            differentiated.defvjp(
                self._kept, lambda kept, cotangent: self._back(kept, cotangent, place))
            return differentiated(*map(as_array, operands))
        if needs := needs_of(operands):
            return computed(self, operands, {}, needs)
        return self._in_numpy([np.asarray(x) for x in operands])

    # ---- where it is called ----------------------------------------------------------------------

    def _emitted(self, *operands: Array) -> Any:
        """Return the result in a program: that of an op on global arrays, or what `compute` returns
        for one rank's arrays."""
        context = operands[0].context
        stated = self._result_type(operands)
        along = self._needs(operands, stated)
        if context.rank_view:
            parts = [_named_part(x, dims, stated) for x, dims in zip(operands, along)]
            return wrap(context, self._part(context, parts, stated))
        if type(self).compute is Operation.compute:
            self._check_whole(context, operands, stated)
        kind = UserOp(self, along, stated)
        return wrap(context, context.emit_one(kind, *(x.read() for x in operands)))

    def _kept(self, *operands: Array) -> tuple[Any, Any]:
        result = self._emitted(*operands)
        return result, (operands, result)

    def _back(self, kept: Any, cotangent: Any, place: Place | None) -> tuple[Any, ...]:
        operands, result = kept
        with operands[0].context.standing_at(place):
            cotangents = convert(self.vjp)(operands, result, cotangent)
        if not isinstance(cotangents, (tuple, list)) or len(cotangents) != len(operands):
            several = isinstance(cotangents, (tuple, list))
            count = len(cotangents) if several else type(cotangents).__name__
            raise UsageError(f"{self}: vjp returns no cotangent for each operand",
                             place=user_place(), expected=f"a tuple of {len(operands)}",
                             found=str(count), remedy="None for an operand that has none")
        for k, (x, g) in enumerate(zip(operands, cotangents)):
            have = x.extents if g is None else _shape(g)
            if len(have) != x.ndim or any(map(_differ, have, x.extents)):
                raise ShapeError(f"{self}: vjp returns another shape for operand {k}",
                                 place=user_place(), expected=shape_text(x.extents),
                                 found=shape_text(have))
        return tuple(cotangents)

    def _in_numpy(self, operands: Sequence[NumpyArray]) -> NumpyArray:
        """Return what `numpy` returns, checked against the type that `result` states."""
        stated = self._stated(operands)
        views = [x.view() for x in operands]  # a caller's array is not for the rule to write
        for view in views:
            view.flags.writeable = False
        result = np.asarray(self.numpy(*views))
        self._check(result.shape, result.dtype, tuple(stated.shape), stated.dtype, "numpy",
                    "result")
        return result

    # ---- rules, checked --------------------------------------------------------------------------

    def _missing(self, rule: str, text: str) -> UsageError:
        return UsageError(f"{self} has no rule {rule}", place=user_place(),
                          expected="the rules result and numpy, at least",
                          found=f"{type(self).__name__} without {rule}", remedy=text)

    def _stated(self, operands: Sequence[Any]) -> Type:
        """Return the type that the rule `result` states. Raises UsageError if it returns none."""
        declared = self.result(*operands)
        shape, dtype = getattr(declared, "shape", None), getattr(declared, "dtype", None)
        if shape is None or dtype is None or not all(expr_of(n) is not None for n in shape):
            raise UsageError(f"{self}: the rule result returns no type", place=user_place(),
                             expected="spmd.extend.Type(shape, dtype), or an operand",
                             found=repr(declared)[:60])
        return Type(tuple(shape), np.dtype(dtype))

    def _result_type(self, operands: Sequence[Array]) -> ArrayType:
        stated = self._stated(operands)
        dtype = dtypes.from_numpy(stated.dtype)
        if dtype is None:
            raise DtypeError(f"{self}: the rule result says a type that programs do not know",
                             place=user_place(), expected=", ".join(dtypes.BY_NAME),
                             found=str(stated.dtype))
        return ArrayType(dtype, _exprs(stated.shape))

    def _needs(self, operands: Sequence[Array], result: ArrayType) -> Needs:
        """Return what the rule `needs` says. Raises LayoutError if that does not fit operands and
        result."""
        dims = tuple(ResultDim(d) for d in range(result.ndim))
        needed = self.needs(dims, *operands)
        if not isinstance(needed, (tuple, list)) or len(needed) != len(operands):
            count = len(needed) if isinstance(needed, (tuple, list)) else type(needed).__name__
            raise self._unfit("the rule needs has not one entry for each operand",
                              f"{len(operands)}, each None or a tuple", str(count))
        return tuple(self._entries(k, x, entries, result)
                     for k, (x, entries) in enumerate(zip(operands, needed)))

    def _entries(self, k: int, x: Array, entries: Any, result: ArrayType) -> tuple[Any, ...]:
        if entries is None:
            return (None,) * x.ndim
        if not isinstance(entries, (tuple, list)) or len(entries) != x.ndim or any(
                e is not None and not isinstance(e, ResultDim) for e in entries):
            raise self._unfit(f"the rule needs has not one entry for each dim of operand {k}",
                              f"{x.ndim} entries, dims[j], dims[j].windows(size) or None",
                              repr(entries)[:60])
        for d, (e, extent) in enumerate(zip(entries, x.extents)):
            if e is not None:
                least = e.elements(result)
                if not expr.nonneg(extent - least):
                    raise self._unfit(
                        f"dim {d} of operand {k} is shorter than the rule needs says",
                        f"{least} elements for {result.shape[e.number]} of the result's dim "
                        f"{e.number}", str(extent))
        return tuple(entries)

    def _unfit(self, text: str, expected: str, found: str) -> LayoutError:
        return LayoutError(f"{self}: {text}", place=user_place(), expected=expected, found=found)

    def _check(self, shape: Any, dtype: Any, stated: Any, stated_dtype: Any, rule: str,
               whose: str) -> None:
        """Raise ShapeError or DtypeError where two rules do not agree."""
        have, expected = _exprs(shape), _exprs(stated)
        if len(have) != len(expected) or any(map(_differ, have, expected)):
            raise ShapeError(
                f"{self}: its rules disagree about the shape", place=_place(),
                expected=f"{shape_text(expected)}, as the rule {whose} says",
                found=f"{shape_text(have)}, which {rule} returns")
        if dtype != stated_dtype:
            raise DtypeError(
                f"{self}: its rules disagree about the element type", place=_place(),
                expected=f"{stated_dtype}, as the rule result says",
                found=f"{dtype}, which {rule} returns",
                remedy="result.astype(dtype) where it is computed")

    def _check_whole(
        self, context: Context, operands: Sequence[Array], stated: ArrayType
    ) -> None:
        """Raise ShapeError or DtypeError where `numpy`, captured of all of the operands, does not
        return what `result` says."""
        apart = _RanksPart(context.name, context.mesh)
        apart.rank_view = 1
        with apart.active():
            arrays = [wrap(apart, Value("x", ArrayType(x.type.dtype, x.extents)), scalar=False)
                      for x in operands]
            numpy_type = as_value(apart, convert(self.numpy)(*arrays)).type
        self._check(numpy_type.shape, dtypes.numpy_dtype(numpy_type.dtype), stated.shape,
                    dtypes.numpy_dtype(stated.dtype), "numpy", "result")

    def _part(
        self, context: Context, operands: Sequence[Array], stated: ArrayType,
        start: Sequence[Expr] | None = None,
    ) -> Value:
        """Return what `compute` makes of one rank's parts. `stated` is the type of the part;
        `start` is where it begins in a global array."""
        shape = stated.shape
        first = start or (expr.const(0),) * len(shape)
        part = Part(tuple(map(number, first)), tuple(map(number, shape)))
        value = as_value(context, convert(self.compute)(part, *operands))
        self._check(value.type.shape, dtypes.numpy_dtype(value.type.dtype), shape,
                    dtypes.numpy_dtype(stated.dtype), "compute",
                    "result" if start is None else "needs")
        if value.type.shape == shape:
            return value
        cut = Slice((expr.const(0),) * len(shape), (1,) * len(shape), shape, cut=True)
        return context.emit_one(cut, value)  # checked as all bounds are: proved, or tried


def _differ(a: Expr, b: Expr) -> bool:
    """Return whether two extents differ, for some number of ranks at least."""
    return not expr.equal(a, b) and bool(example_of_difference(a, b))


def _place() -> Place | None:
    """Return the place where the operation is called, also while a Program is made, which no line
    of the user's code does."""
    context = Context.current()
    return (context and context.place) or user_place()


def _named_part(x: Array, dims: Sequence[ResultDim | None], result: ArrayType) -> Any:
    """Return the elements of one rank's operand that the rule `needs` names for its whole
    result."""
    ends = [None if d is None else number(d.elements(result)) for d in dims]
    return x[tuple(slice(0, end) for end in ends)] if any(e is not None for e in ends) else x


def _exprs(shape: Iterable[Any]) -> tuple[Expr, ...]:
    exprs = [n if isinstance(n, Expr) else expr_of(n) for n in shape]
    assert None not in exprs, shape
    return tuple(e for e in exprs if e is not None)


def _shape(x: Any) -> tuple[Expr, ...]:
    return x.extents if isinstance(x, Array) else _exprs(np.shape(x))


class _RanksPart(Context):
    """A rank's computation of an operation, captured while the Program is made. `number` is the
    op's in its Graph, so that its counters have names of their own."""

    number = 0

    def unique(self, hint: str) -> str:
        return super().unique(f"{hint}_{self.number}")


@dataclass(frozen=True)
class UserOp(Kind):
    """A user's operation on global arrays; along: per operand and dim, the dim of the result that
    a part goes with, and its windows. A rank has blocks of the result, each computed once."""

    name = "operation"
    held = True
    laborious = True
    has_room = False
    operation: Operation = field(hash=False)
    along: Needs
    type: ArrayType

    @property
    def called(self) -> str:
        return type(self.operation).__name__.lower()

    def title(self) -> str:
        return str(self.operation)

    def infer(self, types: Types) -> list[ArrayType]:
        return [self.type]

    def layout(self, operands: Types, result: ArrayType) -> Layout:
        """Dims that an operand's dims go with are split as these are."""
        every: list[Layout] = [((),) * result.ndim]
        for t, dims in zip(operands, self.along, strict=True):
            entries = dict(zip((d and d.number for d in dims), layout_of(t)))
            every.append(tuple(entries.get(d, ()) for d in range(result.ndim)))
        return joined_layout(every)

    def reference(self, operands: Sequence[NumpyArray], value: Eval) -> list[NumpyArray]:
        return [self.operation._in_numpy(operands)]

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        return False

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [tuple(_needed(d, window, extent, shards) for d, extent in zip(dims, v.type.shape))
                for v, dims in zip(op.operands, self.along, strict=True)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        context = _RanksPart(op.result.name, shards.mesh)
        context.number = list(shards.defs).index(op.result)
        context.rank_view, context.place = 1, op.place
        with context.active():
            arrays = [wrap(context, v, scalar=False) for v in operands]
            type_ = ArrayType(self.type.dtype, shards.shape(window))
            made = self.operation._part(context, arrays, type_, shards.lows(window))
        refused = next((o for o in context.blocks[0].ops if isinstance(o.kind, Exchange)), None)
        if refused is not None:
            raise UnsupportedError(
                f"{self.title()}: compute exchanges data between ranks", place=op.place,
                expected="arithmetic and kernels on a rank's own parts",
                found=refused.kind.called, remedy="say in the rule needs what other ranks have")
        if context.conditions:
            raise UnsupportedError(
                f"{self.title()}: compute asks something of launches", place=op.place,
                expected="what holds on every mesh", found=context.conditions[0].text,
                remedy="spmd.require(…) in the program, before the operation is called")
        build.ops.extend(context.blocks[0].ops)
        return made

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        wider = self.operation.batched()
        if wider is None:
            return batch.one_by_one(op, stacked)
        context = require_context(self.title())
        operands = [wrap(context, v) for v in batch.every(op, stacked)]
        return [wider(*operands).read()]


def _needed(d: ResultDim | None, window: Window, extent: Expr, shards: Shards) -> Cut:
    if d is None:
        return cuts.whole(extent)
    cut = window[d.number]
    if d.step == 1:
        return cuts.widened(cut, d.size - 1)
    low, high = cut.bounds(shards.mesh)
    more = d.size - d.step
    return cuts.interval(cut.axes, low * d.step, high * d.step + more)
