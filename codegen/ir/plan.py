"""The Plan: supersteps over numbered buffers, as a grammar on one page.

    Plan     = buffers, steps, exchanges, arrays in and out, conditions, routes, kernels, …
    Step     = Phase | Exchange | Loop | Let | Branch | Default | Print | Expect | Point | Take
               | More | Send | Save
    Phase    = a compute phase: Work in order
    Work     = Store | Reduce | Nest | Lane | LibraryCall | KernelCall
               over loop variables; WorkLoop | WorkBranch of Work: control that only computes
    Nest     = sweeps one after the other within common loops; a Sweep = LocalValue | Store | Reduce
    Node     = Literal | Integer | Runtime | Load | LocalRead | Apply    the scalar at one point

Offsets, extents and peers are Exprs over coordinates, axis sizes, scalars, counters and the loop
variables of the Work they stand in. What an exchange takes from a member is written in the
member's own view. A buffer's capacity mentions sizes and scalars only, so addresses are arithmetic.
loops/schedule.py says how loops run, and leaves no Reduce; plan/hoist_formulas.py says what is
computed once: then a phase mentions its parameters, and no rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from codegen.dtypes import DType
from codegen.errors import Place
from codegen.ir.graph import Condition, Entry, Feed, Returned, Route, Scalar, Shape, StateArray
from codegen.library_routines import Routine
from codegen.mesh import Layout, Mesh
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar


@dataclass(frozen=True)
class Buffer:
    """Memory of one rank. number: its logical number; the same on all ranks of all jobs. arm: the
    number, in the Plan, of the only arm of a branch that uses it; 0 if others use it too. sparse: a
    rank touches parts of it only, and the engine takes memory for these parts only."""

    number: int
    name: str
    dtype: DType
    capacity: Expr  # elements, an upper bound over all ranks and counters
    data: Any = None  # the NumPy array, for a constant in the image
    arm: int = 0
    sparse: bool = False


# What memory is: a Buffer; in Loops, where none is assigned yet, the Value that lies in it.
if TYPE_CHECKING:
    M = TypeVar("M", default=Buffer)
else:
    M = TypeVar("M")


# ---- what is computed at one point ---------------------------------------------------------------


@dataclass(frozen=True)
class Literal:
    """A constant number. Two are equal if they are spelled alike, so 0.0 differs from -0.0."""

    value: Any = field(compare=False)
    dtype: DType
    spelled: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", repr(self.value))


@dataclass(frozen=True)
class Integer(Generic[M]):
    """A symbolic integer as a number, such as a position, an extent or the index itself."""

    value: Expr
    dtype: DType
    bounds: tuple[Bound[M], ...] = ()


@dataclass(frozen=True)
class Runtime:
    """A run-time scalar that is no integer, by its place among the program's scalars."""

    number: int
    name: str
    dtype: DType


@dataclass(frozen=True)
class Bound(Generic[M]):
    """A position that data decides: in offsets, `sym` has the value max(min(node, limit), 0)."""

    sym: Sym
    node: Node[M]
    limit: Expr
    shift: Expr | None = None  # of a Store: the point is dropped unless 0 <= sym + shift <= limit


@dataclass(frozen=True)
class Load(Generic[M]):
    buffer: M
    offset: Expr  # elements
    bounds: tuple[Bound[M], ...] = ()


@dataclass(frozen=True)
class LocalRead:
    """The value of a LocalValue of the same nest at this point."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Apply(Generic[M]):
    """A function of FUNCTIONS, applied to the values of nodes. dtype: that of the result; operand:
    that in which NumPy's loop for the first operand computes."""

    fn: str
    dtype: DType
    args: tuple[Node[M], ...]
    operand: DType


Node = Literal | Integer[M] | Runtime | Load[M] | LocalRead | Apply[M]


# `combine` of a Store that stores nothing: the engine saves `value` elements from the offset on,
# and restores them if the run fails.
KEEPS = "keeps"

# ---- work of a compute phase ---------------------------------------------------------------------


@dataclass(frozen=True)
class Var:
    """A loop variable of a nest: 0 <= sym < extent."""

    sym: Sym
    extent: Expr


