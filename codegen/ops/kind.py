"""What an op does: the class of which every kind of op is a subclass, and the rules it may have.

A kind is a frozen value: its fields are what the op says beside its operands, in the view of the
rank that executes it. Its rules are methods; a rule that a kind lacks has the answer given here.
Always holds: `infer` gives the types of an op's results from its operands' types and the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from numpy.typing import NDArray

from codegen.ir.cuts import Cut, Window, whole
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index, loop_vars, positions
from codegen.mesh import Layout
from codegen.ops.rules import (
    BatchBuilder,
    CheckBuilder,
    Element,
    ElementResolver,
    GradientBuilder,
    GraphBuilder,
    LoopBuilder,
    Proofs,
    Shards,
    Values,
)
from codegen.symbolic.expr import Expr, IntLike, Sym

Types = Sequence[ArrayType]
Array = NDArray[Any]
Eval = Callable[[IntLike], int]  # evaluates Exprs


class Kind:
    """A kind says what an op does, by its class, its fields and its rules. name: how texts call it.
    inline: it has an `element`, its result need not lie in memory. is_view: no work of its own, or
    hardly any: computed anew wherever a part is wanted. in_place: it wants the memory of its first
    operand for its result. reads: its operands point by point, so that they may be computed on the
    way; strided boxes where they lie; or whole and contiguous. from_buffers: others than its rank
    look at its operands, which are in buffers; else a constant is read in the image. rereads: it
    may read one element at several points. held: a rank has balanced blocks of its results,
    whatever parts of them are wanted; so it has of a kind of several results, which are of one
    batch. laborious: ghost cells of its result are fetched, not computed once more. fuses: a Store
    or Reduce that is all of its `steps` may share loops. fence: nothing that comes later is
    computed before it. at_home: a rank's blocks of its operands are what it works on. has_room: its
    result may lie in an array with room for ghost cells. lays_out: it says how arrays lie. flat:
    its results are steps: they have no derivative but 0. without_vjp: what to do where it has no
    derivative."""

    name: ClassVar[str]
    inline: ClassVar[bool] = False
    is_view: ClassVar[bool] = False
    in_place: ClassVar[bool] = False
    reads: ClassVar[Literal["points", "boxes", "whole"]] = "whole"
    from_buffers: ClassVar[bool] = False
    rereads: ClassVar[bool] = False
    held: ClassVar[bool] = False
    laborious: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    fence: ClassVar[bool] = False
    at_home: ClassVar[bool] = False
    has_room: ClassVar[bool] = True
    lays_out: ClassVar[bool] = False
    flat: ClassVar[bool] = False
    without_vjp: ClassVar[str] = "spmd.stop_gradient(x) takes what it reads as a constant"

    @property
    def called(self) -> str:
        """Return the op's name in texts, which may depend on its fields."""
        return self.name

    def infer(self, types: Types) -> list[ArrayType]:
        """Return the types of the results, without layouts; here one, as the first operand's.
        Raises InternalError where the operands break the op's rule."""
        return [ArrayType(types[0].dtype, types[0].shape)]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        """Return the layout of a global result, where nobody says one; an axis may stand in it
        twice."""
        return [()] * result.ndim

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        """Return the results in NumPy, of an op that stays within a rank; operands are not written
        to."""
        raise NotImplementedError(self.name)

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        """Return the scalar at an index of the result; only a kind that is `inline` has this
        rule."""
        raise NotImplementedError(self.name)

    def is_cheap(self) -> bool:
        """Return whether computing an element again beats a trip through memory."""
        return False

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        """Add the acts that write the results, which lie in memory."""
        index = positions(loop_vars(op.result.type.shape))
        builder.store(op.result, self.element(op, index, builder), op)

    def work(self, op: Op) -> Iterable[Shape]:
        """Return the extents of loops as long as the op works, about; of several the longest
        counts."""
        part = self.in_place or (self.inline and self.rereads)  # of the first operand
        return [v.type.shape for v in (*op.operands[part:], *(() if self.in_place else op.results))]

    def claims(self, op: Op, proofs: Proofs) -> None:
        """State what must hold of an op of a Program, on every rank and for all sizes."""

    # ---- derivatives ---------------------------------------------------------------------------

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        """Return what the cotangents of the results (None: zeros) add to those of the operands: the
        transpose of the derivative, applied. It is called where an operand matters to what is
        differentiated; raise UnsupportedError if there is no derivative."""
        raise builder.none(op)

    # ---- spmd.vmap -------------------------------------------------------------------------------

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Return the results of the op for all members of a batch, along a new first dim. stacked:
        the operands, which have such a dim too; None for one that all members share. None in the
        place of a result: all members share it, and it stays the value that it was. Called where an
        operand, or what a region reads, has a member's own value."""
        raise batch.none(op)

    # ---- what is checked while a program runs ----------------------------------------------------

    def title(self) -> str:
        """Return what users call the op, as in "a sum makes a NaN"."""
        return self.name

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        """Return the condition that each element of a result is finite, or that an operand is not;
        None: it is not checked."""
        return None

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        """Return the result in float64, of operands in float64; None if integers cannot wrap around
        here."""
        return None

    # ---- parts of global arrays on a rank --------------------------------------------------------

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        """Return the part of a dim of the result that a rank can have with the least exchange,
        where that is none of balanced blocks."""
        return None

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        """Return whether what lies beyond the ends of a periodic dim of the result can be had from
        what lies beyond the ends of its operands."""
        return True

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        """Return the part of each operand that this part of the result needs; () for 0-d
        operands."""
        return [tuple(map(whole, v.type.shape)) for v in op.operands]

    def depends(self, op: Op, window: Window, shards: Shards) -> list[Window | None]:
        """Return the part of each operand on which this part of the result depends, whoever has it:
        what a rank needs, unless ranks exchange more. None: the operand holds indices that count
        0, 1, 2, …, as `shards` knows already."""
        return [*self.needs(op, window, shards)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        """Return the part of the result, of the operands' parts that `needs` named."""
        value = build.emit(self, operands)
        return shards.part(value, tuple(map(whole, op.result.type.shape)), window, build)

    def summed(self, op: Op, window: Window, shards: Shards) -> list[Cut] | None:
        """Return the parts of the dims over which a sum goes; None if the op is no sum."""
        return None

    def but(self, **changed: Any) -> Self:
        """Return this kind with other values of these fields."""
        changed_kind: Self = replace(self, **changed)  # type: ignore[type-var]
        return changed_kind

    def counts(self) -> Sym | None:
        """Return the symbol that gets its values from the op, as a loop's counter does; None if
        there is none."""
        return None

    def exprs(self) -> tuple[Expr, ...]:
        """Return every Expr that stands in its fields, also in types."""
        return self._exprs

    @cached_property
    def _exprs(self) -> tuple[Expr, ...]:
        held = [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]
        return tuple(exprs_in(held))

    def said(self) -> dict[str, Any]:
        """Return the fields by name, without those that have their default."""
        named = ((f, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return {f.name: v for f, v in named if v is not f.default}


class Stated(Kind):
    """A kind that says the types of its results."""

    types: tuple[ArrayType, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return list(self.types)


def exprs_in(field: object) -> Iterator[Expr]:
    """Return every Expr in a field of a kind."""
    if isinstance(field, Expr):
        yield field
    elif isinstance(field, ArrayType):
        yield from field.shape
    elif isinstance(field, tuple | list):
        for part in field:
            yield from exprs_in(part)


def dropped(shape: Sequence[Expr], dims: Iterable[int]) -> Shape:
    """Return a shape without some dims."""
    gone = set(dims)
    return tuple(e for d, e in enumerate(shape) if d not in gone)


def behind(dims: Iterable[int]) -> tuple[int, ...]:
    """Return the dims as they are counted when one more stands before them."""
    return tuple(d + 1 for d in dims)


def extents(shape: Sequence[Expr], value: Eval) -> tuple[int, ...]:
    return tuple(map(value, shape))


def layout_of(t: ArrayType) -> Layout:
    """Return the layout of a global array; one that has none is not split."""
    return t.layout or ((),) * t.ndim
