"""Protocols of the objects that passes pass to the rules of op kinds: one for each pass.

Always holds: codegen.ops names no class of the rooms above it. mypy compares each pass's own class
with its protocol, which has only what some rule uses.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from codegen.dtypes import DType
from codegen.errors import UnsupportedError
from codegen.gufunc import Parameter
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index
from codegen.ir.plan import Bound, Box, Caller, Node, Part, Var
from codegen.mesh import Layout, LayoutEntry, Mesh
from codegen.symbolic.expr import Expr, IntLike, Sym

if TYPE_CHECKING:  # kinds, and a grammar that stands on them: they import this file
    from codegen.ir.loops import Act
    from codegen.ops.exchanges import Exchange
    from codegen.ops.group import Bounds, Span, Wraps
    from codegen.ops.kind import Array, Kind
    from codegen.ops.lookups import Gather, Scatter
    from codegen.ops.partials import Form
    from codegen.ops.views import Slice, Update

Element = Node[Value]  # the scalar at one index of a value
Values = Sequence[Value | None]  # one for each operand or result; None where there is none


# ---- builders of ops -------------------------------------------------------------------------


class GraphBuilder(Protocol):
    """Adds ops to a Graph or a Program, one after the other; each has one result."""

    @property
    def ops(self) -> list[Op]:
        """Return the ops that were added so far."""

    def emit(self, kind: Kind, operands: Sequence[Value] = ()) -> Value:
        """Add an op and return its result."""

    def map(self, fn: str, *operands: Value) -> Value:
        """Return a function of FUNCTIONS, applied element by element."""

    def cast(self, x: Value, dtype: DType) -> Value:
        """Return x in another element type; x itself if it has that already."""

    def full(self, value: complex, dtype: DType, shape: Shape) -> Value:
        """Return an array with one number in all elements."""

    def integer(self, e: Expr) -> Value:
        """Return a symbolic integer as a 0-d int64 value."""


class CheckBuilder(GraphBuilder, Protocol):
    """Adds the conditions that `--check=nan,overflow` tests while a program runs."""

    def every(self, fn: str, values: Sequence[Value], join: str = ...) -> Value:
        """Return fn of all values, combined element by element with `join`."""

    def unless(self, value: Value, was: Value) -> Value:
        """Return, for each element, the condition that it is finite or that `was` holds."""

    def not_finite(self, value: Value) -> Value:
        """Return, for each element, whether it is a NaN or infinite."""

    def any_of(self, value: Value, dims: Sequence[int]) -> Value:
        """Return whether a condition holds anywhere along some dims, which are dropped."""

    def is_later(self, value: Value) -> bool:
        """Return whether a value needs no check of its own, since the check of the value computed
        from it reports the same fault, or since it is optional."""

    def sources(self, op: Op) -> list[Value]:
        """Return the floating-point values from which a map's result is computed and that have
        checks of their own."""

    def floats(self, op: Op) -> list[Value]:
        """Return the operands of an op, cast to float64."""


class TraceBuilder(Protocol):
    """Adds ops to the open block of a program that is being traced."""

    def emit(self, kind: Kind, *operands: Value) -> Value:
        """Add an op that has one result, and return that."""

    def map(self, fn: str, *operands: Value) -> Value:
        """Return a function of FUNCTIONS, applied element by element."""

    def integer(self, e: IntLike, shape: Shape = ()) -> Value:
        """Return an int64 array with a symbolic integer in all elements."""

    def clipped(self, index: Value, most: Expr) -> Value:
        """Return indices limited to 0 … `most`."""


class GradientBuilder(TraceBuilder, Protocol):
    """Adds the ops of a reverse pass: those that compute cotangents of operands."""

    @property
    def active(self) -> Container[Value]:
        """Return the values that depend on the variables of differentiation."""

    @property
    def numbers(self) -> Mapping[Value, complex]:
        """Return, by value, the number that all its elements are, where it is known."""

    def cast(self, x: Value, dtype: DType) -> Value:
        """Return x in another element type; its real part if it was complex and that is real."""

    def full(self, value: complex, like: Value) -> Value:
        """Return an array with one number in all elements, of the type of another value."""

    def zeros(self, t: ArrayType, dtype: DType | None = None) -> Value:
        """Return zeros of a type, or of its shape and another element type."""

    def spread(self, x: Value, dims: tuple[int, ...], shape: Shape) -> Value:
        """Return x repeated along the dims of `shape` other than `dims`, which are its own."""

    def sum(self, x: Value, dims: tuple[int, ...]) -> Value:
        """Return the sum over some dims, which are dropped."""

    def reshaped(self, x: Value, shape: Shape) -> Value:
        """Return the elements of x, in row-major order, in another shape."""

    def times(
        self, g: Value, form: Form | None, operands: Sequence[Value], out: Value
    ) -> Value | None:
        """Return a cotangent times a partial derivative, a row of PARTIALS; None for None."""

    def add_at(self, value: Value, box: Slice, part: Value) -> None:
        """Add a part to the cotangent of a value, at the elements that a slice shows."""

    def add_around(self, value: Value, box: Slice, whole: Value) -> None:
        """Add to the cotangent of a value `whole`, with zeros at what a slice shows."""

    def expect(self, holds: Value, text: str) -> None:
        """Add a check that ends the run with `text` where the condition `holds` is false."""

    def none(self, op: Op) -> UnsupportedError:
        """Return the error which says that an op has no derivative."""


class BatchBuilder(TraceBuilder, Protocol):
    """Turns ops of one member of a batch (spmd.vmap) into ops on all members. A stacked value has
    a first dim that counts members."""

    @property
    def n(self) -> Expr:
        """Return the number of members."""

    def emit_all(self, kind: Kind, *operands: Value) -> list[Value]:
        """Add an op and return all its results."""

    def every(self, op: Op, stacked: Values) -> list[Value]:
        """Return the operands of an op, each stacked: a shared one (None) is repeated."""

    def every_of(self, values: Sequence[Value], stacked: Values) -> list[Value]:
        """Return values, each stacked, as `every` does."""

    def spread(self, value: Value) -> Value:
        """Return a shared value stacked: repeated once for each member."""

    def stacked(self, t: ArrayType) -> ArrayType:
        """Return the type of a stacked value, from the type of one member's."""

    def layout(self, layout: Layout) -> Layout:
        """Return a layout with the dim of members in front."""

    def counted(self, dim: int, shape: Shape) -> Value:
        """Return an int64 array that counts 0, 1, 2, … along a dim."""

    def along(self, x: Value, shape: Shape) -> Value:
        """Return x repeated along the last dims of `shape`, which x does not have."""

    def moved(self, x: Value, source: int, to: int) -> Value:
        """Return x with its dim `source` moved to position `to`."""

    def merged(self, x: Value, dim: int) -> Value:
        """Return a stacked value as one: members are concatenated along `dim`."""

    def unmerged(self, x: Value, dim: int, each: Expr) -> Value:
        """Return a stacked value, from what `merged` gives; `each` is a member's extent."""

    def where(self, fits: Expr, x: Value) -> Value:
        """Return x where the formula `fits` is 1, else zeros."""

    def where_active(self, holds: Value) -> Value:
        """Return `holds`, or true for members that do not execute the op at hand."""

    def most(self, x: Value) -> Value:
        """Return the largest of the members' integers, which are not negative."""

    def one_by_one(self, op: Op, stacked: Values) -> list[Value]:
        """Return the stacked results of an op that a loop runs for one member after the other."""

    def loop(self, op: Op, stacked: Values) -> Values:
        """Return the results of a loop, for all members."""

    def branch(self, op: Op, stacked: Values) -> Values:
        """Return the results of a branch, for all members."""

    def defined(self, op: Op, stacked: Values) -> Values:
        """Return the results of a region that has a derivative of its own, for all members."""

    def shard_map(self, op: Op, stacked: Values) -> Values:
        """Return the results of a shard_map, for all members."""

    def none(self, op: Op, found: str = "", remedy: str = "") -> UnsupportedError:
        """Return the error which says that an op cannot be computed for a batch."""