@dataclass(frozen=True)
class Store(Generic[M]):
    """Store buffer[offset] = value for every point. combine: a COMBINE, "set" or KEEPS. A point is
    dropped if one of its bound positions lies outside 0 … limit. rows: the number of rows of the
    first loop that are buffered in `waiting` before they are stored, since later rows read the old
    elements; a buffered row takes `room` elements, and a point lies at `line` in its row. sift:
    list the points that are not dropped first, for this many iterations of the last loop; 0: test
    and store each point by itself."""

    loops: tuple[Var, ...]
    buffer: M
    offset: Expr
    value: Node[M]
    combine: str = "set"
    bounds: tuple[Bound[M], ...] = ()
    place: Place | None = None
    rows: int = 0
    waiting: M | None = None
    room: Expr = expr.const(0)
    line: Expr = expr.const(0)
    sift: int = 0

    @property
    def is_plain(self) -> bool:
        """Return whether every point is written as soon as it is computed: no point is combined
        with the old element, dropped or buffered."""
        return self.combine == "set" and not (self.bounds or self.rows)


@dataclass(frozen=True)
class Reduce(Generic[M]):
    """Compute buffer[offset] = COMBINE[fn] of value over `inner`, for every point of `loops`. rows:
    the last of `loops` runs innermost, over a row of results that is contiguous in memory. total:
    the type of the accumulator; None leaves it to loops/schedule.py. unroll: the number of
    iterations of the loop around the innermost one that are computed together; their terms are
    combined first, then added to the row."""

    loops: tuple[Var, ...]
    inner: tuple[Var, ...]
    rows: bool
    buffer: M
    offset: Expr
    value: Node[M]
    fn: str
    dtype: DType
    place: Place | None = None
    total: DType | None = None
    unroll: int = 1


@dataclass(frozen=True)
class LocalValue(Generic[M]):
    """A local variable of a nest, which LocalRead(name) reads: at this point or, with fn, after the
    sweep. With fn it is COMBINE[fn] of the values at all points, computed in the type `total` and
    rounded at the end."""

    name: str
    dtype: DType
    value: Node[M]
    fn: str = ""
    place: Place | None = None
    total: DType | None = None

    @property
    def read(self) -> LocalRead:
        return LocalRead(self.name, self.dtype)


@dataclass(frozen=True)
class Sweep(Generic[M]):
    """Execute parts in order for every point of `loops` (within those of the nest). simd:
    iterations of the last loop may run in vectors: folds in any order, stores to different
    elements. lanes: the number of accumulators of each fold, which are combined at the end; 0 for
    one accumulator. ahead: values that a separate loop computes first, for a piece of the last loop
    (loops/lookahead.py)."""

    loops: tuple[Var, ...]
    parts: tuple[LocalValue[M] | Store[M] | Reduce[M], ...]
    simd: bool = False
    lanes: int = 0
    ahead: tuple[LocalValue[M], ...] = ()

    @property
    def long(self) -> tuple[Var, ...]:
        """Return the loops of more than one iteration."""
        return tuple(v for v in self.loops if v.extent != 1)

    @property
    def folds(self) -> tuple[LocalValue[M], ...]:
        return tuple(p for p in self.parts if isinstance(p, LocalValue) and p.fn)


@dataclass(frozen=True)
class Nest(Generic[M]):
    """Execute sweeps in order for every point of `loops`. A Reduce in it has `rows`. unroll: the
    number of iterations of the last of `loops` that are computed together
    (loops/unroll_and_jam.py)."""

    loops: tuple[Var, ...]
    sweeps: tuple[Sweep[M], ...]
    place: Place | None = None
    unroll: int = 1

    @property
    def parts(self) -> tuple[LocalValue[M] | Store[M] | Reduce[M], ...]:
        return tuple(p for sweep in self.sweeps for p in (*sweep.ahead, *sweep.parts))


