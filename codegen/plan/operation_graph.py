"""The operation graph of a Plan: a row for each loop nest, product and exchange, and its order.

In: a finished Plan. Out: rows, outer ones first. A row waits for those rows of its region that
write what it touches, or touch what it writes. Loops and branches are rows with regions.
Always holds: rows of a region that begin in any order, each when those that it waits for have
ended, do what the Plan says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from codegen.errors import Place
from codegen.ir.exprs import exprs
from codegen.ir.overlays import Overlays, overlays
from codegen.ir.plan import (
    Branch,
    Default,
    Exchange,
    Expect,
    KernelCall,
    Let,
    LibraryCall,
    Load,
    Loop,
    More,
    Phase,
    Plan,
    Point,
    Print,
    Save,
    Send,
    Step,
    Take,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.ir.steps import (
    inner_steps,
    inner_works,
    memory_read,
    memory_written,
    operations,
    walk_steps,
)
from codegen.symbolic.expr import Expr, Sym

Act = Step | Work
MEETINGS = (Exchange, Take, More, Send)  # a rank may wait there for others
SIGNS = (Print, Save, Expect, Point)  # what a user sees, or finds again
GATES = (Expect, Point)  # what stands behind one begins when it is over


@dataclass
class OperationRow:
    """One row of the graph: a loop nest, a call, an exchange, a loop, a branch or an effect.

    kind: nest, library, kernel, exchange, loop, branch, default, entries (a branch: a call runs one
    of its arms), or the name of the step. act: what the Plan says there. step: the row of the
    manifest's `operations` that a rank is at meanwhile. region: the row that it lies in, and which
    of that row's regions. place: its line; of a loop or a phase where it has none itself. reads,
    writes: numbers of buffers; what it writes it may read too. waits: rows of its region. lets: the
    integers that it uses of those that the program computes. kinds: of its steps, with those inside
    it."""

    number: int
    kind: str
    act: Act
    step: int | None
    region: tuple[int, int] | None
    place: Place | None
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    waits: tuple[int, ...] = ()
    stream: int = 0
    lets: frozenset[Sym] = frozenset()
    kinds: frozenset[type] = frozenset()
    inner: list[OperationRow] = field(default_factory=list)


def operation_graph(plan: Plan) -> list[OperationRow]:
    """Return the rows of a Plan, in the order of their numbers."""
    graph = _Graph(plan)
    graph.region(plan.steps, None)
    return graph.rows


def shown_in(plan: Plan) -> dict[int, set[int]]:
    """Return, by number of a buffer, the buffers in whose memory it may lie on a rank that is the
    only member of an exchange."""
    sources: dict[int, set[int]] = {}
    for step in walk_steps(plan.steps):
        if isinstance(step, Exchange) and step.shifts and step.pull_into and step.pull_from:
            into, source = step.pull_into.buffer.number, step.pull_from.buffer.number
            sources.setdefault(into, set()).add(source)
    return sources


class _Graph:
    """The graph while it is built. memory: where buffers may lie in the memory of others. fields:
    by feed, what its takes fill, which may be where the batch lies until the next one is taken.
    lets: the counters that Lets set. parameters: for each parameter of the phase at hand, the
    counters among these that its formula depends on."""

    def __init__(self, plan: Plan) -> None:
        self.rows: list[OperationRow] = []
        self.entries = plan.steps[-1] if plan.entries else None
        self.number_of = {id(step): k for k, step in enumerate(operations(plan.steps))}
        self.memory = _Memory(shown_in(plan), overlays(plan))
        self.fields: dict[str, set[int]] = {}
        self.lets: set[Sym] = set()
        self.parameters: dict[Sym, frozenset[Sym]] = {}
        for step in walk_steps(plan.steps):
            if isinstance(step, Take):
                self.fields.setdefault(step.feed, set()).update(b.number for b in step.into)
            elif isinstance(step, Let):
                self.lets.add(step.counter)

    # ---- rows ------------------------------------------------------------------------------------

    def region(self, steps: Sequence[Act], region: tuple[int, int] | None) -> list[OperationRow]:
        rows = []
        for step in steps:
            number = self.number_of.get(id(step))
            if isinstance(step, Phase):
                self.parameters = {p.sym: self.used((p.formula, p.value)) for p in step.parameters}
                rows += [self.row(work, number, region, step.place) for work in step.work]
                self.parameters = {}
            else:
                rows.append(self.row(step, number, region, None))
        _ordered(rows, self.memory)
        return rows

    def row(
        self, act: Act, step: int | None, region: tuple[int, int] | None, around: Place | None
    ) -> OperationRow:
        place: Place | None = getattr(act, "place", None) or around
        kind = "entries" if act is self.entries else kind_of(act)
        row = OperationRow(len(self.rows), kind, act, step, region, place)
        self.rows.append(row)
        if isinstance(act, WorkLoop | WorkBranch):
            for k, works in enumerate(inner_works(act)):
                within = [self.row(work, step, (row.number, k), place) for work in works]
                _ordered(within, self.memory)
                row.inner += within
        elif isinstance(act, Loop | Branch | Default):
            for k, steps in enumerate(inner_steps(act)):
                row.inner += self.region(steps, (row.number, k))
        row.place = place or next((inner.place for inner in row.inner if inner.place), None)
        read, written = self.touched(act)
        for inner in row.inner:
            read |= inner.reads
            written |= inner.writes
        row.reads, row.writes = frozenset(read - written), frozenset(written)
        row.kinds = frozenset([type(act)]).union(*(inner.kinds for inner in row.inner))
        if self.lets:
            mine = self.used(_formulas(act))
            row.lets = mine.union(*(self.parameters.get(s, ()) for s in _symbols(_formulas(act))),
                                  *(inner.lets for inner in row.inner))
        return row

    def used(self, formulas: object) -> frozenset[Sym]:
        return frozenset(self.lets & _symbols(formulas)) if self.lets else frozenset()

    def touched(self, act: Act) -> tuple[set[int], set[int]]:
        """Return the buffers that a row reads and writes itself, without what is inside it."""
        match act:
            case Loop():
                return _loaded(act.flag), {b.number for cycle in act.rotate for b in cycle}
            case Branch() | WorkBranch():
                return _loaded(act.on), set()
            case Let():
                return _loaded(act.value), set()
            case WorkLoop() | Default() | Phase():
                return set(), set()
        read = {b.number for b in memory_read(act) if b.data is None}
        written = {b.number for b in memory_written(act)}
        if isinstance(act, Take | More):
            written |= self.fields.get(act.feed, set())
        elif isinstance(act, Exchange) and act.last and act.pull_from is not None:
            written.add(act.pull_from.buffer.number)  # it may be given up: its place changes
        return read, written


def _loaded(decider: Expr | Load | None) -> set[int]:
    """Return the buffer from which a branch or a loop is decided: none for a constant or a
    formula."""
    if not isinstance(decider, Load) or decider.buffer.data is not None:
        return set()
    return {decider.buffer.number}


def kind_of(act: Act) -> str:
    match act:
        case LibraryCall():
            return "library"
        case KernelCall():
            return "kernel"
        case Loop() | WorkLoop():
            return "loop"
        case Branch() | WorkBranch():
            return "branch"
        case Exchange() | Take() | More() | Send() | Save() | Let() | Print() | Expect() | Point():
            return type(act).__name__.lower()
        case Default():
            return "default"
    return "nest"


def _formulas(act: Act) -> object:
    """Return the formulas that a rank evaluates for a row itself, without what is inside it."""
    match act:
        case Loop() | WorkLoop():
            return tuple(e for e in (act.start, act.stop, act.step) if e is not None)
        case Branch() | WorkBranch():
            return act.on
        case Let():
            return act.value
        case Print():
            return act.operands
        case Expect():
            return (act.holds, act.operands)
        case Default() | Point() | Take() | More() | Send() | Save() | Phase():
            return ()
    return act


def _symbols(formulas: object) -> set[Sym]:
    return {s for e in exprs(formulas) for s in e.symbols()}


# ---- order ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Memory:
    """The buffers that share memory. lies_in: what shown_in returns. overlays: arms of branches
    whose buffers share memory."""

    lies_in: dict[int, set[int]]
    overlays: Overlays


def _ordered(rows: list[OperationRow], memory: _Memory) -> None:
    """Set what the rows of a region wait for, and their streams."""
    order = _Order(memory)
    before: list[int] = []  # by place in the region: bits of the places that come before for sure
    streams = _Streams()
    for k, row in enumerate(rows):
        mine, waits = 0, []
        for j in sorted(order.of(row, k), reverse=True):
            if not mine >> j & 1:
                mine |= before[j] | 1 << j
                waits.append(j)
        before.append(mine)
        row.waits = tuple(rows[j].number for j in reversed(waits))
        row.stream = streams.of(k, waits, mine)


class _Streams:
    """The streams of a region. ends: by place of a row that is the last of its stream so far, the
    stream. bits: a mask of those places."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.bits = 0

    def of(self, k: int, waits: Sequence[int], before: int) -> int:
        """Return the stream of the row at place k: the first one that ends with a row that it waits
        for; else one that ends with a row that comes before it anyway; else a new one."""
        after = min((j for j in waits if j in self.ends), key=self.ends.__getitem__, default=None)
        if after is None and (ended := self.bits & before):
            after = (ended & -ended).bit_length() - 1
        stream = len(self.ends) if after is None else self.ends.pop(after)
        if after is not None:
            self.bits ^= 1 << after
        self.ends[k] = stream
        self.bits |= 1 << k
        return stream


