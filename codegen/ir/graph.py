"""The intermediate representation of the Graph and Program levels, as a grammar on one page.

    Module  = name, level, mesh, parameters, scalars, inputs, feeds, body: Region, outputs,
              conditions, routes
    Region  = (args) ops -> results            ops may use values of enclosing regions
    Op      = results := kind(operands) {regions}          kind: of a class in codegen/ops; at place
    Value   = name : dtype[shape]              defined once, compared by identity

A Graph holds global arrays and `shard_map` ops whose region is one rank's view. A Program holds one
rank's view only: the shard_maps are opened, every shape is an extent in the index and axis sizes.
The tree is frozen: a pass returns a new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from codegen.dtypes import DType
from codegen.errors import Place
from codegen.mesh import Layout, Mesh
from codegen.symbolic.expr import Expr, Sym

if TYPE_CHECKING:  # a kind's rules speak of types
    from codegen.ops.kind import Kind

Level = Literal["graph", "program", "loops"]
Shape = tuple[Expr, ...]
# The tree of what a program returns: k, of output k; or ("tuple", trees), ("list", trees),
# ("dict", pairs of key and tree), ("named", name of the class, pairs of field and tree).
Returned = int | tuple[Any, ...]
INITIAL = "__init__"  # the first entry, which makes the states
_ids = itertools.count()


@dataclass(frozen=True)
class ArrayType:
    """The element type and shape of an array. layout: that of a global array (Graph level); None
    for a local one.

    free: neither the user nor a rule chose the layout, as for a literal, so that its users may
    choose it.
    """

    dtype: DType
    shape: Shape
    layout: Layout | None = None
    free: bool = field(default=False, compare=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        dims = ", ".join(str(e) for e in self.shape)
        where = "" if self.layout is None else f" over {layout_text(self.layout)}"
        return f"{self.dtype}[{dims}]{where}"


def layout_text(layout: Layout) -> str:
    """Return a layout as the user writes it: ("x", None), (("x", "y"), None)."""

    def entry(e: tuple[str, ...]) -> str:
        if len(e) == 1:
            return f'"{e[0]}"'
        return "None" if not e else "(" + ", ".join(f'"{a}"' for a in e) + ")"

    inner = ", ".join(entry(e) for e in layout)
    return f"({inner},)" if len(layout) == 1 else f"({inner})"


@dataclass(frozen=True, eq=False)
class Value:
    """One array, defined once. The name is a hint from the source; identity is what counts."""

    name: str
    type: ArrayType
    id: int = field(default_factory=lambda: next(_ids))

    def __repr__(self) -> str:
        return f"%{self.name}.{self.id}: {self.type}"


@dataclass(frozen=True, eq=False)
class Region:
    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]

    def with_ops(self, ops: Iterable[Op]) -> Region:
        """Return the region with other ops; itself, if they are its own."""
        new = tuple(ops)
        return self if new == self.ops else replace(self, ops=new)


@dataclass(frozen=True, eq=False)
class Op:
    kind: Kind
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    regions: tuple[Region, ...] = ()
    place: Place | None = None

    @property
    def result(self) -> Value:
        (value,) = self.results
        return value

    def mapped(self, fn: Callable[[Region], Region]) -> Op:
        """Return the op with fn applied to each of its regions; the op itself if none changes."""
        regions = tuple(map(fn, self.regions))
        return self if regions == self.regions else replace(self, regions=regions)


@dataclass(frozen=True)
class Scalar:
    """A number that a launch sets. dtype: int64 (then `sym` is its symbol) or float64.

    at_most: for the extent of a named dim, which launches take from the inputs, its upper bound;
    None for other scalars."""

    name: str
    dtype: DType
    default: int | float | None
    sym: Sym | None = None
    place: Place | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Input:
    """A global array that a launch reads.

    default: a region without args that computes one rank's shard where the input is not given;
    None: it must be given. origin: who says the layout: "given" (the user), "rules" (of the
    program) or "chosen" (by the compiler). flag: for an input that a call may leave out, a symbol
    that is 1 where the call gives it; else None. root: the name of the declaration of such an
    input, which may be a tree of inputs.
    """

    value: Value
    layout: Layout
    shape: Shape  # global
    default: Region | None = None
    place: Place | None = None
    origin: str = "given"
    flag: Sym | None = None
    root: str = ""

    @property
    def name(self) -> str:
        return self.value.name

    def mapped(self, fn: Callable[[Region], Region]) -> Input:
        """Return the input with fn applied to its default; the input itself if that does not
        change."""
        new = None if self.default is None else fn(self.default)
        return self if new is self.default else replace(self, default=new)


@dataclass(frozen=True)
class Output:
    """An output of a program. needs: the optional inputs without which it is not computed. wanted:
    a symbol that is 1 where a call asks for the output; None for an output that every call
    computes. otherwise: in a captured Graph, its value where it is not computed, such as state that
    stays."""

    name: str
    value: Value
    layout: Layout
    shape: Shape  # global
    needs: tuple[str, ...] = ()
    wanted: Sym | None = None
    otherwise: Value | None = None


@dataclass(frozen=True)
class StateArray:
    """An array that stays on the ranks between calls.

    input: the number of the input in which it lies; path: how users write it. new: the number of
    the output that holds the value that an entry gives it; it replaces the old value as the call
    ends. begins: whether the first entry creates it; else it must be given.
    """

    input: int
    path: str
    new: int
    begins: bool = True


@dataclass(frozen=True)
class Entry:
    """One of several programs in an image. inputs, outputs, reads, rebinds, updates: numbers in the
    module, of its inputs and outputs, and of the states that it reads, replaces by new arrays, or
    writes in place. returns: the tree of results, whose leaf k is the k-th output; None: it returns
    nothing. scalars, feeds, saves: their names."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[int, ...]
    rebinds: tuple[int, ...]
    scalars: tuple[str, ...]
    feeds: tuple[str, ...]
    saves: tuple[str, ...]
    returns: Returned | None
    place: Place | None = None
    updates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Feed:
    """A stream of batches. fields: the names, types and layouts of the arrays of a batch."""

    name: str
    fields: tuple[tuple[str, ArrayType], ...]
    place: Place | None = None