@dataclass(frozen=True)
class Lane(Generic[M]):
    """A cumulative operation, an argreduce, a sort or an argsort along each lane of an array.
    `value` is the element at position `along` of the lane; result k is stored at offset + stride *
    k (argreduce: its one result at offset). sort and argsort copy the lane into scratch[0] and work
    there. lanes: the number of elements that argreduce compares in one vector, each with an extreme
    of its own; 0 compares one at a time.
    """

    kind: str
    loops: tuple[Var, ...]
    along: Var
    buffer: M
    offset: Expr
    stride: Expr
    dtype: DType
    fn: str = ""
    value: Node[M] | None = None
    scratch: tuple[M, ...] = ()
    place: Place | None = None
    lanes: int = 0


@dataclass(frozen=True)
class Caller:
    """A C function that calls routines of libraries. parameters: an int64_t for each number of its
    LibraryCall, then a pointer for each part."""

    name: str
    parameters: str
    text: str
    routines: tuple[Routine, ...]


@dataclass(frozen=True)
class Part(Generic[M]):
    """A memory operand of a routine, from an element of a buffer on. row: the index of the number,
    among those of the call, that is its row stride; None if its rows are contiguous."""

    buffer: M
    offset: Expr
    writes: bool = False
    row: int | None = None


@dataclass(frozen=True)
class LibraryCall(Generic[M]):
    """Call function(numbers, parts) for every point of `loops`. Operands that it updates are
    initialised before. routines: the logical numbers of the library routines, in the order of the
    function's parameters."""

    function: Caller
    loops: tuple[Var, ...]
    numbers: tuple[Expr, ...]
    parts: tuple[Part[M], ...]
    routines: tuple[int, ...]
    place: Place | None = None


@dataclass(frozen=True)
class Argument(Generic[M]):
    """An argument of a kernel: a Buffer (from an offset on) or a Node. writes: the kernel writes
    it."""

    value: M | Expr | Node[M]
    dtype: DType
    shape: Shape = ()
    writes: bool = False
    offset: Expr = expr.const(0)


@dataclass(frozen=True)
class KernelCall(Generic[M]):
    """Call a kernel by its symbol: arrays pass as address and extents, scalars by value."""

    symbol: str
    arguments: tuple[Argument[M], ...]
    place: Place | None = None


@dataclass(frozen=True)
class WorkLoop(Generic[M]):
    """A loop inside a phase: it executes its body for each value of `sym` from start to stop."""

    sym: Sym
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Work[M], ...]
    place: Place | None = None


@dataclass(frozen=True)
class WorkBranch(Generic[M]):
    """A branch inside a phase: it executes arm number `on`, as a Branch does."""

    on: Expr | Load[M]
    arms: tuple[tuple[Work[M], ...], ...]
    place: Place | None = None


Simple = Store[M] | Reduce[M] | Nest[M] | Lane[M] | LibraryCall[M] | KernelCall[M]
Work = Simple[M] | WorkLoop[M] | WorkBranch[M]


# ---- steps of the control program ----------------------------------------------------------------


@dataclass(frozen=True)
class PhaseParameter:
    """A number that a phase takes as an argument. formula: its definition; value: the formula by
    which the caller computes it."""

    sym: Sym
    formula: Expr
    value: Expr


@dataclass(frozen=True)
class Phase:
    number: int
    name: str
    work: tuple[Work, ...]
    place: Place | None = None
    parameters: tuple[PhaseParameter, ...] = ()


@dataclass(frozen=True)
class Box(Generic[M]):
    """A region of a buffer: dims of extent elements at offset + stride * position (elements).

    names: symbols in it that stand for formulas.
    """

    buffer: M
    offset: Expr
    extent: Shape
    stride: Shape
    names: tuple[tuple[Sym, Expr], ...] = ()

    def symbols(self) -> set[Sym]:
        formulas = (self.offset, *self.extent, *self.stride, *(e for _, e in self.names))
        return set().union(*(e.symbols() for e in formulas))


POINT, ARRIVED = Sym("point", "var"), "arrived"


