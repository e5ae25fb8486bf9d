"""The base class of op kinds: the rules that a kind may have, and their defaults.

A kind is a frozen value. Its fields are the attributes of the op, in the view of the rank that
executes it; its rules are methods, and the defaults stand here.
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
    """The base class of op kinds. The class attributes say how passes may treat an op; a subclass
    sets those that differ from the defaults here."""

    name: ClassVar[str]  # in texts
    # It has the rule `element`: its result need not lie in memory.
    inline: ClassVar[bool] = False
    # It does hardly any work: it is computed again for each part that is wanted.
    is_view: ClassVar[bool] = False
    # Its result should take the memory of its first operand.
    in_place: ClassVar[bool] = False
    # It reads operands element by element, so that these may be inlined; strided boxes where they
    # lie; or whole contiguous arrays.
    reads: ClassVar[Literal["points", "boxes", "whole"]] = "whole"
    # Others than this rank read its operands, which lie in buffers; else a constant is read in the
    # image.
    from_buffers: ClassVar[bool] = False
    # It may read one element for several elements of its result.
    rereads: ClassVar[bool] = False
    # A rank has balanced blocks of its results, whatever parts are wanted: so always where a kind
    # has several results.
    held: ClassVar[bool] = False
    # Ghost cells of its result are fetched, not recomputed.
    laborious: ClassVar[bool] = False
    # The only Store or Reduce of its `steps` may be fused with other loops.
    fuses: ClassVar[bool] = False
    # No later op may be computed before it.
    fence: ClassVar[bool] = False
    # It reads a rank's own blocks of its operands.
    at_home: ClassVar[bool] = False
    # Its result may lie in an array with room for ghost cells.
    has_room: ClassVar[bool] = True
    # It states layouts.
    lays_out: ClassVar[bool] = False
    # Its results are step functions: their derivative is 0.
    flat: ClassVar[bool] = False
    # What to do instead of differentiating it, for messages.
    without_vjp: ClassVar[str] = "spmd.stop_gradient(x) takes what it reads as a constant"

    @property
    def called(self) -> str:
        """Return the op's name in texts, which may depend on its fields."""
        return self.name

    def infer(self, types: Types) -> list[ArrayType]:
        """Return the types of the results, without layouts; by default one result of the first
        operand's type. Raise InternalError where the operands break the op's rule."""
        return [ArrayType(types[0].dtype, types[0].shape)]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        """Return the default layout of a global result, where neither the user nor another op
        states one; an axis may stand in it twice."""
        return [()] * result.ndim

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        """Return the results in NumPy, for an op that does not exchange; the operands must not be
        written to."""
        raise NotImplementedError(self.name)

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        """Return the scalar at an index of the result; a kind that is `inline` has this rule."""
        raise NotImplementedError(self.name)

    def is_cheap(self) -> bool:
        """Return whether computing an element again beats a trip through memory."""
        return False

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        """Add the acts that write the results, which lie in memory."""
        index = positions(loop_vars(op.result.type.shape))
        builder.store(op.result, self.element(op, index, builder), op)

    def work(self, op: Op) -> Iterable[Shape]:
        """Return extents of loops that take about as long as the op; of several, the longest
        counts."""
        part = self.in_place or (self.inline and self.rereads)  # of the first operand
        return [v.type.shape for v in (*op.operands[part:], *(() if self.in_place else op.results))]

    def claims(self, op: Op, proofs: Proofs) -> None:
        """State, by `proofs`, the conditions that an op of a Program must meet on every rank and
        for all sizes."""

    # ---- derivatives ---------------------------------------------------------------------------

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        """Return the cotangents of the operands, from those of the results: the transposed
        derivative. None stands for zeros. Called where an operand is active; raise UnsupportedError
        if there is no derivative."""
        raise builder.none(op)

    # ---- spmd.vmap -------------------------------------------------------------------------------

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Return the results of the op for all members of a batch, along a new first dim. stacked:
        the operands with such a dim; None for an operand that all members share. A result that is
        None is shared, and unchanged. Called where some operand, or a value that a region reads,
        differs between members."""
        raise batch.none(op)

    # ---- what is checked while a program runs ----------------------------------------------------

    def title(self) -> str:
        """Return how messages call the op, as in "a sum makes a NaN"."""
        return self.name

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        """Return the condition that each element of a result is finite, or that an operand is not;
        None: no check."""
        return None

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        """Return the result in float64, from operands in float64; None if integers cannot overflow
        in this op."""
        return None

    # ---- parts of global arrays on a rank --------------------------------------------------------

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        """Return the part of a dim of the result that a rank can have with the least exchange, if
        that is not the balanced block; else None."""
        return None

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        """Return whether elements beyond the ends of a periodic dim of the result follow from
        elements beyond the ends of the operands."""
        return True

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        """Return the part of each operand from which a rank computes this part of the result; ()
        for 0-d operands."""
        return [tuple(map(whole, v.type.shape)) for v in op.operands]

    def depends(self, op: Op, window: Window, shards: Shards) -> list[Window | None]:
        """Return the part of each operand on which this part of the result depends, on any rank:
        `needs`, unless the op exchanges. None: the operand holds indices that count 0, 1, 2, …,
        which `shards` knows already."""
        return [*self.needs(op, window, shards)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        """Return the part of the result, from the parts of the operands that `needs` names."""
        value = build.emit(self, operands)
        return shards.part(value, tuple(map(whole, op.result.type.shape)), window, build)

    def summed(self, op: Op, window: Window, shards: Shards) -> list[Cut] | None:
        """Return the parts of the dims over which the op sums; None if it is no sum."""
        return None

    def but(self, **changed: Any) -> Self:
        """Return this kind with other values of these fields."""
        changed_kind: Self = replace(self, **changed)  # type: ignore[type-var]
        return changed_kind

    def counts(self) -> Sym | None:
        """Return the symbol that the op defines, such as a loop's counter; None if it defines
        none."""
        return None

    def exprs(self) -> tuple[Expr, ...]:
        """Return every Expr in its fields, those in types too."""
        return self._exprs

    @cached_property
    def _exprs(self) -> tuple[Expr, ...]:
        held = [getattr(self, f.name) for f in fields(self)]  # type: ignore[arg-type]
        return tuple(exprs_in(held))

    def attributes(self) -> dict[str, Any]:
        """Return the fields by name, without those that have their default."""
        named = ((f, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return {f.name: v for f, v in named if v is not f.default}


class Stated(Kind):
    """A kind whose field `types` states the types of its results."""

    types: tuple[ArrayType, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return list(self.types)


def exprs_in(field: object) -> Iterator[Expr]:
    """Yield every Expr in a field of a kind."""
    if isinstance(field, Expr):
        yield field
    elif isinstance(field, ArrayType):
        yield from field.shape
    elif isinstance(field, tuple | list):
        for part in field:
            yield from exprs_in(part)


def dropped(shape: Sequence[Expr], dims: Iterable[int]) -> Shape:
    """Return a shape without these dims."""
    gone = set(dims)
    return tuple(e for d, e in enumerate(shape) if d not in gone)


def behind(dims: Iterable[int]) -> tuple[int, ...]:
    """Return the dims, renumbered for an array that has one more dim before them."""
    return tuple(d + 1 for d in dims)


def extents(shape: Sequence[Expr], value: Eval) -> tuple[int, ...]:
    """Return the extents of a shape as integers."""
    return tuple(map(value, shape))


def layout_of(t: ArrayType) -> Layout:
    """Return the layout of a global array; a type without one is not split."""
    return t.layout or ((),) * t.ndim