@dataclass(frozen=True)
class Condition:
    """A condition on axis sizes and scalars: unless `holds` is 1, the launch is refused with
    `text`."""

    holds: Expr
    text: str
    place: Place | None = None


@dataclass(frozen=True)
class Route:
    """A permutation that was tried at many sizes but not proved, so that the launch tries its own
    size.

    member: the symbol of a member's position. Of `size` members, each at which `sends` is 1 sends
    to position `to`."""

    to: Expr
    sends: Expr
    member: Sym
    size: Expr
    text: str
    place: Place | None = None


@dataclass(frozen=True)
class Keeps:
    """Values that a reverse pass keeps in memory. turns: for a loop, the number of iterations, each
    of which stores an element along the first dim; None for a function that spmd.remat computes
    again."""

    values: tuple[Value, ...]
    turns: Expr | None
    place: Place | None


@dataclass(frozen=True, eq=False)
class Module:
    name: str
    level: Level
    mesh: Mesh
    parameters: tuple[tuple[str, Any], ...]
    scalars: tuple[Scalar, ...]
    inputs: tuple[Input, ...]
    body: Region
    outputs: tuple[Output, ...]
    conditions: tuple[Condition, ...] = ()
    routes: tuple[Route, ...] = ()
    feeds: tuple[Feed, ...] = ()
    returns: Returned = ("dict",)
    # Several programs over arrays that stay: the first entry makes these. The scalar ENTRY says
    # which one runs: the body is a branch on it. None of either: the module is one program.
    states: tuple[StateArray, ...] = ()
    entries: tuple[Entry, ...] = ()
    # barriers around exchange phases: "least", "before", "after" or "both"
    sync: str = "least"
    file: str = ""
    kept: bool = False  # whether its outermost loops have points
    checks: tuple[str, ...] = ()  # of codegen.checks.names: what is checked while it runs
    # of a Graph: loops that are unrolled, since an extent in them depends on the counter
    unrolled: tuple[Place, ...] = ()
    # of a Graph: calls of library code; ops with such a place were written by no user
    library_calls: tuple[Place, ...] = ()
    keeps: tuple[Keeps, ...] = ()  # of a Graph: what its derivatives keep
    # of a Graph: what libraries say of it to people, rows of JSON by what they are of
    notes: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    # of a Program, where that is: where in its array the part begins that a value is
    starts: Mapping[Value, Shape] = field(default_factory=dict)
    # of a Program: the value of the Graph that the result of an exchange is a part of
    origins: Mapping[Value, Value] = field(default_factory=dict)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the outermost regions: defaults of inputs, then the body."""
        return (*(i.default for i in self.inputs if i.default is not None), self.body)

    @property
    def entry_branch(self) -> Op | None:
        """Return the branch that selects an entry; None if the module has no entries."""
        return self.body.ops[-1] if self.entries else None

    @property
    def bodies(self) -> tuple[Region, ...]:
        """Return the regions that run in a call: the arm of each entry, or the body of a module
        that has no entries."""
        return self.body.ops[-1].regions if self.entries else (self.body,)

    def with_bodies(self, bodies: Iterable[Region]) -> Module:
        """Return the module with these regions in the places of its `bodies`."""
        arms = tuple(bodies)
        if not self.entries:
            return self.with_body(arms[0])
        branch = replace(self.body.ops[-1], regions=arms)
        return self.with_body(self.body.with_ops((*self.body.ops[:-1], branch)))

    def mapped(self, fn: Callable[[Region], Region]) -> Module:
        """Return the module with fn applied to each of its regions; the module itself if none
        changes."""
        inputs = tuple(i.mapped(fn) for i in self.inputs)
        whole = self if inputs == self.inputs else replace(self, inputs=inputs)
        return whole.with_body(fn(self.body))

    def with_body(self, body: Region) -> Module:
        """Return the module with another body; the module itself if it is the same."""
        return self if body is self.body else replace(self, body=body)

    @cached_property
    def def_use(self) -> DefUse:
        return DefUse.of(*self.regions, shown=[o.value for o in self.outputs])


@dataclass(frozen=True)
class Use:
    """A use of a value. op: the op that reads it; None: it is a result of a region, or an output.
    operand: the number of the operand; position: the place in program order; region: the region
    that contains the use."""

    op: Op | None
    operand: int
    position: int
    region: Region


@dataclass(frozen=True)
class DefUse:
    """An index of definitions and uses. order: all ops, outer ones first. defs: by value, the op
    that defines it; regions: by value, the region of its definition. uses: by value, its uses in
    program order. begins: by value or counter, the position in program order at which it is
    defined: for an argument, where its region begins; for a result, where its op ends."""

    order: tuple[Op, ...]
    defs: Mapping[Value, Op]
    regions: Mapping[Value, Region]
    uses: Mapping[Value, tuple[Use, ...]]
    begins: Mapping[Value | Sym, int]

    @classmethod
    def of(cls, *entries: Region, shown: Iterable[Value] = ()) -> DefUse:
        """Return the index of these regions. shown: values that count as used at the end of the
        last one."""
        order: list[Op] = []
        defs: dict[Value, Op] = {}
        regions: dict[Value, Region] = {}
        uses: dict[Value, list[Use]] = {}
        begins: dict[Value | Sym, int] = {}
        clock = itertools.count(1)

        def ends(values: Iterable[Value], region: Region) -> None:
            time = next(clock)
            for v in values:
                uses.setdefault(v, []).append(Use(None, 0, time, region))

        def enter(region: Region) -> None:
            begins.update(dict.fromkeys(region.args, next(clock)))
            for op in region.ops:
                time = next(clock)
                order.append(op)
                for k, v in enumerate(op.operands):
                    uses.setdefault(v, []).append(Use(op, k, time, region))
                if (counter := op.kind.counts()) is not None:
                    begins[counter] = time
                defs.update(dict.fromkeys(op.results, op))
                regions.update(dict.fromkeys(op.results, region))
                for inner in op.regions:  # a nest has the results of the ops in it
                    enter(inner)
                begins.update(dict.fromkeys(op.results, next(clock)))
            ends(region.results, region)

        for region in entries:
            enter(region)
        ends(shown, entries[-1])
        all_uses = {v: tuple(us) for v, us in uses.items()}
        return cls(tuple(order), defs, regions, all_uses, begins)


def walk(region: Region) -> Iterator[Op]:
    """Yield every op of a region and of the regions in it, in program order, outer op first."""
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from walk(inner)


def used_values(region: Region) -> Iterator[Value]:
    """Yield every use of a value, those in inner regions too."""
    for op in region.ops:
        yield from op.operands
        for inner in op.regions:
            yield from used_values(inner)
    yield from region.results


def free_values(region: Region) -> list[Value]:
    """Return the values that a region uses and does not define, in order of first use."""
    defined = set(region.args)
    out: dict[Value, None] = {}
    for op in region.ops:
        used = list(op.operands)
        for inner in op.regions:
            used += free_values(inner)
        for v in used:
            if v not in defined:
                out.setdefault(v)
        defined.update(op.results)
    for v in region.results:
        if v not in defined:
            out.setdefault(v)
    return list(out)


def free_counters(region: Region) -> list[Sym]:
    """Return the counters of loops, and symbols that `let` ops define, that a region uses and that
    are defined outside it, in order of first use."""
    ops = list(walk(region))
    own = {op.kind.counts() for op in ops}
    exprs = [e for op in ops for e in op.kind.exprs()]
    exprs += [e for op in ops for v in op.results for e in v.type.shape]
    counters = ([s for s in e.symbols() if s.kind == "counter" and s not in own] for e in exprs)
    return list(dict.fromkeys(s for of in counters for s in sorted(of, key=lambda s: s.name)))