@dataclass(frozen=True)
class Exchange(Generic[M]):
    """One exchange phase of all ranks. `member` is the symbol of a member's position along `axes`.

    pull_from: the box that I read of a member, in that member's view. pull_into: the box that I
    write, in mine. send: the box that a member reads of me, in mine. give_into: the box of a member
    that I write instead, in its view. source, dest: the peers of a permute; None if they are not
    solved for. flow: which members a member reads, which the boxes of a fold do not tell: all,
    from_root, to_root, up_to (itself), before (itself) or near; near: ranges along each axis, of
    the members that I read and of those that read me. differs: each member reads another `send`.
    in_place: pull_into lies in the buffer that members read. wraps: the number of boxes of a pair
    of members; the symbol `wrap` counts them. last: the source is dead afterwards. shifts, swaps:
    a single member does not copy; it moves the beginning of the buffer to the elements that it
    would copy, or exchanges the addresses of the two buffers. take: a Store that is done with each
    element that arrives, instead of a copy; it reads ARRIVED, and elements of buffers at POINT, the
    position where a copy would write.
    """

    site: int
    kind: str  # of the op
    axes: tuple[str, ...]
    member: Sym
    dtype: DType | None = None
    pull_from: Box[M] | None = None
    pull_into: Box[M] | None = None
    send: Box[M] | None = None
    give_into: Box[M] | None = None
    source: Expr | None = None
    receives: Expr | None = None
    dest: Expr | None = None
    sends: Expr | None = None
    flow: str = "all"
    root: Expr | None = None
    near: tuple[tuple[Expr, Expr, Expr, Expr], ...] = ()
    differs: bool = False
    in_place: bool = False
    wraps: Expr = expr.const(1)
    fn: str = ""
    place: Place | None = None
    last: bool = False
    shifts: bool = False
    swaps: bool = False
    take: Store[M] | None = None

    @property
    def boxes(self) -> tuple[Box[M], ...]:
        named = (self.pull_from, self.pull_into, self.send, self.give_into)
        return tuple(box for box in named if box is not None)

    @property
    def constant(self) -> bool:
        """Return whether its boxes are the same in every iteration of the loops around it."""
        return all(s.kind != "counter" for box in self.boxes for s in box.symbols())


@dataclass(frozen=True)
class Loop:
    """Repeat a body of steps. slot: where a rank keeps the counter (None: a while loop has none).
    condition: the steps that compute the truth value `flag`. rotate: cycles of buffers that
    exchange addresses as an iteration ends, so that each takes the content of the one before it and
    no element moves. All buffers of a cycle have one dtype and one capacity, so a box inside its
    buffer is so in every iteration; and all ranks of an exchange that touches them have executed
    the same number of iterations."""

    counter: Sym | None
    slot: int
    start: Expr
    stop: Expr | None
    step: Expr
    body: tuple[Step, ...]
    condition: tuple[Step, ...] = ()
    flag: Load | None = None
    rotate: tuple[tuple[Buffer, ...], ...] = ()
    place: Place | None = None


@dataclass(frozen=True)
class Let(Generic[M]):
    """Define the symbol `counter`, kept in this slot, by the number in a 0-d buffer."""

    counter: Sym
    slot: int
    value: Load[M]
    place: Place | None = None


@dataclass(frozen=True)
class Branch:
    """Execute arm number `on` (clamped to the arms): an Expr (branch on the index) or a 0-d
    buffer."""

    on: Expr | Load
    arms: tuple[tuple[Step, ...], ...]
    place: Place | None = None


@dataclass(frozen=True)
class Default:
    """Execute steps that compute input number `input` in a call that omits it."""

    input: int
    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Print(Generic[M]):
    """Print parts and operands. paced: only if enough time has passed since the last one, or if
    operand 0 equals operand 1."""

    parts: tuple[str, ...]
    operands: tuple[Node[M], ...]
    every_rank: bool
    place: Place | None = None
    paced: bool = False


@dataclass(frozen=True)
class Expect(Generic[M]):
    """End the run of all ranks with this text where `holds` is false. check: the name of the check
    that made it."""

    holds: Node[M]
    parts: tuple[str, ...]
    operands: tuple[Node[M], ...]
    check: str = ""
    place: Place | None = None


@dataclass(frozen=True)
class Home:
    """The place of a carried value in a global array: the extents of its memory; the shape and
    layout of the array, and the offset of the rank's part in memory that has ghost cells. `array`
    is None if the value is this rank's only."""

    name: str
    dtype: DType
    part: Shape
    array: tuple[Shape, Layout, Shape | None] | None