# ---- from a Program to its loops -------------------------------------------------------------


class ElementResolver(Protocol):
    """Finds the scalar at an index of a value: views become index arithmetic, maps become trees."""

    @property
    def defs(self) -> Mapping[Value, Op]:
        """Return the op that defines each value."""

    @property
    def stored(self) -> Container[Value]:
        """Return the values that lie in memory."""

    @property
    def runtime(self) -> Mapping[str, int]:
        """Return the number of each run-time scalar, by its name."""

    def node(self, value: Value, index: Index) -> Element:
        """Return the scalar at an index of a value."""

    def operand(self, value: Value, index: Index) -> Element:
        """Return the scalar at an index of an operand; the number itself for an element of Full."""

    def at_offset(self, value: Value, offset: Expr) -> Element:
        """Return the scalar at a row-major offset of a value."""

    def within(self, box: Slice | Update, index: Index) -> Index:
        """Return the index in the whole array of an element of a slice or an update."""

    def picked(
        self, indices: Sequence[Value], kind: Gather | Scatter, shape: Shape, index: Index
    ) -> tuple[Index, tuple[Bound[Value], ...]]:
        """Return the index in x, of this shape, that data chooses for an index of the result."""

    def bound(self, value: Value, index: Index, limit: Expr) -> Bound[Value]:
        """Return a symbol for an integer that is read from a value, at most `limit`."""

    def constant(self, value: Value, data: Array) -> Value:
        """Return the value by which loads refer to `data`, a constant that the image stores."""