class _Order:
    """The rows so far, by the memory that they touch: the last writer of each place and its
    readers since; the rows that have touched each overlay; and the last row behind which all others
    wait, whatever they touch."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        self.wrote: dict[object, int] = {}
        self.read: dict[object, list[int]] = {}
        self.overlays: dict[int, list[int]] = {}
        self.gate: int | None = None

    def of(self, row: OperationRow, k: int) -> set[int]:
        """Return the places, in the region, of rows after which this one, at place k, must come."""
        after = set() if self.gate is None else {self.gate}
        reads, writes = self.touched(row)
        for memory in reads | writes:
            if memory in self.wrote:
                after.add(self.wrote[memory])
        for memory in writes:
            after.update(self.read.pop(memory, ()))
            self.wrote[memory] = k
        for memory in reads:
            self.read.setdefault(memory, []).append(k)
        after.update(self.overlaid(row, k))
        if row.kinds.intersection(GATES):
            self.gate = k
        return after

    def overlaid(self, row: OperationRow, k: int) -> set[int]:
        """Return the places of rows before this one in whose memory its buffers may lie: branches
        one after the other, whose arms share memory."""
        all_overlays = self.memory.overlays
        mine = {all_overlays.of[b] for b in row.reads | row.writes} - {0}
        after: set[int] = set()
        for other, places in self.overlays.items():
            if any(all_overlays.share_memory(other, overlay) for overlay in mine):
                after.update(places)
        for overlay in mine:
            self.overlays.setdefault(overlay, []).append(k)
        return after

    def touched(self, row: OperationRow) -> tuple[set[object], set[object]]:
        reads: set[object] = {*row.reads, *row.lets}
        writes: set[object] = set(row.writes)
        for number in (row.reads | row.writes) & self.memory.lies_in.keys():
            reads |= self.memory.lies_in[number]
        writes.update(kinds for kinds in (MEETINGS, SIGNS) if row.kinds.intersection(kinds))
        writes.update(x.counter for x in _lets(row))
        return reads - writes, writes


def _lets(row: OperationRow) -> Iterator[Let]:
    if isinstance(row.act, Let):
        yield row.act
    for inner in row.inner:
        yield from _lets(inner)