@dataclass(frozen=True)
class Point(Generic[M]):
    """The first step of an iteration of an outermost loop: the place of a checkpoint. What the loop
    carries is saved here; a run that resumes from a checkpoint replaces it, and sets `counter`."""

    number: int
    counter: Expr | None
    carried: tuple[M, ...]
    homes: tuple[Home, ...]
    place: Place | None = None


# Steps that exchange data with services outside of the job.
@dataclass(frozen=True)
class Take(Generic[M]):
    """Write the feed's next batch into these buffers, a field into each."""

    number: int
    feed: str
    into: tuple[M, ...]
    homes: tuple[Home, ...]
    place: Place | None = None


@dataclass(frozen=True)
class More(Generic[M]):
    """Write into a buffer whether the feed has a next batch: one truth value."""

    feed: str
    into: M
    place: Place | None = None


@dataclass(frozen=True)
class Send(Generic[M]):
    """Send the content of these buffers to the producers of the last batch that was taken."""

    number: int
    feed: str
    values: tuple[M, ...]
    homes: tuple[Home, ...]
    place: Place | None = None


@dataclass(frozen=True)
class Save(Generic[M]):
    """Save this buffer as a frame of `series`, in every `every`-th iteration of the loop around."""

    series: str
    every: int
    values: tuple[M, ...]  # of one
    homes: tuple[Home, ...]
    place: Place | None = None


Feeding = Take[M] | More[M] | Send[M] | Save[M]
Step = Phase | Exchange | Loop | Let | Branch | Default | Print | Expect | Point | Feeding


@dataclass(frozen=True)
class Array:
    """An input, an output or a carried value: its buffer, and its place in the global array. part:
    offset and extent of a rank's part along every dim. own: each rank has an array of its own.
    room: where the part begins in memory with ghost cells, along every dim, and the extents of that
    memory. flag: the symbol that is 1 in a call that passes the input or asks for the output;
    needs: the names of the optional inputs that an output needs, or of the declaration of an
    optional input."""

    name: str
    buffer: Buffer
    dtype: DType
    shape: Shape  # global
    layout: Layout
    default: bool = False
    part: tuple[tuple[Expr, Expr], ...] = ()
    own: bool = False
    room: tuple[tuple[Expr, Expr], ...] = ()
    flag: Sym | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Saved:
    """A save step, and the array whose frames it saves."""

    series: str
    every: int
    array: Array
    place: Place | None


@dataclass(frozen=True)
class FeedStep:
    """A Take or a Send, by its feed and its number, with the arrays that it fills or sends."""

    feed: str
    number: int
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class Plan:
    name: str
    file: str
    mesh: Mesh
    parameters: tuple[tuple[str, Any], ...]
    scalars: tuple[Scalar, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[Buffer, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    returns: Returned
    states: tuple[StateArray, ...]
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...]
    conditions: tuple[Condition, ...]
    counters: int
    sites: int
    routes: tuple[Route, ...] = ()
    libraries: tuple[Routine, ...] = ()
    kernels: tuple[Any, ...] = ()
    checks: tuple[str, ...] = ()
    named: dict[Sym, Expr] = field(default_factory=dict)  # symbols that stand for formulas
    at_load: dict[Sym, Expr] = field(default_factory=dict)  # those evaluated once, in this order
    # what outermost loops carry, by their numbers; None: they have no points
    points: tuple[tuple[Array, ...], ...] | None = None
    feeds: tuple[Feed, ...] = ()
    takes: tuple[FeedStep, ...] = ()
    sends: tuple[FeedStep, ...] = ()
    saves: tuple[Saved, ...] = ()
    # by number of an arm of a branch, from 1 on, outer ones first: the arm around it; 0: none
    arms: tuple[int, ...] = ()
    # what symbols that a Let defines are, where that is a formula: for those who run nothing
    lets: dict[Sym, Expr] = field(default_factory=dict)
    # the slot of what the program says of where it is: Lets under the key POSITION; None: nothing
    position: int | None = None