class LoopBuilder(ElementResolver, Protocol):
    """Adds the acts by which one op of a Program is carried out: loops, calls, exchanges."""

    @property
    def begins(self) -> list[tuple[Value, Value]]:
        """Return the pairs (operand, result) in which the result's memory initially holds the
        operand's elements, as for an update in place."""

    def add(self, act: Act) -> None:
        """Add an act to those of the op at hand."""

    def store(self, into: Value, node: Element, op: Op) -> None:
        """Add a store of all elements of a result; `node` is the one at its loops' positions."""

    def take_over(self, op: Op) -> Value:
        """Return the result of an op whose memory initially holds the elements of the op's first
        operand."""

    def spare(self, name: str, dtype: DType, *shape: Expr) -> Value:
        """Return a temporary array that only this op uses."""

    def contiguous(self, value: Value) -> tuple[Value, Expr]:
        """Return the memory in which elements lie one after the other, and the first's offset."""

    def plainest(self, value: Value) -> tuple[tuple[Var, ...], Index]:
        """Return loops over a value, and its index, without dims that a reshape added."""

    def is_everywhere(self, value: Value) -> bool:
        """Return whether a value is replicated: all ranks have the same."""

    def numbered(self) -> int:
        """Return a new number, unique among the program's takes and sends."""

    def call(self, function: Caller, loops: tuple[Var, ...], numbers: Sequence[Expr],
             parts: Sequence[Part[Value]], op: Op) -> None:
        """Add a call of library routines for every point of some loops."""

    def kernel(self, kernel: Any, signature: tuple[Parameter, ...]) -> str:
        """Return the C symbol of a user's kernel, compiled for these parameter types."""

    def exchange(self, op: Op, kind: Exchange) -> None:
        """Add an exchange phase, with the barriers that the program asks for around it."""


class ExchangeSides(Protocol):
    """An exchange between two members, as this rank and another member see it."""

    @property
    def me(self) -> Expr:
        """Return this rank's position along the exchange's axes."""

    @property
    def member(self) -> Expr:
        """Return the other member's position."""

    def box(self, value: Value) -> Box[Value]:
        """Return the strided region of memory in which a value lies."""

    def seen(self, box: Box[Value], extent: Shape | None = None) -> Box[Value]:
        """Return a region with its formulas in the other member's view, and with other extents if
        `extent` is not None."""

    def theirs(self, into: Box[Value]) -> Box[Value]:
        """Return the region that the member pulls from this rank, by exchanging the roles of the
        two in the formulas of `into`, the region to which this rank pulls."""

    def flat(self, box: Box[Value]) -> Box[Value]:
        """Return the elements of a contiguous box as a box of one dim."""

    def where(self, condition: Expr, box: Box[Value]) -> Box[Value]:
        """Return the box, which is empty where the condition is 0."""

    def copies(self, wraps: Wraps) -> Expr:
        """Return the number of boxes that a pair of members exchanges, in dims that wrap around."""

    def parts(
        self, op: Op, have: Bounds, want: Bounds, room: Bounds = (), wraps: Wraps = ()
    ) -> tuple[Box[Value], Box[Value], Box[Value]]:
        """Return three regions: what this rank pulls from the member, where it writes that, and
        what the member pulls from this rank. have and want: the elements that members hold and
        receive; room: those of the memory that contains both, for a move in place."""


# ---- parts of global arrays --------------------------------------------------------------------


class Shards(Protocol):
    """Knows which part of a global array a rank has, and cuts or combines parts."""

    @property
    def mesh(self) -> Mesh:
        """Return the mesh of the program."""

    @property
    def defs(self) -> Mapping[Value, Op]:
        """Return the op of the Graph that defines each value."""

    @property
    def partial(self) -> Mapping[Value, tuple[str, ...]]:
        """Return, for values of which ranks have partial sums, the axes over which these add up."""

    @property
    def later(self) -> Container[Value]:
        """Return the values whose partial sums are added to other partial sums before ranks reduce
        them."""

    def natural(self, value: Value, dim: int) -> Cut:
        """Return the part of a dim that a rank can have with the least exchange."""

    def goes_on(self, value: Value, dim: int) -> bool:
        """Return whether the elements beyond the ends of a periodic dim can be computed from the
        operands."""

    def shape(self, window: Window) -> Shape:
        """Return the extents of a part."""

    def lows(self, window: Window) -> Shape:
        """Return the global index of the first element of a part."""

    def part(self, value: Value, held: Window, wanted: Window, build: GraphBuilder) -> Value:
        """Return the part `wanted` of the part `held` of an array, which is `value`."""

    def wide(self, x: Value, build: GraphBuilder) -> Value:
        """Return x in the dtype in which ranks reduce it: float32 for half types."""

    def counted(
        self, shape: Shape, dim: int, low: Expr, period: Expr | None, dtype: DType,
        build: GraphBuilder,
    ) -> Value:
        """Return low, low + 1, … along a dim, modulo the period."""

    def axes_of(self, inner: Sequence[Cut]) -> tuple[str, ...]:
        """Return the axes that cut these dims, in the mesh's order."""

    def computed(self, op: Op, window: Window, inner: Iterable[Cut]) -> Window:
        """Return the part of a result that each rank computes before ranks combine theirs, where
        the combined dims are cut by `inner`."""

    def combined(
        self, op: Op, window: Window, inner: Sequence[Cut], value: Value, fn: str,
        build: GraphBuilder,
    ) -> Value:
        """Return the part `window` of a result, from each rank's `value` over its part `inner` of
        the combined dims: ranks combine these by COMBINE[fn]."""

    def over(
        self, axes: LayoutEntry, op: Op, held: Window, window: Window, value: Value, fn: str,
        build: GraphBuilder,
    ) -> Value:
        """Return the part `window` of the combination by COMBINE[fn] of all parts `held` of the
        ranks along some axes."""


# ---- what must hold, and what an exchange costs --------------------------------------------------


class Proofs(Protocol):
    """Proves the conditions that one op of a Program must meet, or tries them at small sizes."""

    def same(self, a: Expr, b: Expr, rule: str) -> None:
        """Raise InternalError where two formulas may differ."""

    def inside(
        self, starts: Sequence[Expr], steps: Sequence[int], part: Shape, whole: Shape
    ) -> None:
        """Raise InternalError where a box may lie outside of an array."""

    def no_less_than_nothing(self, shape: Iterable[Expr]) -> None:
        """Raise InternalError where an extent may be negative."""

    def shapes(self, expected: Shape, received: Expr | None = None) -> None:
        """Raise InternalError where the result's shape is not the expected one; `received` is 1
        where the result receives anything, and only there the shapes must agree."""

    def independent(self, shape: Shape, dims: Iterable[int] | None = None) -> None:
        """Raise MatchingError where an extent differs between members of the exchange."""

    def injective(self, to: Expr, sends: Expr, var: Sym) -> None:
        """Raise MatchingError where two members send to one, or one to none that exists."""

    def inverse(self, to: Expr, sends: Expr, source: Expr, receives: Expr, var: Sym) -> None:
        """Raise InternalError where a member receives from another one than sends to it."""

    def position(self) -> Expr:
        """Return this rank's position among the members."""

    def on_member(self, e: Expr, position: Expr) -> Expr:
        """Return `e` as the member at a position evaluates it."""

    def root(self, root: Expr, does: str) -> Expr:
        """Return the root's position; raise MatchingError where there is no such rank."""

    def tiles(self, part: Span, total: Expr) -> None:
        """Raise InternalError where the members' parts of a dim leave a gap or overlap."""

    def spans(self, bounds: Bounds, shape: Shape) -> None:
        """Raise InternalError where an array has other extents than its bounds say."""

    def broken(self, rule: str, found: str) -> NoReturn:
        """Raise the InternalError that names a rule and where the op breaks it."""


@dataclass(frozen=True)
class Traffic:
    """The traffic of an exchange. kind: one word. words: a longer name. bytes: what a rank receives
    from others, on the rank with the largest part. result: bytes that a rank has afterwards.
    gathered: dims that were split and are then whole on every rank."""

    kind: str
    words: str
    bytes: Expr
    result: Expr
    gathered: tuple[int, ...] = ()


class TrafficMeter(Protocol):
    """Measures the bytes that an exchange moves, as formulas of axis sizes."""

    def whole(self, words: str, op: Op) -> Traffic:
        """Return the traffic where all that a rank has afterwards comes from others."""

    def moved(self, op: Op, have: Bounds, want: Bounds, flow: str) -> Traffic:
        """Return the traffic of a Move, from the parts that members have and want."""

    def folded(self, op: Op, words: str, fn: str, cut: Sequence[int]) -> Traffic:
        """Return the traffic of a fold; a rank keeps a part of the dims `cut`."""
